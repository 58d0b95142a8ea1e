"""What nobody comes by for is done in time: an idle process's totals are stored."""

from __future__ import annotations

import logging
import textwrap
from typing import TYPE_CHECKING

import pytest
from sqlite_file import run_child

from shardq.clock import SystemClock
from shardq.connection import Connection
from shardq.errors import StoreUnavailable, UnknownQueue
from shardq.lifecycle import home
from shardq.records.folded import stored_totals
from shardq.records.keeper import Keeper
from shardq.testing import ManualClock, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GLANCES = 6_000
"""A minute of looking."""


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(threaded=True) as stage:
        yield stage


@pytest.fixture
def db(stage: Stage) -> Iterator[Connection]:
    with Connection(stage._store, stage.clock.shifted(0), defaults={"history": "off"}) as db:
        yield db


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper(ManualClock(threaded=True))
    yield keeper
    keeper.close()


def until(is_true: Callable[[], object]) -> None:
    """Wait for it, while the clock of the stage stands still."""
    clock = SystemClock(0)
    for _ in range(GLANCES):
        if is_true():
            return
        clock.sleep(0.01)
    pytest.fail("a minute was not enough")


def is_waiting(clock: ManualClock) -> bool:
    return bool(clock._hands.waiting)


def told(stage: Stage, queue: str = "mail") -> list[tuple[int, bool]]:
    rows = stored_totals(stage._store, queue).rows
    return [(row.put, row.is_open) for row in rows]


def test_what_an_idle_process_has_put_is_stored_at_once_and_closed_at_rest(
    stage: Stage, db: Connection
) -> None:
    queue = db.queue("mail")
    for _ in range(6):
        queue.put("x")
    assert told(stage) == []
    stage.clock.advance(0.05)
    until(lambda: told(stage) == [(6, True)])
    queue.put("x")
    stage.clock.advance(2)
    until(lambda: told(stage) == [(7, True)])
    stage.clock.advance(3.9)
    assert told(stage) == [(7, True)]
    stage.clock.advance(0.1)
    until(lambda: told(stage) == [(7, False)])


def test_a_process_that_goes_on_stores_its_totals_every_2_s_and_no_more(
    stage: Stage, db: Connection
) -> None:
    queue = db.queue("mail")
    queue.put("x")
    stage.clock.advance(0.05)
    until(lambda: told(stage) == [(1, True)])
    before = stage.faults.calls["note stats"]
    for _ in range(40):
        queue.put("x")
        stage.clock.advance(0.05)
    until(lambda: told(stage)[0][0] >= 40)
    assert stage.faults.calls["note stats"] - before <= 2


def test_a_process_that_puts_and_ends_stores_its_totals_once(stage: Stage) -> None:
    with Connection(stage._store, stage.clock.shifted(0)) as db:
        db.queue("mail").put("x")
    assert stage.faults.calls["note stats"] == 1
    assert told(stage) == [(1, False)]


def test_the_totals_of_every_queue_are_stored_in_time(stage: Stage, db: Connection) -> None:
    for name in ("one", "two"):
        db.queue(name).put("x")
    [message] = db.queue("one").receive()
    db.queue("one").bury(message, "why")
    db.queue("one").dead.cancel(db.queue("one").dead.peek()[0])
    stage.clock.advance(0.05)
    until(lambda: told(stage, "two") == [(1, True)])
    until(lambda: stored_totals(stage._store, "one").totals.buried == 1)
    until(lambda: stored_totals(stage._store, "one.dead").totals.cancelled == 1)


def test_a_store_in_trouble_gets_the_totals_later_and_is_complained_of_once(
    stage: Stage, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    queues = [db.queue(name) for name in ("one", "two")]
    error = StoreUnavailable("the store is away.")
    stage.faults.fail("note stats", times=8, error=error)
    with caplog.at_level(logging.INFO, "shardq.records.keeper"):
        for queue in queues:
            queue.put("x")
        with stage.ticking():
            until(lambda: told(stage, "one") and told(stage, "two"))
    warned = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warned) == 1
    assert warned[0].getMessage().startswith("the totals of queue ")
    assert warned[0].getMessage().endswith("the store is away; trying again")
    assert stage.faults.calls["note stats"] >= 6


