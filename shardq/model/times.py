"""Times as people write them, turned into integer milliseconds.

Due times and durations are read here and nowhere else. `clock.py` reads the present time.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from shardq.errors import BadTime, shown

Duration: TypeAlias = timedelta | str
"""A duration: a timedelta, a short form (`90s`, `1h30m`, `30 days`) or ISO 8601 (`PT1H30M`)."""
Due: TypeAlias = datetime | str
"""A time: an aware datetime, or ISO 8601 text with a zone (`2027-01-01T09:00:00+01:00`)."""

LATEST_MS = 253_402_300_799_999
"""The last millisecond of 9999, the last year of a datetime."""
DELAY_MAX_MS = 100 * 365 * 86_400_000
"""The longest delay, a hundred years: more is a mistake in the caller's arithmetic."""
KEPT_MS_MAX = 5 * 365 * 86_400_000
"""The longest time to live of a stored value, five years: before release 5 no Cassandra takes one
that ends after 2038."""
KEPT_MS_MIN = 3_600_000
"""The shortest time to live of a record, an hour: it is kept so much longer than it is useful."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SHORT = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+\Z", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_SPELLED = re.compile(
    r"\d+(?:\.\d+)? (?:second|sec|minute|min|hour|hr|day|week)s?"
    r"(?: \d+(?:\.\d+)? (?:second|sec|minute|min|hour|hr|day|week)s?)*\Z",
    re.ASCII,
)
_WORD = re.compile(r" ([smhdw])[a-z]+ ?")
_NUMBER = r"(\d+(?:[.,]\d+)?)"
_ISO = re.compile(
    rf"P(?=[\dT])(?:(\d+)Y)?(?:(\d+)M)?(?:{_NUMBER}W)?(?:{_NUMBER}D)?"
    rf"(?:T(?=\d)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?\Z",
    re.ASCII,
)
_DAY_MS = _UNITS_MS["d"]
_ISO_UNITS_MS = (365 * _DAY_MS, 30 * _DAY_MS, *(_UNITS_MS[unit] for unit in "wdhms"))
_MISREAD = re.compile(r"\Anow\Z|/|W00|W\d\d-?0(?!\d)|[+-]\d\d:?[6-9]\d\Z", re.ASCII)
"""Texts that pendulum (3.3) takes for another time, and intervals, at which pendulum may fail.

