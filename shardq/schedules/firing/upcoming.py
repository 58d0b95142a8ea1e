"""The times at which a member has to look at the schedules of a queue.

```
 announced? ─► the bucket's nexts are reread ─► heap of (when, name) ─► due names ─► fresh reads
```

The heaps only hold when to look: a firing begins with a fresh read of the record. The member that
ranks first for a bucket looks in time. The members after it look later, one after the other, and
find that it has fired, or fire in its place.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from shardq.model.key import BUCKETS, bucket_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.clock import Clock
    from shardq.schedules.table import ScheduleTable

NEVER_MS = 1 << 62
_RANKS = 10
_REREADS_US = (0, 1_000_000, 4_000_000, 10_000_000)
"""How long after an announcement a bucket is reread: meanwhile the command writes the record, or
announces it again."""
_WHOLE_US = 300_000_000
"""How often each bucket is reread in any case: a process may die between a slow write and its
second announcement."""


class Upcoming:
    """The schedules of one queue by the time at which this member looks at them.

    Args:
        lead_ms: The longest time before its fire time at which a schedule is fired.
        every_us: How often announcements are read.
        rank_ms: The member that ranks next fires schedules that are this late.
    """

    def __init__(
        self, stored: ScheduleTable, clock: Clock, *, lead_ms: int, every_us: int, rank_ms: int
    ) -> None:
        self._stored = stored
        self._clock = clock
        self._lead_ms = lead_ms
        self._every_us = every_us
        self._rank_ms = rank_ms
        self._look_us = 0
        self._announced: Mapping[str, int | None] = {}
        self._rereads_us: dict[int, list[int]] = {bucket: [0] for bucket in range(BUCKETS)}
        """Bucket -> when to reread it, time since boot."""
        self._heaps: list[list[tuple[int, str]]] = [[] for _ in range(BUCKETS)]
        self._when: dict[str, int] = {}
        """Name -> when to look at it; entries of the heaps with other times are outdated."""

    def hurry(self) -> None:
        """Let the next look read the announcements."""
        self._look_us = 0

    def look(self) -> None:
        """Read the announcements, if it is time, and reread the buckets that may have changed."""
        now_us = self._clock.boot_us()
        if now_us < self._look_us:
            return
        announced = self._stored.announced()
        for bucket, rereads_us in self._rereads_us.items():
            if announced.get(str(bucket)) != self._announced.get(str(bucket)):
                rereads_us[:] = [now_us + after_us for after_us in _REREADS_US]
            if rereads_us[0] <= now_us:
                self._reread(bucket)
                # A bucket that was announced during these reads is reread by the next look.
                left_us = [at_us for at_us in rereads_us if at_us > now_us]
                rereads_us[:] = left_us or [now_us + _WHOLE_US]
        self._announced = announced
        self._look_us = now_us + self._every_us

    def _reread(self, bucket: int) -> None:
        nexts = self._stored.nexts(bucket)
        gone = {name for _, name in self._heaps[bucket]} - nexts.keys()
        for name in gone:
            self._when.pop(name, None)
        self._heaps[bucket] = []
        for name, next_ms in nexts.items():
            self.put(name, None if next_ms is None else next_ms - self._lead_ms)

    def put(self, name: str, when_ms: int | None) -> None:
        """Look at a schedule at a time, epoch milliseconds, and not before; None: never."""
        if when_ms is None:
            self._when.pop(name, None)
        else:
            self._when[name] = when_ms
            heapq.heappush(self._heaps[bucket_of(name)], (when_ms, name))

    def due(self, ranks: Mapping[int, int], now_ms: int, count: int) -> list[str]:
        """Take out due names, the first ones of each bucket first.

        Args:
            ranks: Bucket -> this member's place in line.
            now_ms: Now, epoch milliseconds.
            count: The most names to return.
        """
        due: list[str] = []
        for bucket, heap in enumerate(self._heaps):
            late_ms = self._late_ms(ranks, bucket)
            while len(due) < count and (first := self._first(heap)) is not None:
                if first[0] + late_ms > now_ms:
                    break
                heapq.heappop(heap)
                del self._when[first[1]]
                due.append(first[1])
        return due

    def next_ms(self, ranks: Mapping[int, int]) -> int:
        """When the next name is due, epoch milliseconds; `NEVER_MS`: none is."""
        firsts = (
            first[0] + self._late_ms(ranks, bucket)
            for bucket, heap in enumerate(self._heaps)
            if (first := self._first(heap)) is not None
        )
        return min(firsts, default=NEVER_MS)

    def _first(self, heap: list[tuple[int, str]]) -> tuple[int, str] | None:
        while heap and self._when.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _late_ms(self, ranks: Mapping[int, int], bucket: int) -> int:
        return min(ranks.get(bucket, 0), _RANKS) * self._rank_ms
