"""A consumer with its threads, on a manual clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from crashing import attempts_of

from shardq import Consumer, Message, Queue
from shardq.errors import UnknownQueue
from shardq.testing import Recorder, Stage

WAIT_S = 60


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


def fail(message: Message) -> None:
    raise ValueError(f"no {message.text}")


# Outcomes -----------------------------------------------------------------------------------------


@pytest.fixture
def busy() -> Iterator[Stage]:
    with Stage(threaded=True) as made:
        yield made


def test_threads_deliver_every_message_once(busy: Stage) -> None:
    queue = busy.connect().queue("mail")
    sent = [queue.put(f"{n}", delay=f"{n * 5}ms").text for n in range(200)]
    seen = Recorder(busy.clock)
    consumer = Consumer(queue, seen, threads=4)
    with busy.ticking():
        consumer.run(until_empty=True)
    assert sorted(seen.texts) == sorted(sent)
    assert min(seen.late_ms) >= 0
    assert busy._store.members("mail") == {}


def test_acks_whose_answer_was_lost_beside_the_engine_are_sent_again(busy: Stage) -> None:
    queue = busy.connect().queue("mail")
    queue.put_many([b"x"] * 1_000)
    busy.faults.fail("delete", times=3, applied=True)
    seen = Recorder(busy.clock)
    with busy.ticking():
        Consumer(queue, seen, threads=4).run(until_empty=True)
    assert len(seen) == len({message.id for message in seen.messages}) == 1_000
    assert busy.faults.calls["delete"] > 3
    assert busy.is_empty(queue)


def test_acks_that_keep_failing_beside_the_engine_are_tried_less_and_less_often(
    busy: Stage,
) -> None:
    queue = busy.connect().queue("mail")
    queue.put_many([b"x"] * 1_000)
    busy.faults.fail("delete", times=1_000_000)
    consumer = Consumer(queue, lambda _: None, threads=4)
    with busy.ticking():
        consumer.start()
        busy.clock.sleep(30)
        tries = busy.faults.calls["delete"]
        busy.faults.heal()
        consumer.stop()
        consumer.join()
    # Twice as long each time, from 0.1 s to 5 s; and more than one errand is on its way at first.
    assert 5 <= tries <= 20
    assert busy.is_empty(queue)


def test_until_empty_waits_for_what_is_due_later_and_ends_on_an_empty_queue(busy: Stage) -> None:
    queue = busy.connect().queue("mail")
    seen = Recorder(busy.clock)
    with busy.ticking(0.1):
        Consumer(queue, seen, threads=1).run(until_empty=True)
        assert seen.texts == []
        queue.put("far", delay="30s")
        Consumer(queue, seen, threads=1).run(until_empty=True)
    assert seen.texts == ["far"]


def test_until_empty_does_not_wait_for_what_a_purge_has_reached(busy: Stage) -> None:
    queue = busy.connect().queue("mail")
    queue.put("far", delay="300d")
    busy.clock.advance(1)
    queue.purge()
    seen = Recorder(busy.clock)
    consumer = Consumer(queue, seen, threads=1)
    watchdog = threading.Timer(WAIT_S, consumer.stop)
    watchdog.start()
    with busy.ticking(0.05):
        consumer.run(until_empty=True)
    assert watchdog.is_alive()
    watchdog.cancel()
    assert seen.texts == []


def test_stop_lets_running_handlers_finish_and_releases_everything(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1)
    sent = [queue.put(f"{n}") for n in range(10)]
    started, go = threading.Event(), threading.Event()

    def handle(_message: Message) -> None:
        started.set()
        assert go.wait(WAIT_S)

    seen = Recorder(busy.clock, handle)
    consumer = Consumer(queue, seen, threads=1, deadline="1h")
    with busy.ticking(0.002):
        consumer.start()
        assert started.wait(WAIT_S)
        consumer.stop()
        go.set()
        consumer.join(WAIT_S)
    assert len(seen) == 1
    left = queue.peek(20)
    assert len(left) == 9
    assert all((m._row.attempt, m._row.claim) == (0, None) for m in left)
    shards = [message._row.shard for message in sent]
    assert {(s.lock, s.holder) for s in busy._store.leases(shards).values()} == {(None, None)}
    assert busy._store.members("mail") == {}


def test_while_a_handler_goes_on_after_stop_others_get_what_has_not_begun(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1)
    queue.put("slow")
    started, go, all_seen = threading.Event(), threading.Event(), threading.Event()

    def handle(_message: Message) -> None:
        started.set()
        assert go.wait(WAIT_S)

    first = Consumer(queue, Recorder(busy.clock, handle), threads=1, deadline="1h")
    seen = Recorder(busy.clock, lambda _: all_seen.set() if len(seen) == 5 else None)
    second = Consumer(busy.connect().queue("mail"), seen, threads=1)
    with busy.ticking(0.02):
        first.start()
        assert started.wait(WAIT_S)
        queue.put_many(f"{n}" for n in range(5))
        busy.clock.sleep(1)
        first.stop()
        second.start()
        assert all_seen.wait(WAIT_S)
        assert not go.is_set()
        go.set()
        first.join(WAIT_S)
        second.stop()
        second.join(WAIT_S)
    assert seen.texts == [f"{n}" for n in range(5)]
    assert busy.is_empty(queue)


def test_at_the_deadline_what_still_runs_is_parked_and_no_attempt_is_spent(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1, attempts=1)
    queue.put("slow")
    started, go = threading.Event(), threading.Event()

    def handle(_message: Message) -> None:
        started.set()
        go.wait(WAIT_S)

    consumer = Consumer(queue, handle, threads=2, deadline="2s")
    with busy.ticking(0.02):
        consumer.start()
        assert started.wait(WAIT_S)
        consumer.stop()
        consumer.join(WAIT_S)
    [parked] = queue.peek()
    assert parked._row.claim == consumer.member
    assert parked._row.attempt == 0
    assert busy._store.leases([parked._row.shard])[parked._row.shard].holder is None
    go.set()
    seen = Recorder(busy.clock)
    with busy.ticking(0.1):
        Consumer(busy.connect().queue("mail"), seen, threads=1).run(until_empty=True)
    assert attempts_of(seen) == [1]


def test_a_long_handler_is_parked_while_the_consumer_goes_on(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1, hold="2s", visibility="10s")
    queue.put("slow")
    started, go = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.text == "slow":
            started.set()
            assert go.wait(WAIT_S)
        elif message.text == "last":
            go.set()

    seen = Recorder(busy.clock, handle)
    consumer = Consumer(queue, seen, threads=2)
    with busy.ticking(0.02):
        consumer.start()
        assert started.wait(WAIT_S)
        queue.put("quick")
        queue.put("last", delay="30s")
        assert go.wait(WAIT_S)
        consumer.stop()
        consumer.join(WAIT_S)
    assert seen.texts == ["slow", "quick", "last"]
    assert busy.is_empty(queue)


def test_what_is_parked_stays_its_consumer_s_while_a_stop_waits_for_it(busy: Stage) -> None:
    queue = busy.connect().queue("mail", minute="1s", lanes=1, hold="1s", visibility="8s")
    queue.put("slow")
    go = threading.Event()
    seen = Recorder(busy.clock, lambda _: go.wait(WAIT_S))
    again = Recorder(busy.clock)
    consumer = Consumer(queue, seen, threads=1, deadline="1h")
    other = Consumer(busy.connect().queue("mail"), again, threads=1)
    with busy.ticking(0.02):
        consumer.start()
        while not any(found._row.claim for found in queue.peek()):
            busy.clock.sleep(0.1)
        consumer.stop()
        other.start()
        busy.clock.sleep(20)
        go.set()
        consumer.join(WAIT_S)
        other.stop()
        other.join(WAIT_S)
    assert (seen.texts, again.texts) == (["slow"], [])
    assert busy.is_empty(queue)


def test_a_dropped_queue_ends_its_consumers_with_an_error(busy: Stage) -> None:
    queue = busy.connect().queue("mail")
    consumer = Consumer(queue, lambda _: None, threads=1)
    with busy.ticking(0.05):
        consumer.start()
        busy.connect().queue("mail").drop()
        with pytest.raises(UnknownQueue, match="dropped"):
            consumer.join(WAIT_S)


def test_a_store_that_is_away_for_a_while_costs_time_and_nothing_else(busy: Stage) -> None:
    queue = busy.connect().queue("mail")
    sent = [queue.put(f"{n}", delay=f"{n * 20}ms").text for n in range(50)]
    for verb in ("read", "renew", "delete", "beat", "find"):
        busy.faults.fail(verb, nth=5, times=6)
    seen = Recorder(busy.clock)
    consumer = Consumer(queue, seen, threads=2)
    with busy.ticking(0.05):
        consumer.run(until_empty=True)
    assert set(seen.texts) == set(sent)


def test_a_put_in_the_same_process_wakes_the_consumer(busy: Stage) -> None:
    queue: Queue = busy.connect().queue("mail")
    done = threading.Event()
    consumer = Consumer(queue, lambda _: done.set(), threads=1)
    consumer.start()
    # Time stands still: only news can wake it.
    queue.put("a")
    assert done.wait(WAIT_S)
    consumer.stop()
    with busy.ticking():
        consumer.join(WAIT_S)
