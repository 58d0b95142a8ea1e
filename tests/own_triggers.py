"""Triggers as users write them for APScheduler, good and bad."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger

HOUR = timedelta(hours=1)


class FromLast(BaseTrigger):  # type: ignore[misc] # APScheduler has no types
    """Counts from its last time."""

    def __init__(self, span: timedelta = HOUR) -> None:
        self.span = span

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        return (last or now) + self.span


class FromNow(BaseTrigger):  # type: ignore[misc]
    """Looks ahead from now, to the next whole minute that may be now."""

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        whole = now.replace(second=0, microsecond=0)
        return whole if whole == now else whole + timedelta(minutes=1)


class Single(BaseTrigger):  # type: ignore[misc]
    """Fires but once, as APScheduler's own date trigger."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime | None:
        return self.at if last is None else None


class AtOnce(BaseTrigger):  # type: ignore[misc]
    """Fires when it is first asked, and never again."""

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime | None:
        return now if last is None else None


class Workdays(BaseTrigger):  # type: ignore[misc]
    """Another trigger's times, but for holidays."""

    def __init__(self, inner: BaseTrigger, holidays: set[date]) -> None:
        self.inner = inner
        self.holidays = holidays

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime | None:
        found: datetime | None = self.inner.get_next_fire_time(last, now)
        while found is not None and found.date() in self.holidays:
            found = self.inner.get_next_fire_time(found, found)
        return found


class Evenings(CronTrigger):  # type: ignore[misc]
    """A cron of one's own."""

    def __init__(self, timezone: Any) -> None:
        super().__init__(hour=18, minute=30, timezone=timezone)


class Slotted(BaseTrigger):  # type: ignore[misc]
    """Has slots and no state of its own making."""

    __slots__ = ("span",)

    def __init__(self, span: timedelta) -> None:
        self.span = span

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        return (last or now) + self.span


@dataclass(frozen=True, slots=True)
class Frozen(BaseTrigger):  # type: ignore[misc]
    """A frozen dataclass, whose state is a list."""

    parts: tuple[timedelta, ...]

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        return (last or now) + sum(self.parts, timedelta())


class Returning(BaseTrigger):  # type: ignore[misc]
    """Returns something, whatever it is asked."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> Any:
        return self.found


class Failing(BaseTrigger):  # type: ignore[misc]
    """Fails from some time on."""

    def __init__(self, since: datetime) -> None:
        self.since = since

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        if now >= self.since:
            raise LookupError("no ephemeris for this year")
        return now + HOUR


class Hanging(BaseTrigger):  # type: ignore[misc]
    """Does not return from some time on."""

    goes_on = threading.Event()

    def __init__(self, since: datetime) -> None:
        self.since = since

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        if now >= self.since:
            self.goes_on.wait(60)
        return now + timedelta(seconds=10)


class Counting(BaseTrigger):  # type: ignore[misc]
    """Remembers how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        self.asked += 1
        return now + self.asked * HOUR


class Unstorable(BaseTrigger):  # type: ignore[misc]
    """Holds what JSON cannot."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        return now + HOUR


class Forgetful(BaseTrigger):  # type: ignore[misc]
    """Its state lacks what it answers by."""

    span = HOUR

    def __init__(self, span: timedelta) -> None:
        self.span = span

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        return (last or now) + self.span


class NoTrigger:
    """Looks like one."""

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        return now + HOUR
