"""A worker process's line to its supervisor: a socket that it inherits.

```
 process ──► supervisor    ready · overrun · failed · died · done · alive · answer
 process ◄── supervisor    a byte, a question: does it live? its counts? .. · the line's end: the
                           supervisor has died
```

The supervisor gives orders by signals, as anyone would to a process without a supervisor.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from shardq import locks
from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "SHARDQ_SUPERVISOR"
"""The variable with the socket's descriptor; removed from the environment once it is read."""
SOCKETS_VARIABLE = "SHARDQ_SOCKETS"
"""The variable with the descriptors of the sockets that a process inherits, separated by commas."""

READY = "ready"
OVERRUN = "overrun"
FAILED = "failed"
DIED = "died"
DONE = "done"
ALIVE = "alive"
ANSWER = "answer"

ASK = b"?"
COUNTS, STORE, LIVE, READY_NOW = b"c", b"s", b"l", b"r"
"""Questions to a process: its counts, the store's contents, is it live, is it ready."""
MARGIN_S = 5.0
"""How much longer than its deadline a process may take to end before it is killed."""


class ProcessLine:
    """The process's end of the line. Any thread may use it.

    Args:
        descriptor: The descriptor of the socket.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        # A program that a job starts must not inherit the socket, because it would keep the line
        # open.
        self._socket.set_inheritable(False)
        self._lock = locks.new()
        self._is_lost = False
        self._stop: Callable[[], object] | None = None
        self._deadline_s = 0.0
        self._makers: dict[bytes, Callable[[], object]] = {}
        threading.Thread(target=self._listen, name="shardq-supervisor", daemon=True).start()

    @classmethod
    def inherited(cls) -> ProcessLine | None:
        """The line of this process; None if it has no supervisor, or the line is taken."""
        text = os.environ.pop(VARIABLE, None)
        return None if text is None else cls(int(text))

    def ready(self) -> None:
        """Report that the app is imported and jobs are about to be taken."""
        self._say(READY)

    def overrun(self, text: str) -> None:
        """Report that this process has to be replaced: a function does not return.

        Args:
            text: The function, and for how long it has run.
        """
        self._say(OVERRUN, text)

    def failed(self, code: int, text: str) -> None:
        """Report why this process ends by itself: before it was ready, or at work.

        Args:
            code: Its exit code.
            text: The sentence that it would print if it were alone.
        """
        self._say(FAILED, code, text)

    def died(self) -> None:
        """Report that a job has died here."""
        self._say(DIED)

    def done(self) -> None:
        """Report that nothing is left to do, so that this process is not replaced."""
        self._say(DONE)

    def answer_by(self, question: bytes, make: Callable[[], object]) -> None:
        """Answer a question of the supervisor from now on.

        Args:
            question: The question, one byte.
            make: Makes the answer, which is sent as JSON; called in a thread of its own.
        """
        self._makers[question] = make

    def answer(self, question: bytes) -> None:
        """Answer a question now, asked or not, if this process has an answer."""
        make = self._makers.get(question)
        if make is not None:
            self._say(ANSWER, question.decode(), make())

    def on_lost(self, stop: Callable[[], object], deadline_s: float) -> None:
        """Let this process end once its supervisor has died: nobody else would end it.

        Args:
            stop: Begins a graceful end; called in a thread of the line, or in this thread if the
                supervisor has died already.
            deadline_s: How long the graceful end may take. 5 s later the process exits, whatever it
                does.
        """
        with self._lock:
            self._stop, self._deadline_s = stop, deadline_s
            if not self._is_lost:
                return
        stop()

    def _say(self, *words: object) -> None:
        # Ignore errors: the supervisor may have died.
        with self._lock, suppress(OSError):
            self._socket.sendall(json.dumps(words).encode() + b"\n")

    def _listen(self) -> None:
        with suppress(OSError):
            while asked := self._socket.recv(64):
                self._say(ALIVE)
                for question in {asked[at : at + 1] for at in range(len(asked))} - {ASK}:
                    # Answer in a thread, because the store may be slow and other questions wait.
                    threading.Thread(
                        target=self.answer, args=(question,), name="shardq-answer", daemon=True
                    ).start()
        with self._lock:
            self._is_lost = True
            stop = self._stop
        if stop is not None:
            stop()
        SystemClock().sleep(self._deadline_s + MARGIN_S)
        os._exit(1)
