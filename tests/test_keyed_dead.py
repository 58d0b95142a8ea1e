"""Dead messages with keys: they keep them until a put takes them; a redrive gives them back."""

from __future__ import annotations

import pytest
from keyed import standing, texts

from shardq import Queue
from shardq.errors import KeyTaken
from shardq.model.message import Message
from shardq.records.standing import Is
from shardq.testing import Stage

pytest_plugins = ["keyed_stages"]


def die(queue: Queue, text: str, key: str | None) -> Message:
    message = queue.put(text, key=key)
    [taken] = queue.receive(wait="10s")
    assert taken.id == message.id
    queue.bury(taken, "why")
    return message


def test_a_dead_message_is_put_back_under_its_key(queue: Queue) -> None:
    message = die(queue, "first", "order-7")
    assert standing(queue, "order-7").state is Is.DEAD
    assert queue.redrive() == 1
    assert queue.put("second", key="order-7").id == message.id
    assert queue.dead.peek() == []
    queue.ack(*queue.receive(wait="10s"))
    assert standing(queue, "order-7").state is Is.FREE


def test_a_dead_message_whose_key_another_has_stays_dead_and_others_are_put_back(
    queue: Queue,
) -> None:
    for text in ("a", "b", "c"):
        die(queue, text, None if text == "c" else text)
    there = queue.put("there", key="a", delay="1h")
    with pytest.raises(KeyTaken, match="1 message stays in queue") as e:
        queue.redrive()
    assert str(e.value).endswith(f"taken in {queue.name!r} ('a'); move it when that is free.")
    assert e.value.message.id == there.id
    assert e.value.__notes__ == ["Moved: 2."]
    assert texts(queue) == ["b", "c", "there"]
    assert texts(queue.dead) == ["a"]
    queue.cancel(there)
    assert queue.redrive() == 1
    assert texts(queue) == ["a", "b", "c"]
    assert (queue.totals().put, queue.dead.totals().forwarded) == (7, 3)


def test_of_two_dead_under_one_key_the_one_that_had_it_last_is_put_back(queue: Queue) -> None:
    die(queue, "first", "order-7")
    die(queue, "second", "order-7")
    with pytest.raises(KeyTaken):
        queue.redrive()
    assert (texts(queue), texts(queue.dead)) == (["second"], ["first"])


def test_a_redrive_that_the_store_breaks_off_puts_each_back_once(either: Stage) -> None:
    queue = either.connect().queue("mail")
    die(queue, "first", "order-7")
    for verb in ("write_records keys", "delete", "record"):
        for applied in (False, True):
            either.faults.fail(verb, applied=applied)
            assert queue.redrive() == 1, verb
            assert (texts(queue), texts(queue.dead)) == (["first"], [])
            [taken] = queue.receive()
            queue.bury(taken)
    either.faults.heal()
    assert queue.audit().is_even
