"""The text of a cron, read as cron(8) of Debian reads it, and evaluated by APScheduler.

```
 ┌ second 0-59, if there are six fields; else 0
 │ ┌ minute 0-59
 │ │ ┌ hour 0-23
 │ │ │ ┌ day of month 1-31, or L
 │ │ │ │ ┌ month 1-12 or jan-dec
 │ │ │ │ │ ┌ day of week 0-7 or sun-sat; 0 and 7 are Sunday
 0 * * * * *
```

If both the day of month and the day of week are restricted, a day that fits one of them is enough.
As in cron, a field that begins with `*` restricts nothing in this sense: `*/2` too. Beyond cron(8)
a day of month may be `L`, the last one.

No library reads the text. APScheduler (3.11) counts weekdays from Monday and wants both days to
fit; croniter (7.0) takes `7-7` for the whole week, and `*/2` with a weekday for either. cronsim
(2.8) fits the same times as this, but not `fri-sun`. It also takes `5/15`, `5L` and `*/61`, and
its errors say no more than the name of the field.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from msgspec import Struct

from shardq.errors import TriggerError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

FieldName: TypeAlias = Literal[
    "year", "month", "day", "week", "day_of_week", "hour", "minute", "second"
]
Fields: TypeAlias = tuple[tuple[FieldName, str], ...]
"""APScheduler's arguments: the names and contents of fields."""

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MACRO_HINTS = {
    "@reboot": "; an interval with at_start fires once it is made, and whatever has to run at each "
    "start of a program is put by that program",
    "@every": "; give an interval instead, every('1h')",
}
_WITH_YEARS = 7
"""Fields of Quartz: from second to year."""
TEXT_MAX = 1_000
"""The longest cron, in characters."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_MS = 1_000
_DAY_MS = 86_400_000
_EVALUATORS_KEPT = 4_096
_BLOCK_YEARS = 50
_YEAR_MAX = 9_900
"""No schedule fires later; APScheduler (3.11) fails if it passes the year 9999."""
_LETTERS = 3
"""Letters of the name of a month or a day of the week."""
_ITEM = re.compile(r"(?:\*|([a-z]+|\d+)(?:-([a-z]+|\d+))?)(?:/(\d+))?\Z", re.ASCII)
_LAST = "l"
"""The last day of a month; cron(8) has no such thing."""
_HINTS = (
    (r"\?", "write * for any"),
    (r"\w+#\d", "for the second Friday of a month take APScheduler's CronTrigger(day='2nd fri')"),
    (
        r"[a-z]{3}l|\dl",
        "for the last Friday of a month take APScheduler's CronTrigger(day='last fri')",
    ),
    (r"l", "L is a day of the month, the last one"),
    (r"\d*w|lw|l-\d+", "no trigger has that; write one of your own, in a few lines of Python"),
    (r"h(\(.*\))?(/\d+)?|\d*~\d*", "write a number, and choose a spread or a jitter"),
    (r"(19|20)\d\d", "for a year choose start and end, or APScheduler's CronTrigger(year=2030)"),
)
"""Patterns of other crons, and the text to write here instead."""
_DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
"""The names of APScheduler (3.11) for 1 to 7 of cron; the 0 of cron, Sunday, is the last one."""


class Field(NamedTuple):
    """A field of a cron.

    Attributes:
        name: Its name for people.
        key: Its name in APScheduler.
        low: Its smallest value.
        high: Its largest one.
        names: The names of its values from `low` on, if they have names.
    """

    name: str
    key: FieldName
    low: int
    high: int
    names: tuple[str, ...] = ()

    def compiled(self, item: str) -> str:
        """An item of the field's list as APScheduler reads it: a range, or weekdays by name.

        Raises:
            ValueError: If it cannot be read, with a hint, which may be empty.
        """
        if item == "*":
            return item
        if item == _LAST and self.key == "day":
            return "last"
        values = self._values(item)
        if self.key == "day_of_week":
            return ",".join(_DAYS[value - 1] for value in values)
        if len(values) == 1:
            return str(values[0])
        return f"{values[0]}-{values[-1]}/{values.step}"

    def _values(self, item: str) -> range:
        match = _ITEM.match(item)
        if match is None:
            raise ValueError
        first, last, given_step = match.groups()
        low = self.low if first is None else self._number(first)
        high = self.high if first is None else self._number(last or first)
        step = int(given_step or 1)
        if last == "sun" and low:
            # At the end of a range, Sunday is the last day of the week: `fri-sun`.
            high = self.high
        if low > high:
            raise ValueError(f"a range begins with the smaller value, unlike {item}")
        if step == 0:
            raise ValueError("a step is at least 1")
        if first and given_step and not last:
            raise ValueError(f"write {first}-{self.high}/{step}")
        if first is None and step > high - low + 1:
            raise ValueError(f"a step of {step} fits {low} alone")
        return range(low, high + 1, step)

    def _number(self, value: str) -> int:
        if value in self.names:
            return self.names.index(value) + self.low
        if value[:_LETTERS] in self.names and value[_LETTERS:] != _LAST:
            raise ValueError(f"write {value[:_LETTERS]} for {value}")
        if not value.isdigit() or not self.low <= int(value) <= self.high:
            raise ValueError
        return int(value)


FIELDS = (
    Field("second", "second", 0, 59),
    Field("minute", "minute", 0, 59),
    Field("hour", "hour", 0, 23),
    Field("day of month", "day", 1, 31),
    Field(
        "month",
        "month",
        1,
        12,
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    ),
    Field("day of week", "day_of_week", 0, 7, ("sun", *_DAYS[:6])),
)


class Cron(Struct, frozen=True, tag="cron", omit_defaults=True):
    """Local times that fit a cron: a text, or fields of APScheduler; made by `of` and `of_fields`.

    Attributes:
        text: The text in small letters, without macros and needless spaces.
        fields: APScheduler's arguments, if there is no text.
    """

    text: str
    fields: Fields = ()

    def __post_init__(self) -> None:
        _ = self._ways

    @classmethod
    def of(cls, text: str) -> Cron:
        """Read a cron.

        Args:
            text: Five fields, six with seconds first, or a macro, `@hourly` say.

        Raises:
            TriggerError: If it is wrong; the text names the field, its content and the allowed
                content.
        """
        given = _fields_of(text)
        _ways_of(text)  # Check the text as given, because an error quotes it.
        given[-3] = given[-3].upper()
        return cls(" ".join(given))

    @classmethod
    def of_fields(cls, fields: Mapping[str, str]) -> Cron:
        """Make a cron of APScheduler's arguments, `day="last"` say.

        Raises:
            TriggerError: If APScheduler does not take them.
        """
        return cls("", tuple((key, fields[key]) for key in get_args(FieldName) if key in fields))

    @property
    def _ways(self) -> tuple[Fields, ...]:
        """Sets of APScheduler's arguments; a time has to fit one of them."""
        return (_checked(self.fields),) if self.fields else _ways_of(self.text)

    @property
    def is_wild(self) -> bool:
        """True if minutes or hours begin with `*`: then cron(8) goes by elapsed time."""
        if self.text:
            minute, hour = _fields_of(self.text)[-5:-3]
        else:
            held = {one.name: str(one) for one in _evaluator(self.fields, 0).fields}
            minute, hour = held["minute"], held["hour"]
        return minute.startswith("*") or hour.startswith("*")

    def first_from(self, wall_ms: int) -> int | None:
        """The first fitting time at or after a local time; None if there is none in fifty years."""
        whole_ms = -(-wall_ms // _SECOND_MS) * _SECOND_MS
        wall = _EPOCH + timedelta(milliseconds=whole_ms)
        if wall.year > _YEAR_MAX:
            return None
        made = (_evaluator(one, wall.year // _BLOCK_YEARS) for one in self._ways)
        fits = (one.get_next_fire_time(None, wall) for one in made)
        first = min((one for one in fits if one is not None), default=None)
        return None if first is None else (first - _EPOCH) // timedelta(milliseconds=1)

    def count(self, from_ms: int, until_ms: int) -> int:
        """The number of fitting times from a local time to another, exclusive.

        It takes a step for each day.
        """
        total, at_ms = 0, self.first_from(from_ms)
        while at_ms is not None and at_ms < until_ms:
            day_ms = at_ms - at_ms % _DAY_MS
            next_ms = day_ms + _DAY_MS
            total += self._before(min(until_ms, next_ms) - day_ms) - self._before(at_ms - day_ms)
            at_ms = self.first_from(next_ms)
        return total

    def _before(self, time_ms: int) -> int:
        """The number of fitting times of a day before a time, milliseconds from midnight."""
        # Any of the sets will do: they differ only in their days.
        hours, minutes, seconds = _times_of_day(self._ways[0])
        minute, second = divmod(-(-time_ms // _SECOND_MS), 60)
        hour, minute = divmod(minute, 60)
        total = bisect_left(hours, hour) * len(minutes) * len(seconds)
        if hour in hours:
            total += bisect_left(minutes, minute) * len(seconds)
            if minute in minutes:
                total += bisect_left(seconds, second)
        return total

    def __str__(self) -> str:
        if self.text:
            return f"cron {self.text}"
        set_ = (f"{key}={value!r}" for key, value in self.fields if value != "*")
        return f"cron {' '.join(set_)}"


@lru_cache(maxsize=_EVALUATORS_KEPT)
def _ways_of(text: str) -> tuple[Fields, ...]:
    given = _fields_of(text)
    values: dict[FieldName, str] = {"second": "0"}
    for one, held in zip(FIELDS[-len(given) :], given, strict=True):
        values[one.key] = _compiled(one, held, text)
    ways = [values]
    if not (given[-3].startswith("*") or given[-1].startswith("*")):
        ways = [values | {"day_of_week": "*"}, values | {"day": "*"}]
    return tuple(tuple(way.items()) for way in ways)


@lru_cache(maxsize=_EVALUATORS_KEPT)
def _checked(fields: Fields) -> Fields:
    try:
        _evaluator(fields, 0)
    except (TypeError, ValueError) as error:
        raise TriggerError(f"{shown(dict(fields))} are no fields of a cron: {error}") from error
    return fields


@lru_cache(maxsize=_EVALUATORS_KEPT)
def _evaluator(fields: Fields, block: int) -> Any:
    """APScheduler's trigger, which looks no further than the end of the next fifty years.

    Without that bound APScheduler needs seconds to find that a cron never fits. Triggers are
    cached: making one takes ten times as long as asking it, and each firing reads its schedule
    anew.
    """
    # Import here, because this takes longer than the import of all of shardq.
    from apscheduler.triggers.cron import CronTrigger

    end = datetime(min((block + 2) * _BLOCK_YEARS, 9_999), 1, 1, tzinfo=UTC)
    return CronTrigger(**dict(fields), timezone=UTC, end_date=end)


@lru_cache(maxsize=_EVALUATORS_KEPT)
def _times_of_day(fields: Fields) -> tuple[list[int], ...]:
    """The fitting hours, minutes and seconds."""
    made = {one.name: one for one in _evaluator(fields, 0).fields}
    units = (("hour", 24), ("minute", 60), ("second", 60))
    return tuple(
        [
            value
            for value in range(size)
            if made[name].get_next_value(_EPOCH + timedelta(**{f"{name}s": value})) == value
        ]
        for name, size in units
    )


def _fields_of(text: object) -> list[str]:
    if not isinstance(text, str):
        raise TriggerError(f"a cron must be text such as '30 2 * * *', not {shown(text)}.")
    if len(text) > TEXT_MAX:
        raise TriggerError(f"a cron has {TEXT_MAX:,} characters at most, not {len(text):,}.")
    given = text.lower().split()
    if (len(given) == 1 and given[0].startswith("@")) or given[:1] == ["@every"]:
        if given[0] not in MACROS:
            hint = _MACRO_HINTS.get(given[0], "")
            raise TriggerError(
                f"cron {shown(text)} is unknown; there are {', '.join(MACROS)}{hint}."
            )
        given = MACROS[given[0]].split()
    if given and "=" in given[0]:
        raise TriggerError(
            f"cron {shown(text)} has a variable, {shown(given[0])}; leave it out, and give the "
            f"zone as tz."
        )
    if len(given) not in (5, 6):
        years = "; it has no years: choose start and end" if len(given) == _WITH_YEARS else ""
        raise TriggerError(
            f"cron {shown(text)} has {len(given)} fields; it must have 5: minute, hour, day of "
            f"month, month, day of week; or 6, with the second first{years}."
        )
    return given


def _compiled(one: Field, held: str, text: str) -> str:
    """The text of a field as APScheduler reads it."""
    items = held.split(",")
    try:
        return ",".join(map(one.compiled, items))
    except ValueError as error:
        hints = (hint for way, hint in _HINTS for item in items if re.fullmatch(way, item))
        hint = str(error) or next(hints, "")
    names = f" or {one.names[0]}-{one.names[-1]}" if one.names else ""
    last = ", L for the last" if one.key == "day" else ""
    raise TriggerError(
        f"the {one.name} of cron {shown(text)} is {shown(held)}; it may hold {one.low}-{one.high}"
        f"{names}{last}, *, ranges a-b, lists a,b and steps */n and a-b/n"
        f"{'; ' + hint if hint else ''}."
    )
