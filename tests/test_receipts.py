"""Settling by receipt: all of it there, or nothing is written; and as a consumer settles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardq import Bury, Consumer, Retry, Snooze
from shardq.errors import BadReceipt, StaleReceipt
from shardq.model.receipt import Receipt
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq import Message, Queue


def test_receipts_are_read_in_their_order_and_all_must_be_there(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
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
