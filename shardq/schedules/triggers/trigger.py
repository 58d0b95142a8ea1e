"""When a schedule fires."""

from __future__ import annotations

from datetime import time, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import replace

from shardq.errors import BadSetting, TriggerError, UsageError, shown
from shardq.model.times import due_ms, duration_ms, iso
from shardq.schedules.triggers.calendar import CalendarInterval
from shardq.schedules.triggers.clocks import Local
from shardq.schedules.triggers.cron import Cron
from shardq.schedules.triggers.fire import Fire
from shardq.schedules.triggers.foreign import Foreign
from shardq.schedules.triggers.rules import AllOf, AnyOf, Bounded, Combined, Every, Once, Rule
from shardq.schedules.triggers.zones import zone_name, zone_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.model.times import Due, Duration

__all__ = ["Fire", "Trigger"]

COUNTED_MAX = 10_000


class Trigger:
    """When a schedule fires: a value, equal to another that is stored as the same JSON.

    Made by `every`, `cron`, `of` and `from_json`. It remembers nothing: the fire time after an
    instant is always the same.
    """

    __slots__ = ("_rule",)

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    @classmethod
    def every(
        cls,
        interval: Duration,
        *,
        start: Due | None = None,
        end: Due | None = None,
        at_start: bool = False,
        now_ms: int,
    ) -> Trigger:
        """Fires each time an interval has passed, whatever the clocks show.

        Args:
            interval: One second or more.
            start: The first fire time; None: one interval from now.
            end: Nothing fires after this time.
            at_start: True to fire first now; instead of a start.
            now_ms: Epoch milliseconds.

        Raises:
            UsageError: If the interval is too short, a time cannot be read, or both a start and
                `at_start` are given.
        """
        every_ms = duration_ms(interval, name="interval")
        if at_start and start is not None:
            raise BadSetting("give start or at_start, one of them: at_start fires right away.")
        first_ms = now_ms if at_start else now_ms + every_ms
        if start is not None:
            first_ms = due_ms(start, name="start")
        return cls(_bounded(Every(every_ms, first_ms), None, _bound_ms(end, "end")))

    @classmethod
    def cron(
        cls,
        text: str,
        *,
        tz: str | tzinfo = "UTC",
        start: Due | None = None,
        end: Due | None = None,
    ) -> Trigger:
        """Fires whenever the clock of a zone shows a time that fits a cron.

        Args:
            text: Five fields as cron(8) reads them, six with seconds first, or a macro, `@hourly`
                say.
            tz: The zone, `Europe/Berlin` or an object.
            start: Nothing fires before this time.
            end: Nothing fires after this time.

        Raises:
            UsageError: If the text, the zone or a time cannot be read; the error names the field.
        """
        rule = Local(Cron.of(text), zone_name(zone_of(tz)))
        return cls(_bounded(rule, _bound_ms(start, "start"), _bound_ms(end, "end")))

    @classmethod
    def of(
        cls,
        trigger: Any,
        *,
        tz: str | tzinfo | None = None,
        start: Due | None = None,
        end: Due | None = None,
        now_ms: int,
    ) -> Trigger:
        """Fires when a trigger of APScheduler does, of its own classes or a user's.

        APScheduler's interval and calendar interval triggers fill in their start when they are
        made.

        Args:
            trigger: A trigger of a subclass of `BaseTrigger`, without jitter.
            tz: The zone of the wall clock; None: the trigger's own zone.
            start: Nothing fires before this time.
            end: Nothing fires after this time.
            now_ms: Epoch milliseconds; a user's trigger is tried from this time on.

        Raises:
            UsageError: If it cannot be stored.
        """
        zone = None if tz is None else zone_of(tz)
        rule = _rule_of(trigger, zone, now_ms)
        return cls(_bounded(rule, _bound_ms(start, "start"), _bound_ms(end, "end")))

    @classmethod
    def from_json(cls, given: object) -> Trigger:
        """The trigger whose `to_json` was stored.

        Raises:
            UsageError: If it is not the JSON of a trigger, or the trigger's class or zone is gone.
        """
        try:
            return cls(convert(given, Rule))
        except ValidationError as error:
            if isinstance(error.__cause__, UsageError):
                raise error.__cause__ from None
            raise TriggerError(f"{shown(given)} is no stored trigger: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The trigger as JSON can hold it; times are epoch milliseconds."""
        made: dict[str, Any] = to_builtins(self._rule)
        return made

    @property
    def zone(self) -> str:
        """The zone of the wall clock, `UTC` without one."""
        return self._rule.zone

    @property
    def is_interval(self) -> bool:
        """True if it is an interval, which no wall clock touches."""
        return isinstance(self._unbounded, Every)

    @property
    def is_counted(self) -> bool:
        """True if `count` need not ask for each fire time: for an interval or a cron."""
        return isinstance(self._unbounded, Every | Local)

    @property
    def _unbounded(self) -> Rule:
        return self._rule.rule if isinstance(self._rule, Bounded) else self._rule

    def bounds(self, made_ms: int) -> tuple[int | None, int | None]:
        """The given start and end, epoch milliseconds; None if not given.

        Args:
            made_ms: When the trigger was made; an interval that began then was given no start.
        """
        rule, start_ms, end_ms = self._unbounded, None, None
        if isinstance(self._rule, Bounded):
            start_ms, end_ms = self._rule.start_ms, self._rule.end_ms
        if isinstance(rule, Every) and rule.first_ms not in (made_ms, made_ms + rule.every_ms):
            start_ms = max(rule.first_ms, start_ms or 0)
        return start_ms, end_ms

    def within(self, start_ms: int | None, end_ms: int | None, made_ms: int) -> Trigger:
        """The trigger with a new start and end; an interval without a start began at `made_ms`."""
        rule = self._unbounded
        if isinstance(rule, Every):
            first_ms = made_ms if rule.first_ms == made_ms else made_ms + rule.every_ms
            first_ms = first_ms if start_ms is None else start_ms
            rule, start_ms = Every(rule.every_ms, first_ms), None
        return Trigger(_bounded(rule, start_ms, end_ms))

    def starts_otherwise(self, other: Trigger) -> bool:
        """True if another trigger is the same except for its start."""
        own, another = (one.within(None, one.bounds(0)[1], 0) for one in (self, other))
        return self != other and own == another

    def in_zone(self, tz: str | tzinfo) -> Trigger:
        """The same trigger by the wall clock of another zone.

        Raises:
            BadSetting: If there is no such zone, or the trigger has no wall clock.
        """
        name = zone_name(zone_of(tz))
        made = Trigger(_rezoned(self._rule, name))
        if made == self and self.zone != name:
            raise BadSetting(f"tz has no use with {self}: it is the same in every zone.")
        return made

    @property
    def tzinfo(self) -> tzinfo:
        """The zone in which to show times."""
        return zone_of(self._rule.zone)

    def after(
        self,
        after_ms: int,
        *,
        twice: Literal["first", "last", "both"] | None = None,
        gap: Literal["shift", "skip"] = "shift",
    ) -> Fire | None:
        """The first fire time after an instant.

        Args:
            after_ms: Epoch milliseconds, excluded.
            twice: The instants at which a repeated local time fires. None: both for a cron whose
                minutes or hours begin with `*`, the first for any other.
            gap: `shift`: a local time that does not exist fires as long after the start of the gap
                as if no clock had been changed; if another time fires then anyway, both fire once.
                `skip`: the time does not fire.

        Returns:
            None if it never fires again, or not for fifty years.

        Raises:
            TriggerError: If a trigger of a user's class fails or goes backwards, or triggers that
                have to fire together do not.
        """
        return self._rule.after(after_ms, twice=twice, gap=gap)

    def fires(
        self,
        after_ms: int,
        until_ms: int,
        *,
        twice: Literal["first", "last", "both"] | None = None,
        gap: Literal["shift", "skip"] = "shift",
    ) -> Iterator[Fire]:
        """Each fire time later than `after_ms`, up to `until_ms` inclusive; see `after`."""
        while (fire := self.after(after_ms, twice=twice, gap=gap)) and fire.at_ms <= until_ms:
            yield fire
            after_ms = fire.at_ms

    def count(
        self,
        after_ms: int,
        until_ms: int,
        *,
        twice: Literal["first", "last", "both"] | None = None,
        gap: Literal["shift", "skip"] = "shift",
    ) -> int:
        """The number of fire times after an instant, to another, inclusive.

        A trigger of a user's class, or of several parts, is asked for each fire time, so at most
        `COUNTED_MAX` are counted. A cron takes some 0.1 ms for each day that fits.
        """
        rule = self._unbounded
        if isinstance(self._rule, Bounded):
            after_ms = max(after_ms, (self._rule.start_ms or 0) - 1)
            until_ms = min(until_ms, until_ms if self._rule.end_ms is None else self._rule.end_ms)
        if after_ms >= until_ms:
            return 0
        if isinstance(rule, Every):
            return rule.count(after_ms, until_ms)
        if isinstance(rule, Local):
            return rule.count(after_ms, until_ms, twice=twice, gap=gap)
        fires = self.fires(after_ms, until_ms, twice=twice, gap=gap)
        return sum(1 for _ in islice(fires, COUNTED_MAX))

    def check(self, now_ms: int) -> None:
        """Refuse a trigger that never fires.

        Args:
            now_ms: Epoch milliseconds.

        Raises:
            TriggerError: If its end is before its start, all its fire times are past, or it has no
                fire times.
        """
        _check_bounds(self._rule)
        if self.after(now_ms) is not None:
            return
        if self.after(-1) is not None:
            raise TriggerError(f"{self} would never fire: all its times are before {iso(now_ms)}.")
        raise TriggerError(f"{self} would never fire: no time fits it.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trigger) and self._rule == other._rule

    def __hash__(self) -> int:
        return hash(self._rule)

    def __str__(self) -> str:
        return str(self._rule)

    def __repr__(self) -> str:
        return f"<Trigger {self}>"


def _bound_ms(bound: Due | None, name: str) -> int | None:
    return None if bound is None else due_ms(bound, name=name)


def _bounded(rule: Rule, start_ms: int | None, end_ms: int | None) -> Rule:
    """A rule within its bounds, if any."""
    if isinstance(rule, Bounded):
        starts = [at for at in (rule.start_ms, start_ms) if at is not None]
        ends = [at for at in (rule.end_ms, end_ms) if at is not None]
        return Bounded(rule.rule, max(starts, default=None), min(ends, default=None))
    return rule if start_ms is None and end_ms is None else Bounded(rule, start_ms, end_ms)


def _rezoned(rule: Rule, zone: str) -> Rule:
    if isinstance(rule, Combined):
        return replace(rule, parts=tuple(_rezoned(part, zone) for part in rule.parts))
    if isinstance(rule, Bounded):
        return replace(rule, rule=_rezoned(rule.rule, zone))
    return replace(rule, zone=zone) if isinstance(rule, Local | Foreign) else rule


def _check_bounds(rule: Rule) -> None:
    if isinstance(rule, Combined):
        for part in rule.parts:
            _check_bounds(part)
    if not isinstance(rule, Bounded) or rule.end_ms is None:
        return
    first_ms = rule.start_ms
    if isinstance(rule.rule, Every):
        first_ms = max(rule.rule.first_ms, first_ms or 0)
    if first_ms is not None and rule.end_ms < first_ms:
        raise TriggerError(
            f"{rule.rule} would never fire: its end, {iso(rule.end_ms)}, is before its start, "
            f"{iso(first_ms)}."
        )


def _rule_of(trigger: Any, zone: tzinfo | None, now_ms: int) -> Rule:
    # Import here, because this takes longer than the import of all of shardq.
    from apscheduler.triggers.base import BaseTrigger
    from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
    from apscheduler.triggers.combining import AndTrigger, OrTrigger
    from apscheduler.triggers.cron import CronTrigger
    from apscheduler.triggers.date import DateTrigger
    from apscheduler.triggers.interval import IntervalTrigger

    if not isinstance(trigger, BaseTrigger):
        raise TriggerError(
            f"a trigger must be one of APScheduler's, not {shown(trigger)}; the text of a cron is "
            f"for app.cron or queue.cron, an interval for every."
        )
    if getattr(trigger, "jitter", None):
        raise TriggerError(
            f"trigger {trigger} has a jitter, which differs each time it is asked; give the "
            f"schedule a jitter instead."
        )
    kind = type(trigger)
    if kind in (AndTrigger, OrTrigger):
        made = AllOf if kind is AndTrigger else AnyOf
        if not isinstance(trigger.triggers, list | tuple):
            raise TriggerError(f"{shown(trigger.triggers)} are no triggers.")
        return made(tuple(_rule_of(one, zone, now_ms) for one in trigger.triggers))
    if kind is DateTrigger:
        return Once(due_ms(trigger.run_date, name="run_date"))
    if kind is IntervalTrigger:
        return _interval(trigger)
    if kind not in (CronTrigger, CalendarIntervalTrigger):
        return Foreign.of(trigger, zone, now_ms)
    name = zone_name(zone_of(zone or trigger.timezone))
    if kind is CalendarIntervalTrigger:
        return Local(_calendar(trigger), name)
    start_ms, end_ms = (
        _bound_ms(trigger.start_date, "start_date"),
        _bound_ms(trigger.end_date, "end_date"),
    )
    fields = {one.name: str(one) for one in trigger.fields}
    return _bounded(Local(Cron.of_fields(fields), name), start_ms, end_ms)


def _interval(trigger: Any) -> Rule:
    every_ms = duration_ms(trigger.interval, name="interval")
    every = Every(every_ms, due_ms(trigger.start_date, name="start_date"))
    return _bounded(every, None, _bound_ms(trigger.end_date, "end_date"))


def _calendar(trigger: Any) -> CalendarInterval:
    state = trigger.__getstate__()
    years, months, weeks, days = state["interval"]
    start, end = state["start_date"], state["end_date"]
    return CalendarInterval(
        12 * years + months,
        7 * weeks + days,
        time(*state["time"]).isoformat(),
        start.isoformat()[:10],
        None if end is None else end.isoformat()[:10],
    )