`now`, which only `clock.py` reads; weeks and weekdays 0; offsets with more than 59 minutes.
"""
_CAPITALS = str.maketrans("tz", "TZ")
_LEAP_SECOND = re.compile(r"(?<=[T ])(\d\d:?\d\d:?)60(?:[.,]\d+)?(?=[Z+-]|\Z)", re.ASCII)
_END_OF_DAY = re.compile(r"(?<=[T ])24(?=(?::?00){0,2}(?:[.,]0+)?(?:[Z+-]|\Z))", re.ASCII)
"""Forms of RFC 3339 and ISO 8601 that pendulum (3.3) refuses: small letters, 23:59:60, 24:00:00."""


def is_epoch_ms(value: object) -> bool:
    """True if a stored value is a time as shardq stores times: whole milliseconds, to 9999."""
    return type(value) is int and 0 <= value <= LATEST_MS


def kept_ms(useful_ms: int) -> int:
    """How long a record useful for `useful_ms` is kept: an hour longer, five years at most."""
    return min(max(useful_ms, 0) + KEPT_MS_MIN, KEPT_MS_MAX)


def duration_ms(value: Duration, *, name: str = "duration") -> int:
    """Milliseconds of a duration.

    Args:
        value: A timedelta, a short form (`90s`, `1h30m`, `250ms`), spelled out (`30 days`,
            `1 hour 30 minutes`), or ISO 8601 (`PT1H30M`), where a year is 365 days and a month 30.
        name: The duration's name in errors.

    Returns:
        Milliseconds, 0 to `DELAY_MAX_MS`, rounded up.

    Raises:
        BadTime: If the duration is negative, endless or unreadable.

    >>> duration_ms("1h30m"), duration_ms("1 hour 30 minutes")
    (5400000, 5400000)
    """
    if isinstance(value, timedelta):
        # pendulum's subclasses (3.3) refuse to be divided by a plain timedelta; the base does it.
        millis = ceil_ms(timedelta.__floordiv__(value, timedelta(microseconds=1)))
    elif isinstance(value, str):
        millis = _parse_duration(value, name)
    else:
        raise BadTime(
            f"{name} must be a timedelta or a string such as '90s' or '1h30m', "
            f"not {type(value).__name__} {shown(value)}."
        )
    if not 0 <= millis <= DELAY_MAX_MS:
        raise BadTime(f"{name} must be between 0 and 100 years, not {shown(value)}.")
    return millis


def due_ms(value: Due, *, name: str = "due") -> int:
    """Epoch milliseconds of a due time, rounded up.

    Args:
        value: An aware datetime, or an ISO 8601 or RFC 3339 string with a zone
            (`2027-01-01T09:00:00+01:00`, `2027-01-01 08:00:00z`). A leap second (`23:59:60Z`) is
            read as the start of the next second, `24:00:00` as the next day's midnight.
        name: The name of the time, for the error's text.

    Returns:
        Epoch milliseconds, UTC. Times in the past are allowed: such a message is due now.

    Raises:
        BadTime: If the time has no zone, lies before 1970 or cannot be read.

    >>> due_ms("1970-01-01T00:01:30Z")
    90000
    """
    moment = _parse_moment(value, name) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise BadTime(
            f"{name} must be an aware datetime or an ISO 8601 string, "
            f"not {type(value).__name__} {shown(value)}."
        )
    try:
        # pendulum's own difference (3.3) counts days without their sign; the base class does not.
        since = datetime.__sub__(moment, _EPOCH)
    except TypeError as error:
        raise BadTime(
            f"{name} {shown(value)} has no time zone; add one, such as '+00:00' or UTC."
        ) from error
    except ValueError as error:
        raise BadTime(
            f"the zone of {name} {shown(value)} must be within 24 hours of UTC."
        ) from error
    if since.days < 0:
        raise BadTime(f"{name} {shown(value)} lies before 1970.")
    return since.days * 86_400_000 + since.seconds * 1_000 - (-since.microseconds // 1_000)


def asked_ms(now_ms: int, due: Due | None, delay: Duration | None) -> int:
    """The due that is asked for, epoch milliseconds: at a time, after a delay, or now.

    Args:
        now_ms: Epoch milliseconds.
        due: The due, as `due_ms` takes it.
        delay: The delay, as `duration_ms` takes it.

    Raises:
        BadTime: If both are given, one cannot be read, or the due is more than 100 years away.

    >>> asked_ms(1_000, None, "90s")
    91000
    """
    if due is None:
        return now_ms if delay is None else now_ms + duration_ms(delay, name="delay")
    if delay is not None:
        raise BadTime("give due or delay, not both.")
    wanted_ms = due_ms(due)
    if wanted_ms > now_ms + DELAY_MAX_MS:
        raise BadTime(f"due {due!s} is more than 100 years away.")
    return wanted_ms


def duration_text(millis: int) -> str:
    """A duration, exactly, as all output has it, and as a user may write it.

    >>> duration_text(90_000), duration_text(1_613), duration_text(86_400_000), duration_text(0)
    ('1m30s', '1.613s', '1d', '0s')
    >>> duration_text(30_600_000), duration_text(250), duration_text(61_500)
    ('8h30m', '250ms', '1m1.5s')
    """
    if 0 < millis < _UNITS_MS["s"]:
        return f"{millis}ms"
    parts = []
    for unit in ("d", "h", "m"):
        number, millis = divmod(millis, _UNITS_MS[unit])
        if number:
            parts.append(f"{number}{unit}")
    if millis or not parts:
        parts.append(f"{millis / 1_000:.3f}".rstrip("0").rstrip(".") + "s")
    return "".join(parts)


def moment_of(epoch_ms: int) -> datetime:
    """The aware UTC datetime of epoch milliseconds."""
    return _EPOCH + timedelta(milliseconds=epoch_ms)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)


def _parse_duration(text: str, name: str) -> int:
    """Milliseconds, rounded up."""
    if len(text) > 64:
        raise BadTime(f"{name} is too long to be a duration; write it like '90s' or '1h30m'.")
    if _SPELLED.match(text):
        text = _WORD.sub(r"\1", text)
    if _SHORT.match(text):
        return math.ceil(sum(_number(n) * _UNITS_MS[unit] for n, unit in _PART.findall(text)))
    iso = _ISO.match(text)
    if iso is None:
        raise BadTime(
            f"{name} {shown(text)} cannot be read; write it like '90s', '1h30m' or 'PT1H30M'."
        )
    numbers = map(_number, iso.groups(default="0"))
    parts = (number * unit for number, unit in zip(numbers, _ISO_UNITS_MS, strict=True))
    return math.ceil(sum(parts))


def _number(text: str) -> int | Fraction:
    """The exact number; an integer if possible, because a fraction takes three times as long."""
    return int(text) if text.isdigit() else Fraction(text.replace(",", "."))


def _parse_moment(text: str, name: str) -> datetime:
    if len(text) > 64:
        raise BadTime(f"{name} is too long to be a time; write it like '2027-01-01T09:00:00Z'.")
    # Imported here, because pendulum takes longer to import than all of shardq.
    import pendulum

    try:
        if _MISREAD.search(text):
            raise ValueError(text)
        known, later = _known_to_pendulum(text)
        # Without tz=None pendulum would take a naive time for UTC, and nobody would notice.
        parsed = pendulum.parse(known, exact=True, tz=None)
        if later and isinstance(parsed, datetime):
            parsed += later
            if later == _SECOND and parsed.tzinfo and datetime.__sub__(parsed, _EPOCH) % _DAY:
                raise ValueError(text)
    except (ValueError, OverflowError, TypeError) as error:
        # TypeError: pendulum 3.1 to 3.3 fails so on `8:`.
        raise BadTime(
            f"{name} {shown(text)} is not an ISO 8601 time such as '2027-01-01T09:00Z'."
        ) from error
    if not isinstance(parsed, datetime):
        raise BadTime(
            f"{name} {shown(text)} names no moment; give its date, time and zone, such as "
            f"'2027-01-01T09:00Z'."
        )
    return parsed


def _known_to_pendulum(text: str) -> tuple[str, timedelta]:
    """A time in the forms that pendulum (3.3) reads, and how much later it really is."""
    text = text.translate(_CAPITALS)
    with_59, leap_seconds = _LEAP_SECOND.subn(r"\g<1>59", text)
    if leap_seconds:
        return with_59, _SECOND
    with_00, midnights = _END_OF_DAY.subn("00", text)
    return with_00, midnights * _DAY


def moment_or_ago_ms(value: Due | Duration, now_ms: int, *, name: str) -> int:
    """Epoch milliseconds of a time, or of a duration before now.

    Args:
        value: A time as `due_ms` takes it, or a duration as `duration_ms` takes it.
        now_ms: The time from which a duration counts back, epoch milliseconds.
        name: The name of the time, for the error's text.

    Raises:
        BadTime: If the value is neither.

    >>> moment_or_ago_ms("1h", 4_000_000, name="since")
    400000
    """
    if isinstance(value, timedelta) or (isinstance(value, str) and _is_meant_as_duration(value)):
        return now_ms - duration_ms(value, name=name)
    try:
        return due_ms(value, name=name)
    except BadTime as error:
        raise BadTime(f"{error} A duration such as '1h', for so long ago, is taken too.") from error


def _is_meant_as_duration(text: str) -> bool:
    return text[:1] == "P" or _SHORT.match(text) is not None


def iso(moment: datetime | int) -> str:
    """A UTC time as people and programs read it, to the millisecond.

    Args:
        moment: The time, or its epoch milliseconds.

    >>> iso(90_000)
    '1970-01-01T00:01:30.000Z'
    """
    return _iso(moment) if isinstance(moment, int) else _iso_of(moment)


def iso_or_none(moment: datetime | int | None) -> str | None:
    """A UTC time as `iso` writes it; None for None."""
    return None if moment is None else iso(moment)


@lru_cache(maxsize=256)
def _iso(epoch_ms: int) -> str:
    """A time as text; cached, because many schedules fire at one time, and each shows it often."""
    return _iso_of(moment_of(epoch_ms))


def _iso_of(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def span(milliseconds: float) -> str:
    """A measured duration in the form of `duration_text`, in two units at most.

    >>> span(250), span(1_613), span(31_000), span(90_400), span(200_000_000)
    ('250ms', '1.6s', '31s', '1m30s', '2d7h')
    """
    if round(milliseconds) < 1_000:
        return f"{milliseconds:.0f}ms"
    if milliseconds < 59_950:
        return duration_text(round(milliseconds / 100) * 100)
    seconds = round(milliseconds / 1_000)
    for large, small in ((86_400, 3_600), (3_600, 60)):
        if seconds >= large:
            return duration_text(seconds // small * small * 1_000)
    return duration_text(seconds * 1_000)


def offset(milliseconds: float) -> str:
    """The difference of two clocks in the form of `span`, with its sign.

    >>> offset(1_613), offset(-0.4), offset(-90_000)
    ('+1.6s', '-0ms', '-1m30s')
    """
    return f"{'-' if milliseconds < 0 else '+'}{span(abs(milliseconds))}"


def ceil_ms(micros: int) -> int:
    """Microseconds as milliseconds, rounded up: no row is ever placed before its due.

    >>> ceil_ms(1_001)
    2
    """
    return -(-micros // 1_000)
