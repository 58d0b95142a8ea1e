"""Scheduling from Spark: the same rows whoever tries how often, and taking them back."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it
from spark_stores import STORES, Bench, bench, broken, failing, killed, url

import shardq
from pyspark_shardq import connect
from pyspark_shardq.jobs import schedule
from pyspark_shardq.runs import SparkRun
from pyspark_shardq.source import ShardqDataSource
from shardq import Consumer, Queue
from shardq.errors import BadSetting, BadTime, ShardqError, UnknownQueue, UsageError
from shardq.model import ids
from shardq.model.message import Row
from shardq.model.times import ceil_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 1_200
_FROM = datetime(2040, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def people(spark: SparkSession) -> DataFrame:
    """Most of them due in one minute; each tenth is there twice."""
    rows = []
    for number in range(ROWS):
        due = _FROM + timedelta(seconds=number % 60 if number % 5 else number)
        rows += [(f"kunde-{number}", due, number % 3, f"grüße {number}")] * (2 - bool(number % 10))
    return spark.createDataFrame(rows, "id string, at timestamp, priority int, text string")


def expected(here: Bench, people: DataFrame, run: str) -> list[Row]:
    """The rows that a run writes, by the core's own arithmetic."""
    layout = here.queue._home.register.layout
    as_of_us = SparkRun.read(run).as_of_us
    rows = set()
    for key, due, priority, text in people.collect():
        due_ms = ceil_ms(int(due.timestamp() * 1_000) * 1_000)
        name = f"{key}\0{due_ms}" + (f"\0{priority}\0" if priority else "")
        shard = layout.shard(due_ms, layout.named_lane(key, priority))
        body = text.encode()
        rows.add(Row(shard, due_ms, ids.fixed(as_of_us, name), body, None, 0, None, key))
    return sorted(rows, key=lambda row: row[:3])


def planned(here: Bench, people: DataFrame, **given: Any) -> schedule.Plan:
    asked = {"key": "id", "due": "at", "body": "text", "priority": "priority", "bins": 3}
    return here.spark.schedule(people, **(asked | given))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "PIECE_ROWS", 150)


