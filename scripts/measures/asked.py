"""A connection of an SQS client that costs as little as it can: signed requests, one at a time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

from shardq.errors import ShardqError

if TYPE_CHECKING:
    from shardq.clock import Clock

_REGION = "us-east-1"
_SIGNED = "host;x-amz-date;x-amz-target"
_ANSWER_BYTES_MAX = 1 << 24


class Key(NamedTuple):
    """A key, and the secret that signs with it."""

    id: str
    secret: str


@lru_cache(64)
def _signing_key(secret: str, day: str) -> bytes:
    made = f"AWS4{secret}".encode()
    for part in (day, _REGION, "sqs", "aws4_request"):
        made = hmac.digest(made, part.encode(), "sha256")
    return made


class Connection:
    """A context manager: a connection to a server.

    Args:
        url: The server's url.
        key: The key that signs requests.
        clock: The clock that gives signatures their time.
    """

    def __init__(self, url: str, key: Key, clock: Clock) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._key = key
        self._clock = clock
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, limit=_ANSWER_BYTES_MAX
        )

    def close(self) -> None:
        """Disconnect."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def call(self, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Call an action; returns its output.

        Raises:
            ShardqError: If the answer is an error.
        """
        if self._writer is None:
            # Connect again, because a server may close the connection after each answer.
            await self.open()
        assert self._writer is not None  # noqa: S101 - it was opened
        self._writer.write(self.request(action, json.dumps(fields).encode()))
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        body = await self._reader.readexactly(int(length or 0))
        if b"connection: close" in head:
            self.close()
        if head.split(b" ", 2)[1] != b"200":
            raise ShardqError(f"{action} failed: {body.decode(errors='replace')[:500]}")
        found: dict[str, Any] = json.loads(body or b"{}")
        return found

    def request(self, action: str, body: bytes) -> bytes:
        """A signed request, as it is sent."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC)
        at = now.strftime("%Y%m%dT%H%M%SZ")
        host, target = f"{self._host}:{self._port}", f"AmazonSQS.{action}"
        digest = hashlib.sha256(body).hexdigest()
        canonical = (
            f"POST\n/\n\nhost:{host}\nx-amz-date:{at}\nx-amz-target:{target}\n\n{_SIGNED}\n{digest}"
        )
        scope = f"{at[:8]}/{_REGION}/sqs/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signing_key = _signing_key(self._key.secret, at[:8])
        signature = hmac.digest(signing_key, text.encode(), "sha256").hex()
        return (
            f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"X-Amz-Date: {at}\r\nX-Amz-Target: {target}\r\nContent-Length: {len(body)}\r\n"
            f"Authorization: AWS4-HMAC-SHA256 Credential={self._key.id}/{scope}, "
            f"SignedHeaders={_SIGNED}, Signature={signature}\r\n\r\n"
        ).encode() + body
