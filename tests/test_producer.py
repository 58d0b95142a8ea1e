"""Putting messages: where they land, and what a late or failing write costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby

import pytest

from shardq import Consumer, Queue
from shardq.errors import (
    BadBody,
    BadName,
    BadSetting,
    BadTime,
    StoreTimeout,
    StoreUnavailable,
    UsageError,
)
from shardq.model.ids import birth_us
from shardq.model.shard import Shard
from shardq.model.times import moment_of
from shardq.testing import Recorder, Stage


def test_a_message_lies_in_the_shard_of_its_due(stage: Stage, queue: Queue) -> None:
    now_ms = stage.clock.now_ms()
    for options, due_ms in (
        ({}, now_ms),
        ({"delay": "90s"}, now_ms + 90_000),
        ({"delay": timedelta(hours=3)}, now_ms + 10_800_000),
        ({"due": moment_of(now_ms + 5_000)}, now_ms + 5_000),
        ({"due": moment_of(now_ms + 7_000).isoformat()}, now_ms + 7_000),
    ):
        message = queue.put("x", **options)
        assert message.due_ms == due_ms
        assert message._row.shard.minute == due_ms // 60_000
        assert stage._store.find([message._row.position]) == [message._row]


def test_nothing_is_placed_in_the_past_and_the_asked_due_is_kept(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    asked = moment_of(stage.clock.now_ms() - 3_600_000)
    message = queue.put("x", due=asked)
    assert message.due_ms == stage.clock.now_ms()
    assert message.first_due == asked


def test_a_due_is_rounded_up_to_the_millisecond(stage: Stage, queue: Queue) -> None:
    stage.clock.advance(0.000001)
    now_us = stage.clock.now_us()
    assert queue.put("x").due_ms == now_us // 1_000 + 1
    queue.put_many([b"y"])
    assert {message.due_ms for message in queue.peek()} == {now_us // 1_000 + 1}


def test_the_birth_of_a_row_is_the_moment_of_its_writing(stage: Stage, queue: Queue) -> None:
    now_us = stage.clock.now_us()
    message = queue.put("x", delay="300d")
    assert now_us <= birth_us(message._row.id) < now_us + 1_000


def test_equal_groups_and_priorities_share_a_lane_and_bands_are_kept_apart(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=3, lanes=8)
    lanes = {queue.put("x", group="g", delay=f"{n}m", priority=1)._row.shard.lane for n in range(9)}
    assert len(lanes) == 1
    for priority in range(3):
        assert queue.put("x", priority=priority)._row.shard.lane % 3 == priority


def test_a_batch_goes_to_every_lane_in_pieces_that_grow_to_a_hundred(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4)
    assert queue.put_many(f"{n}" for n in range(1_250)) == 1_250
    lanes = [message._row.shard.lane for message in queue.peek(2_000)]
    pieces = [len(list(piece)) for _, piece in groupby(lanes)]
    assert pieces == [10] * 4 + [20] * 4 + [40] * 4 + [80] * 4 + [100] * 6 + [50]
    rounds = [lanes[start] for start in (0, 10, 20, 30)]
    assert len(set(rounds)) == 4


@pytest.mark.parametrize("delays", [["0s"], ["0s", "1h"], ["0s", "0s", "1h", "2h"]])
def test_single_puts_go_round_the_lanes_of_their_minute_one_by_one(
    queue: Queue, delays: list[str]
) -> None:
    rows: Counter[Shard] = Counter()
    for _ in range(16):
        for delay in delays:
            for priority in range(3):
                message = queue.put("x", delay=delay, priority=priority)
                rows[message._row.shard] += 1
    assert len(rows) == len(set(delays)) * 3 * 8
    assert all(count == 2 * delays.count("0s") or count == 2 for count in rows.values())


def test_the_first_put_to_a_priority_tells_consumers_of_it_and_no_other_costs_more(
    stage: Stage,
    queue: Queue,
) -> None:
    assert queue.settings.bands_used == 1
    queue.put("x")
    queue.put("x", priority=1)
    assert queue.settings.bands_used == 2
    version = queue._home.register.version
    queue.put_many([{"body": "x", "priority": priority} for priority in (0, 1)])
    assert queue._home.register.version == version
    queue.put_many([{"body": "x", "priority": 2}])
    assert stage.connect().queue("mail").settings.bands_used == 3


def test_a_failed_put_to_a_new_priority_stores_nothing_and_is_put_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stage.faults.fail("write_records queues")
    with pytest.raises(StoreUnavailable):
        queue.put("x", priority=1)
    assert queue.depth(exact=True).total == 0
    queue.put("x", priority=1)
    assert queue.depth(exact=True).total == 1


def test_calls_that_put_little_use_every_lane_too(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4)
    for _ in range(8):
        queue.put_many(["a", "b"])
    rows = Counter(message._row.shard.lane for message in queue.peek(100))
    assert rows == dict.fromkeys(range(0, 12, 3), 4)


def test_put_many_takes_bodies_mappings_and_nothing_at_all(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=2)
    given = [
        b"bytes",
        "text",
        {"body": "a", "delay": "1m", "priority": 1, "headers": {"k": "v"}, "id": "me"},
        {"body": b"b", "group": "g"},
    ]
    assert queue.put_many(given) == 4
    assert queue.put_many([]) == 0
    found = {message.text: message for message in queue.peek(10)}
    assert set(found) == {"bytes", "text", "a", "b"}
    assert (found["a"].id, found["a"].headers, found["a"].priority) == ("me", {"k": "v"}, 1)
    assert found["b"]._row.shard.lane == queue._home.register.layout.group_lane("g")


def test_put_many_streams_what_it_is_given(queue: Queue) -> None:

    def endless_for_now() -> Iterator[bytes]:
        for n in range(50_000):
            if n == 45_000:
                # The first chunks are stored by now, though the iterable has not ended.
                assert len(queue.peek(10)) == 10
            yield b"x"

    assert queue.put_many(endless_for_now()) == 50_000


def test_put_many_stores_what_came_before_a_bad_item_and_says_how_many(queue: Queue) -> None:
    items = [*(f"{n}" for n in range(250)), {"body": "x", "delay": "-1s"}, "never"]
    with pytest.raises(BadTime) as caught:
        queue.put_many(items)
    assert any("250" in note for note in caught.value.__notes__)
    assert sorted(int(message.text) for message in queue.peek(1_000)) == list(range(250))


@pytest.mark.parametrize(("bands", "said"), [(1, "0, the only one in"), (3, "0 to 2 in")])
def test_a_priority_that_a_queue_has_not_is_told_those_it_has(
    stage: Stage, bands: int, said: str
) -> None:
    queue = stage.connect().queue("mail", bands=bands)
    with pytest.raises(BadSetting, match=f"^priority must be {said} queue 'mail', not 3"):
        queue.put("x", priority=3)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delay": "-1s"}, BadTime),
        ({"delay": timedelta.max}, BadTime),
        ({"delay": 5}, BadTime),
        ({"due": datetime(2030, 1, 1)}, BadTime),  # noqa: DTZ001 - naive on purpose
        ({"due": "2030-01-01T00:00:00"}, BadTime),
        ({"due": datetime(2999, 1, 1, tzinfo=UTC)}, BadTime),
        ({"due": datetime(2030, 1, 1, tzinfo=UTC), "delay": "1s"}, BadTime),
        ({"priority": 3}, BadSetting),
        ({"priority": -1}, BadSetting),
        ({"priority": True}, BadSetting),
        ({"group": ""}, BadName),
        ({"group": "a\n"}, BadName),
        ({"id": "x" * 300}, BadName),
        ({"headers": {"a": 1}}, BadBody),
        ({"headers": {"shardq-x": "1"}}, BadBody),
        ({"body": None}, BadBody),
        ({"body": bytes((1 << 20) + 1)}, BadBody),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    stage: Stage, queue: Queue, options: dict, error: type[Exception]
) -> None:
    given = {"body": "x", **options}
    with pytest.raises(error):
        queue.put(**given)
    with pytest.raises(error):
        queue.put_many([given])
    assert stage.is_empty(queue)


@pytest.mark.parametrize(
    "item", [5, None, ["x"], {}, {"body": "x", "dleay": "1s"}, {"delay": "1s"}]
)
def test_put_many_refuses_what_it_does_not_understand(queue: Queue, item: object) -> None:
    with pytest.raises(UsageError):
        queue.put_many([item])


@pytest.mark.parametrize("applied", [False, True])
def test_the_message_of_a_timeout_put_again_repeats_the_very_same_write(
    stage: Stage, queue: Queue, applied: bool
) -> None:
    stage.faults.fail("insert", times=2, applied=applied, error=StoreTimeout("lost"))
    with pytest.raises(StoreTimeout) as caught:
        queue.put("a", delay="1s", headers={"k": "v"})
    [message] = caught.value.messages
    again = queue.put(message)
    assert again._row == message._row
    assert queue.put_many(caught.value.messages) == 1
    assert [found._row for found in queue.peek()] == [message._row]


@pytest.mark.parametrize("applied", [False, True])
def test_put_many_after_a_timeout_can_be_repeated_without_a_duplicate(
    stage: Stage, queue: Queue, applied: bool
) -> None:
    stage.faults.fail("insert", applied=applied, error=StoreTimeout("lost"))
    items = iter([f"{n}" for n in range(300)])
    with pytest.raises(StoreTimeout) as caught:
        queue.put_many(items)
    queue.put_many(caught.value.messages)
    queue.put_many(items)
    texts = sorted(int(message.text) for message in queue.peek(1_000))
    assert texts == list(range(300))


def test_a_message_of_another_queue_is_not_put_again(stage: Stage) -> None:
    db = stage.connect()
    message = db.queue("mail").put("x")
    with pytest.raises(UsageError, match="sms"):
        db.queue("sms").put(message)


def test_a_put_that_was_not_stored_is_not_counted(stage: Stage, queue: Queue) -> None:
    stage.faults.fail("insert")
    with pytest.raises(StoreUnavailable):
        queue.put("x")
    assert queue.totals().put == 0


def test_a_write_that_arrives_late_is_moved_to_now_before_success_is_reported(
    stage: Stage,
    queue: Queue,
) -> None:
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=1)
    # The insert hangs for four minutes, while its shard is read and sealed, and then arrives.
    stage.faults.call("insert", lambda: stage.drive(consumer, seconds=240, stride=0.5), after=False)
    queue.put("late")
    [row] = [message._row for message in queue.peek()]
    assert row.due_ms >= stage.clock.now_ms() - 1_000
    assert queue.totals().late_repaired == 1
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["late"]
    assert stage.is_empty(queue)


def test_a_late_write_that_was_delivered_meanwhile_is_not_written_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=1)
    # Only its answer hangs: the row was there at once.
    stage.faults.call("insert", lambda: stage.drive(consumer, seconds=240, stride=0.5))
    queue.put("a")
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["a"]
    assert stage.is_empty(queue)
    assert queue.totals().late_repaired == 0


def test_a_late_write_whose_repair_is_refused_is_maybe_stored_and_put_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s")
    stage.faults.call("insert", lambda: stage.clock.advance(10))
    stage.faults.fail("find", times=2)
    with pytest.raises(StoreTimeout) as caught:
        queue.put("late")
    queue.put(caught.value.messages[0])
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == ["late"]


def test_of_many_writes_the_late_ones_are_moved_to_now(stage: Stage, queue: Queue) -> None:
    stage.faults.call("insert", lambda: stage.clock.advance(200))
    queue.put_many(["late", {"body": "far", "delay": "1h"}])
    late, far = queue.peek()
    assert (late.text, far.text) == ("late", "far")
    assert late.due_ms == stage.clock.now_ms()
    assert far.due_ms == stage.clock.now_ms() + 3_400_000
    assert queue.totals().late_repaired == 1


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_late_write_whose_repair_is_late_too_is_repaired_again(
    stage: Stage, *, is_answered: bool
) -> None:
    queue = stage.connect().queue("mail")

    def late_too() -> None:
        stage.clock.advance(200)
        if not is_answered:
            raise StoreTimeout("no answer")

    stage.faults.call("insert", lambda: stage.clock.advance(200))
    stage.faults.call("move", late_too)
    queue.put("late")
    [row] = [message._row for message in queue.peek()]
    assert row.due_ms >= stage.clock.now_ms() - 1_000


def test_a_repair_of_which_nobody_knows_goes_on_where_it_is_put_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stage.faults.call("insert", lambda: stage.clock.advance(200))
    stage.faults.fail("move", times=14, applied=True)
    with pytest.raises(StoreTimeout) as caught:
        queue.put("late")
    stage.clock.advance(200)
    message = queue.put(caught.value.messages[0])
    [row] = [message._row for message in queue.peek()]
    assert row.due_ms >= stage.clock.now_ms() - 1_000
    assert message._row == row


def test_a_write_in_time_is_not_looked_up(stage: Stage, queue: Queue) -> None:
    stage.faults.call("insert", lambda: stage.clock.advance(100))
    queue.put("a")
    queue.put_many(["b"] * 50)
    assert "find" not in stage.faults.calls
    assert "take" not in stage.faults.calls


def test_what_put_returns_can_cancel_it_even_after_its_repair(stage: Stage, queue: Queue) -> None:
    stage.faults.call("insert", lambda: stage.clock.advance(200))
    message = queue.put("late")
    assert queue.cancel(message)
    assert stage.is_empty(queue)


def test_what_put_many_has_stored_is_not_reported_as_not_stored(stage: Stage, queue: Queue) -> None:

    def slowly() -> Iterator[bytes]:
        yield b"first"
        # After this the settings are stale, and cannot be read.
        stage.clock.advance(4)
        stage.faults.fail("records queues")
        yield b"second"

    assert queue.put_many(slowly()) == 2
    assert sorted(found.text for found in queue.peek()) == ["first", "second"]


def test_put_many_gives_the_ids_in_order_where_they_are_asked_for(queue: Queue) -> None:
    items = [{"body": f"{n}", "id": f"id-{n}"} if n % 2 else f"{n}" for n in range(20_003)]
    ids = queue.put_many(iter(items), ids=True)
    rows = {row.message_id: row.body.decode() for page in queue._rows() for row in page}
    assert [rows[one] for one in ids] == [f"{n}" for n in range(20_003)]
    assert queue.put_many([], ids=True) == []
    assert queue.put_many(["a"], ids=False) == 1
