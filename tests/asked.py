"""An ASGI application as a server calls it: requests in parts, clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Event = MutableMapping[str, Any]
App = Callable[[Event, Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Any]


class Asked:
    """A request to an application, and what it has answered until now.

    Args:
        app: The application.
        method: In capitals.
        path: The path, with the query.
        parts: The parts of the body that have arrived.
        ends: True if the last of them is the end of the body.
        headers: Headers.
        scope: More of the scope.
    """

    def __init__(
        self,
        app: App,
        method: str,
        path: str,
        *parts: bytes,
        ends: bool = True,
        headers: dict[str, str] | None = None,
        **scope: Any,
    ) -> None:
        path, _, query = path.partition("?")
        self.sent: list[Event] = []
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        whole = parts or (b"",)
        for number, part in enumerate(whole, 1):
            self.give(part, more=number < len(whole) or not ends)
        made: Event = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": ("127.0.0.1", 40_000),
            "server": ("127.0.0.1", 9_324),
            **scope,
        }
        self._task = asyncio.ensure_future(app(made, self._events.get, self._send))

    def give(self, part: bytes, *, more: bool) -> None:
        self._events.put_nowait({"type": "http.request", "body": part, "more_body": more})

    def leave(self) -> None:
        """Let the client go away."""
        # A server says so as often as it is asked.
        for _ in range(10):
            self._events.put_nowait({"type": "http.disconnect"})

    async def end(self) -> None:
        """Wait for the end of the application's work."""
        async with asyncio.timeout(60):
            await self._task

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.sent[1:])

    async def _send(self, event: Event) -> None:
        self.sent.append(event)


async def ask(app: App, method: str, path: str, *parts: bytes, **more: Any) -> Asked:
    """A request and its whole answer."""
    asked = Asked(app, method, path, *parts, **more)
    await asked.end()
    return asked
