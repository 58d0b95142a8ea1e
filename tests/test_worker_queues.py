"""A worker of many queues: its threads serve all of them, and one thread steps them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import shardq
from shardq import App
from shardq.tasks import Worker

WAIT_S = 60
QUEUES = ("index", "mail", "photos", "sms")


@pytest.fixture
def db(tmp_path: Path) -> shardq.Connection:
    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as made:
        yield made


def names_of(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def ended_by(worker: Worker) -> tuple[threading.Thread, list[shardq.ShardqError]]:
    """Run a worker in a thread; and what it ends by."""
    errors: list[shardq.ShardqError] = []

    def run() -> None:
        try:
            worker.run()
        except shardq.ShardqError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def held_up(app: App) -> tuple[threading.Event, threading.Event, list[str]]:
    """A task of each queue: what is set as a job begins, lets jobs end, and has those that did."""
    begun, may_end, ended = threading.Event(), threading.Event(), list[str]()

    def work(name: str) -> None:
        begun.set()
        may_end.wait(WAIT_S)
        ended.append(name)

    for name in QUEUES:
        app.task(name=name, queue=name)(work)
    return begun, may_end, ended


def test_threads_bound_the_jobs_of_all_queues_together(db: shardq.Connection) -> None:
    app = App(db)
    both, lock = threading.Barrier(2), threading.Lock()
    running, most, handlers, steppers = [0], [0], set[str](), set[str]()

    def meet() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        # Two run at once, of whatever queues.
        both.wait(WAIT_S)
        with lock:
            running[0] -= 1
            handlers.update(names_of("shardq-jobs"))
            steppers.update(names_of("shardq-stepper"))

    for name in QUEUES:
        task = app.task(name=name, queue=name)(meet)
        for _ in range(3):
            task.put()
    Worker(app, threads=2).run(until_empty=True)
    assert most == [2]
    assert handlers == {"shardq-jobs-0", "shardq-jobs-1"}
    assert steppers == {"shardq-stepper"}
    assert names_of("shardq-jobs") == names_of("shardq-stepper") == []


def test_a_queue_with_many_jobs_leaves_threads_to_the_others(db: shardq.Connection) -> None:
    app = App(db)
    done: list[str] = []
    many = app.task(name="many", queue="many")(lambda: done.append("many"))
    few = app.task(name="few", queue="few")(lambda: done.append("few"))
    for _ in range(200):
        many.put()
    for _ in range(3):
        few.put()
    Worker(app, threads=1).run(until_empty=True)
    assert sorted(set(done)) == ["few", "many"]
    assert len(done) == 203
    last_few = max(place for place, name in enumerate(done) if name == "few")
    assert last_few < 150


def test_a_worker_of_many_queues_ends_when_it_is_told_to(db: shardq.Connection) -> None:
    app = App(db)
    begun, may_end, ended = held_up(app)
    app.tasks["mail"].put("first")
    worker = Worker(app, threads=2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(WAIT_S)
    worker.stop()
    app.tasks["sms"].put("second")
    may_end.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert ended == ["first"]
    assert db.queue("sms").depth(exact=True).total == 1


def test_a_queue_that_is_dropped_ends_the_worker_with_its_error(db: shardq.Connection) -> None:
    app = App(db)
    begun = threading.Event()
    for name in QUEUES:
        app.task(name=name, queue=name)(begun.set)
    thread, errors = ended_by(Worker(app, threads=2))
    app.tasks["mail"].put()
    assert begun.wait(WAIT_S)
    db.queue("sms").drop()
    thread.join(WAIT_S)
    assert [type(error) for error in errors] == [shardq.UnknownQueue]
    assert names_of("shardq-jobs") == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_in_the_step_of_one_queue_ends_the_worker_and_loses_nothing_of_the_others(
    db: shardq.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(db)
    begun, may_end, ended = held_up(app)
    worker = Worker(app, threads=2)
    [sms] = [one for one in worker._consumers if one._queue.name == "sms"]

    failed = threading.Event()

    def fail() -> float:
        failed.set()
        raise ZeroDivisionError("a fault")

    thread, errors = ended_by(worker)
    app.tasks["mail"].put("first")
    assert begun.wait(WAIT_S)
    monkeypatch.setattr(sms._engine, "step", fail)
    # A step that began before would deliver the job.
    assert failed.wait(WAIT_S)
    app.tasks["sms"].put("second")
    may_end.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    [error] = errors
    assert "of queue 'sms' ended by a fault of its own, ZeroDivisionError" in str(error)
    assert str(error) in caplog.messages
    assert ended == ["first"]
    assert db.queue("mail").depth(exact=True).total == 0
    assert db.queue("sms").depth(exact=True).total == 1
    assert names_of("shardq-jobs") == names_of("shardq-stepper") == []


def test_a_worker_whose_queues_are_stepped_no_more_ends_when_it_is_told_to(
    db: shardq.Connection,
) -> None:
    app = App(db)
    begun = threading.Event()
    for name in QUEUES:
        app.task(name=name, queue=name)(begun.set)
    worker = Worker(app, threads=2)
    thread, errors = ended_by(worker)
    app.tasks["mail"].put()
    assert begun.wait(WAIT_S)
    worker._consumers[0]._stepper.close()
    worker.stop()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert errors == []
