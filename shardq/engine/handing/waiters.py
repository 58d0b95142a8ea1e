"""Threads that wait for rows, of one queue or of several.

```
 ready, ready, .. ──► one lock; queues take turns, each gives what is due first
                        └─ one thread waits for the very next due (leader and followers)
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
    """The rows of one queue, as those see them that wait; the lock of the waiters is held.

    Attributes:
        is_stopped: True if nothing more is handed out.
        on_wait: Called when a thread begins to wait, as nothing is due.
    """

    is_stopped: bool
    on_wait: Callable[[], None]

    def pop(self) -> Delivery | None:
        """The first row that is due, unless it is stopped."""

    def seconds_to_next(self) -> float:
        """Seconds until a row comes due, or for ever."""


class Waiters:
    """Threads that wait for rows of one queue or several. From any thread.

    Attributes:
        lock: Guards their queues' rows.
        changed: Notified when a thread is to look again.
        leader: The thread that waits for the next due; None where it is to look again.
        is_threaded: True if threads wait here; else whoever steps an engine takes rows itself.
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
        """When each thread that waits began to, time since boot in microseconds."""
        with self.lock:
            return list(self._since_us.values())

    def wait(
        self, readies: Sequence[Waited], stopping: Callable[[], bool]
    ) -> tuple[int, Delivery] | None:
        """The first row that is due, as soon as there is one; queues take turns.

        Args:
            readies: The rows of the queues, all with these waiters.
            stopping: Asked before each wait.

        Returns:
            The place of its queue among them, and the row; None when stopped, or all of them are.
        """
        me = threading.get_ident()
        is_waiting = False
        with self.lock:
            self.is_threaded = True
            while not stopping():
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
