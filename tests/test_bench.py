"""The benchmark's figures come from work that was really done; how fast it was, no test asks."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from measures import callers, groups, history, server, traces, workers
from measures import tasks as task_measures
from measures.__main__ import bench as measure
from measures.sizes import Sizes
from shell import Shell

import shardq
from shardq import bench
from shardq.bench import drains, leases, load, puts, tasks
from shardq.bench.job import SENT, BenchJob
from shardq.bench.line import Line, interleaved, quantile, rate
from shardq.bench.member import MemberProcess, sleeper
from shardq.bench.place import BenchPlace
from shardq.clock import SystemClock
from shardq.errors import ShardqError, UsageError
from shardq.stores.store import Slice
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FEW = Sizes(repetitions=2, put=150, put_each=5, drain=150, grouped=60, naps=40, worker_jobs=30)
FAR_MS = 1 << 52


class SteppedClock(SystemClock):
    """Each reading is a millisecond after the last; sleeping takes no time but the clock's."""

    def __init__(self) -> None:
        super().__init__()
        self.boot_ms = 0

    def boot_us(self) -> int:
        self.boot_ms += 1
        return self.boot_ms * 1_000

    def sleep(self, seconds: float) -> None:
        self.boot_ms += round(seconds * 1_000)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[BenchPlace]:
    with BenchPlace(f"sqlite:///{tmp_path}/jobs.db", SystemClock()) as made:
        yield made


@pytest.fixture
def keyspace(cassandra_url: str) -> Iterator[BenchPlace]:
    with BenchPlace(cassandra_url, SystemClock()) as made:
        yield made


def rows_in_files(directory: Path) -> list[int]:
    counts = []
    for path in sorted(directory.rglob("*.db")):
        connection = sqlite3.connect(path)
        counts += connection.execute("SELECT count(*) FROM messages").fetchone()
        connection.close()
    return counts


