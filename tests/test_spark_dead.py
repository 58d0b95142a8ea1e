"""Dead messages in Spark: each is put back or deleted once, whoever tries how often."""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it
from simulated.network import Weather
from simulated.scheduler import Process
from simulated.simulation import Simulation
from spark_stores import queue, url

import shardq
from pyspark_shardq import QueueJobs, acts, runs
from pyspark_shardq.acts import ActWriter, PartActor, RunHeader
from pyspark_shardq.jobs import dead
from pyspark_shardq.options import DELETE, REDRIVE
from pyspark_shardq.pieces import WriteTally
from pyspark_shardq.runs import PLAN, SparkRun
from pyspark_shardq.source import ShardqDataSource, register
from shardq import Consumer, clock
from shardq.connection import Connection
from shardq.errors import BadSetting, StoreError, StoreUnavailable, UnknownQueue, UsageError
from shardq.lifecycle.home import Home
from shardq.records.ledger import entry_of
from shardq.records.register import Register
from shardq.stores.store import Mark
from shardq.stores.tables import QUEUES
from shardq.testing import Faults, Stage
from shardq.testing.faults import faulty

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from shardq import Queue
    from shardq.model.shard import Position
    from shardq.stores.store import Store

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PARTS = 3
on_both = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("cassandra", marks=pytest.mark.nightly)], indirect=True
)


