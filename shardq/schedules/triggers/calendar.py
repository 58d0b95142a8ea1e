"""Every few days or months, always at the same time of day."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from msgspec import Struct

from shardq.errors import TriggerError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS_MAX = 12 * 100
_DAYS_MAX = 366 * 100
_YEAR_MAX = 9_800
_STEPS_MAX = 20_000
"""Most steps to a month that has the day; enough for any rule of up to a hundred years."""


class CalendarInterval(Struct, frozen=True, tag="calendar", omit_defaults=True):
    """Dates that lie some months and then some days apart, at a time of day.

    Months are added until the date exists, as in APScheduler: monthly from 31 January, only months
    of 31 days have it.

    Attributes:
        months: 0 to 1,200.
        days: 0 to 36,600; one of the two is more than 0.
        time: The time of day, in whole seconds, `09:00:00`.
        start: The first date, `2027-01-31`.
        end: The last date; None: no end.
    """

    months: int
    days: int
    time: str
    start: str
    end: str | None = None

    def __post_init__(self) -> None:
        for name, value, most in (
            ("months", self.months, _MONTHS_MAX),
            ("days", self.days, _DAYS_MAX),
        ):
            if not 0 <= value <= most:
                raise TriggerError(
                    f"a calendar interval of {value:,} {name} must be between 0 and {most:,}."
                )
        if not self.months and not self.days:
            raise TriggerError("a calendar interval must be at least one day long.")
        time.fromisoformat(self.time)
        date.fromisoformat(self.end or self.start)
        date.fromisoformat(self.start)

    @property
    def is_wild(self) -> bool:
        """False: it fires once a day at the most."""
        return False

    def first_from(self, wall_ms: int) -> int | None:
        """The first time at or after a local time."""
        asked = _EPOCH + timedelta(milliseconds=wall_ms)
        least = asked.date()
        if least.year > _YEAR_MAX:
            return None
        at = self._first_date(least)
        if at is not None and at == least and self._wall(at) < asked:
            at = self._first_date(least + timedelta(1))
        if at is None or (self.end is not None and at > date.fromisoformat(self.end)):
            return None
        return (self._wall(at) - _EPOCH) // timedelta(milliseconds=1)

    def count(self, from_ms: int, until_ms: int) -> int:
        """The number of times from a local time to another, exclusive."""
        total, at_ms = 0, self.first_from(from_ms)
        while at_ms is not None and at_ms < until_ms:
            total, at_ms = total + 1, self.first_from(at_ms + 1)
        return total

    def _wall(self, at: date) -> datetime:
        return datetime.combine(at, time.fromisoformat(self.time), UTC)

    def _first_date(self, least: date) -> date | None:
        at = date.fromisoformat(self.start)
        if self.months == 0:
            rounds = max(0, -(-(least - at).days // self.days))
            return at + timedelta(rounds * self.days)
        if self.days == 0:
            # Begin with the last step that can be early enough; its month may lack the day.
            passed = (least.year - at.year) * 12 + least.month - at.month
            rounds = max(0, passed // self.months)
            if (found := _first_with(at, rounds, self.months)) is None or found >= least:
                return found
            return _first_with(at, rounds + 1, self.months)
        for _ in range(_STEPS_MAX):
            if at >= least:
                return at
            after = _first_with(at, 1, self.months)
            if after is None:
                return None
            at = after + timedelta(self.days)
        return None

    def __str__(self) -> str:
        parts = [f"{n} {unit}" for n, unit in ((self.months, "months"), (self.days, "days")) if n]
        end = "" if self.end is None else f" until {self.end}"
        return f"every {' and '.join(parts)} at {self.time} from {self.start}{end}"


def _first_with(start: date, rounds: int, months: int) -> date | None:
    """The first date that exists in its month, this many rounds of months or more after a start.

    None after the year 9999.
    """
    for later in range(rounds, rounds + _STEPS_MAX):
        years, month = divmod(start.month - 1 + later * months, 12)
        if start.year + years > 9_998:
            return None
        try:
            return start.replace(year=start.year + years, month=month + 1)
        except ValueError:
            continue
    return None
