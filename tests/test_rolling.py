"""Processes of an older release beside a newer one, on each store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from shell import Shell, shell  # noqa: F401 - a fixture
from worlds import World, on_each_store

import shardq
from shardq import Consumer
from shardq.cli.exits import Exit
from shardq.errors import SchemaNewer
from shardq.model.formats import FORMAT
from shardq.stores.tables import QUEUES, Change, QueueRecord

if TYPE_CHECKING:
    from shardq import Queue
    from shardq.stores.store import Store

REFRESHED_S = 3.1
WAIT_S = 10


def set_by_a_newer_release(store: Store, queue: str, **settings: Any) -> None:
    record = store.records(QUEUES, (), [queue]).get(queue)
    text = json.dumps(json.loads(record.settings) | settings)
    newer = QueueRecord(text, record.secret, record.version + 1)
    change = Change((), (queue,), {"version": record.version}, newer._asdict())
    assert store.write_records(QUEUES, [change]) == {}


def stored(store: Store, queue: str) -> dict[str, Any]:
    record = store.records(QUEUES, (), [queue]).get(queue)
    assert record is not None
    return dict(json.loads(record.settings))


def deliver(world: World, consumer: Consumer, queue: Queue, seen: list[str], text: str) -> None:
    """Put a message and step the consumer until it has it."""
    queue.put(text)
    until_us = world.clock.now_us() + WAIT_S * 1_000_000
    while text not in seen and world.clock.now_us() < until_us:
        world.pass_time(consumer.step())
    assert text in seen


@on_each_store
def test_a_running_consumer_passes_over_a_setting_that_it_does_not_know(world: World) -> None:
    name = world.queue_name()
    newer = world.connect()
    old = world.connect().queue(name)
    seen: list[str] = []
    consumer = Consumer(old, lambda message: seen.append(message.text), threads=1)
    deliver(world, consumer, old, seen, "before")
    set_by_a_newer_release(newer._home.store, name, rate="5/s", colour={"a": [1]})
    world.pass_time(REFRESHED_S)
    deliver(world, consumer, old, seen, "after")
    assert dict(old.settings.unknown) == {"rate": '"5/s"', "colour": '{"a":[1]}'}
    old.alter(attempts=9)
    old.pause()
    old.resume()
    kept = stored(newer._home.store, name)
    assert (kept["rate"], kept["colour"], kept["attempts"]) == ("5/s", {"a": [1]}, 9)
    consumer.close()


@on_each_store
def test_settings_that_need_a_newer_release_end_a_running_consumer(world: World) -> None:
    name = world.queue_name()
    newer = world.connect()
    old = world.connect().queue(name)
    seen: list[str] = []
    consumer = Consumer(old, lambda message: seen.append(message.text), threads=1)
    deliver(world, consumer, old, seen, "before")
    set_by_a_newer_release(newer._home.store, name, rate="5/s", needs=FORMAT + 1)
    world.pass_time(REFRESHED_S)
    with pytest.raises(SchemaNewer, match="upgrade shardq here"):
        consumer.step()
    with pytest.raises(SchemaNewer, match="upgrade shardq here"):
        world.connect().queue(name)
    with pytest.raises(SchemaNewer, match="upgrade shardq here"):
        old.alter(attempts=9)
    assert stored(newer._home.store, name)["attempts"] == 5
    consumer.close()


def test_a_consumer_of_an_older_release_ends_with_one_line(shell: Shell) -> None:  # noqa: F811
    shell.ok("put", "mail", "hello")
    with shardq.connect(shell.url) as db:
        set_by_a_newer_release(db._home.store, "mail", rate="5/s")
        assert shell.ok("consume", "mail", "--until-empty").out == "hello\n"
        set_by_a_newer_release(db._home.store, "mail", needs=FORMAT + 1)
    assert "upgrade shardq here" in shell.fails(Exit.SCHEMA_NEWER, "consume", "mail")
