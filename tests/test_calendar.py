"""The load ahead: what is counted, by whose clocks, which minutes are hot, and when all is done."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_triggers import Failing
from stages import either_stage  # noqa: F401 - a fixture
from worlds import World, on_each_store

from shardq import Consumer
from shardq.errors import BadTime
from shardq.inspection.calendar import FIRINGS_MAX, Calendar, CalendarCounter, Load
from shardq.inspection.depth import Depth
from shardq.inspection.grid import By, Grid, by_of, lay_out
from shardq.inspection.outlook import backlog, clock, hot_minutes
from shardq.inspection.pace import Pace, pace_of
from shardq.model.times import due_ms, moment_of
from shardq.records.folded import stored_totals
from shardq.schedules.policy import Policies
from shardq.schedules.triggers.trigger import Trigger
from shardq.schedules.triggers.zones import zone_of
from shardq.server.stretches import ahead_by
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq import Queue

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
NOON_MS = due_ms("2026-11-26T12:00:00Z")
BERLIN = ZoneInfo("Europe/Berlin")
UTC = ZoneInfo("UTC")


def ahead(queue: Queue, hours: float = 1, **given: object) -> Calendar:
    home = queue._home
    # Store the counts now: other processes would see them 2 s later.
    home.stats.store()
    now_ms = home.clock.now_ms()
    counter = CalendarCounter(home, given.pop("told", None))
    return counter.count(now_ms, now_ms + round(hours * HOUR_MS), **given)


def offsets(calendar: Calendar) -> dict[int, Load]:
    """Minutes from that of now on -> what comes due in them."""
    first_ms = calendar.at_ms - calendar.at_ms % MINUTE_MS
    return {(start - first_ms) // MINUTE_MS: load for start, load in calendar.minutes.items()}


# What is counted ----------------------------------------------------------------------------------


def test_messages_that_wait_are_counted_in_the_minute_of_their_due(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=3)
    queue.put("now")
    queue.put_many([{"body": "soon", "delay": "5m", "priority": 2}] * 3)
    queue.put("later", delay="59m")
    queue.put("too late", delay="61m")
    found = ahead(queue)
    assert offsets(found) == {5: Load(3), 59: Load(1)}
    assert (found.depth.ready, found.load, found.later) == (1, Load(4), 1)


def test_what_is_in_flight_is_no_load_ahead(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x")
    assert queue.receive(1, visibility="10m", wait="1s")
    queue.put("y", delay="10m")
    assert ahead(queue).load == Load(1)


def test_what_a_purge_has_reached_is_no_load_ahead(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("old", delay="10m")
    stage.clock.advance(1)
    queue.purge()
    stage.clock.advance(1)
    queue.put("new", delay="20m")
    assert list(ahead(queue).minutes.values()) == [Load(1)]
    assert ahead(queue).later == 0


@pytest.mark.parametrize("minute", ["1s", "7s", "10m"])
def test_a_queue_s_own_minutes_may_be_shorter_or_longer(stage: Stage, minute: str) -> None:
    queue = stage.connect().queue("mail", minute=minute)
    for seconds in (30, 95, 100, 400):
        queue.put("x", delay=f"{seconds}s")
    base_ms = stage.clock.now_ms() % MINUTE_MS
    wanted = {}
    for seconds in (30, 95, 100, 400):
        offset = (base_ms + seconds * 1_000) // MINUTE_MS
        wanted[offset] = Load(wanted.get(offset, Load()).rows + 1)
    assert offsets(ahead(queue)) == wanted


def test_weeks_ahead_are_found_and_it_tells_how_far_it_is(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=2)
    for days in (1, 9, 29, 40):
        queue.put_many([{"body": "x", "delay": f"{days}d"}] * days)
    told: list[tuple[str, int, int | None]] = []
    found = ahead(queue, hours=30 * 24, told=lambda *progress: told.append(progress))
    days = {minute // 1_440: load.rows for minute, load in offsets(found).items()}
    assert days == {1: 1, 9: 9, 29: 29}
    assert found.later == 40
    assert told


def test_firings_ahead_are_counted_beside_the_rows(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x", delay="5m")
    asked = []

    def firings(after_ms: int, until_ms: int) -> list[tuple[int, int]]:
        asked.append((after_ms, until_ms))
        return [(after_ms + 5 * MINUTE_MS, 2), (after_ms + 7 * MINUTE_MS, 1)]

    found = ahead(queue, firings=firings)
    assert offsets(found) == {5: Load(1, 2), 7: Load(0, 1)}
    assert asked == [(found.at_ms, found.until_ms - 1)]
    assert (found.load.total, found.later) == (4, 0)


def test_more_firings_than_can_be_counted_are_counted_up_to_a_time(stage: Stage) -> None:
    queue = stage.connect().queue("mail")

    def endless(after_ms: int, _: int) -> Iterator[tuple[int, int]]:
        for number in count(1):
            yield after_ms + number, 1

    found = ahead(queue, firings=endless)
    assert found.load.firings == FIRINGS_MAX
    assert found.fired_until_ms == found.at_ms + FIRINGS_MAX + 1


def test_a_forecast_counts_what_schedules_will_put(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x", delay="5m")
    assert sum(count for _, count in queue.forecast("10m")) == 1
    queue.every("2m", b"", name="sync")
    counts = [count for _, count in queue.forecast("10m")]
    assert (sum(counts), counts[2], counts[5]) == (6, 1, 1)
    consumer = Consumer(queue, lambda _: None)
    stage.drive(consumer, seconds=121)
    assert sum(count for _, count in queue.forecast("8m")) == 1 + 4


@on_each_store
def test_each_store_counts_the_same(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put_many([{"body": "x", "delay": delay} for delay in ("3m", "3m", "2h", "20d", "50d")])
    queue.every("90m", b"", name="sync", end=moment_of(world.clock.now_ms() + 4 * HOUR_MS))
    near, far = ahead(queue, hours=3), ahead(queue, hours=30 * 24)
    assert [load.rows for load in near.minutes.values() if load.rows] == [2, 1]
    assert [load.rows for load in far.minutes.values() if load.rows] == [2, 1, 1]
    assert (near.later, far.later) == (2, 1)
    assert sum(count for _, count in queue.forecast("3h")) == 3 + 2
    counted = ahead(queue, hours=5, firings=queue.schedules._home.firings)
    assert counted.load == Load(3, 2)


# What schedules will put --------------------------------------------------------------------------


def fired(queue: Queue, minutes: int) -> list[int]:
    """Seconds from now on at which messages of schedules will be due."""
    now_ms = queue._home.clock.now_ms()
    told = queue.schedules._home.firings(now_ms, now_ms + minutes * MINUTE_MS)
    return [(due_ms - now_ms) // 1_000 for due_ms, _ in told]


def test_all_schedules_of_a_queue_are_ahead_in_the_order_of_their_due(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.every("90s", b"", name="a")
    queue.every("1m", b"", name="b", count=2)
    queue.every("20s", b"", name="c").pause()
    queue.every("4m", b"", name="d", spread="1m")
    late = round(240 + Policies(spread_ms=MINUTE_MS).late_ms("d", 0) / 1_000)
    assert fired(queue, 5) == pytest.approx(sorted([60, 120, 90, 180, 270, late]), abs=1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times after which triggers are asked for their next one."""
    asked: list[int] = []
    after = Trigger.after

    def counted(self: Trigger, after_ms: int, **more: object) -> object:
        asked.append(after_ms)
        return after(self, after_ms, **more)

    monkeypatch.setattr(Trigger, "after", counted)
    return asked


