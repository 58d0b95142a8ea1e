"""The options of a schedule, and how they are checked and previewed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict

from msgspec.structs import replace

from shardq.errors import BadBody, BadSetting, UsageError, shown
from shardq.lifecycle.keyedputs import CHOICES
from shardq.model import names
from shardq.model.message import body_bytes, headers_json
from shardq.model.times import due_ms, duration_ms, duration_text, moment_of
from shardq.schedules.definition import NAME_MAX, ScheduleDefinition, ScheduledPut
from shardq.schedules.origin import HEADERS
from shardq.schedules.policy import Policies, PolicyOptions
from shardq.schedules.starts import begun_at
from shardq.schedules.stored import StoredSchedule
from shardq.schedules.triggers.trigger import Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime, tzinfo

    from apscheduler.triggers.base import BaseTrigger

    from shardq.model.times import Due, Duration

Make: TypeAlias = "Callable[[int], Trigger]"
"""Makes a trigger as of a time, epoch milliseconds; a trigger without a start begins at this
time."""
Retime: TypeAlias = "Callable[[ScheduleDefinition, int], ScheduleDefinition]"
"""Returns a schedule with another trigger as of a time, epoch milliseconds."""

BODY_BYTES_MAX = 40 << 10
_HEADER_BYTES_MAX = 15 << 10
"""Most bytes of a job's headers, besides those that each firing adds: a name and two times."""
_BOUNDS = ("start", "end")
_LOOKED_AT = 100
"""How many fire times are compared for the shortest interval."""


class JobOptions(TypedDict, total=False):
    """The options of the messages that a schedule puts: arguments of `Queue.put`.

    Attributes:
        headers: Names and texts that travel with each message, besides the headers of its firing:
            `schedule`, `schedule-time` and `schedule-previous`.
        priority: 0 is first; below the queue's `bands`.
        group: Messages of one group are delivered one at a time.
        key: A name that no other live message has: while a message has it, no other is put.
        on_conflict: If a message has the key already: `keep` or `replace` that message, or `reject`
            the new one.
        unique_for: How long the key is held after the message's end.
    """

    headers: Mapping[str, str]
    priority: int
    group: str | None
    key: str | None
    on_conflict: Literal["keep", "replace", "reject"]
    unique_for: Duration | None


class ScheduleOptions(PolicyOptions, JobOptions, total=False):
    """The options of a schedule.

    Attributes:
        count: How often the schedule fires; None: without end.
    """

    count: int | None


class ChangeOptions(ScheduleOptions, total=False):
    """The options of a change of a schedule, besides its trigger and its body.

    Attributes:
        start: The schedule fires no sooner than this; an interval fires at this time first. None
            removes the start.
        end: The schedule fires no later than this. None removes the end.
    """

    start: Due | None
    end: Due | None


class Preview(NamedTuple):
    """A fire time ahead.

    Attributes:
        time: The fire time, aware, in the schedule's zone.
        due: When its message will be due: later than the fire time by jitter and spread.
        why: The reason if the time is unusual; else empty.
    """

    time: datetime
    due: datetime
    why: str


def schedule_name(name: object) -> str:
    """A schedule's name.

    Raises:
        BadName: If it is not 1 to 200 printable characters.
    """
    return names.label(name, what="schedule name", most=NAME_MAX)


def chosen(
    trigger: BaseTrigger | Trigger | None = None,
    *,
    every: Duration | None = None,
    cron: str | None = None,
    tz: str | tzinfo | None = None,
    start: Due | None = None,
    end: Due | None = None,
    at_start: bool = False,
) -> Make | None:
    """The trigger given in one of its three ways; None if none is given.

    Raises:
        UsageError: If more than one is given.
    """
    ways = [one for one in (trigger, every, cron) if one is not None]
    if len(ways) > 1:
        raise UsageError("give every, cron or a trigger, one of them.")
    if every is not None and tz is not None:
        raise UsageError("tz has no use with every: an interval is the same in every zone.")
    if not ways:
        return None
    if isinstance(trigger, Trigger):
        if (tz, start, end) != (None, None, None):
            raise _complete()
        return lambda _now_ms: trigger
    begun = None if trigger is None else begun_at(trigger)

    def make(now_ms: int) -> Trigger:
        if every is not None:
            return Trigger.every(every, start=start, end=end, at_start=at_start, now_ms=now_ms)
        if cron is not None:
            return Trigger.cron(cron, tz=tz or "UTC", start=start, end=end)
        of = trigger if begun is None else begun(now_ms)
        return Trigger.of(of, tz=tz, start=start, end=end, now_ms=now_ms)

    return make


