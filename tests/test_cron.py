"""The text of a cron."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from apscheduler.triggers.cron import CronTrigger
from examples import bounded
from hypothesis import given
from hypothesis import strategies as st

from shardq.errors import TriggerError
from shardq.schedules.triggers.cron import MACROS, Cron

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ASKED = datetime(2027, 1, 1, tzinfo=UTC)


def first(cron: Cron, asked: datetime) -> datetime | None:
    found = cron.first_from((asked - EPOCH) // timedelta(milliseconds=1))
    return None if found is None else EPOCH + timedelta(milliseconds=found)


def times(text: str, count: int, asked: datetime = ASKED) -> list[str]:
    """The first `count` times that fit a cron, from 1 January 2027 on, a Friday."""
    cron, found = Cron.of(text), []
    for _ in range(count):
        at = first(cron, asked)
        assert at is not None
        found.append(f"{at:%a %d %b %H:%M:%S}")
        asked = at + timedelta(milliseconds=1)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 2 * * *", ["Fri 01 Jan 02:30:00", "Sat 02 Jan 02:30:00"]),
        ("*/7 * * * *", [f"Fri 01 Jan 00:{at:02}:00" for at in range(0, 60, 7)]),
        ("0 0-10/5,23 * * *", [f"Fri 01 Jan {at:02}:00:00" for at in (0, 5, 10, 23)]),
        ("0 9 */10 * *", [f"{at} Jan 09:00:00" for at in ("Fri 01", "Mon 11", "Thu 21", "Sun 31")]),
        ("0 0 * jul,9-NOV/2 *", ["Thu 01 Jul 00:00:00"]),
        ("0 0 1 9-NOV/2 *", ["Wed 01 Sep 00:00:00", "Mon 01 Nov 00:00:00"]),
        ("0 0 * * Mon,WED-fri", ["Fri 01 Jan 00:00:00", "Mon 04 Jan 00:00:00"]),
        ("  5\t 0  * * *  ", ["Fri 01 Jan 00:05:00"]),
        ("10,*/20 * * * *", [f"Fri 01 Jan 00:{at}:00" for at in ("00", "10", "20", "40")]),
        ("*/15 30 2 * * *", [f"Fri 01 Jan 02:30:{at}" for at in ("00", "15", "30", "45")]),
    ],
)
def test_a_cron_fits_the_times_that_cron_8_runs_at(text: str, expected: list[str]) -> None:
    assert times(text, len(expected)) == expected


@pytest.mark.parametrize("sunday", ["0", "7", "sun", "0,7", "0-0"])
def test_sunday_is_0_and_7(sunday: str) -> None:
    assert times(f"0 0 * * {sunday}", 2) == ["Sun 03 Jan 00:00:00", "Sun 10 Jan 00:00:00"]


@pytest.mark.parametrize(
    ("weekdays", "expected"),
    [
        ("1", "Mon"),
        ("1-5", "Fri Mon Tue Wed Thu"),
        ("5-7", "Fri Sat Sun"),
        ("fri-sun", "Fri Sat Sun"),
        ("0-7", "Fri Sat Sun Mon Tue Wed Thu"),
        ("*/2", "Sat Sun Tue Thu"),
    ],
)
def test_weekdays_are_counted_from_sunday(weekdays: str, expected: str) -> None:
    names = expected.split()
    assert [at[:3] for at in times(f"0 0 * * {weekdays}", len(names))] == names


def test_a_day_that_fits_either_of_two_restricted_fields_is_enough() -> None:
    assert times("30 4 1,15 * 5", 6) == [
        f"{day} Jan 04:30:00" for day in ("Fri 01", "Fri 08", "Fri 15", "Fri 22", "Fri 29")
    ] + ["Mon 01 Feb 04:30:00"]


@pytest.mark.parametrize("days", ["1,15 * *", "1,15 * */1", "* * 5", "*/1 * 5"])
def test_a_day_has_to_fit_both_fields_where_one_begins_with_an_asterisk(days: str) -> None:
    fit = {"1": ["Fri 01 Jan", "Fri 15 Jan"], "*": ["Fri 01 Jan", "Fri 08 Jan"]}[days[0]]
    assert [at[:10] for at in times(f"0 0 {days}", 2)] == fit


def test_every_second_day_of_the_month_that_is_a_monday_has_to_be_both() -> None:
    assert [at[:10] for at in times("0 0 */2 * 1", 3)] == ["Mon 11 Jan", "Mon 25 Jan", "Mon 01 Feb"]


@pytest.mark.parametrize("macro", MACROS)
def test_a_macro_is_the_fields_that_it_stands_for(macro: str) -> None:
    assert Cron.of(f" {macro.upper()} ") == Cron.of(MACROS[macro])


def test_a_leap_day_is_found_across_a_century_without_one() -> None:
    leap = Cron.of("0 12 29 2 *")
    assert first(leap, datetime(2096, 3, 1, tzinfo=UTC)) == datetime(2104, 2, 29, 12, tzinfo=UTC)
    assert first(leap, datetime(9_999, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "* 30,31 feb */1"])
def test_a_cron_that_no_day_fits_has_no_first_time(text: str) -> None:
    text = text if text.count(" ") == 4 else f"* {text}"
    assert first(Cron.of(text), ASKED) is None


INCREMENTS_MAX = 10_000
"""APScheduler may try so many dates in a hundred years; without a bound it tries 250,000."""


def test_a_search_in_vain_ends_within_a_hundred_years(monkeypatch: pytest.MonkeyPatch) -> None:
    increment, tried = CronTrigger._increment_field_value, 0

    def counted(*given: Any) -> Any:
        nonlocal tried
        tried += 1
        return increment(*given)

    monkeypatch.setattr(CronTrigger, "_increment_field_value", counted)
    assert first(Cron.of_fields({"month": "6", "week": "53"}), ASKED) is None
    assert 0 < tried < INCREMENTS_MAX


def test_the_last_day_of_a_month_is_a_day_of_the_month() -> None:
    lasts = ["Sun 31 Jan 18:00:00", "Sun 28 Feb 18:00:00", "Wed 31 Mar 18:00:00"]
    assert times("0 18 L * *", 3) == lasts
    assert times("0 18 15,l 2 *", 2) == ["Mon 15 Feb 18:00:00", lasts[1]]
    assert times("0 18 L feb *", 1, datetime(2028, 2, 1, tzinfo=UTC)) == ["Tue 29 Feb 18:00:00"]
    # A day that fits either is enough, as of any other day of the month.
    assert times("0 18 L 2 mon", 2) == ["Mon 01 Feb 18:00:00", "Mon 08 Feb 18:00:00"]
    assert Cron.of(Cron.of("0 18 L * *").text) == Cron.of("0 18 l * *")


@pytest.mark.parametrize(
    ("text", "asked", "expected"),
    [
        ("1 1 1-7 * */7", "2020-01-01", "01-05 01:01, 02-02 01:01, 03-01 01:01, 04-05 01:01"),
        ("1 1 * * */3", "2020-01-01", "01-01 01:01, 01-04 01:01, 01-05 01:01, 01-08 01:01"),
        ("0 0 */3 * *", "2010-02-24T12:09", "02-25 00:00, 02-28 00:00, 03-01 00:00"),
        ("0 0 1 * wed", "2010-01-25", "01-27 00:00, 02-01 00:00, 02-03 00:00"),
        ("0 0 31 2 0", "2026-01-01", "02-01 00:00, 02-08 00:00, 02-15 00:00"),
        ("0 0 l * *", "2100-02-01", "02-28 00:00, 03-31 00:00, 04-30 00:00"),
        ("1 1 7,14,21,L * *", "2018-10-22", "10-31 01:01, 11-07 01:01"),
        ("00 03 16,30 * *", "2013-03-01T12:17:34.257", "03-16 03:00, 03-30 03:00, 04-16 03:00"),
        ("1-9/2 0 1 * *", "2013-03-04", "04-01 00:01, 04-01 00:03, 04-01 00:05, 04-01 00:07"),
        ("30 22 * * sun-thu", "2010-08-26T22:31", "08-29 22:30, 08-30 22:30"),
    ],
)
def test_a_cron_fits_what_it_fits_in_other_libraries(text: str, asked: str, expected: str) -> None:
    # From the tests of cronsim and croniter, as far as they agree with cron(8).
    cron, at, found = Cron.of(text), datetime.fromisoformat(asked).replace(tzinfo=UTC), []
    for _ in expected.split(", "):
        fit = first(cron, at)
        assert fit is not None
        found.append(f"{fit:%m-%d %H:%M}")
        at = fit + timedelta(minutes=1)
    assert ", ".join(found) == expected


BAD_VALUES = [
    "-1",
    "61",
    "ABC",
    "2/",
    "/2",
    "2#",
    "#2",
    "1##1",
    "1//2",
    "\u00b9",
    "LL",
    "LWX",
    "1_0",
]
"""What no field may hold, by the tests of cronsim."""


@pytest.mark.parametrize(
    "frame",
    [
        "{} * * * *",
        "* {} * * *",
        "* * {} * *",
        "* * * {} *",
        "* * * * {}",
        "{} * * * * *",
        "1-{} * * * *",
        "* * 1-{} * *",
        "* * {}/1 * *",
        "* * * {}-DEC *",
        "* * * * {}-SUN",
    ],
)
def test_a_value_that_no_field_may_hold_is_refused_wherever_it_is(frame: str) -> None:
    for value in BAD_VALUES:
        with pytest.raises(TriggerError, match="it may hold"):
            Cron.of(frame.format(value))


HOLDS = "it may hold {}, *, ranges a-b, lists a,b and steps */n and a-b/n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("60 * * * *", f"the minute of cron '60 * * * *' is '60'; {HOLDS.format('0-59')}."),
        ("* 24 * * *", f"the hour of cron '* 24 * * *' is '24'; {HOLDS.format('0-23')}."),
        ("* * 0 * *", f" is '0'; {HOLDS.format('1-31, L for the last')}."),
        ("0 0 * 13 *", f" is '13'; {HOLDS.format('1-12 or jan-dec')}."),
        ("0 0 * * 8", f" is '8'; {HOLDS.format('0-7 or sun-sat')}."),
        ("61 0 0 * * *", f"the second of cron '61 0 0 * * *' is '61'; {HOLDS.format('0-59')}."),
        ("0 0 * January *", "the month of cron '0 0 * January *' is 'january'; "),
        ("0 0 * * monday", "the day of week of cron '0 0 * * monday' is 'monday'; "),
        ("0 0 jan * *", "the day of month of cron '0 0 jan * *' is 'jan'; "),
        ("-5 * * * *", " is '-5'; "),
        (", * * * *", " is ','; "),
        ("1-5-7 * * * *", " is '1-5-7'; "),
        ("\u0663 * * * *", " is '\u0663'; "),
        ("*/0 * * * *", "; a step is at least 1."),
        ("*/61 * * * *", "; a step of 61 fits 0 alone."),
        ("5/15 * * * *", "; write 5-59/15."),
        ("10-5 * * * *", "; a range begins with the smaller value, unlike 10-5."),
        ("0 0 ? * 1", "; write * for any."),
        ("0 0 * * monday", "; write mon for monday."),
        ("0 0 * * L", "; L is a day of the month, the last one."),
        ("0 0 * * 5L", " take APScheduler's CronTrigger(day='last fri')."),
        ("0 0 * * 5#2", " take APScheduler's CronTrigger(day='2nd fri')."),
        ("0 0 15W * *", "; no trigger has that; write one of your own, in a few lines of Python."),
        ("H H * * *", "; write a number, and choose a spread or a jitter."),
        ("0~30 * * * *", "; write a number, and choose a spread or a jitter."),
        ("0 0 1 1 * 2030", "; for a year choose start and end, or APScheduler's CronTrigger(year="),
        (
            "CRON_TZ=Asia/Tokyo 0 9 * * *",
            "'cron_tz=asia/tokyo'; leave it out, and give the zone as",
        ),
        ("", "cron '' has 0 fields; it must have 5: minute, hour, day of month, month, day of"),
        ("0 0 0 * * * 2027", "with the second first; it has no years: choose start and end."),
        (
            "@reboot",
            "@hourly; an interval with at_start fires once it is made, and whatever has to",
        ),
        ("@every 1h30m", "@hourly; give an interval instead, every('1h')."),
        ("@hourly *", "cron '@hourly *' has 2 fields"),
        ("*" * 2_000, "has 1,000 characters at most, not 2,000"),
        (None, "a cron must be text such as '30 2 * * *', not None."),
    ],
)
def test_what_is_no_cron_is_refused_by_its_field(text: str, said: str) -> None:
    with pytest.raises(TriggerError) as caught:
        Cron.of(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@bounded(200)
@given(st.text(alphabet="0123456789*,-/ @jansun", max_size=30))
def test_any_text_is_a_cron_or_an_error_of_ours(text: str) -> None:
    try:
        cron = Cron.of(text)
    except TriggerError:
        return
    assert Cron.of(cron.text) == cron


class Held(NamedTuple):
    """A field of a cron as it was made up."""

    text: str
    values: frozenset[int]


def fields(low: int, high: int) -> SearchStrategy[Held]:
    """What a field may hold, and the values that fit it."""
    value = st.integers(low, high)
    step = st.integers(1, high - low + 1)
    span = st.tuples(value, value).map(sorted)
    one = st.one_of(
        step.map(lambda n: Held(f"*/{n}", frozenset(range(low, high + 1, n)))),
        value.map(lambda n: Held(str(n), frozenset([n]))),
        span.map(lambda ends: Held(f"{ends[0]}-{ends[1]}", frozenset(range(ends[0], ends[1] + 1)))),
        st.tuples(span, step).map(
            lambda both: Held(
                f"{both[0][0]}-{both[0][1]}/{both[1]}",
                frozenset(range(both[0][0], both[0][1] + 1, both[1])),
            )
        ),
    )
    anything = st.just(Held("*", frozenset(range(low, high + 1))))
    listed = st.lists(one, min_size=1, max_size=3).map(
        lambda parts: Held(
            ",".join(part.text for part in parts),
            frozenset().union(*(part.values for part in parts)),
        )
    )
    return anything | listed


DAYS_SEARCHED = 800


@bounded(100)
@given(
    fields(0, 59),
    fields(0, 23),
    fields(1, 31),
    fields(1, 12),
    fields(0, 7),
    st.datetimes(datetime(1971, 1, 1), datetime(2150, 1, 1)),  # noqa: DTZ001 - made aware below
)
def test_the_first_time_is_the_first_that_a_search_of_each_day_finds(
    minute: Held, hour: Held, day: Held, month: Held, weekday: Held, naive: datetime
) -> None:
    asked = naive.replace(tzinfo=UTC, microsecond=naive.microsecond // 1_000 * 1_000)
    is_either = day.text[0] != "*" and weekday.text[0] != "*"

    def fits(at: date) -> bool:
        by_day = at.day in day.values
        by_weekday = not {at.isoweekday(), at.isoweekday() % 7}.isdisjoint(weekday.values)
        fit = (by_day or by_weekday) if is_either else (by_day and by_weekday)
        return fit and at.month in month.values

    def search() -> datetime | None:
        clocks = [time(h, m) for h in sorted(hour.values) for m in sorted(minute.values)]
        days = (asked.date() + timedelta(later) for later in range(DAYS_SEARCHED))
        fit = (datetime.combine(at, one, UTC) for at in days if fits(at) for one in clocks)
        return next((at for at in fit if at >= asked), None)

    found = first(
        Cron.of(f"{minute.text} {hour.text} {day.text} {month.text} {weekday.text}"), asked
    )
    expected = search()
    if expected is not None:
        assert found == expected
    else:
        assert found is None or found - asked > timedelta(DAYS_SEARCHED - 1)
