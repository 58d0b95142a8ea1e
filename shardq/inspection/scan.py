"""Finds and reads the rows of one queue: several shards at a time, in pages of about 4 MiB.

```
 index ──► shards that may have a row ── with_rows ──► shards with rows ── pages ──► rows
                      └── tallies ──► how many each has
```
The index names the shards. Its cost depends on the one queue, so no read of a queue visits the
table of all queues.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice, product
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from shardq.model.shard import Shard
from shardq.stores.store import NEVER, Slice
from shardq.stores.tables import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Layout
    from shardq.records.register import Register
    from shardq.stores.store import Rows, Store, Tally

_PAGE_ROWS = (10, 1_000)
_PAGE_BYTES = 4 << 20
_ROW_BYTES = 400
_TOGETHER_MAX = 64
_SHARDS_FIRST, _SHARDS_MAX = 8, 2_000
"""How many shards are read at a time."""
_COUNTED_FIRST = 256
_AREA_MIN, _EMPTY_MAX = 200, 5
"""The most shards to read together: 200, or 5 for each shard that may have rows."""
_OVER_MS = 600_000
"""A shard gets no rows this long after its minute and the offset: no write takes so long."""
_FAR_MS = 1 << 52


_Rectangle: TypeAlias = "tuple[list[int], list[int]]"
"""Minutes and lanes."""


def pages(
    store: Rows,
    layout: Layout,
    shards: Iterable[Shard],
    *,
    purpose: str,
    together_max: int = _TOGETHER_MAX,
    bodies: bool = True,
) -> Iterator[list[Row]]:
    """All rows of shards except notes; without leases, beside the consumers of the queue.

    Args:
        layout: The queue's layout.
        shards: The shards; read lazily.
        purpose: The reader, for the store's counters.
        together_max: The most shards to read at a time; with 1 their rows keep their order.
        bodies: False to leave the bodies empty.

    Raises:
        StoreCorrupt: If a row is damaged.
    """
    slices = (whole(layout, shard, _PAGE_ROWS[0], purpose) for shard in shards)
    asked = (one._replace(bodies=bodies) for one in slices)
    return _pages(store, asked, together_max)


def rows_of(store: Rows, wanted: Slice) -> Iterator[Row]:
    """All rows of a slice, whatever its limit; a shard's rows in their order.

    Raises:
        StoreCorrupt: If a row is damaged.
    """
    return chain.from_iterable(_pages(store, [wanted], 1))


def first_kept(store: Rows, slices: Sequence[Slice], is_kept: Callable[[Row], bool]) -> list[Row]:
    """The first rows to keep of each shard of some slices, up to the limit.

    Reads shard by shard.

    Raises:
        StoreCorrupt: If a row is damaged.
    """

    def is_shown(row: Row) -> bool:
        return not row.is_note and is_kept(row)

    rows = [row.checked() for row in store.read(*slices)]
    crowded = {row.shard for row in rows if not is_shown(row)}
    kept = [row for row in rows if row.shard not in crowded]
    # Any number of other rows may precede a kept row.
    for one in slices:
        for minute, lane in product(one.minutes, one.lanes) if crowded else ():
            if Shard(one.queue, minute, lane) in crowded:
                left = rows_of(store, one._replace(minutes=[minute], lanes=[lane]))
                kept += islice(filter(is_shown, left), one.limit)
    return sorted(kept, key=attrgetter("shard"))


def _pages(store: Rows, slices: Iterable[Slice], together_max: int) -> Iterator[list[Row]]:
    """All rows of slices except notes, whatever their limit, this many slices at a time."""
    iterator = iter(slices)
    limit, together = _PAGE_ROWS[0], 1
    while left := [one._replace(limit=limit) for one in islice(iterator, together)]:
        while left:
            rows = [row.checked() for row in store.read(*left)]
            if messages := [row for row in rows if not row.is_note]:
                yield messages
            left = _continued(left, rows)
            size = sum(row.size_bytes for row in rows) + _ROW_BYTES * len(rows)
            if size < _PAGE_BYTES // 4:
                limit = min(limit * 2, _PAGE_ROWS[1])
                together = min(together * 2, together_max)
            elif size > _PAGE_BYTES:
                limit = max(limit // 2, _PAGE_ROWS[0])
                together = max(together // 2, 1)
            left = [one._replace(limit=limit) for one in left]


def unsealed_minute(store: Store, register: Register, now_ms: int) -> int:
    """The oldest minute of a queue that readers still visit."""
    if store.next_minute(register.name, 0) is not None:
        # An index that is always current needs no seals, and the clock may have been set back
        # since.
        return register.life_minute
    layout = register.layout
    sealed = store.notes(LANES, (register.name,))
    oldest = min(register.unsealed_minute(lane, sealed) for lane in layout.all_lanes())
    # The clock may have been set back since.
    return max(min(oldest, layout.newest_sealable(now_ms) + 1), 0)


def waiting_minutes(store: Store, register: Register) -> dict[int, dict[int, int]]:
    """For each lane of groups, the minutes with rows before its seal; one read."""
    layout = register.layout
    return store.waiting(layout.queue, layout.lanes_of_groups()) if layout.groups_used else {}


def listed_shards(store: Store, register: Register, minutes: range) -> list[Shard]:
    """The shards of groups in some minutes that their lanes' lists name, by minute; one read."""
    waiting = waiting_minutes(store, register)
    return sorted(
        Shard(register.name, minute, lane)
        for lane, listed in waiting.items()
        for minute in listed
        if minute in minutes
    )


