"""The jobs that the schedules of a queue will put: a pure look at their records."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from heapq import merge
from typing import TYPE_CHECKING

from shardq.errors import TriggerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardq.schedules.stored import StoredSchedule
    from shardq.schedules.triggers.fire import Gap, Twice
    from shardq.schedules.triggers.trigger import Trigger


def ahead(records: Iterable[StoredSchedule], after_ms: int, until_ms: int) -> Iterator[int]:
    """The dues of the jobs ahead, epoch milliseconds, in order except for their jitter.

    Fire times that an overlap will skip are among them, missed ones are not. A schedule whose
    trigger fails has no dues from then on.

    Args:
        records: The records of the schedules.
        after_ms: Only later dues.
        until_ms: Only dues up to here, included.
    """
    # Share fire times of equal triggers: a cron's takes up to 0.1 ms.
    known: dict[tuple[Trigger, Twice | None, Gap], dict[int, int | None]] = {}
    each = []
    for record in records:
        policies = record.definition.policies
        shared = known.setdefault((record.definition.trigger, policies.twice, policies.gap), {})
        if not record.definition.paused:
            each.append(_ahead(record, after_ms, until_ms, shared))
    return merge(*each)


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


def _ahead(
    record: StoredSchedule, after_ms: int, until_ms: int, following: dict[int, int | None]
) -> Iterator[int]:
    """The dues of one schedule.

    Args:
        following: Fire time -> the next fire time; new ones are added.
    """
    count, next_ms = record.definition.count, record.next_ms
    left = None if count is None else count - record.fired
    try:
        from_ms = after_ms - record.definition.policies.latest_ms
        if next_ms is not None and next_ms < from_ms:
            # Skip earlier fire times, which are missed.
            next_ms = _after(record, from_ms - 1)
        while next_ms is not None and next_ms <= until_ms and left != 0:
            if after_ms < (due_ms := record.at_ms(next_ms)) <= until_ms:
                yield due_ms
            if next_ms not in following:
                following[next_ms] = _after(record, next_ms)
            next_ms = following[next_ms]
            left = None if left is None else left - 1
    except TriggerError:
        return


def _after(record: StoredSchedule, time_ms: int) -> int | None:
    found = record.after(time_ms)
    return None if found is None else found.at_ms
