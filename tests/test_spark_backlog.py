"""A backlog is what the store counts, row by row, while consumers run; and when it is done."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from spark_stores import STORES, Bench, bench, url

from pyspark_shardq import connect
from pyspark_shardq.jobs import backlog
from pyspark_shardq.jobs.backlog import MinuteLoad, Outlook, Rate
from shardq.errors import BadSetting, BadTime, UnknownQueue
from shardq.model.shard import Layout
from shardq.model.times import moment_of
from shardq.records.stats import Totals
from shardq.stores.store import Slice
from shardq.stores.tables import STATS
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pyspark_shardq.queues import SparkQueue
    from shardq import Message, Queue

pytestmark = pytest.mark.spark

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
NOON_MS = 1_800_014_400_000
FAR_MS = 1 << 52


@pytest.fixture
def here(bench: Callable[..., Bench]) -> Bench:
    return bench(lanes=3, bands=2)


def counted(queue: Queue) -> dict[tuple[int, int], tuple[int, int]]:
    """(minute, lane) -> (rows, claims), as the store counts them."""
    home = queue._home
    layout = home.register.layout
    minutes = sorted({shard.minute for shard in home.store.shards(queue.name)})
    found = home.store.count(Slice(queue.name, minutes, layout.all_lanes(), -1, FAR_MS, 1))
    return {(shard.minute, shard.lane): tally[:2] for shard, tally in found.items()}


def fill(queue: Queue) -> None:
    """Due now, soon and in years, of both priorities and of a group, and some in flight."""
    for priority in (0, 1):
        queue.put_many(
            {"body": b"x" * 300, "delay": f"{minute}m", "priority": priority}
            for minute in range(12)
            for _ in range(40 + 20 * priority)
        )
    queue.put_many({"body": "g", "delay": "90m", "group": "anna"} for _ in range(30))
    queue.put_many({"body": "far", "delay": f"{days}d"} for days in range(300, 310))
    assert len(queue.receive(7)) == 7


def check_against(queue: Queue, spark_queue: SparkQueue) -> None:
    report = backlog.run(spark_queue)

    layout = queue._home.register.layout
    rows = report.counts.collect()
    found = {(row.minute, row.lane): (row.rows, row.in_flight) for row in rows}
    assert len(rows) == len(found) == report.shards
    assert found == counted(queue)
    for row in rows:
        is_of_groups = layout.is_of_groups(row.lane)
        assert row.priority == (-1 if is_of_groups else layout.band_of(row.lane))
    assert all(row.start.timestamp() * 1_000 == layout.start_ms(row.minute) for row in rows)
    assert (report.rows, report.in_flight) == (queue.depth(exact=True).total, 7)
    assert sum(sum(bar.values()) for _, bar in report.spread.bars) == report.rows
    assert sum(load.rows for load in report.spread.lanes.values()) == report.rows
    oldest = min(message.due for message in queue.peek(1_000) if message.attempt == 0)
    assert report.oldest_ms == oldest.timestamp() * 1_000
    report.counts.unpersist()


@pytest.mark.parametrize("url", STORES, indirect=True)
def test_counts_are_those_of_the_store_row_by_row(here: Bench) -> None:
    fill(here.queue)
    check_against(here.queue, here.spark)


def test_what_a_purge_has_reached_and_what_is_far_is_not_counted(here: Bench) -> None:
    here.queue.put_many([b"old"] * 5)
    here.queue.purge()
    here.queue.put_many({"body": "new", "delay": delay} for delay in ("1m", "1m", "5h"))
    report = here.spark.backlog(ahead="1h")

    assert (report.rows, report.begun) == (2, 0)
    assert report.oldest_ms is not None
    assert report.oldest_ms > report.at_ms
    assert f"{here.queue.name} holds 2 messages" in report.line()


def test_a_report_of_an_empty_queue_says_so(here: Bench) -> None:
    report = here.spark.backlog()

    assert report.line() == f"{here.queue.name} holds no message."
    assert report.lines() == []
    assert report.line() in report.page()
    told = json.loads(json.dumps(report.to_json()))
    assert (told["messages"], told["counts"], told["oldest_due"]) == (0, [], None)


def test_a_report_tells_what_is_due_when_and_when_it_is_done(here: Bench) -> None:
    minute_ms = here.queue._home.clock.now_ms() // MINUTE_MS * MINUTE_MS
    soon, later = (moment_of(minute_ms + n * MINUTE_MS + 5_000) for n in (30, 90))
    here.queue.put_many({"body": "x", "due": soon} for _ in range(600))
    here.queue.put_many({"body": "x", "due": later, "priority": 1} for _ in range(100))
    shards = len({row.shard for row in here.rows()})
    report = here.spark.backlog(rate=5)

    held = f"{here.queue.name} holds 700 messages in {shards} shards"
    assert report.line().startswith(f"{held}; the first is due at ")
    assert "At 5/s, as given, all is done by" in report.line()
    assert [minute.rows for minute in report.hottest()] == [600, 100]
    assert "  600 messages, 10/s; lane " in report.lines()[0]
    html = report.page()
    assert html.count("data:image/png") == 3
    assert report.line() in re.sub("</?time>", "", html)
    told = json.loads(json.dumps(report.to_json()))
    assert sum(count["messages"] for count in told["counts"]) == 700
    assert told["counts_left_out"] == 0
    # 600 messages take two minutes, and the last of them is due in the first.
    assert told["latest_by_ms"] == MINUTE_MS


def test_a_queue_that_is_not_there_and_a_rate_of_none_are_errors(
    here: Bench, spark: SparkSession
) -> None:
    with pytest.raises(UnknownQueue, match="post"):
        connect(spark, "post", here.url).backlog()
    with pytest.raises(BadSetting, match="rate must be a number above 0"):
        here.spark.backlog(rate=0)
    with pytest.raises(BadTime, match="ahead"):
        here.spark.backlog(ahead="soon")


CONSUMING = """
import json, sys, threading
import shardq
from shardq.model.times import moment_of