# The same rows ------------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_tasks_that_are_killed_write_the_same_rows_and_what_is_finished_stays_finished(
    spark: SparkSession, bench: Callable[..., Bench], people: DataFrame
) -> None:
    here = bench(bands=3, history="1d")
    plan = planned(here, people)
    assert plan.preview().rows == len(people.collect())
    assert max(plan.preview().bins) <= 1.1 * sum(plan.preview().bins) / 3
    spark.dataSource.register(failing(killed))
    plan._agree(plan.preview())
    plan.writer("report").format("failing").save()
    wanted = expected(here, people, plan.run_id)

    assert here.rows() == wanted
    assert plan._line("report") | {"bytes": 0} == {
        "rows": ROWS,
        # The rows that the killed tasks had written.
        "found": plan._line("report")["found"],
        "duplicates": len(people.collect()) - ROWS,
        "bytes": 0,
    }
    assert plan._line("report")["found"] >= 3 * 150

    # Finished meanwhile, and written once more.
    done = here.rows()[::2]
    here.queue._settler.finish(done, shardq.records.ledger.End.ACKED)
    report = planned(here, people, run=plan.run_id).run()

    assert (report.rows, report.found) == (ROWS, ROWS)
    assert here.rows() == wanted[1::2]
    assert here.queue.totals().put == ROWS
    balance = here.queue.audit().total
    assert (balance.put, balance.acked, balance.waiting) == (ROWS, ROWS // 2, ROWS // 2)
    assert here.queue.audit().misfits == []


def test_twins_and_a_run_that_is_resumed_write_the_same_rows_and_no_others(
    spark: SparkSession, bench: Callable[..., Bench], people: DataFrame
) -> None:
    here = bench(bands=3)
    run = SparkRun.at(here.db._home.clock.now_us()).id
    reports: list[schedule.Report] = []
    # The second was planned for fewer tasks at a time.
    plans = [planned(here, people, run=run, bins=bins) for bins in (3, 2)]

    def take_part(plan: schedule.Plan) -> None:
        reports.append(plan.run())

    twins = [threading.Thread(target=take_part, args=(one,)) for one in plans]
    for twin in twins:
        twin.start()
    for twin in twins:
        twin.join()

    assert here.rows() == expected(here, people, run)
    assert [report.rows for report in reports] == [ROWS] * 2

    other = bench(bands=3)
    plan = planned(other, people)
    spark.dataSource.register(failing(broken))
    plan._agree(plan.preview())
    with pytest.raises(Exception, match="the cluster is gone"):
        plan.writer().format("failing").save()
    half = other.rows()
    assert 0 < len(half) < ROWS
    report = planned(other, people, run=plan.run_id).run()

    assert other.rows() == expected(other, people, plan.run_id)
    assert (report.rows, report.found) == (ROWS, len(half))
    assert report.line() == (
        f"scheduled 1,200 messages in {other.queue.name}, {len(half):,} of them before: run "
        f"{plan.run_id}."
    )

    with pytest.raises(UsageError, match="planned with other rows"):
        planned(other, people.limit(21), run=plan.run_id).run()
    with pytest.raises(UsageError, match="another spread"):
        planned(other, people, run=plan.run_id, spread="10m").run()
    assert len(other.rows()) == ROWS


# Taking back --------------------------------------------------------------------------------------


@pytest.mark.gate
def test_unscheduling_leaves_nothing_of_its_run_and_all_of_others(
    bench: Callable[..., Bench], people: DataFrame
) -> None:
    here = bench(bands=3, history="1d")
    asked = {"key": "id", "due": "at", "body": "text", "priority": "priority"}
    kept = planned(here, people).run()
    run = planned(here, people).run().run
    wanted = expected(here, people, kept.run)
    delivered = next(row for row in here.rows() if row not in wanted)
    here.queue._settler.finish([delivered], shardq.records.ledger.End.ACKED)

    report = here.spark.unschedule(people, run=run, **asked).run()
    again = here.spark.unschedule(people, run=run, **asked).run()

    assert report.cancelled == again.cancelled == ROWS - 1
    assert report.line() == f"took back 1,199 messages of run {run} in {here.queue.name}."
    assert here.rows() == wanted
    totals = here.queue.totals()
    assert (totals.put, totals.cancelled) == (2 * ROWS, ROWS - 1)
    balance = here.queue.audit().total
    assert (balance.cancelled, balance.acked, balance.waiting) == (ROWS - 1, 1, ROWS)
    with pytest.raises(UsageError, match="was unscheduled"):
        planned(here, people, run=run).run()
    nothing = SparkRun.new(here.db._home.clock.now_us()).id
    for make in (here.spark.unschedule, here.spark.schedule):
        with pytest.raises(UsageError, match="has begun"):
            make(people, run=nothing, **asked)
    with pytest.raises(UsageError, match="has scheduled anything"):
        here.spark.unschedule(people, as_of=datetime.now(UTC), **asked).run()
    with pytest.raises(UsageError, match="which run to take back"):
        here.spark.unschedule(people, **asked)


# Delivered ----------------------------------------------------------------------------------------


def test_what_is_due_meanwhile_is_delivered_once_and_the_books_balance(
    spark: SparkSession, bench: Callable[..., Bench]
) -> None:
    here = bench(history="1d")
    now = datetime.now(UTC)
    frame = spark.createDataFrame(
        [(n, (now + timedelta(milliseconds=2_000 + 10 * n)).isoformat()) for n in range(300)],
        "id int, at string",
    )
    report = here.spark.schedule(
        frame, key="id", due="at", as_of=now.isoformat(), spread="2s"
    ).run()
    seen: Counter[str] = Counter()
    early: list[str] = []

    def handle(message: shardq.Message) -> None:
        seen[json.loads(message.body)["id"]] += 1
        if message.first_due > datetime.now(UTC):
            early.append(message.id)

    Consumer(here.queue, handle, threads=2).run(until_empty=True)

    assert report.rows == 300
    assert seen == Counter(range(300))
    assert early == []
    audit = here.queue.audit()
    assert (audit.total.put, audit.total.acked, audit.misfits) == (300, 300, [])


# Bad input ----------------------------------------------------------------------------------------


def test_each_bad_row_is_in_a_frame_of_its_own_with_its_reason(
    spark: SparkSession, bench: Callable[..., Bench]
) -> None:
    here = bench(bands=2)
    good = ("key", "2040-01-01T00:00:00+01:00", "body", 1, "team", {"a": "b"})
    bad: list[tuple[str, tuple[Any, ...]]] = [
        ("key is null", (None, *good[1:])),
        ("key is not 1 to 256 printable characters", ("", *good[1:])),
        ("key is not 1 to 256 printable characters", ("a\nb", *good[1:])),
        ("key is not 1 to 256 printable characters", ("k" * 257, *good[1:])),
        ("due is null", (good[0], None, *good[2:])),
        ("due has no offset from UTC", (good[0], "2040-01-01T00:00:00", *good[2:])),
        ("due is no ISO 8601 time", (good[0], "tomorrow", *good[2:])),
        ("due is past", (good[0], "2020-01-01T00:00:00Z", *good[2:])),
        ("due is more than 100 years away", (good[0], "2400-01-01T00:00:00Z", *good[2:])),
        ("body is null", (*good[:2], None, *good[3:])),
        ("body is larger than 1,048,576 bytes", (*good[:2], "x" * 1_048_577, *good[3:])),
        ("priority is not 0 to 1", (*good[:3], 2, *good[4:])),
        ("priority is not 0 to 1", (*good[:3], None, *good[4:])),
        ("priority is not 0 to 1", (*good[:3], 1 << 40, *good[4:])),
        ("group is not 1 to 256 printable characters", (*good[:4], "\u202e", good[5])),
        ("a header is null", (*good[:5], {"a": None})),
        ("a header's name is not 1 to 256 printable characters", (*good[:5], {"": "b"})),
        ("a header's name begins with shardq-", (*good[:5], {"shardq-reason": "b"})),
        (
            "body and headers are larger than 1,064,960 bytes",
            (*good[:5], {"a": "b" * 1_064_960}),
        ),
    ]
    frame = spark.createDataFrame(
        [good, (*good[:4], None, None), *(row for _, row in bad)],
        "id string, at string, text string, band bigint, team string, extra map<string,string>",
    )
    asked = {"body": "text", "priority": "band", "group": "team", "headers": "extra"}
    plan = here.spark.schedule(frame, key="id", due="at", bins=1, **asked)

    found = [(row.reason, tuple(row)[:-1]) for row in plan.bad.collect()]
    assert sorted(found, key=repr) == sorted(bad, key=repr)
    assert plan.bad.columns == [*frame.columns, "reason"]
    assert plan.good.columns == frame.columns
    with pytest.raises(UsageError, match="19 of 21 rows cannot be put"):
        plan.run()
    assert here.rows() == []
    report = plan.run(skip_bad=True)
    assert report.rows == 2
    assert sum(report.bad.values()) == 19
    stored = {(row.group, row.headers) for row in here.rows()}
    assert stored == {("team", '{"a":"b"}'), (None, None)}
    layout = here.queue._home.register.layout
    assert {row.shard.lane for row in here.rows()} == {
        layout.group_lane("team"), layout.named_lane("key", 1)
    }  # fmt: skip


def test_what_cannot_be_used_is_an_error_before_anything_is_read_or_written(
    spark: SparkSession, bench: Callable[..., Bench], people: DataFrame
) -> None:
    here = bench()
    dated = people.withColumn("day", F.to_date("at")).withColumn("naive", F.to_timestamp_ntz("at"))

    def plan(**given: Any) -> schedule.Plan:
        return here.spark.schedule(dated, **({"key": "id", "due": "at"} | given))

    wrong: list[tuple[type[ShardqError], str, dict[str, Any]]] = [
        (UsageError, "no column 'nope' for key", {"key": "nope"}),
        (UsageError, "no column 'nope' for due", {"due": "nope"}),
        (UsageError, "due is date, a time without a zone", {"due": "day"}),
        (UsageError, "due is timestamp_ntz, a time without a zone", {"due": "naive"}),
        (UsageError, "due is int; it must be", {"due": "priority"}),
        (UsageError, "key is timestamp; it must be", {"key": "at"}),
        (UsageError, "body is int; it must be", {"body": "priority"}),
        (UsageError, "priority is string; it must be", {"priority": "text"}),
        (UsageError, "priority is string; it must be", {"priority": F.col("text")}),
        (UsageError, "group is timestamp; it must be", {"group": "at"}),
        (BadSetting, "key must be a column or the name of one, not None", {"key": None}),
        (UsageError, "headers is string; it must be", {"headers": "text"}),
        (UsageError, "nope", {"key": F.col("nope")}),
        (BadSetting, "rate must be", {"rate": 0}),
        (BadSetting, "bins must be", {"bins": 0}),
        (BadTime, "spread", {"spread": "soon"}),
        (BadTime, "ahead of now", {"as_of": "2090-01-01T00:00Z"}),
        (UsageError, "over 30 days ago", {"as_of": "2020-01-01T00:00Z"}),
        (UsageError, "names no run", {"run": "yesterday"}),
        (UsageError, "not both", {"run": "20261125T212532.123456Z", "as_of": "2026-01-01T00:00Z"}),
    ]
    for kind, text, given in wrong:
        with pytest.raises(kind, match=text):
            plan(**given)
    with pytest.raises(UnknownQueue):
        connect(spark, "nobody", here.url).schedule(dated, key="id", due="at")
    with pytest.raises(UnknownQueue):
        connect(spark, "mail", here.url + "x").schedule(dated, key="id", due="at")
    made = connect(spark, "made", here.url)
    assert made.schedule(dated, key="ID", due="At", create=True).run_id
    assert here.rows() == []