def test_schedules_that_share_a_cron_ask_for_each_fire_time_once(
    stage: Stage, asked: list[int]
) -> None:
    queue = stage.connect().queue("mail")
    for number in range(20):
        queue.cron("* * * * *", b"", name=f"s{number}", jitter="20s")
    asked.clear()
    assert len(fired(queue, 60)) == pytest.approx(20 * 60, abs=20)
    assert len(asked) <= 62


def test_what_nobody_was_there_for_is_not_ahead_and_not_visited(
    stage: Stage, asked: list[int]
) -> None:
    queue = stage.connect().queue("mail")
    queue.every("1m", b"", name="sync")
    stage.clock.advance(86_430)
    asked.clear()
    assert fired(queue, 3) == [30, 90, 150]
    assert len(asked) <= 5


def test_a_trigger_that_fails_leaves_the_others_to_be_seen(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.every("2h", b"", name="well")
    now = moment_of(stage.clock.now_ms())
    queue.schedule(Failing(now + timedelta(minutes=90)), b"", name="ill")
    assert [seconds // 3_600 for seconds in fired(queue, 300)] == [1, 2, 2, 4]


# How fast it is worked ----------------------------------------------------------------------------


def pace(queue: Queue) -> Pace | None:
    home = queue._home
    home.stats.store()
    stored = stored_totals(home.store, home.register.totals_key)
    made_ms = home.register.settings.lane_made_ms(0)
    return pace_of(stored, home.clock.now_ms(), made_ms)


def to_next_minute(stage: Stage) -> None:
    stage.clock.advance(60 - stage.clock.true_us() % 60_000_000 / 1e6)


def test_the_pace_is_what_was_delivered_in_the_last_two_minutes(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    to_next_minute(stage)
    to_next_minute(stage)
    assert pace(queue) is None
    consumer = Consumer(queue, lambda _: None)
    queue.put_many("x" for _ in range(240))
    stage.drive(consumer, seconds=20)
    to_next_minute(stage)
    queue.put_many("x" for _ in range(40))
    stage.drive(consumer, seconds=59)
    found = pace(queue)
    assert found.over_ms == pytest.approx(119_000, abs=1_500)
    assert found.done == pytest.approx(280 / 119, rel=0.02)
    assert found.best == pytest.approx(240 / 60, rel=0.02)
    assert not found.is_limit


def test_the_pace_of_few_deliveries_is_that_of_five_minutes(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    for _ in range(6):
        to_next_minute(stage)
    consumer = Consumer(queue, lambda _: None)
    for _ in range(4):
        queue.put_many("x" for _ in range(3))
        stage.drive(consumer, seconds=60)
    found = pace(queue)
    assert found.over_ms == pytest.approx(4 * 60_000, abs=1_500)
    assert found.done == pytest.approx(12 / 240, rel=0.02)


def test_late_deliveries_of_two_minutes_tell_what_consumers_can_do(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many("x" for _ in range(100))
    to_next_minute(stage)
    consumer = Consumer(queue, lambda _: stage.clock.advance(2))
    stage.drive(consumer, seconds=50)
    first = pace(queue)
    assert not first.is_limit
    stage.drive(consumer, seconds=80)
    found = pace(queue)
    assert found.is_limit
    assert found.best == pytest.approx(0.5, rel=0.1)


def test_what_was_due_while_nobody_was_there_tells_no_limit(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many("x" for _ in range(100))
    stage.clock.advance(30)
    to_next_minute(stage)
    consumer = Consumer(queue, lambda _: None)
    stage.drive(consumer, seconds=60)
    queue.put("x")
    stage.drive(consumer, seconds=60)
    found = pace(queue)
    assert found.best == pytest.approx(100 / 60, rel=0.1)
    assert not found.is_limit


def test_many_that_are_put_at_once_are_no_rate(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer = Consumer(queue, lambda _: None)
    to_next_minute(stage)
    for minute in range(4):
        if minute == 2:
            queue.put_many("x" for _ in range(2_000))
        for _ in range(6):
            queue.put_many("x" for _ in range(20))
            stage.drive(consumer, seconds=10)
    found = pace(queue)
    assert found.put == pytest.approx(2, rel=0.2)


# By whose clocks ----------------------------------------------------------------------------------


def cells(grid: Grid) -> list[tuple[int, int]]:
    return sorted(cell for row in grid.rows for cell in row.cells if cell is not None)


def row_of(grid: Grid, label: str) -> list[int | None]:
    """Minutes of the cells of a row, None where there is none."""
    [row] = [row for row in grid.rows if row.label == label]
    return [None if one is None else (one.end_ms - one.start_ms) // MINUTE_MS for one in row.cells]


@given(
    st.integers(due_ms("2020-01-01T00:00:00Z"), due_ms("2037-01-01T00:00:00Z")),
    st.sampled_from(sorted(available_timezones())),
    st.sampled_from([HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS, DAY_MS, 8 * DAY_MS, 60 * DAY_MS]),
)
def test_the_cells_cover_the_time_ahead_without_a_gap(at_ms: int, zone: str, ms: int) -> None:
    grid = lay_out(at_ms, ms, by_of(ms), ZoneInfo(zone))
    covered = cells(grid)
    assert covered[0][0] == grid.at_ms == at_ms
    assert covered[-1][1] == grid.until_ms
    assert all(end == start for (_, end), (start, _) in pairwise(covered))
    assert 0 <= grid.until_ms - at_ms - ms <= HOUR_MS
    if grid.by is By.HOUR:
        for row in grid.rows[1:-1]:
            day = moment_of(next(filter(None, row.cells)).start_ms).astimezone(ZoneInfo(zone))
            hours = sum(end - start for start, end in filter(None, row.cells)) / HOUR_MS
            assert f"{day:%a %-d %b}" == row.label
            assert hours == hours_of(day, ZoneInfo(zone))


def hours_of(day: datetime, zone: ZoneInfo) -> float:
    """How long a local day is, by the instants of its midnights."""
    begin = datetime(day.year, day.month, day.day, tzinfo=zone)
    ends = begin + timedelta(days=1)
    return (ends.timestamp() - begin.timestamp()) / 3_600


def test_a_day_on_which_clocks_go_back_has_25_hours() -> None:
    at_ms = due_ms("2026-10-24T00:00:00+02:00")
    grid = lay_out(at_ms, 3 * DAY_MS, By.HOUR, BERLIN)
    assert grid.columns[:5] == ("0", "1", "2", "2b", "3")
    assert row_of(grid, "Sun 25 Oct") == [60] * 25
    assert row_of(grid, "Sat 24 Oct") == [60, 60, 60, None, *[60] * 21]
    assert grid.changes == ("Sun 25 Oct: clocks go back from 03:00 to 02:00, so 02:00 comes twice",)


def test_a_day_on_which_clocks_go_forward_has_23_hours() -> None:
    grid = lay_out(due_ms("2026-03-28T00:00:00+01:00"), 3 * DAY_MS, By.HOUR, BERLIN)
    assert len(grid.columns) == 24
    assert row_of(grid, "Sun 29 Mar") == [60, 60, None, *[60] * 21]
    assert grid.changes == ("Sun 29 Mar: clocks go forward from 02:00 to 03:00",)


def test_half_an_hour_that_comes_twice_has_a_column_of_its_own() -> None:
    zone = ZoneInfo("Australia/Lord_Howe")
    grid = lay_out(due_ms("2026-04-04T12:00:00+11:00"), DAY_MS, By.HOUR, zone)
    assert grid.columns[:4] == ("0", "1", "1b", "2")
    assert row_of(grid, "Sun 5 Apr")[:4] == [60, 60, 30, 60]


def test_hours_are_whole_where_clocks_are_set_at_a_quarter() -> None:
    zone = ZoneInfo("Pacific/Chatham")
    back = lay_out(due_ms("2027-04-04T00:00:00+13:45"), 8 * HOUR_MS, By.HOUR, zone)
    assert back.columns[:6] == ("0", "1", "2", "2b", "3", "3b")
    assert row_of(back, "Sun 4 Apr")[:7] == [60, 60, 60, 15, 45, 60, 60]
    assert [end for _, end in cells(back)[:-1]] == [start for start, _ in cells(back)[1:]]
    forward = lay_out(due_ms("2027-09-26T00:00:00+12:45"), 8 * HOUR_MS, By.HOUR, zone)
    assert row_of(forward, "Sun 26 Sep")[:5] == [60, 60, 45, 15, 60]


def test_by_minute_an_hour_that_comes_twice_has_two_rows_with_their_zones() -> None:
    grid = lay_out(due_ms("2026-10-25T00:30:00+02:00"), 5 * HOUR_MS, By.MINUTE, BERLIN)
    labels = [row.label for row in grid.rows]
    assert labels == ["00:00", "01:00", "02:00 CEST", "02:00 CET", "03:00", "04:00"]
    spring = lay_out(due_ms("2026-03-29T00:30:00+01:00"), 3 * HOUR_MS, By.MINUTE, BERLIN)
    assert [row.label for row in spring.rows] == ["00:00", "01:00", "03:00", "04:00"]


def test_an_hour_is_shown_by_ten_minutes_and_a_day_by_five() -> None:
    hour = lay_out(NOON_MS + 23 * MINUTE_MS + 20_000, HOUR_MS, By.MINUTE, UTC)
    assert hour.columns == tuple(f"+{n}" for n in range(10))
    assert [row.label for row in hour.rows][:2] == ["12:20", "12:30"]
    assert [one is None for one in hour.rows[0].cells[:4]] == [True, True, True, False]
    day = lay_out(NOON_MS, DAY_MS, By.MINUTE, UTC)
    assert day.columns[:3] == (":00", ":05", ":10")
    assert [row.label for row in day.rows][11:14] == ["23:00", "Fri 00:00", "01:00"]
    weeks = lay_out(NOON_MS, 30 * DAY_MS, By.DAY, UTC)
    assert weeks.columns == ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    assert [row.label for row in weeks.rows][:3] == ["23 Nov", "30 Nov", "7 Dec"]


@pytest.mark.parametrize(
    ("horizon_ms", "by"),
    [
        (0, By.MINUTE),
        (MINUTE_MS - 1, By.MINUTE),
        (2 * DAY_MS + 1, By.MINUTE),
        (62 * DAY_MS + 1, By.HOUR),
        (366 * DAY_MS + 1, By.DAY),
    ],
)
def test_a_horizon_that_is_out_of_bounds_is_refused(horizon_ms: int, by: By) -> None:
    with pytest.raises(BadTime, match=f"where a cell is a {by}"):
        lay_out(NOON_MS, horizon_ms, by, UTC)


def test_every_load_is_in_the_cell_of_its_time() -> None:
    at_ms = NOON_MS + 30_000
    grid = lay_out(at_ms, 3 * DAY_MS, By.HOUR, BERLIN)
    minutes = {NOON_MS + n * 7 * MINUTE_MS: Load(n, 1) for n in range(500)}
    found = grid.loads(calendar(minutes, at_ms=at_ms, until_ms=grid.until_ms).minutes)
    for cell, load in found.items():
        first_ms = cell.start_ms - cell.start_ms % MINUTE_MS
        own = [one for start, one in minutes.items() if first_ms <= start < cell.end_ms]
        assert load == Load(sum(one.rows for one in own), len(own))


# What it means ------------------------------------------------------------------------------------


def calendar(
    minutes: dict[int, Load],
    *,
    ready: int = 0,
    pace: Pace | None = None,
    at_ms: int = NOON_MS,
    until_ms: int = NOON_MS + HOUR_MS,
    consumers: int = 1,
) -> Calendar:
    depth = Depth(ready, sum(load.rows for load in minutes.values()), 0, exact=True)
    return Calendar("mail", at_ms, until_ms, minutes, depth, pace, consumers)


def at(done: float, put: float = 0, *, best: float = 0, limit: bool = False) -> Pace:
    return Pace(done, 90_000, put, max(best, done), limit)


def minute(number: int) -> int:
    return NOON_MS + number * MINUTE_MS


def test_a_backlog_clears_by_what_is_done_less_what_comes_in() -> None:
    found = backlog(calendar({}, ready=2_310, pace=at(38, 4)))
    assert found.clear_ms is not None
    assert (found.clear_ms - NOON_MS) / 1_000 == pytest.approx(2_310 / 34, abs=0.01)
    assert found.line(UTC) == (
        "2,310 due now; 38/s are done at present, 4/s come in: clear in 1m8s (about 12:01:07)."
    )


def test_what_comes_due_meanwhile_is_worked_off_as_well() -> None:
    # 60 a second for the first ten minutes, which is more than is put.
    busy = {minute(n): Load(0, 3_600) for n in range(10)}
    found = backlog(calendar(busy, ready=100, pace=at(50, 5)))
    left = 100 + 10 * 60 * (60 - 50)
    assert found.clear_ms is not None
    assert (found.clear_ms - minute(10)) / 1_000 == pytest.approx(left / 45, abs=0.01)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ready": 0, "pace": at(5)}, "Nothing that is due waits."),
        ({"ready": 9, "pace": at(4, 4)}, "it does not clear at this rate."),
        ({"ready": 10**9, "pace": at(38, 4)}, "it does not clear at this rate."),
        ({"ready": 9}, "no rate known: nothing was delivered in the last 5 minutes."),
        ({"ready": 9, "pace": at(5), "consumers": 0}, "9 due now; nobody consumes the queue."),
    ],
)
def test_a_backlog_that_does_not_clear_says_why(given: dict[str, object], said: str) -> None:
    found = backlog(calendar({}, **given))
    assert found.clear_ms is None
    assert found.line(UTC).endswith(said)


def test_a_backlog_of_a_paused_queue_does_not_clear() -> None:
    found = backlog(replace(calendar({}, ready=9, pace=at(5)), is_paused=True))
    assert found.clear_ms is None
    assert found.line(UTC) == "9 due now; the queue is paused: nothing is delivered."


def test_a_minute_with_more_than_consumers_can_do_is_hot() -> None:
    pace = at(40, limit=True)
    found = calendar(
        {minute(3): Load(40 * 70), minute(5): Load(12_000), minute(9): Load(9_000, 3_000)},
        pace=pace,
    )
    first, second = hot_minutes(found)
    assert (first.start_ms, second.start_ms) == (minute(9), minute(5))
    # The later one waits for what the earlier one has left after four minutes.
    left = 12_000 - 4 * 60 * 40
    assert (second.late_ms, first.late_ms) == (12_000 / 40 * 1_000, (left + 12_000) / 40 * 1_000)
    assert first.line(found, UTC) == (
        "12:09: 12,000 due, 200/s; consumers do 40/s at most, so the last begins 6m late, "
        "about 12:15:00"
    )


def test_a_minute_with_more_than_its_rate_allows_is_hot() -> None:
    minutes = {minute(9): Load(900, 300), minute(20): Load(690)}
    found = replace(calendar(minutes), allowed=10.0)
    [hot] = hot_minutes(found)
    assert hot.line(found, UTC) == (
        "12:09: 1,200 due, 20/s; its rate allows 10/s at most, so the last begins 2m late, about "
        "12:11:00"
    )
    busy = replace(calendar(minutes, pace=at(5, limit=True)), allowed=10.0)
    assert "consumers do 5/s at most" in hot_minutes(busy)[0].line(busy, UTC)


def test_a_forecast_says_when_messages_begin_by_the_rate_of_their_queue(stage: Stage) -> None:
    now_ms = stage.clock.now_ms()
    stage.clock.advance((MINUTE_MS - now_ms % MINUTE_MS) / 1_000)
    queue = stage.connect().queue("mail", limits={"rate": ["10/s", "540/m"], "burst": 3})
    queue.put_many({"body": "x"} for _ in range(100))
    queue.put_many({"body": "x", "delay": "180s"} for _ in range(1_200))

    def counts(*, begin: bool) -> list[int]:
        return [count for _, count in queue.forecast("6m", begin=begin)]

    assert counts(begin=False) == [0, 0, 0, 1_200, 0, 0, 0]
    assert counts(begin=True) == [100, 0, 0, 540, 540, 120, 0]
    queue.alter(limits="off")
    assert counts(begin=True) == [100, 0, 0, 1_200, 0, 0, 0]


def test_a_calendar_reckons_with_the_rate_of_its_queue(stage: Stage) -> None:
    home = stage.connect().queue("mail", limits={"rate": "30/m"})._home
    counter = CalendarCounter(home)
    assert counter.count(stage.clock.now_ms(), stage.clock.now_ms() + HOUR_MS).allowed == 0.5


def test_without_a_limit_a_minute_far_above_the_others_is_hot() -> None:
    usual = {minute(n): Load(30) for n in range(20)}
    assert hot_minutes(calendar(usual | {minute(30): Load(150)})) == []
    found = calendar(usual | {minute(30): Load(3_000), minute(31): Load(600)})
    [hot] = hot_minutes(found)
    assert (hot.start_ms, hot.end_ms, hot.total, hot.most) == (minute(30), minute(32), 3_600, 3_000)
    assert hot.line(found, UTC) == "12:30 to 12:31: 3,600 due, up to 50/s; other minutes have 30"


def test_a_minute_that_was_done_in_time_lately_is_not_hot() -> None:
    usual = {minute(n): Load(30) for n in range(20)} | {minute(30): Load(3_000)}
    assert hot_minutes(calendar(usual, pace=at(2, best=51))) == []
    found = calendar(usual, pace=at(2, best=20))
    [hot] = hot_minutes(found)
    assert hot.line(found, UTC).endswith(
        "other minutes have 30, and the best of the last 5 minutes had 20/s"
    )


def test_few_messages_are_never_far_above_others() -> None:
    assert hot_minutes(calendar({minute(3): Load(60)})) == []
    [hot] = hot_minutes(found := calendar({minute(3): Load(61)}))
    assert hot.line(found, UTC) == "12:03: 61 due, 1/s; other minutes have none"


def test_the_year_is_named_where_it_is_another_one() -> None:
    new_year_ms = due_ms("2027-01-01T00:30Z")
    assert clock(new_year_ms, NOON_MS, UTC) == "Fri 1 Jan 2027 00:30:00"
    assert clock(new_year_ms, NOON_MS, UTC, seconds=False) == "Fri 1 Jan 2027 00:30"
    assert clock(NOON_MS, NOON_MS - DAY_MS, UTC, seconds=False) == "Thu 26 Nov 12:00"


def test_the_day_is_named_where_it_is_another_one() -> None:
    found = calendar({minute(13 * 60): Load(100)}, until_ms=NOON_MS + DAY_MS)
    assert hot_minutes(found)[0].line(found, UTC).startswith("Fri 27 Nov 01:00: 100 due")
    assert hot_minutes(found)[0].line(found, BERLIN).startswith("Fri 27 Nov 02:00: 100 due")


# Firings by day -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_firings_counted_by_day_are_those_that_are_visited(stage: Stage, seed: int) -> None:
    chance = random.Random(seed)
    queue = stage.connect().queue("mail")
    zones = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
    for number in range(5):
        minute, hour = chance.choice(("*/20", "30", "0")), chance.choice(("*", "2", "1-3", "*/5"))
        clock: Any = {"tz": chance.choice(zones)}
        clock |= chance.choice(({}, {"twice": "both"}, {"twice": "last"}, {"gap": "skip"}))
        other: Any = chance.choice(({}, {}, {"count": 40}, {"jitter": "50s"}, {"spread": "20s"}))
        queue.cron(f"{minute} {hour} * * *", "a", name=f"c{number}", **clock, **other)
        queue.every(f"{chance.randrange(200, 9_000)}m", "a", name=f"e{number}", **other)
    queue.cron("0 5 * * *", "a", name="bounded", start="2027-02-10T00:00Z", end="2027-04-01T00:00Z")
    queue.schedules["e1"].pause()
    book, at_ms = queue.schedules._home, stage.clock.true_ms() + chance.randrange(10**7)
    # Some fire times have been missed by then.
    grid = lay_out(at_ms, 100 * DAY_MS, By.DAY, zone_of(chance.choice(zones)))
    cells = sorted(cell for row in grid.rows for cell in row.cells if cell is not None)
    expected: Counter[int] = Counter()
    for at, number in book.firings(at_ms, grid.until_ms - 1):
        expected[next(one.start_ms for one in cells if at < one.end_ms)] += number
    found: Counter[int] = Counter()
    for start_ms, number in ahead_by(book.records({}).values(), cells):
        found[start_ms] += number
    assert found == expected, f"seed {seed}"
    assert sum(found.values()) > 500
