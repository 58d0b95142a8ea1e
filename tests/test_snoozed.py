"""A snooze with a reason, and a delivery that its handler ends as of no use, on each store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Consumer, Message, Queue, Snooze, State, Where
from shardq.engine.handing.outcome import Discard
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable


STEPS_MAX = 2_000


def deliver(
    world: World, queue: Queue, handle: Callable[[Message], object], count: int = 1
) -> None:
    """Step a consumer until it has handed out `count` messages."""
    seen: list[Message] = []

    def keep(message: Message) -> None:
        seen.append(message)
        handle(message)

    consumer = Consumer(queue, keep)
    for _ in range(STEPS_MAX):
        consumer.step()
        if len(seen) >= count:
            break
        world.pass_time(0.01)
    assert len(seen) == count
    consumer.close()


def snooze(_message: Message) -> None:
    raise Snooze("10s", "no worker knows task mail.welcome")


def fail(_message: Message) -> None:
    raise ConnectionError("refused")


def discard(_message: Message) -> None:
    raise Discard("expired")


def acting(*acts: Callable[[Message], object]) -> Callable[[Message], object]:
    """A handler that does another thing with each delivery."""
    left = iter(acts)

    def handle(message: Message) -> object:
        return next(left)(message)

    return handle


def state_of(queue: Queue, message: Message) -> State:
    state = queue.state_of(message.id)
    assert state is not None
    return state


@on_each_store
def test_one_that_was_snoozed_says_why_and_until_when_and_has_not_failed(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), attempts=1)
    sent = queue.put("a", headers={"mine": "1"})
    deliver(world, queue, snooze)
    state = state_of(queue, sent)
    assert (state.where, state.attempts, state.error) == (Where.SNOOZED, 0, None)
    assert state.reason == "no worker knows task mail.welcome"
    assert state.since is not None
    assert str(state).startswith("put off (snoozed) until 20")
    assert str(state).endswith(": no worker knows task mail.welcome")
    found = queue.find(sent.id)
    assert (found.last_error, found.attempt) == (state.reason, 0)
    assert found.headers == {"mine": "1"}
    assert (queue.totals().snoozed, queue.totals().retried) == (1, 0)


def test_what_fails_after_a_snooze_is_no_snooze_and_what_is_snoozed_after_it_no_failure(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", backoff="10s")
    sent = queue.put("a")
    told = []
    consumer = Consumer(queue, acting(snooze, fail, snooze))
    for _ in range(3):
        stage.drive(consumer, seconds=3)
        told.append(state_of(queue, sent))
        stage.drive(consumer, seconds=7.1)
    assert [state.where for state in told] == [Where.SNOOZED, Where.BACK_OFF, Where.SNOOZED]
    assert [state.error for state in told] == [None, "ConnectionError: refused", None]
    assert [state.reason is None for state in told] == [False, True, False]
    assert [state.attempts for state in told] == [0, 1, 1]


def test_of_one_that_is_due_after_a_snooze_its_reason_is_told_as_of_before(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    sent = queue.put("a")
    consumer = Consumer(queue, snooze)
    stage.drive(consumer, seconds=1)
    consumer.close()
    stage.clock.advance(10)
    state = state_of(queue, sent)
    assert state.where is Where.NO_CONSUMER
    assert str(state).endswith("; it was snoozed before: no worker knows task mail.welcome")


def test_one_that_dies_after_a_snooze_keeps_nothing_of_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("a")
    stage.drive(Consumer(queue, acting(snooze, fail)), seconds=12)
    [dead] = queue.dead.peek()
    assert dead._row.error is None
    assert dead.last_error == "out of attempts: ConnectionError: refused"


@pytest.mark.parametrize("reason", [None, 7, ["x"]])
def test_a_reason_that_is_no_text_is_none(stage: Stage, queue: Queue, reason: object) -> None:
    sent = queue.put("a")

    def handle(_message: Message) -> None:
        raise Snooze("1h", reason)  # type: ignore[arg-type]

    stage.drive(Consumer(queue, handle), seconds=1)
    assert (state_of(queue, sent).where, state_of(queue, sent).reason) == (Where.SNOOZED, None)


@pytest.mark.parametrize("key", [None, "order-7"])
def test_one_that_is_of_no_use_any_more_ends_as_cancelled_and_the_books_balance(
    world: World, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    queue = world.connect().queue(world.queue_name(), history="7d", attempts=3)
    sent = queue.put("a", key=key)
    deliver(world, queue, discard)
    assert queue.peek() == []
    totals = queue.totals()
    assert (totals.delivered, totals.cancelled, totals.acked, totals.retried) == (1, 1, 0, 0)
    state = state_of(queue, sent)
    assert (state.where, state.attempts) == (Where.CANCELLED, 1)
    audit = queue.audit()
    assert audit.is_even
    assert audit.total.cancelled == 1
    assert "failed" not in caplog.text
    if key is not None:
        # The name of the message is free at once.
        assert queue.put("b", key=key).id != sent.id


def test_what_is_behind_one_of_no_use_in_its_group_goes_on(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(3))
    begun: list[str] = []

    def handle(message: Message) -> None:
        begun.append(message.text)
        if message.text != "2":
            raise Discard("expired")

    stage.drain(queue, Consumer(queue, handle))
    assert begun == ["0", "1", "2"]


@pytest.mark.parametrize("failures", [1, 3])
def test_one_of_no_use_counts_once_where_its_delete_has_to_be_repeated(
    stage: Stage, queue: Queue, failures: int
) -> None:
    queue.put("a")
    stage.faults.fail("delete", times=failures, applied=True)
    stage.drive(Consumer(queue, discard), seconds=30)
    assert stage.is_empty(queue)
    assert (queue.totals().delivered, queue.totals().cancelled) == (1, 1)
    assert queue.audit().is_even
