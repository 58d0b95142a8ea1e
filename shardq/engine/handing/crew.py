"""Handler threads, of one queue's consumer or shared by those of several queues.

```
 so many threads ──► wait for a row of any of the queues (`waiters.py`) ──► deliver it, as that
                     queue's consumer does
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
    """The part of a crew that is for one consumer.

    Attributes:
        ready: Its rows.
        deliver: Delivers one of them.
        on_fault: Called with what a thread ended by that no handler has raised.
    """

    ready: Ready
    deliver: Callable[[Delivery], object]
    on_fault: Callable[[BaseException], object]


class Crew:
    """Handler threads, and what steps the engines of the consumers that share them.

    Args:
        threads: How many.
        name: What their names begin with.
        stepper: Steps the engines of several consumers; None: the one consumer has a thread.
        waiters: Of the one consumer's queue; None makes those of several.

    Attributes:
        waiters: For the rows of each of them.
        stepper: Likewise.
        threads: The handlers' threads.
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
        """Deliver for one more consumer; before it is started."""
        self._works.append(work)

    def start(self) -> None:
        """Start the threads that have not been started. Idempotent.

        Raises:
            RuntimeError: If no more can be.
        """
        for thread in self.threads:
            if thread.ident is None:
                thread.start()

    def _begin(self) -> None:
        # Also in a forked child, which has none of its parent's threads: its consumers begin anew.
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
            # No handler's. Another thread in its place could not know what it has left half done;
            # whoever reads the lanes anew does.
            for work in works:
                work.on_fault(error)
            raise

    def _deliver(self, works: Sequence[Work]) -> None:
        readies = [work.ready for work in works]
        wait = self.waiters.wait
        since_yield = 0
        while (found := wait(readies, _never)) is not None:
            place, one = found
            works[place].deliver(one)
            since_yield += 1
            if since_yield == _YIELD_EVERY:
                # Handlers that never wait would keep the interpreter from those who read and
                # settle for 5 ms at a time (sys.getswitchinterval), and so starve themselves.
                since_yield = 0
                self._clock.sleep(0)


def _never() -> bool:
    return False
