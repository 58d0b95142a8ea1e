"""After another's unclean end: rows one by one, their attempts recorded first."""

from __future__ import annotations

from collections import Counter

import pytest
from crashing import attempts_of, crash, run_until_crash

from shardq import Consumer, Message, Queue, Retry, Snooze
from shardq.testing import Recorder, Stage


def die(stage: Stage, queue: Queue) -> None:
    """A consumer dies in its first handler, and its leases run out."""
    assert run_until_crash(stage, Consumer(queue, crash), seconds=1)
    stage.clock.advance(11)


def read(stage: Stage, consumer: Consumer, *, rows: int) -> None:
    """Step an engine, with idle handlers, until `rows` rows are ready."""
    while len(consumer._engine.ready) != rows:
        stage.clock.advance(max(consumer._engine.step(), 0.001))


def test_an_unclean_take_over_raises_the_attempts_of_what_it_hands_out_alone(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    for n in range(30):
        queue.put(f"{n}")
    die(stage, queue)
    seen = Recorder(stage.clock, lambda _: crash(_) if len(seen) == 10 else None)
    assert run_until_crash(stage, Consumer(stage.connect().queue("mail"), seen), seconds=5)
    attempts = Counter(message._row.attempt for message in queue.peek(100))
    # Nine were acked one by one; the tenth is recorded; the rest was never raised.
    assert attempts == {0: 20, 1: 1}
    assert attempts_of(seen) == [1] * 10


@pytest.mark.parametrize(("seconds", "handed_out"), [(5.0, 1), (9.0, 2)])
def test_an_attempt_that_is_recorded_slowly_neither_parks_nor_outlives_its_lease(
    stage: Stage, seconds: float, handed_out: int
) -> None:
    queue = stage.connect().queue("mail", lanes=1, hold="2s")
    queue.put("a")
    die(stage, queue)
    is_held: list[bool] = []

    def handle(message: Message) -> None:
        leases = consumer._engine.leases
        lease = leases.get(message._row.shard)
        is_held.append(lease is not None and leases.is_valid(lease))

    def slowly() -> None:
        stage.clock.advance(seconds)
        consumer._engine.outbox.park_overdue()

    stage.faults.call("edit", slowly)
    consumer = Consumer(stage.connect().queue("mail"), handle)
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=90, stride=0.2)
    # Once: it was neither parked while its attempt was recorded, nor handed out too late.
    assert is_held == [True]
    assert stage.faults.calls["edit"] == handed_out


def test_what_comes_due_after_an_unclean_take_over_is_handed_out_without_a_record(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1)
    queue.put("before")
    assert run_until_crash(stage, Consumer(queue, crash), seconds=1)
    stage.clock.advance(20)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=1)
    assert stage.faults.calls["edit"] == 1
    queue.put_many(["after", "and after"])
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["before", "after", "and after"]
    assert stage.faults.calls["edit"] == 1
    assert stage.is_empty(queue)


def test_what_a_slow_holder_settles_late_is_not_handed_out_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    sent = [queue.put(f"{n}") for n in range(3)]
    die(stage, queue)

    def handle(message: Message) -> None:
        if message.text == "0":
            # The consumer holds both rows by now, and has looked them up together.
            queue.cancel(sent[1])
            stage.clock.advance(1)

    seen = Recorder(stage.clock, handle)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert seen.texts == ["0", "2"]
    assert stage.faults.calls["edit"] == 2


