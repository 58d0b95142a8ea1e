"""Threads that wait for rows, of one queue or of several.

```
 ready, ready, .. ──► one lock; queues take turns, each gives its first due row
                        └─ one thread waits until the very next due (leader and followers)
```

Source: leader and followers as in Doug Lea's `java.util.concurrent.DelayQueue`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from shardq import locks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.clock import Clock
    from shardq.engine.handing.delivery import Delivery

_WAIT_MAX_S = 1.0


class Waited(Protocol):
    """The rows of one queue, as waiting threads see them; the caller holds the waiters' lock.

    Attributes:
        is_stopped: True once no more rows are handed out.
        on_wait: Called when a thread begins to wait, because nothing is due.
    """

    is_stopped: bool
    on_wait: Callable[[], None]

    def pop(self) -> Delivery | None:
        """Take the first row that is due; None if no row is, or once stopped."""

    def seconds_to_next(self) -> float:
        """Seconds until a row comes due; infinite without rows."""


class Waiters:
    """Threads that wait for rows of one queue or several. From any thread.

    Attributes:
        lock: Guards the rows of the queues.
        changed: Notified when a thread must look again.
        leader: The thread that waits until the next due; None if a thread must look again.
        is_threaded: True if threads wait here; False if the thread that steps an engine takes its
            rows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lock = locks.new()
        self.changed = locks.condition(self.lock)
        self.leader: int | None = None
        self.is_threaded = False
        self._since_us: dict[int, int] = {}
        self._turn = 0

    def since(self) -> list[int]:
        """When each waiting thread began to wait, time since boot in microseconds."""
        with self.lock:
            return list(self._since_us.values())

    def wait(self, readies: Sequence[Waited]) -> tuple[int, Delivery] | None:
        """Wait for the first row that is due, and take it; queues take turns.

        Args:
            readies: The rows of the queues, all with these waiters.

        Returns:
            The place of the row's queue in `readies`, and the row; None once all queues are
            stopped.
        """
        me = threading.get_ident()
        is_waiting = False
        with self.lock:
            self.is_threaded = True
            while True:
                for n in range(len(readies)):
                    place = (self._turn + n) % len(readies)
                    one = readies[place].pop()
                    if one is None:
                        continue
                    self._turn = place + 1
                    if is_waiting:
                        del self._since_us[me]
                    if self.leader == me or self.leader is None:
                        self.leader = None
                        self.changed.notify()
                    return place, one
                if all(ready.is_stopped for ready in readies):
                    break
                if not is_waiting:
                    is_waiting = True
                    self._since_us[me] = self._clock.boot_us()
                    for ready in readies:
                        ready.on_wait()
                if self.leader is None:
                    self.leader = me
                if self.leader == me:
                    seconds = min(ready.seconds_to_next() for ready in readies)
                    self._clock.wait(self.changed, min(seconds, _WAIT_MAX_S))
                    if self.leader == me:
                        self.leader = None
                else:
                    self._clock.wait(self.changed, _WAIT_MAX_S)
            self._since_us.pop(me, None)
        return None
