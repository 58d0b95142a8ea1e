"""A server in a process of its own, and clients that speak to it as badly as they like."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forked import Process
    from shell import Shell

TIMEOUT_S = 60
_AT = re.compile(r"serves \S+ at (\w+)://([\d.]+|\[.*?\]):(\d+)(?: and \w+://[^ ]+:(\d+))?\.")


class Got(NamedTuple):
    """An answer.

    Attributes:
        status: The HTTP status; 0 where the connection was closed without one.
        headers: By names in lower case.
        body: The body.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.body)
        return found


class Server:
    """A server that runs: `shardq serve` in a process."""

    def __init__(self, process: Process | subprocess.Popen[bytes], *, count: int = 1) -> None:
        self.process = process
        self.lines: list[str] = []
        self._told: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.pids: list[int] = []
        for _ in range(count):
            found = self.expect(_AT.pattern)
            self.port = int(found[3])
            self.admin_port = int(found[4] or 0)
            number = re.search(r"process (\d+) serves", found.string)
            self.pids.append(int(number[1]) if number else process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    def expect(self, pattern: str) -> re.Match[str]:
        """The next line of stderr that has a pattern."""
        while (line := self._told.get(timeout=TIMEOUT_S)) is not None:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it ended without {pattern!r}: {self.lines}")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop(self) -> int:
        """End it gracefully; returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        self._reader.join()
        with self.process:
            return code

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Got:
        """One request by a connection of its own."""
        with self.connected() as client:
            return client.ask(method, path, body, **headers)

    @contextmanager
    def connected(self, port: int | None = None) -> Iterator[Client]:
        with socket.create_connection(("127.0.0.1", port or self.port), TIMEOUT_S) as one:
            yield Client(one)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode().rstrip())
            self._told.put(self.lines[-1])
        self._told.put(None)


class Client:
    """A connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._left = b""

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Got:
        self.send(head(method, path, {"content-length": str(len(body)), **headers}) + body)
        return self.answer()

    def answer(self) -> Got:
        """Read an answer that tells its length, or the end of the connection."""
        try:
            while b"\r\n\r\n" not in self._left:
                self._more()
            first, _, self._left = self._left.partition(b"\r\n\r\n")
            status, *lines = first.decode().split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines)
            length = int(fields.get("content-length", "0"))
            while len(self._left) < length:
                self._more()
        except ConnectionError:
            return Got(0, {}, self._left)
        body, self._left = self._left[:length], self._left[length:]
        return Got(int(status.split()[1]), fields, body)

    def is_closed(self) -> bool:
        """Wait until the other side closes the connection; False if it sends anything."""
        with suppress(ConnectionError):
            self._more()
            return False
        return True

    def _more(self) -> None:
        data = self.connection.recv(65_536)
        if not data:
            raise ConnectionResetError
        self._left += data


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def serving(shell: Shell, *words: str, before: str = "", count: int = 1, port: int = 0) -> Server:
    """A server of the shell's store that answers requests.

    Args:
        words: Options.
        before: Code that is run first.
        count: How many processes tell that they serve.
        port: Where; 0: at a free port.
    """
    process = shell.fork("serve", "--port", str(port), *words, before=before)
    return Server(process, count=count)
