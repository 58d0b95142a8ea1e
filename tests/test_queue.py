"""A queue as its users hold it."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import World

from shardq import Consumer, Message, Queue
from shardq.errors import (
    BadBody,
    BadName,
    BadReceipt,
    BadSetting,
    BadTime,
    StaleReceipt,
    UnknownQueue,
    UsageError,
)
from shardq.stores.tables import LANES
from shardq.testing import Recorder, Stage

# Settling by receipt ------------------------------------------------------------------------------


def received(stage: Stage, **settings: object) -> tuple:
    queue = stage.connect().queue("mail", **settings)
    queue.put("a", id="me")
    [message] = queue.receive(wait="1s")
    return queue, message


def test_a_dead_message_shows_the_deliveries_before_it_died(queue: Queue) -> None:
    queue.put("x", id="me")
    for _ in range(2):
        [message] = queue.receive(wait="1m")
        queue.retry(message, "5s")
    queue.bury(queue.receive(wait="1m")[0])
    found = queue.dead.find("me")
    assert found.attempt == queue.dead.peek()[0].attempt == 3
    assert found.headers["shardq-attempts"] == "3"
    # A delivery of its own has a number of its own.
    [again] = queue.dead.receive(wait="1s")
    assert again.attempt == 1


def test_a_redrive_leaves_what_was_purged_among_the_dead(stage: Stage, queue: Queue) -> None:
    queue.bury(queue.put("purged"))
    stage.clock.advance(1)
    queue.dead.purge()
    stage.clock.advance(1)
    queue.bury(queue.put("live"))
    assert queue.redrive() == 1
    assert [message.text for message in queue.peek()] == ["live"]


def test_a_redrive_of_the_dead_letter_queue_says_whose_is_meant(queue: Queue) -> None:
    queue.bury(queue.put("x"))
    with pytest.raises(UsageError, match="of 'mail', whose redrive"):
        queue.dead.redrive()
    assert queue.redrive() == 1


def test_a_redrive_puts_back_what_it_is_asked_for_alone(stage: Stage, queue: Queue) -> None:
    for n in range(6):
        queue.bury(queue.put(f"{n}", id=f"id-{n}"), "odd" if n % 2 else "even")
        stage.clock.advance(1)
    assert queue.redrive(where=lambda message: message.id in {"id-4", "id-2", "none"}) == 2
    assert sorted(message.id for message in queue.peek()) == ["id-2", "id-4"]
    asked: list[str] = []

    def is_odd(message: Message) -> bool:
        asked.append(message.id)
        return message.headers["shardq-reason"] == "odd"

    assert queue.redrive(2, where=is_odd) == 2
    assert asked == ["id-0", "id-1", "id-3"]
    assert [message.id for message in queue.dead.peek()] == ["id-0", "id-5"]
    totals = queue.totals()
    assert (totals.put, queue.dead.totals().forwarded) == (6 + 4, 4)


def test_a_redrive_counts_what_was_put_back_before_its_choice_failed(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    for n in range(30):
        queue.bury(queue.put(f"{n}"))
        stage.clock.advance(400)

    def choose(message: Message) -> bool:
        return 1 // (int(message.text) - 25) != 5

    with pytest.raises(ZeroDivisionError):
        queue.redrive(where=choose)
    back = len(queue.peek(100))
    assert 0 < back < 30
    assert queue.totals().put == 30 + back
    assert len(queue.dead.peek(100)) == 30 - back


def test_one_dead_message_is_deleted_by_cancelling_it_among_the_dead(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for n in range(3):
        queue.bury(queue.put(f"{n}", id=f"id-{n}"))
    stage.clock.advance(1)
    found = queue.dead.find("id-1")
    assert found is not None
    with pytest.raises(BadReceipt, match=r"message id-1 is one of queue 'mail\.dead', not"):
        queue.cancel(found)
    assert queue.dead.cancel(found)
    assert not queue.dead.cancel(found)
    assert {message.id for message in queue.dead.peek()} == {"id-0", "id-2"}
    assert queue.dead.totals().cancelled == 1
    assert [record.fate for record in queue.dead.history("id-1")] == ["cancelled"]
    assert queue.dead.audit().is_even


def test_what_could_not_be_buried_before_its_time_was_up_is_another_s(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("a")
    [message] = queue.receive(wait="1s", visibility="5s")
    # Its dead-letter queue is made only now, which takes long.
    stage.faults.call("write_records queues", lambda: stage.clock.advance(6))
    with pytest.raises(StaleReceipt, match="time is up"):
        queue.bury(message)
    assert queue.dead.peek() == []
    assert [message.text for message in queue.receive(wait="1s")] == ["a"]


@pytest.mark.parametrize("verb", ["ack", "retry", "snooze", "extend", "bury"])
def test_a_stale_or_foreign_receipt_settles_nothing(stage: Stage, verb: str) -> None:
    queue, message = received(stage)
    db = stage.connect()
    foreign = db.queue("sms").put("b")

    def settle(delivery: object) -> None:
        getattr(queue, verb)(delivery, *(["5s"] if verb in ("snooze", "extend") else []))

    for bad in (foreign, foreign.receipt, message.receipt[:-1], "x", None):
        with pytest.raises(BadReceipt):
            settle(bad)
    queue.ack(message)
    for stale in (message, message.receipt):
        with pytest.raises(StaleReceipt):
            settle(stale)
    assert stage.is_empty(queue)
    assert not stage.is_empty(db.queue("sms"))
    assert queue.dead.peek() == []


@pytest.mark.parametrize("verb", ["ack", "retry", "snooze", "extend", "bury", "cancel"])
def test_an_id_in_place_of_a_receipt_is_said_to_be_none(queue: Queue, verb: str) -> None:
    sent = queue.put("a")
    for given in ("order-7", sent.id, "", "🎈"):
        with pytest.raises(BadReceipt, match=r"is no receipt; .*a message's id or key, find\(id\)"):
            getattr(queue, verb)(given, *(["5s"] if verb in ("snooze", "extend") else []))
    with pytest.raises(BadReceipt, match=r"a message or its receipt is needed, not bytes; pass"):
        getattr(queue, verb)(b"order-7", *(["5s"] if verb in ("snooze", "extend") else []))
    with pytest.raises(BadReceipt, match="damaged: it has 79 characters, not 80"):
        getattr(queue, verb)(sent.receipt[:-1], *(["5s"] if verb in ("snooze", "extend") else []))
    assert queue.cancel(sent)


def test_what_is_looked_at_shows_its_deliveries_and_keeps_them_when_it_is_settled(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", attempts=9)
    queue.put("a", id="me")
    assert [message.attempt for message in queue.peek()] == [0]
    for attempt in (1, 2):
        [message] = queue.receive(wait="1m")
        queue.retry(message, "5s")
        [peeked] = queue.peek()
        found = queue.find("me")
        assert peeked.attempt == found.attempt == attempt
        # The same by a token and by a message: neither is a delivery that could be given back.
        queue.snooze(peeked, "5s")
        queue.snooze(queue.peek()[0].receipt, "5s")
        assert [one.attempt for one in queue.peek()] == [attempt]
    queue.ack(queue.peek()[0])
    [record] = queue.history("me")
    assert (record.fate, record.attempt) == ("acked", 2)


def test_what_was_delivered_cannot_be_cancelled(stage: Stage, queue: Queue) -> None:
    message = queue.put("a")
    stage.drain(queue, Consumer(queue, lambda _: None))
    assert not queue.cancel(message)


# Looking ------------------------------------------------------------------------------------------


def test_peek_shows_what_is_due_first_near_and_far_and_takes_nothing(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=2)
    for delay in ("400d", "1m", "3h", "0s", "20d"):
        queue.put(delay, delay=delay, priority=len(delay) % 2)
    for _ in range(2):
        texts = [message.text for message in queue.peek(10)]
        assert texts == ["0s", "1m", "3h", "20d", "400d"]
    assert [message.text for message in queue.peek(2)] == ["0s", "1m"]


def test_depth_counts_what_a_consumer_has_in_hand_as_in_flight(stage: Stage, queue: Queue) -> None:
    queue.put_many(["x"] * 4)
    stage.clock.advance(0.01)

    def handle(_message: Message) -> None:
        stage.clock.advance(4)
        consumer._engine.step()
        depths.append((queue.depth().in_flight, queue.depth(exact=True).total))

    depths: list[tuple[int, int]] = []
    consumer = Consumer(stage.connect().queue("mail"), handle)
    stage.drain(queue, consumer)
    assert depths[0] == (1, 4)


def test_a_forecast_has_every_minute_with_its_messages(stage: Stage, queue: Queue) -> None:
    for delay in ("0s", "30s", "90s", "5m", "2h"):
        queue.put(delay, delay=delay)
    stage.clock.advance(1)
    told = queue.forecast("10m")
    assert len(told) == 11
    starts = [moment.timestamp() for moment, _ in told]
    assert starts == [starts[0] + 60 * n for n in range(11)]
    assert [count for _, count in told] == [1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert sum(count for _, count in queue.forecast("3h")) == 4


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda queue: queue.peek(0), BadSetting),
        (lambda queue: queue.peek(10_001), BadSetting),
        (lambda queue: queue.peek("5"), BadSetting),
        (lambda queue: queue.forecast("2d"), BadTime),
        (lambda queue: queue.forecast("-1s"), BadTime),
        (lambda queue: queue.alter(colour=1), BadSetting),
        (lambda queue: queue.alter(minute="1h"), BadSetting),
        (lambda queue: queue.alter(lanes=1_000), BadSetting),
        (lambda queue: queue.extend(queue.put("a"), "-1s"), BadTime),
        (lambda queue: queue.snooze(queue.put("a"), "-5s"), BadTime),
    ],
)
def test_bad_input_is_refused(stage: Stage, call, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(stage.connect().queue("mail"))


# Steering -----------------------------------------------------------------------------------------


def test_settings_are_followed_by_other_processes_within_5_s(stage: Stage) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    queue.alter(lanes=8, attempts=9, hold="9s")
    assert (queue.settings.lanes_written, queue.settings.attempts) == (8, 9)
    stage.clock.advance(5)
    other.put("x")
    assert other.settings == queue.settings


def test_two_that_alter_at_once_lose_nothing_of_each_other(stage: Stage) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    stage.faults.call("write_records queues", lambda: other.alter(attempts=9), after=False)
    queue.alter(hold="7s")
    assert (queue.settings.attempts, queue.settings.hold_ms) == (9, 7_000)


def test_a_purge_leaves_what_is_put_after_it(stage: Stage, queue: Queue) -> None:
    queue.put("old")
    queue.put("old and far", delay="20m")
    stage.clock.advance(0.001)
    queue.purge()
    stage.clock.advance(0.001)
    queue.put("new")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer, within="1h", stride=2.0)
    consumer.close()
    assert seen.texts == ["new"]
    assert queue.totals().purged == 2


@pytest.mark.parametrize("delay", ["0s", "2h"])
def test_a_look_at_the_first_messages_reads_past_all_that_a_purge_has_reached(
    world: World, delay: str
) -> None:
    queue = world.connect().queue(world.queue_name(), lanes=1)
    queue.put_many([{"body": f"{n}", "delay": delay} for n in range(30)])
    world.pass_time(0.01)
    queue.purge()
    world.pass_time(0.01)
    for n in range(3):
        queue.put(f"new {n}", delay=delay)
        world.pass_time(0.01)
    assert [message.text for message in queue.peek(2)] == ["new 0", "new 1"]
    assert [message.text for message in queue.peek()] == ["new 0", "new 1", "new 2"]


def test_a_purge_of_the_dead_deletes_them_at_once_and_shows_who_dies_later(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    for n in range(12):
        queue.bury(queue.put(f"{n}"))
    world.pass_time(0.01)
    queue.dead.purge()
    world.pass_time(0.01)
    assert list(queue.dead._rows()) == []
    assert queue.dead.totals().purged == 12
    queue.bury(queue.put("late"))
    assert [message.text for message in queue.dead.peek()] == ["late"]


def test_a_forecast_leaves_out_what_is_purged(stage: Stage, queue: Queue) -> None:
    queue.put_many([{"body": "x", "delay": "5m"} for _ in range(3)])
    stage.clock.advance(1)
    queue.purge()
    queue.put("new", delay="5m")
    assert sum(count for _, count in queue.forecast("10m")) == 1


def test_what_was_retried_before_a_purge_is_purged_and_what_was_redriven_after_it_is_not(
    stage: Stage,
    queue: Queue,
) -> None:
    queue.put_many(["retried", "buried"])
    stage.clock.advance(0.01)
    for message in queue.receive(wait="1s"):
        if message.text == "retried":
            queue.retry(message, "10s")
        else:
            queue.bury(message)
    stage.clock.advance(1)
    queue.purge()
    stage.clock.advance(1)
    queue.redrive()
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == ["buried"]


def test_a_dropped_queue_is_off_the_list_and_takes_nothing(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("mail")
    other = stage.connect().queue("mail")
    queue.put("old")
    stage.clock.advance(1)
    queue.drop()
    assert db.queues() == []
    with pytest.raises(UnknownQueue):
        db.queue("mail", create=False)
    stage.clock.advance(5)
    for late in (queue, other):
        with pytest.raises(UnknownQueue):
            late.put("x")
        with pytest.raises(UnknownQueue):
            late.receive()


def test_a_receive_without_a_wait_finds_what_is_put_into_a_queue_made_again(stage: Stage) -> None:
    db = stage.connect()
    for number in range(5):
        queue = db.queue("mail")
        queue.put(f"{number}")
        stage.clock.advance(0.002)
        assert [message.text for message in queue.receive()] == [f"{number}"]
        queue.drop()


def test_check_all_moves_to_now_what_lies_behind_a_seal(stage: Stage, queue: Queue) -> None:
    hidden = queue.put("hidden")
    queue.put("far", delay="10d")
    stage._store.note(LANES, ("mail",), dict.fromkeys(range(24), hidden._row.shard.minute))
    stage.clock.advance(600)
    visited: list[int] = []
    check = queue.check_all(visited.append)
    assert (check.shards, check.rows, check.moved) == (2, 2, 1)
    assert visited == [1, 2]
    assert queue.peek(1)[0].due_ms == stage.clock.now_ms()
    assert queue.check_all().moved == 0


def test_the_dead_letter_queue_is_one_object_whose_counts_are_stored(queue: Queue) -> None:
    assert queue.dead is queue.dead
    assert queue.dead.name == "mail.dead"
    queue.bury(queue.put("a"))
    queue.dead.ack(queue.dead.peek()[0])
    assert queue.dead.totals().acked == 1


def test_a_dead_letter_queue_has_none_of_its_own(queue: Queue) -> None:
    with pytest.raises(UsageError):
        queue.dead.bury(queue.dead.put("x"))


def test_who_only_peeked_at_a_message_takes_no_attempt_back(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=3)
    queue.put("a")
    queue.receive(wait="1s")
    for delivered in (2, 3):
        settle = queue.retry if delivered == 2 else queue.snooze
        [peeked] = queue.peek()
        settle(peeked, "0s")
        [message] = queue.receive(wait="1s")
        assert message.attempt == delivered
    [peeked] = queue.peek()
    queue.retry(peeked)
    assert [dead.headers["shardq-attempts"] for dead in queue.dead.peek()] == ["3"]


@pytest.mark.parametrize("limit", [0, -1, True, "1"])
def test_a_redrive_of_less_than_one_is_refused(stage: Stage, limit: Any) -> None:
    with pytest.raises(BadSetting, match="limit must be 1 or more"):
        stage.connect().queue("mail").redrive(limit)


def test_a_dead_letter_queue_that_was_altered_still_takes_the_dead(stage: Stage) -> None:
    stage.connect().queue("made.dead", lanes=3)
    stage.connect().queue("mail").dead.alter(lanes=2)
    for name in ("made", "mail"):
        queue = stage.connect().queue(name)
        queue.bury(queue.put("a"))
        assert [dead.text for dead in queue.dead.peek()] == ["a"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda queue: queue.put("x", headers="a=b"), BadBody),
        (lambda queue: queue.put("x", headers=[("a", "b")]), BadBody),
        (lambda queue: queue.put("x", priority=10**5_000), BadSetting),
        (lambda queue: queue.receive(10**5_000), BadSetting),
        (lambda queue: queue.alter(lanes=10**5_000), BadSetting),
        (lambda queue: queue.alter(history=10**5_000), BadTime),
        (lambda queue: queue.history(5), BadName),
        (lambda queue: queue.history(b"order-7"), BadName),
        (lambda queue: queue.history(""), BadName),
        (lambda queue: queue.history(since=5), BadTime),
        (lambda queue: queue.put_many("letters"), UsageError),
        (lambda queue: queue.put_many({"body": "x"}), UsageError),
        (lambda queue: queue.put_many(None), UsageError),
        (lambda queue: queue.bury(queue.put("x", delay="1h"), 5), UsageError),
        (lambda queue: queue.put("x", due="now"), BadTime),
        (lambda queue: queue.put("x", due="8:"), BadTime),
        (lambda queue: Consumer(queue, print, threads="4"), BadSetting),
    ],
)
def test_what_is_of_a_wrong_type_or_size_is_refused_by_an_error_of_ours(
    stage: Stage, call: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        call(stage.connect().queue("mail"))
    assert len(str(caught.value)) < 400
