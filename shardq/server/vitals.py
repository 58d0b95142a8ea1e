"""The vital signs of a server: does its event loop turn, and does its store answer?"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from shardq.health.vitals import TURN_US, Readiness, Sign

if TYPE_CHECKING:
    from shardq.connection import Connection
    from shardq.server.supervise import Server

_ANSWER_S = 1.0


class Serving:
    """The vital signs of a server in this process. Any thread but that of its loop may ask.

    Args:
        db: The store.
        server: The server.
    """

    def __init__(self, db: Connection, server: Server) -> None:
        self._clock = db._home.clock
        self._server = server
        self._readiness = Readiness(db)
        self._lock = threading.Lock()
        self._turned = threading.Event()
        self._turned.set()
        self._asked_us = 0

    def live(self) -> Sign:
        """The sign of life: well if the event loop turns, or was asked to less than 10 s ago."""
        loop = self._server.loop
        if loop is None or loop.is_closed():
            return Sign()
        with self._lock:
            if self._turned.is_set():
                self._turned, self._asked_us = threading.Event(), self._clock.boot_us()
                loop.call_soon_threadsafe(self._turned.set)
            turned = self._turned
        if turned.wait(_ANSWER_S) or self._clock.boot_us() - self._asked_us < TURN_US:
            return Sign()
        return Sign(is_well=False, text="the event loop does not turn")

    def ready(self) -> Sign:
        """The sign of readiness: well if the store answers, and the server is not about to end."""
        return Sign(is_well=False, text="leaving") if self.is_leaving() else self._readiness.sign()

    def is_leaving(self) -> bool:
        """True if the server is about to end."""
        return self._server.should_exit
