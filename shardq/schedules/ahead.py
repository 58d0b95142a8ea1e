"""The jobs that the schedules of a queue will put: a pure look at their records."""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING

from shardq.errors import TriggerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
