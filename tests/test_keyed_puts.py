"""Puts under keys: one live message has a name, whatever twins, crashes and lost answers do."""

from __future__ import annotations

import os
import pickle
import textwrap
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import Process
from keyed import TIMEOUT_MS, standing, texts
from keyed_rows import Names
from sqlite_file import CHILD_SECONDS_MAX

import shardq
from shardq import Answer, Queue
from shardq.errors import (
    BadName,
    KeyTaken,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
    UsageError,
)
from shardq.model.key import MessageKey
from shardq.model.message import Message, key_of
from shardq.records.standing import Is
from shardq.testing import Stage

pytest_plugins = ["keyed_stages"]
PATIENCE_S = 2 * TIMEOUT_MS / 1e3


def generation(message: Message) -> int:
    key = key_of(message._row)
    assert key is not None
    return key.generation


# One message a key --------------------------------------------------------------------------------


def test_a_put_of_a_key_that_is_taken_leaves_the_message_there_as_it_is(queue: Queue) -> None:
    first = queue.put("first", key="order-7", delay="1h", headers={"a": "b"})
    again = queue.put("second", key="order-7")
    assert (again.id, again.text, again.due, again.key) == (
        first.id, "first", first.due, "order-7",
    )  # fmt: skip
    assert again.receipt == first.receipt
    assert texts(queue) == ["first"]
    assert queue.totals().put == 1


def test_a_put_that_rejects_says_which_message_has_the_key(queue: Queue) -> None:
    first = queue.put("first", key="order-7", delay="1h")
    assert f"{first.id} of {queue.name!r}, key 'order-7', due 20" in repr(first)
    with pytest.raises(KeyTaken, match=rf"is taken by message {first.id}, .* due 20\S+Z;") as e:
        queue.put("second", key="order-7", on_conflict="reject")
    assert e.value.message.id == first.id
    assert texts(queue) == ["first"]


def test_a_put_that_replaces_keeps_the_message_s_id_and_nothing_else_of_it(queue: Queue) -> None:
    first = queue.put("first", key="order-7", delay="1h", headers={"a": "b"}, id="mine")
    second = queue.put("second", key="order-7", delay="2h", on_conflict="replace", group="g")
    assert (second.id, second.text, second.headers, second.group) == ("mine", "second", {}, "g")
    assert second.due_ms - first.due_ms == pytest.approx(3_600_000, abs=60_000)
    assert texts(queue) == ["second"]
    assert (standing(queue, "order-7").row, generation(second)) == (second._row, 2)
    assert queue.totals().put == 1
    third = queue.put("third", key="order-7", on_conflict="replace")
    assert (third.id, generation(third)) == ("mine", 3)
    [taken] = queue.receive(10)
    assert (taken.text, taken.id) == ("third", "mine")


def test_a_name_is_free_as_soon_as_its_message_ends_in_whatever_way(queue: Queue) -> None:
    ends: dict[str, Callable[[Message], object]] = {
        "acked": queue.ack,
        "buried": queue.bury,
        "cancelled": queue.cancel,
        "retried, then acked": lambda m: queue.ack(queue.extend(m)),
    }
    for name, end in ends.items():
        first = queue.put(name, key="order-7")
        [taken] = queue.receive(wait="10s")
        assert taken.id == first.id
        end(taken)
        second = queue.put(f"after {name}", key="order-7")
        assert (second.text, second.id != first.id) == (f"after {name}", True)
        [taken] = queue.receive(wait="10s")
        queue.ack(taken)
        assert standing(queue, "order-7").state is Is.FREE, name


def test_a_name_is_followed_through_retries_and_snoozes(queue: Queue) -> None:
    first = queue.put("first", key="order-7", unique_for="1h")
    for wait in (queue.retry, queue.snooze):
        [taken] = queue.receive(wait="10s")
        wait(taken, "0s")
        assert queue.put("second", key="order-7").id == first.id
    [taken] = queue.receive(wait="10s")
    queue.retry(taken, "1h")
    replaced = queue.put("second", key="order-7", on_conflict="replace")
    assert (replaced.id, replaced.attempt) == (first.id, 0)
    assert texts(queue) == ["second"]


