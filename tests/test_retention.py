"""Messages too old to be delivered, and those that are due later by the delay of their queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Consumer
from shardq.errors import BadTime
from shardq.lifecycle.keyed import Answer

if TYPE_CHECKING:
    from shardq import Message, Queue
    from shardq.testing import Stage


def texts(queue: Queue) -> list[str]:
    return [message.text for message in queue.peek(100)]


def run(stage: Stage, queue: Queue) -> list[str]:
    """What a consumer is given in a second."""
    seen: list[str] = []

    def handle(message: Message) -> None:
        seen.append(message.text)

    consumer = Consumer(queue, handle)
    stage.drive(consumer, seconds=1)
    consumer.close()
    return seen


# Retention ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("is_pulled", [False, True])
def test_what_is_older_than_the_retention_ends_as_expired(
    stage: Stage, *, is_pulled: bool, is_grouped: bool
) -> None:
    queue = stage.connect().queue("mail", retention="1m", history="1d")
    group = "g" if is_grouped else None
    queue.put("old", id="old", group=group, key="k")
    queue.put("young", group=group, delay="50s")
    stage.clock.advance(61)
    given = [m.text for m in queue.receive(wait="1s")] if is_pulled else run(stage, queue)
    assert given == ["young"]
    assert queue.get("k") is None
    [record] = queue.history("old")
    assert (record.fate, record.attempt) == ("expired", 0)
    stage.clock.advance(2)
    totals = queue.totals()
    assert (totals.expired, totals.cancelled, totals.buried) == (1, 0, 0)
    assert queue.audit().is_even
    assert queue.audit().total.expired == 1


def test_retention_counts_from_the_later_of_entry_and_first_due(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("mail", retention="1m")
    queue.put("due in an hour", delay="1h")
    queue.put("due an hour ago", due="2020-01-01T00:00:00Z")
    stage.clock.advance(59)
    assert run(stage, queue) == ["due an hour ago"]
    stage.clock.advance(3_600 - 2)
    assert run(stage, queue) == ["due in an hour"]


def test_retries_do_not_make_a_message_younger_and_another_queue_does(stage: Stage) -> None:
    db = stage.connect()
    queue, to = db.queue("mail", retention="1m"), db.queue("to", retention="1m")
    queue.put_many(["a", "b"])
    stage.clock.advance(30)
    one, other = queue.receive(wait="1s")
    queue.retry(one, "40s")
    queue.forward(other, to=to)
    stage.clock.advance(45)
    assert run(stage, queue) == []
    assert queue.totals().expired == 1
    assert run(stage, to) == [other.text]


@on_each_store
def test_what_nobody_reads_is_ended_by_a_full_check(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), retention="1s", history="1d")
    queue.put("old", key="k")
    queue.put("later", delay="1h")
    world.pass_time(2)
    assert queue.depth().total == 2
    check = queue.check_all()
    assert (check.expired, check.mended) == (1, 0)
    assert texts(queue) == ["later"]
    assert queue.get("k") is None
    assert (queue.totals().expired, queue.totals().present) == (1, 1)
    assert queue.audit().is_even


def test_a_full_check_leaves_what_a_caller_has(stage: Stage) -> None:
    queue = stage.connect().queue("mail", retention="1s")
    queue.put("a")
    [message] = queue.receive(wait="1s", visibility="1m")
    stage.clock.advance(10)
    assert queue.check_all().expired == 0
    queue.ack(message)
    assert (queue.totals().acked, queue.totals().expired) == (1, 0)


def test_dead_letters_have_a_retention_of_their_own(stage: Stage) -> None:
    queue = stage.connect().queue("mail", retention="1m")
    queue.bury(queue.put("a", expires="1m"))
    stage.clock.advance(3_600)
    queue.dead.check_all()
    assert texts(queue.dead) == ["a"]
    queue.dead.alter(retention="1h")
    stage.clock.advance(1)
    assert queue.dead.check_all().expired == 1
    assert texts(queue.dead) == []


# Expiry -------------------------------------------------------------------------------------------


def test_a_message_that_expires_is_delivered_until_then_and_no_later(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="1d")
    queue.put("a", id="a", expires="1m", delay="10s", headers={"x": "y"})
    queue.put_many([{"body": "b", "id": "b", "expires": "1m"}, "c"])
    queue.put("d", id="d", key="d", expires="1m")
    stage.clock.advance(65)
    message, other = queue.receive(wait="1s")
    assert sorted([message.text, other.text]) == ["a", "c"]
    first = message if message.text == "a" else other
    assert first.headers == {"x": "y", "shardq-expires": "60000"}
    queue.retry(first, "10s")
    stage.clock.advance(11)
    assert queue.receive(wait="1s") == []
    fates = {record.id: record.fate for record in queue.history()}
    assert {name: fates[name] for name in "abd"} == dict.fromkeys("abd", "expired")
    stage.clock.advance(2)
    assert queue.audit().is_even
    assert queue.totals().expired == 3


def test_expiry_goes_along_with_a_forward_and_an_edit_and_ends_with_a_death(stage: Stage) -> None:
    db = stage.connect()
    queue, to = db.queue("mail"), db.queue("to")
    queue.put("a", key="a", expires="1m")
    assert queue.edit("a", headers={"x": "y"}) is Answer.DONE
    assert queue.forward(to=to, limit=1) == 1
    queue.bury(queue.put("b", expires="1m"))
    stage.clock.advance(61)
    assert run(stage, to) == []
    assert to.totals().expired == 1
    assert queue.redrive() == 1
    assert run(stage, queue) == ["b"]


def test_an_expiry_that_is_no_duration_is_refused(queue: Queue) -> None:
    with pytest.raises(BadTime, match="expires"):
        queue.put("a", expires="soon")
    with pytest.raises(BadTime, match="retention must be between 1s and 1825d, or 'off'"):
        queue.alter(retention="soon")
    queue.alter(retention="1m")
    queue.alter(retention="off")
    assert queue.settings.retention_ms == 0


# Delay --------------------------------------------------------------------------------------------


def test_a_put_without_a_time_waits_for_the_delay_of_its_queue(stage: Stage) -> None:
    queue = stage.connect().queue("mail", delay="10s")
    queue.put("one")
    queue.put("group", group="g")
    queue.put("key", key="k")
    queue.put_many(["many", {"body": "item"}])
    queue.put("now", delay="0s")
    queue.put("past", due="2020-01-01T00:00:00Z")
    stage.clock.advance(0.1)
    assert sorted(run(stage, queue)) == ["now", "past"]
    stage.clock.advance(9)
    assert sorted(run(stage, queue)) == ["group", "item", "key", "many", "one"]
    queue.alter(delay="0s")
    queue.put("now")
    assert run(stage, queue) == ["now"]
