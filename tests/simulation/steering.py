"""The rules of what people say to a queue: cancel, purge and pause are heeded."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from operator import attrgetter
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
"""How long a step may take to begin that acts on what another thread of its process has read, or
the step before, where no call takes long."""
_SLOW_US = 1_000_000
_STEP_CALLS = 20
"""So many calls one step makes as it catches up."""


def cancelled(case: Case) -> Iterator[Breach]:
    """What was cancelled more than 2 s before its due is never delivered."""
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
    """Once a purge is known, what had entered before it is not delivered."""
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
    """Once a pause is known, nothing is handed out until it is over."""
    for one in case.history.deliveries:
        if _is_known(case, one, lambda heard: heard.paused):
            yield Breach(
                "paused",
                f"m{one.token} at {clock_of(case, one.begun_us)} by {one.process}",
                one.token,
            )


def _has_purged(entered_us: int, heard: Heard) -> bool:
    return heard.purged_before_us > entered_us


def _is_known(case: Case, one: Delivery, is_said: Callable[[Heard], bool]) -> bool:
    """True if a process that handed a message out knew of what forbids it, or had to.

    It reads the settings every 3 s, and so knows of it 5 s later, where no call has failed
    meanwhile or was slow, nor did it stand still.
    """
    history, us = case.history, one.begun_us
    heard = [told for told in history.heard.get(one.process, ()) if told.us <= us]
    # Since when it has been told of it, and when it was last told otherwise.
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
    # All of what was said since, for it may have been taken back and said again.
    first = bisect_right(history.said, us - TOLD_US, key=_us_of)
    last = bisect_right(history.said, us, key=_us_of)
    lately = history.said[max(first - 1, 0) : last]
    if not first or not all(map(is_said, lately)):
        return False
    return not case.kept_up(one.process, max(lately[0].us, told_us), us)


def _begins_us(case: Case) -> int:
    """How much longer it may take until what is named is let begin, which holds up all that is due.

    Of a call that is slower by less than a second nobody notes it.
    """
    weather = case.history.plan.weather
    is_slow = case.history.errands and {"slow", "slow_lwt"} & weather.keys()
    return min(int(weather["slow_us"]), _SLOW_US) if is_slow else 0
