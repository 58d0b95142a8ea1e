"""What can be chosen of a schedule, and how it is checked and previewed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypedDict

from shardq.errors import BadName, BadSetting, UsageError, shown
from shardq.model import names
from shardq.model.times import duration_text, moment_of
from shardq.schedules.definition import NAME_MAX
from shardq.schedules.policy import PolicyOptions
from shardq.schedules.tick import Tick
from shardq.schedules.trigger import Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime, tzinfo

    from apscheduler.triggers.base import BaseTrigger

    from shardq.model.times import Due, Duration
    from shardq.schedules.definition import Definition

Make: TypeAlias = "Callable[[int], Trigger]"
"""Makes a trigger as of a time, epoch milliseconds: one without a start of its own begins there."""

_LOOKED_AT = 100
"""How many fire times are looked at for the shortest time between two."""


class JobOptions(TypedDict, total=False):
    """What can be chosen of what a schedule puts: arguments of `Queue.put`.

    Attributes:
        headers: Names and texts that travel with each message, beside those that say which firing
            it is: `schedule`, `schedule-time` and `schedule-previous`.
        priority: 0 is first; below the queue's `bands`.
        group: Messages of one group are delivered one at a time.
        key: A name that no other live message has: while one has it, nothing more is put.
        on_conflict: What to do where a message has the key: `keep` it, `replace` it, or neither,
            as `reject`.
        unique_for: How long the key is held after the message's end.
    """

    headers: Mapping[str, str]
    priority: int
    group: str | None
    key: str | None
    on_conflict: Literal["keep", "replace", "reject"]
    unique_for: Duration | None


class ScheduleOptions(PolicyOptions, JobOptions, total=False):
    """What can be chosen of a schedule.

    Attributes:
        count: How often it fires; None: for ever.
    """

    count: int | None


class Preview(NamedTuple):
    """A fire time ahead.

    Attributes:
        time: The fire time, aware, in the schedule's zone.
        due: When its message will be due: later than that by jitter and spread.
        why: What is unusual about it; empty where nothing is.
    """

    time: datetime
    due: datetime
    why: str


def schedule_name(name: object) -> str:
    """A schedule's name.

    Raises:
        BadName: If it is not 1 to 200 printable characters.
    """
    if len(names.label(name, what="schedule name")) > NAME_MAX:
        raise BadName(f"schedule name {shown(name)} must be at most {NAME_MAX} characters.")
    return str(name)


def chosen(
    trigger: BaseTrigger | Trigger | None = None,
    *,
    every: Duration | None = None,
    cron: str | None = None,
    tz: str | tzinfo | None = None,
    start: Due | None = None,
    end: Due | None = None,
) -> Make | None:
    """The trigger that was chosen in one of its three ways; None where none was.

    Raises:
        UsageError: If more than one was.
    """
    ways = [one for one in (trigger, every, cron) if one is not None]
    if len(ways) > 1:
        raise UsageError("give every, cron or a trigger, one of them.")
    if not ways and (tz, start, end) != (None, None, None):
        raise UsageError("tz, start and end go with every, cron or a trigger; give that as well.")
    if every is not None and tz is not None:
        raise UsageError("tz has no use with every: an interval is the same in every zone.")
    if not ways:
        return None
    if isinstance(trigger, Trigger):
        if (tz, start, end) != (None, None, None):
            raise UsageError("a Trigger has its zone, start and end; make another one.")
        return lambda _now_ms: trigger

    def make(now_ms: int) -> Trigger:
        if every is not None:
            return Trigger.every(every, start=start, end=end, now_ms=now_ms)
        if cron is not None:
            return Trigger.cron(cron, tz=tz or "UTC", start=start, end=end)
        return Trigger.of(trigger, tz=tz, start=start, end=end, now_ms=now_ms)

    return make


def check(definition: Definition, now_ms: int) -> None:
    """Refuse a schedule that could not do what it is to do.

    Raises:
        UsageError: If it never fires, or is put off by longer than the time between two fire times.
    """
    definition.trigger.check(now_ms)
    latest_ms = definition.policies.latest_ms
    if not latest_ms:
        return
    tick = Tick(definition, None).aimed(now_ms)
    for _ in range(_LOOKED_AT):
        if tick.next_ms is None:
            return
        after = tick.aimed(tick.next_ms)
        if after.next_ms is not None and after.next_ms - tick.next_ms < latest_ms:
            policies = definition.policies
            whole = duration_text(policies.jitter_ms + policies.spread_ms)
            raise BadSetting(
                f"schedule {definition.name!r}: jitter and spread, together {whole}, are longer "
                f"than the {duration_text(after.next_ms - tick.next_ms)} between two fire times; "
                f"choose less."
            )
        tick = after


def previewed(
    definition: Definition, after_ms: int, count: int, *, fired: int = 0
) -> list[Preview]:
    """The next fire times of a schedule.

    Args:
        definition: It.
        after_ms: From when on, epoch milliseconds.
        count: How many; fewer where it does not fire as often any more.
        fired: How often it has fired.
    """
    made: list[Preview] = []
    if definition.count is not None:
        count = min(count, definition.count - fired)
    tick = Tick(definition, None)
    zone = definition.trigger.tzinfo
    found = tick.after(after_ms)
    while found is not None and len(made) < count:
        due = moment_of(tick.at_ms(found.at_ms))
        made.append(
            Preview(moment_of(found.at_ms).astimezone(zone), due.astimezone(zone), found.why)
        )
        found = tick.after(found.at_ms)
    return made
