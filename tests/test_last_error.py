"""The last error of a message: kept while it is retried, gone once it has ended."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest
from crashing import Crash, run_until_crash
from worlds import World, on_each_store

from shardq import Bury, Consumer, Message, Retry, Snooze
from shardq.errors import BadBody, StoreCorrupt, UsageError
from shardq.model.message import BODY_BYTES_MAX, MESSAGE_BYTES_MAX
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from shardq import Queue


REFUSED = "ConnectionError: refused"


def refuse(message: Message) -> None:
    raise ConnectionError("refused")


def with_an_error(stage: Stage, queue: Queue, **options: object) -> Message:
    """A message whose first attempt failed, as it is now."""
    sent = queue.put("x", **options)
    consumer = Consumer(queue, refuse)
    stage.drive(consumer, seconds=0.5)
    consumer.close()
    found = queue.find(sent.id)
    assert found.last_error == REFUSED
    return found


# Kept ---------------------------------------------------------------------------------------------


@on_each_store
def test_what_failed_says_why_and_when_until_it_is_acked_or_redriven(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), attempts=3)
    sent = queue.put("x", headers={"kind": "a"})
    assert (sent.last_error, sent.last_error_at) == (None, None)
    for reason in ("refused", "timed out"):
        [message] = queue.receive(visibility="30s", wait="20s")
        queue.retry(message, "0s", reason=reason)
        found = queue.find(sent.id)
        assert found.last_error == reason
        assert found.last_error_at is not None
        assert abs(found.last_error_at - found.due).total_seconds() < 5
        assert found.headers == {"kind": "a"}
    [message] = queue.receive(visibility="30s", wait="20s")
    assert (message.attempt, message.last_error) == (3, "timed out")
    queue.retry(message, reason="gone")
    [dead] = queue.dead.peek()
    assert dead.last_error == dead.headers["shardq-reason"] == "out of attempts: gone"
    assert dead.last_error_at is not None
    assert dead.last_error_at.isoformat() == dead.headers["shardq-died"]
    assert queue.redrive() == 1
    [again] = queue.peek()
    assert (again.last_error, again.last_error_at, again.headers) == (None, None, {"kind": "a"})


@on_each_store
def test_headers_to_a_mebibyte_travel_through_every_move(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), attempts=2, backoff="0s")
    headers = {"attributes": "\u00e9" * (500 << 10), "one": "x"}
    queue.put("x", headers=headers)
    queue.put_many([{"body": "y", "headers": headers, "group": "g"}])
    for _ in range(2):
        found: list[Message] = []
        while len(found) < 2:
            found += queue.receive(visibility="30s", wait="20s")
        assert [one.headers for one in found] == [headers] * 2
        for message in found:
            queue.retry(queue.extend(message, "1m"))
    assert {dead.text: dead.headers["attributes"] for dead in queue.dead.peek()} == {
        "x": headers["attributes"],
        "y": headers["attributes"],
    }
    with pytest.raises(BadBody, match="is larger than 1,064,960; store a part elsewhere"):
        queue.put("x" * (1 << 20), headers=headers)
    with pytest.raises(BadBody, match="is larger than 1,064,960"):
        queue.put_many(["fits", {"body": "x" * (1 << 20), "headers": headers}])


def test_an_edit_by_key_keeps_to_the_bound_of_both(queue: Queue) -> None:
    queue.put("x" * (1 << 20), key="k", delay="1h")
    with pytest.raises(BadBody, match="is larger than 1,064,960"):
        queue.edit("k", headers={"a": "x" * 20_000})
    assert queue.peek()[0].headers == {}


def test_headers_that_fill_their_bound_keep_no_retry_from_being_stored(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), attempts=3)
    full = {"k": "v" * (MESSAGE_BYTES_MAX - BODY_BYTES_MAX - len('{"k":""}'))}
    sent = queue.put(b"x" * (1 << 20), headers=full)
    [message] = queue.receive(visibility="30s", wait="20s")
    # Each of these characters is 12 bytes of JSON.
    queue.retry(message, "0s", reason="\U0001f600" * 2_000)
    found = queue.find(sent.id)
    assert (found.last_error, found.headers) == ("\U0001f600" * 1_000, full)
    assert len(found.body) == 1 << 20


def test_the_next_attempt_of_a_handler_reads_why_the_one_before_failed(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=4, backoff="1s")
    queue.put("x")
    seen = Recorder(stage.clock, refuse)
    stage.drain(queue, Consumer(queue, seen))
    assert [one.last_error for one in seen.messages] == [None, *[REFUSED] * 3]
    assert seen.messages[0].last_error_at is None
    for before_us, message in zip(seen.at_us, seen.messages[1:], strict=False):
        assert message.last_error_at is not None
        assert 0 <= message.last_error_at.timestamp() - before_us / 1e6 < 0.2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Retry("1s", "later"), "later"),
        (Retry("1s"), "the handler asked for it"),
        (ValueError("caf\udce9 \ud83d\ude00 \x00"), "ValueError: caf\\udce9 \U0001f600 \x00"),
        (ValueError("\ud800" * 1_000), ("ValueError: " + r"\ud800" * 999)[:1_000]),
        (ValueError("x" * 5_000), f"ValueError: {'x' * 5_000}"[:1_000]),
    ],
    ids=["a reason", "no reason", "half a pair", "many halves", "too long"],
)
def test_any_text_of_an_error_is_kept_as_one_that_can_be_printed(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: Exception, told: str
) -> None:
    queue = stage.connect().queue("mail", backoff="1s")
    sent = queue.put("x")

    def handle(message: Message) -> None:
        raise error

    stage.drive(Consumer(queue, handle), seconds=0.5)
    found = queue.find(sent.id)
    assert found.last_error == told
    assert told.encode()
    # The log can be encoded too.
    assert caplog.text.encode()


class Untold(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


@pytest.mark.parametrize("fails", [Untold, type("Later", (Retry,), {"__str__": Untold.__str__})])
def test_an_error_whose_text_cannot_be_read_leaves_its_class(
    stage: Stage, fails: type[Exception]
) -> None:
    queue = stage.connect().queue("mail", backoff="1s")
    sent = queue.put("x")

    def handle(message: Message) -> None:
        raise fails

    stage.drive(Consumer(queue, handle), seconds=0.5)
    found = queue.find(sent.id)
    assert found.last_error is not None
    assert fails.__name__ in found.last_error


def test_a_snooze_a_claim_and_its_extension_keep_the_last_error(stage: Stage) -> None:
    queue = stage.connect().queue("mail", backoff="1s")
    before = with_an_error(stage, queue)
    stage.clock.advance(2)
    queue.snooze(before, "1s")
    stage.clock.advance(2)
    [claimed] = queue.receive()
    assert (claimed.last_error, claimed.last_error_at) == (REFUSED, before.last_error_at)
    queue.extend(claimed, "5s")
    stage.clock.advance(10)

    def snooze(message: Message) -> None:
        raise Snooze("1s")

    seen = Recorder(stage.clock, snooze)
    stage.drive(Consumer(stage.connect().queue("mail"), seen), seconds=3)
    assert len(seen) > 1
    assert {(one.last_error, one.last_error_at) for one in seen.messages} == {
        (REFUSED, before.last_error_at)
    }


def test_a_park_keeps_the_last_error_and_what_fails_after_it_replaces_it() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail", backoff="1s", hold="1s", visibility="10s")
        before = with_an_error(stage, queue)
        parked: list[str | None] = []

        def handle(message: Message) -> None:
            stage.clock.advance(2)
            consumer._engine.outbox.park_overdue()
            [row] = queue.peek()
            assert row._row.claim is not None
            parked.append(row.last_error)
            raise ValueError("late")

        consumer = Consumer(queue, handle)
        stage.drive(consumer, seconds=3, until=lambda: bool(parked))
        stage.drive(consumer, seconds=0.5)
        assert parked == [before.last_error]
        [found] = queue.peek()
        assert found.last_error == "ValueError: late"


def test_a_retry_too_late_for_its_minute_is_repaired_with_its_error(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=3, offset="2m")
    queue.put("x")
    [message] = queue.receive(visibility="30m")
    move = queue._settler.planner.move(message._row, 0, attempt=1, error="refused")
    stage.clock.advance(600)
    _, repaired = queue._settler.carry_out([move])
    assert repaired
    [found] = queue.peek()
    assert found._row.id == repaired[move.new.id].id
    assert found.last_error == "refused"


def test_a_retry_whose_answer_was_lost_is_repeated_as_the_same_row(stage: Stage) -> None:
    queue = stage.connect().queue("mail", backoff="1s")
    sent = queue.put("x")
    stage.faults.fail("move", nth=1, applied=True)
    stage.drive(Consumer(queue, refuse), seconds=0.9)
    [found] = queue.peek()
    assert (found.id, found.last_error, found.attempt) == (sent.id, REFUSED, 1)


def test_a_retry_without_a_reason_says_so_and_when(stage: Stage) -> None:
    queue = stage.connect().queue("mail", backoff="1s")
    before = with_an_error(stage, queue)
    stage.clock.advance(5)
    [message] = queue.receive()
    queue.retry(message)
    [found] = queue.peek()
    assert found.last_error == "retried without a reason"
    assert found.last_error_at is not None
    assert before.last_error_at is not None
    assert found.last_error_at > before.last_error_at


def test_a_reason_that_is_no_text_is_refused_before_anything_is_done(queue: Queue) -> None:
    queue.put("x")
    [message] = queue.receive()
    with pytest.raises(UsageError, match="reason must be text, not int"):
        queue.retry(message, reason=5)  # type: ignore[arg-type]
    queue.ack(message)


def test_a_copy_in_another_process_tells_the_last_error(stage: Stage) -> None:
    queue = stage.connect().queue("mail", backoff="1s")
    found = with_an_error(stage, queue)
    copy = pickle.loads(pickle.dumps(found))
    assert (copy.last_error, copy.last_error_at) == (REFUSED, found.last_error_at)


# Dead ---------------------------------------------------------------------------------------------


def test_a_dead_message_says_why_it_died_and_keeps_no_error_before(stage: Stage) -> None:
    queue = stage.connect().queue("mail", backoff="1s")
    with_an_error(stage, queue)

    def bury(message: Message) -> None:
        raise Bury("no such address")

    stage.drain(queue, Consumer(queue, bury))
    [dead] = queue.dead.peek()
    assert dead.last_error == "no such address"
    assert json.loads(dead._row.headers or "").keys() == dead.headers.keys()


def test_what_is_retried_among_the_dead_says_what_failed_there(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1, backoff="1s")
    queue.put("x")
    stage.drain(queue, Consumer(queue, refuse))
    stage.clock.advance(1)
    stage.drive(Consumer(queue.dead, lambda _: 1 / 0), seconds=0.5)
    [dead] = queue.dead.peek()
    assert dead.last_error == "ZeroDivisionError: division by zero"
    assert dead.headers["shardq-reason"] == f"out of attempts: {REFUSED}"
    assert queue.redrive() == 1
    [again] = queue.peek()
    assert (again.last_error, again._row.headers) == (None, None)


def test_what_dies_by_crashes_says_so_and_which_error_was_before(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=3, backoff="1s")
    with_an_error(stage, queue)

    def crash(message: Message) -> None:
        raise Crash

    for _ in range(6):
        run_until_crash(stage, Consumer(stage.connect().queue("mail"), crash), seconds=40)
    [dead] = queue.dead.peek()
    assert dead.last_error == (
        f"out of attempts: its consumer died, or its time ran out; before that: {REFUSED}"
    )


def test_what_its_callers_never_settle_dies_with_a_reason_that_says_so(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=2)
    queue.put("x")
    [message] = queue.receive()
    queue.retry(message, "0s", reason="refused")
    stage.clock.advance(1)
    queue.receive(visibility="2s")
    stage.clock.advance(3)
    assert queue.receive() == []
    [dead] = queue.dead.peek()
    assert dead.last_error == (
        "out of attempts: its consumer died, or its time ran out; before that: refused"
    )


# Damaged ------------------------------------------------------------------------------------------


def damaged(queue: Queue, headers: str = "{bad") -> None:
    row = queue.put("bad")._row
    queue._home.store.delete([row.position])
    queue._home.store.insert([row._replace(headers=headers)])


@pytest.mark.parametrize("attempts", [1, 3])
def test_damaged_headers_keep_no_consumer_from_the_other_messages(
    stage: Stage, attempts: int
) -> None:
    queue = stage.connect().queue("mail", attempts=attempts, backoff="1s")
    damaged(queue)
    queue.put("good")
    seen = Recorder(stage.clock, lambda one: refuse(one) if one.text == "bad" else None)
    stage.drain(queue, Consumer(queue, seen))
    assert sorted(seen.texts) == ["bad"] * attempts + ["good"]
    with pytest.raises(StoreCorrupt, match="headers of message"):
        _ = seen.messages[0].headers
    [dead] = queue.dead.peek()
    assert dead.last_error == f"out of attempts: {REFUSED}"
    assert dead.headers["shardq-headers"] == "{bad"
    # A redrive leaves damaged headers as they are.
    assert queue.redrive() == 1
    assert queue.peek()[0]._row.headers == "{bad"


def test_a_message_with_damaged_headers_can_be_retried_and_buried_by_its_receipt(
    stage: Stage,
    queue: Queue,
) -> None:
    damaged(queue)
    [message] = queue.receive()
    queue.retry(message, "0s", reason="refused")
    stage.clock.advance(1)
    [message] = queue.receive()
    assert message._row.headers == "{bad"
    queue.bury(message, "unreadable")
    [dead] = queue.dead.peek()
    assert dead.last_error == "unreadable"


@pytest.mark.parametrize("error", ["", "refused", "soon:f:refused", "7:x:refused"])
def test_a_damaged_error_keeps_no_consumer_from_the_message(stage: Stage, error: str) -> None:
    queue = stage.connect().queue("mail", attempts=3, backoff="1s")
    row = queue.put("a")._row
    queue._home.store.edit([row._replace(serial=1, attempt=1, error=error)])
    [message] = queue.peek()
    with pytest.raises(StoreCorrupt, match="error of message"):
        _ = message.last_error
    seen = Recorder(stage.clock, refuse)
    stage.drain(queue, Consumer(queue, seen))
    assert [one.attempt for one in seen.messages] == [2, 3]
    [dead] = queue.dead.peek()
    assert dead.last_error == f"out of attempts: {REFUSED}"
