"""The states of a queue that `check` and `observe` name, on a SQLite in memory."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, TypeVar

import pytest

from shardq import Consumer
from shardq.cli.states import Finding, Limits, Severity, StateName, findings
from shardq.inspection.backlog import backlogs
from shardq.model.message import TASK_HEADER
from shardq.observer import Observer
from shardq.records.membership import Heartbeat
from shardq.stores.tables import MEMBERS, STATS
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    import shardq


T = TypeVar("T")

WAIT_S = 60


def wait_for(look: Callable[[], T], is_there: Callable[[T], bool]) -> T:
    """What is seen, as soon as it is what is expected."""
    until = time.monotonic() + WAIT_S
    while not is_there(seen := look()):
        assert time.monotonic() < until, seen
    return seen


def found(db: shardq.Connection, **limits: int) -> list[tuple[StateName, Severity]]:
    return [(one.state, one.level) for one in looked(db, **limits)]


def looked(db: shardq.Connection, **limits: int) -> list[Finding]:
    return findings(Observer(db, ["mail"]).look()[0], Limits(**limits))


def beat(db: shardq.Connection, running: int = 0, longest_ms: int = 0) -> None:
    told = Heartbeat(threads=8, running=running, longest_ms=longest_ms)
    db._home.store.note(MEMBERS, ("mail",), {"reader": told.to_json()}, 1_000_000)


def test_an_empty_queue_is_well_without_a_consumer(db: shardq.Connection) -> None:
    db.queue("mail")
    assert found(db) == [(StateName.OK, Severity.OK)]


def test_nobody_consuming_is_wrong_once_a_message_is_due_for_too_long(
    stage: Stage, db: shardq.Connection
) -> None:
    db.queue("mail").put("x", delay="1m")
    assert found(db) == [(StateName.NO_CONSUMERS, Severity.WARNING)]
    stage.clock.advance(119)
    assert found(db) == [(StateName.NO_CONSUMERS, Severity.WARNING)]
    stage.clock.advance(2)
    assert found(db) == [(StateName.NO_CONSUMERS, Severity.WRONG)]
    assert "1m1s" in looked(db)[0].text
    beat(db)
    assert found(db) == [(StateName.LAGGING, Severity.WRONG)]
    assert found(db, lag_ms=120_000) == [(StateName.OK, Severity.OK)]


def test_lagging_says_whether_handlers_are_the_bottleneck(
    stage: Stage, db: shardq.Connection
) -> None:
    sent = db.queue("mail").put("x")
    stage.clock.advance(90)
    beat(db, running=8)
    assert "8 of 8 handlers busy" in looked(db)[0].text
    assert "Add consumers" in looked(db)[0].advice
    beat(db, running=7)
    [one] = looked(db)
    assert "7 of 8 handlers busy; the oldest ready message has waited for" in one.text
    assert one.advice.startswith("Most handlers are busy: add consumers or threads, or make the")
    assert f"`shardq show mail {sent.id}` says what that message waits for" in one.advice
    beat(db, running=1)
    [one] = looked(db)
    assert "1 of 8 handlers busy" in one.text
    assert one.advice.startswith(f"7 handlers are free; `shardq show mail {sent.id}` says what")


def test_isolated_consumers_lag_once_they_are_behind_what_they_may_read(
    stage: Stage, db: shardq.Connection
) -> None:
    queue = db.queue("mail", minute="1m", offset="2m")
    queue.put("x")
    consumer = Consumer(queue, lambda _message: None, isolated=True)
    told = consumer._engine._told()
    assert told.isolated
    db._home.store.note(MEMBERS, ("mail",), {"reader": told.to_json()}, 1_000_000)
    stage.clock.advance(239)
    assert found(db) == [(StateName.OK, Severity.OK)]
    stage.clock.advance(2)
    assert found(db) == [(StateName.LAGGING, Severity.WRONG)]
    consumer.close()


def test_a_handler_that_hangs_is_seen(db: shardq.Connection) -> None:
    db.queue("mail", visibility="30s")
    beat(db, running=1, longest_ms=29_000)
    assert found(db) == [(StateName.OK, Severity.OK)]
    beat(db, running=1, longest_ms=31_000)
    assert found(db) == [(StateName.HANGING, Severity.WARNING)]
    assert found(db, run_ms=60_000) == [(StateName.OK, Severity.OK)]
    assert found(db, run_ms=30_000) == [(StateName.HANGING, Severity.WRONG)]
    assert "reader for 31s" in looked(db)[0].text


def test_a_consumer_all_of_whose_handlers_hang_is_seen_before_their_visibility_is_over(
    db: shardq.Connection,
) -> None:
    db.queue("mail", hold="30s", visibility="10m").put("waits")

    def told(running: int, shortest_ms: int) -> None:
        runs = (("first", db._home.clock.now_ms() - 45_000), ("second", 0))
        one = Heartbeat(
            threads=2, running=running, longest_ms=45_000, shortest_ms=shortest_ms, runs=runs
        )
        db._home.store.note(MEMBERS, ("mail",), {"reader": one.to_json()}, 1_000_000)

    told(running=2, shortest_ms=29_000)
    assert found(db) == [(StateName.OK, Severity.OK)]
    told(running=1, shortest_ms=45_000)
    assert found(db) == [(StateName.OK, Severity.OK)]
    told(running=2, shortest_ms=31_000)
    assert found(db) == [(StateName.HANGING, Severity.WARNING)]
    [one] = looked(db)
    assert "all handlers, 2, have run for longer than 30s; 1 message ready" in one.text
    assert "reader runs first for 45s, second for" in one.text
    # A given `run_ms` holds for all handlers.
    assert found(db, run_ms=60_000) == [(StateName.OK, Severity.OK)]


def test_two_of_two_handlers_that_hang_are_seen_with_what_they_run(
    busy: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    db = busy.connect()
    queue = db.queue("mail", lanes=1)
    sent = {queue.put(text).id for text in ("a", "b")}
    both, over = threading.Barrier(3), threading.Event()

    def hang(_message: shardq.Message) -> None:
        both.wait(WAIT_S)
        assert over.wait(WAIT_S)

    consumer = Consumer(queue, hang, threads=2, member="reader")
    consumer.start()
    try:
        both.wait(WAIT_S)
        with busy.ticking(0.05):
            state = wait_for(lambda: looked(db)[0], lambda one: one.state is StateName.HANGING)
            wait_for(lambda: caplog.text, lambda text: text.count("it stands at:") >= 2)
    finally:
        over.set()
        with busy.ticking():
            consumer.stop()
            consumer.join(WAIT_S)
    assert "all handlers, 2, have run for longer than 30s; reader runs" in state.text
    assert all(message in state.text for message in sent)


def test_dead_letters_are_wrong_above_what_is_allowed(db: shardq.Connection) -> None:
    queue = db.queue("mail")
    for _ in range(2):
        queue.bury(queue.put("x"))
    assert found(db) == [(StateName.DEAD_LETTERS, Severity.WARNING)]
    assert found(db, dead=2) == [(StateName.DEAD_LETTERS, Severity.WARNING)]
    assert found(db, dead=1) == [(StateName.DEAD_LETTERS, Severity.WRONG)]


def test_a_paused_queue_is_never_wrong_and_the_gravest_comes_first(
    stage: Stage, db: shardq.Connection
) -> None:
    queue = db.queue("mail")
    queue.bury(queue.put("x"))
    queue.put("x")
    queue.pause()
    stage.clock.advance(3_600)
    assert found(db, dead=0) == [
        (StateName.DEAD_LETTERS, Severity.WRONG),
        (StateName.PAUSED, Severity.WARNING),
    ]


def test_a_process_that_ended_as_it_counted_is_told_until_that_is_mended(
    stage: Stage, db: shardq.Connection
) -> None:
    queue = db.queue("mail")
    told = {"at_ms": stage.clock.now_ms(), "open": 1}
    db._home.store.note(STATS, ("mail",), {(0, "web:1"): json.dumps(told)})
    assert found(db) == [(StateName.OK, Severity.OK)]
    stage.clock.advance(6)
    assert found(db) == [(StateName.COUNTS_OFF, Severity.WARNING)]
    assert "web:1" in looked(db)[0].text
    # A consumer is about to do it.
    beat(db)
    assert found(db) == [(StateName.OK, Severity.OK)]
    stage.clock.advance(60)
    assert found(db) == [(StateName.COUNTS_OFF, Severity.WARNING)]
    queue.check_all()
    assert found(db) == [(StateName.OK, Severity.OK)]


# Held back ----------------------------------------------------------------------------------------


def held_back(db: shardq.Connection) -> list[Finding]:
    home = db.queue("mail")._home
    counted = backlogs(home.store, home.register, home.clock.now_ms())
    view = Observer(db, ["mail"]).look()[0]
    found = findings(view, Limits(lag_ms=1 << 50), backlogs=counted)
    return [one for one in found if one.state in {StateName.LIMITED, StateName.PAUSED}]


def test_groups_and_queues_that_are_paused_for_long_are_named(
    db: shardq.Connection, stage: Stage
) -> None:
    queue = db.queue("mail")
    queue.put_many({"body": "x", "group": group} for group in ("eu-1", "eu-2", "us") for _ in "123")
    queue.pause(group="eu-*")
    stage.clock.advance(3_500)
    assert held_back(db) == []
    stage.clock.advance(200)
    [one] = held_back(db)
    assert (one.state, one.level) == (StateName.PAUSED, Severity.WARNING)
    assert "groups eu-* are paused; 6 of their messages are due, the first since 1h1m" in one.text
    assert "`shardq queues resume mail --group 'eu-*'`" in one.advice
    queue.resume(group="eu-*")
    queue.pause()
    [one] = held_back(db)
    assert "delivers nothing; the oldest ready message has waited for 1h1m" in one.text


def test_tasks_and_keys_that_are_paused_for_long_are_named(
    db: shardq.Connection, stage: Stage
) -> None:
    queue = db.queue("mail")
    queue.put_many({"body": "x", "headers": {TASK_HEADER: "shop.mail"}} for _ in range(200))
    queue.put("x", key="order-7", group="a")
    queue.put("x", delay="2h", headers={TASK_HEADER: "shop.mail"})
    queue.pause(task="shop.*")
    queue.pause(key="order-7")
    consumer = Consumer(queue, lambda _: None)
    stage.drive(consumer, seconds=3_500, stride=1)
    assert held_back(db) == []
    stage.drive(consumer, seconds=200, stride=1)
    keys, tasks = held_back(db)
    assert "keys order-7 are paused; 1 of their messages are due, the first since 1h1m" in keys.text
    assert "tasks shop.* are paused; 200 of their messages are due" in tasks.text
    assert "`shardq queues resume mail --task 'shop.*'`" in tasks.advice


def test_a_group_whose_backlog_needs_over_an_hour_by_its_rate_is_named(
    db: shardq.Connection,
) -> None:
    queue = db.queue("mail", groups={"rate": "10/m", "quick": {"rate": "1000/m"}})
    queue.put_many({"body": "x", "group": group} for group in "ab" for _ in range(599))
    queue.put_many({"body": "x", "group": "quick"} for _ in range(2_000))
    assert held_back(db) == []
    queue.put_many({"body": "x", "group": "b"} for _ in range(10))
    [one] = held_back(db)
    assert one.state is StateName.LIMITED
    assert "group b has 609 due messages, which need 1h" in one.text


def test_a_queue_whose_limit_holds_messages_back_for_long_is_named(
    db: shardq.Connection, stage: Stage
) -> None:
    queue = db.queue("mail", limits={"running": 2})
    queue.put_many(["x"] * 7)
    told = Heartbeat(threads=8, running=2, limited={"queue": 5}).to_json()
    db._home.store.note(MEMBERS, ("mail",), {"reader": told}, 10_000_000)
    stage.clock.advance(3_500)
    assert held_back(db) == []
    stage.clock.advance(200)
    [one] = held_back(db)
    assert "5 due messages or more wait for its limit, 2 running; the oldest" in one.text
