"""The cost of order: drains of many groups and of few, beside drains without groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shardq
from shardq.bench.drains import drain
from shardq.bench.line import Line, interleaved
from shardq.bench.puts import grouped

if TYPE_CHECKING:
    from measures.sizes import Sizes
    from shardq.bench.place import BenchPlace

_REPETITIONS = 3
_REACH = {5_000: 0.7, 100: 0.6, 3: 0.4, 1: 0.3}
"""Number of groups -> the target, as a part of the rate of a drain without groups."""


def drained(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Drains of one backlog, in thousands of groups and in one."""
    return [_line(place, sizes, groups, reach) for groups, reach in _REACH.items()]


def _line(place: BenchPlace, sizes: Sizes, groups: int, reach: float) -> Line:
    count = sizes.grouped

    def work(turn: int, groups: int) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, f"groups-{groups}-{turn}")
            queue.put_many(grouped(count, groups))
            return drain(place, queue, count)

    pair = interleaved(_REPETITIONS, lambda turn: work(turn, groups), lambda turn: work(turn, 0))
    return Line(
        f"drain in {groups:,} groups",
        pair.reached,
        "rows/s",
        f"{reach} of a drain without groups",
        pair.ratio >= reach,
        pair.bare,
        pair.ratio,
        f"{count:,} rows, one process; beside: the same without groups",
    )
