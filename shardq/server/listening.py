"""The sockets that a server listens on: made here, or inherited.

```
 bind ──► each process of a server has a socket of its own; the kernel spreads connections
 SHARDQ_SOCKETS ──► from the supervisor, which keeps each while its process is replaced
 LISTEN_FDS     ──► from systemd, which keeps it while the server is restarted
```
"""

from __future__ import annotations

import errno
import os
import socket

from shardq.errors import UsageError
from shardq.tasks.line import SOCKETS_VARIABLE

_SYSTEMD_FIRST = 3
_BACKLOG = 2_048
_LOST_MS = 60_000
"""How long a peer may acknowledge nothing before its connection is dropped."""


def url_of(listening: socket.socket, scheme: str) -> str:
    """The url of a socket that listens, `http://127.0.0.1:9324`."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def bound(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Sockets that listen on all addresses of a host.

    Sockets of another process of this user may join each of them; that process then gets a part of
    the connections.

    Args:
        host: An address, or a name.
        port: The port; 0: a free one.
        shared: True to listen also where another server does.

    Raises:
        UsageError: If the host has no address, or the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host!r} is no address of this machine: {error}.") from error
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            place = (address[0], port, *address[2:])
            if port and not shared:
                # A shared port looks free to every process that shares it.
                with socket.socket(family) as probe:
                    _bind(probe, place, reuse=socket.SO_REUSEADDR)
            # Without the protocol, asyncio leaves the delay of small packets (Nagle) on.
            one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(one, place, reuse=socket.SO_REUSEPORT)
            port = port or one.getsockname()[1]
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MS)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            one.listen(_BACKLOG)
    except BaseException:
        for one in made:
            one.close()
        raise
    return made


def _bind(one: socket.socket, place: tuple[object, ...], *, reuse: int) -> None:
    one.setsockopt(socket.SOL_SOCKET, reuse, 1)
    if one.family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        one.bind(place)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {place[1]} is taken: stop the server that has it, choose another by --port, "
                f"or share it until that server has ended by --take-over."
            ) from error
        raise UsageError(
            f"cannot listen on {place[0]} port {place[1]}: {error.strerror}."
        ) from error


def inherited() -> list[socket.socket]:
    """The sockets that a supervisor or systemd has given to this process."""
    text = os.environ.pop(SOCKETS_VARIABLE, "")
    numbers = [int(one) for one in text.split(",") if one]
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        count = int(os.environ.pop("LISTEN_FDS", "0"))
        del os.environ["LISTEN_PID"]
        numbers = numbers or list(range(_SYSTEMD_FIRST, _SYSTEMD_FIRST + count))
    made = [socket.socket(fileno=number) for number in numbers]
    for one in made:
        one.set_inheritable(False)
    return made
