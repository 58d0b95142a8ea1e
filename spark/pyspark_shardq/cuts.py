"""Cuts a queue's shards into pieces for bins: small shards whole, full ones in parts.

```
 shard ── count ──┬── small: one piece
                  └── hot ── by due, in 64 parts ── by due .. ── in one millisecond: by birth
```

Counting costs one more look at what is hot for each step down; no row travels.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from pyspark_shardq.bounds import FAR_MS
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.inspection.scan import whole
from shardq.model import ids
from shardq.model.shard import Shard, spans
from shardq.stores.store import Slice, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark_shardq.bounds import Bounds
    from shardq.model.message import Row
    from shardq.model.shard import Layout
    from shardq.stores.store import Rows

LISTED_MAX = 10_000
"""Up to so many shards are looked up one by one; for more the table is visited."""
_OCCUPIED_MINUTES = 1_440
_COUNT_MINUTES = (16, 500)
_COUNT_ROWS = 200_000
"""Rows counted in one call. Cassandra counts some 300,000 a second, and has 10 s."""
_COUNT_STEPS = 4
"""Steps of dividing a count that takes too long: by minutes, by lanes, and twice by dues."""
_PARTS = 64
"""Parts into which a stretch of dues is cut. Three steps cut a minute down to milliseconds."""
_STEPS_MAX = 8
"""Most steps of cutting. They suffice for minutes of up to 64^8 milliseconds."""
_BIRTH_STEPS = 60
"""Steps of halving a time in microseconds until one microsecond is left."""
_LATEST_US = 1 << 52


class ReadPiece(NamedTuple):
    """Rows of a shard, by due, or those of one due by birth.

    Attributes:
        minute: The shard's minute.
        lane: Its lane.
        after_ms: Rows due at or before this are left out.
        until_ms: Rows due after this are left out.
        from_us: Rows born before this are left out; None: none. Then `until_ms` is their only due.
        before_us: Rows born at or after this are left out; None: none.
        rows: How many there were when it was counted.
    """

    minute: int
    lane: int
    after_ms: int
    until_ms: int
    from_us: int | None = None
    before_us: int | None = None
    rows: int = 0

    def slice(self, queue: str, limit: int, purpose: str) -> Slice:
        """The slice of the piece to read first.

        A piece may begin at the birth of a row: then the slice contains a few rows born before.
        """
        after_ms, after_id = self.after_ms, None
        if self.from_us is not None:
            # Stores order ids of one microsecond each in their own way: begin with the one before.
            after_ms, after_id = self.until_ms, ids.bound(self.from_us - 1)
        return Slice(
            queue,
            [self.minute],
            [self.lane],
            after_ms,
            self.until_ms,
            limit,
            after_id=after_id,
            purpose=purpose,
        )

    def owns(self, row: Row) -> bool:
        """True if a row that its slice gave is one of it."""
        born_us = ids.birth_us(row.id)
        return (self.from_us is None or born_us >= self.from_us) and (
            self.before_us is None or born_us < self.before_us
        )

    @property
    def is_cut_by_birth(self) -> bool:
        """True if its slice may give rows that are not of it."""
        return self.from_us is not None or self.before_us is not None


def shards(store: Rows, layout: Layout, bounds: Bounds) -> list[Shard]:
    """The shards with rows that are asked for, in order.

    Those of few minutes are looked up; else the whole table is visited.
    """
    span = bounds.span(layout)
    lanes = [lane for lane in layout.all_lanes() if bounds.lanes is None or lane in bounds.lanes]
    if not span or not lanes or not bounds.is_of(layout.queue):
        return []
    if len(span) * len(lanes) <= LISTED_MAX:
        found = [
            shard
            for minutes in spans(span, _OCCUPIED_MINUTES)
            for shard in store.occupied(layout.queue, minutes, lanes)
        ]
    else:
        # The minutes of a lane that the queue has no more are of another length.
        found = [
            shard
            for shard in store.shards(layout.queue)
            if shard.minute in span or not layout.has_lane(shard.lane)
        ]
    return sorted(shard for shard in found if bounds.has(shard.minute, shard.lane))


def tallies(
    store: Rows, layout: Layout, wanted: Sequence[Shard], bounds: Bounds
) -> dict[Shard, Tally]:
    """The tallies of these shards within the bounds, of those that hold anything."""
    counted: dict[Shard, Tally] = {}
    asked = set(wanted)
    for is_own, group in groupby(
        sorted(wanted, key=lambda shard: (not layout.has_lane(shard.lane), shard)),
        key=lambda shard: layout.has_lane(shard.lane),
    ):
        listed = list(group)
        after_ms, until_ms = (bounds.first_ms - 1, bounds.last_ms) if is_own else (-1, FAR_MS)
        lanes = sorted({shard.lane for shard in listed})
        minutes = sorted({shard.minute for shard in listed})
        start, length = 0, _COUNT_MINUTES[0]
        while start < len(minutes):
            part = minutes[start : start + length]
            wanted_part = Slice(layout.queue, part, lanes, after_ms, until_ms, 1)
            found = _counted(store, layout, wanted_part, _COUNT_STEPS)
            counted |= {shard: tally for shard, tally in found.items() if shard in asked}
            start += length
            if sum(tally.rows for tally in found.values()) > _COUNT_ROWS:
                length = max(length // 2, 1)
            else:
                length = min(length * 2, _COUNT_MINUTES[1])
    return counted


def _counted(store: Rows, layout: Layout, wanted: Slice, steps: int) -> dict[Shard, Tally]:
    """The tallies of a slice, counted in parts where the store takes too long."""
    try:
        return store.count(wanted)
    except (StoreTimeout, StoreUnavailable):
        parts = _parts(layout, wanted)
        if not parts or not steps:
            raise
    counted: dict[Shard, Tally] = {}
    for part in parts:
        for shard, tally in _counted(store, layout, part, steps - 1).items():
            counted[shard] = tally.plus(counted.get(shard, Tally(0, 0)))
    return counted


def _parts(layout: Layout, wanted: Slice) -> list[Slice]:
    """A slice's minutes, or lanes of its minute, or parts of its shard; none of one due."""
    if len(wanted.minutes) > 1:
        return [wanted._replace(minutes=[minute]) for minute in wanted.minutes]
    if len(wanted.lanes) > 1:
        return [wanted._replace(lanes=[lane]) for lane in wanted.lanes]
    after_ms, until_ms = wanted.after_ms, wanted.until_ms
    if layout.has_lane(wanted.lanes[0]):
        # Cut to where the minute is, so that each part of the time has a part of the rows.
        after_ms = max(after_ms, layout.start_ms(wanted.minutes[0]) - 1)
        until_ms = min(until_ms, layout.end_ms(wanted.minutes[0]) - 1)
    if until_ms - after_ms <= 1:
        return []
    step_ms = -(-(until_ms - after_ms) // _PARTS)
    return [
        wanted._replace(after_ms=one_ms, until_ms=min(one_ms + step_ms, until_ms))
        for one_ms in range(after_ms, until_ms, step_ms)
    ]


def pieces(
    store: Rows, layout: Layout, counted: dict[Shard, Tally], bounds: Bounds, *, rows_max: int
) -> Iterator[ReadPiece]:
    """Pieces of shards, of at most so many rows as far as dues and births tell rows apart.

    Args:
        counted: What each shard holds.
        rows_max: Shards that hold more are cut.
    """
    for shard, tally in counted.items():
        piece = _of_shard(layout, shard, bounds)._replace(rows=tally.rows)
        if tally.rows <= rows_max or not layout.has_lane(shard.lane):
            yield piece
        else:
            yield from _cut_by_due(store, layout, piece, rows_max, _STEPS_MAX)


def _of_shard(layout: Layout, shard: Shard, bounds: Bounds) -> ReadPiece:
    every = whole(layout, shard, 1, "")
    after_ms, until_ms = every.after_ms, every.until_ms
    if layout.has_lane(shard.lane):
        after_ms = max(after_ms, bounds.first_ms - 1)
        until_ms = min(until_ms, bounds.last_ms)
    return ReadPiece(shard.minute, shard.lane, after_ms, until_ms)


def _cut_by_due(
    store: Rows, layout: Layout, piece: ReadPiece, rows_max: int, steps: int
) -> Iterator[ReadPiece]:
    length_ms = piece.until_ms - piece.after_ms
    if length_ms <= 1 or not steps:
        yield from _cut_by_birth(store, layout.queue, piece, rows_max)
        return
    step_ms = -(-length_ms // _PARTS)
    parts = []
    for after_ms in range(piece.after_ms, piece.until_ms, step_ms):
        part = piece._replace(
            after_ms=after_ms, until_ms=min(after_ms + step_ms, piece.until_ms), rows=0
        )
        found = _counted(store, layout, part.slice(layout.queue, 1, "count"), _COUNT_STEPS)
        rows = sum(tally.rows for tally in found.values())
        parts.append(part._replace(rows=rows))
    for part in _joined(parts, rows_max):
        if part.rows <= rows_max:
            yield part
        else:
            yield from _cut_by_due(store, layout, part, rows_max, steps - 1)


def _joined(parts: Iterable[ReadPiece], rows_max: int) -> list[ReadPiece]:
    """Parts, where neighbours together are no larger than one may be."""
    joined: list[ReadPiece] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and last.rows + part.rows <= rows_max:
            joined[-1] = last._replace(until_ms=part.until_ms, rows=last.rows + part.rows)
        else:
            joined.append(part)
    return joined


def _cut_by_birth(store: Rows, queue: str, piece: ReadPiece, rows_max: int) -> Iterator[ReadPiece]:
    """Rows of one due, cut evenly between the first birth and the last.

    Not counted: what is put or scheduled at once is born evenly, and a count of each part would
    read all that is after it.
    """
    first_us, last_us = _births(store, queue, piece)
    length_us = last_us - first_us + 1
    parts = min(-(-piece.rows // rows_max), length_us)
    cuts = [first_us + length_us * n // parts for n in range(1, parts)]
    for from_us, before_us in zip([None, *cuts], [*cuts, None], strict=True):
        yield piece._replace(from_us=from_us, before_us=before_us, rows=piece.rows // parts)


def _births(store: Rows, queue: str, piece: ReadPiece) -> tuple[int, int]:
    """About the first and the last birth of the rows of one due; one look-up a step."""
    found = store.read(piece.slice(queue, 1, "count"))
    if not found:
        return 0, 0
    first_us = low_us = ids.birth_us(found[0].id)
    high_us = _LATEST_US
    for _ in range(_BIRTH_STEPS):
        if high_us - low_us <= 1:
            break
        middle_us = (low_us + high_us) // 2
        if found := store.read(piece._replace(from_us=middle_us).slice(queue, 1, "count")):
            low_us = max(low_us + 1, ids.birth_us(found[0].id))
        else:
            high_us = middle_us
    return first_us, low_us
