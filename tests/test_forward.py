"""Messages moved into other queues: forwards, and dead letters in a queue of another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Consumer
from shardq.errors import (
    BadSetting,
    KeyTaken,
    StaleReceipt,
    StoreTimeout,
    UnknownQueue,
    UsageError,
)
from shardq.lifecycle.keyed import Answer
from shardq.testing import Stage

if TYPE_CHECKING:
    from shardq import Message, Queue


def two(world: World, **settings: object) -> tuple[Queue, Queue]:
    """Two queues of one store, which keep a history."""
    db = world.connect()
    name = world.queue_name()
    made = {"history": "1d", **settings}
    return db.queue(name, **made), db.queue(f"{name}-to", history="1d")  # type: ignore[arg-type]


def texts(queue: Queue) -> list[str]:
    return [message.text for message in queue.peek(100)]


def fail(_message: Message) -> None:
    raise ValueError("no")


# Forwards -----------------------------------------------------------------------------------------


@on_each_store
def test_a_delivery_is_forwarded_under_its_id_with_all_attempts_again(world: World) -> None:
    queue, to = two(world)
    queue.put("a", id="me", headers={"x": "y"}, priority=2)
    [message] = queue.receive(wait="5s")
    queue.forward(message, to=to)
    assert (texts(queue), texts(to)) == ([], ["a"])
    [again] = to.receive(wait="5s")
    assert (again.id, again.attempt, again.headers, again.priority) == ("me", 1, {"x": "y"}, 2)
    assert (queue.totals().forwarded, queue.totals().present, to.totals().put) == (1, 0, 1)
    world.pass_time(2)
    assert queue.audit().line().endswith("balances: 1 put = 1 forwarded.")
    assert to.audit().is_even


@on_each_store
def test_messages_are_forwarded_in_bulk_those_due_first_in_front(world: World) -> None:
    queue, to = two(world)
    queue.put("later", delay="1h")
    queue.put_many(["0", "1", "2"])
    world.pass_time(0.1)
    assert queue.forward(to=to.name, limit=2) == 2
    assert len(texts(to)) == 2
    assert queue.forward(to=to, limit=10) == 2
    assert queue.forward(to=to, limit=10) == 0
    assert sorted(texts(to)) == ["0", "1", "2", "later"]
    # A forwarded message keeps its due.
    assert to.depth().waiting == 1
    assert (queue.totals().forwarded, to.totals().put) == (4, 4)
    assert queue.audit().is_even
    assert to.audit().is_even


def test_waiting_messages_are_forwarded_by_their_ids(stage: Stage) -> None:
    db = stage.connect()
    queue, to = db.queue("from"), db.queue("to")
    queue.put("a", id="a", delay="1h")
    queue.put("b", id="b")
    queue.receive(wait="1s")
    answers = queue.forward(to=to, ids=["a", "b", "c"])
    assert answers == {"a": Answer.DONE, "b": Answer.RUNNING, "c": Answer.NOT_THERE}
    [moved] = to.peek()
    assert (moved.id, moved.due) == ("a", moved.first_due)
    assert queue.forward(to=to, limit=10) == 0, "what is claimed stays"
    stage.clock.advance(31)
    assert queue.forward(to=to, limit=10) == 1


def test_a_stale_delivery_is_not_forwarded_and_others_are_where_partial(stage: Stage) -> None:
    db = stage.connect()
    queue, to = db.queue("from"), db.queue("to")
    queue.put_many(["a", "b"])
    stage.clock.advance(1)
    first, second = queue.receive(wait="1s")
    queue.ack(first)
    with pytest.raises(StaleReceipt):
        queue.forward(first, to=to)
    stale, done = queue.forward([first, second], to=to, partial=True)
    assert isinstance(stale, StaleReceipt)
    assert done is None
    assert texts(to) == [second.text]


def test_a_group_goes_on_once_its_head_was_forwarded(stage: Stage) -> None:
    db = stage.connect()
    queue, to = db.queue("from"), db.queue("to")
    for text in ("a", "b", "c"):
        queue.put(text, group="g")
        stage.clock.advance(1)
    [head] = queue.receive(wait="1s")
    queue.forward(head, to=to)
    [after] = queue.receive(wait="5s")
    assert after.text == "b"
    [there] = to.receive(wait="5s")
    assert (there.text, there.group) == ("a", "g")


@on_each_store
def test_a_key_goes_along_and_is_free_where_it_was(world: World) -> None:
    queue, to = two(world)
    queue.put("a", key="k")
    [message] = queue.receive(wait="5s")
    queue.forward(message, to=to)
    assert queue.get("k") is None
    found = to.get("k")
    assert (found.text, found.id) == ("a", message.id)
    queue.put("b", key="k")
    [other] = queue.receive(wait="5s")
    with pytest.raises(KeyTaken, match="its key is taken in"):
        queue.forward(other, to=to)
    assert texts(queue) == ["b"]
    [taken] = queue.forward([other], to=to, partial=True)
    assert isinstance(taken, KeyTaken)
    to.cancel(key="k")
    queue.forward(other, to=to)
    assert (texts(queue), texts(to)) == ([], ["b"])
    assert queue.audit().is_even
    assert to.audit().is_even


def test_a_message_enters_a_keyed_queue_under_its_id(stage: Stage) -> None:
    db = stage.connect()
    queue, to = db.queue("from"), db.queue("to", keyed=True)
    queue.put("a", id="me")
    assert queue.forward(to=to, limit=1) == 1
    assert to.cancel(key="me") is Answer.DONE


def test_dead_letters_go_anywhere_and_without_a_target_back(stage: Stage) -> None:
    db = stage.connect()
    queue, to = db.queue("from"), db.queue("to")
    for text in ("a", "b", "c"):
        queue.bury(queue.put(text, key=text, headers={"own": text}))
        stage.clock.advance(1)
    dead = queue.dead
    assert dead.forward(to=to, limit=5, where=lambda one: one.text == "b") == 1
    [moved] = to.peek()
    assert (moved.headers, moved.key, moved.last_error) == ({"own": "b"}, "b", None)
    assert queue.get("b") is None
    assert dead.forward(limit=1) == 1
    assert texts(queue) == ["a"]
    assert queue.redrive() == 1
    assert (dead.totals().forwarded, queue.totals().put, to.totals().put) == (3, 5, 1)


def test_what_has_not_died_stays_where_no_queue_is_named(stage: Stage) -> None:
    queue = stage.connect().queue("from")
    queue.put("a")
    assert queue.forward(limit=5) == 0


def test_a_forward_to_the_dead_letters_is_a_burial(stage: Stage) -> None:
    queue = stage.connect().queue("from", history="1d")
    queue.forward(queue.put("a"), to=queue.dead)
    [dead] = queue.dead.peek()
    assert dead.headers["shardq-reason"] == "forwarded"
    assert (queue.totals().buried, queue.totals().forwarded) == (1, 0)
    assert queue.audit().line().endswith("1 put = 1 dead.")


def test_a_forward_that_cannot_be_done_says_why(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("from")
    message = queue.put("a")
    with pytest.raises(UsageError, match="cannot be forwarded to itself"):
        queue.forward(message, to=queue)
    with pytest.raises(UnknownQueue, match="no queue 'none'"):
        queue.forward(message, to="none")
    with pytest.raises(UsageError, match="give to="):
        queue.forward(message)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="ids= or limit=, one of them"):
        queue.forward(to="other")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="give limit= too"):
        queue.forward(message, to="other", where=bool)  # type: ignore[call-overload]
    with pytest.raises(BadSetting, match="limit must be 1 or more"):
        queue.forward(to=db.queue("to"), limit=0)
    other = Stage()
    with other, pytest.raises(UsageError, match="another connection"):
        queue.forward(message, to=other.connect().queue("to"))
    assert texts(queue) == ["a"]


@pytest.mark.parametrize("verb", ["insert", "record", "delete", "move"])
def test_a_forward_whose_answer_is_lost_is_repeated_and_leaves_one_message(
    stage: Stage, verb: str
) -> None:
    db = stage.connect()
    history = "off" if verb == "move" else "1d"
    queue, to = db.queue("from", history=history), db.queue("to", history=history)
    message = queue.put("a")
    stage.faults.fail(verb, applied=True)
    queue.forward(message, to=to)
    assert (texts(queue), texts(to)) == ([], ["a"])
    if verb != "move":
        assert queue.audit().is_even
        assert to.audit().is_even


@pytest.mark.usefixtures("in_steps")
def test_a_forward_that_crashed_leaves_a_copy_and_never_a_gap(stage: Stage) -> None:
    db = stage.connect()
    queue, to = db.queue("from", history="1d"), db.queue("to", history="1d")
    message = queue.put("a")
    stage.faults.fail("delete", times=100)
    with pytest.raises(StoreTimeout):
        queue.forward(message, to=to)
    stage.faults.heal()
    assert texts(to) == ["a"]
    # The end is in the history: its next reader drops what is left.
    assert queue.receive() == []
    assert queue.audit().is_even


# Another dead-letter queue ------------------------------------------------------------------------


@pytest.mark.parametrize("is_pulled", [True, False])
@on_each_store
def test_a_queue_may_have_another_for_its_dead_letters(world: World, *, is_pulled: bool) -> None:
    db = world.connect()
    name = world.queue_name()
    dead = db.queue(f"{name}-dlq", history="1d")
    queue = db.queue(name, dead=dead.name, attempts=1, history="1d")
    message = queue.put("a", key="k", group="g", headers={"own": "x"})
    if is_pulled:
        [one] = queue.receive(wait="5s")
        queue.retry(one, reason="no")
    else:
        consumer = Consumer(queue, fail, threads=1)
        for _ in range(60):
            world.pass_time(consumer.step())
        consumer.close()
    [died] = dead.peek()
    assert died.id == message.id
    assert (died.key, died.group) == (None, "g")
    assert died.headers["shardq-queue"] == queue.name
    assert died.attempt == 1
    assert (died.last_error or "").startswith("out of attempts")
    assert queue.dead is dead
    # Its name is free, and comes back with it.
    assert queue.get("k") is None
    assert queue.audit().line().endswith("1 put = 1 dead.")
    assert dead.audit().line().endswith("1 put = 1 waiting.")
    assert queue.totals().buried == 1
    dead.put("another's")
    assert queue.redrive() == 1
    found = queue.get("k")
    assert (found.id, found.headers) == (message.id, {"own": "x"})
    assert texts(dead) == ["another's"]
    assert queue.audit().is_even
    assert dead.audit().is_even


def test_what_dies_is_counted_in_the_queue_that_takes_it(stage: Stage) -> None:
    db = stage.connect()
    dead = db.queue("dlq")
    queue = db.queue("mail", dead="dlq", attempts=1)
    queue.put_many(["a", "b", "c"])
    stage.drain(queue, Consumer(queue, fail))
    [message] = dead.receive(max=1, wait="1s")
    dead.ack(message)
    db.close()
    dead = stage.connect().queue("dlq")
    assert (dead.totals().put, dead.totals().present, dead.depth().total) == (3, 2, 2)


def test_dead_letters_of_several_queues_go_back_to_their_own(stage: Stage) -> None:
    db = stage.connect()
    one, other = db.queue("one", dead="dlq"), db.queue("other", dead="dlq")
    one.bury(one.put("1"))
    other.bury(other.put("2"))
    stage.clock.advance(1)
    assert db.queue("dlq", create=False).forward(limit=10) == 2
    assert (texts(one), texts(other), texts(one.dead)) == (["1"], ["2"], [])


@pytest.mark.parametrize("is_grouped", [True, False])
@pytest.mark.parametrize("is_pulled", [True, False])
def test_without_dead_letters_what_dies_is_counted_and_gone(
    stage: Stage, *, is_pulled: bool, is_grouped: bool
) -> None:
    queue = stage.connect().queue("mail", dead="off", attempts=1, history="1d")
    told: list[Message] = []
    queue.put("a", key="k", group="g" if is_grouped else None, id="me")
    if is_pulled:
        [one] = queue.receive(wait="1s")
        queue.retry(one, reason="no")
    else:
        consumer = Consumer(queue, fail, on_dead=told.append)
        stage.drain(queue, consumer)
        stage.drive(consumer, seconds=1)
        assert [(one.id, one.headers["shardq-reason"]) for one in told] == [
            ("me", "out of attempts: ValueError: no")
        ]
    assert stage.is_empty(queue)
    assert queue.get("k") is None
    assert (queue.totals().buried, queue.totals().cancelled, queue.totals().present) == (1, 0, 0)
    [record] = queue.history("me")
    assert (record.fate, record.attempt) == ("dead", 1)
    assert queue.audit().line() == "mail balances: 1 put = 1 dead."
    with pytest.raises(UsageError, match="has dead='off', and keeps no dead messages"):
        queue.redrive()


def test_a_group_goes_on_once_its_head_has_died_for_good(stage: Stage) -> None:
    queue = stage.connect().queue("mail", dead="off")
    for text in ("a", "b"):
        queue.put(text, group="g")
        stage.clock.advance(1)
    [head] = queue.receive(wait="1s")
    queue.bury(head)
    assert [one.text for one in queue.receive(wait="5s")] == ["b"]


def test_dead_letters_never_go_round_in_a_circle(stage: Stage) -> None:
    db = stage.connect()
    one = db.queue("one")
    db.queue("two", dead="one")
    three = db.queue("three", dead="two")
    with pytest.raises(BadSetting, match="circle: one -> three -> two -> one; choose another"):
        one.alter(dead="three")
    with pytest.raises(BadSetting, match="circle: four -> four"):
        db.queue("four", dead="four")
    with pytest.raises(BadSetting, match="has no dead"):
        one.dead.alter(dead="two")
    with pytest.raises(BadSetting, match="dead must be the name of a queue, or 'off'"):
        one.alter(dead=5)  # type: ignore[arg-type]
    three.alter(dead="three.dead")
    three.bury(three.put("x"))
    assert three.dead.name == "three.dead"


def test_dead_letters_of_before_a_change_are_found_where_they_are(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("mail")
    queue.bury(queue.put("a", key="a"))
    queue.alter(dead="dlq")
    queue.bury(queue.put("b", key="b"))
    assert texts(queue.dead) == ["b"]
    assert db.queue("mail.dead").forward(limit=5) == 1
    assert queue.redrive() == 1
    assert sorted(texts(queue)) == ["a", "b"]


def test_a_key_is_held_after_its_message_died_into_another_queue(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("mail", dead="dlq")
    queue.bury(queue.put("a", key="k", unique_for="1h"))
    with pytest.raises(KeyTaken):
        queue.put("b", key="k", on_conflict="reject")
    with pytest.raises(KeyTaken):
        queue.redrive()
    stage.clock.advance(3_601)
    assert queue.redrive() == 1
    assert queue.get("k") is not None


def test_each_queue_keeps_the_record_of_a_forwarded_message_for_its_own_time(stage: Stage) -> None:
    db = stage.connect()
    short, long = db.queue("short", history="1h"), db.queue("long", history="30d")
    stage.clock.advance(10)
    message = short.put("a")
    short.forward(to="long", ids=[message.id])
    stage.clock.advance(2 * 3_600)
    short.alter(history="30d")
    assert [record.id for record in long.history()] == [message.id]
    assert list(short.history()) == []
