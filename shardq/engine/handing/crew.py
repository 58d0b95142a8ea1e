"""Handler threads: those of one queue's consumer, or shared by the consumers of several queues.

```
 each thread ──► waits for a row of any of the queues (`waiters.py`) ──► delivers it, as the
                 consumer of that queue does
```
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from shardq import locks
from shardq.engine.handing.waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.clock import Clock
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.handing.ready import Ready
    from shardq.engine.stepper import Stepper

_YIELD_EVERY = 32


class Work(NamedTuple):
    """The work of one consumer for its handler threads.

    Attributes:
        ready: The consumer's rows.
        deliver: Delivers one row.
        on_fault: Called with the error that ended a thread and that no handler has raised.
    """

    ready: Ready
    deliver: Callable[[Delivery], object]
    on_fault: Callable[[BaseException], object]


class Crew:
    """Handler threads, and the stepper for the engines of the consumers that share them.

    Args:
        threads: How many threads.
        name: The beginning of the threads' names.
        stepper: Steps the engines of several consumers; None if a single consumer steps its engine
            in a thread of its own.
        waiters: The waiters of a single consumer's queue; None makes new waiters, for several
            queues.

    Attributes:
        waiters: The threads, as they wait for rows of all the queues.
        stepper: The stepper of several consumers; None for a single one.
        threads: The handler threads.
    """

    def __init__(
        self,
        clock: Clock,
        threads: int,
        name: str,
        stepper: Stepper | None = None,
        waiters: Waiters | None = None,
    ) -> None:
        self._clock = clock
        self._name = name
        self._count = threads
        self.stepper = stepper
        self.waiters = waiters or Waiters(clock)
        self._begin()
        locks.in_child(self, Crew._begin)

    def add(self, work: Work) -> None:
        """Deliver the rows of one more consumer. Call it before `start`."""
        self._works.append(work)

    def start(self) -> None:
        """Start the threads that have not been started. Idempotent.

        Raises:
            RuntimeError: If no more threads can be started.
        """
        for thread in self.threads:
            if thread.ident is None:
                thread.start()

    def _begin(self) -> None:
        # A forked child calls this too: it lacks its parent's threads, and its consumers begin
        # anew.
        self._works: list[Work] = []
        self.threads = [
            threading.Thread(target=self._run, name=f"{self._name}-{n}", daemon=True)
            for n in range(self._count)
        ]

    def _run(self) -> None:
        works = self._works
        try:
            self._deliver(works)
        except BaseException as error:
            # The error is not a handler's. A thread that replaced this one could not know what is
            # half done: the next reader of the lanes finds out.
            for work in works:
                work.on_fault(error)
            raise

    def _deliver(self, works: Sequence[Work]) -> None:
        readies = [work.ready for work in works]
        wait = self.waiters.wait
        since_yield = 0
        while (found := wait(readies)) is not None:
            place, one = found
            works[place].deliver(one)
            since_yield += 1
            if since_yield == _YIELD_EVERY:
                # Sleep for an instant. Handlers that never wait would keep the interpreter from the
                # threads that read and settle, for 5 ms at a time (sys.getswitchinterval), and
                # would so run out of rows.
                since_yield = 0
                self._clock.sleep(0)
