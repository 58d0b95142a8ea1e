"""The cost of keys: puts and drains of messages with a key each, beside messages without keys.

The bare driver takes the same names: by conditional batches, or by upserts of one transaction.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from typing import TYPE_CHECKING, Any

import shardq
from measures.names import CassandraNames, SqliteNames
from shardq.bench.drains import drain
from shardq.bench.line import Line, interleaved, rate
from shardq.bench.puts import body_of
from shardq.errors import ShardqError
from shardq.model.key import bucket_of
from shardq.records.keyrow import message_in
from shardq.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from measures.sizes import Sizes
    from shardq.bench.place import BenchPlace

_PUT_RATIO = {True: 0.25, False: 0.4}
"""The target for `put_many` with keys, as a share of the rate without keys: True: on Cassandra,
False: on SQLite."""
_DRAIN_RATIO = {True: 0.3, False: 0.4}
_COMMAND_MS = 10
_DELAY = "1h"


def cost(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Single puts, moves and cancels, `put_many` and a drain."""
    return [
        _bare(place, sizes),
        _each(place, sizes),
        *_commands(place, sizes),
        _many(place, sizes),
        _drained(place, sizes),
    ]


def _bare(place: BenchPlace, sizes: Sizes) -> Line:
    """The rate at which the bare driver takes names."""
    names = [f"key-{n}" for n in range(sizes.put)]
    rows = [
        ("bare", bucket_of(name), name, message_in(body_of(n)[:16], 1), "x" * 120)
        for n, name in enumerate(names)
    ]
    with shardq.connect(place.url()) as db:
        # This makes the tables.
        place.queue(db, "keys")
        with closing(_driver(place)) as bare:
            reached = rate(place.clock, lambda: bare.take_names(rows))
    how = "conditional batches of 50" if place.is_cassandra else "upserts, one commit"
    return Line("keys taken by the bare driver", reached, "keys/s", note=f"{sizes.put:,}; {how}")


def _each(place: BenchPlace, sizes: Sizes) -> Line:
    count = sizes.put_each

    def put(number: int, key: str | None) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, f"each-{number}")
            queue.put(body_of(0), key=key and f"{key}-first", delay=_DELAY)

            def put_all() -> int:
                for n in range(count):
                    queue.put(body_of(n), key=key and f"{key}-{n}", delay=_DELAY)
                return count

            return rate(place.clock, put_all)

    pair = interleaved(sizes.repetitions, lambda n: put(n, "key"), lambda n: put(n, None))
    note = f"{count:,} messages, beside as many without a key"
    return Line("put under a key, one by one", pair.reached, "rows/s", "", None, pair.bare,
                pair.ratio, note)  # fmt: skip


def _commands(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Moves and cancels by key, one by one."""
    count = sizes.put_each
    with shardq.connect(place.url()) as db:
        queue = place.queue(db, "commands")
        queue.put_many(_items(count, keyed=True))
        lines = []
        commands: dict[str, Callable[[str], object]] = {
            "move by key, one by one": lambda key: queue.move(key, delay="2h"),
            "cancel by key, one by one": lambda key: queue.cancel(key=key),
        }
        for what, command in commands.items():
            took_ms = []
            for n in range(count):
                begun_us = place.clock.boot_us()
                if not command(f"key-{n}"):
                    raise ShardqError(f"{what}: key-{n} is not there.")
                took_ms.append((place.clock.boot_us() - begun_us) / 1e3)
            median = statistics.median(took_ms)
            note = f"{count:,} messages; {1e3 * count / sum(took_ms):,.0f} a second"
            lines.append(Line(what, median, "ms", "under 10 ms", median < _COMMAND_MS, note=note))
    return lines


def _many(place: BenchPlace, sizes: Sizes) -> Line:
    count = sizes.put

    def put(number: int, *, keyed: bool) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, f"many-{number}")
            if keyed:
                queue.put(body_of(0), key="first", delay=_DELAY)
            items = list(_items(count, keyed=keyed))
            return rate(place.clock, lambda: queue.put_many(items))

    pair = interleaved(
        sizes.repetitions, lambda n: put(n, keyed=True), lambda n: put(n, keyed=False)
    )
    least = _PUT_RATIO[place.is_cassandra]
    return Line("put_many under a key each", pair.reached, "rows/s", f"{least} of those without",
                pair.ratio >= least, pair.bare, pair.ratio,
                f"{count:,} messages, beside as many without a key")  # fmt: skip


def _drained(place: BenchPlace, sizes: Sizes) -> Line:
    count = sizes.drain

    def deliver(number: int, *, keyed: bool) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, f"drained-{number}")
            queue.put_many(_items(count, keyed=keyed, delay="0s"))
            return drain(place, queue, count)

    pair = interleaved(
        sizes.repetitions, lambda n: deliver(n, keyed=True), lambda n: deliver(n, keyed=False)
    )
    least = _DRAIN_RATIO[place.is_cassandra]
    return Line("drain of messages with a key each", pair.reached, "rows/s",
                f"{least} of those without", pair.ratio >= least, pair.bare, pair.ratio,
                f"{count:,} rows, one process, beside as many without a key")  # fmt: skip


def _items(count: int, *, keyed: bool, delay: str = _DELAY) -> Iterator[dict[str, Any]]:
    for n in range(count):
        item = {"body": body_of(n), "delay": delay}
        yield item | {"key": f"key-{n}"} if keyed else item


def _driver(place: BenchPlace) -> CassandraNames | SqliteNames:
    if place.is_cassandra:
        return CassandraNames(place.address())
    store = SqliteStore.from_url(place.url())
    store.open(create=True)
    store.close()
    return SqliteNames(store)
