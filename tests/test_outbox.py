"""Outcomes on their way to a store that fails: nothing is lost, little is repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from shardq import Consumer, Message, Queue, Retry, Snooze
from shardq.engine.handing.delivery import Delivery
from shardq.engine.handing.outcome import ACKED, Discard
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.testing import Recorder, Stage

VERBS = (
    "delete",
    "find",
    "move",
    "edit",
    "waiting",
    "list_minutes",
    "read",
    "take",
    "renew",
    "release",
)


def handler() -> Callable[[Message], None]:
    """Fails, snoozes, or succeeds, by what the body says and how often it came."""
    snoozed: set[str] = set()

    def handle(message: Message) -> None:
        kind = int(message.text) % 4
        if kind == 1 and message.attempt == 1:
            raise ValueError("once")
        if kind == 2:
            raise ValueError("always")
        if kind == 3 and message.text not in snoozed:
            snoozed.add(message.text)
            raise Snooze("1s")

    return handle


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("group", [None, "g"])
def test_a_store_that_fails_at_any_call_loses_no_message_and_leaves_none_behind(
    stage: Stage, verb: str, applied: bool, group: str | None
) -> None:
    queue = stage.connect().queue("mail", attempts=2, backoff="1s", lanes=2)
    sent = [queue.put(f"{n}", delay=f"{n * 30}ms", group=group) for n in range(24)]
    seen = Recorder(stage.clock, handler())
    consumer = Consumer(queue, seen)
    for nth in range(1, 60, 4):
        stage.faults.fail(verb, nth=nth, applied=applied)
    stage.drain(queue, consumer, within="2m")
    stage.faults.heal()
    # The last delete may have been applied and its answer lost: it is repeated by the next step.
    stage.drive(consumer, seconds=1)
    dead = {message.id for message in queue.dead.peek(100)}
    assert dead == {message.id for message in sent if int(message.text) % 4 == 2}
    assert set(seen.texts) == {message.text for message in sent}
    assert not consumer._engine.memory.known
    assert consumer._engine.outbox.running == 0
    # An outcome whose storing failed is repeated, not its delivery.
    assert max(Counter(seen.texts).values()) <= 2
    if not applied:
        assert sum(Counter(seen.texts).values()) == 24 + 6 * 3


def test_a_park_whose_answer_is_lost_leaves_one_message(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="2s", visibility="10s")
    queue.put("slow")

    def work(_message: Message) -> None:
        stage.faults.fail("move", applied=True)
        for _ in range(20):
            stage.clock.advance(0.25)
            try:
                consumer._engine.step()
            except (StoreTimeout, StoreUnavailable) as error:
                consumer._engine.news.back_off(error)
        assert len(queue.peek()) == 1

    seen = Recorder(stage.clock, work)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=30, stride=0.2)
    assert len(seen) == 1


def test_what_ends_before_a_refused_park_is_tried_again_is_settled_where_it_is(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", hold="1s", visibility="2s")
    queue.put("slow")

    def work(_message: Message) -> None:
        stage.clock.advance(1.1)
        stage.faults.fail("move")
        with pytest.raises(StoreUnavailable):
            consumer._engine.step()
        # At the next try the time of the claim would be over.
        stage.clock.advance(3)

    seen = Recorder(stage.clock, work)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=10)
    assert len(seen) == 1
    assert stage.faults.calls["move"] == 1


def test_a_claim_that_was_over_when_it_was_stored_is_moved_on_where_its_shard_is_leased(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", hold="1s", visibility="2s")
    queue.put("slow")
    other_seen = Recorder(stage.clock)
    other = Consumer(stage.connect().queue("mail"), other_seen)

    def work(_message: Message) -> None:
        stage.clock.advance(1.1)
        stage.faults.call("move", lambda: stage.clock.advance(2.5))
        consumer._engine.step()
        [claim] = queue.peek()
        assert claim.due_ms < stage.clock.now_ms()
        consumer._engine.step()
        [claim] = queue.peek()
        assert claim.due_ms == stage.clock.now_ms() + 2_000
        for _ in range(80):
            stage.drive(other, seconds=0.25, stride=0.25)
            consumer._engine.step()

    seen = Recorder(stage.clock, work)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    assert (len(seen), len(other_seen)) == (1, 0)


def test_the_ack_of_what_was_parked_too_late_for_its_minute_finds_it_where_its_repair_put_it(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", hold="2s", visibility="10s")
    queue.put("slow")
    consumer, one = taken(stage)
    outbox = consumer._engine.outbox
    stage.clock.advance(5)
    stage.faults.call("move", lambda: stage.clock.advance(300))
    outbox.park_overdue()
    assert [message._row for message in queue.peek()] == [one.row]
    outbox.finish(one, ACKED)
    outbox.flush()
    assert stage.is_empty(queue)
    assert not consumer._engine.memory.known


def read_while_parked(stage: Stage, consumer: Consumer) -> None:
    """A delivery's park is stored, its answer lost, and its time over: it is read again."""
    stage.clock.advance(1.1)
    stage.faults.fail("move", applied=True)
    with pytest.raises(StoreTimeout):
        consumer._engine.step()
    stage.clock.advance(2.5)
    consumer._engine.reader.poll()