def open_shards(
    store: Store, register: Register, until_minute: int, now_ms: int
) -> Iterator[Shard]:
    """The shards that may have a row and that readers still visit, by minute.

    Args:
        until_minute: The end, exclusive.
        now_ms: Now, epoch milliseconds.
    """
    # The seals first: a minute is listed before its lane's seal passes it.
    first = unsealed_minute(store, register, now_ms)
    yield from listed_shards(store, register, range(min(first, until_minute)))
    yield from store.indexed(register.name, range(first, until_minute))


def every_shard(store: Store, register: Register, now_ms: int) -> Iterator[Shard]:
    """Every shard of a queue that may have a row: first those that readers still visit.

    Args:
        now_ms: Now, epoch milliseconds.
    """
    first = unsealed_minute(store, register, now_ms)
    listed = listed_shards(store, register, range(first))
    yield from listed
    yield from store.indexed(register.name, range(first, NEVER))
    known = set(listed)
    yield from (shard for shard in store.indexed(register.name, range(first)) if shard not in known)


def with_rows(store: Store, shards: Iterable[Shard]) -> Iterator[Shard]:
    """The shards of one queue that have a row, in their order."""
    for some in parts(shards):
        found: set[Shard] = set()
        for minutes, lanes in _asked(store, some):
            found.update(store.occupied(some[0].queue, minutes, lanes))
        yield from (shard for shard in some if shard in found)


def tallies(
    store: Store, shards: Iterable[Shard], after_ms: int, until_ms: int, *, purpose: str
) -> Iterator[Mapping[Shard, Tally]]:
    """How many rows the shards of one queue have between two dues, part by part.

    Args:
        after_ms: Rows due by then are left out.
        until_ms: Rows due later are left out.
        purpose: The reader, for the store's counters.
    """
    for some in parts(shards, first=_COUNTED_FIRST):
        counted: dict[Shard, Tally] = {}
        for minutes, lanes in _asked(store, some):
            wanted = Slice(some[0].queue, minutes, lanes, after_ms, until_ms, 0, purpose=purpose)
            counted |= store.count(wanted)
        yield {shard: counted[shard] for shard in some if shard in counted}


def tallies_of(store: Store, wanted: Slice, minutes: range) -> Iterator[Mapping[Shard, Tally]]:
    """Count the rows of one queue's shards; yields the counts of some shards at a time.

    Args:
        store: The store.
        wanted: The queue, the lanes and the dues of the rows to count; its minutes are not used.
        minutes: The minutes whose shards are counted.
    """
    if store.is_local:
        # In a local store a range is one read, however many shards it contains.
        yield store.count(wanted._replace(minutes=minutes))
        return
    shards = (one for one in store.indexed(wanted.queue, minutes) if one.lane in wanted.lanes)
    yield from tallies(store, shards, wanted.after_ms, wanted.until_ms, purpose=wanted.purpose)


def forget_empty(store: Store, register: Register, now_ms: int) -> None:
    """Remove empty shards from a queue's index, if no process puts rows there any more.

    Args:
        now_ms: Now, epoch milliseconds.
    """
    if store.next_minute(register.name, 0) is not None:
        # The index is the table's own key.
        return
    over = register.layout.newest_sealable(now_ms - _OVER_MS)
    for some in parts(store.indexed(register.name, range(over + 1))):
        there = set(with_rows(store, some))
        store.mend_index(gone=[shard for shard in some if shard not in there])