def retimed(
    trigger: BaseTrigger | Trigger | None = None,
    *,
    every: Duration | None = None,
    cron: str | None = None,
    tz: str | tzinfo | None = None,
    bounds: Mapping[str, Due | None],
) -> Retime | None:
    """A function that gives a schedule another trigger, zone, start or end; None if none is given.

    Parts that are not given stay; a trigger of APScheduler has its own zone, and may have bounds.

    Args:
        trigger: A trigger of APScheduler; or instead:
        every: An interval.
        cron: A cron text.
        tz: The zone.
        bounds: `start` and `end`, as far as they are given; None removes a bound.

    Raises:
        UsageError: If something cannot be used.
    """
    make = None
    if (trigger, every, cron) != (None, None, None):
        if isinstance(trigger, Trigger) and bounds:
            raise _complete()
        make = chosen(trigger, every=every, cron=cron, tz=tz)
    elif tz is None and not bounds:
        return None
    given = {name: None if at is None else due_ms(at, name=name) for name, at in bounds.items()}

    def retimed_at(now: ScheduleDefinition, at_ms: int) -> ScheduleDefinition:
        made, stays = now.trigger, dict(zip(_BOUNDS, now.trigger.bounds(now.made_ms), strict=True))
        if make is not None:
            made = make(at_ms)
            own = zip(_BOUNDS, made.bounds(at_ms), strict=True)
            stays |= {name: bound_ms for name, bound_ms in own if bound_ms is not None}
        zone = now.trigger.zone if cron is not None and tz is None else tz
        if zone is not None:
            made = made.in_zone(zone)
        bounded = stays | given
        made = made.within(bounded["start"], bounded["end"], at_ms)
        return replace(now, trigger=made, made_ms=at_ms)

    def change(now: ScheduleDefinition, now_ms: int) -> ScheduleDefinition:
        if isinstance(trigger, Trigger):
            return replace(now, trigger=trigger, made_ms=now_ms)
        # A change that is made again, as its answer was lost, must not begin the interval anew.
        as_made = retimed_at(now, now.made_ms)
        may_begin = make is not None or "start" in given
        is_new = may_begin and as_made.trigger != now.trigger
        return retimed_at(now, now_ms) if is_new else as_made

    return change


def _complete() -> UsageError:
    return UsageError("a Trigger has its zone, start and end; make another one.")


def draft(
    make: Make,
    body: bytes | str,
    options: Mapping[str, Any],
    now_ms: int,
    *,
    name: str | None,
    revision: int = 0,
) -> ScheduleDefinition:
    """The schedule for these options.

    Args:
        make: Its trigger.
        body: The body of its messages.
        options: Options, by their names in `ScheduleOptions`.
        now_ms: Now, epoch milliseconds.
        name: Its name; None: its trigger as text.
        revision: The revision of the code that declares it.

    Raises:
        UsageError: If something cannot be used.
    """
    trigger = make(now_ms)
    name = schedule_name(str(trigger) if name is None else name)
    made = ScheduleDefinition(
        name, trigger, ScheduledPut(content_of(body)), revision=revision, made_ms=now_ms
    )
    return applied(made, options)


def content_of(body: bytes | str) -> bytes:
    """A body as bytes.

    Raises:
        BadBody: If it is no body, or larger than 40 KiB: each firing writes it anew.
    """
    content = body_bytes(body)
    if len(content) > BODY_BYTES_MAX:
        raise BadBody(
            f"a body of {len(content):,} bytes is larger than the {BODY_BYTES_MAX:,} that a "
            f"schedule puts; store it elsewhere, and let it put its address."
        )
    return content


def applied(definition: ScheduleDefinition, options: Mapping[str, Any]) -> ScheduleDefinition:
    """A schedule with other options.

    Raises:
        UsageError: If one is unknown or cannot be used, or two contradict each other.
    """
    whose = f"schedule {definition.name!r}"
    policies = definition.policies.with_(
        {name: value for name, value in options.items() if name not in _OTHERS}, whose
    )
    _check_clock(definition.trigger, policies, options, whose)
    job = _applied_job(definition.job, options, whose)
    own, was_queued = f"schedule {definition.name}", definition.policies.overlap == "queue"
    if policies.overlap == "queue" and job.group is None:
        job = replace(job, group=own)
    elif policies.overlap != "queue" and was_queued and job.group == own and "group" not in options:
        job = replace(job, group=None)
    count = options.get("count", definition.count)
    if count is not None and (type(count) is not int or count < 1):
        raise BadSetting(f"{whose}: count must be 1 or more, not {shown(count)}.")
    if job.key is not None and policies.overlap != "allow":
        raise BadSetting(
            f"{whose}: key and overlap contradict each other: with a key nothing is put while "
            f"a message has it; leave out one of them."
        )
    return replace(definition, policies=policies, job=job, count=count)


def _check_clock(
    trigger: Trigger, policies: Policies, options: Mapping[str, Any], whose: str
) -> None:
    """Refuse options about local times for an interval."""
    usual = Policies()
    for name in ("twice", "gap"):
        is_chosen = name in options and getattr(policies, name) != getattr(usual, name)
        if is_chosen and trigger.is_interval:
            raise BadSetting(
                f"{whose}: {name} has no use with an interval, which no change of clocks touches; "
                f"leave it out."
            )


