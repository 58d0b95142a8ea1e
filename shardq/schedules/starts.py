"""The starts that triggers of APScheduler fill in themselves, if they are made without a start.

Processes that run the same line of code get triggers with different filled-in starts. The
schedule's own begin replaces these starts, so that all processes mean the same schedule.
"""

from __future__ import annotations

from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shardq.clock import machine_us
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

_JUST_NOW = timedelta(minutes=1)
"""A trigger that is given to a schedule was made no longer ago than this."""


def begun_at(trigger: Any) -> Callable[[int], Any]:
    """A function that makes a trigger as of a time, if the trigger was given no start.

    Args:
        trigger: A new trigger of APScheduler; any other object is returned as it is.

    Returns:
        A function of that time, epoch milliseconds.
    """
    # Import here, because this takes longer than the import of all of shardq.
    from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
    from apscheduler.triggers.combining import AndTrigger, OrTrigger
    from apscheduler.triggers.interval import IntervalTrigger

    now = moment_of(machine_us() // 1_000)
    kind = type(trigger)
    if kind in (AndTrigger, OrTrigger) and isinstance(trigger.triggers, list | tuple):
        parts = [begun_at(one) for one in trigger.triggers]
        return lambda at_ms: _with(trigger, triggers=[part(at_ms) for part in parts])
    if kind is IntervalTrigger and _is_filled_in(trigger.start_date - trigger.interval, now):
        return lambda at_ms: _with(
            trigger, start_date=moment_of(at_ms).astimezone(trigger.timezone) + trigger.interval
        )
    if kind is CalendarIntervalTrigger and trigger.start_date == now.astimezone().date():
        return lambda at_ms: _with(
            trigger, start_date=moment_of(at_ms).astimezone(trigger.timezone).date()
        )
    return lambda _at_ms: trigger


def _is_filled_in(begun: datetime, now: datetime) -> bool:
    """True if an interval's start was filled in: it is just now, with a clock's microseconds."""
    age = now - begun
    return abs(age) < _JUST_NOW and (begun.microsecond != 0 or not age)


def _with(trigger: Any, **changed: Any) -> Any:
    made = copy(trigger)
    for name, value in changed.items():
        setattr(made, name, value)
    return made
