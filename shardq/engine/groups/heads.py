"""Heads of groups (first rows) that wait for their time. No I/O; the caller holds the rows' lock.

```
 wait ─► heap ── its time has come ──► due
   └── long ─► a second later: far, kept without its body and without the rows behind it
                └── beyond 5,000 of them: left in the store, only its place is kept
```
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from shardq.stores.store import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.clock import Clock
    from shardq.engine.groups.lane import Group
    from shardq.engine.handing.delivery import Delivery

FAR_MAX = 5_000
"""The most heads in memory that wait long; of further heads only the places are kept."""
_FAR_MS = 2_000
"""A head that waits longer than this is kept without its body, and without the rows behind it."""
_LEFT_AFTER_US = 1_000_000
"""How long the body of a head that waits long, and the rows behind it, stay in memory."""
_DUE_MAX = 500


class WaitingHeads:
    """The heads of one member's groups that wait for their time.

    Attributes:
        far: How many heads in memory wait long.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Group, Delivery]] = []
        """End of a wait, epoch milliseconds; its number; the group; the head."""
        self._long: deque[tuple[int, int, Group, Delivery, bool]] = deque()
        """Begin of a long wait, time since boot; number; group; head; True if it is to be left."""
        self._numbers = count(1)
        self.far = 0

    def wait(self, group: Group, head: Delivery, until_ms: int) -> None:
        """Let a head of a group wait; a former wait of the head ends."""
        number = self.hold(group, head)
        head.wait()
        heapq.heappush(self._heap, (until_ms, number, group, head))
        if until_ms > self._clock.now_ms() + _FAR_MS:
            is_left = group.is_ordered and self.far + len(self._long) >= FAR_MAX
            self._long.append((self._clock.boot_us(), number, group, head, is_left))

    def hold(self, group: Group, head: Delivery) -> int:
        """Let a head wait until its caller decides what is to become of it; returns the number."""
        number = group.heads[head] = next(self._numbers)
        return number

    def next_ms(self) -> int:
        """When the next wait ends, epoch milliseconds; `NEVER` if no head waits."""
        return self._heap[0][0] if self._heap else NEVER

    def due(self, now_ms: int) -> list[tuple[Group, Delivery | None]]:
        """Take out heads whose waits are over, 500 at most; None for one that was left."""
        due: list[tuple[Group, Delivery | None]] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < _DUE_MAX:
            _, number, group, head = heapq.heappop(self._heap)
            if group.heads.get(head) == number:
                due.append((group, head))
            elif group.left == number:
                due.append((group, None))
        return due

    def long(self, *, is_short: bool) -> Iterator[tuple[Group, Delivery, int]]:
        """Take out heads that wait long.

        A head is taken out a second after its wait began. Most claims are acked by then, and
        otherwise the rows behind them would have to be reread.

        Args:
            is_short: True if memory is short: heads are taken out without the second's delay.

        Yields:
            The group, the head, and the number of its wait if it is to be left in the store, or 0.
        """
        until_us = self._clock.boot_us() - _LEFT_AFTER_US
        while self._long and (is_short or self._long[0][0] <= until_us):
            _, number, group, head, is_left = self._long.popleft()
            if group.heads.get(head) == number:
                # For a group of several heads, the wait that ends first is not known here.
                is_left = is_left and len(group.heads) == 1
                self.far += not is_left
                yield group, head, number if is_left else 0

    def tidy(self) -> None:
        """Forget waits that were ended before their time, and count the heads that wait long."""
        self._heap = [
            one for one in self._heap if one[1] in (one[2].heads.get(one[3]), one[2].left)
        ]
        heapq.heapify(self._heap)
        far_ms = self._clock.now_ms() + _FAR_MS
        self.far = sum(
            until_ms > far_ms and head in group.heads for until_ms, _, group, head in self._heap
        )