def test_a_claim_whose_holder_settles_it_late_is_not_handed_out(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    with stage.connect() as away:
        caller = away.queue("mail")
        caller.put("claimed")
        [claim] = caller.receive(visibility="2s", wait="1s")
    queue.put("first")
    stage.clock.advance(3)

    def handle(_message: Message) -> None:
        # The consumer holds both rows by now. A delayed call takes effect in the store.
        queue._home.store.delete([claim._row.position])

    seen = Recorder(stage.clock, handle)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert seen.texts == ["first"]
    assert stage.faults.calls.get("edit", 0) == 0


def test_claims_are_looked_at_again_many_at_once(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many(f"{n}" for n in range(50))
    with stage.connect() as away:
        away.queue("mail").receive(50, visibility="2s", wait="1s")
    stage.clock.advance(3)
    consumer = Consumer(stage.connect().queue("mail"), seen := Recorder(stage.clock))
    looks = stage.faults.calls.get("find", 0)
    stage.drain(queue, consumer)
    assert attempts_of(seen) == [2] * 50
    assert stage.faults.calls.get("edit", 0) == 0
    assert stage.faults.calls["find"] - looks <= 5


def test_a_group_whose_head_a_slow_holder_puts_off_late_waits_for_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    for text in ("head", "next"):
        queue.put(text, group="g")
        stage.clock.advance(0.01)
    slow = Recorder(stage.clock, crash)
    assert run_until_crash(stage, Consumer(queue, slow), seconds=1)
    stage.clock.advance(11)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    put_off = queue.snooze
    # The first look-up is of rows read before the lease, the second of rows that are held.
    stage.faults.call("find", lambda: put_off(slow.messages[0], "1m"), nth=2, after=False)
    stage.drive(consumer, seconds=20)
    assert seen.texts == []
    stage.drain(queue, consumer)
    assert seen.texts == ["head", "next"]


def test_a_head_that_a_slow_holder_puts_off_late_is_handed_out_with_care_later(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("poison", group="g")
    slow = Recorder(stage.clock, crash)
    assert run_until_crash(stage, Consumer(queue, slow), seconds=1)
    stage.clock.advance(11)
    consumer = Consumer(stage.connect().queue("mail"), crash)
    read(stage, consumer, rows=1)
    queue.snooze(slow.messages[0], "1s")
    read(stage, consumer, rows=0)
    read(stage, consumer, rows=1)
    assert run_until_crash(stage, consumer, seconds=20)
    assert [message._row.attempt for message in queue.peek(1)] == [1]


def test_care_of_a_group_ends_with_the_group(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put_many({"body": "x", "group": f"g{n}"} for n in range(5))
    die(stage, queue)
    consumer = Consumer(stage.connect().queue("mail"), lambda _: None)
    stage.drain(queue, consumer)
    [mine] = consumer._engine.groups._lanes.values()
    assert not mine.cared


@pytest.mark.parametrize("asked", [Retry("2s"), Snooze("2s")])
def test_a_retry_whose_consumer_died_is_due_when_that_was_asked_for(
    stage: Stage, asked: Exception
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("put off", group="g")
    queue.put("in hand", group="other", delay="1s")

    def handle(message: Message) -> None:
        if message.text == "in hand":
            crash(message)
        raise asked

    first = Recorder(stage.clock, handle)
    assert run_until_crash(stage, Consumer(queue, first), seconds=5)
    put_off_ms = first.messages[0].due_ms + 2_000
    stage.clock.advance(11)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert seen.texts == ["put off", "in hand"]
    assert 0 <= seen.messages[0].due_ms - put_off_ms <= 500


def test_care_ends_after_the_window_of_the_one_that_died(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    for n in range(50):
        queue.put(f"{n}")
    assert run_until_crash(stage, Consumer(queue, crash, prefetch=10), seconds=1)
    stage.clock.advance(11)
    before = stage.faults.calls.get("edit", 0)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), lambda _: None))
    assert stage.faults.calls["edit"] - before == 10


def test_care_is_for_all_rows_of_groups_however_short_window_and_page_are(
    stage: Stage,
) -> None:
    # Now the lane need not be caught up minute by minute.
    stage.clock.advance(600)
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, minute="1h")
    for n in range(6):
        queue.put(f"{n}", group=f"g{n}")
        stage.clock.advance(0.01)
    assert run_until_crash(stage, Consumer(queue, crash, prefetch=2), seconds=1)
    stage.clock.advance(11)
    consumer = Consumer(stage.connect().queue("mail"), lambda _: None)
    # Failed reads make pages this short. Rows after the page's end are read for groups' sake.
    consumer._engine.pages.page_rows = 3
    read(stage, consumer, rows=6)
    careful = [one.row.body for one in consumer._engine.memory.known.values() if one.careful]
    # One row of each group may have been handed out: rows of groups do not count in the window.
    assert sorted(careful) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_consumer_that_comes_back_to_its_own_lapsed_leases_raises_nothing(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer = Consumer(queue, lambda _: None)
    queue.put("a", delay="1s")
    stage.drive(consumer, seconds=0.5)
    stage.clock.advance(30)
    stage.drain(queue, consumer)
    assert "edit" not in stage.faults.calls


def test_an_attempt_that_cannot_be_recorded_is_tried_until_the_lease_is_nearly_over(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put("a")
    die(stage, queue)
    stage.faults.fail("edit", times=1_000_000, applied=True)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    begun_us = stage.clock.boot_us()
    while not stage.faults.calls.get("edit"):
        stage.clock.advance(max(consumer.step(), 0.001))
    assert stage.clock.boot_us() - begun_us < 10_000_000
    assert not seen.texts
    stage.faults.heal()
    stage.drain(queue, consumer)
    # The try before may have been recorded, and nobody knows.
    assert attempts_of(seen) == [2]


def test_what_is_about_to_begin_with_care_does_not_when_its_consumer_is_closed(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many(["begins", "runs"])
    die(stage, queue)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    engine = consumer._engine
    read(stage, consumer, rows=2)
    begins, runs = engine.ready.take(), engine.ready.take()
    assert begins is not None
    assert runs.run(runs.begun_us)
    # Its thread goes on once it has been passed over, and the other is being parked.
    stage.faults.call("move", lambda: consumer._deliver(begins))
    engine.close()
    assert seen.texts == []
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert sorted(seen.texts) == ["begins", "runs"]


def test_who_stops_waits_for_an_ack_that_a_handler_s_thread_stores(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put("a")
    die(stage, queue)
    consumer = Consumer(stage.connect().queue("mail"), lambda _: None)
    read(stage, consumer, rows=1)
    one = consumer._engine.ready.take()
    assert one is not None
    waits: list[int] = []
    outbox = consumer._engine.outbox
    stage.faults.call("delete", lambda: waits.append(outbox.unended), after=False)
    consumer._deliver(one)
    assert waits == [1]
    assert not outbox.unended


@pytest.mark.parametrize(("body_bytes", "looks"), [(10, 1), (60_000, 5)])
def test_many_rows_are_looked_at_in_one_go_and_few_large_ones(
    stage: Stage, body_bytes: int, looks: int
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many([bytes(body_bytes)] * 20)
    die(stage, queue)
    consumer = Consumer(stage.connect().queue("mail"), lambda _: None)
    engine = consumer._engine
    read(stage, consumer, rows=20)
    before = stage.faults.calls["find"]
    while (one := engine.ready.take()) is not None:
        consumer._deliver(one)
    assert stage.faults.calls["edit"] == 20
    assert stage.faults.calls["find"] - before == looks
