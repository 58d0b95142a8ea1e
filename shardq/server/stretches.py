"""The jobs that the schedules of a queue will put, counted by stretches of time."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

from shardq.schedules.ahead import ahead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardq.schedules.stored import StoredSchedule
    from shardq.schedules.triggers.fire import Gap, Twice
    from shardq.schedules.triggers.trigger import Trigger


def ahead_by(
    records: Iterable[StoredSchedule], stretches: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Pairs for each schedule and stretch: the stretch's begin, and the number of jobs due in it.

    Counts the jobs that `ahead` returns, but fire times of an interval or a cron are counted
    without a visit to each.

    Args:
        records: The records of the schedules.
        stretches: (begin, end) in epoch milliseconds, one after the other; the end is excluded,
            and so is the begin of the first one.
    """
    starts = [start_ms for start_ms, _ in stretches]
    visited = []
    for record in records:
        definition = record.definition
        is_counted = definition.count is None and not definition.policies.latest_ms
        if not (is_counted and definition.trigger.is_counted):
            visited.append(record)
        elif not definition.paused:
            yield from _counted(record, stretches)
    for due_ms in ahead(visited, starts[0], stretches[-1][1] - 1):
        yield starts[bisect_right(starts, due_ms) - 1], 1


def _counted(
    record: StoredSchedule, stretches: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """The pairs of one schedule."""
    next_ms = record.next_ms
    trigger, (twice, gap) = record.definition.trigger, record.definition.policies.of_hours
    for start_ms, end_ms in stretches:
        if next_ms is None or next_ms >= end_ms:
            continue
        is_first = start_ms == stretches[0][0]
        from_ms = max(start_ms + is_first, next_ms)
        if number := _count(trigger, twice, gap, from_ms, end_ms):
            yield start_ms, number


@lru_cache(100_000)
def _count(trigger: Trigger, twice: Twice | None, gap: Gap, from_ms: int, end_ms: int) -> int:
    """The number of fire times of a day, cached: many schedules ask for the same day."""
    return trigger.count(from_ms - 1, end_ms - 1, twice=twice, gap=gap)