def rows_in_queues(place: BenchPlace, names: list[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    with shardq.connect(place.url()) as db:
        for name in [*db.queues(), *names]:
            for shard in db._home.store.shards(name):
                wanted = Slice(name, [shard.minute], [shard.lane], -1, FAR_MS, 1)
                counts[name] += sum(tally.rows for tally in db._home.store.count(wanted).values())
    return counts


def test_tasks_are_put_and_run_beside_the_bare_queue_s_messages(
    place: BenchPlace, tmp_path: Path
) -> None:
    each, many, run = tasks.cost(place, FEW)
    for line, least in ((each, 0.6), (many, 0.7), (run, 0.6)):
        assert line.ratio is not None
        assert line.met == (line.ratio >= least)
    put = [FEW.put_each + 1] * 12 + [FEW.put + 1] * 4
    assert sorted(rows_in_files(tmp_path)) == sorted(put + [0] * 4)


def test_what_is_acked_is_counted_beyond_a_full_hour() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        consumer = shardq.Consumer(queue, lambda _: None)
        acked = drains.Acked(consumer._engine.home.stats)
        for number in range(1, 4):
            queue.put_many([b"x"] * 10)
            stage.drive(consumer, seconds=60, stride=0.1)
            assert acked.count() == 10 * number
            stage.drive(consumer, seconds=3_600, stride=10)
        assert consumer._engine.home.stats.totals.acked < 30


def test_a_rate_is_rows_over_the_time_that_they_took() -> None:
    assert rate(SteppedClock(), lambda: 7) == 7_000


def test_repetitions_alternate_who_goes_first_and_give_medians() -> None:
    order = []

    def ours(turn: int) -> float:
        order.append(f"ours {turn}")
        return [10.0, 40.0, 30.0][turn]

    def bare(turn: int) -> float:
        order.append(f"bare {turn}")
        return [20.0, 40.0, 50.0][turn]

    pair = interleaved(3, ours, bare)
    assert order == ["ours 0", "bare 0", "bare 1", "ours 1", "ours 2", "bare 2"]
    assert (pair.reached, pair.bare, pair.ratio) == (30.0, 40.0, 0.6)


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values = [float(n) for n in range(1, 101)]
    assert quantile(values, 0.5) == 50
    assert quantile(values, 0.99) == 99
    assert quantile(values, 1.0) == 100
    assert quantile([], 0.5) is None


def test_a_load_is_put_in_full_and_on_time() -> None:
    clock = SteppedClock()
    with shardq.connect("sqlite://") as db:
        queue = db.queue("load")
        begun_ms = clock.boot_ms
        assert load.produce(clock, queue, 500, 1.0, ahead_ms=3_600_000) == 500
        assert 900 <= clock.boot_ms - begun_ms <= 1_100
        assert queue.depth(exact=True).waiting == 500


def test_both_sides_of_single_puts_write_every_row(place: BenchPlace, tmp_path: Path) -> None:
    [line] = puts.each(place, FEW)
    assert rows_in_files(tmp_path) == [FEW.put_each] * 12
    assert line.ratio is not None
    assert line.met == (line.ratio >= 0.8)


def test_both_sides_of_put_many_write_every_row(place: BenchPlace, tmp_path: Path) -> None:
    [line] = puts.mixed(place, FEW)
    assert rows_in_files(tmp_path) == [FEW.put * 2] * 4
    assert line.bare is not None


def test_both_sides_of_a_drain_leave_nothing(place: BenchPlace, tmp_path: Path) -> None:
    [line] = drains.file(place, FEW)
    assert rows_in_files(tmp_path) == [0] * 4
    assert line.reached is not None
    assert line.met == (line.reached >= 12_000)


@pytest.mark.nightly
@pytest.mark.cassandra
def test_both_sides_on_cassandra_do_the_same_row_work(keyspace: BenchPlace) -> None:
    puts.near(keyspace, FEW)
    puts.far(keyspace, FEW)
    drains.near(keyspace, FEW)
    bare = [f"bare{kind}-{turn}" for kind in ("", "-far") for turn in range(FEW.repetitions)]
    counts = rows_in_queues(keyspace, bare)
    assert {name: counts[name] for name in bare} == dict.fromkeys(bare, FEW.put)
    mine = sorted(count for name, count in counts.items() if name not in bare)
    # Two of each kind; what was drained is not even counted.
    assert mine == [FEW.put] * 4


def test_a_consumer_process_reports_what_it_handled(place: BenchPlace) -> None:
    url = place.url()
    with shardq.connect(url) as db:
        queue = place.queue(db, "jobs")
        queue.put_many([SENT.pack(0)] * 10)
        with MemberProcess(BenchJob(url, queue.name), place.clock) as member:
            state = member.wait(lambda told: told["handled"] == 10, 120)
            assert state["first_us"] > member.started_us
            assert state["counters"]["rows_read:catch-up"] == 10
            report = member.report()
            assert len(report["late_us"]) == len(report["trip_us"]) == 10
            assert min(report["late_us"]) >= 0
            assert member.clear()["handled"] == 0


def test_a_consumer_process_that_fails_is_told(place: BenchPlace) -> None:
    url = place.url()
    with shardq.connect(url):
        pass
    member = MemberProcess(BenchJob(url, "nowhere"), place.clock)
    with pytest.raises(ShardqError, match="ended by itself"):
        member.wait(lambda told: told["handled"] > 0, 120)
    member.kill()


def test_a_sleeper_tells_each_of_its_naps() -> None:
    with sleeper() as naps_us:
        assert naps_us == []
    assert naps_us
    assert min(naps_us) >= 0


def test_tombstones_are_counted_by_rung_and_minute_length() -> None:
    counters = Counter(
        {
            "reads:poll": 9,
            "tombstones:poll": 50,
            "reads:sweep 5 s": 3,
            "tombstones:sweep 5 s": 200,
            "reads:sweep seal": 1,
            "tombstones:sweep seal": 900,
        }
    )
    short = Counter(
        {
            "reads:sweep seal": 2,
            "tombstones:sweep seal": 100,
            "reads:sweep 5 s": 7,
            "reads:sweep sealed 4 min": 1,
            "tombstones:sweep sealed 4 min": 50,
        }
    )
    lines = leases._tombstone_lines(
        {"handled": 100, "counters": counters}, {"handled": 50, "counters": short}
    )
    reached = {line.what.strip(): line.reached for line in lines}
    assert reached["tombstones read by polls"] == 0.5
    assert reached["sweep 5 s"] == 2.0
    assert reached["sweep seal"] == 2.0
    # The later looks at sealed minutes come after any run: each is as the first.
    assert reached["sweep sealed 4 min"] == reached["sweep sealed 256 min"] == 1.0
    assert reached["tombstones read by all sweeps"] == 7.0


def test_the_users_store_is_not_touched_and_nothing_is_left(tmp_path: Path) -> None:
    told: list[str] = []
    url = f"sqlite:///{tmp_path}/jobs.db"
    lines = bench.run(url, bench.MEASUREMENTS, FEW, only=["put"], tell=told.append)
    assert [line.what for line in lines] == ["put, one by one"]
    assert told[0] == "measuring put"
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="name a file"):
        bench.run("sqlite://", bench.MEASUREMENTS, FEW, tell=str)


def test_the_command_prints_json_for_programs(tmp_path: Path) -> None:
    done = Shell(tmp_path).ok("bench", "--quick", "--only", "put-many", "--json")
    [told] = done.lines
    assert told["quick"] is True
    assert [line["what"] for line in told["lines"]] == ["put_many, mixed due times"]
    assert "measuring put-many" in done.err


@pytest.mark.parametrize(
    ("take", "sizes", "units"),
    [
        (callers.taken, replace(FEW, received=60, cycles=64), ["rows/s"] * 5 + ["cycles/s"] * 3),
        (history.cost, FEW, ["rows/s"] * 3),
        (traces.cost, FEW, ["rows/s"] * 2),
        (groups.drained, FEW, ["rows/s"] * 4),
        (task_measures.coroutines, FEW, ["s"]),
        (task_measures.memory, FEW, ["MB"]),
    ],
)
def test_each_measurement_of_the_script_has_figures(
    place: BenchPlace,
    take: Callable[[BenchPlace, Sizes], list[Line]],
    sizes: Sizes,
    units: list[str],
) -> None:
    lines = take(place, sizes)
    assert [line.unit for line in lines] == units
    assert all(line.reached for line in lines)


def test_processes_that_share_jobs_are_measured_against_never_waiting(place: BenchPlace) -> None:
    each, many = workers.fleet(place, workers.Work(6, 20, 1.5), processes=2, times=1)
    what = "6 jobs of 0.02 s, 2 processes of one thread, by "
    assert (each.what, many.what) == (f"{what}put", f"{what}put_many")
    for line in (each, many):
        assert line.reached is not None
        assert line.bare == pytest.approx(0.06)
        assert line.reached >= line.bare
        assert line.ratio == pytest.approx(line.reached / line.bare)


def test_the_command_measures_what_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    done = CliRunner().invoke(measure, ["coroutines", "--quick", "--json", "--store", url])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [line["what"] for line in told["lines"]] == ["2,000 coroutines that sleep for 100 ms"]
    assert "measuring coroutines" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_speed_of_a_server_is_measured_beside_itself_without_a_store(place: BenchPlace) -> None:
    few = replace(FEW, repetitions=1, requests=64, warm_s=0)
    [*compared, one, eight, many, most] = server.requests(place, few)
    assert len(compared) == 4
    assert all(line.reached and line.bare and line.ratio for line in compared)
    assert all(line.reached for line in (one, eight, many, most))
