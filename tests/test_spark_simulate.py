"""Made-up timers lie where the core would put them, and all of them are counted."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq.jobs import simulate
from pyspark_shardq.jobs.simulate import Timers
from pyspark_shardq.spread import Spread
from shardq.errors import BadSetting, BadTime
from shardq.model.shard import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
START_MS = 1_893_456_000_000


def dues(spark: SparkSession, timers: Timers) -> DataFrame:
    return simulate.named(spark, timers).select((F.col("due_ms") - START_MS).alias("at_ms"))


def test_timers_are_counted_in_the_shards_that_the_core_would_put_them_in(
    spark: SparkSession,
) -> None:
    chance = random.Random(3)
    layout = Layout("mäil", minute_ms=7_000, bands=3, lanes_written=5, lanes_read=9, first_lane=12)
    scripts = [(0x20, 0x7E), (0xA0, 0xD7FF), (0x10000, 0x10FFFF)]
    made = [
        (
            "".join(
                chr(chance.randint(*chance.choice(scripts))) for _ in range(chance.randint(0, 9))
            ),
            START_MS + chance.randrange(100_000),
            chance.randrange(3),
        )
        for _ in range(2_000)
    ]
    frame = spark.createDataFrame(made, "name string, due_ms long, band int")

    found = simulate.shards(frame, layout).collect()

    expected = Counter(
        (layout.minute_of(due_ms), layout.named_lane(name, band), band)
        for name, due_ms, band in made
    )
    assert {(row.minute, row.lane, row.band): row.rows for row in found} == expected


def test_the_same_timers_are_made_up_in_each_run_and_however_they_are_cut(
    spark: SparkSession,
) -> None:
    timers = Timers(1_000, START_MS, shape="daily", weights=(1, 3))
    first = simulate.named(spark, timers, 2).collect()

    cut = simulate.named(spark, timers, 2).repartition(7).collect()
    assert sorted(cut) == sorted(first)
    assert len({row.name for row in first}) == 1_000
    assert Counter(row.band for row in first)[1] == pytest.approx(750, abs=60)


def test_dues_have_the_shape_asked_for(spark: SparkSession) -> None:
    def counted(timers: Timers, *conditions: Any) -> list[int]:
        [row] = dues(spark, timers).agg(*(F.count_if(one) for one in conditions)).collect()
        return list(row)

    at = F.col("at_ms")
    within = (at >= 0) & (at < 2 * DAY_MS)
    hour = F.floor(at / HOUR_MS) % 24

    even = Timers(20_000, START_MS, 2 * DAY_MS)
    assert counted(even, within, at < DAY_MS) == [20_000, pytest.approx(10_000, abs=400)]

    daily = Timers(20_000, START_MS, 2 * DAY_MS, "daily")
    all_of_them, high, low = counted(daily, within, hour.isin(13, 14), hour.isin(1, 2))
    assert all_of_them == 20_000
    assert high / low == pytest.approx(10, rel=0.25)

    hourly = Timers(20_000, START_MS, 2 * DAY_MS, "hourly", share=0.25)
    assert counted(hourly, within, at % HOUR_MS == 0) == [20_000, pytest.approx(5_000, abs=300)]

    burst = Timers(20_000, START_MS, 2 * DAY_MS, "burst", share=0.8)
    minute = (at >= DAY_MS) & (at < DAY_MS + 60_000)
    assert counted(burst, within, minute) == [20_000, pytest.approx(16_000, abs=300)]


def test_shards_are_kept_in_few_parts_whatever_spark_makes_by_itself(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several tasks make timers up, so that their counts meet in as many parts as Spark makes.
    monkeypatch.setattr(simulate, "_TASK_ROWS", 500)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "32")
    try:
        table = simulate.kept(spark, Timers(2_000, START_MS), Layout("mail"))
        parts = table.select(F.spark_partition_id()).distinct().count()
        table.unpersist()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
    assert parts == 1


@pytest.fixture(scope="module")
def report(spark: SparkSession) -> simulate.SimulateReport:
    return simulate.run(
        spark, 50_000, over="1h", shape="burst", share=1, lanes=3, bands=2, nodes=5, replicas=3
    )


def test_every_timer_is_counted_once_in_its_lane_and_once_for_each_copy(
    report: simulate.SimulateReport,
) -> None:
    loads = report.spread.lanes
    assert sum(load.rows for load in loads.values()) == 50_000
    assert [band for band, _ in loads] == [0, 1] * 3
    assert sum(node.rows for node in report.nodes) == 3 * 50_000
    assert sum(node.peak_rate for node in report.nodes) > 3 * 20_000 / 60
    assert (report.shards, report.hot) == (6, 0)
    assert report.rows[3] == report.hottest[0].rows
    assert report.rows[3] == max(load.fullest for load in loads.values())
    assert sum(load.shards for load in loads.values()) == report.shards
    assert sum(sum(counts.values()) for _, counts in report.spread.bars) == 50_000
    assert max(report.spread.cells.values()) == report.rows[3]
    assert report.hottest[0].bytes == report.rows[3] * (200 + simulate.ROW_BYTES)
    assert 1 <= report.lane_balance < 1.1


def test_a_shard_is_hot_that_has_more_than_a_lane_is_meant_for(spark: SparkSession) -> None:
    # 1,667 in each second of a minute, and a minute of the queue is a second.
    report = simulate.run(
        spark, 100_000, over="1h", minute="1s", shape="burst", share=1, lanes=1, nodes=3
    )

    assert (report.shards, report.hot, report.lanes_needed) == (60, 60, 2)
    assert "60 shards have more than the 1,000 messages" in report.page()


def test_a_report_tells_programs_and_people_the_same(report: simulate.SimulateReport) -> None:
    told = json.loads(json.dumps(report.to_json()))

    assert told["timers"]["count"] == 50_000
    assert told["rows"]["most"] == report.rows[3]
    html = report.page()
    assert report.line() in re.sub("</?time>", "", html)
    assert f"{report.rows[3]:,}" in html
    assert html.count("data:image/png") == 4


@pytest.mark.parametrize(
    ("rows", "body_bytes", "lanes", "advised"),
    [
        (60_000, 200, 4, "4 lanes are enough: 1 would do"),
        (60_001, 200, 2, "2 lanes are just enough."),
        (600_000, 200, 4, "Take 10 lanes rather than 4."),
        # 60,000 bodies of a megabyte: the size of the partition decides.
        (60_000, 1 << 20, 4, "601 lanes would be needed, and 256 are the most"),
    ],
)
def test_as_many_lanes_are_advised_as_the_fullest_minute_needs(
    rows: int, body_bytes: int, lanes: int, advised: str
) -> None:
    layout = Layout("mail", lanes_written=lanes, lanes_read=lanes)
    needs = simulate.needs(rows, layout, body_bytes + simulate.ROW_BYTES)
    made = simulate.SimulateReport(
        at_ms=START_MS,
        timers=Timers(rows, START_MS),
        layout=layout,
        replicas=3,
        shards=1,
        hot=0,
        rows=(1, 1, 1, 1),
        hottest=(),
        nodes=(),
        needs=needs,
        spread=Spread(60_000, (), {}, {}),
    )

    assert advised in made.advice()
    assert all(str(need.lanes) in line for need, line in zip(needs, made.lines(), strict=True))


@pytest.mark.parametrize(
    "given",
    [
        {"timers": 0},
        {"timers": 1.5},
        {"shape": "square"},
        {"share": 1.5},
        {"lanes": 257},
        {"bands": 17},
        {"replicas": 4},
        {"body_bytes": -1},
        {"weights": [1, 2]},
        {"bands": 2, "weights": [0, 0]},
        {"shape": "daily", "over": "36h"},
        {"shape": "hourly", "over": "90m"},
        {"minute": "1ms"},
        {"start": "2030-01-01T00:00"},
        {"over": "soon"},
    ],
    ids=str,
)
def test_what_cannot_be_simulated_is_an_error_before_anything_is_done(
    spark: SparkSession, given: dict[str, Any]
) -> None:
    with pytest.raises((BadSetting, BadTime), match=r"must|time zone|cannot be read"):
        simulate.run(spark, **{"timers": 10, **given})


@pytest.mark.nightly
def test_twenty_million_timers_take_under_20_s(spark: SparkSession) -> None:
    begun = time.perf_counter()
    report = simulate.run(spark, 20_000_000, shape="daily", lanes=8, bands=2, nodes=12)
    seconds = time.perf_counter() - begun

    assert report.timers.count == sum(load.rows for load in report.spread.lanes.values())
    assert seconds < 20, f"{seconds:.1f} s"
