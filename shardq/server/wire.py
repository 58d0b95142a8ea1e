"""The bounds of a connection: uvicorn's protocols have none for the head of a request.

```
 connected ──► head ──────────► body ──► answer ──► head of the next ──► ..
               10 s, 64 KiB     app's bounds        75 s to its first byte
```
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from shardq.server.app import Application

    _Protocol = H11Protocol
else:
    _Protocol = object

HEAD_S_MAX = 10.0
HEAD_BYTES_MAX = 64 << 10
KEPT_ALIVE_S = 75
"""How long a connection stays open until its client's next request."""
_LAST_S = 1.0
"""How long a connection that is new when the server leaves may take for its request."""
_FLUSHED_S = 30.0
"""How long a client may read nothing of its answer before its connection is aborted."""
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class _Bounded(_Protocol):
    """The bounds that are added to each of uvicorn's protocols."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _is_last = False
    """True if the server leaves, so that the next request is the last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection, whose first head must arrive in time."""
        super().connection_made(transport)
        # uvicorn does not tell a connection that is accepted while the server ends.
        self._is_last = cast("Application", self.config.app).site.leaving.is_set()
        self._give_up_in(HEAD_S_MAX)

    def data_received(self, data: bytes) -> None:
        """Take data that has arrived; close the connection if it is too much for a head."""
        before = self.cycle
        is_body = before is not None and before.more_body
        super().data_received(data)
        cycle = self.cycle
        if cycle is not before:
            self._head_bytes = 0
            self._clear()
            if self._is_last:
                cycle.keep_alive = False
        elif not is_body:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()
            elif self._timer is None and (cycle is None or cycle.response_complete):
                # No timer while an answer is under way, as of a long poll: some clients send a line
                # end after a body.
                self._give_up_in(HEAD_S_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._clear()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without requests, also one whose client does not read."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(_FLUSHED_S, self.transport.abort)

    def shutdown(self) -> None:
        """End the connection after the answer under way; without one, after one more request."""
        if self.cycle is None:
            self._is_last = True
            self._give_up_in(_LAST_S)
            return
        super().shutdown()

    def _give_up_in(self, seconds: float) -> None:
        self._clear()
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        self.transport.close()

    def _clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _H11(_Bounded, H11Protocol):
    """The protocol where httptools has no wheel; h11 bounds the bytes of a head itself."""


def protocol() -> type[asyncio.Protocol]:
    """The protocol of connections: by httptools where it is installed, else by h11."""
    try:
        from shardq.server.offers import Plain
    except ImportError:
        return _H11

    class _HttpTools(_Bounded, Plain):  # type: ignore[misc] # the two differ in what is private
        pass

    return _HttpTools
