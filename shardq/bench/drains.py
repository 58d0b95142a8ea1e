"""How fast a backlog is delivered and settled, beside the bare driver reading and deleting it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import shardq
from shardq.bench.line import Line, Pair, interleaved, rate
from shardq.bench.puts import body_of
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from shardq.bench.place import BenchPlace
    from shardq.bench.sizes import Sizes
    from shardq.model.message import Message
    from shardq.model.shard import Shard
    from shardq.queue import Queue
    from shardq.records.stats import StatsLog

_WAIT_S = 120
_POLL_S = 0.002


def near(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Drain a backlog on Cassandra."""
    pair = _pair(place, sizes)
    return [
        Line(
            "drain: hand out, no-op handler, ack",
            pair.reached,
            "rows/s",
            "0.5 of bare page reads and deletes",
            pair.ratio >= 0.5,
            pair.bare,
            pair.ratio,
            f"{sizes.drain:,} rows, one process; bare: pages of 5,000, deletes of 1,000 rows",
        )
    ]


def file(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Drain a backlog on SQLite."""
    pair = _pair(place, sizes)
    return [
        Line(
            "drain: hand out, no-op handler, ack",
            pair.reached,
            "rows/s",
            "12,000/s",
            pair.reached >= 12_000,
            pair.bare,
            pair.ratio,
            f"{sizes.drain:,} rows, one process; bare: pages of 5,000, each deleted in one commit",
        )
    ]


def _pair(place: BenchPlace, sizes: Sizes) -> Pair:
    bodies = [body_of(n) for n in range(sizes.drain)]

    def ours(_turn: int) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, "drain")
            queue.put_many(bodies)
            return drain(place, queue, len(bodies))

    def theirs(_turn: int) -> float:
        url = place.url()
        with shardq.connect(url) as db:
            queue = place.queue(db, "drain")
            first = queue._home.register.layout.minute_of(place.clock.now_ms())
            queue.put_many(bodies)
            last = queue._home.register.layout.minute_of(place.clock.now_ms())
            lanes = queue._home.register.layout.lanes()
            shards = db._home.store.occupied(queue.name, range(first, last + 1), lanes)
            bare = _bare(place, db._home.store)
            try:
                return rate(place.clock, lambda: _drain_bare(bare, shards, len(bodies)))
            finally:
                bare.close()

    return interleaved(sizes.repetitions, ours, theirs)


class Acked:
    """Counts a consumer's acks; the consumer's own totals begin anew with each hour.

    Args:
        stats: The consumer's counters.
    """

    def __init__(self, stats: StatsLog) -> None:
        self._stats = stats
        self._totals = stats.totals
        self._before = 0

    def count(self) -> int:
        """The number of acks since this was made. Call it once an hour at least."""
        totals = self._stats.totals
        if totals is not self._totals:
            self._before += self._totals.acked
            self._totals = totals
        return self._before + totals.acked


def drain(place: BenchPlace, queue: Queue, count: int) -> float:
    """Drain a queue; returns rows a second, from the consumer's start to the last stored ack.

    Raises:
        ShardqError: If not all is delivered and acked.
    """
    clock = place.clock
    consumer = shardq.Consumer(queue, _nothing)
    acked = Acked(consumer._engine.home.stats)
    deadline_us = clock.boot_us() + _WAIT_S * 1_000_000

    def work() -> int:
        consumer.start()
        while (done := acked.count()) < count:
            if clock.boot_us() > deadline_us:
                raise ShardqError(f"only {done:,} of {count:,} messages were acked in {_WAIT_S} s.")
            clock.sleep(_POLL_S)
        return done

    try:
        return rate(clock, work)
    finally:
        consumer.stop()
        consumer.join()


def _nothing(_message: Message) -> None:
    """The handler that does nothing."""


def _drain_bare(bare: Any, shards: list[Shard], count: int) -> int:
    drained: int = bare.drain(shards)
    if drained != count:
        raise ShardqError(f"the bare driver found {drained:,} of {count:,} rows.")
    return drained


def _bare(place: BenchPlace, store: Any) -> Any:
    if place.is_cassandra:
        from shardq.stores.cassandra.bare import Bare

        return Bare(place.address())
    from shardq.stores.sqlite.bare import Bare as SqliteBare

    return SqliteBare(store)
