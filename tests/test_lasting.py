"""Receipts that last: they end and extend a message wherever it has moved since."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Consumer, Message, Retry, aio
from shardq.errors import BadReceipt, StaleReceipt, StoreError, StoreTimeout
from shardq.model.key import BUCKETS
from shardq.stores.tables import PLACES
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardq import Queue


def received(queue: Queue, visibility: str = "5s") -> Message:
    [message] = queue.receive(1, visibility=visibility, wait="20s", lasting=True)
    return message


def again(queue: Queue, wait: str = "20s") -> list[Message]:
    return queue.receive(1, wait=wait)


def drive(stage: Stage, queue: Queue, handler: Callable[[Message], object], seconds: float) -> None:
    consumer = Consumer(queue, handler)
    stage.drive(consumer, seconds=seconds)
    consumer.close()


def notes(queue: Queue) -> int:
    store = queue._home.store
    return sum(len(store.notes(PLACES, (queue.name, bucket))) for bucket in range(BUCKETS))


MOVES: dict[str, Callable[[Queue, Message], object]] = {
    "nothing": lambda _, __: None,
    "redelivered": lambda queue, _: again(queue),
    "redelivered and released": lambda queue, _: queue.extend(again(queue)[0], "0s"),
    "extended": lambda queue, one: queue.extend(one, "1h"),
    "extended twice": lambda queue, one: queue.extend(queue.extend(one, "5s"), "1h"),
    "retried": lambda queue, one: queue.retry(one, "1h"),
    "snoozed": lambda queue, one: queue.snooze(one, "1h"),
}


@pytest.mark.parametrize("key", [None, "order-7"])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@on_each_store
def test_a_lasting_receipt_ends_its_message_wherever_it_has_moved(
    world: World, move: Callable[[Queue, Message], object], key: str | None
) -> None:
    db, other = world.connect(), world.connect()
    queue = db.queue(world.queue_name())
    queue.put("x", key=key)
    message = received(queue, visibility="2s")
    move(queue, message)
    settling = other.queue(queue.name)
    settling.ack(message.receipt, redelivered=True)
    assert (settling.peek(), notes(queue)) == ([], 0)
    assert again(queue, wait="0s") == []
    # The message has ended, and this ack asks for no more than that.
    settling.ack(message.receipt, redelivered=True)
    assert settling.ack(message.receipt, partial=True, redelivered=True) == [None]
    assert queue.depth().total == 0


@on_each_store
def test_the_second_of_two_acks_of_a_message_succeeds_and_counts_nothing(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put("x")
    first = received(queue, visibility="2s")
    [second] = again(queue)
    queue.ack(first, second, redelivered=True)
    queue.ack(second, first, redelivered=True)
    queue._store_totals()
    assert queue.depth().total == 0
    with pytest.raises(StaleReceipt):
        queue.ack(second)


def test_a_receipt_that_does_not_last_finds_its_message_where_it_was_alone(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many(["x", "y"])
    stays, moves = queue.receive(visibility="5s", wait="1s")
    receipt = queue.extend(moves, "1h")
    stage.clock.advance(9)
    # Its time is up, and it still lies there.
    queue.ack(stays, redelivered=True)
    with pytest.raises(StaleReceipt, match="Only receipts of receive"):
        queue.ack(moves, redelivered=True)
    queue.ack(receipt, redelivered=True)
    assert stage.is_empty(queue)


def test_nothing_but_a_receipt_of_the_queue_ends_a_message(stage: Stage) -> None:
    db = stage.connect()
    queue, other = db.queue("mail"), db.queue("sms")
    queue.put("x")
    other.put("x")
    own, foreign = received(queue), received(other)
    again(queue)
    for bad in (foreign, foreign.receipt, "x", own.receipt[:-4], own.receipt.swapcase()):
        with pytest.raises(BadReceipt):
            queue.ack(own, bad, redelivered=True)
        [done, error] = queue.ack(own, bad, partial=True, redelivered=True)
        assert done is None
        assert isinstance(error, BadReceipt)
    assert (stage.is_empty(queue), stage.is_empty(other)) == (True, False)


def test_a_plain_message_writes_no_note(stage: Stage, queue: Queue) -> None:
    queue.put("x")
    [message] = queue.receive(visibility="5s", wait="1s")
    before = stage._store.counters["batches"]
    receipt = queue.extend(message, "10s")
    assert stage._store.counters["batches"] == before + 1
    assert notes(queue) == 0
    assert len(receipt) == 80
    queue.ack(receipt)


@pytest.mark.parametrize("key", [None, "order-7"])
@pytest.mark.parametrize("history", ["off", "1h"])
def test_a_message_that_died_has_ended(stage: Stage, history: str, key: str | None) -> None:
    queue = stage.connect().queue("mail", attempts=2, history=history)
    queue.put("x", key=key)
    message = received(queue)
    [second] = again(queue)
    assert notes(queue) == 1
    queue.retry(second)
    assert [dead.text for dead in queue.dead.peek()] == ["x"]
    # The name of a dead message leads to it.
    assert notes(queue) == (key is not None)
    queue.ack(message, redelivered=True)
    assert [dead.text for dead in queue.dead.peek()] == ["x"]
    assert queue.redrive() == 1
    queue.ack(message, redelivered=True)
    [put_back] = again(queue)
    assert put_back.attempt == 1
    assert message.first_received is not None
    assert put_back.first_received is not None
    assert put_back.first_received > message.first_received


def test_a_consumer_that_has_the_message_by_then_drops_it(stage: Stage, queue: Queue) -> None:
    queue.put("x")
    message = received(queue)

    def fail(_: Message) -> None:
        raise Retry("1h")

    drive(stage, queue, fail, seconds=30)
    assert notes(queue) == 1
    queue.ack(message, redelivered=True)
    recorder = Recorder(stage.clock)
    drive(stage, queue, recorder, seconds=60)
    assert (recorder.messages, notes(queue)) == ([], 0)


def test_what_a_consumer_ends_has_ended(stage: Stage, queue: Queue) -> None:
    queue.put("x")
    message = received(queue)
    queue.extend(message, "5s")
    recorder = Recorder(stage.clock)
    drive(stage, queue, recorder, seconds=20)
    assert (len(recorder.messages), notes(queue)) == (1, 0)
    queue.ack(message, redelivered=True)


@on_each_store
def test_a_message_of_a_group_ends_where_it_is(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put_many([{"body": body, "group": "g"} for body in ("x", "y")])
    message = received(queue, visibility="2s")
    [second] = again(queue)
    assert second.text == "x"
    queue.ack(message.receipt, redelivered=True)
    queue.ack(message.receipt, redelivered=True)
    [behind] = again(queue)
    assert behind.text == "y"
    queue.ack(second, behind, redelivered=True)
    assert queue.peek() == []


def test_a_grouped_message_that_is_moved_forward_is_followed(stage: Stage, queue: Queue) -> None:
    sent = queue.put("x", group="g", delay="1s")
    message = received(queue)
    queue.retry(message, "2h")
    queue.move(ids=[sent.id], delay="1h")
    queue.ack(message, redelivered=True)
    assert stage.is_empty(queue)


def test_what_is_changed_by_its_key_since_is_another_message(queue: Queue) -> None:
    queue.put("x", key="order-7")
    message = received(queue)
    queue.retry(message, "1h")
    queue.put("new", key="order-7", on_conflict="replace")
    queue.ack(message, redelivered=True)
    [second] = again(queue)
    assert second.text == "new"


@on_each_store
def test_a_lasting_receipt_extends_the_delivery_that_is_under_way(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put("x")
    message = received(queue, visibility="3s")
    for _ in range(3):
        queue.extend(message, "1h", redelivered=True)
    [present] = queue.peek()
    assert present.due.timestamp() * 1_000 > world.clock.now_ms() + 3_500_000
    # In place of 0 s the message is delivered again, and has used its attempt.
    queue.extend(message.receipt, "0s", redelivered=True)
    [second] = again(queue)
    assert (second.id, second.attempt) == (message.id, 2)
    [new] = queue.extend([message], "2h", partial=True, redelivered=True)
    assert isinstance(new, str)
    queue.ack(second, redelivered=True)
    for stale in (message, second, new):
        with pytest.raises(StaleReceipt):
            queue.extend(stale, redelivered=True)


def test_what_waits_is_not_extended(queue: Queue) -> None:
    queue.put("x")
    message = received(queue)
    queue.retry(message, "1h")
    with pytest.raises(StaleReceipt):
        queue.extend(message, redelivered=True)


def test_check_all_keeps_the_notes_that_receipts_lead_to(queue: Queue) -> None:
    queue.put("k", key="k", delay="1h")
    queue.put("x")
    message = received(queue)
    queue.extend(message, "1h")
    queue.check_all()
    queue.ack(message, redelivered=True)
    assert [left.text for left in queue.peek()] == ["k"]


def test_a_message_that_moves_on_between_two_reads_is_found(stage: Stage, queue: Queue) -> None:
    queue.put("x")
    message = received(queue)
    receipt = queue.extend(message, "1h")
    # The first read is where the receipt leads to, the second where the note does.
    stage.faults.call("find", lambda: queue.extend(receipt, "2h"), nth=2, after=False)
    queue.ack(message, redelivered=True)
    assert stage.is_empty(queue)


def test_asyncio_has_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), aio.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
            queue = db.queue("mail")
            await queue.put("x")
            [message] = await queue.receive(wait="10s", lasting=True)
            await queue.extend(message, "1h")
            await queue.extend(message, "1h", redelivered=True)
            assert await queue.ack(message, partial=True, redelivered=True) == [None]
            await queue.ack(message, redelivered=True)
            assert await queue.peek() == []

    asyncio.run(main())


@pytest.mark.parametrize("group", [None, "g"])
@on_each_store
def test_the_time_of_the_first_receive_is_kept(world: World, group: str | None) -> None:
    queue = world.connect().queue(world.queue_name())
    sent = queue.put("x", group=group)
    assert sent.first_received is None
    before_ms = world.clock.now_ms()
    [first] = queue.receive(visibility="1s", wait="20s")
    assert first.first_received is not None
    assert before_ms <= first.first_received.timestamp() * 1_000 <= world.clock.now_ms()
    [second] = queue.receive(visibility="20s", wait="20s", lasting=True)
    assert (second.attempt, second.first_received) == (2, first.first_received)
    queue.retry(second, "0s", reason="busy")
    [third] = queue.receive(wait="20s")
    assert (third.attempt, third.first_received) == (3, first.first_received)
    queue.ack(third)


def test_a_consumer_sees_the_time_and_writes_none(stage: Stage, queue: Queue) -> None:
    queue.put("received")
    message = received(queue)
    queue.retry(message, "1s")
    queue.put("handled")
    seen: dict[str, object] = {}
    drive(stage, queue, lambda one: seen.update({one.text: one.first_received}), seconds=30)
    assert seen == {"received": message.first_received, "handled": None}


@pytest.mark.parametrize("group", [None, "g"])
def test_extending_to_now_keeps_the_attempt(stage: Stage, group: str | None) -> None:
    queue = stage.connect().queue("mail", attempts=2)
    queue.put_many([{"body": body, "group": group} for body in ("x", "y")])
    [first] = queue.receive(1, visibility="1m", wait="1s")
    queue.extend(first, "0s")
    stage.clock.advance(0.01)
    [again] = [one for one in queue.receive(wait="1s") if one.id == first.id]
    assert again.attempt == 2
    queue.extend(again, "0s")
    stage.clock.advance(0.01)
    # All its attempts are used: that is what redrive policies count.
    assert first.id not in [one.id for one in queue.receive(wait="1s")]
    assert [dead.id for dead in queue.dead.peek()] == [first.id]


@pytest.mark.parametrize("verb", ["notes places", "delete", "erase places"])
@pytest.mark.parametrize("applied", [False, True])
def test_an_ack_that_failed_succeeds_only_once_its_message_has_ended(
    stage: Stage, queue: Queue, verb: str, applied: bool
) -> None:
    queue.put("x")
    message = received(queue)
    queue.extend(message, "1h")
    stage.faults.fail(verb, applied=applied)
    with pytest.raises(StoreError):
        queue.ack(message, redelivered=True)
    queue.ack(message, redelivered=True)
    assert (stage.is_empty(queue), notes(queue)) == (True, 0)


def test_check_all_erases_a_note_whose_message_has_ended(stage: Stage, queue: Queue) -> None:
    queue.put_many(["ends", "lives"])
    ends, lives = queue.receive(wait="1s", lasting=True)
    receipt = queue.extend(ends, "1h")
    queue.extend(lives, "1h")
    stage.faults.fail("erase places")
    with pytest.raises(StoreTimeout, match="the rows are deleted"):
        queue.ack(receipt)
    assert notes(queue) == 2
    queue.check_all()
    assert notes(queue) == 1
    queue.ack(lives, redelivered=True)
    assert stage.is_empty(queue)