def test_a_close_that_fails_is_repeated_and_says_that_nothing_is_missing(
    stage: Stage, db: Connection
) -> None:
    db.queue("mail").put("x")
    stage.clock.advance(0.05)
    until(lambda: told(stage) == [(1, True)])
    stage.faults.fail("note stats", times=3)
    with stage.ticking():
        until(lambda: told(stage) == [(1, False)])
    assert stored_totals(stage._store, "mail").gaps(stage.clock.true_ms()) == []


def test_who_is_not_stored_for_5_s_says_so_and_goes_on_in_another_row(
    stage: Stage, db: Connection
) -> None:
    queue = db.queue("mail")
    stage.faults.fail("note stats", times=1_000)
    queue.put("x")
    with stage.ticking():
        until(lambda: stage.faults.calls.get("note stats", 0) >= 10)
    stage.faults.heal()
    stage.clock.advance(6)
    until(lambda: told(stage) == [(1, False)])
    [late] = stored_totals(stage._store, "mail").gaps(stage.clock.true_ms())
    assert late.late_ms
    queue.put("x")
    stage.clock.advance(0.05)
    until(lambda: told(stage) == [(1, False), (1, True)])
    rows = stored_totals(stage._store, "mail").rows
    assert len({row.process for row in rows}) == 1


def test_of_a_queue_that_was_dropped_only_the_new_one_is_counted(
    stage: Stage, db: Connection
) -> None:
    queue = db.queue("mail")
    queue.put("x")
    queue.drop()
    db.queue("mail").put("y")
    stage.clock.advance(0.05)
    key = db.queue("mail")._home.register.totals_key
    assert key != "mail"
    until(lambda: told(stage, key) == [(1, True)])