@pytest.fixture(params=[True, False], ids=["machine", "nodes"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with Stage(local=request.param) as made:
        yield made


def died(queue: Queue, count: int, reason: str = "ValueError: bad {}") -> list[str]:
    """Put messages and bury them; their ids, which they keep."""
    ids = [f"order-{n}" for n in range(count)]
    for n, name in enumerate(ids):
        queue.bury(queue.put(f"{n}", delay="1h", id=name), reason.format(n))
    return ids


def positions_of(dead_letters: Queue) -> list[Position]:
    return [row.position for page in dead_letters._rows() for row in page]


def by_part(positions: list[Position]) -> dict[int, list[Position]]:
    """Cut positions into parts, as a frame is cut. Any hash does, if it stays the same."""
    found: dict[int, list[Position]] = {}
    for one in positions:
        found.setdefault(one.id[0] % PARTS, []).append(one)
    return found


def a_plan(register: Register, act: str = REDRIVE, **given: int) -> RunHeader:
    now_ms = register._clock.now_ms()
    lanes = register.layout.lanes_written
    plan = RunHeader(act, 0, now_ms + 1_000, PARTS, now_ms + 5_000, 10_000, lanes)
    return replace(plan, **given)


def actor(
    store: Store,
    time: clock.Clock,
    run: SparkRun,
    plan: RunHeader | None = None,
    name: str = "mail",
) -> PartActor:
    """The actor of a part of a run, as a task opens it."""
    here = Home(store, time)
    register, of_dead = (
        Register.open(store, time, one, {}, create=False) for one in (name, f"{name}.dead")
    )
    plan = acts.plan_run(here, register, run, plan or a_plan(register))
    return PartActor(here, register, of_dead, run, plan)


def do(one: PartActor, positions: list[Position]) -> WriteTally:
    """All parts, as the tasks of a job do them."""
    for part, some in by_part(positions).items():
        one.do(part, some)
    one.count(is_over=True)
    return one.total(is_over=True)


def consumed(stage: Stage, queue: Queue) -> list[str]:
    """The ids that a consumer is handed, first due first; it acks them."""
    taken: list[str] = []
    own = stage.connect().queue(queue.name)
    consumer = Consumer(own, lambda message: taken.append(message.id))
    stage.drain(queue, consumer)
    return taken


def a_run(stage: Stage) -> SparkRun:
    return SparkRun.new(stage.clock.now_us())


# Without Spark ------------------------------------------------------------------------------------


def test_what_has_a_key_is_put_back_under_it_or_stays_where_others_have_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for n in range(4):
        message = queue.put(f"{n}", delay="1h", id=f"order-{n}", key=f"key-{n}" if n else None)
        queue.bury(message, "why")
    there = queue.put("there", delay="1h", key="key-2")
    positions = positions_of(queue.dead)
    run = a_run(stage)
    done = do(actor(queue._home.store, stage.clock, run), positions)
    assert (done.rows, done.doubtful, done.doubtful_ids) == (3, 1, ("order-2",))
    # A repeated try puts no message back twice.
    assert do(actor(queue._home.store, stage.clock, run), positions) == done
    assert [message.id for message in queue.dead.peek()] == ["order-2"]
    assert queue.put("x", key="key-2").id == there.id
    assert [queue.put("x", key=f"key-{n}").id for n in (1, 3)] == ["order-1", "order-3"]
    stage.clock.advance(100)
    assert len(queue.receive(100)) == 3


def test_what_is_put_back_is_the_message_that_was_put(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=2)
    headers = {"trace": "7"}
    put = queue.put(b"\0body", delay="1h", id="order-7", group="g", priority=1, headers=headers)
    queue.bury(put, "no such customer")
    before = queue.dead.peek()[0]
    assert do(actor(stage._store, stage.clock, a_run(stage)), positions_of(queue.dead)).rows == 1
    [row] = [row for page in queue._rows() for row in page]
    [message] = queue.peek()
    assert before.headers["shardq-reason"] == "no such customer"
    assert (message.id, message.body, message.group) == ("order-7", b"\0body", "g")
    assert (message.headers, message.attempt, message.priority) == (headers, 0, 1)
    assert row.shard.lane == queue._home.register.layout.group_lane("g")
    assert queue.dead.depth(exact=True).total == 0


def test_messages_come_due_spread_over_the_window(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    died(queue, 200)
    start_ms = stage.clock.now_ms() + 5_000
    do(actor(stage._store, stage.clock, a_run(stage)), positions_of(queue.dead))
    dues = sorted(message.due_ms - start_ms for message in queue.peek(limit=1_000))
    assert len(dues) == 200
    assert dues[0] >= 0
    assert dues[-1] < 10_000
    assert max(Counter(due // 1_000 for due in dues).values()) < 40
    lanes = Counter(row.shard.lane for page in queue._rows() for row in page)
    assert len(lanes) == 8


VERBS = ["find", "recorded", "insert", "move", "note stats"]


@pytest.mark.parametrize("applied", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_task_that_dies_at_any_call_is_tried_again_and_each_message_runs_once(
    verb: str, applied: bool
) -> None:
    for nth in range(1, 5):
        with Stage(local=True) as stage:
            queue = stage.connect().queue("mail")
            ids = died(queue, 30)
            positions = positions_of(queue.dead)
            run, told, faults = a_run(stage), [], Faults()
            store = faulty(stage._store, faults)
            actor(store, stage.clock, run)
            faults.fail(verb, nth=nth, applied=applied)
            done = None
            while done is None:
                with suppress(StoreError):
                    done = do(actor(store, stage.clock, run), positions)
                # The messages put back so far are delivered and finished before the next try.
                told += consumed(stage, queue)
            assert sorted(told) == sorted(ids)
            assert done == WriteTally(30)
            assert queue.totals().put == 60
            assert queue.dead.totals().forwarded == 30
            for balance in (queue.audit(), queue.dead.audit()):
                assert balance.is_even
                assert not balance.misfits


@pytest.mark.parametrize("local", [False, True], ids=["nodes", "machine"])
@pytest.mark.parametrize("seed", range(6))
def test_twins_put_each_message_back_once_whatever_their_calls_meet(seed: int, local: bool) -> None:
    weather = Weather(refused=0.05, lost=0.05, unanswered=0.05, late=0.05, twice=0.1, parted=0.5)
    weather.late_us = 3_000_000
    written: list[str] = []
    with Simulation(seed, weather, local=local) as simulation:
        plain = simulation.store(None)
        run, given = SparkRun.at(simulation.now_us + 5_000_000), []

        def bury() -> None:
            time = clock.SystemClock(0)
            with Connection(plain, time, background=False, defaults={"history": "7d"}) as db:
                queue = db.queue("mail")
                died(queue, 30)
                positions = positions_of(queue.dead)
                # Far enough ahead that none of them is late, however many tries it takes.
                plan = a_plan(queue._home.register, start_ms=time.now_ms() + 600_000)
            one = actor(plain, time, run, plan)
            given.append((positions, [one.new_row(row).position for row in plain.find(positions)]))

        simulation.spawn(simulation.process("buries"), bury)
        simulation.run(5)
        [(positions, new)] = given

        def act(process: Process) -> None:
            time, done = clock.SystemClock(0), None
            while done is None:
                with suppress(StoreError):
                    done = do(actor(simulation.store(process), time, run), positions)
                # A consumer has finished some; what the twin repeats brings none back.
                plain.delete([row.position for row in plain.find(new)][::2])
            totals.append(done.rows)

        totals: list[int] = []
        simulation.cells.on_write = lambda row: written.append(row.position)
        for name in ("one", "twin"):
            process = simulation.process(name)
            simulation.spawn(process, partial(act, process))
        simulation.run(500)
        assert sorted(written) == sorted(new)
        assert simulation.cells.risen == []
        assert plain.find(positions) == []
        assert totals == [30, 30]


@pytest.mark.parametrize("local", [False, True], ids=["nodes", "machine"])
def test_a_task_that_dies_in_a_run_resumed_late_leaves_nothing_where_nobody_reads(
    local: bool,
) -> None:
    with Stage(local=local) as stage:
        queue = stage.connect().queue("mail")
        died(queue, 3)
        positions, run = positions_of(queue.dead), a_run(stage)
        actor(stage._store, stage.clock, run)
        stage.clock.advance(5 * 3_600)
        stage.faults.fail("move", applied=True)

        with pytest.raises(StoreError):
            do(actor(stage._store, stage.clock, run), positions)

        dues = [row.due_ms for page in queue._rows() for row in page]
        assert dues
        assert min(dues) >= stage.clock.now_ms() - 1_000


def test_what_died_after_the_plan_is_none_of_the_runs(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    died(queue, 5)
    run = a_run(stage)
    actor(stage._store, stage.clock, run)
    stage.clock.advance(2)
    died(queue, 5, "later: {}")
    assert do(actor(stage._store, stage.clock, run), positions_of(queue.dead)).rows == 5
    assert {one.headers["shardq-reason"][:6] for one in queue.dead.peek(100)} == {"later:"}


def test_a_run_is_refused_once_its_queue_was_purged(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    died(queue, 2)
    run = a_run(stage)
    stage.clock.advance(1)
    queue.purge()
    with pytest.raises(UsageError, match="has been purged"):
        actor(stage._store, stage.clock, run)


def test_a_run_of_another_job_is_refused(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    died(queue, 2)
    run = a_run(stage)
    actor(stage._store, stage.clock, run)
    plan = a_plan(queue._home.register, DELETE)
    here = Home(stage._store, stage.clock)
    with pytest.raises(UsageError, match="is a redrive, not a delete"):
        acts.plan_run(here, queue._home.register, run, plan)
    scheduled = SparkRun.new(run.as_of_us + 1)
    runs.agreed(stage._store, scheduled.entry("mail", PLAN), {"job": "schedule", "rows": 2})
    with pytest.raises(UsageError, match="is a schedule, not one on dead messages"):
        acts.planned(here, "mail", scheduled)


def test_what_is_cancelled_or_purged_meanwhile_does_not_come_back(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    died(queue, 3)
    positions = positions_of(queue.dead)
    first, _, last = queue.dead.peek()
    assert queue.dead.cancel(first)
    named = [one for one in positions if one != last._row.position]
    assert do(actor(stage._store, stage.clock, a_run(stage)), named).rows == 1
    stage.clock.advance(1)
    queue.dead.purge()
    assert do(actor(stage._store, stage.clock, a_run(stage)), positions).rows == 0
    assert queue.depth(exact=True).total == 1


def test_who_takes_part_later_goes_by_the_first_plan(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    died(queue, 10)
    positions, run = positions_of(queue.dead), a_run(stage)
    first = actor(stage._store, stage.clock, run)
    stage.clock.advance(3)
    rows = stage._store.find(positions)
    queue.alter(lanes=8)
    other = actor(stage._store, stage.clock, run)
    assert [other.new_row(row) for row in rows] == [first.new_row(row) for row in rows]


def test_deleted_messages_are_cancelled_in_the_books(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    died(queue, 20)
    positions = positions_of(queue.dead)
    plan = a_plan(queue._home.register, DELETE)
    for _ in range(2):
        run = a_run(stage)
        done = do(actor(stage._store, stage.clock, run, plan), positions[:8])
        assert do(actor(stage._store, stage.clock, run, plan), positions[:8]) == done
    assert queue.dead.totals().cancelled == 8
    assert queue.dead.depth(exact=True).total == 12
    audit = queue.dead.audit()
    assert (audit.total.cancelled, audit.total.waiting, audit.is_even) == (8, 12, True)


def test_what_a_task_did_that_died_before_it_said_so_is_counted_once_the_run_is_resumed(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail")
    died(queue, 30)
    run, named = a_run(stage), by_part(positions_of(queue.dead))
    part, first = named.popitem()
    dying = actor(stage._store, stage.clock, run)
    stage.faults.fail("insert", nth=2)
    with pytest.raises(StoreError):
        dying.do(part, first)
    dying.count(is_over=False)
    assert queue.totals().put == 30
    rest = positions_of(queue.dead)
    assert len(rest) == 30 - len(first) < 30
    assert do(actor(stage._store, stage.clock, run), rest).rows == 30
    assert (queue.totals().put, queue.dead.totals().forwarded) == (60, 30)


def test_what_a_run_puts_back_to_be_due_far_off_is_in_the_depth(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    died(queue, 20)
    start_ms = stage.clock.now_ms() + 30 * 86_400_000
    plan = a_plan(queue._home.register, start_ms=start_ms)
    one = actor(stage._store, stage.clock, a_run(stage), plan)
    assert do(one, positions_of(queue.dead)).rows == 20
    assert queue.depth().waiting == 20


@pytest.mark.parametrize("history", ["off", "7d"])
def test_what_was_begun_over_an_hour_ago_on_nodes_is_told_and_not_put_back(history: str) -> None:
    with Stage(history=history) as stage:
        queue = stage.connect().queue("mail")
        ids = died(queue, 12)
        positions, run = positions_of(queue.dead), a_run(stage)
        first = actor(stage._store, stage.clock, run)
        stage.faults.fail("move")
        with pytest.raises(StoreError):
            first.do(0, positions)
        # The task has died after it wrote four new rows and before it deleted their old ones.
        rows = sorted(stage._store.find(positions), key=lambda row: int(row.body))
        new = [first.new_row(row) for row in rows[:4]]
        stage._store.insert(new)
        if history != "off":
            puts = [Mark(entry_of(row), row.due_ms, row.name) for row in new]
            stage._store.record(puts, 86_400_000)
        stage._store.delete([row.position for row in new[2:]])
        stage.clock.advance(2 * 3_600)
        done = actor(stage._store, stage.clock, run).do(0, positions)
        known = 2 if history == "off" else 4
        assert (done.rows, done.doubtful) == (known, 12 - known)
        assert sorted(done.doubtful_ids) == sorted(ids[known:])
        assert sorted(message.id for message in queue.dead.peek(100)) == sorted(ids[known:])
        assert sorted(message.id for message in queue.peek()) == ids[:2]


def test_on_cassandra_twins_put_back_what_a_dead_task_left_and_nothing_comes_back(
    cassandra_url: str,
) -> None:
    name = f"q-{uuid.uuid4().hex[:16]}"
    with shardq.connect(cassandra_url) as db:
        queue = db.queue(name, history="7d")
        ids = died(queue, 40)
        home, positions = queue._home, positions_of(queue.dead)
        store, time = home.store, home.clock
        run = SparkRun.new(time.now_us())
        first = actor(store, time, run, name=name)
        rows = sorted(store.find(positions), key=lambda row: int(row.body))
        new = [first.new_row(row) for row in rows]
        store.insert(new[:20])
        # A consumer has finished ten of what the dead task wrote.
        store.delete([row.position for row in new[:10]])
        twins = [actor(store, time, run, name=name) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda one: do(one, positions), twins))
        assert done == [WriteTally(40), WriteTally(40)]
        assert sorted(message.id for message in queue.peek(100)) == sorted(ids[10:])
        assert queue.dead.depth(exact=True).total == 0
        assert (queue.totals().put, queue.dead.totals().forwarded) == (80, 40)
        marks = store.recorded([*map(entry_of, rows), *map(entry_of, new)])
        assert Counter(mark.fate for mark in marks) == {"forwarded": 40, None: 40}


# With Spark ---------------------------------------------------------------------------------------


REASONS = [
    ("out of attempts: KeyError: 'customer-17'", "KeyError: <text>"),
    ("out of attempts: KeyError: 'customer-4'", "KeyError: <text>"),
    (
        "HTTP 503 after 1,204.5 ms from 10.0.0.17:8080\nTraceback ..",
        "HTTP <n> after <n> ms from <n>",
    ),
    ("HTTP 500 after 12 ms from 10.0.0.2:8080", "HTTP <n> after <n> ms from <n>"),
    ("no order 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "no order <id>"),
    ("object at 0x7f3a2b failed, commit 9fceb02d0ae598e9", "object at <hex> failed, commit <hex>"),
    ("Übergröße: 注文", "Übergröße: 注文"),
    ("deadbeef facade", "deadbeef facade"),
    ("   ", "no reason given"),
    (None, "no reason given"),
]


def test_errors_that_differ_in_numbers_ids_and_texts_are_of_one_kind(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(reason,) for reason, _ in REASONS], "reason STRING")
    found = frame.select("reason", dead.error_class(F.col("reason"))).collect()
    assert {row[0]: row[1] for row in found} == dict(REASONS)


@pytest.fixture
def in_spark(spark: SparkSession, queue: Queue, url: str) -> QueueJobs:
    register(spark)
    return QueueJobs(spark, queue.name, url)


@pytest.mark.gate
@on_both
def test_dead_messages_are_grouped_filtered_put_back_and_purged(
    queue: Queue, in_spark: QueueJobs
) -> None:
    kinds = ["ValueError: bad {}", "out of attempts: timeout after {} ms", "no such customer"]
    for n in range(300):
        queue.bury(queue.put(f"{n}", delay="1h", id=f"m-{n}"), kinds[n % 10 % 3].format(n))
    told = in_spark.dead()
    assert [(group.error, group.messages) for group in told.groups] == [
        ("ValueError: bad <n>", 120),
        ("no such customer", 90),
        ("timeout after <n> ms", 90),
    ]
    assert told.line() == f"{queue.name} has 300 dead messages of 3 kinds of error."
    where = "reason LIKE '%timeout%'"
    dry = in_spark.redrive(where=where, dry_run=True)
    assert (dry.chosen, dry.rows, dry.run) == (90, 0, "")
    assert queue.dead.depth(exact=True).total == 300
    report = in_spark.redrive(where=where, rate=45)
    assert (report.chosen, report.rows, report.left) == (90, 90, 0)
    assert in_spark.redrive(where=where).rows == 0
    back = queue.peek(limit=1_000)
    assert {message.id for message in back} == {f"m-{n}" for n in range(300) if n % 10 % 3 == 1}
    dues = sorted(message.due_ms for message in back)
    assert dues[-1] - dues[0] < 2_000
    assert (queue.totals().put, queue.dead.totals().forwarded) == (390, 90)
    purged = in_spark.purge(frame=in_spark.read("dead").where("id < 'm-2'"))
    left = {message.id for message in queue.dead.peek(limit=1_000)}
    still_dead = {f"m-{n}" for n in range(300) if n % 10 % 3 != 1}
    assert left == {name for name in still_dead if name >= "m-2"}
    assert purged.rows == len(still_dead - left)
    assert purged.line() == f"{queue.name}: {purged.rows} dead messages deleted."
    for balance in (queue.audit(), queue.dead.audit()):
        assert balance.is_even
        assert not balance.misfits


def test_nothing_dead_is_no_error_and_no_such_queue_is_one(
    queue: Queue, in_spark: QueueJobs
) -> None:
    assert in_spark.dead().groups == []
    assert in_spark.redrive().line() == f"{queue.name}: 0 dead messages put back."
    assert f"{queue.name}.dead" not in sorted(queue._home.store.notes(QUEUES, ()))
    with pytest.raises(UnknownQueue):
        QueueJobs(in_spark.spark, f"{queue.name}-x", in_spark.store).redrive()


def test_what_cannot_be_meant_is_refused_before_anything_is_done(
    queue: Queue, in_spark: QueueJobs
) -> None:
    died(queue, 3)
    frame = in_spark.read("dead")
    with pytest.raises(UsageError, match="where or frame, not both"):
        in_spark.redrive(where="id = 'a'", frame=frame)
    with pytest.raises(UsageError, match="has no column due, row_id"):
        in_spark.redrive(frame=frame.drop("due", "row_id"))
    with pytest.raises(UsageError, match="reasno"):
        in_spark.redrive(where="reasno = 'a'")
    with pytest.raises(BadSetting, match="rate must be"):
        in_spark.redrive(rate=0)
    with pytest.raises(UsageError, match="names no run"):
        in_spark.redrive(run="yesterday's")
    with pytest.raises(UsageError, match="has begun"):
        in_spark.redrive(run=SparkRun.new(queue._home.clock.now_us()).id)
    assert queue.dead.depth(exact=True).total == 3


class _DyingWriter(ActWriter):
    """Kills its process in each first try, in the midst of its second part; one task never ends."""

    def _actor(self) -> PartActor:
        actor, parts = super()._actor(), []
        put_back = actor._put_back

        def die(rows: Any, at_ms: int) -> None:
            parts.append(rows)
            put_back(rows if len(parts) == 1 else rows[: len(rows) // 2], at_ms)
            if len(parts) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            actor._put_back = die  # type: ignore[method-assign]
        elif task is not None and task.partitionId() == 0:
            raise StoreUnavailable("the store is away")
        return actor


class _DyingSource(ShardqDataSource):
    def writer(self, schema: Any, overwrite: bool) -> Any:
        return _DyingWriter(self._write_options(overwrite=overwrite), schema)


@on_both
def test_a_run_whose_tasks_were_killed_is_resumed_and_each_message_is_put_back_once(
    queue: Queue, in_spark: QueueJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "_PART_ROWS", 20)
    monkeypatch.setattr(dead, "CLOCK_AHEAD_MS", 0)
    died(queue, 400)
    in_spark.spark.dataSource.register(_DyingSource)
    with pytest.raises(StoreUnavailable, match="the store is away") as caught:
        in_spark.redrive(rate=100)
    register(in_spark.spark)
    some = queue.depth(exact=True).total
    assert 0 < some < 400
    assert queue.totals().put - 400 <= some
    [run] = re.findall(r"--run (\S+)\.", "".join(caught.value.__notes__))
    died(queue, 3, "later: {}")
    report = in_spark.redrive(run=run)
    assert (report.chosen, report.rows, report.left) == (400, 400, 3)
    ids = Counter(row.name for page in queue._rows() for row in page)
    assert ids == Counter(f"order-{n}" for n in range(400))
    assert queue.dead.depth(exact=True).total == 3
    assert (queue.totals().put, queue.dead.totals().forwarded) == (803, 400)
