"""A message that was passed to a free worker's lane is as late as it was where it came from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from shell import Shell, shell  # noqa: F401 - a fixture
from worlds import World, on_each_store

import shardq
from shardq import Consumer, Observer, Where
from shardq.model.ids import row_ids
from shardq.model.message import moved
from shardq.model.times import iso, moment_of
from shardq.stores.store import RowMove

if TYPE_CHECKING:
    from shardq import Connection, Message, Queue


LATE_MS = 7_000
WAIT_S = 20


@pytest.fixture
def db(world: World) -> Connection:
    return world.connect()


@pytest.fixture
def queue(world: World, db: Connection) -> Queue:
    return db.queue(world.queue_name(), lanes=2, history="off")


def pass_on(queue: Queue, sent: Message, *, waited_ms: int = 0) -> None:
    """Move a message to the other lane, due now, as a busy worker does for a free one.

    Args:
        queue: The queue.
        sent: The message.
        waited_ms: How much longer it has waited than since its put.
    """
    home = queue._home
    [row] = [message._row for message in queue.peek(10) if message.id == sent.id]
    now_us = home.clock.now_us()
    due_ms = -(-now_us // 1_000)
    layout = home.register.layout
    lane = layout.lane(layout.band_of(row.shard.lane), 1 - layout.index_of(row.shard.lane))
    shard = layout.shard(due_ms, lane)
    new = moved(
        row,
        shard,
        due_ms,
        row_ids.next(now_us),
        attempt=row.attempt,
        claim=row.claim,
        since_ms=row.wanted_ms - waited_ms,
    )
    home.store.move([RowMove(row.position, new)])


def late(world: World, queue: Queue) -> Message:
    """A message that was due 7 s ago and was passed on just now."""
    sent = queue.put("x")
    pass_on(queue, sent, waited_ms=LATE_MS)
    world.pass_time(0.1)
    [message] = queue.peek()
    assert (message.id, message.due_ms) == (sent.id, sent.due_ms - LATE_MS)
    return message


@on_each_store
def test_what_was_passed_on_is_shown_with_its_own_due_and_lag(
    world: World, db: Connection, queue: Queue
) -> None:
    sent = late(world, queue)
    assert sent._row.due_ms >= sent.due_ms + LATE_MS
    assert moment_of(sent.due_ms) == sent.due
    [view] = Observer(db, [queue.name]).look()
    assert LATE_MS <= view.lag_ms < 60_000
    state = queue.state_of(sent.id)
    assert (state.where, state.since) == (Where.NO_CONSUMER, sent.due)


def test_what_is_due_first_is_shown_first_wherever_it_was_passed_to(
    world: World, queue: Queue
) -> None:
    first = queue.put("first")
    world.pass_time(0.1)
    second = queue.put("second")
    world.pass_time(0.1)
    pass_on(queue, first)
    assert [message.id for message in queue.peek()] == [first.id, second.id]


def test_the_lateness_of_what_was_passed_on_counts_from_its_own_due(
    world: World, queue: Queue
) -> None:
    sent = late(world, queue)
    seen: list[Message] = []
    consumer = Consumer(queue, seen.append, threads=1)
    until_us = world.clock.now_us() + WAIT_S * 1_000_000
    while not consumer._engine.home.stats.lateness.count and world.clock.now_us() < until_us:
        world.pass_time(consumer.step())
    [message] = seen
    assert message.due_ms == sent.due_ms
    lateness = consumer._engine.home.stats.lateness
    assert (lateness.count, (lateness.quantile(1.0) or 0) >= LATE_MS) == (1, True)
    consumer.close()


def test_a_caller_gets_what_was_passed_on_counted_from_its_own_due(
    world: World, queue: Queue
) -> None:
    sent = late(world, queue)
    [taken] = queue.receive(1, "1m", wait="20s")
    assert (taken.id, taken._row.since_ms) == (sent.id, None)
    assert queue._receiver._engine is not None
    lateness = queue._receiver._engine.home.stats.lateness
    assert (lateness.count, (lateness.quantile(1.0) or 0) >= LATE_MS) == (1, True)


def test_a_retry_makes_a_new_due_of_what_was_passed_on(world: World, queue: Queue) -> None:
    late(world, queue)

    def fail(_message: Message) -> None:
        raise shardq.Retry("1h")

    consumer = Consumer(queue, fail, threads=1)
    until_us = world.clock.now_us() + WAIT_S * 1_000_000
    while world.clock.now_us() < until_us:
        world.pass_time(consumer.step())
        [message] = queue.peek()
        if message._row.attempt:
            break
    assert message._row.attempt == 1
    assert message._row.since_ms is None
    assert message.due_ms == message._row.due_ms
    consumer.close()


def test_show_and_peek_tell_the_due_that_a_passed_on_message_is_late_from(
    shell: Shell,  # noqa: F811
) -> None:
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail", lanes=2)
        sent = queue.put("x", due="2020-01-01T00:00:00Z")
        pass_on(queue, sent)
        due = iso(sent.due_ms)
    [line] = shell.ok("peek", "mail", "--json").out.splitlines()
    assert json.loads(line)["due"] == due
    told = json.loads(shell.ok("show", "mail", sent.id, "--json").out)
    assert (told["due"], told["since"]) == (due, due)
    assert f"due       {due}" in shell.ok("show", "mail", sent.id).out