url, name, count, every_ms = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
left, done = [count], threading.Event()

def handle(message):
    left[0] -= 1
    if not left[0]:
        done.set()

with shardq.connect(url) as db:
    queue = db.queue(name, create=False)
    start_ms = queue._home.clock.now_ms() + 5_000
    queue.put_many(
        {"body": b"x" * 200, "due": moment_of(start_ms + n * every_ms)} for n in range(count)
    )
    consumer = shardq.Consumer(queue, handle, threads=1)
    consumer.start()
    done.wait(300)
    consumer.stop()
    consumer.join()
    print(json.dumps([left[0], queue.totals().lateness.quantile(0.99)]))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_counts_are_exact_and_timers_punctual_at_500_messages_a_second(here: Bench) -> None:
    tomorrow = moment_of(here.queue._home.clock.now_ms() + 24 * HOUR_MS)
    here.queue.put_many(
        {"body": b"x" * 200, "due": tomorrow + timedelta(seconds=n % 7_200), "priority": n % 2}
        for n in range(100_000)
    )
    expected = counted(here.queue)
    here.spark.backlog().counts.unpersist()

    command = [sys.executable, "-c", CONSUMING, here.url, here.queue.name, "15000", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consuming:
        looks = 0
        while consuming.poll() is None:
            report = here.spark.backlog()
            rows = report.counts.collect()
            found = {(row.minute, row.lane): (row.rows, row.in_flight) for row in rows}
            assert {place: found[place] for place in expected} == expected
            assert report.rows <= 115_000
            report.counts.unpersist()
            looks += 1
        assert consuming.stdout is not None
        left, p99_ms = json.loads(consuming.stdout.read())
    assert (left, consuming.returncode) == (0, 0)
    assert counted(here.queue) == expected
    assert looks >= 3
    assert p99_ms < 50, f"{looks} looks, p99 {p99_ms:.1f} ms"


# When it is done ----------------------------------------------------------------------------------


def minute(number: int, rows: int) -> MinuteLoad:
    """The load of the minute `number` minutes after noon."""
    return MinuteLoad(NOON_MS + number * MINUTE_MS, rows, 0, rows, 0)


def after(minutes: float) -> int:
    return NOON_MS + round(minutes * MINUTE_MS)


@pytest.mark.parametrize(
    ("minutes", "rate", "expected"),
    [
        ([], 1, None),
        ([minute(-5, 10)], 0, Outlook(None, None, None)),
        # 120 at one a second take two minutes.
        ([minute(-5, 120)], 1, Outlook(after(2), after(2), (after(-5), 6 * MINUTE_MS))),
        # Half of a minute is free before the next one comes.
        ([minute(-1, 30), minute(1, 6)], 1, Outlook(after(0.5), after(2), (after(-1), 30_000))),
        # The queue has caught up once the messages that come due meanwhile are done too.
        (
            [minute(-1, 120), minute(1, 60), minute(9, 1)],
            1,
            Outlook(after(3), after(10), (after(-1), 120_000)),
        ),
        # Nothing waits now, and the rate does.
        ([minute(4, 60)], 1, Outlook(after(0), after(5), None)),
        ([minute(4, 180)], 1, Outlook(after(0), after(7), (after(4), 120_000))),
    ],
)
def test_the_outlook_works_off_what_is_due_first(
    minutes: list[MinuteLoad], rate: float, expected: Outlook | None
) -> None:
    assert backlog.outlook(minutes, MINUTE_MS, NOON_MS, rate) == expected


@pytest.mark.parametrize(
    ("past_s", "expected"),
    [
        # Young: with the hour before.
        (300, Rate(3_900 / 3_900, 13_000 / 3_900, NOON_MS - HOUR_MS, 3_900_000)),
        (1_800, Rate(300 / 1_800, 1_000 / 1_800, NOON_MS, 1_800_000)),
    ],
)
def test_the_rate_is_that_of_the_present_hour_and_while_it_is_young_of_two(
    past_s: float, expected: Rate
) -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        home = queue._home
        stage.clock.advance((NOON_MS - home.clock.now_ms()) / 1_000)
        layout: Layout = home.register.layout
        hour = layout.minute_of(NOON_MS)
        stored = [
            (hour - 120, "a", Totals(put=10**6, acked=10**6)),
            (
                hour - 60,
                "a",
                Totals(put=12_000, acked=3_000, buried=300, cancelled=200, purged=100),
            ),
            (hour, "a", Totals(put=600, acked=200, retried=50)),
            (hour, "b", Totals(put=400, acked=100)),
        ]
        for at, member, totals in stored:
            home.store.note(STATS, (home.register.totals_key,), {(at, member): totals.to_json()})
        stage.clock.advance(past_s)

        found = backlog.present_rate(home.store, home.register, home.clock.now_ms())

    assert found == expected


def test_a_queue_made_in_this_hour_is_judged_from_then_on() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        home = queue._home
        made_ms = home.clock.now_ms()
        assert backlog.present_rate(home.store, home.register, made_ms) is None
        stage.clock.advance(100)
        layout = home.register.layout
        hour = layout.minute_of(made_ms - made_ms % HOUR_MS)
        home.store.note(
            STATS, (home.register.totals_key,), {(hour, "a"): Totals(acked=50).to_json()}
        )

        found = backlog.present_rate(home.store, home.register, home.clock.now_ms())

    assert found == Rate(0.5, 0.0, made_ms, 100_000)
    assert str(found).startswith("0.5/s, as many as left since ")
