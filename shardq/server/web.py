"""The request that handlers get, and the answer that they return. No I/O, and no framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

QUICK_BYTES = 64 << 10
"""A larger body is read in a thread: one of 8 MiB takes a tenth of a second."""
Headers: TypeAlias = "list[tuple[str, str]]"


@dataclass(slots=True)
class Request:
    """One request, whose body was read to its end. Handlers do not change it.

    Attributes:
        method: In capitals.
        path: Decoded, below the prefix under which the application is mounted.
        raw_path: The path as it was sent, still encoded; a signature covers it.
        query: The part after `?`, still encoded; empty without one.
        headers: Name, in lower case -> value; of a name that was sent twice, joined by a comma.
        body: The body.
        client: The peer's address; behind trusted proxies the nearest one that is not trusted.
        scheme: `http` or `https`.
        host: The `Host` header, with the port: what urls in answers begin with.
        id: The request's id, for the log and the answer. The server adds it to the answer.
        is_admin: True if it may call the admin part of the HTTP API: it came by the port for that.
        action: The name of its call, for metrics; empty until it is known. The API that answers
            sets it.
        user: The user whom a trusted proxy names; empty without one.
    """

    method: str
    path: str
    raw_path: str
    query: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    client: str
    scheme: str
    host: str
    id: str
    is_admin: bool = True
    action: str = ""
    user: str = ""


@dataclass(slots=True)
class Response:
    """An answer.

    Attributes:
        status: The HTTP status.
        body: Bytes, or parts that are sent as they come.
        headers: Its headers, without the length.
        on_unsent: Called if the client was gone before the answer; it releases the messages that
            were claimed for the client.
    """

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    headers: Headers = field(default_factory=list)
    on_unsent: Callable[[], Awaitable[object]] | None = None


class TooMany(Exception):
    """A limit of the server or of a key was reached: the client is to ask again later."""
