"""A request as handlers get it, and the answer that they return. No I/O, and no framework."""

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
        raw_path: As it was sent, still encoded: what a signature covers.
        query: The part after `?`, still encoded; empty without one.
        headers: Name, in lower case -> value; of a name that was sent twice, joined by a comma.
        body: The body.
        client: The peer's address; that of the first proxy which is not trusted.
        scheme: `http` or `https`.
        host: The `Host` header, with the port: what urls in answers begin with.
        id: The request's id, for the log and the answer. The server adds it to the answer.
        is_admin: True if it may be of the admin part of the HTTP API: it came by the port for that.
        action: The name of what it asks for, for metrics; empty until that is known. The side that
            answers sets it.
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
        on_unsent: Called if the client was gone before the answer: releases what was claimed for
            it.
    """

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    headers: Headers = field(default_factory=list)
    on_unsent: Callable[[], Awaitable[object]] | None = None


class TooMany(Exception):
    """A limit of the server or of a key was reached: the client is to ask again later."""
