"""Rows of one queue, near and far, are found at the cost of that queue, on each store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Consumer, Observer
from shardq.inspection.calendar import CalendarCounter
from shardq.inspection.mend import Upkeep
from shardq.model.ids import row_ids
from shardq.model.message import Row
from shardq.stores.store import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq import Queue
    from shardq.model.shard import Shard

DAY_MS = 86_400_000


@pytest.fixture
def queue(world: World) -> Queue:
    return world.connect().queue(world.queue_name())


def indexed(queue: Queue) -> set[Shard]:
    return set(queue._home.store.indexed(queue.name, range(NEVER)))


def place(queue: Queue, ago_ms: int) -> Row:
    """A row that was due `ago_ms` ago, and that nobody has read since."""
    home = queue._home
    due_ms = home.clock.now_ms() - ago_ms
    layout = home.register.layout
    shard = layout.shard(due_ms, layout.lanes()[0])
    row = Row(shard, due_ms, row_ids.next(home.clock.now_us()), b"old")
    home.store.insert([row])
    return row


@on_each_store
def test_whatever_happens_to_a_message_its_shard_is_indexed(world: World, queue: Queue) -> None:
    queue.put("far", delay="400d")
    queue.put_many([{"body": "x", "delay": f"{n}h"} for n in range(1, 100)])
    queue.put("grouped", delay="2h", group="g")
    queue.put("keyed", delay="3h", key="k")
    assert queue.move("k", delay="5d") == "done"
    assert queue.edit("k", body="edited") == "done"
    queue.put("keyed", delay="9d", key="k", on_conflict="replace")
    queue.put_many(["x"] * 5)
    world.pass_time(0.01)
    received = queue.receive(5, wait="5s")
    assert len(received) == 5
    for message, settle in zip(
        received,
        (
            lambda one: queue.retry(one, delay="1d"),
            lambda one: queue.snooze(one, delay="2d"),
            lambda one: queue.extend(one, visibility="6h"),
            lambda one: queue.bury(one, "why"),
            lambda one: queue.bury(one, "x" * 1_000),
        ),
        strict=True,
    ):
        settle(message)
    for one in (queue, queue.dead):
        assert set(one._home.store.shards(one.name)) <= indexed(one)
    assert queue.redrive(1) == 1
    for one in (queue, queue.dead):
        assert set(one._home.store.shards(one.name)) <= indexed(one)
        assert len(one.peek(1_000)) == one.depth(exact=True).total


@on_each_store
def test_no_look_at_a_queue_visits_the_tables_of_all(
    world: World, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put_many([{"body": str(n), "delay": f"{n}d", "id": f"m-{n}"} for n in range(1, 9)])
    for message in (queue.put("a"), queue.put("b")):
        queue.bury(message.receipt)

    def visit(_queue: str) -> Iterator[Shard]:
        raise AssertionError("the whole table was visited")

    home = queue._home
    monkeypatch.setattr(home.store, "shards", visit)
    assert [message.text for message in queue.peek(3)] == ["1", "2", "3"]
    assert queue.depth(exact=True).waiting == 8
    found = queue.find("m-7")
    assert found.text == "7"
    assert queue.find("never-put") is None
    assert queue.state_of("never-put") is None
    now_ms = home.clock.now_ms()
    calendar = CalendarCounter(home)
    assert calendar.count(now_ms, now_ms + 30 * DAY_MS).load.rows == 8
    assert Observer(world.connect(), [queue.name]).look()[0].dead == 2
    assert queue.redrive(1) == 1
    world.pass_time(0.01)
    queue.dead.purge()
    assert queue.dead.peek() == []
    for text in ("1", "2", "3", "4", "5", "6", "7", "8"):
        assert queue.cancel(queue.find(f"m-{text}"))
    if world.is_real:
        Consumer(queue, lambda _: None).run(until_empty=True)
        assert queue.depth(exact=True).total == 0


@on_each_store
def test_check_puts_back_what_the_index_has_lost(queue: Queue) -> None:
    queue.put_many([{"body": "x", "delay": f"{n}d"} for n in range(1, 30)])
    there = indexed(queue)
    queue._home.store.mend_index(gone=there)
    queue.check_all()
    assert indexed(queue) == there
    assert queue.depth(exact=True).waiting == 29


@on_each_store
def test_a_consumer_takes_empty_shards_out_of_the_index(world: World, queue: Queue) -> None:
    home = queue._home
    kept, ended, young = place(queue, DAY_MS), place(queue, 2 * DAY_MS), place(queue, 5_000)
    far = queue.put("far", delay="9d")._row
    home.store.delete([row.position for row in (ended, young, far)])
    Upkeep(home, "reader").step()
    left = indexed(queue)
    assert kept.shard in left
    assert ended.shard not in left
    # Where minutes are not over for long a write may be under way; SQLite's index has no notes.
    if world.is_real:
        assert {young.shard, far.shard} <= left


@on_each_store
def test_a_redrive_takes_the_shards_that_it_has_emptied_out_of_the_index(queue: Queue) -> None:
    dead = place(queue.dead, 3 * DAY_MS)
    assert queue.redrive() == 1
    assert dead.shard not in indexed(queue.dead)
    assert queue.depth(exact=True).total == 1
