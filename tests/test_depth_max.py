"""A queue that takes no more messages than it may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Queue
from shardq.errors import BadSetting, QueueFull

if TYPE_CHECKING:
    from shardq.testing import Stage


@on_each_store
def test_a_full_queue_refuses_puts_until_messages_have_ended(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), depth_max=3)
    queue.put("a")
    queue.put("b", delay="1h")
    queue.put("c", key="c")
    with pytest.raises(QueueFull, match="is full: it has about 3 messages, and its depth_max is 3"):
        queue.put("d")
    with pytest.raises(QueueFull):
        queue.put_many(["d", "e"])
    assert sorted(message.text for message in queue.peek()) == ["a", "b", "c"]
    [message, *_] = queue.receive(wait="5s")
    queue.ack(message)
    queue.put("d")
    with pytest.raises(QueueFull):
        queue.put("e")
    queue.alter(depth_max=5)
    queue.put("e")
    queue.alter(depth_max="off")
    assert queue.put_many(["f"] * 100) == 100


@on_each_store
def test_a_full_queue_is_full_for_every_process_soon(world: World) -> None:
    name = world.queue_name()
    one, other = world.connect().queue(name, depth_max=10), world.connect().queue(name)
    one.put_many(["x"] * 10)
    one.totals()
    world.pass_time(3)
    with pytest.raises(QueueFull):
        other.put("y")
    for message in one.receive(max=5, wait="5s"):
        one.ack(message)
    one.totals()
    world.pass_time(3)
    other.put("y")


def test_a_batch_that_meets_the_cap_says_how_many_it_has_put(stage: Stage) -> None:
    queue = stage.connect().queue("mail", depth_max=10)
    with pytest.raises(QueueFull) as error:
        queue.put_many(str(n) for n in range(30))
    assert error.value.__notes__ == ["10 messages before it were put."]
    assert queue.depth().total == 10
    queue.alter(depth_max=12)
    done = queue.put_many(["a", "b", "c"], partial=True)
    assert [type(one).__name__ for one in done] == ["Message", "Message", "QueueFull"]


def test_what_dies_or_comes_back_is_never_refused(stage: Stage) -> None:
    db = stage.connect()
    dead = db.queue("dlq", depth_max=1)
    queue = db.queue("mail", dead="dlq", depth_max=2)
    for message in [queue.put("a"), queue.put("b")]:
        queue.bury(message)
    assert len(dead.peek()) == 2
    queue.put("c")
    assert queue.redrive() == 2
    with pytest.raises(QueueFull):
        queue.put("d")


def test_a_cap_that_cannot_be_is_refused(queue: Queue) -> None:
    for wrong in (0, -1, True, "many"):
        with pytest.raises(
            BadSetting, match="depth_max must be between 1 and 1000000000, or 'off'"
        ):
            queue.alter(depth_max=wrong)  # type: ignore[arg-type]
