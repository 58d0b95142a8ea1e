"""Puts under keys whose answers were lost, and whose messages have run meanwhile, or have not."""

from __future__ import annotations

from typing import Any

import pytest
from keyed import TIMEOUT_MS, texts

from shardq import Message, Queue
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.lifecycle.keyedputs import Conflict, KeyedPut, OnConflict
from shardq.model.message import key_of
from shardq.testing import Stage

pytest_plugins = ["keyed_stages"]

PATIENCE_S = 2 * TIMEOUT_MS / 1e3


def lost_put(
    stage: Stage, queue: Queue, choice: OnConflict = "replace", *, is_written: bool = False
) -> Message:
    """What the error carries of a put whose answer was lost."""
    stage.faults.fail("insert", applied=is_written)
    with pytest.raises(StoreTimeout) as error:
        queue.put("first", key="order-7", delay="1s", on_conflict=choice)
    [message] = error.value.messages
    return message


@pytest.mark.parametrize("queue", ["apart", "cassandra"], indirect=True)
def test_a_replace_that_is_repeated_after_its_message_has_ended_replaces_no_other(
    queue: Queue,
) -> None:
    first = queue.put("first", key="order-7", on_conflict="replace")
    repeated = KeyedPut(first._row, first._signer, Conflict("replace"))
    [received] = queue.receive(wait="10s")
    queue.ack(received)
    second = queue.put("second", key="order-7", delay="1h")
    assert queue.put(repeated).text == "first"
    assert texts(queue) == ["second"]
    queue.cancel(second)


@pytest.mark.parametrize("choice", ["replace", "debounce", "reject"])
def test_a_put_that_is_repeated_after_its_message_has_run_leaves_who_has_its_name(
    apart: Stage, choice: Any
) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    message = lost_put(apart, queue, choice, is_written=True)
    apart.clock.advance(2)
    other.ack(*other.receive())
    other.put("second", key="order-7", delay="1h")
    assert queue.put(message).text == "first"
    assert texts(queue) == ["second"]
    apart.clock.advance(3_601)
    assert [message.text for message in queue.receive(10)] == ["second"]