def test_of_processes_that_put_and_end_some_fold_what_others_have_left(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else one in 32 does, by its name.
    monkeypatch.setattr(home, "_FOLDS_ONE_IN", 1)
    for _ in range(5):
        with Connection(stage._store, stage.clock.shifted(0)) as db:
            db.queue("mail").put("x")
        stage.clock.advance(700)
    assert len(told(stage)) == 1
    before = stage.faults.calls.copy()
    with Connection(stage._store, stage.clock.shifted(0)) as db:
        assert db.queue("mail").depth().total == 5
    # A process that has only looked writes nothing at its end.
    for verb in ("note stats", "write_records stats", "erase stats"):
        assert stage.faults.calls[verb] == before[verb]


def test_what_ended_in_the_hour_before_is_folded_by_who_goes_on(
    stage: Stage, db: Connection
) -> None:
    with Connection(stage._store, stage.clock.shifted(0)) as other:
        other.queue("mail").put("x")
    queue = db.queue("mail")
    stage.clock.advance(3_590)
    queue.put("y")
    stage.clock.advance(0.05)
    until(lambda: len(told(stage)) == 2)
    queue.put("y")
    stage.clock.advance(12)
    until(lambda: not any(is_open for _, is_open in told(stage)))
    stage.clock.advance(1)
    until(lambda: [put for put, _ in told(stage)] == [2])
    assert stored_totals(stage._store, "mail").totals.put == 3


# Tasks --------------------------------------------------------------------------------------------


def test_a_task_is_called_in_time_and_again_when_it_says(keeper: Keeper) -> None:
    clock = keeper._clock
    assert isinstance(clock, ManualClock)
    calls: list[int] = []

    def task() -> float | None:
        calls.append(clock.boot_us())
        return 3.0 if len(calls) < 3 else None

    keeper.within(5.0, task, str)
    keeper.within(1.0, task, str)
    keeper.within(2.0, task, str)
    start_us = clock.boot_us()
    for count, seconds in enumerate((1.0, 3.0, 3.0), 1):
        until(lambda: is_waiting(clock))
        assert len(calls) == count - 1
        clock.advance(seconds)
        until(lambda count=count: len(calls) == count)
    clock.advance(60)
    assert [at - start_us for at in calls] == [1_000_000, 4_000_000, 7_000_000]


def test_a_task_of_a_dropped_queue_is_forgotten_and_others_go_on(keeper: Keeper) -> None:
    clock = keeper._clock
    assert isinstance(clock, ManualClock)
    calls: list[str] = []

    def dropped() -> float | None:
        calls.append("dropped")
        raise UnknownQueue("it is gone.")

    def other() -> float | None:
        calls.append("other")
        if calls.count("other") == 1:
            raise StoreUnavailable("away")
        return 1.0

    keeper.within(0, dropped, str)
    keeper.within(0, other, str)
    with_others = ["dropped", "other", "other", "other"]
    for _ in range(GLANCES):
        if len(calls) >= len(with_others):
            break
        clock.advance(1)
        SystemClock(0).sleep(0.01)
    assert sorted(calls)[:2] == ["dropped", "other"]
    assert calls.count("dropped") == 1


def test_a_task_may_be_given_in_the_middle_of_giving_one(keeper: Keeper) -> None:
    done: list[int] = []

    def task() -> None:
        done.append(1)

    # Like a signal's handler that interrupts this thread while it holds the lock.
    with keeper._lock:
        keeper.within(0, task, str)
    until(lambda: done)


def test_a_closed_keeper_takes_no_task(keeper: Keeper) -> None:
    done: list[int] = []
    keeper.within(60, lambda: done.append(1), str)
    keeper.close()
    keeper.within(0, lambda: done.append(1), str)
    keeper.close()
    assert not keeper._is_running
    assert done == []


# Processes ----------------------------------------------------------------------------------------


def run(directory: Path, script: str) -> list[str]:
    url = f"sqlite:///{directory}/jobs.db"
    start = """
    import os, signal, sys, warnings
    import shardq
    from shardq.clock import SystemClock
    from shardq.records.folded import stored_totals

    # Python 3.12 warns of any fork beside threads; that it works with ours is the point.
    warnings.simplefilter("ignore", DeprecationWarning)
    signal.alarm(100)
    db = shardq.connect(sys.argv[1])
    queue = db.queue("mail")

    def until(is_true):
        while not is_true():
            SystemClock(0).sleep(0.01)

    def rows():
        return stored_totals(db._home.store, "mail").rows
    """
    return run_child(textwrap.dedent(start) + textwrap.dedent(script), url).splitlines()


def test_a_keeper_keeps_no_process_alive(tmp_path: Path) -> None:
    script = """
    queue.put("x")
    until(rows)
    print("the end")
    """
    assert run(tmp_path, script) == ["the end"]


def test_an_idle_child_s_totals_are_stored_beside_its_parent_s(tmp_path: Path) -> None:
    script = """
    queue.put("x")
    until(rows)
    child = os.fork()
    if not child:
        queue.put("y")
        until(lambda: len(rows()) == 2)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    queue.put("x")
    print(queue.totals().put, sorted(row.put for row in rows()))
    # Of a process that is gone, and has told of no end.
    gaps = stored_totals(db._home.store, "mail").gaps(db._home.clock.now_ms() + 6_000)
    print(sum(row.process.endswith(f":{child}") for row in gaps))
    """
    assert run(tmp_path, script) == ["7", "3 [1, 2]", "1"]


def test_a_child_of_multiprocessing_that_returns_has_stored_its_totals(tmp_path: Path) -> None:
    script = """
    import multiprocessing

    def put_with(parents):
        made = db if parents else shardq.connect(sys.argv[1])
        made.queue("mail").put("x", delay="2h")

    for parents in (True, False):
        child = multiprocessing.get_context("fork").Process(target=put_with, args=[parents])
        child.start()
        child.join()
        print(child.exitcode, [(row.put, row.is_open) for row in rows()])
    """
    assert run(tmp_path, script) == ["0 [(1, False)]", "0 [(1, False), (1, False)]"]


def test_a_signal_s_handler_may_put_while_totals_are_stored(tmp_path: Path) -> None:
    script = """
    count = refused = 0

    def put(*_):
        global count, refused
        try:
            queue.put("of the handler")
            count += 1
        except shardq.UsageError:
            # It has interrupted another put in the middle.
            refused += 1

    signal.signal(signal.SIGALRM, put)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    until_us = SystemClock(0).boot_us() + 1_000_000
    while SystemClock(0).boot_us() < until_us:
        queue.put("x")
        count += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(queue.totals().put == count)
    """
    assert run(tmp_path, script) == ["True"]
