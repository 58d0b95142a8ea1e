"""Reading all rows of shards, several shards at a time, in pages of about 4 MiB."""

from __future__ import annotations

from collections import Counter
from itertools import chain, groupby, islice, product
from operator import attrgetter
from typing import TYPE_CHECKING

from shardq.model.shard import Shard, spans
from shardq.stores.store import Slice
from shardq.stores.tables import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Layout
    from shardq.records.register import Register
    from shardq.stores.store import Rows, Store, Tally

_PAGE_ROWS = (10, 1_000)
_PAGE_BYTES = 4 << 20
_ROW_BYTES = 400
_TOGETHER_MAX = 64
PROBE_MINUTES = 1_440
"""So many minutes are looked into at a time."""
_FAR_MS = 1 << 52


def pages(
    store: Rows,
    layout: Layout,
    shards: Iterable[Shard],
    *,
    purpose: str,
    together_max: int = _TOGETHER_MAX,
    bodies: bool = True,
) -> Iterator[list[Row]]:
    """All rows of shards but notes; without leases, beside the consumers of the queue.

    Args:
        layout: The queue's.
        shards: Where to read; taken as they are needed.
        purpose: Who reads, for the store's counters.
        together_max: The most shards to read at a time; with 1 their rows come in their order.
        bodies: False leaves the bodies in the store: the rows come with empty ones.

    Raises:
        StoreCorrupt: If a row is damaged.
    """
    slices = (whole(layout, shard, _PAGE_ROWS[0], purpose) for shard in shards)
    asked = (one._replace(bodies=bodies) for one in slices)
    return _pages(store, asked, together_max)


def rows_of(store: Rows, wanted: Slice) -> Iterator[Row]:
    """All rows of a slice, whatever its limit; those of a shard come in their order.

    Raises:
        StoreCorrupt: If a row is damaged.
    """
    return chain.from_iterable(_pages(store, [wanted], 1))


def first_kept(store: Rows, slices: Sequence[Slice], is_kept: Callable[[Row], bool]) -> list[Row]:
    """Of each shard of some slices the first rows that are to be kept, up to the limit.

    Shard by shard.

    Raises:
        StoreCorrupt: If a row is damaged.
    """

    def is_shown(row: Row) -> bool:
        return not row.is_note and is_kept(row)

    rows = [row.checked() for row in store.read(*slices)]
    crowded = {row.shard for row in rows if not is_shown(row)}
    kept = [row for row in rows if row.shard not in crowded]
    # There may be any number of others before a row that is kept.
    for one in slices:
        for minute, lane in product(one.minutes, one.lanes) if crowded else ():
            if Shard(one.queue, minute, lane) in crowded:
                left = rows_of(store, one._replace(minutes=[minute], lanes=[lane]))
                kept += islice(filter(is_shown, left), one.limit)
    return sorted(kept, key=attrgetter("shard"))


