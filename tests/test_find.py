"""Looking a message up by its id, on each store."""

from __future__ import annotations

import pytest
from worlds import World, on_each_store

from shardq.errors import BadName
from shardq.server.everywhere import by_id


@on_each_store
def test_a_message_is_found_wherever_it_waits_and_can_be_cancelled(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), lanes=2, bands=2)
    sent = [
        queue.put(f"{n}", delay=f"{delay}m", priority=n % 2, group="g" if n == 2 else None)
        for n, delay in enumerate((0, 1, 30, 5_000, 500_000))
    ]
    elsewhere = world.connect().queue(queue.name)
    for message in sent:
        found = elsewhere.find(message.id)
        assert (found.text, found.due, found.priority) == (
            message.text,
            message.due,
            message.priority,
        )
        assert elsewhere.cancel(found)
        assert elsewhere.find(message.id) is None


def test_a_message_is_found_where_it_was_moved_to(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    sent = queue.put("a", id="order-7")
    queue.snooze(sent, "2h")
    found = queue.find("order-7")
    assert found.due > sent.due
    queue.bury(found)
    assert queue.find("order-7") is None
    dead = queue.dead.find("order-7")
    assert dead.headers["shardq-reason"] == "buried"


def test_of_several_with_one_id_the_one_due_first_is_found(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put_many({"body": f"{n}", "id": f"id-{n % 3}", "delay": f"{100 - n}m"} for n in range(60))
    found = [queue.find(f"id-{n}") for n in range(3)]
    assert [message and message.text for message in found] == ["57", "58", "59"]


@pytest.mark.parametrize("message_id", ["", "a\nb", 7, None, "x" * 257])
def test_what_can_be_no_id_is_refused(message_id: object) -> None:
    from shardq.testing import Stage

    with Stage() as stage, pytest.raises(BadName, match="message id"):
        stage.connect().queue("mail").find(message_id)  # type: ignore[arg-type]


@on_each_store
def test_of_many_queues_the_one_is_named_in_which_a_message_waits_where_it_was_put(
    world: World,
) -> None:
    names = [world.queue_name(), world.queue_name()]
    db = world.connect()
    queues = {name: db.queue(name, history="off") for name in names}
    sent = [queues[name].put(name, group=group) for name in names for group in (None, "g")]
    for message in sent:
        assert by_id(queues, message.id) == [message.text]
    queues[names[0]].cancel(sent[0])
    assert not by_id(queues, sent[0].id)
