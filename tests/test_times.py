"""Times as people write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.errors import BadTime
from shardq.model.times import (
    DELAY_MAX_MS,
    due_ms,
    duration_ms,
    duration_text,
    moment_of,
    moment_or_ago_ms,
)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("0s", 0),
        ("250ms", 250),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P1Y1M1W1DT1H1M1.5S", (365 + 30 + 7 + 1) * 86_400_000 + 3_661_500),
        ("PT0,5S", 500),
        ("0.0001s", 1),
        ("15 min", 900_000),
        ("2 hrs 15 mins 1 sec", 8_101_000),
    ],
)
def test_a_duration_is_read_as_written_and_rounded_up(text: str, millis: int) -> None:
    assert duration_ms(text) == millis


@given(
    st.sampled_from([("P{}W", 604_800), ("P{}D", 86_400), ("PT{}H", 3_600), ("PT{}M", 60)]),
    st.decimals(0, 5_000, places=6),
)
def test_a_part_of_a_unit_is_read_to_the_millisecond(
    unit: tuple[str, int], number: Decimal
) -> None:
    form, seconds = unit
    millis = math.ceil(Fraction(number) * seconds * 1_000)
    assert duration_ms(form.format(f"{number:f}")) == millis
    assert duration_ms(f"{number:f}{form[-1].lower()}") == millis


@given(st.integers(0, DELAY_MAX_MS))
def test_a_timedelta_keeps_its_milliseconds(millis: int) -> None:
    assert duration_ms(timedelta(milliseconds=millis)) == millis


def test_part_of_a_millisecond_counts_as_one() -> None:
    assert duration_ms(timedelta(microseconds=1)) == 1


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "-5s",
        "5",
        "5 s",
        "1e3s",
        "90s ",
        "٣s",
        "inf",
        "P",
        "PT",
        "PX1",
        "P1DT",
        "P1.5M",
        "PT1M1H",
        "PT5.S",
        "2027-01-01",
        "1h" * 40,
        "9" * 30 + "w",
        "PT4294967297S",
        "P4294967297D",
        "PT99999999999999999999H",
        "P1D/P1D",
        5,
        1.5,
        None,
        b"5s",
        timedelta(seconds=-1),
        timedelta.max,
        timedelta(days=36_501),
    ],
)
def test_what_is_no_bounded_duration_is_refused(value: object) -> None:
    with pytest.raises(BadTime):
        duration_ms(value)  # type: ignore[arg-type]


@given(st.text(max_size=80))
def test_any_text_is_a_duration_or_an_error_of_ours(text: str) -> None:
    try:
        millis = duration_ms(text)
    except BadTime:
        return
    assert 0 <= millis <= DELAY_MAX_MS


def test_the_error_names_what_the_duration_is_for() -> None:
    with pytest.raises(BadTime, match="visibility"):
        duration_ms("soon", name="visibility")


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2400, 1, 1)),  # noqa: DTZ001 - made aware below
    st.integers(-23 * 60, 23 * 60),
)
def test_a_due_time_is_the_same_in_every_zone(naive: datetime, minutes: int) -> None:
    moment = naive.replace(tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(minutes=minutes)))
    assert due_ms(elsewhere) == due_ms(moment)
    assert moment <= moment_of(due_ms(moment)) < moment + timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:01:30+01:00", 90_000),
        ("1970-01-01T00:00:00.0001Z", 1),
        ("1970-W01-5T00:00:01Z", 86_401_000),
        ("1970-002T00:00:01Z", 86_401_000),
    ],
)
def test_a_due_time_is_read_from_iso_text_and_rounded_up(text: str, millis: int) -> None:
    assert due_ms(text) == millis


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2400, 1, 1)),  # noqa: DTZ001 - made aware below
    st.sampled_from("Tt "),
    st.sampled_from(["Z", "z", "+00:00", "-00:00"]),
)
def test_every_form_of_rfc_3339_is_read_as_python_reads_iso(
    naive: datetime, separator: str, zone: str
) -> None:
    moment = naive.replace(tzinfo=UTC)
    assert due_ms(naive.isoformat(separator) + zone) == due_ms(moment)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("2016-12-31t23:59:60z", "2017-01-01T00:00:00Z"),
        ("2016-12-31T23:59:60.5Z", "2017-01-01T00:00:00Z"),
        ("2016-12-31T18:59:60-05:00", "2017-01-01T00:00:00Z"),
        ("1991-01-01 05:29:60+05:30", "1991-01-01T00:00:00Z"),
        ("20161231T235960Z", "2017-01-01T00:00:00Z"),
        ("2027-02-28T24:00:00Z", "2027-03-01T00:00:00Z"),
        ("2027-02-28T24:00Z", "2027-03-01T00:00:00Z"),
        ("2027-02-28 24:00:00.000+01:00", "2027-02-28T23:00:00Z"),
        ("20270228T240000Z", "2027-03-01T00:00:00Z"),
        ("2027-W08-7T24Z", "2027-03-01T00:00:00Z"),
    ],
)
def test_a_leap_second_and_the_end_of_a_day_are_the_start_of_what_follows(
    text: str, same: str
) -> None:
    assert due_ms(text) == due_ms(same)


def test_a_pendulum_time_is_a_due_time() -> None:
    assert due_ms(pendulum.datetime(1970, 1, 1, 0, 1, tz="UTC")) == 60_000


@pytest.mark.parametrize(
    "value",
    [
        datetime(2027, 1, 1),  # noqa: DTZ001 - naive on purpose
        "2027-01-01T09:00:00",
        "2027-01-01t09:00:00",
        "2016-12-31T23:59:60",
        "2027-01-01T24:00:00",
    ],
)
def test_a_naive_time_is_refused_and_told_why(value: object) -> None:
    with pytest.raises(BadTime, match="zone"):
        due_ms(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "tomorrow",
        "12:00",
        "12:00/13:00",
        "P1D/P1D",
        "PT5S",
        "1969-12-31T23:59:59Z",
        "2027-01-01T00:00+24",
        "2027-01-01T00:00-99",
        "2027-01-01T00:00+01:60",
        "2027-01-01T00:00-0199",
        "2027-W00-1T00Z",
        "2027-W01-0T00Z",
        "2027W010T00Z",
        "now",
        datetime(2027, 1, 1, tzinfo=pendulum.FixedTimezone(100 * 3_600)),
        "2027-13-01T00Z",
        "2027-01-01T12:00:60Z",
        "2016-12-31T23:59:60+01:00",
        "2016-12-31T23:59:61Z",
        "2027-01-01T24:00:01Z",
        "2027-01-01T24:01Z",
        "2027-01-01T24:00:00.001Z",
        "2027-01-01T25:00Z",
        "9999-12-31T23:59:60Z",
        "9999-12-31T24:00:00Z",
        "2" * 100,
        0,
        None,
    ],
)
def test_what_is_no_time_since_1970_is_refused(value: object) -> None:
    with pytest.raises(BadTime):
        due_ms(value)  # type: ignore[arg-type]


@given(st.text(max_size=80))
def test_any_text_is_a_due_time_or_an_error_of_ours(text: str) -> None:
    try:
        assert due_ms(text) >= 0
    except BadTime:
        return


@given(st.integers(0, DELAY_MAX_MS))
def test_a_duration_that_is_told_can_be_given(millis: int) -> None:
    assert duration_ms(duration_text(millis)) == millis


NOW_MS = 1_800_000_000_000


def test_a_time_or_how_long_ago_is_read() -> None:
    for ago in ("1h30m", "PT1H30M", timedelta(minutes=90)):
        assert moment_or_ago_ms(ago, NOW_MS, name="since") == NOW_MS - 5_400_000
    assert moment_or_ago_ms("1970-01-01T00:01:30Z", NOW_MS, name="since") == 90_000
    assert moment_or_ago_ms(moment_of(90_000), NOW_MS, name="since") == 90_000


@pytest.mark.parametrize("value", ["5", "", "yesterday", "2027-01-01T09:00", "1960-01-01", 5, None])
def test_what_is_neither_a_time_nor_a_duration_is_told_that_both_are_taken(value: object) -> None:
    with pytest.raises(BadTime, match=r"^since .*'1h'"):
        moment_or_ago_ms(value, NOW_MS, name="since")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["99999d", timedelta(-1), "P", "PT1X"])
def test_a_duration_ago_out_of_bounds_is_refused_as_one(value: timedelta | str) -> None:
    with pytest.raises(BadTime, match=r"^since .*(between 0 and 100 years|'90s'|duration)"):
        moment_or_ago_ms(value, NOW_MS, name="since")