def parts(
    shards: Iterable[Shard], most: int = _SHARDS_MAX, *, first: int = _SHARDS_FIRST
) -> Iterator[list[Shard]]:
    """Shards in parts: few first, as callers may need only those, then up to `most`."""
    iterator, length = iter(shards), first
    while some := list(islice(iterator, length)):
        yield some
        length = min(2 * length, most)


def _asked(store: Store, shards: Sequence[Shard]) -> list[_Rectangle]:
    """The minutes x lanes to read for some shards; they may cover other shards as well."""
    found = _rectangles(shards)
    # In a remote store a request costs as much as some empty shards.
    return found if store.is_local else _joined(found)


def _joined(rectangles: Iterable[_Rectangle]) -> list[_Rectangle]:
    """Fewer rectangles, which also cover other shards: empty ones, as far as is known.

    >>> _joined([([7], [0, 1]), ([9], [0])])
    [([7, 9], [0, 1])]
    """
    joined: list[_Rectangle] = []
    covered = 0
    for minutes, lanes in sorted(rectangles):
        size = len(minutes) * len(lanes)
        if joined:
            both = sorted({*joined[-1][0], *minutes}), sorted({*joined[-1][1], *lanes})
            area = len(both[0]) * len(both[1])
            if area <= min(max(_EMPTY_MAX * (covered + size), _AREA_MIN), _SHARDS_MAX):
                joined[-1], covered = both, covered + size
                continue
        joined.append((minutes, lanes))
        covered = size
    return joined


def _rectangles(shards: Iterable[Shard]) -> list[_Rectangle]:
    """Shards as minutes x lanes: the fewer rectangles of the two ways of grouping.

    >>> _rectangles([Shard("mail", 7, 0), Shard("mail", 7, 1), Shard("mail", 9, 0)])
    [([7], [0, 1]), ([9], [0])]
    """
    by_minute: dict[int, list[int]] = {}
    by_lane: dict[int, list[int]] = {}
    for _, minute, lane in shards:
        by_minute.setdefault(minute, []).append(lane)
        by_lane.setdefault(lane, []).append(minute)
    of_lanes, of_minutes = _grouped(by_minute), _grouped(by_lane)
    if len(of_lanes) <= len(of_minutes):
        return [(minutes, list(lanes)) for lanes, minutes in of_lanes.items()]
    return [(list(minutes), lanes) for minutes, lanes in of_minutes.items()]


def _grouped(values: Mapping[int, list[int]]) -> dict[tuple[int, ...], list[int]]:
    """Groups the keys that have the same values, by these values."""
    grouped: dict[tuple[int, ...], list[int]] = {}
    for key, some in values.items():
        grouped.setdefault(tuple(some), []).append(key)
    return grouped


def postponed(
    store: Store, register: Register, now_ms: int, group: str | None = None
) -> Iterator[Row]:
    """Due messages of a group, or of all, that may be delivered later than now; without bodies."""
    layout = register.layout
    if not layout.groups_used:
        return
    found = open_shards(store, register, layout.minute_of(now_ms) + 1, now_ms)
    lanes = layout.lanes_of_groups() if group is None else [layout.group_lane(group)]
    of_groups = (shard for shard in found if shard.lane in lanes)
    for counted in tallies(store, of_groups, -1, now_ms, purpose="postponed"):
        for shard, tally in counted.items():
            one = whole(layout, shard, _PAGE_ROWS[1], "postponed")
            yield from (
                row
                for row in waits_of(store, one, tally)
                if row.ready_ms > now_ms and group in (None, row.group)
            )


def waits_of(store: Rows, wanted: Slice, tally: Tally) -> Iterator[Row]:
    """The rows with a `not_before_ms` of a counted shard; without bodies.

    Such rows are the first of their groups, so that few other rows are read on the way.
    """
    if tally.waits:
        rows = rows_of(store, wanted._replace(bodies=False))
        yield from islice((row for row in rows if row.not_before_ms is not None), tally.waits)


def whole(layout: Layout, shard: Shard, limit: int, purpose: str) -> Slice:
    """The slice of a whole shard."""
    queue, minute, lane = shard
    after_ms, until_ms = layout.start_ms(minute) - 1, layout.end_ms(minute) - 1
    if not layout.has_lane(lane):
        # The lane may belong to a dropped queue of this name, with minutes of another length.
        after_ms, until_ms = -1, _FAR_MS
    return Slice(queue, [minute], [lane], after_ms, until_ms, limit, purpose=purpose)


def _continued(slices: Sequence[Slice], rows: Sequence[Row]) -> list[Slice]:
    """The slices to read next, of shards whose page was full."""
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
