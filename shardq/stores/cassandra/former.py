"""The history as schema 2 keeps it, by lane: carried over to the ledger, which is by message.

```
 history ((queue, minute, lane), id) ──── slice after slice of the ring ────► ledger
                                          └─ counted in `schema_version`, so that a migration
                                             that is cut short is resumed where it stopped
```

A mark is written at the time that follows from itself, as its first writer wrote it, and for what
is left of its time to live. So it may be carried over any number of times: the first end stands,
and of the two records of a message that had moved to another lane one is made.

Processes of the older release record in `history` for as long as they run, whatever has been
carried over. So each later `init` carries over all that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.errors import StoreOverread
from shardq.model import ids
from shardq.stores.cassandra import cells
from shardq.stores.cassandra.history import BATCH_MARKS, write_of
from shardq.stores.store import Entry, Mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.stores.cassandra.session import Session, Write
    from shardq.stores.store import Place

SLICES = 64
"""Of the ring; one is read and written, then counted."""

_RING = 1 << 64
_LEAST = -(1 << 63)
_TOKENS_MIN = 1 << 44
"""Hardly ever more than a partition: with a million, one in 20 of such stretches has any."""
_SPAN_US_MIN = 1_000_000
_BORN_US_MAX = 1 << 53
"""In the year 2255: no clock is asked, for this one may be behind."""

_READ = (
    "SELECT queue, timeuuidAsBlob(id), toUnixTimestamp(due), name, fate, toUnixTimestamp(ended), "
    "attempt, member, TTL(due), TTL(fate) FROM {}.history WHERE token(queue, minute, lane) > ? "
    "AND token(queue, minute, lane) <= ? AND id >= ? AND id < ? ALLOW FILTERING"
)


class _Stretch(NamedTuple):
    """Tokens in `(after, until]`; of their partitions what was born in `[first_us, last_us)`."""

    after: int
    until: int
    first_us: int
    last_us: int

    def halves(self) -> tuple[_Stretch, ...]:
        """Two that cover the same; none where it is too short for that."""
        if self.until - self.after > _TOKENS_MIN:
            middle = (self.after + self.until) // 2
            return self._replace(until=middle), self._replace(after=middle)
        if self.last_us - self.first_us > _SPAN_US_MIN:
            middle = (self.first_us + self.last_us) // 2
            return self._replace(last_us=middle), self._replace(first_us=middle)
        return ()


def carry(session: Session, number: int) -> int:
    """Carry over the records of a slice of the ring. Idempotent.

    Args:
        number: Which of the `SLICES`, from 0.

    Returns:
        How many there were.
    """
    edge, end = (_LEAST + _RING // SLICES * n for n in (number, number + 1))
    stretch = _Stretch(edge, min(end, -_LEAST - 1), 0, _BORN_US_MAX)
    count = 0
    for page in _pages(session, stretch):
        session.write(_batches(session, page))
        count += len(page)
    return count


def _pages(session: Session, stretch: _Stretch) -> Iterator[list[tuple[Any, ...]]]:
    """What a stretch has, some of it more than once where it has much whose time is over."""
    after, until, first_us, last_us = stretch
    bounds = [cells.bigint(after), cells.bigint(until), ids.bound(first_us), ids.bound(last_us)]
    try:
        yield from session.read([session.bound(_READ, bounds)], "history by lane")
    except StoreOverread:
        # Cassandra reads so many deleted cells and no more.
        halves = stretch.halves()
        if not halves:
            raise
        for half in halves:
            yield from _pages(session, half)


def _batches(session: Session, page: list[tuple[Any, ...]]) -> Iterator[Any]:
    waiting: dict[Place, list[Write]] = {}
    for queue, row_id, due_ms, name, fate, ended_ms, attempt, member, put_s, end_s in page:
        entry = Entry(queue, row_id)
        key = cells.partition(entry.place)
        writes = waiting.setdefault(entry.place, [])
        if due_ms is not None:
            writes.append(write_of(key, Mark(entry, due_ms, name), _left(put_s)))
        if fate is not None:
            end = Mark.of(entry, None, None, fate, ended_ms, attempt, member)
            writes.append(write_of(key, end, _left(end_s)))
    for writes in waiting.values():
        for n in range(0, len(writes), BATCH_MARKS):
            yield session.bundle(writes[n : n + BATCH_MARKS])


def _left(seconds: int | None) -> bytes:
    """What is left of a time to live; 0 would be for ever, as it is where there is none."""
    return cells.int_(0 if seconds is None else max(seconds, 1))