def test_a_put_that_runs_while_it_is_repeated_leaves_who_has_its_name(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    message = lost_put(apart, queue)

    def meanwhile() -> None:
        other._home.store.insert([message._row])
        apart.clock.advance(1)
        other.ack(*other.receive())
        other.put("second", key="order-7", delay="1h")

    apart.faults.call("write_records keys", meanwhile, after=False)
    assert queue.put(message).text == "first"
    assert texts(queue) == ["second"]


def test_a_put_that_has_run_and_is_outrun_by_another_leaves_that_alone(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail", history="off") for _ in range(2))
    message = lost_put(apart, queue, is_written=True)
    apart.clock.advance(1)
    other.ack(*other.receive())
    # Its name is free as it looks, and another's as it would take it.
    apart.faults.call(
        "write_records keys", lambda: other.put("second", key="order-7", delay="1h"), after=False
    )
    assert queue.put(message).text == "first"
    assert texts(queue) == ["second"]


def test_a_put_without_a_row_whose_name_is_another_s_by_now_is_put_anew(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    message = lost_put(apart, queue)
    second = other.put("second", key="order-7", delay="2h")
    # Whether its row was there is tried: a consumer that meets that leaves it.
    apart.faults.call("insert", other.receive)
    again = queue.put(message)
    key = key_of(again._row)
    assert (again.text, again.id, key.generation) == ("first", second.id, 2)
    assert texts(queue) == ["first"]


@pytest.mark.parametrize("verb", ["insert", "delete"])
@pytest.mark.parametrize("is_free", [False, True])
def test_a_put_whose_repeat_fails_as_its_row_is_tried_is_put_by_the_next(
    apart: Stage, verb: str, *, is_free: bool
) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    message = lost_put(apart, queue)
    other.put("second", key="order-7", delay="2h")
    apart.faults.fail(verb, applied=True)
    with pytest.raises(StoreTimeout) as error:
        queue.put(message)
    [message] = error.value.messages
    if is_free:
        # The next put drops the rest of the try, and does not take it for a message that has run.
        assert other.cancel(key="order-7")
        assert other.receive() == []
    assert queue.put(message).text == "first"
    apart.clock.advance(1)
    assert [message.text for message in other.receive(10)] == ["first"]


def test_a_try_whose_delete_failed_is_deleted_by_the_next(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    message = lost_put(apart, queue)
    other.put("second", key="order-7", delay="2h")
    apart.faults.fail("delete")
    with pytest.raises(StoreUnavailable) as away:
        queue.put(message)
    [message] = away.value.messages
    queue.put(message)
    depth = other.depth(exact=True)
    assert depth.ready + depth.waiting == 1


def test_a_slow_replace_that_has_run_meanwhile_is_not_put_anew(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    queue.put("first", key="order-7", delay="1h")

    def freeze() -> None:
        apart.clock.advance(PATIENCE_S + 1)
        other.ack(*other.receive())

    apart.faults.call("insert", freeze)
    with pytest.raises(StoreTimeout, match="was taken over while its put was slow") as error:
        queue.put("second", key="order-7", on_conflict="replace", delay="1s")
    assert queue.put(error.value.messages[0]).text == "second"
    apart.clock.advance(7_200)
    # The old row is a copy, of a name that is free by now.
    assert queue.receive(10) == []


@pytest.mark.parametrize("stands_s", [0.0, PATIENCE_S + 1])
def test_a_put_whose_row_is_tried_as_who_has_its_name_ends_is_put_all_the_same(
    apart: Stage, stands_s: float
) -> None:
    queue, other = (apart.connect().queue("mail", history="7d") for _ in range(2))
    message = lost_put(apart, queue)
    other.put("second", key="order-7", delay="1s")

    def meanwhile() -> None:
        apart.clock.advance(1)
        other.ack(*other.receive())
        # Readers leave the row alone as long as its writer may conclude from it.
        apart.clock.advance(stands_s)
        assert other.receive(wait="3s") == []

    apart.faults.call("insert", meanwhile)
    queue.put(message)
    assert texts(queue) == ["first"]


@pytest.mark.parametrize("purges", [False, True])
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_replace_takes_back_the_row_of_a_message_that_has_ended_and_records_that(
    apart: Stage, *, purges: bool, is_slow: bool
) -> None:
    queue, other = (apart.connect().queue("mail", history="7d") for _ in range(2))
    queue.put("first", key="order-7", delay="1h")

    def meanwhile() -> None:
        if purges:
            apart.clock.advance(0.001)
            other.purge()
        else:
            apart.faults.fail("record")
            other.cancel(key="order-7")
        other.put("third", key="order-7", delay="1h")
        apart.clock.advance(PATIENCE_S + 1 if is_slow else 0)

    if is_slow:
        apart.faults.call("insert", meanwhile)
    else:
        # The row that is replaced is deleted.
        apart.faults.fail("delete", applied=True)
    try:
        queue.put("second", key="order-7", on_conflict="replace", delay="1h")
    except StoreTimeout as error:
        [message] = error.messages
        meanwhile()
        queue.put(message)
    assert "third" not in texts(queue)
    assert "second" in texts(queue)
    audit = queue.audit()
    assert audit.is_even, audit.line()


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_replace_whose_message_runs_and_is_followed_by_another_is_done(
    apart: Stage, *, is_slow: bool
) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    queue.put("first", key="order-7", delay="1h")

    def meanwhile() -> None:
        apart.clock.advance(PATIENCE_S + 1)
        [second] = other.receive()
        assert second.text == "second"
        other.put("third", key="order-7", delay="1h", on_conflict="debounce")

    if is_slow:
        apart.faults.call("insert", meanwhile)
        queue.put("second", key="order-7", on_conflict="replace")
    else:
        apart.faults.fail("insert", applied=True)
        with pytest.raises(StoreTimeout) as error:
            queue.put("second", key="order-7", on_conflict="replace")
        meanwhile()
        assert queue.put(*error.value.messages).text == "second"
    assert {"second", "third"} <= set(texts(queue))


@pytest.mark.parametrize("verb", ["find", "delete"])
def test_a_slow_put_leaves_no_row_behind_though_the_store_fails_it_twice(
    apart: Stage, verb: str
) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))

    def meanwhile() -> None:
        # Nobody waits longer for the row of a put.
        apart.clock.advance(PATIENCE_S + 1)
        other.cancel(other.put("second", key="order-7", delay="1h"))
        apart.faults.fail(verb, times=2)

    apart.faults.call("insert", meanwhile, after=False)
    queue.put("first", key="order-7", delay="1h")
    assert texts(queue) == ["first"]
