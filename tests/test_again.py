"""A queue that is dropped and made again: another one, which has but its name, on each store."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import World, on_each_store

from shardq import Consumer, Message, Queue
from shardq.errors import StaleReceipt, UnknownQueue, UsageError
from shardq.model.settings import create
from shardq.records.register import settings_in
from shardq.stores.tables import QUEUES

STEPS_MAX = 60
QUICK = {"minute": "100ms", "offset": "100ms"}
OTHER = {"minute": "1s", "offset": "100ms"}


class Handled:
    """A handler that keeps what it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, message: Message) -> None:
        self.texts.append(message.text)


def consume(world: World, queue: Queue, wanted: int, steps_max: int = STEPS_MAX) -> list[str]:
    """The texts that a new consumer gets in a few dozen steps, until it has `wanted` of them."""
    seen = Handled()
    consumer = Consumer(queue, seen, threads=1)
    for _ in range(steps_max):
        world.pass_time(consumer.step())
        if len(seen.texts) >= wanted:
            break
    consumer.close()
    return seen.texts


def drop(world: World, queue: Queue) -> None:
    # Ids of one microsecond come in order, so they may be ahead of a clock that stands.
    world.pass_time(0.01)
    queue.drop()


def made_again(world: World, name: str, first: dict[str, Any], then: dict[str, Any]) -> Queue:
    """A queue with seals and rows of its former life, made again by another process."""
    queue = world.connect().queue(name, **first)
    queue.put("settled")
    assert consume(world, queue, 2, steps_max=12) == ["settled"]
    queue.put("old")
    queue.put("far", delay="2s", group="g")
    drop(world, queue)
    return world.connect().queue(name, **then)


def deliver_at_once(world: World, first: dict[str, Any], then: dict[str, Any]) -> None:
    again = made_again(world, world.queue_name(), first, then)
    wanted = ["new"]
    again.put("new", group="g")
    if again.settings.bands > 1:
        again.put("second band", priority=again.settings.bands - 1)
        wanted.append("second band")
    assert consume(world, again, len(wanted)) == wanted
    assert again.depth(exact=True).total == 0


@pytest.mark.parametrize(
    ("first", "then"),
    [({"lanes": 2}, {"lanes": 4}), (QUICK, {"bands": 3}), ({"bands": 3}, QUICK)],
    ids=str,
)
def test_a_queue_made_again_delivers_at_once_and_only_its_own(
    world: World, first: dict[str, Any], then: dict[str, Any]
) -> None:
    deliver_at_once(world, first, then)


@pytest.mark.parametrize("world", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"lanes": 4}, {"lanes": 1}),
        ({"bands": 1}, {"bands": 3}),
        ({"bands": 3}, {"bands": 2}),
        ({"group_lanes": 2}, {"group_lanes": 6}),
        ({"group_lanes": 6}, {"lanes": 1}),
        (QUICK, OTHER),
        (OTHER, QUICK),
        (QUICK, QUICK),
    ],
    ids=str,
)
def test_whatever_its_settings_were_and_are(
    world: World, first: dict[str, Any], then: dict[str, Any]
) -> None:
    deliver_at_once(world, first, then)


@pytest.mark.parametrize(("first", "then"), [(QUICK, OTHER)], ids=str)
def test_seals_of_other_minutes_hide_nothing_from_a_consumer_that_comes_late(
    world: World, first: dict[str, Any], then: dict[str, Any]
) -> None:
    again = made_again(world, world.queue_name(), first, then)
    again.put("new")
    # Longer than its minute and the offset: only a seal of its own may lie behind it by now.
    world.pass_time(1.5)
    assert consume(world, again, 1) == ["new"]


@on_each_store
def test_a_queue_made_again_by_a_put_alone_has_the_usual_settings(world: World) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name, **QUICK, bands=2, lanes=1)
    drop(world, queue)
    again = world.connect().queue(name)
    again.put("new")
    usual = create({}, 0)
    assert (again.settings.minute_ms, again.settings.bands) == (usual.minute_ms, usual.bands)
    assert consume(world, again, 1) == ["new"]


@pytest.mark.parametrize("then", [{}, QUICK], ids=str)
def test_a_group_waits_for_no_message_of_the_dropped_queue(
    world: World, then: dict[str, Any]
) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name, lanes=1)
    queue.put("head", group="g")
    [head] = queue.receive(wait="5s")
    queue.retry(head, "1h")
    queue.close()
    drop(world, queue)
    again = world.connect().queue(name, lanes=1, **then)
    again.put("new", group="g")
    assert consume(world, again, 1) == ["new"]


@pytest.mark.parametrize("then", [{}, QUICK], ids=str)
def test_a_consumer_ends_with_its_queue_also_where_it_never_saw_the_drop(
    world: World, then: dict[str, Any]
) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name)
    seen = Handled()
    consumer = Consumer(queue, seen, threads=1)
    consumer.step()
    drop(world, world.connect().queue(name))
    again = world.connect().queue(name, **then)
    queue._home.register.refresh(force=True)
    with pytest.raises(UnknownQueue, match="dropped, and made anew since"):
        consumer.step()
    consumer.close()
    again.put("new")
    assert (seen.texts, consume(world, again, 1)) == ([], ["new"])


