"""The cost of a history: the same work with and without a history, in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shardq
from shardq.bench.drains import drain
from shardq.bench.line import Line, interleaved, rate
from shardq.bench.puts import body_of
from shardq.errors import ShardqError
from shardq.model.settings import OFF

if TYPE_CHECKING:
    from collections.abc import Callable

    from measures.sizes import Sizes
    from shardq.bench.line import Pair
    from shardq.bench.place import BenchPlace
    from shardq.queue import Queue

_KEPT = "7d"


def cost(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Puts and drains of a queue that keeps a history, beside one that keeps none."""
    many = [body_of(n) for n in range(sizes.put)]
    each = many[: sizes.put_each]
    backlog = [body_of(n) for n in range(sizes.drain)]

    def put_each(queue: Queue) -> float:
        def put_all() -> int:
            for body in each:
                queue.put(body)
            return len(each)

        return rate(place.clock, put_all)

    def put_many(queue: Queue) -> float:
        return rate(place.clock, lambda: queue.put_many(many))

    def drain_all(queue: Queue) -> float:
        queue.put_many(backlog)
        return drain(place, queue, len(backlog))

    measured = [
        ("put, one by one", put_each, len(each)),
        ("put_many, due now", put_many, len(many)),
        ("drain", drain_all, len(backlog)),
    ]
    lines = []
    for what, work, count in measured:
        pair = _pair(place, sizes, what, work)
        lines.append(
            Line(
                f"{what}, with a history",
                pair.reached,
                "rows/s",
                bare=pair.bare,
                ratio=pair.ratio,
                note=f"{count:,} rows; beside it: the same without a history",
            )
        )
    return lines


def _pair(place: BenchPlace, sizes: Sizes, what: str, work: Callable[[Queue], float]) -> Pair:
    def turn(history: str) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, "history", history=history)
            reached = work(queue)
            if history != OFF and not queue.audit().is_even:
                raise ShardqError(f"after {what}, {queue.audit().line()}")
            return reached

    return interleaved(sizes.repetitions, lambda _: turn(_KEPT), lambda _: turn(OFF))
