"""The rules of commands to a queue: cancel, purge and pause are heeded."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING

from shardq.model.ids import birth_us
from simulation.case import AHEAD_US, TOLD_US, Breach
from simulation.repeats import repaired_rows
from simulation.stories import clock_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulation.case import Case
    from simulation.history import Delivery, Heard

_us_of = attrgetter("us")

_ACTS_US = 200_000
"""The longest time from a read of the queue's record, by any thread, to a step that acts on it
if no call is slow."""
_SLOW_US = 1_000_000
_STEP_CALLS = 20
"""The most calls that one step makes when it catches up."""


def cancelled(case: Case) -> Iterator[Breach]:
    """A message cancelled over 2 s before its due is never delivered."""
    for token, cancel in case.history.cancels.items():
        put = case.history.puts[token]
        if cancel.outcome != "cancelled" or cancel.ended_us is None or put.row is None:
            continue
        if cancel.ended_us > put.row.due_ms * 1_000 - AHEAD_US - 20_000:
            continue
        after = [one for one in case.by_token[token] if one.begun_us > cancel.ended_us]
        if after and not repaired_rows(case, put, after[0].begun_us):
            yield Breach("cancelled", f"m{token} was delivered all the same", token)


def purged(case: Case) -> Iterator[Breach]:
    """A process that knows of a purge delivers no message that entered before it."""
    for one in case.history.deliveries:
        entered_us = birth_us(one.row.first or one.row.id)
        if _is_known(case, one, partial(_has_purged, entered_us)):
            yield Breach(
                "purged",
                f"m{one.token} was delivered at {clock_of(case, one.begun_us)} by {one.process} "
                f"after a purge",
                one.token,
            )


def paused(case: Case) -> Iterator[Breach]:
    """A process that knows of a pause hands out nothing that it holds back until it ends."""
    for one in case.history.deliveries:
        if _is_known(case, one, methodcaller("pauses", one.row)):
            yield Breach(
                "paused",
                f"m{one.token} at {clock_of(case, one.begun_us)} by {one.process}",
                one.token,
            )


def _has_purged(entered_us: int, heard: Heard) -> bool:
    return heard.purged_before_us > entered_us


def _is_known(case: Case, one: Delivery, is_said: Callable[[Heard], bool]) -> bool:
    """True if a process knew, or had to know, of a record that forbids its delivery.

    A process rereads the settings every 3 s. So it must know of a change after 5 s, unless a call
    failed or was slow, or it stood still.
    """
    history, us = case.history, one.begun_us
    heard = [told for told in history.heard.get(one.process, ()) if told.us <= us]
    # When the process first read that record, and when it last read another one.
    known_us = told_us = 0
    for told in heard:
        if is_said(told):
            known_us = known_us or told.us
        else:
            known_us, told_us = 0, told.us
    acts_us = _ACTS_US + _STEP_CALLS * history.plan.weather["spread_us"] + _begins_us(case)
    is_acted_on = us > known_us + acts_us and not case.kept_up(one.process, known_us, us)
    if known_us and is_acted_on:
        return True
    # All versions since: the command may have been withdrawn and given again.
    first = bisect_right(history.said, us - TOLD_US, key=_us_of)
    last = bisect_right(history.said, us, key=_us_of)
    lately = history.said[max(first - 1, 0) : last]
    if not first or not all(map(is_said, lately)):
        return False
    return not case.kept_up(one.process, max(lately[0].us, told_us), us)


def _begins_us(case: Case) -> int:
    """The extra time that messages with keys need to begin, which delays all due messages.

    Calls that are slower by less than a second are not recorded.
    """
    weather = case.history.plan.weather
    is_slow = case.history.errands and {"slow", "slow_lwt"} & weather.keys()
    return min(int(weather["slow_us"]), _SLOW_US) if is_slow else 0