def test_a_key_is_held_after_its_message_s_end_for_as_long_as_it_was_put_for(queue: Queue) -> None:
    queue.put("first", key="order-7", unique_for="1h")
    [taken] = queue.receive(wait="10s")
    queue.ack(taken)
    for choice in ("keep", "reject", "replace"):
        with pytest.raises(KeyTaken, match=r"is held until 20\S+Z, by unique_for") as error:
            queue.put("second", key="order-7", on_conflict=choice)
        assert error.value.message is None
    assert texts(queue) == []


@pytest.mark.parametrize("held", [None, "1h"])
def test_what_was_cancelled_as_it_ran_and_waits_for_its_retry_ends_with_a_put_of_its_name(
    either: Stage, held: str | None
) -> None:
    queue = either.connect().queue("mail")
    first = queue.put("first", key="order-7", unique_for=held)
    [taken] = queue.receive()
    assert queue.cancel(key="order-7") is Answer.RUNNING
    queue.retry(taken, delay="10s")
    if held:
        with pytest.raises(KeyTaken, match="is held until"):
            queue.put("second", key="order-7")
    else:
        queue.put("second", key="order-7")
    assert texts(queue) == ([] if held else ["second"])
    [record] = queue.history(first.id)
    assert (record.fate, queue.totals().cancelled) == ("cancelled", 1)


def test_a_key_that_was_held_is_free_when_its_time_is_up(either: Stage) -> None:
    queue = either.connect().queue("mail")
    queue.put("first", key="order-7", unique_for="90s")
    queue.ack(*queue.receive())
    either.clock.advance(89)
    with pytest.raises(KeyTaken):
        queue.put("second", key="order-7")
    either.clock.advance(2)
    assert queue.put("second", key="order-7").text == "second"


# Debounce -----------------------------------------------------------------------------------------


def test_a_debounced_message_is_pushed_out_by_each_put_no_further_than_max_wait(
    either: Stage,
) -> None:
    queue = either.connect().queue("mail")
    began_ms = either.clock.now_ms()
    for number in range(7):
        made = queue.put(
            str(number), key="order-7", delay="60s", on_conflict="debounce", max_wait="200s"
        )
        assert made.due_ms == pytest.approx(began_ms + min(number * 30 + 60, 200) * 1_000, abs=2)
        assert queue.receive() == []
        either.clock.advance(30 if number < 6 else 19.9)
    assert queue.receive() == []
    either.clock.advance(0.2)
    [taken] = queue.receive()
    assert (taken.text, queue.totals().put) == ("6", 1)


def test_the_first_of_debounced_puts_waits_no_longer_than_max_wait_either(either: Stage) -> None:
    queue = either.connect().queue("mail")
    began_ms = either.clock.now_ms()
    made = queue.put("x", key="k", delay="1h", on_conflict="debounce", max_wait="10s")
    assert made.due_ms == pytest.approx(began_ms + 10_000, abs=1)
    queue.put_many(
        [{"body": "y", "key": "l", "delay": "1h", "on_conflict": "debounce", "max_wait": "20s"}]
    )
    assert standing(queue, "l").row.due_ms == pytest.approx(began_ms + 20_000, abs=1)  # type: ignore[union-attr]


def test_a_debounce_without_max_wait_is_pushed_out_for_ever(stage: Stage, queue: Queue) -> None:
    for _ in range(20):
        queue.put("x", key="k", delay="60s", on_conflict="debounce")
        stage.clock.advance(59)
        assert queue.receive() == []
    stage.clock.advance(2)
    assert len(queue.receive()) == 1


