"""Settling by receipt: all of it there, or nothing is written; and as a consumer settles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Bury, Consumer, Message, Retry, Snooze
from shardq.errors import BadReceipt, StaleReceipt
from shardq.model.receipt import Receipt
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq import Queue


def test_receipts_are_read_in_their_order_and_all_must_be_there(stage: Stage, queue: Queue) -> None:
    messages = [queue.put("x", delay=f"{n}m") for n in (3, 1, 2)]
    receipts = [queue._receipts.receipt_of(message) for message in messages]
    assert queue._receipts.present(receipts) == [message._row for message in messages]
    stage._store.delete([messages[1]._row.position])
    with pytest.raises(StaleReceipt):
        queue._receipts.present(receipts)


def test_a_receipt_is_that_of_its_message_or_token(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("mail")
    message = queue.put("x")
    assert queue._receipts.receipt_of(message) == queue._receipts.receipt_of(message.receipt)
    assert queue._receipts.receipt_of(message) == Receipt(message._row.position, 0)
    foreign = db.queue("sms").put("x")
    for bad in (foreign, foreign.receipt, "", "x", None, 5):
        with pytest.raises(BadReceipt):
            queue._receipts.receipt_of(bad)


ASKED: dict[str, tuple[Callable[[], Exception], Callable[[Queue, Message], None]]] = {
    "retry": (
        lambda: Retry("5s", "busy"),
        lambda queue, one: queue.retry(one, "5s", reason="busy"),
    ),
    "back-off": (lambda: Retry(None, "busy"), lambda queue, one: queue.retry(one, reason="busy")),
    "no reason": (lambda: Retry("5s", ""), lambda queue, one: queue.retry(one, "5s")),
    "snooze": (lambda: Snooze("5s"), lambda queue, one: queue.snooze(one, "5s")),
    "bury": (
        lambda: Bury("no such address"),
        lambda queue, one: queue.bury(one, "no such address"),
    ),
}


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize(("raised", "asked"), ASKED.values(), ids=ASKED)
def test_a_receipt_does_to_a_message_what_a_handler_that_raises_does(
    stage: Stage,
    raised: Callable[[], Exception],
    asked: Callable[[Queue, Message], None],
    attempts: int,
) -> None:
    handled, received = (
        stage.connect().queue(name, attempts=attempts, backoff="3s") for name in ("mail", "sms")
    )
    settled_ms: dict[str, int] = {}

    def settle(message: Message) -> None:
        settled_ms[handled.name] = stage.clock.now_ms()
        raise raised()

    handled.put("x")
    consumer = Consumer(handled, settle)
    stage.drive(consumer, seconds=0.1)
    consumer.close()
    received.put("x")
    [message] = received.receive(wait="1s")
    asked(received, message)
    settled_ms[received.name] = stage.clock.now_ms()

    def shown(queue: Queue) -> object:
        [left] = [*queue.peek(), *queue.dead.peek()]
        waits_ms = left.due_ms - settled_ms[queue.name]
        is_dead = left.queue != queue.name
        return is_dead, left.attempt, left.last_error, is_dead or waits_ms

    assert shown(handled) == shown(received)


@on_each_store
@pytest.mark.parametrize("is_large", [True, False], ids=["100 edits", "one edit"])
def test_a_receipt_of_a_group_s_message_is_stale_once_that_was_snoozed(
    world: World, *, is_large: bool
) -> None:
    queue = world.connect().queue(world.queue_name(), group_lanes=1)
    queue.put("a", group="g")
    [first] = queue.receive(visibility="1h", wait="5s")
    receipt = first.receipt
    for _ in range(100 if is_large else 1):
        receipt = queue.extend(receipt, "1h")
    queue.snooze(receipt, "0s")
    [second] = queue.receive(visibility="1h", wait="5s")
    # The snooze gave its attempt back.
    assert first.attempt == second.attempt == 1
    for stale in (first, first.receipt, receipt):
        for settle in (queue.ack, queue.extend, queue.retry, queue.bury):
            with pytest.raises(StaleReceipt):
                settle(stale)
    queue.ack(second)
    assert queue.receive() == []


def test_a_receipt_of_a_group_s_message_settles_it_however_often_it_was_extended(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    for settle in (queue.ack, queue.retry, queue.snooze, queue.bury, queue.extend):
        queue.put("a", group="g")
        [message] = queue.receive(visibility="5s", wait="1m")
        for _ in range(3):
            stage.clock.advance(3)
            stage.connect().queue("mail").extend(message, "5s")
        settle(message, *(["1s"] if settle == queue.snooze else []))
        queue.purge()


@pytest.mark.parametrize("is_careful", [True, False], ids=["with care", "without"])
def test_a_handler_settles_its_grouped_message_by_receipt(
    stage: Stage, *, is_careful: bool
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, hold="1s", visibility="5s")
    if is_careful:
        queue.put("died", group="g")
        dying = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))
        dying.step()
        stage.clock.advance(30)
    other = stage.connect().queue("mail")

    def settle(message: Message) -> None:
        other.extend(message.receipt, "10s")
        stage.clock.advance(0.1)
        other.ack(message.receipt)

    queue.put("a", group="g")
    seen = Recorder(stage.clock, settle)
    stage.drain(queue, Consumer(queue, seen))
    assert not queue.dead.peek()


def test_the_receipt_of_a_grouped_message_that_was_parked_settles_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="1s", visibility="5s")
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(2))
    # The member's name ends like the claim of a parked delivery.
    consumer = Consumer(queue, lambda _: None, member="worker#3")
    engine = consumer._engine
    one = None
    while one is None:
        stage.clock.advance(max(engine.step(), 0.001))
        one = engine.ready.take()
    message = Message(one.row, one.attempt, queue._home.register.signer)
    for _ in range(200):
        stage.clock.advance(max(engine.step(), 0.05))
    found = queue.find(message.id)
    assert found.state.member == "worker#3"
    other = stage.connect().queue("mail")
    assert other.extend(message, "1m") == message.receipt
    other.ack(message)
    consumer._deliver(one)
    consumer.close()
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert seen.texts == ["1"]