def test_a_park_that_is_stored_and_over_before_it_is_known_leaves_one_delivery(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", hold="1s", visibility="2s")
    queue.put("slow")

    def work(_message: Message) -> None:
        engine = consumer._engine
        read_while_parked(stage, consumer)
        assert len(engine.memory.known) == 2
        engine.step()
        assert len(engine.memory.known) == 1

    seen = Recorder(stage.clock, work)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    assert len(seen) == 1
    stage.drive(consumer, seconds=1)
    assert consumer._engine.memory.leased_rows == {}


def test_what_is_taken_again_while_its_park_is_known_keeps_no_lease(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="1s", visibility="2s")
    queue.put("slow")

    def work(_message: Message) -> None:
        if len(seen) > 1:
            return
        engine = consumer._engine
        read_while_parked(stage, consumer)
        # Another handler takes the row before the engine parks it.
        again = engine.ready.take()
        assert again is not None
        engine.step()
        consumer._deliver(again)

    seen = Recorder(stage.clock, work)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=10)
    assert len(seen) == 2
    assert consumer._engine.memory.leased_rows == {}
    assert stage.is_empty(queue)


def test_a_group_s_backlog_does_not_wait_for_one_who_has_left_the_lane(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    sent = [queue.put(f"{n}", group="g").text for n in range(400)]
    stage.clock.advance(3_600)

    def take_time(_message: Message) -> None:
        if len(seen) < 10:
            stage.clock.advance(0.3)

    seen = Recorder(stage.clock, take_time)
    leaving = Consumer(queue, seen, prefetch=320)
    while len(seen) < 10:
        leaving.step()
    leaving.close()
    stage.drain(queue, Consumer(queue, seen, prefetch=320), within="1m")
    assert seen.texts == sent


def test_an_ack_whose_lease_has_lapsed_looks_before_it_deletes(stage: Stage, queue: Queue) -> None:
    queue.put("a")
    other = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))

    def work(_message: Message) -> None:
        stage.drive(other, seconds=30, stride=0.1)

    consumer = Consumer(queue, work)
    stage.drive(consumer, seconds=0.2)
    assert stage.is_empty(queue)
    other.close()
    consumer.close()
    assert queue.totals().acked == 1


def test_acks_that_failed_until_their_lease_had_lapsed_are_looked_up(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.faults.fail("delete", times=1)
    stage.faults.fail("renew", times=1_000)
    with pytest.raises((StoreTimeout, StoreUnavailable)):
        consumer.step()
    assert seen.texts == ["x"]
    stage.clock.advance(20)
    stage.faults.heal()
    consumer._engine.outbox.flush()
    assert stage.is_empty(queue)
    assert consumer._engine.outbox.is_empty


def taken(stage: Stage) -> tuple[Consumer, Delivery]:
    """A consumer, and a delivery that it has handed out."""
    consumer = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))
    consumer._engine.step()
    one = consumer._engine.ready.take()
    assert one.run(one.begun_us)
    return consumer, one