@pytest.mark.parametrize("then", [{}, QUICK], ids=str)
def test_who_holds_the_queue_from_before_puts_into_and_receives_from_the_new_one(
    world: World, then: dict[str, Any]
) -> None:
    name = world.queue_name()
    held = world.connect().queue(name)
    held.put("old")
    assert [message.text for message in held.receive(wait="5s")] == ["old"]
    drop(world, world.connect().queue(name))
    world.connect().queue(name, **then)
    held._home.register.refresh(force=True)
    held.put("new")
    [message] = held.receive(wait="5s")
    assert message.text == "new"
    held.ack(message)
    totals = held.totals()
    assert (totals.put, totals.delivered, totals.acked) == (1, 1, 1)


def test_what_is_put_by_who_has_not_read_of_the_drop_yet_is_not_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    name = world.queue_name()
    late = world.connect().queue(name)
    drop(world, world.connect().queue(name))
    again = world.connect().queue(name, lanes=2)
    late.put("late")
    assert consume(world, again, 1) == ["late"]
    # With other minutes nobody reads where it is; a visit to every partition finds it.
    late = world.connect().queue(name)
    late.put("in a group before", group="g", delay="1h")
    drop(world, world.connect().queue(name))
    again = world.connect().queue(name, **QUICK)
    late.put("late")
    late.put("in a group", group="g")
    late._home.register.refresh(force=True)
    world.pass_time(0.3)
    late.put("to the new one", delay="1h")
    assert caplog.text.count(f"waits until `shardq check --all {name}` finds it") == 1
    check = again.check_all()
    assert (check.moved, check.purged) == (2, 1)
    assert sorted(consume(world, again, 2)) == ["in a group", "late"]


@on_each_store
@pytest.mark.parametrize("then", [{}, QUICK], ids=str)
def test_a_visit_deletes_what_a_dropped_queue_left(world: World, then: dict[str, Any]) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name)
    queue.put_many({"body": "far", "delay": f"{n}d"} for n in range(1, 6))
    drop(world, queue)
    again = world.connect().queue(name, **then)
    kept = again.put("kept", delay="1h")
    check = again.check_all()
    assert (check.rows, check.purged, check.moved) == (6, 5, 0)
    assert list(again._home.store.shards(name)) == [kept._row.shard]
    assert again.totals().purged == 0


@on_each_store
@pytest.mark.parametrize("then", [{}, OTHER], ids=str)
def test_books_begin_with_the_queue_made_again(world: World, then: dict[str, Any]) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name, history="7d")
    old = queue.put("old", delay="1h")
    queue.put_many([b"old"] * 3)
    consume(world, queue, 3)
    drop(world, queue)
    again = world.connect().queue(name, history="7d", **then)
    new = again.put("new", delay="1h")
    assert (again.totals().put, again.totals().acked) == (1, 0)
    assert (again.depth().total, again.depth(exact=True).total) == (1, 1)
    assert [one.id for one in again.history()] == [new.id]
    assert list(again.history(old.id)) == []
    audit = again.audit()
    assert audit.is_even
    assert audit.total.put == 1


@on_each_store
def test_receipts_and_messages_of_a_dropped_queue_are_stale(world: World) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name)
    waiting = queue.put("waiting", delay="1h")
    drop(world, queue)
    for then in ({}, QUICK):
        again = world.connect().queue(name, **then)
        with pytest.raises(StaleReceipt):
            again.ack(waiting)
        with pytest.raises(StaleReceipt):
            again.ack(waiting.receipt)
        assert not again.cancel(waiting)
        with pytest.raises(UsageError, match="has been dropped; put its body"):
            again.put(waiting)
        drop(world, again)


@on_each_store
def test_a_queue_may_be_dropped_and_made_again_many_times(world: World) -> None:
    name = world.queue_name()
    db = world.connect()
    first_lanes = set()
    for n in range(6):
        queue = db.queue(name, lanes=1 + n % 3, bands=1 + n % 2, minute=("1m", "1s", "7s")[n % 3])
        queue.put(str(n))
        [message] = queue.receive(wait="5s")
        assert message.text == str(n)
        first_lanes.add(queue.settings.first_lane)
        drop(world, queue)
    assert len(first_lanes) == 6


def test_a_dropped_queue_of_the_dead_is_made_again_by_the_next_burial(world: World) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name)
    queue.bury(queue.put("first"))
    drop(world, world.connect().queue(f"{name}.dead"))
    queue._home.register.dead().refresh(force=True)
    queue.bury(queue.put("second"))
    assert [message.text for message in queue.dead.peek()] == ["second"]
    # The list of all queues is no place to look: other tests of a shared store damage theirs.
    dead = f"{name}.dead"
    assert (
        settings_in(world.connect()._home.store.records(QUEUES, (), [dead]).get(dead), dead)
        is not None
    )


def test_a_queue_made_again_takes_new_lanes_only_where_the_old_ones_do_not_fit(
    world: World,
) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name, lanes=4, bands=1)
    drop(world, queue)
    again = world.connect().queue(name, lanes=8, bands=1)
    assert again.settings.first_lane == 0
    drop(world, again)
    again = world.connect().queue(name, bands=3, lanes=1)
    # The eight lanes are still read: their purged rows are deleted as they come due.
    assert (again.settings.lanes_read, again.settings.first_lane) == (3, 0)
    drop(world, again)
    again = world.connect().queue(name, bands=3, lanes=1, minute="1s")
    assert (again.settings.lanes_read, again.settings.first_lane) == (1, 9)
    drop(world, again)
    world.connect().queue(name, bands=16, lanes=17, minute="2s")
    drop(world, world.connect().queue(name))
    # One band cannot have as many lanes as all bands had before.
    again = world.connect().queue(name, minute="2s", bands=1, lanes=4)
    assert (again.settings.lanes_read, again.settings.first_lane) == (4, 12 + 16 * 17)
