"""Requests as clients make them: signed by botocore, or with a key; no server is needed."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from shardq.server.web import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

URL = "http://127.0.0.1:9324/"
REGION = "eu-west-1"


def request_of(
    url: str = URL,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    client: str = "127.0.0.1",
) -> Request:
    """A request as a server hands it to `Access`."""
    parts = urlsplit(url)
    named = {"host": parts.netloc}
    named |= {name.lower(): value for name, value in (headers or {}).items()}
    return Request(
        method,
        unquote(parts.path),
        parts.path,
        parts.query,
        named,
        body,
        client,
        parts.scheme,
        named["host"],
        "request-1",
    )


def signed_request(
    key_id: str,
    secret: str,
    at_s: float,
    *,
    url: str = URL,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    params: Mapping[str, str] | None = None,
    service: str = "sqs",
    region: str = REGION,
    expires_s: int | None = None,
    token: str | None = None,
) -> Request:
    """A request that botocore has signed: by header, or, with `expires_s`, by query."""
    made = AWSRequest(method, url, dict(headers or {}), body, dict(params or {}))
    known = Credentials(key_id, secret, token)
    signer: Any = (
        auth.SigV4Auth(known, service, region)
        if expires_s is None
        else auth.SigV4QueryAuth(known, service, region, expires_s)
    )
    with at_time(at_s):
        signer.add_auth(made)
    sent = made.prepare()
    return request_of(
        sent.url,
        method=sent.method,
        headers={name: _text(value) for name, value in sent.headers.items()},
        body=sent.body if isinstance(sent.body, bytes) else (sent.body or "").encode(),
    )


@contextmanager
def at_time(at_s: float) -> Iterator[None]:
    """While this lasts, botocore signs as of this time."""
    now = datetime.fromtimestamp(at_s, UTC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auth, "get_current_datetime", lambda *_, **__: now)
        yield


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
