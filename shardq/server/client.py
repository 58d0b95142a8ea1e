"""The client of one request: its body, whether it is still there, and the answer on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from shardq.server.web import QUICK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.server.web import Response

T = TypeVar("T")

Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Coroutine[Any, Any, Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]

BODY_BYTES_MAX = 8 << 20
BODY_S_MAX = 20.0
BODIES_BYTES_MAX = 256 << 20
"""The large bodies of all requests under way: they are held before their senders are known."""
_SPILL_BYTES_MAX = 16 << 20
"""How much of a body that is too large is read: some clients send all before they read."""
_WATCH_AFTER_S = 0.05
"""A request that is answered sooner, as most are, needs no watch for its client's leaving."""


class Gone(Exception):
    """The client left before its answer."""


class Untaken(Exception):
    """The head or the body of a request is not taken.

    Attributes:
        status: The HTTP status.
        code: The name of the error.
        text: A sentence for people.
    """

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text


class Bodies:
    """A count of the bytes of large bodies that a server holds. One event loop uses it."""

    def __init__(self) -> None:
        self._held = 0

    def take(self, size: int) -> bool:
        """Count bytes that are to be held; False if there is no room for them."""
        if self._held + size > BODIES_BYTES_MAX:
            return False
        self._held += size
        return True

    def release(self, size: int) -> None:
        """Subtract bytes that are held no more."""
        self._held -= size


class Client:
    """The client of a request, by the two functions of ASGI.

    Args:
        receive: Returns the next event.
        send: Sends an event.
        bodies: Counts large bodies, until `forget_body`.
    """

    def __init__(self, receive: Receive, send: Send, bodies: Bodies) -> None:
        self._receive = receive
        self._send = send
        self._bodies = bodies
        self._body_bytes = 0
        """How many bytes of the body `bodies` counts."""
        self._is_gone = False
        self._watcher: asyncio.Task[None] | None = None
        self._working: asyncio.Task[Any] | None = None

    async def body(self, declared: str | None) -> bytes:
        """Read the body.

        Args:
            declared: The header `Content-Length`; None without one.

        Raises:
            Gone: If the client leaves before its end.
            Untaken: If it has more than 8 MiB, is large like too many others now, or has not
                arrived in 20 s.
        """
        if declared is not None and _exceeds(declared):
            raise await self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_S_MAX):
                while True:
                    event = await self._receive()
                    if event["type"] == "http.disconnect":
                        raise Gone
                    part = event.get("body", b"")
                    size += len(part)
                    if size > BODY_BYTES_MAX:
                        parts.clear()
                        raise await self._too_large()
                    if size > QUICK_BYTES and not self._counts(size):
                        raise Untaken(
                            503, "ServiceUnavailable", "The server holds too many large bodies now."
                        )
                    parts.append(part)
                    if not event.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError as error:
            text = "The body did not arrive within 20s."
            raise Untaken(408, "RequestTimeout", text) from error

    def _counts(self, size: int) -> bool:
        """Reserve room for a body of so many bytes; False if there is none."""
        is_taken = self._bodies.take(size - self._body_bytes)
        if is_taken:
            self._body_bytes = size
        return is_taken

    def forget_body(self) -> None:
        """Subtract the body: its request is answered."""
        self._bodies.release(self._body_bytes)
        self._body_bytes = 0

    async def _too_large(self) -> Untaken:
        """The error of a body that is too large, after a bounded part of its rest is dropped."""
        size = 0
        try:
            async with asyncio.timeout(BODY_S_MAX):
                while size < _SPILL_BYTES_MAX:
                    event = await self._receive()
                    size += len(event.get("body", b""))
                    if not event.get("more_body", False):
                        break
        except TimeoutError:
            pass
        return Untaken(413, "RequestEntityTooLarge", "The body exceeds 8 MiB.")

    async def await_while_there(self, work: Awaitable[T]) -> T:
        """Await the work of a request; it is cancelled when the client leaves.

        Raises:
            Gone: If the client leaves before its end.
        """
        task = self._working = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._watch)
        try:
            return await work
        except asyncio.CancelledError as error:
            if self._is_gone and not task.uncancel():
                raise Gone from error
            raise
        finally:
            self._working = None
            timer.cancel()
            if self._watcher is not None:
                self._watcher.cancel()
                self._watcher = None

    async def send(self, answer: Response, headers: Sequence[tuple[str, str]]) -> None:
        """Send an answer.

        Args:
            answer: The answer.
            headers: Headers that are added.

        Raises:
            Gone: If the client has left.
        """
        body = answer.body
        sent = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in (*answer.headers, *headers)]
        if isinstance(body, bytes):
            if answer.on_unsent is not None and self._has_left():
                await answer.on_unsent()
                raise Gone
            sent.append((b"content-length", b"%d" % len(body)))
            await self._send(_start(answer.status, sent))
            await self._send({"type": "http.response.body", "body": body})
            return
        await self._send(_start(answer.status, sent))
        try:
            await self.await_while_there(self._send_parts(answer))
        finally:
            close = getattr(body, "aclose", None)
            if close is not None:
                await close()

    async def _send_parts(self, answer: Response) -> None:
        assert not isinstance(answer.body, bytes)  # noqa: S101 - its caller has looked
        async for part in answer.body:
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    def _watch(self) -> None:
        self._watcher = asyncio.create_task(self._wait_until_gone())

    async def _wait_until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        if self._working is not None:
            self._working.cancel()

    def _has_left(self) -> bool:
        """True if the client is known to have left."""
        # One step of the coroutine, without a task: if it would wait, there is no event.
        receiving = self._receive()
        try:
            receiving.send(None)
        except StopIteration as event:
            return bool(event.value["type"] == "http.disconnect")
        receiving.close()
        return False


def _exceeds(declared: str) -> bool:
    """True if a header `Content-Length` exceeds the bound of a body."""
    is_number = declared.isascii() and declared.isdigit()
    return is_number and (len(declared) > 12 or int(declared) > BODY_BYTES_MAX)


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> Event:
    return {"type": "http.response.start", "status": status, "headers": headers}
