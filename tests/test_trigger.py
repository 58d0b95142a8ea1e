"""When schedules fire."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from examples import bounded
from hypothesis import given
from hypothesis import strategies as st

from shardq.errors import BadTime, TriggerError, UsageError
from shardq.model.times import due_ms, moment_of
from shardq.schedules.triggers.rules import DEPTH_MAX
from shardq.schedules.triggers.trigger import Fire, Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
NOW_MS = due_ms(NOW)
BERLIN = ZoneInfo("Europe/Berlin")
HOUR = timedelta(hours=1)


def stored(trigger: Trigger) -> Trigger:
    """A trigger as another process reads it."""
    read = Trigger.from_json(json.loads(json.dumps(trigger.to_json(), sort_keys=True)))
    assert read == trigger
    assert hash(read) == hash(trigger)
    assert str(read) == str(trigger)
    return read


def of(trigger: Any, **options: Any) -> Trigger:
    return stored(Trigger.of(trigger, now_ms=NOW_MS, **options))


def times(trigger: Trigger, after: datetime = NOW) -> Iterator[datetime]:
    """The fire times after an instant, for as long as one asks."""
    while fire := trigger.after(due_ms(after)):
        after = moment_of(fire.at_ms)
        yield after


def first(trigger: Trigger, count: int, after: datetime = NOW) -> list[str]:
    return [f"{at:%y-%m-%d %H:%M}" for at in islice(times(trigger, after), count)]


def test_without_a_start_an_interval_begins_one_interval_from_now() -> None:
    trigger = stored(Trigger.every("15m", now_ms=NOW_MS))
    assert first(trigger, 2) == ["27-01-01 12:15", "27-01-01 12:30"]
    assert first(trigger, 2, NOW - 24 * HOUR) == ["27-01-01 12:15", "27-01-01 12:30"]


def test_an_interval_fires_at_its_start_and_never_after_its_end() -> None:
    trigger = stored(
        Trigger.every("90m", start="2027-01-01T10:00Z", end="2027-01-01T16:00Z", now_ms=NOW_MS)
    )
    expected = [NOW + hours * HOUR for hours in (-2, -0.5, 1, 2.5, 4)]
    assert list(times(trigger, NOW - 3 * HOUR)) == expected
    assert list(times(trigger)) == expected[2:]


@bounded(100)
@given(st.integers(1_000, 10**9), st.integers(0, 10**12), st.integers(0, 10**12))
def test_an_interval_keeps_to_its_start(every_ms: int, start_ms: int, after_ms: int) -> None:
    trigger = Trigger.every(
        timedelta(milliseconds=every_ms), start=moment_of(start_ms), now_ms=NOW_MS
    )
    fire = trigger.after(after_ms)
    assert fire.at_ms > after_ms
    assert (fire.at_ms - start_ms) % every_ms == 0
    assert fire.at_ms == start_ms or fire.at_ms - every_ms <= after_ms


@pytest.mark.parametrize("interval", ["999ms", "0s", timedelta(0)])
def test_an_interval_of_less_than_a_second_is_refused(interval: Any) -> None:
    with pytest.raises(TriggerError, match=r"fires once a second at most; .* is too short"):
        Trigger.every(interval, now_ms=NOW_MS)


@pytest.mark.parametrize(
    "options",
    [
        {"interval": "soon"},
        {"interval": timedelta(-1)},
        {"interval": "1h", "start": "tomorrow"},
        {"interval": "1h", "start": datetime(2027, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"interval": "1h", "end": "1960-01-01T00Z"},
    ],
)
def test_a_duration_or_time_that_cannot_be_read_is_refused(options: Any) -> None:
    with pytest.raises(BadTime):
        Trigger.every(**options, now_ms=NOW_MS)


def test_a_cron_fires_within_its_bounds_both_included() -> None:
    trigger = stored(
        Trigger.cron("0 9 * * *", tz=BERLIN, start="2027-01-03T08:00Z", end="2027-01-05T08:00Z")
    )
    assert first(trigger, 9) == ["27-01-03 08:00", "27-01-04 08:00", "27-01-05 08:00"]
    assert str(trigger) == (
        "cron 0 9 * * * Europe/Berlin, from 2027-01-03T08:00:00.000Z, "
        "until 2027-01-05T08:00:00.000Z"
    )


def test_a_cron_with_seconds_fires_on_them() -> None:
    found = Trigger.cron("*/20 * * * * *").fires(NOW_MS, NOW_MS + 60_000)
    assert list(found) == [Fire(NOW_MS + later_ms, "") for later_ms in (20_000, 40_000, 60_000)]


def test_fires_excludes_its_start_and_includes_its_end() -> None:
    hourly = Trigger.every("1h", start=NOW, now_ms=NOW_MS)
    found = hourly.fires(NOW_MS, NOW_MS + 2 * 3_600_000)
    assert [fire.at_ms - NOW_MS for fire in found] == [3_600_000, 7_200_000]


@pytest.mark.parametrize(
    ("trigger", "said", "zone"),
    [
        (Trigger.every("15m", now_ms=NOW_MS), "every 15m", "UTC"),
        (
            Trigger.cron("30 2 * * MON", tz="Asia/Tokyo"),
            "cron 30 2 * * mon Asia/Tokyo",
            "Asia/Tokyo",
        ),
        (Trigger.cron("@daily"), "cron 0 0 * * * UTC", "UTC"),
        (Trigger.cron("0 0 * * *", tz="+05:30"), "cron 0 0 * * * +05:30", "+05:30"),
    ],
)
def test_a_trigger_is_told_in_a_line(trigger: Trigger, said: str, zone: str) -> None:
    assert (str(trigger), repr(trigger), trigger.zone) == (said, f"<Trigger {said}>", zone)
    assert NOW.astimezone(trigger.tzinfo).utcoffset() is not None


def test_triggers_of_one_rule_are_equal() -> None:
    assert Trigger.cron("@daily") == Trigger.cron("0  0 * * *", tz=UTC)
    assert Trigger.cron("@daily") != Trigger.cron("@daily", tz=BERLIN)
    assert Trigger.every("60s", now_ms=NOW_MS) == of(
        IntervalTrigger(minutes=1, start_date=NOW + HOUR / 60)
    )
    assert Trigger.every("60s", now_ms=NOW_MS) != "every 1m"
    assert len({Trigger.cron("@daily"), Trigger.cron("0 0 * * *"), Trigger.cron("@hourly")}) == 2


def crons() -> list[CronTrigger]:
    return [
        CronTrigger(hour=2, minute=30, timezone=BERLIN),
        CronTrigger(day="last", hour=23, timezone="America/New_York"),
        CronTrigger(day="2nd fri,last mon", timezone=UTC),
        CronTrigger(month="jan-mar", day_of_week="mon-wed,sun", hour="8-18/5", timezone=UTC),
        CronTrigger(year="2027-2028", month=2, day=29, timezone=UTC),
        CronTrigger(second="*/40", timezone=UTC),
        CronTrigger(
            hour="*/7", timezone=BERLIN, start_date="2027-01-02 00:00:00", end_date="2027-01-03"
        ),
    ]


@pytest.mark.parametrize("trigger", crons(), ids=str)
def test_a_cron_trigger_fires_as_apscheduler_fires_it(trigger: CronTrigger) -> None:
    found = list(islice(times(of(trigger)), 40))
    expected, at = [], trigger.get_next_fire_time(None, NOW + timedelta(microseconds=1))
    while at is not None and len(expected) < 40:
        expected.append(at)
        at = trigger.get_next_fire_time(at, at)
    assert found == expected
    assert found


def test_a_cron_trigger_is_told_by_the_fields_that_it_restricts() -> None:
    trigger = of(CronTrigger(day="last", hour=23, timezone="America/New_York"))
    assert str(trigger) == "cron day='last' hour='23' minute='0' second='0' America/New_York"


@pytest.mark.parametrize(
    "options",
    [
        {"days": 1, "hour": 9},
        {"weeks": 2, "minute": 15, "second": 5},
        {"months": 1, "hour": 2, "start_date": date(2026, 12, 31)},
        {"months": 5, "start_date": date(2020, 1, 30)},
        {"years": 1, "start_date": date(2024, 2, 29)},
        {"months": 1, "days": 1, "start_date": date(2026, 1, 31)},
        {"days": 7, "start_date": date(2028, 1, 1), "end_date": date(2028, 1, 20)},
        {"days": 7, "start_date": datetime(2027, 1, 5, 8)},  # noqa: DTZ001 - a date to APScheduler
    ],
    ids=str,
)
def test_a_calendar_interval_fires_as_apscheduler_fires_it(options: dict[str, Any]) -> None:
    options = {"start_date": date(2026, 11, 7), "timezone": UTC} | options
    trigger = CalendarIntervalTrigger(**options)
    found = list(islice(times(of(trigger)), 20))
    if isinstance(options["start_date"], datetime):
        trigger = CalendarIntervalTrigger(**options | {"start_date": date(2027, 1, 5)})
    expected: list[datetime] = []
    at = trigger.get_next_fire_time(None, NOW)
    while at is not None and len(expected) < 20:
        expected += [at] if at > NOW else []
        at = trigger.get_next_fire_time(at, NOW)
    assert found == expected
    assert found


def test_a_calendar_interval_keeps_its_time_of_day_when_clocks_change() -> None:
    trigger = of(
        CalendarIntervalTrigger(days=1, hour=2, minute=30, start_date="2027-03-27", timezone=BERLIN)
    )
    assert first(trigger, 3) == ["27-03-27 01:30", "27-03-28 01:30", "27-03-29 00:30"]
    assert trigger.after(due_ms("2027-03-27T12:00Z"), gap="skip") == Fire(
        due_ms("2027-03-29T00:30Z")
    )
    assert str(trigger) == "every 1 days at 02:30:00 from 2027-03-27 Europe/Berlin"


def test_a_date_fires_once() -> None:
    trigger = of(DateTrigger(datetime(2027, 1, 2, 9, tzinfo=BERLIN)))
    assert list(times(trigger)) == [datetime(2027, 1, 2, 8, tzinfo=UTC)]
    assert str(trigger) == "at 2027-01-02T08:00:00.000Z"


def test_an_interval_trigger_fires_as_apscheduler_fires_it() -> None:
    options = {"start_date": NOW - 100 * HOUR, "end_date": NOW + 24 * HOUR, "timezone": BERLIN}
    found = list(times(of(IntervalTrigger(hours=7, minutes=1, **options))))
    assert found == [NOW + timedelta(minutes=7 * 60 * n + n) - 100 * HOUR for n in (15, 16, 17)]


def test_of_several_triggers_each_fires_and_in_one_moment_they_fire_once() -> None:
    parts = [CronTrigger(hour=9, timezone=UTC), CronTrigger(hour="9,15", timezone=BERLIN)]
    trigger = of(OrTrigger([*parts, DateTrigger(NOW + 2 * HOUR)]))
    expected = ["27-01-01 14:00", "27-01-02 08:00", "27-01-02 09:00", "27-01-02 14:00"]
    assert first(trigger, 4) == expected
    assert trigger.zone == "UTC"
    assert str(trigger).count(" or ") == 2


def test_triggers_that_have_to_meet_fire_when_they_do() -> None:
    friday = CronTrigger(day_of_week="fri", timezone=BERLIN)
    thirteenth = CronTrigger(day=13, timezone=BERLIN)
    trigger = of(AndTrigger([friday, thirteenth]))
    assert first(trigger, 3) == ["27-08-12 22:00", "28-10-12 22:00", "29-04-12 22:00"]
    assert trigger.zone == "Europe/Berlin"
    bounded = of(AndTrigger([friday, thirteenth]), end="2027-12-31T00:00Z")
    assert first(bounded, 3) == ["27-08-12 22:00"]


def test_triggers_may_be_put_together_of_such_that_are() -> None:
    weekend = OrTrigger([CronTrigger(day_of_week=day, timezone=UTC) for day in ("sat", "sun")])
    trigger = of(AndTrigger([weekend, CronTrigger(day="1st sun,2", timezone=UTC)]))
    assert first(trigger, 3) == ["27-01-02 00:00", "27-01-03 00:00", "27-02-07 00:00"]


def test_a_zone_that_is_given_takes_the_place_of_the_trigger_s_own() -> None:
    parts = [
        CronTrigger(hour=9, timezone=UTC),
        CalendarIntervalTrigger(days=1, hour=9, timezone=UTC),
    ]
    for trigger in (*parts, OrTrigger(parts)):
        assert first(of(trigger, tz="Asia/Tokyo"), 1) == ["27-01-02 00:00"]


def test_bounds_that_are_given_narrow_those_that_a_trigger_has() -> None:
    own = {"start_date": NOW + 48 * HOUR, "end_date": NOW + 96 * HOUR, "timezone": UTC}
    daily = CronTrigger(hour=0, **own)
    wider = {"start": NOW, "end": NOW + 960 * HOUR}
    assert first(of(daily, **wider), 9) == ["27-01-04 00:00", "27-01-05 00:00"]
    assert first(of(daily, start=NOW + 72 * HOUR), 9) == ["27-01-05 00:00"]
    assert first(of(daily, end=NOW + 72 * HOUR), 9) == ["27-01-04 00:00"]


def test_a_start_that_is_given_does_not_move_an_interval() -> None:
    hourly = IntervalTrigger(hours=1, start_date=NOW + HOUR / 4, timezone=UTC)
    assert first(of(hourly, start=NOW + 2 * HOUR), 1) == ["27-01-01 14:15"]


def endless(depth: int) -> OrTrigger:
    trigger = DateTrigger(NOW, timezone=UTC)
    for _ in range(depth):
        trigger = OrTrigger([trigger])
    return trigger


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: CronTrigger(timezone=UTC, jitter=5),
            "has a jitter, .* the schedule a jitter instead",
        ),
        (lambda: AndTrigger([DateTrigger(NOW)], jitter=5), "has a jitter"),
        (lambda: IntervalTrigger(seconds=0.5, timezone=UTC), "500ms is too short an interval"),
        (lambda: IntervalTrigger(days=-1, start_date=NOW), "interval must be between 0 and 100 y"),
        (
            lambda: CalendarIntervalTrigger(years=101, timezone=UTC),
            "of 1,212 months must be between",
        ),
        (lambda: OrTrigger([]), r"1 to 100 triggers may be put together, not 0"),
        (lambda: endless(DEPTH_MAX + 1), "triggers may be put together 10 deep at most"),
        (lambda: "0 0 * * *", "a trigger must be one of APScheduler's, not '0 0"),
    ],
)
def test_a_trigger_that_cannot_be_stored_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Trigger.of(make(), now_ms=NOW_MS)


NEVER = "would never fire"


@pytest.mark.parametrize(
    ("trigger", "said"),
    [
        (Trigger.cron("0 0 30 2 *"), rf"cron 0 0 30 2 \* UTC {NEVER}: no time fits it\."),
        (of(CronTrigger(week=53, month=6, timezone=UTC)), f"{NEVER}: no time fits it"),
        (Trigger.cron("@daily", end="2026-12-31T00Z"), f"{NEVER}: all its times are before 2027-0"),
        (Trigger.cron("@yearly", start=NOW, end=NOW + HOUR), f"{NEVER}: no time fits it"),
        (
            Trigger.cron("@daily", start="2028-01-01T00Z", end="2027-12-31T00Z"),
            f"{NEVER}: its end, 2027-12-31T00:00:00.000Z, is before its start, 2028-01-01T00:00:0",
        ),
        (
            Trigger.every("1h", start="2028-01-01T00Z", end="2027-12-31T00Z", now_ms=NOW_MS),
            f"every 1h {NEVER}: its end, .* is before its start",
        ),
        (of(DateTrigger(NOW)), "at 2027-01-01T12:00:00.000Z would never fire: all its times are "),
        (
            of(AndTrigger([DateTrigger(NOW + HOUR), DateTrigger(NOW + 2 * HOUR)])),
            f"{NEVER}: no time fits it",
        ),
        (
            of(AndTrigger([IntervalTrigger(seconds=7, start_date=NOW + n * HOUR) for n in (0, 1)])),
            "no time was found at which the triggers of every 7s and every 7s all fire: it was "
            "looked for from 2027-01-01T12:00:00.000Z to 2027-01-01",
        ),
        (
            of(
                OrTrigger(
                    [
                        DateTrigger(NOW + HOUR),
                        CronTrigger(start_date=NOW + HOUR, end_date=NOW, timezone=UTC),
                    ]
                )
            ),
            "is before its start",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_a_trigger_that_never_fires_is_refused(trigger: Trigger, said: str) -> None:
    with pytest.raises(TriggerError, match=said):
        trigger.check(NOW_MS)


@pytest.mark.parametrize(
    "trigger",
    [
        Trigger.cron("0 12 29 2 *", tz=BERLIN),
        Trigger.cron("@hourly", end=NOW + HOUR),
        of(CronTrigger(month=2, day="5th mon", timezone=UTC)),
        of(CalendarIntervalTrigger(years=100, start_date=date(2000, 2, 29), timezone=UTC)),
    ],
    ids=str,
)
def test_a_trigger_that_fires_however_rarely_is_not_refused(trigger: Trigger) -> None:
    trigger.check(NOW_MS)


def deep(depth: int) -> Any:
    given: Any = {"type": "once", "at_ms": 0}
    for _ in range(depth):
        given = {"type": "any", "parts": [given]}
    return given


EVERY = {"type": "every", "every_ms": 60_000, "first_ms": 0}
ONCE = {"type": "once", "at_ms": 0}
CRON = {"type": "cron", "text": "0 0 * * *"}
LOCAL = {"type": "local", "zone": "UTC"}
CALENDAR = {
    "type": "calendar",
    "months": 0,
    "days": 1,
    "time": "09:00:00",
    "start": "2027-01-01",
}
BOUNDED = {"type": "bounded", "start_ms": 0}


@pytest.mark.parametrize(
    "given",
    [
        EVERY,
        ONCE,
        LOCAL | {"walls": CRON},
        LOCAL | {"walls": CALENDAR},
        BOUNDED | {"rule": ONCE},
        deep(DEPTH_MAX),
    ],
    ids=lambda given: str(given)[:50],
)
def test_a_stored_trigger_is_read(given: object) -> None:
    trigger = stored(Trigger.from_json(given))
    assert json.loads(json.dumps(trigger.to_json())) == given


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        {},
        {"type": "yearly"},
        {"type": "every", "every_ms": 60_000},
        EVERY | {"every_ms": 1},
        EVERY | {"first_ms": -1},
        ONCE | {"at_ms": []},
        CRON,
        {"type": "local", "walls": CRON},
        LOCAL | {"walls": CRON | {"text": "0 0 * *"}},
        LOCAL | {"walls": CRON, "zone": "Mars/Olympus"},
        LOCAL | {"walls": CRON | {"fields": [["hour", "25"]]}},
        LOCAL | {"walls": CALENDAR | {"days": 0}},
        LOCAL | {"walls": CALENDAR | {"time": "25:00"}},
        LOCAL | {"walls": CALENDAR | {"start": "soon"}},
        BOUNDED | {"rule": LOCAL | {"walls": CRON}, "start_ms": "soon"},
        {"type": "class", "kind": "a:b", "zone": "UTC"},
        {"type": "any", "parts": []},
        {"type": "all", "parts": [ONCE] * 101},
        deep(DEPTH_MAX + 1),
        deep(200),
    ],
    ids=lambda given: str(given)[:50],
)
def test_what_is_no_stored_trigger_is_refused(given: object) -> None:
    with pytest.raises(UsageError) as caught:
        Trigger.from_json(given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


NAMES = [
    "every_ms",
    "first_ms",
    "at_ms",
    "parts",
    "rule",
    "text",
    "fields",
    "zone",
    "walls",
    "kind",
]
TYPES = ["every", "once", "bounded", "any", "all", "local", "class", "cron", "calendar"]


@bounded(200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("UTC"),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.builds(
                lambda type_, held: {"type": type_, **held},
                st.sampled_from(TYPES),
                st.dictionaries(
                    st.sampled_from([*NAMES, "walls", "kind", "state"]), inner, max_size=4
                ),
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_a_trigger_or_an_error_of_ours(given: object) -> None:
    try:
        trigger = Trigger.from_json(given)
        assert stored(trigger) == trigger
        trigger.after(NOW_MS)
    except UsageError:
        return