def test_an_ack_stored_by_its_handler_s_thread_is_concluded_by_the_engine(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x")
    consumer, one = taken(stage)
    outbox = consumer._engine.outbox
    assert outbox.store_ack(one)
    assert stage.is_empty(queue)
    outbox.finish(one, ACKED)
    outbox.flush()
    assert outbox.running == 0
    assert not consumer._engine.memory.known
    assert stage.faults.calls["delete"] == 1
    assert consumer._engine.home.stats.totals.acked == 1


def test_a_handler_s_thread_does_not_ack_what_the_engine_parks(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="2s")
    queue.put("x")
    consumer, one = taken(stage)
    # Between the engine's look whether the handler is through and its move.
    stage.faults.call("find", lambda: results.append(consumer._engine.outbox.store_ack(one)))
    results: list[bool] = []
    stage.clock.advance(5)
    consumer._engine.outbox.park_overdue()
    assert results == [False]
    consumer._engine.outbox.finish(one, ACKED)
    consumer._engine.outbox.flush()
    assert stage.is_empty(queue)


def test_the_engine_does_not_park_what_a_handler_s_thread_acks(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="2s")
    queue.put("x")
    consumer, one = taken(stage)
    outbox = consumer._engine.outbox
    stage.clock.advance(5)
    stage.faults.call("delete", outbox.park_overdue, after=False)
    assert outbox.store_ack(one)
    assert stage.is_empty(queue)
    assert stage.faults.calls.get("move", 0) == 0


def test_an_ack_that_a_handler_s_thread_could_not_store_is_the_engine_s(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x")
    consumer, one = taken(stage)
    stage.faults.fail("delete", applied=True)
    assert not consumer._engine.outbox.store_ack(one)
    consumer._engine.outbox.finish(one, ACKED)
    consumer._engine.outbox.flush()
    assert stage.is_empty(queue)
    assert stage.faults.calls["delete"] == 2


def test_what_has_not_begun_when_its_consumer_is_closed_comes_again_at_once(stage: Stage) -> None:
    queue = stage.connect().queue("mail", visibility="1m")
    queue.put("x")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    consumer._engine.step()
    one = consumer._engine.ready.take()
    assert one is not None
    consumer._engine.close()
    consumer._deliver(one)
    assert not seen.texts
    stage.drive(Consumer(stage.connect().queue("mail"), seen), seconds=1)
    assert [message.attempt for message in seen.messages] == [1]


def test_what_is_counted_is_what_happened(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=2, backoff="1s")
    for n in range(40):
        queue.put(f"{n}", delay=f"{n * 30}ms")
    seen = Recorder(stage.clock, handler())
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    consumer.close()
    totals = queue.totals()
    assert (totals.put, totals.delivered) == (40, len(seen))
    assert (totals.acked, totals.buried, totals.retried, totals.snoozed) == (30, 10, 20, 10)
    assert totals.lateness.count == totals.delivered
    assert queue.depth().total == queue.depth(exact=True).total == 0


def test_an_ack_waits_for_no_poll_of_a_lane_that_lags(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer = Consumer(queue, Recorder(stage.clock))
    row = queue.put("x", delay="1s")._row
    assert stage.drive(consumer, seconds=1, until=lambda: row.id in consumer._engine.memory.known)
    stage.clock.advance((row.due_ms - stage.clock.now_ms()) / 1e3)
    one = consumer._engine.ready.take()
    assert one is not None
    consumer._deliver(one)
    consumer._engine.outbox.flush()
    assert not stage.is_empty(queue)
    stage.clock.advance(1.1)
    consumer._engine.outbox.flush()
    assert stage.is_empty(queue)


def test_a_row_that_moved_in_a_flush_that_failed_is_not_delivered_after_others_settled_it(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=100, history="1d")

    def handle(message: Message) -> None:
        if message.text == "again" and len(seen.texts) < 20:
            raise Retry("300ms")
        if message.text == "useless":
            # A flush deletes such a row last.
            raise Discard("sold")

    seen = Recorder(stage.clock, handle)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=1)
    queue.put("again")
    queue.put("useless")
    stage.faults.fail("delete", times=12)
    stage.drive(consumer, seconds=30)
    attempts = [message.attempt for message in seen.messages if message.text == "again"]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(attempts) > 10


@pytest.mark.usefixtures("in_steps")
def test_a_row_of_a_half_done_move_that_was_delivered_meanwhile_is_not_delivered_again(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen = Recorder(stage.clock, retry_twice)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=1)
    queue.put("again", key="order-5")
    # The new row is written and read, and its delivery ends before the move succeeds.
    stage.faults.fail("note places", times=2, error=StoreTimeout("too slow"))
    stage.drive(consumer, seconds=30)
    assert [message.attempt for message in seen.messages] == [1, 2, 3]
    assert stage.is_empty(queue)


def test_a_row_that_a_repeated_move_writes_long_after_its_due_is_read_at_once(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen = Recorder(stage.clock, retry_twice)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=1)
    queue.put("again")
    stage.faults.fail("move", times=1_000)
    stage.drive(consumer, seconds=10)
    stage.faults.heal()
    moves = stage.faults.calls["move"]
    assert stage.drive(consumer, seconds=30, until=lambda: stage.faults.calls["move"] > moves)
    stage.drive(consumer, seconds=1)
    assert [message.attempt for message in seen.messages] == [1, 2, 3]


def retry_twice(message: Message) -> None:
    if message.attempt < 3:
        raise Retry("10ms")
