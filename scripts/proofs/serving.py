"""Servers of a proof: processes of `shardq serve` that share a store, each with its own port."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardq.child import ChildProcess, end
from shardq.clock import SystemClock
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from pathlib import Path

_START_S, _STOP_S = 60.0, 60.0
_clock = SystemClock(0)


def free_port() -> int:
    """A port of this machine that is free."""
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@dataclass(slots=True)
class Server:
    """A server, which may be started again. A context manager that ends it.

    Args:
        store: The store's url.
        port: Its port.
        log: The file for its messages.
        options: More options of `shardq serve`.
    """

    store: str
    port: int
    log: Path
    options: tuple[str, ...] = ()
    process: ChildProcess | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """The server's url."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; it may not answer yet."""
        with self.log.open("ab") as log:
            self.process = ChildProcess(
                [sys.executable, "-m", "shardq", "serve", "--port", str(self.port), *self.options],
                env=os.environ | {"SHARDQ_STORE": self.store},
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Wait until it takes connections.

        Raises:
            ShardqError: If it does not.
        """
        deadline_us = _clock.boot_us() + round(_START_S * 1e6)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError as error:
                if self.pid is None or _clock.boot_us() > deadline_us:
                    raise ShardqError(f"a server did not start; see {self.log}.") from error
                _clock.sleep(0.1)
            else:
                return

    @property
    def pid(self) -> int | None:
        """Its process; None if there is none."""
        return None if self.process is None or self.process.has_ended() else self.process.pid

    def kill(self) -> None:
        """Kill the server, as `kill -9` does."""
        if self.process is not None:
            end([self.process], _STOP_S, _clock, hard=True)

    def end(self) -> int:
        """Let it end; returns its exit code.

        Raises:
            ShardqError: If it does not end within a minute.
        """
        if self.process is None:
            return 0
        if end([self.process], _STOP_S, _clock):
            raise ShardqError(f"a server did not end within {_STOP_S:.0f} s.")
        return self.process.code or 0
