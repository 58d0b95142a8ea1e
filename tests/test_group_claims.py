"""Claims of heads of groups for callers of `receive`, when others change the heads meanwhile."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Consumer
from shardq.engine.handing.caller import ReceiveCall
from shardq.errors import StoreError, StoreRefused, StoreTimeout, StoreUnavailable
from shardq.testing import Faults, Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq import Message, Queue
    from shardq.model.message import Row

PUT_OFF: dict[str, Callable[[Queue, Message], object]] = {
    "snoozed": lambda queue, one: queue.snooze(one, "1h"),
    "retried": lambda queue, one: queue.retry(one, "1h"),
    "extended": lambda queue, one: queue.extend(one, "1h"),
}


def with_head(world: World) -> tuple[Queue, Message]:
    """A queue whose receiver has the head of a group in memory, and another message behind it."""
    queue = world.connect().queue(world.queue_name(), lanes=1, group_lanes=1)
    queue.put("other", group="o")
    world.pass_time(0.002)
    head = queue.put("head", group="g")
    world.pass_time(0.002)
    queue.put("next", group="g")
    world.pass_time(0.01)
    [other] = queue.receive(1, wait="10s")
    assert other.text == "other"
    return queue, head


@on_each_store
@pytest.mark.parametrize("put_off", PUT_OFF.values(), ids=PUT_OFF)
@pytest.mark.parametrize("is_here", [True, False], ids=["here", "elsewhere"])
def test_a_head_that_is_put_off_while_it_waits_for_a_caller_keeps_its_group(
    world: World, put_off: Callable[[Queue, Message], object], *, is_here: bool
) -> None:
    queue, head = with_head(world)
    put_off(queue if is_here else world.connect().queue(queue.name), head)
    assert queue.receive(1) == []
    assert queue.receive(1, wait="300ms") == []
    assert queue.cancel(head)
    [message] = queue.receive(10, wait="10s")
    assert message.text == "next"


def test_a_head_that_another_process_retries_at_once_is_delivered_before_the_next(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("other", group="o")
    head = queue.put("head", group="g")
    queue.put("next", group="g")
    assert [message.text for message in queue.receive(1)] == ["other"]
    stage.connect().queue("mail").retry(head, "0s")
    [message] = queue.receive(10, wait="1s")
    assert (message.text, message.attempt) == ("head", 1)
    queue.ack(message)
    assert [message.text for message in queue.receive(10)] == ["next"]


@pytest.mark.parametrize("is_here", [True, False], ids=["here", "elsewhere"])
def test_a_head_that_is_edited_by_its_key_keeps_its_place(stage: Stage, *, is_here: bool) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("other", group="o")
    queue.put("old", key="k", group="g")
    stage.clock.advance(0.002)
    queue.put("next", group="g")
    stage.clock.advance(0.002)
    assert [message.text for message in queue.receive(1)] == ["other"]
    (queue if is_here else stage.connect().queue("mail")).edit(key="k", body="new")
    texts = []
    while messages := queue.receive(1, wait="1s"):
        queue.ack(*messages)
        texts += [message.text for message in messages]
    assert texts == ["new", "next"]


def test_a_head_that_is_edited_by_its_key_before_a_handler_takes_it_keeps_its_place(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("first", group="f")
    queue.put("old", key="k", group="g")
    stage.clock.advance(0.002)
    queue.put("next", group="g")
    stage.clock.advance(0.002)
    other = stage.connect().queue("mail")

    def edit(message: Message) -> None:
        if message.text == "first":
            other.edit(key="k", body="new")

    seen = Recorder(stage.clock, edit)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    assert seen.texts == ["first", "new", "next"]


@pytest.mark.parametrize(
    "repeat",
    [StoreUnavailable("away"), StoreTimeout("no answer"), StoreRefused("too large")],
    ids=["unavailable", "unknown", "refused"],
)
def test_a_claim_that_stays_unknown_is_given_back_and_costs_no_attempt(
    stage: Stage, repeat: StoreError
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(2))
    stage.faults.fail("edit", applied=True)
    stage.faults.fail("edit", nth=2, error=repeat)
    with pytest.raises(StoreTimeout):
        queue.receive(visibility="1h")
    [message] = queue.receive(visibility="1h", wait="1s")
    assert (message.text, message.attempt) == ("0", 1)
    queue.ack(message)
    assert [message.text for message in queue.receive()] == ["1"]


def test_a_claim_of_which_some_may_be_made_is_given_back(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("a", group="g")
    stage.faults.fail("edit", applied=True, error=StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        queue.receive(visibility="1h")
    [message] = queue.receive(visibility="1h", wait="1s")
    assert (message.text, message.attempt) == ("a", 1)


def test_a_head_claimed_with_a_message_that_is_refused_is_delivered_once_in_its_order(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1)
    queue.receive()
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(2))
    stage.clock.advance(0.01)
    queue.put("alone")
    first = ReceiveCall(1, 3_600_000, 0)
    queue._receiver.ask(first)
    stage.faults.fail("move", error=StoreRefused("too large"))
    stage.clock.advance(0.01)
    assert [message.text for message in queue.receive(1, "1h", "1s")] == ["alone"]
    assert queue.receive(1, "1h", "1s") == []
    [head] = first.answer()
    assert (head.text, head.attempt) == ("0", 1)
    queue.ack(head)
    assert [message.text for message in queue.receive(1, "1h", "1s")] == ["1"]


def test_a_claim_that_is_given_back_late_is_not_taken_from_the_lane_s_next_owner(
    stage: Stage,
) -> None:
    faults = Faults()
    queue = stage.connect(faults=faults).queue("mail", group_lanes=1)
    queue.put("a", group="g")
    # Both tries of the claim are lost, and what gives it back fails until another owns the lane.
    faults.fail("edit", times=4, error=StoreTimeout("no answer"))
    with pytest.raises(StoreTimeout):
        queue.receive(visibility="1h")
    stage.clock.advance(30)
    other = stage.connect().queue("mail")
    [message] = other.receive(visibility="1h", wait="20s")
    for _ in range(4):
        with suppress(StoreTimeout):
            assert queue.receive(wait="1s") == []
    other.close()
    third = stage.connect().queue("mail")
    assert third.receive(wait="30s") == []
    third.ack(message)
    assert stage.is_empty(queue)


@pytest.mark.parametrize("is_first", [True, False], ids=["its first edit", "a later one"])
@pytest.mark.parametrize("is_tried", [True, False], ids=["tried before", "at once"])
def test_what_a_former_owner_wrote_last_does_not_undo_the_first_edit_after_a_take_over(
    stage: Stage, *, is_first: bool, is_tried: bool
) -> None:
    queue = stage.connect(faults=Faults()).queue("mail", group_lanes=1)
    queue.put("a", group="g")
    if not is_first:
        assert queue.receive(visibility="2s")
        stage.clock.advance(2.1)
    late: list[Row] = []

    def lose(rows: Iterable[Row]) -> None:
        late.extend(rows)
        raise StoreTimeout("no answer")

    # The claim, its repeat, and the edit that gives it back.
    queue._home.store.edit = lose  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(StoreTimeout):
            queue.receive(visibility="1s", wait="1s")
    stage.clock.advance(30)
    other = stage.connect().queue("mail")
    if is_tried:
        stage.faults.fail("edit", error=StoreRefused("too large"))
        with pytest.raises(StoreRefused):
            other.receive(visibility="1h", wait="20s")
    [message] = other.receive(visibility="1h", wait="20s")
    stage._store.edit(late)
    other.close()
    third = stage.connect().queue("mail")
    assert third.receive(wait="1m") == []
    third.ack(message)


def test_rows_behind_claims_are_not_read_again_when_those_are_acknowledged(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put_many({"body": f"{number}", "group": "g"} for number in range(1_000))
    got: list[str] = []
    while len(got) < 1_000:
        messages = queue.receive(10, per_group=10, wait="1s")
        got += [message.text for message in messages]
        queue.ack(*messages)
    assert got == [f"{number}" for number in range(1_000)]
    assert queue._home.store.counters["rows_read"] < 5_000


def test_what_follows_a_head_is_bounded_in_bytes(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put_many({"body": bytes(300_000), "group": "g"} for _ in range(8))
    assert len(queue.receive(100, per_group=100, wait="1s")) == 3
