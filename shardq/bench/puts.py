"""The speed of puts, beside that of the bare driver writing the same rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import shardq
from shardq.bench.line import Line, interleaved, rate
from shardq.model.ids import row_ids
from shardq.model.message import Row
from shardq.model.shard import Layout
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.bench.place import BenchPlace
    from shardq.bench.sizes import Sizes

BODY_BYTES = 200
YEAR_MS = 365 * 86_400_000
HOUR_MS = 3_600_000
_BATCH_ROWS = 100
_SEED = 1
_EACH_TURNS = 3


def near(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure `put_many` of messages that are due now."""
    count = sizes.put
    bodies = [body_of(n) for n in range(count)]
    with shardq.connect(place.url()) as db:
        bare = _cassandra_bare(place)

        def ours(_turn: int) -> float:
            queue = place.queue(db, "put")
            return rate(place.clock, lambda: queue.put_many(bodies))

        def theirs(turn: int) -> float:
            batches = bare.near(_rows(f"bare-{turn}", bodies, [place.clock.now_ms()] * count))
            return rate(place.clock, lambda: bare.insert(batches))

        pair = interleaved(sizes.repetitions, ours, theirs)
        bare.close()
    return [
        Line(
            "put_many, due now",
            pair.reached,
            "rows/s",
            "0.8 of bare batched inserts",
            pair.ratio >= 0.8,
            pair.bare,
            pair.ratio,
            f"{count:,} bodies of {BODY_BYTES} bytes; bare: unlogged batches of {_BATCH_ROWS} rows",
        )
    ]


def far(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure `put_many` of timers scattered over a year."""
    count = sizes.put
    with shardq.connect(place.url()) as db:
        bare = _cassandra_bare(place)

        def ours(turn: int) -> float:
            queue = place.queue(db, "far")
            items = list(timers(count, place.clock.now_ms(), YEAR_MS, seed=turn))
            return rate(place.clock, lambda: queue.put_many(items))

        def theirs(turn: int) -> float:
            bodies = [body_of(n) for n in range(count)]
            dues = _dues(count, place.clock.now_ms(), YEAR_MS, seed=turn)
            batches = bare.far(_rows(f"bare-far-{turn}", bodies, dues))
            return rate(place.clock, lambda: bare.insert(batches))

        pair = interleaved(sizes.repetitions, ours, theirs)
        bare.close()
    return [
        Line(
            "put_many, timers scattered over a year",
            pair.reached,
            "rows/s",
            "0.7 of bare grouped inserts",
            pair.ratio >= 0.7,
            pair.bare,
            pair.ratio,
            f"{count:,} timers; bare: unlogged batches of 10 rows by replica",
        )
    ]


def each(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure single puts, each on the disk before the next."""
    count = sizes.put_each
    bodies = [body_of(n) for n in range(count)]

    def ours(_turn: int) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, "put")

            def put_all() -> int:
                for body in bodies:
                    queue.put(body)
                return count

            return rate(place.clock, put_all)

    def theirs(_turn: int) -> float:
        bare = _sqlite_bare(place)
        values = bare.values(_rows("bare", bodies, [place.clock.now_ms()] * count))
        try:
            return rate(place.clock, lambda: bare.insert_each(values))
        finally:
            bare.close()

    # Take many short turns, because a disk's speed of syncs varies from second to second.
    pair = interleaved(sizes.repetitions * _EACH_TURNS, ours, theirs)
    return [
        Line(
            "put, one by one",
            pair.reached,
            "rows/s",
            "0.8 of bare inserts with a commit each",
            pair.ratio >= 0.8,
            pair.bare,
            pair.ratio,
            f"{count:,} bodies of {BODY_BYTES} bytes, a commit each",
        )
    ]


def mixed(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure `put_many` of mixed due times into a file."""
    count = sizes.put * 2

    def ours(turn: int) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, "put")
            items = list(timers(count, place.clock.now_ms(), HOUR_MS, seed=turn))
            return rate(place.clock, lambda: queue.put_many(items))

    def theirs(turn: int) -> float:
        bare = _sqlite_bare(place)
        bodies = [body_of(n) for n in range(count)]
        dues = _dues(count, place.clock.now_ms(), HOUR_MS, seed=turn)
        values = bare.values(_rows("bare", bodies, dues))
        try:
            return rate(place.clock, lambda: bare.insert(values))
        finally:
            bare.close()

    pair = interleaved(sizes.repetitions, ours, theirs)
    return [
        Line(
            "put_many, mixed due times",
            pair.reached,
            "rows/s",
            "50,000/s, or 0.6 of bare executemany",
            pair.reached >= 50_000 or pair.ratio >= 0.6,
            pair.bare,
            pair.ratio,
            f"{count:,} timers within an hour; bare: one executemany, one commit",
        )
    ]


def body_of(number: int) -> bytes:
    """A body that differs from all other bodies."""
    return number.to_bytes(8, "big") * (BODY_BYTES // 8)


def grouped(count: int, groups: int) -> Iterator[dict[str, Any]]:
    """Items for `put_many` that take turns in some groups; 0: none has a group."""
    for number in range(count):
        group = f"group-{number % groups}" if groups else None
        yield {"body": body_of(number), "group": group}


def timers(count: int, now_ms: int, span_ms: int, *, seed: int = _SEED) -> Iterator[dict[str, Any]]:
    """Items for `put_many`, due at random times within a span that begins in an hour."""
    for number, due_ms in enumerate(_dues(count, now_ms, span_ms, seed=seed)):
        yield {"body": body_of(number), "due": moment_of(due_ms)}


def _dues(count: int, now_ms: int, span_ms: int, *, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [now_ms + HOUR_MS + chance.randrange(span_ms) for _ in range(count)]


def _rows(queue: str, bodies: list[bytes], dues: list[int]) -> list[Row]:
    """Rows where shardq would place them: each minute's lanes filled one batch at a time."""
    layout = Layout(queue)
    filled: dict[int, int] = {}
    rows = []
    for body, due_ms in zip(bodies, dues, strict=True):
        minute = layout.minute_of(due_ms)
        place = filled.get(minute, 0)
        filled[minute] = place + 1
        lane = (place // _BATCH_ROWS + minute) % layout.lanes_written
        rows.append(Row(layout.shard(due_ms, lane), due_ms, row_ids.next(0), body))
    return rows


def _cassandra_bare(place: BenchPlace) -> Any:
    from shardq.stores.cassandra.bare import Bare

    return Bare(place.address())


def _sqlite_bare(place: BenchPlace) -> Any:
    from shardq.stores.sqlite import SqliteStore
    from shardq.stores.sqlite.bare import Bare

    store = SqliteStore.from_url(place.url())
    store.open(create=True)
    store.close()
    return Bare(store)