# What cannot be -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"key": ""}, BadName, "key '' must be 1 to 256 printable characters"),
        ({"key": "a\nb"}, BadName, r"key 'a\\nb' must be"),
        ({"key": "k" * 257}, BadName, "must be 1 to 256"),
        ({"key": 7}, BadName, "key must be text, not int 7"),
        ({"key": "k", "on_conflict": "skip"}, UsageError, "on_conflict must be keep, replace"),
        ({"key": "k", "on_conflict": None}, UsageError, "on_conflict must be keep, replace"),
        ({"on_conflict": "replace"}, UsageError, "on_conflict='replace' needs a key"),
        ({"max_wait": "1h"}, UsageError, "max_wait='1h' needs a key"),
        ({"unique_for": "1h"}, UsageError, "unique_for='1h' needs a key"),
        ({"key": "k", "max_wait": "1h"}, UsageError, "max_wait needs on_conflict='debounce'"),
        (
            {"key": "k", "max_wait": "1h", "on_conflict": "replace"},
            UsageError,
            "max_wait needs on_conflict='debounce', not 'replace'",
        ),
        ({"key": "k", "on_conflict": "debounce"}, UsageError, "give a delay or due"),
        ({"key": "k", "unique_for": "soon"}, UsageError, "unique_for"),
    ],
)
def test_options_that_contradict_are_refused_in_one_sentence(
    queue: Queue, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        queue.put("x", **given)
    assert ". " not in str(raised.value).replace("...", "")
    with pytest.raises(error, match=text):
        queue.put_many([{"body": "x"} | given])
    assert texts(queue) == []
    assert not queue.settings.keyed


def test_a_message_is_put_again_under_its_own_key_alone(queue: Queue) -> None:
    message = queue.put("x", key="k")
    with pytest.raises(UsageError, match="put its body to give it a key"):
        queue.put(message, key="other")
    with pytest.raises(UsageError, match="is put again as it was"):
        queue.put(message, on_conflict="replace")


def test_nothing_is_put_under_a_key_among_the_dead(queue: Queue) -> None:
    with pytest.raises(UsageError, match="put into 'mail'"):
        queue.dead.put("x", key="k")


# Queues that are keyed, paused, purged, dropped ---------------------------------------------------


def test_in_a_keyed_queue_each_message_has_a_key_its_id_unless_given(either: Stage) -> None:
    queue = either.connect().queue("mail", keyed=True)
    made = queue.put("a")
    assert made.key == made.id
    assert queue.put("b", id="order-7").key == "order-7"
    assert queue.put("c", id="order-7").text == "b"
    assert queue.put("d", id="other", key="mine").key == "mine"
    made_ids = queue.put_many([b"e", "f", {"body": "g", "id": "order-7"}], ids=True)
    assert {message.key for message in queue.peek(10)} == {
        made.id, "order-7", "mine", *made_ids,
    }  # fmt: skip
    assert texts(queue) == ["a", "b", "d", "e", "f"]


def test_what_a_purge_has_reached_does_not_hold_its_name(either: Stage) -> None:
    queue, other = (either.connect().queue("mail") for _ in range(2))
    first = queue.put("first", key="order-7", delay="1h")
    either.clock.advance(0.1)
    other.purge()
    either.clock.advance(0.1)
    # This process has not read of the purge yet.
    second = queue.put("second", key="order-7", delay="1h")
    assert second.id != first.id
    either.clock.advance(0.1)
    third = queue.put("third", key="order-7", delay="1h", on_conflict="replace")
    assert third.id == second.id
    either.clock.advance(4_000)
    assert [message.text for message in queue.receive()] == ["third"]


def test_a_put_that_is_purged_meanwhile_enters_anew(either: Stage) -> None:
    queue, other = (either.connect().queue("mail") for _ in range(2))
    queue.put("first", key="order-7", delay="1h")

    def purge() -> None:
        either.clock.advance(0.1)
        other.purge()
        either.clock.advance(0.1)

    either.faults.call("write_records keys", purge)
    message = queue.put("second", key="order-7", delay="1h")
    assert message.text == "second"
    assert message._row.entered_us > queue.settings.purged_before_us


def test_a_key_of_a_dropped_queue_is_free_in_the_one_made_anew(either: Stage) -> None:
    db = either.connect()
    queue = db.queue("mail")
    queue.put("first", key="order-7", delay="1h", unique_for="1h")
    queue.put("held", key="order-8", unique_for="1h")
    queue.ack(*queue.receive())
    either.clock.advance(1)
    queue.drop()
    with pytest.raises(UnknownQueue):
        queue.put("second", key="order-7")
    with pytest.raises(UnknownQueue):
        queue.put_many([{"body": "second", "key": "order-7"}])
    either.clock.advance(1)
    anew = either.connect().queue("mail")
    for key in ("order-7", "order-8"):
        assert anew.put("second", key=key).text == "second"


def test_a_paused_queue_takes_keys(either: Stage) -> None:
    queue = either.connect().queue("mail")
    queue.pause()
    assert queue.put("a", key="k").id == queue.put("b", key="k").id
    queue.resume()
    either.clock.advance(5)
    assert [message.text for message in queue.receive()] == ["a"]


def test_the_first_key_of_a_queue_is_recorded_and_others_cost_nothing(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("a")
    assert not queue.settings.keys_used
    queue.put("b", key="k")
    assert queue.settings.keys_used
    calls = dict(stage.faults.calls)
    for _ in range(100):
        queue.put("c")
    queue.put_many([b"d"] * 100)
    queue.put_many([{"body": "e", "delay": "1h"}] * 100)
    spent = {verb: count - calls.get(verb, 0) for verb, count in stage.faults.calls.items()}
    assert {verb for verb, count in spent.items() if count} <= {"insert", "record"}


# Lost answers, crashes, take-over -----------------------------------------------------------------


@pytest.mark.parametrize("applied", [False, True])
def test_a_put_whose_answer_was_lost_is_repeated_as_it_was(either: Stage, *, applied: bool) -> None:
    queue = either.connect().queue("mail")
    either.faults.fail("write_records keys", applied=applied)
    with pytest.raises(StoreTimeout if applied else StoreUnavailable) as error:
        queue.put("first", key="order-7", delay="1h")
    [message] = error.value.messages
    either.clock.advance(100)
    again = queue.put(message)
    assert (again.id, again._row.position) == (message.id, message._row.position)
    assert texts(queue) == ["first"]
    assert queue.put("second", key="order-7").id == message.id
    assert queue.totals().put == 1


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("choice", ["replace", "debounce"])
def test_a_replace_whose_answer_was_lost_is_repeated_as_it_was(
    either: Stage, choice: Any, *, applied: bool
) -> None:
    queue = either.connect().queue("mail")
    first = queue.put("first", key="order-7", delay="1h")
    either.faults.fail("write_records keys", nth=2, applied=applied)
    with pytest.raises(StoreTimeout if applied else StoreUnavailable) as error:
        queue.put("second", key="order-7", delay="2h", on_conflict=choice)
    [message] = pickle.loads(pickle.dumps(error.value.messages))
    again = queue.put(message)
    assert (again.id, again.text, generation(again)) == (first.id, "second", 2)
    assert texts(queue) == ["second"]
    assert queue.totals().put == 1


def test_a_replace_that_was_not_applied_is_put_anew_once_the_other_has_ended(
    either: Stage,
) -> None:
    queue = either.connect().queue("mail")
    first = queue.put("first", key="order-7")
    either.faults.fail("write_records keys", nth=2)
    with pytest.raises(StoreUnavailable) as error:
        queue.put("second", key="order-7", delay="2h", on_conflict="replace")
    queue.ack(*queue.receive())
    again = queue.put(error.value.messages[0])
    assert (again.text, again.id != first.id, generation(again)) == ("second", True, 1)
    # The history knows the message that has ended: a message with its id would be dropped.
    either.clock.advance(7_201)
    assert [message.text for message in queue.receive()] == ["second"]


def test_a_replace_that_was_not_applied_is_not_taken_for_another_s(either: Stage) -> None:
    queue, other = (either.connect().queue("mail") for _ in range(2))
    queue.put("first", key="order-7", delay="1h")
    either.faults.fail("write_records keys", nth=2)
    with pytest.raises(StoreUnavailable) as error:
        queue.put("second", key="order-7", delay="2h", on_conflict="replace")
    # This put gets the generation that the repeated put had.
    other.put("third", key="order-7", delay="2h", on_conflict="replace")
    again = queue.put(error.value.messages[0])
    assert (again.text, generation(again)) == ("second", 3)
    assert texts(queue) == ["second"]


def test_a_replace_whose_row_is_written_by_its_repeat_is_not_late(apart: Stage) -> None:
    queue = apart.connect().queue("mail")
    queue.put("first", key="order-7", delay="1h")
    apart.faults.fail("insert")
    with pytest.raises(StoreTimeout) as error:
        queue.put("second", key="order-7", on_conflict="replace", delay="1s")
    apart.clock.advance(300)
    again = queue.put(error.value.messages[0])
    assert again.due_ms >= apart.clock.now_ms()
    assert standing(queue, "order-7").row == again._row
    assert texts(queue) == ["second"]


def test_a_put_that_is_repeated_after_its_message_was_moved_leaves_it(either: Stage) -> None:
    queue = either.connect().queue("mail")
    message = queue.put("first", key="order-7")
    queue.snooze(queue.receive()[0], "1h")
    assert queue.put(message).id == message.id
    queue.put("second", key="order-7", on_conflict="replace", delay="2h")
    assert queue.put(message).text == "second"
    assert texts(queue) == ["second"]


def test_a_putter_that_crashed_between_key_and_row_does_not_keep_the_name(apart: Stage) -> None:
    queue = apart.connect().queue("mail")
    apart.faults.fail("insert")
    with pytest.raises(StoreTimeout):
        queue.put("first", key="order-7", delay="1h")
    assert standing(queue, "order-7").state is Is.PENDING
    began_s = apart.clock.boot_us() / 1e6
    other = apart.connect().queue("mail")
    message = other.put("second", key="order-7", delay="1h")
    assert message.text == "second"
    assert PATIENCE_S <= apart.clock.boot_us() / 1e6 - began_s < PATIENCE_S + 0.2
    assert texts(queue) == ["second"]


def test_where_outcomes_are_known_a_key_without_a_row_is_free_at_once(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    row = queue.put("first", key="order-7", delay="1h")._row
    stage._store.delete([row.position])
    began_us = stage.clock.boot_us()
    assert queue.put("second", key="order-7", delay="1h").text == "second"
    assert stage.clock.boot_us() == began_us


def test_a_put_waits_for_the_row_of_one_that_is_under_way(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    apart.faults.fail("insert")
    with pytest.raises(StoreTimeout) as error:
        queue.put("first", key="order-7", delay="1h")
    [message] = error.value.messages
    # The row exists at the tenth look.
    apart.faults.call("find", lambda: queue.put(message), nth=10)
    found = other.put("second", key="order-7", delay="1h")
    assert (found.id, found.text) == (message.id, "first")


def test_each_put_that_is_under_way_is_given_its_time(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    apart.faults.fail("insert")
    with pytest.raises(StoreTimeout):
        queue.put("first", key="order-7", delay="1h")
    began_us = apart.clock.boot_us()

    def slow() -> None:
        # The look takes long, and meanwhile another put takes the name over.
        apart.clock.advance(PATIENCE_S - 0.5)
        names = Names(other)
        over = names.of("order-7")
        late = names.keys.put(names.row("order-7"), over)
        assert names.keys.write([late._replace(insert=())]) == {}

    apart.faults.call("find", slow, nth=5)
    assert queue.put("third", key="order-7", delay="1h").text == "third"
    assert (apart.clock.boot_us() - began_us) / 1e6 > 2 * PATIENCE_S - 0.5


def test_a_slow_put_that_was_displaced_gives_way_to_the_message_there(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    made: list[Message] = []

    def freeze() -> None:
        apart.clock.advance(PATIENCE_S + 1)
        made.append(other.put("second", key="order-7", delay="1h"))

    apart.faults.call("insert", freeze, after=False)
    message = queue.put("first", key="order-7", delay="1h")
    assert (message.id, message.text) == (made[0].id, "second")
    assert texts(queue) == ["second"]


def test_a_slow_put_whose_row_is_taken_back_is_not_lost_where_that_is_not_answered(
    apart: Stage,
) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))

    def freeze() -> None:
        apart.clock.advance(PATIENCE_S + 1)
        other.put("second", key="order-7")

    apart.faults.call("insert", freeze, after=False)
    apart.faults.fail("delete", times=10, applied=True)
    with pytest.raises(StoreTimeout) as error:
        queue.put("first", key="order-7", delay="1h", on_conflict="replace")
    apart.faults.heal()
    other.ack(*other.receive())
    queue.put(error.value.messages[0])
    assert texts(queue) == ["first"]


def drop_all(stage: Stage, queue: Queue) -> None:
    """Let a caller meet what is nobody's any more, until nothing is left."""
    while queue.depth(exact=True).ready:
        stage.clock.advance(1)
        assert queue.receive() == []


def test_slow_puts_that_were_displaced_and_dropped_are_stored_by_their_repeat(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    keys = ["order-7", "order-8"]

    def freeze() -> None:
        apart.clock.advance(PATIENCE_S + 1)
        other.put_many([{"body": "second", "key": key} for key in keys])
        while messages := other.receive():
            other.ack(*messages)

    apart.faults.call("insert", freeze, after=False, nth=2)
    apart.faults.call("insert", lambda: drop_all(apart, other), nth=2)
    with pytest.raises(StoreTimeout, match="was taken over while its put was slow") as error:
        queue.put_many([{"body": f"first of {key}", "key": key} for key in keys])
    failed = error.value.messages
    assert queue.put_many(list(failed), ids=True) == [message.id for message in failed]
    assert texts(queue) == ["first of order-7", "first of order-8"]


def test_a_slow_put_whose_row_cannot_be_looked_for_is_stored_by_its_repeat(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))

    def freeze() -> None:
        apart.clock.advance(PATIENCE_S + 1)
        other.put("second", key="order-7")
        other.ack(*other.receive())

    apart.faults.call("insert", freeze, after=False)
    down = StoreUnavailable("down")
    apart.faults.call("insert", lambda: apart.faults.fail("find", times=10, error=down))
    with pytest.raises(StoreTimeout, match="were written whose keys others have taken") as error:
        queue.put("first", key="order-7")
    apart.faults.heal()
    drop_all(apart, other)
    assert queue.put(error.value.messages[0]).text == "first"
    assert texts(queue) == ["first"]


def test_a_slow_put_that_has_run_meanwhile_is_not_known_to_be_stored(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))

    def freeze() -> None:
        apart.clock.advance(PATIENCE_S + 1)
        other.ack(*other.receive())

    apart.faults.call("insert", freeze)
    with pytest.raises(StoreTimeout, match="was taken over while its put was slow") as error:
        queue.put("first", key="order-7")
    assert [message.key for message in error.value.messages] == ["order-7"]


@pytest.mark.parametrize("held", [None, "1h"])
@pytest.mark.parametrize("is_written", [False, True])
def test_a_put_whose_message_is_cancelled_before_it_returns_stays_cancelled(
    apart: Stage, held: str | None, *, is_written: bool
) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))

    def cancel() -> None:
        apart.clock.advance(PATIENCE_S / 2 + 1)
        assert other.cancel(key="order-7") is Answer.DONE

    apart.faults.call("insert", cancel, after=is_written)
    message = queue.put("first", key="order-7", delay="10s", unique_for=held)
    apart.clock.advance(60)
    assert queue.receive() == []
    [record] = queue.history(message.id)
    assert record.fate == "cancelled"


def test_a_put_whose_answer_was_lost_and_whose_message_was_cancelled_stays_cancelled(
    apart: Stage,
) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    apart.faults.fail("insert")
    with pytest.raises(StoreTimeout) as error:
        queue.put("first", key="order-7")
    assert other.cancel(key="order-7") is Answer.DONE
    again = queue.put(error.value.messages[0])
    apart.clock.advance(60)
    assert queue.receive() == []
    [record] = queue.history(again.id)
    assert record.fate == "cancelled"
    assert queue.audit().is_even


def test_a_slow_put_that_nobody_has_displaced_is_confirmed(apart: Stage) -> None:
    queue = apart.connect().queue("mail")
    apart.faults.call("insert", lambda: apart.clock.advance(TIMEOUT_MS / 1e3 + 1))
    message = queue.put("first", key="order-7", delay="1h")
    assert standing(queue, "order-7").row == message._row
    calls = apart.faults.calls["write_records keys"]
    queue.put("quick", key="order-8", delay="1h")
    assert apart.faults.calls["write_records keys"] == calls + 1


def test_a_row_that_the_store_refuses_for_good_gives_its_name_back(apart: Stage) -> None:
    queue = apart.connect().queue("mail")
    apart.faults.fail("insert", error=StoreRefused("too large"))
    with pytest.raises(StoreRefused):
        queue.put("first", key="order-7")
    assert standing(queue, "order-7").state is Is.FREE


def test_a_keyed_put_that_comes_too_late_for_its_minute_is_moved_and_found(either: Stage) -> None:
    queue = either.connect().queue("mail")
    either.faults.call("record", lambda: either.clock.advance(300))
    message = queue.put("first", key="order-7")
    assert message.due_ms >= either.clock.now_ms()
    assert queue.totals().late_repaired == 1
    assert standing(queue, "order-7").row == message._row
    assert queue.put("second", key="order-7").id == message.id


# Processes ----------------------------------------------------------------------------------------

TWIN = """
    import sys
    import shardq

    url, name, puts = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with shardq.connect(url) as db:
        queue = db.queue(name)
        print(*{queue.put(str(n), key="order-7", delay="1h").id for n in range(puts)})
"""


@pytest.mark.parametrize(
    ("url", "puts"),
    [
        ("sqlite", 125),
        ("cassandra", 25),
        pytest.param("sqlite", 1_250, marks=pytest.mark.nightly),
        pytest.param("cassandra", 125, marks=pytest.mark.nightly),
    ],
    indirect=["url"],
)
def test_of_many_puts_of_one_key_by_four_processes_one_is_a_message(
    url: str, puts: int, tmp_path: Path
) -> None:
    name = f"q-{uuid.uuid4().hex[:12]}"
    with shardq.connect(url) as db:
        db.queue(name)
    twins = [
        Process(["-c", textwrap.dedent(TWIN), url, name, str(puts)], cwd=tmp_path, env=os.environ)
        for _ in range(4)
    ]
    ids = set()
    for twin in twins:
        with twin:
            out, err = twin.communicate(timeout=CHILD_SECONDS_MAX)
        assert twin.returncode == 0, err.decode()
        ids.add(out.decode().strip())
    with shardq.connect(url) as db:
        [message] = db.queue(name).peek()
        assert ids == {message.id}
        assert db.queue(name).totals().put == 1


def test_a_key_is_stored_as_every_release_reads_it(queue: Queue) -> None:
    row = queue.put("x", key="order:7", unique_for="1h")._row
    assert row.key == MessageKey("order:7", 1, 3_600_000).text() == "1:3600000:order:7"
