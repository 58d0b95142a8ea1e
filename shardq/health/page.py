"""The small web page of a process: its metrics, and whether it is live and ready."""

from __future__ import annotations

import errno
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import UsageError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardq.health.vitals import Sign, Vitals

PORT_MAX = 65_535
LOOPBACK = "127.0.0.1"
_POLL_S = 0.2
"""How often the page's thread checks whether the page was closed, seconds."""
_SLOW_S = 10
"""A client that sends nothing for this long is disconnected."""


class HealthResponse(NamedTuple):
    """An answer of the page.

    Attributes:
        status: The HTTP status.
        kind: The content type.
        body: The body.
    """

    status: int
    kind: str
    body: bytes


class HealthPage:
    """A web page of a few paths; answers GET and HEAD in threads of its own, until it is closed.

    Args:
        place: The address or name, and the port; 0: any free port.
        option: The option that names the place, for an error.

    Attributes:
        routes: Path -> a function that makes the answer; any thread calls it.

    Raises:
        UsageError: If the port is taken, or the host has no such address.
    """

    def __init__(self, place: tuple[str, int], option: str) -> None:
        self.routes: dict[str, Callable[[], HealthResponse]] = {}
        routes: Mapping[str, Callable[[], HealthResponse]] = self.routes

        class Handler(_HealthHandler):
            made = routes

        self._server = _bound(place, option, Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="shardq-page", daemon=True
        )

    @property
    def url(self) -> str:
        """The page's url: `http://127.0.0.1:9100`."""
        host, port = self._server.server_address[:2]
        host = str(host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def add_vitals(self, vitals: Vitals) -> None:
        """Answer `/livez` and `/readyz`: 200, or 503 with the fault."""
        self.routes["/livez"] = lambda: _answer_of(vitals.live())
        self.routes["/readyz"] = lambda: _answer_of(vitals.ready())

    def start(self) -> None:
        """Begin to answer, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """End the answers, and free the port. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def place_of(text: str, option: str) -> tuple[str, int]:
    """The place that `PORT` or `HOST:PORT` names; without a host, on loopback.

    Args:
        text: The option's value.
        option: The option, for an error.

    Raises:
        UsageError: If the value names no place.

    >>> place_of("9100", "--metrics"), place_of("[::]:9100", "--metrics")
    (('127.0.0.1', 9100), ('::', 9100))
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not (port.isascii() and port.isdecimal() and int(port) <= PORT_MAX):
        raise UsageError(
            f"{option} {shown(text)} is no port: give PORT or HOST:PORT, PORT from 0 to "
            f"{PORT_MAX:,}."
        )
    return host, int(port)


def _answer_of(sign: Sign) -> HealthResponse:
    return HealthResponse(
        200 if sign.is_well else 503, "text/plain; charset=utf-8", f"{sign.text}\n".encode()
    )


class _HealthHandler(BaseHTTPRequestHandler):
    made: Mapping[str, Callable[[], HealthResponse]]
    timeout = _SLOW_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        make = self.made.get(self.path.partition("?")[0])
        answer = HealthResponse(404, "text/plain; charset=utf-8", b"not found\n")
        if make is not None:
            answer = make()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815 - likewise

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - likewise
        """Log nothing: a probe asks every few seconds."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing if a client has left before its answer."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _bound(place: tuple[str, int], option: str, handler: type[_HealthHandler]) -> _Server:
    host, port = place
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{option}: {shown(host)} is no address of this machine: {error}."
        ) from error
    family, _, _, _, address = found[0]
    try:
        return (_Server6 if family == socket.AF_INET6 else _Server)(
            (str(address[0]), port), handler
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"{option}: port {port} is taken; stop the program that has it, or choose another "
                f"port."
            ) from error
        raise UsageError(
            f"{option}: cannot listen on {host} port {port}: {error.strerror}."
        ) from error