def _applied_job(job: ScheduledPut, options: Mapping[str, Any], whose: str) -> ScheduledPut:
    given = {name: options[name] for name in JobOptions.__annotations__ if name in options}
    if not (type(priority := given.get("priority", 0)) is int and priority >= 0):
        raise BadSetting(f"{whose}: priority must be 0 or more, not {shown(priority)}.")
    headers = dict(given.get("headers") or {})
    if (size := len((headers_json(headers) or "").encode())) > _HEADER_BYTES_MAX:
        raise BadSetting(
            f"{whose}: headers of {size:,} bytes leave no room for the schedule's own; choose at "
            f"most {_HEADER_BYTES_MAX:,}."
        )
    if own := set(HEADERS) & headers.keys():
        raise BadSetting(f"{whose}: header {own.pop()!r} is the schedule's own.")
    if given.get("on_conflict", "keep") not in CHOICES[:3]:
        raise BadSetting(
            f"{whose}: on_conflict must be {', '.join(CHOICES[:3])}, not "
            f"{shown(given['on_conflict'])}."
        )
    for name in ("key", "group"):
        if given.get(name) is not None:
            names.label(given[name], what=name)
    if "unique_for" in given:
        unique_for = given.pop("unique_for")
        given["unique_for_ms"] = (
            None if unique_for is None else duration_ms(unique_for, name="unique_for")
        )
    if "headers" in given:
        given["headers"] = headers
    return replace(job, **given)


_OTHERS = (*JobOptions.__annotations__, "count")


def anchored(
    asked: ScheduleDefinition, make: Make, there: ScheduleDefinition
) -> ScheduleDefinition:
    """The requested schedule; if its trigger has no start, it begins when the stored one began."""
    return replace(asked, trigger=make(there.made_ms), made_ms=there.made_ms)


def unlike(there: ScheduleDefinition, asked: ScheduleDefinition, make: Make) -> list[str]:
    """The options in which a requested schedule differs from the stored one, except a begin."""
    if replace(asked, made_ms=there.made_ms).is_same(there):
        return []
    return anchored(asked, make, there).unlike(there)


def has_ended(definition: ScheduleDefinition, make: Make) -> bool:
    """True if all fire times of a new schedule are past, though it had some.

    Args:
        definition: The schedule.
        make: Its trigger: an interval without a start would have had some if it was made earlier.

    Raises:
        TriggerError: If a user's trigger fails.
    """
    if StoredSchedule(definition, None).after(definition.made_ms) is not None:
        return False
    return StoredSchedule(replace(definition, trigger=make(0)), None).after(-1) is not None


def check(definition: ScheduleDefinition, now_ms: int) -> None:
    """Refuse a schedule that could not do its work.

    Raises:
        UsageError: If it never fires, or its delay exceeds the time between two fire times.
    """
    definition.trigger.check(now_ms)
    latest_ms = definition.policies.latest_ms
    if not latest_ms:
        return
    record = StoredSchedule(definition, None).aimed(now_ms)
    for _ in range(_LOOKED_AT):
        if record.next_ms is None:
            return
        after = record.aimed(record.next_ms)
        if after.next_ms is not None and after.next_ms - record.next_ms < latest_ms:
            raise BadSetting(
                f"schedule {definition.name!r}: {_late_text(definition.policies)} longer than the "
                f"{duration_text(after.next_ms - record.next_ms)} between two fire times; choose "
                f"less."
            )
        record = after


def _late_text(policies: Policies) -> str:
    """The longest delay of a firing, and its reason."""
    jitter_ms, spread_ms = policies.jitter_ms, policies.spread_ms
    if jitter_ms and spread_ms:
        return f"jitter and spread, together {duration_text(jitter_ms + spread_ms)}, are"
    if jitter_ms:
        return f"a jitter of {duration_text(jitter_ms)} is"
    return f"a spread of {duration_text(spread_ms)} is"


def previewed(
    definition: ScheduleDefinition, after_ms: int, count: int, *, fired: int = 0
) -> list[Preview]:
    """The next fire times of a schedule.

    Args:
        definition: The schedule.
        after_ms: The start, epoch milliseconds.
        count: How many; fewer are returned if the schedule ends before.
        fired: How often the schedule has fired.
    """
    made: list[Preview] = []
    if definition.count is not None:
        count = min(count, definition.count - fired)
    record = StoredSchedule(definition, None)
    zone = definition.trigger.tzinfo
    found = record.after(after_ms)
    while found is not None and len(made) < count:
        due = moment_of(record.at_ms(found.at_ms))
        made.append(
            Preview(moment_of(found.at_ms).astimezone(zone), due.astimezone(zone), found.why)
        )
        found = record.after(found.at_ms)
    return made
