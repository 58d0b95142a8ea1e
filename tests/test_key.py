"""Keys: how a row says its message's name, and that it keeps it wherever it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, on_each_store

from shardq.errors import StoreCorrupt
from shardq.model.ids import row_ids
from shardq.model.key import BUCKETS, MessageKey, bucket_of
from shardq.model.message import Message, Row
from shardq.model.names import TEXT_MAX, is_printable
from shardq.model.times import ceil_ms
from shardq.records.keys import MessageKeys

if TYPE_CHECKING:
    from shardq import Queue


HELD = MessageKey("order:7", 2, 3_600_000)
WAIT_S = 20

printable = st.text(min_size=1, max_size=TEXT_MAX).filter(is_printable)
keys = st.builds(
    MessageKey, printable, st.integers(1, 1 << 40), st.none() | st.integers(1, 1 << 40)
)


@pytest.fixture
def queue(world: World) -> Queue:
    return world.connect().queue(world.queue_name(), attempts=20)


def put_keyed(queue: Queue, key: MessageKey) -> Row:
    """Store a message with a key, due now, in the queue's first lane."""
    home = queue._home
    now_us = home.clock.now_us()
    layout, due_ms = home.register.layout, ceil_ms(now_us)
    shard = layout.shard(due_ms, layout.lane(0, 0))
    row = Row(shard, due_ms, row_ids.next(now_us), b"x", key=key.text())
    take_name(queue, row)
    return row


def take_name(queue: Queue, row: Row) -> None:
    """Let a row's message have its name, whoever has it."""
    home = queue._home
    keys = MessageKeys(home.store, home.clock, home.register)
    name = MessageKey.read(row.key).name
    assert keys.write([keys.put(row, keys.seek([name])[name])]) == {}


def received(world: World, queue: Queue) -> Message:
    """The next message, once it is due."""
    until_us = world.clock.now_us() + WAIT_S * 1_000_000
    while world.clock.now_us() < until_us:
        if messages := queue.receive(1):
            return messages[0]
        world.pass_time(0.05)
    raise AssertionError("nothing came")


# How it is stored ---------------------------------------------------------------------------------


@given(keys)
def test_a_key_reads_back_as_it_is_stored(key: MessageKey) -> None:
    assert MessageKey.read(key.text()) == key


def test_a_key_that_is_not_held_says_so_by_nothing() -> None:
    assert MessageKey("order:7").text() == MessageKey("order:7", 1, 0).text() == "1::order:7"
    assert MessageKey.read("1::order:7") == MessageKey("order:7", 1, None)


@pytest.mark.parametrize(
    "text",
    [
        "", "order-7", "1:order-7", "1::", ":5:order-7", "0::order-7", "-1::order-7", "01::order-7",
        "1:0:order-7", "1:-5:order-7", "1:x:order-7", "1 ::order-7",
        "\u0661::order-7", "1::" + "x" * 257, "9" * 5_000 + "::x", None, 7, b"1::order-7",
    ],
)  # fmt: skip
def test_what_is_no_key_is_told_as_damaged(text: object) -> None:
    with pytest.raises(
        StoreCorrupt, match=r"^the key of a row is damaged: .*; delete that row, or"
    ):
        MessageKey.read(text)


def test_a_name_has_the_same_bucket_everywhere() -> None:
    # Computed with the trailers of gzip; the buckets must never change.
    known = {"order-7": 10, "größe 7": 15, "日本": 12, "a": 3}
    assert {name: bucket_of(name) for name in known} == known


@given(printable)
def test_a_bucket_is_one_of_sixteen(name: str) -> None:
    assert 0 <= bucket_of(name) < BUCKETS == 16


# Where it goes ------------------------------------------------------------------------------------


@on_each_store
def test_a_message_keeps_its_key_through_whatever_moves_it(world: World, queue: Queue) -> None:
    row = put_keyed(queue, HELD)
    verbs = [
        lambda message: queue.retry(message, delay="0s"),
        lambda message: queue.snooze(message, "1ms"),
        lambda message: queue.retry(queue.extend(message, "30s"), delay="0s"),
        lambda message: queue.bury(message, "why"),
    ]
    for verb in verbs:
        message = received(world, queue)
        assert (message.key, message._row.key) == ("order:7", HELD.text())
        assert message._row.first == row.id
        verb(message)
    [dead] = queue.dead.peek()
    assert (dead.key, dead._row.key) == ("order:7", HELD.text())
    assert queue.redrive() == 1
    [revived] = queue.peek()
    take_name(queue, revived._row)
    message = received(world, queue)
    assert (message.key, message._row.key) == ("order:7", HELD.text())
    queue.ack(message)


def test_a_message_without_a_key_has_none(queue: Queue) -> None:
    assert queue.put("x").key is None
    assert [message.key for message in queue.peek()] == [None]


def test_a_damaged_key_is_told_with_its_message(queue: Queue) -> None:
    row = queue.put("x", id="order-7")._row._replace(key="order-7")
    message = Message(row, 0, queue._home.register.signer)
    told = (
        rf"^a row of queue '{queue.name}' is damaged: key of message order-7 \(minute .*'order-7'"
    )
    with pytest.raises(StoreCorrupt, match=told):
        _ = message.key
