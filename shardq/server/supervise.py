"""A server that runs in this process: uvicorn with our bounds, and an end that answers open polls.

```
 SIGTERM ──► leaving: polls are answered with nothing, streams end ──► uvicorn waits for answers
             new connections go to others that listen on the port      then closes all ──► ended
```
"""

from __future__ import annotations

import asyncio
import gc
import resource
import select
import signal
import ssl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from shardq.child import handled
from shardq.clock import pause
from shardq.errors import MissingExtra, UsageError

try:
    import uvicorn
except ImportError as error:
    raise MissingExtra(
        "the server needs uvicorn; install it: pip install 'shardq[server]'."
    ) from error

from shardq.server import wire

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from shardq.server.app import Application

CONNECTIONS_MAX = 10_000
DEADLINE_S = 10
"""How long an end waits for answers that are under way."""
_GARBAGE = 20_000, 20, 50
"""Thresholds of the garbage collector: new objects, then collections of each generation."""
_FILES_MAX = CONNECTIONS_MAX + 1_000
_ACCEPTED_MAX = 2_000
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """Serves an application until a signal, or `stop`.

    Args:
        application: The application.
        certificate: A file in PEM; None: no TLS.
        key: The certificate's key, a file in PEM.
        on_listening: Called once requests are answered.

    Raises:
        UsageError: If the certificate cannot be used.
    """

    def __init__(
        self,
        application: Application,
        *,
        certificate: str | None = None,
        key: str | None = None,
        on_listening: Callable[[], object],
    ) -> None:
        check_certificate(certificate, key)
        super().__init__(
            uvicorn.Config(
                application,
                interface="asgi3",
                http=wire.protocol(),
                loop=_loop_name(),
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=wire.KEPT_ALIVE_S,
                timeout_graceful_shutdown=DEADLINE_S,
            )
        )
        self._application = application
        self._on_listening = on_listening
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        # Imported objects stay: repeated scans of them would hold requests up.
        gc.collect()
        gc.freeze()
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: first answer the requests that wait."""
        self._application.site.leave()
        await _accept_all(sockets or ())
        await super().shutdown(sockets)

    def stop(self) -> None:
        """Begin the end. Any thread may call it, again too."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._leave)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop, once it runs."""
        return self._loop

    def _leave(self) -> None:
        self._application.site.leave()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """Begin the end; a second signal waits for no answers."""
        if self.should_exit:
            self.force_exit = True
        self.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals meanwhile. Unlike uvicorn's, it does not raise them again afterwards."""
        with handled(dict.fromkeys(_SIGNALS, self.handle_exit)):
            yield


def run(server: Server, sockets: Sequence[socket.socket]) -> None:
    """Serve until a signal. The main thread calls it."""
    allow_files()
    # A collection of garbage visits all live objects, such as those of thousands of polls. So it is
    # rare, and skips the objects that existed at the start.
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    server.run(list(sockets))


def check_certificate(certificate: str | None, key: str | None) -> None:
    """Check that a certificate and its key can be used.

    Raises:
        UsageError: If not.
    """
    if (certificate is None) != (key is None):
        raise UsageError("--certificate and --key go together: give both, or none.")
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise UsageError(
            f"--certificate {certificate} and --key {key} cannot be used: "
            f"{error.reason or 'not PEM'}."
        ) from error
    except OSError as error:
        raise UsageError(
            f"--certificate {certificate} and --key {key} cannot be read: {error.strerror}."
        ) from error


def allow_files() -> int:
    """Let this process open as many files as it may have connections; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else min(_FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


async def _accept_all(sockets: Sequence[socket.socket]) -> None:
    """Let the loop accept all waiting connections, which closing the sockets would reset."""
    waiting = select.poll()
    for one in sockets:
        waiting.register(one, select.POLLIN)
    for _ in range(_ACCEPTED_MAX):
        if not waiting.poll(0):
            return
        # A turn of the loop, in which it accepts one connection or more.
        await pause(0)


def _loop_name() -> Any:
    """The event loop: uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return "asyncio"
    del uvloop
    return "uvloop"
