"""The range of one read, and its halves for a server that does not read so much at once.

A replica fails a read that passes more deleted rows than `tombstone_failure_threshold`, 100,000 by
default. Rows stay as tombstones for gc_grace after their delivery. A lane that delivers 2,000
messages a second leaves that many in a minute, and a million timers for nine o'clock leave them in
a millisecond. A range is cut by these values, in this order:

```
 minutes ──► lanes ──► dues ──► births of rows due in one millisecond
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq.model import ids
from shardq.stores.cassandra import cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardq.stores.store import Slice

CONDITIONS = {
    (False, False): "AND due > ? AND due <= ?",
    (False, True): "AND (due) > (?) AND (due, id) <= (?, ?)",
    (True, False): "AND (due, id) > (?, ?) AND (due) <= (?)",
    (True, True): "AND (due, id) > (?, ?) AND (due, id) <= (?, ?)",
}
"""(the lower bound names a row, the upper does) -> the condition on due and row id."""
READ_SHARDS = 2_000
"""Partitions of one query; the coordinator holds a command for each."""

_LATE_MS = 1 << 41
"""A time in 2039. An endless range is first cut here, because deleted rows are due earlier."""
_LATEST_US = 600_000_000
"""A row is born before it is due, or at most this much later, as clocks differ."""
_LONG_US = 86_400_000_000
_RECENT = 64
"""A long time is cut before its last 64th: most rows are born shortly before they are due."""
_EVER_US = 1 << 52
_LAST = b"\xff" * 17


class Stretch(NamedTuple):
    """Rows of some shards: after < (due, row id) <= until; without an id, all rows of that due."""

    queue: str
    minutes: Sequence[int]
    lanes: Sequence[int]
    after_ms: int
    after_id: bytes | None
    until_ms: int
    until_id: bytes | None = None

    @classmethod
    def of(cls, wanted: Slice) -> Stretch:
        """The range of a slice."""
        return cls(*wanted[:4], wanted.after_id, wanted.until_ms)

    def bounds(self) -> tuple[str, list[bytes]]:
        """The condition of `CONDITIONS` for this range, and its values."""
        values = [cells.bigint(self.after_ms)]
        if self.after_id is not None:
            values.append(self.after_id)
        values.append(cells.bigint(self.until_ms))
        if self.until_id is not None:
            values.append(self.until_id)
        return CONDITIONS[self.after_id is not None, self.until_id is not None], values

    def places(self) -> Iterator[list[bytes]]:
        """The values of queue, minutes and lanes of each query."""
        step = max(1, READ_SHARDS // max(len(self.lanes), 1))
        lanes = cells.ints(self.lanes)
        for start in range(0, len(self.minutes) if self.lanes else 0, step):
            minutes = cells.bigints(self.minutes[start : start + step])
            yield [self.queue.encode(), minutes, lanes]

    @property
    def is_of_one_shard(self) -> bool:
        """True if the range is of one shard, and so can be cut by dues and births only."""
        return len(self.minutes) == len(self.lanes) == 1

    def covers(self, other: Stretch) -> bool:
        """True if this range contains all of another range, which is of one shard."""
        return (
            other.queue == self.queue
            and other.minutes[0] in self.minutes
            and other.lanes[0] in self.lanes
            and self._after() <= other._after()
            and other._until() <= self._until()
        )

    def _after(self) -> tuple[int, bytes]:
        return self.after_ms, ids.order_key(self.after_id) if self.after_id else _LAST

    def _until(self) -> tuple[int, bytes]:
        return self.until_ms, ids.order_key(self.until_id) if self.until_id else _LAST

    def halves(self) -> tuple[Stretch, ...]:
        """Both halves, in order; none if the range is too small to be cut."""
        for axis in ("minutes", "lanes"):
            places = getattr(self, axis)
            if len(places) > 1:
                middle = len(places) // 2
                first = self._replace(**{axis: places[:middle]})
                return first, self._replace(**{axis: places[middle:]})
        first_ms = self.after_ms + (self.after_id is None)
        if first_ms < self.until_ms:
            middle_ms = (first_ms + self.until_ms) // 2
            return self._cut(min(middle_ms, _LATE_MS) if first_ms < _LATE_MS else middle_ms, None)
        return self._halves_by_birth()

    def _halves_by_birth(self) -> tuple[Stretch, ...]:
        first_us = ids.birth_us(self.after_id) if self.after_id else 0
        latest_us = self.until_ms * 1_000 + _LATEST_US
        if self.until_id is not None:
            last_us = ids.birth_us(self.until_id)
            middle_us = (first_us + last_us) // 2
        elif first_us < latest_us - 1:
            last_us, length_us = latest_us, latest_us - first_us
            middle_us = latest_us - length_us // (_RECENT if length_us > _LONG_US else 2)
        else:
            last_us = first_us + _EVER_US
            middle_us = first_us + _EVER_US // 2
        if not first_us < middle_us < last_us:
            return ()
        return self._cut(self.until_ms, ids.bound(middle_us))

    def _cut(self, due_ms: int, row_id: bytes | None) -> tuple[Stretch, Stretch]:
        return (
            self._replace(until_ms=due_ms, until_id=row_id),
            self._replace(after_ms=due_ms, after_id=row_id),
        )
