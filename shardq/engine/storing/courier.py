"""The thread that stores acks while its engine reads on.

```
 outbox ── send(work) ──► errand, errand, .. ──► courier ── work() ──► store
    ▲ checks which errands have ended               │
    └────────────── on_return ◄─────────────────────┘
```

The thread starts with the first errand. An engine that is stepped by hand has no thread: an errand
runs where it is sent.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from shardq import locks
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from collections.abc import Callable


class Errand:
    """One piece of work for the store.

    Attributes:
        over: Set once the work has ended.
        failure: The error with which the work ended; None after success. Before the end, the error
            that a fault of the thread would leave.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.over = threading.Event()
        self.failure: ShardqError | None = ShardqError(
            "what was done could not be stored, by a fault; see the log."
        )

    def run(self) -> None:
        """Do the work, in the calling thread."""
        try:
            self._work()
        except ShardqError as error:
            self.failure = error
        else:
            self.failure = None
        finally:
            self.over.set()


class Courier:
    """Runs errands one after another: in a thread once `start` was called, else in the caller's.

    Args:
        name: The name of the thread.
        on_return: Called in the thread after each errand.
    """

    def __init__(self, name: str, on_return: Callable[[], None]) -> None:
        self._name = name
        self._on_return = on_return
        self._lock = locks.new()
        self._errands: SimpleQueue[Errand | None] = SimpleQueue()
        self._serves = self._is_begun = False

    def start(self) -> None:
        """Let a thread run the errands that are sent from now on."""
        self._serves = True

    def stop(self) -> None:
        """End the thread after its errands; later errands run in the caller's thread."""
        with self._lock:
            self._serves = False
            if self._is_begun:
                self._errands.put(None)

    def send(self, work: Callable[[], None]) -> Errand:
        """Send work to the thread; without a thread, do the work before returning."""
        errand = Errand(work)
        with self._lock:
            serves = self._serves and self._begin()
            if serves:
                self._errands.put(errand)
        if not serves:
            errand.run()
        return errand

    def _begin(self) -> bool:
        """Start the thread unless it runs; False if no more threads can be started."""
        if not self._is_begun:
            try:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            except RuntimeError:
                return False
            self._is_begun = True
        return True

    def _serve(self) -> None:
        try:
            while (errand := self._errands.get()) is not None:
                errand.run()
                self._on_return()
        finally:
            # After a fault, which Python's threading prints, nobody must wait for the errands that
            # are left.
            with self._lock:
                self._serves = False
                while not self._errands.empty():
                    left = self._errands.get()
                    if left is not None:
                        left.over.set()
            self._on_return()
