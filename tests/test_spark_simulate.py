"""Made-up timers lie as real ones would, and each of them is counted once."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from statistics import mean
from typing import Any

import numpy as np
import pytest

from pyspark_shardq.jobs import simulate
from pyspark_shardq.jobs.simulate import Timers
from pyspark_shardq.spread import Spread
from shardq.errors import BadSetting, BadTime
from shardq.model.shard import Layout

DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000
START_MS = 1_893_456_000_000


def part_due(timers: Timers, first_ms: float, last_ms: float) -> float:
    """The part of all timers that is due from an offset on, and before another."""
    before = simulate.due_before(timers, np.array([first_ms, last_ms]))
    return float(before[1] - before[0])


@pytest.mark.parametrize(
    ("shape", "share", "parts"),
    [
        ("even", 0, {(0, DAY_MS): 0.5, (5_000, 6_000): 1_000 / (2 * DAY_MS)}),
        (
            "hourly",
            0.25,
            {(0, 1): 0.25 / 48, (1, HOUR_MS): 0.75 / 48, (HOUR_MS, 2 * DAY_MS): 47 / 48},
        ),
        ("burst", 0.8, {(DAY_MS, DAY_MS + MINUTE_MS): 0.8, (0, DAY_MS): 0.1}),
        ("daily", 0, {(0, DAY_MS): 0.5, (2 * HOUR_MS, 14 * HOUR_MS): 0.25}),
    ],
)
def test_dues_have_the_shape_asked_for(
    shape: str, share: float, parts: dict[tuple[int, int], float]
) -> None:
    timers = Timers(1, START_MS, 2 * DAY_MS, shape, share)

    assert part_due(timers, 0, 2 * DAY_MS) == pytest.approx(1)
    assert part_due(timers, -DAY_MS, 0) == 0
    for (first_ms, last_ms), part in parts.items():
        assert part_due(timers, first_ms, last_ms) == pytest.approx(part, rel=0.001)


def test_a_day_has_its_most_timers_at_14_and_a_tenth_of_them_at_night() -> None:
    timers = Timers(1, START_MS, DAY_MS, "daily")

    by_hour = [part_due(timers, n * HOUR_MS, (n + 1) * HOUR_MS) for n in range(24)]

    assert by_hour.index(max(by_hour)) in (13, 14)
    assert by_hour.index(min(by_hour)) in (1, 2)
    assert max(by_hour) / min(by_hour) == pytest.approx(10, rel=0.1)


def test_lanes_are_drawn_as_uneven_as_hashes_of_names_make_them() -> None:
    layout = Layout("timers", lanes_written=16, lanes_read=16)
    chance = random.Random(3)
    named, drawn = [], []
    for run in range(20):
        lanes = Counter(layout.named_lane(chance.randbytes(9).hex(), 0) for _ in range(20_000))
        named.append(max(lanes.values()) * 16 / 20_000)
        drawn.append(simulate.run(20_000, queue=f"q{run}", lanes=16).lane_balance)

    assert mean(drawn) == pytest.approx(mean(named), abs=0.015)
    assert mean(drawn) > 1.03


@pytest.fixture(scope="module")
def report() -> simulate.SimulateReport:
    return simulate.run(
        50_000, over="1h", shape="burst", share=1, lanes=3, bands=2, weights=(1, 3),
        nodes=5, replicas=3,
    )  # fmt: skip


def test_every_timer_is_counted_once_in_its_lane_and_once_for_each_copy(
    report: simulate.SimulateReport,
) -> None:
    loads = report.spread.lanes
    assert sum(load.rows for load in loads.values()) == 50_000
    assert [band for band, _ in loads] == [0, 1] * 3
    low = sum(load.rows for (band, _), load in loads.items() if band == 1)
    assert low == pytest.approx(37_500, abs=500)
    assert sum(node.rows for node in report.nodes) == 3 * 50_000
    assert sum(node.peak_rate for node in report.nodes) == pytest.approx(3 * 50_000 / 60)
    assert (report.shards, report.hot) == (6, 0)
    assert list(report.rows) == sorted(report.rows)
    assert report.rows.most == report.hottest[0].rows
    assert report.rows.most == max(load.fullest for load in loads.values())
    assert sum(load.shards for load in loads.values()) == report.shards
    assert sum(sum(counts.values()) for _, counts in report.spread.bars) == 50_000
    assert max(report.spread.cells.values()) == report.rows.most
    assert report.hottest[0].bytes == report.rows.most * (200 + simulate.ROW_BYTES)
    assert 1 <= report.lane_balance < 1.1


def test_each_run_draws_the_same_and_few_timers_over_long_are_all_there() -> None:
    asked: dict[str, Any] = {"over": "3650d", "lanes": 2, "shape": "hourly", "share": 1}
    once, again = simulate.run(1_000, **asked), simulate.run(1_000, **asked)

    assert once.to_json() | {"at_ms": 0} == again.to_json() | {"at_ms": 0}
    assert sum(load.rows for load in once.spread.lanes.values()) == 1_000


def test_a_shard_is_hot_that_has_more_than_a_lane_is_meant_for() -> None:
    # 1,667 in each second of a minute, and a minute of the queue is a second.
    report = simulate.run(100_000, over="1h", minute="1s", shape="burst", share=1, lanes=1)

    assert (report.shards, report.hot, report.lanes_needed) == (60, 60, 2)
    assert "60 shards have more than the 1,000 messages" in report.page()


def test_a_report_tells_programs_and_people_the_same(report: simulate.SimulateReport) -> None:
    told = json.loads(json.dumps(report.to_json()))

    assert told["timers"]["count"] == 50_000
    assert told["rows"]["most"] == report.rows.most
    html = report.page()
    assert report.line() in re.sub("</?time>", "", html)
    assert f"{report.rows.most:,}" in html
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
        rows=simulate.RowsOfShards(1, 1, 1, 1),
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
        {"minute": "1s", "over": "3650d", "lanes": 4},
        {"start": "2030-01-01T00:00"},
        {"over": "soon"},
    ],
    ids=str,
)
def test_what_cannot_be_simulated_is_an_error_before_anything_is_done(
    given: dict[str, Any],
) -> None:
    with pytest.raises((BadSetting, BadTime), match=r"must|time zone|cannot be read|the most"):
        simulate.run(**{"timers": 10, **given})
