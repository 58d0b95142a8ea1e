"""A consumer with its threads, on a manual clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest
from crashing import attempts_of
from supervised import wait_for

from shardq import Bury, Consumer, Message, Queue, Retry, locks
from shardq.engine.handing.outcome import Outcome
from shardq.errors import ShardqError, StoreFull, UnknownQueue
from shardq.model.shard import Shard
from shardq.records.membership import Heartbeat
from shardq.stores.tables import MEMBERS
from shardq.testing import Recorder, Stage

WAIT_S = 60


def fail(message: Message) -> None:
    raise ValueError(f"no {message.text}")


def nothing(_message: Message) -> None:
    pass


# Outcomes -----------------------------------------------------------------------------------------


def test_threads_deliver_every_message_once(busy: Stage) -> None:
    queue = busy.connect().queue("mail")
    sent = [queue.put(f"{n}", delay=f"{n * 5}ms").text for n in range(200)]
    seen = Recorder(busy.clock)
    consumer = Consumer(queue, seen, threads=4)
    with busy.ticking():
        consumer.run(until_empty=True)
    assert sorted(seen.texts) == sorted(sent)
    assert min(seen.late_ms) >= 0
    assert busy._store.notes(MEMBERS, ("mail",)) == {}


def test_an_ack_is_stored_within_twenty_milliseconds_beside_a_job_that_runs_on(
    busy: Stage,
) -> None:
    go, begun, queue = threading.Event(), threading.Event(), busy.connect().queue("mail")

    def handle(message: Message) -> None:
        if message.text == "b":
            begun.set()
            go.wait(WAIT_S)

    consumer = Consumer(queue, handle, threads=1)
    consumer.start()
    try:
        with busy.ticking():
            queue.put_many([b"a", b"b"])
            assert begun.wait(WAIT_S)
        busy.clock.advance(0.02)
        wait_for(lambda: [one.text for one in queue.peek()] == ["b"], "the ack of a is stored")
    finally:
        go.set()
        with busy.ticking():
            consumer.stop()
            consumer.join(WAIT_S)


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
    assert {(s.lock, s.holder) for s in busy._store.lease_states(shards).values()} == {(None, None)}
    assert busy._store.notes(MEMBERS, ("mail",)) == {}


def test_a_signal_s_handler_may_stop_a_consumer_while_its_thread_begins_to_wait(
    busy: Stage,
) -> None:
    consumer = Consumer(busy.connect().queue("mail"), nothing, threads=1)
    engine = consumer._engine
    engine.membership.beats = {"other": Heartbeat()}
    worker = threading.Thread(
        target=lambda: engine.ready.waiters.wait((engine.ready,)), daemon=True
    )

    def stop_in_the_middle() -> None:
        # A put holds this lock while it wakes the engine, just when the signal arrives.
        with engine.news._lock:
            worker.start()
            while locks.is_free(engine.ready._lock):
                pass
            consumer.stop()

    interrupted = threading.Thread(target=stop_in_the_middle, daemon=True)
    interrupted.start()
    interrupted.join(5)
    assert not interrupted.is_alive()
    engine.ready.stop()
    worker.join(WAIT_S)
    assert not worker.is_alive()


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
    assert busy._store.lease_states([parked._row.shard])[parked._row.shard].holder is None
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


# What a thread ends by ----------------------------------------------------------------------------


class TimeOut(BaseException):
    """Raised into a handler from outside, as gevent and some decorators do."""


class Unsayable(Retry):
    """A request that cannot be printed, and knows no delay."""

    def __init__(self) -> None:
        pass

    def __str__(self) -> str:
        raise KeyError("no text")


def nested() -> Exception:
    """More groups within one another than Python prints."""
    error: Exception = ValueError("deep")
    for _ in range(5_000):
        error = ExceptionGroup("group", [error])
    return error


@pytest.mark.parametrize(
    "make",
    [
        KeyboardInterrupt,
        GeneratorExit,
        SystemExit,
        TimeOut,
        asyncio.CancelledError,
        MemoryError,
        Unsayable,
        nested,
        lambda: ValueError("x" * 10_000_000),
        lambda: ValueError("\ud800"),
    ],
)
def test_whatever_a_handler_raises_is_a_failed_attempt_and_its_thread_goes_on(
    busy: Stage, make: Callable[[], BaseException]
) -> None:
    queue = busy.connect().queue("mail")
    queue.put("bad")
    queue.put("good", delay="20s")

    def handle(message: Message) -> None:
        if message.text == "bad" and message.attempt == 1:
            raise make()

    seen = Recorder(busy.clock, handle)
    with busy.ticking(0.05):
        Consumer(queue, seen, threads=1).run(until_empty=True)
    assert seen.texts == ["bad", "bad", "good"]
    assert attempts_of(seen) == [1, 2, 1]


def test_what_a_handler_says_at_length_is_cut_before_it_is_kept(busy: Stage) -> None:
    queue = busy.connect().queue("mail", attempts=1)
    queue.put_many(["error", "retry", "bury"])

    def handle(message: Message) -> None:
        kinds = {"error": ValueError, "bury": Bury}
        text = message.text * 1_000_000
        raise Retry("1s", text) if message.text == "retry" else kinds[message.text](text)

    consumer = Consumer(queue, handle, threads=1)
    kept: list[Outcome] = []
    finish = consumer._engine.outbox.finish
    consumer._engine.outbox.finish = lambda one, outcome: (
        kept.append(outcome),
        finish(one, outcome),
    )
    with busy.ticking(0.05):
        consumer.run(until_empty=True)
    assert len(kept) == 3
    assert all(max(len(one.reason), len(one.traceback)) <= 8_000 for one in kept)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[threading.ExceptHookArgs]:
    """What threads ended by."""
    made: SimpleQueue[threading.ExceptHookArgs] = SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", made.put)
    return made


def test_a_handler_s_thread_that_ends_outside_of_it_ends_the_consumer_with_an_error(
    busy: Stage,
    told: SimpleQueue[threading.ExceptHookArgs],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = busy.connect().queue("mail")
    sent = queue.put("a")
    consumer = Consumer(queue, nothing, threads=2)

    def cut_off(_one: object) -> None:
        raise TimeOut

    monkeypatch.setattr(consumer._deliverer, "_handle", cut_off)
    with (
        busy.ticking(0.05),
        pytest.raises(ShardqError, match=r"queue 'mail' ended by .*TimeOut") as e,
    ):
        consumer.run()
    assert isinstance(e.value.__cause__, TimeOut)
    assert told.get(timeout=WAIT_S).exc_type is TimeOut
    assert str(e.value) in caplog.messages
    # It counts, as if the process had ended; and nothing is held any more.
    [waiting] = queue.peek()
    assert (waiting.id, waiting.attempt) == (sent.id, 1)
    assert not waiting._row.claim
    assert busy._store.notes(MEMBERS, ("mail",)) == {}


def test_a_thread_that_is_lost_while_it_waits_ends_the_consumer_too(
    busy: Stage, told: SimpleQueue[threading.ExceptHookArgs], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer(busy.connect().queue("mail"), nothing, threads=1)

    def lost(_readies: object) -> None:
        raise SystemExit

    monkeypatch.setattr(consumer._engine.ready.waiters, "wait", lost)
    with busy.ticking(0.05), pytest.raises(ShardqError, match="SystemExit"):
        consumer.run()
    assert told.get(timeout=WAIT_S).exc_type is SystemExit


@pytest.mark.parametrize("verb", ["note members", "erase members"], ids=["at work", "at its end"])
def test_an_engine_that_fails_ends_its_consumer_with_what_it_failed_by(
    busy: Stage, told: SimpleQueue[threading.ExceptHookArgs], verb: str
) -> None:
    queue = busy.connect().queue("mail")
    queue.put("a")
    consumer = Consumer(queue, lambda _: consumer.stop(), threads=1)
    busy.faults.call(verb, lambda: 1 // 0)
    with busy.ticking(0.05), pytest.raises(ShardqError, match="ZeroDivisionError") as caught:
        consumer.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert told.get(timeout=WAIT_S).exc_type is ZeroDivisionError


# Trouble ------------------------------------------------------------------------------------------


def test_a_consumer_whose_threads_cannot_be_started_says_so_and_holds_nothing(
    busy: Stage,
) -> None:
    consumer = Consumer(busy.connect().queue("mail"), nothing, threads=4)
    size = threading.stack_size(1 << 50)
    try:
        with pytest.raises(ShardqError, match="cannot start its 4 threads"):
            consumer.start()
    finally:
        threading.stack_size(size)
    consumer.join(WAIT_S)
    assert consumer._engine.courier._serves is False


def test_a_store_that_is_away_for_a_while_costs_time_and_nothing_else(busy: Stage) -> None:
    queue = busy.connect().queue("mail")
    sent = [queue.put(f"{n}", delay=f"{n * 20}ms").text for n in range(50)]
    for verb in ("read", "renew", "delete", "note members", "find"):
        busy.faults.fail(verb, nth=5, times=6)
    seen = Recorder(busy.clock)
    consumer = Consumer(queue, seen, threads=2)
    with busy.ticking(0.05):
        consumer.run(until_empty=True)
    assert set(seen.texts) == set(sent)


@pytest.mark.parametrize("for_good", [False, True])
def test_a_full_disk_ends_a_consumer_once_its_handlers_have_ended(
    busy: Stage, for_good: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    queue = busy.connect().queue("mail", lanes=1)
    queue.put("slow")
    started, go = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        started.set()
        go.wait(WAIT_S)

    consumer = Consumer(queue, handle, threads=2)
    with busy.ticking():
        consumer.start()
        assert started.wait(WAIT_S)
        # The writes that always happen and, if `for_good`, the write that stores an ended message.
        full = StoreFull("the disk is full; make room.")
        for verb in ("note members", "renew", "erase members", *(("delete",) if for_good else ())):
            busy.faults.fail(verb, times=1_000_000, error=full)
        while not consumer._stopping:
            assert consumer._engine_thread.is_alive()
            go.wait(0.01)
        assert consumer._engine_thread.is_alive()
        go.set()
        with pytest.raises(StoreFull, match="make room") as told:
            consumer.join(WAIT_S)
    busy.faults.heal()
    assert getattr(told.value, "__notes__", []) == (
        ["Deliveries here whose outcome could not be stored: 1."] if for_good else []
    )
    assert busy.is_empty(queue) == (not for_good)
    # No lease is left for another member to wait for.
    minutes = [busy.clock.now_ms() // 60_000 - back for back in range(3)]
    states = busy._store.lease_states([Shard("mail", minute, 0) for minute in minutes])
    assert {state.lock for state in states.values()} == {None}
    assert {state.holder for state in states.values()} == {None}
    # No thread ends by an exception.
    assert capfd.readouterr().err == ""


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


def test_a_consumer_has_a_thread_for_schedules_only_once_its_queue_has_one(busy: Stage) -> None:
    queue = busy.connect().queue("mail")
    handled: SimpleQueue[str] = SimpleQueue()
    consumer = Consumer(queue, lambda message: handled.put(message.text), threads=1)
    with busy.ticking(0.02):
        consumer.start()
        queue.put("first")
        assert handled.get(timeout=WAIT_S) == "first"
        assert "shardq-mail-schedules" not in threads()
        queue.every("1s", "again")
        assert handled.get(timeout=WAIT_S) == "again"
        assert "shardq-mail-schedules" in threads()
        consumer.stop()
        consumer.join(WAIT_S)
    assert "shardq-mail-schedules" not in threads()


def test_a_thread_for_schedules_that_cannot_be_started_is_tried_again(
    busy: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = busy.connect().queue("mail")
    handled: SimpleQueue[str] = SimpleQueue()
    consumer = Consumer(queue, lambda message: handled.put(message.text), threads=1)
    consumer.start()
    size = threading.stack_size(1 << 50)
    try:
        queue.every("1s", "again")
        for _ in range(100_000):
            busy.clock.advance(0.01)
            if "do not fire in this process" in caplog.text:
                break
    finally:
        threading.stack_size(size)
    with busy.ticking(0.02):
        assert handled.get(timeout=WAIT_S) == "again"
        consumer.stop()
        consumer.join(WAIT_S)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
