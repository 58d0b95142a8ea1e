"""What the schedules of a queue will put: a pure look at their ticks."""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING

from shardq.errors import TriggerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardq.schedules.rules import Gap, Twice
    from shardq.schedules.tick import Tick
    from shardq.schedules.trigger import Trigger


def ahead(ticks: Iterable[Tick], after_ms: int, until_ms: int) -> Iterator[int]:
    """When the jobs ahead will be due, epoch milliseconds, first ones first but for their jitter.

    As far as is known now: what an overlap skips is among them, and of fire times that were missed
    none is. A schedule whose trigger fails has none from there on.

    Args:
        ticks: Of the schedules.
        after_ms: Only later ones.
        until_ms: Only those no later.
    """
    # Of a cron a fire time takes 0.1 ms, and many schedules may share one.
    known: dict[tuple[Trigger, Twice | None, Gap], dict[int, int | None]] = {}
    each = []
    for tick in ticks:
        policies = tick.definition.policies
        shared = known.setdefault((tick.definition.trigger, policies.twice, policies.gap), {})
        if not tick.definition.paused:
            each.append(_ahead(tick, after_ms, until_ms, shared))
    return merge(*each)


def _ahead(
    tick: Tick, after_ms: int, until_ms: int, following: dict[int, int | None]
) -> Iterator[int]:
    """Those of one schedule.

    Args:
        following: Fire time -> the next one; what is not known yet is added.
    """
    count, next_ms = tick.definition.count, tick.next_ms
    left = None if count is None else count - tick.fired
    try:
        from_ms = after_ms - tick.definition.policies.latest_ms
        if next_ms is not None and next_ms < from_ms:
            # Nobody was there: they are missed.
            next_ms = _after(tick, from_ms - 1)
        while next_ms is not None and next_ms <= until_ms and left != 0:
            if after_ms < (due_ms := tick.at_ms(next_ms)) <= until_ms:
                yield due_ms
            if next_ms not in following:
                following[next_ms] = _after(tick, next_ms)
            next_ms = following[next_ms]
            left = None if left is None else left - 1
    except TriggerError:
        return


def _after(tick: Tick, time_ms: int) -> int | None:
    found = tick.after(time_ms)
    return None if found is None else found.at_ms