def _pages(store: Rows, slices: Iterable[Slice], together_max: int) -> Iterator[list[Row]]:
    """All rows of slices but notes, whatever their limit, so many slices at a time."""
    iterator = iter(slices)
    limit, together = _PAGE_ROWS[0], 1
    while left := [one._replace(limit=limit) for one in islice(iterator, together)]:
        while left:
            rows = [row.checked() for row in store.read(*left)]
            if messages := [row for row in rows if not row.is_note]:
                yield messages
            left = _continued(left, rows)
            size = sum(len(row.body) for row in rows) + _ROW_BYTES * len(rows)
            if size < _PAGE_BYTES // 4:
                limit = min(limit * 2, _PAGE_ROWS[1])
                together = min(together * 2, together_max)
            elif size > _PAGE_BYTES:
                limit = max(limit // 2, _PAGE_ROWS[0])
                together = max(together // 2, 1)
            left = [one._replace(limit=limit) for one in left]


def spans_with_rows(store: Rows, queue: str, minutes: range, length: int) -> Iterator[range]:
    """Minutes in stretches of so many at most, without those that an index tells to be empty."""
    start = minutes.start
    while start < minutes.stop:
        found = store.next_minute(queue, start)
        start = start if found is None else found
        if start < minutes.stop:
            yield range(start, min(start + length, minutes.stop))
        start += length


def waiting_minutes(store: Store, register: Register) -> dict[int, dict[int, int]]:
    """Of each lane for groups the minutes before its seal in which rows are left; one read."""
    layout = register.layout
    return store.waiting(layout.queue, layout.lanes_of_groups()) if layout.groups_used else {}


def unsealed_minutes(store: Store, register: Register, now_ms: int) -> Iterator[range]:
    """The minutes from the oldest unsealed one of a queue to now, in stretches.

    Before them those in which rows of groups are left.
    """
    layout = register.layout
    sealed = store.notes(LANES, (register.name,))
    # After the seals: a minute is listed before its lane's seal passes it.
    waiting = waiting_minutes(store, register)
    oldest = min(register.unsealed_minute(lane, sealed) for lane in layout.all_lanes())
    # The clock may have been set back since, and what an index tells needs no seal.
    oldest = min(oldest, layout.newest_sealable(now_ms) + 1)
    first = store.next_minute(layout.queue, register.life_minute)
    minutes = range(max(oldest, 0) if first is None else first, layout.minute_of(now_ms) + 1)
    if first is None:
        yield from _stretches({m for of_lane in waiting.values() for m in of_lane}, minutes.start)
    yield from spans_with_rows(store, layout.queue, minutes, PROBE_MINUTES)


def put_off(store: Store, register: Register, now_ms: int) -> Iterator[Row]:
    """Messages of groups that are due, and may be handed out later than now; without bodies."""
    layout = register.layout
    if not layout.groups_used:
        return
    for part in unsealed_minutes(store, register, now_ms):
        of_groups = Slice(layout.queue, part, layout.lanes_of_groups(), -1, now_ms, _PAGE_ROWS[1])
        for shard, tally in store.count(of_groups).items():
            one = of_groups._replace(minutes=[shard.minute], lanes=[shard.lane], purpose="put off")
            yield from (row for row in waits_of(store, one, tally) if row.ready_ms > now_ms)


def waits_of(store: Rows, wanted: Slice, tally: Tally) -> Iterator[Row]:
    """The rows with a `not_before_ms` of a shard that was counted; without bodies.

    They are the first of their groups: few rows are read before the last of them.
    """
    if tally.waits:
        rows = rows_of(store, wanted._replace(bodies=False))
        yield from islice((row for row in rows if row.not_before_ms is not None), tally.waits)


def _stretches(minutes: Iterable[int], end: int) -> Iterator[range]:
    """Minutes before an end, those that follow each other in one stretch."""
    ordered = sorted(minute for minute in minutes if minute < end)
    for _, some in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        follow = [minute for _, minute in some]
        yield from spans(range(follow[0], follow[-1] + 1), PROBE_MINUTES)


def whole(layout: Layout, shard: Shard, limit: int, purpose: str) -> Slice:
    """All of a shard."""
    queue, minute, lane = shard
    after_ms, until_ms = layout.start_ms(minute) - 1, layout.end_ms(minute) - 1
    if not layout.has_lane(lane):
        # Of a dropped queue of this name, whose minutes may have been of another length.
        after_ms, until_ms = -1, _FAR_MS
    return Slice(queue, [minute], [lane], after_ms, until_ms, limit, purpose=purpose)


def _continued(slices: Sequence[Slice], rows: Sequence[Row]) -> list[Slice]:
    """What is to be read next of those shards whose page was full."""
    last = {row.shard[1:]: row for row in rows}
    counts = Counter(row.shard[1:] for row in rows)
    more = []
    for one in slices:
        for place in product(one.minutes, one.lanes):
            if counts[place] >= one.limit:
                row, (minute, lane) = last[place], place
                left = one._replace(minutes=[minute], lanes=[lane])
                more.append(left._replace(after_ms=row.due_ms, after_id=row.id))
    return more
