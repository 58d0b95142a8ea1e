"""Groups, through the face: one at a time, in order of first due, whatever becomes of each."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
from reading import write

from shardq import Answer, Bury, Consumer, Message, Queue, Retry, Snooze
from shardq.engine.handing.delivery import Delivery
from shardq.engine.handing.outcome import ACKED
from shardq.errors import StaleReceipt, StoreTimeout, StoreUnavailable
from shardq.model.times import moment_of
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_group_is_delivered_in_the_order_of_its_dues(stage: Stage, queue: Queue) -> None:
    numbers = list(range(200))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        queue.put(f"{number}", group="g", delay=f"{number * 20}ms")
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == [f"{number}" for number in range(200)]


@pytest.mark.parametrize("keys", [(), (0,), (0, 1, 2)], ids=["", "some with keys", "all with keys"])
@pytest.mark.parametrize("delays", [(), ("0s",), ("100ms",)], ids=["", "0 s", "100 ms"])
def test_what_a_slow_iterator_gives_is_delivered_in_its_order(
    stage: Stage, queue: Queue, keys: tuple[int, ...], delays: tuple[str, ...]
) -> None:
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    queue.put("first", group="g")
    stage.drive(consumer, seconds=2)

    def slow() -> Iterator[dict[str, str]]:
        for number, seconds in enumerate([0.01] * 150 + [0.9, 0.05, 7.0, 0.01, 0.6, 0.6]):
            stage.drive(consumer, seconds=seconds)
            item = {"body": f"{number}", "group": "g"}
            if number % 3 in keys:
                item["key"] = f"{number}"
            if delays and (len(delays[0]) > 2 or number % 2):
                item["delay"] = delays[0]
            yield item

    queue.put_many(slow())
    stage.drain(queue, consumer)
    assert seen.texts == ["first", *[f"{number}" for number in range(156)]]


def test_timers_of_groups_are_delivered_on_their_milliseconds(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=5)
    dues_us = [
        queue.put(f"{number}", group=f"g{number}", delay=f"{700 + 15 * number}ms")._row.due_ms
        * 1_000
        for number in range(5)
    ]
    stage.drive(consumer, seconds=2)
    late_us = [at_us - due_us for at_us, due_us in zip(seen.at_us, dues_us, strict=True)]
    assert max(late_us) <= 2_000


@pytest.mark.parametrize("nth", range(1, 21))
def test_a_timer_that_comes_due_while_it_is_read_ahead_waits_for_an_earlier_one(
    stage: Stage, nth: int
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    queue.put("first", group="g")
    stage.drive(consumer, seconds=1)

    def put_earlier() -> None:
        write(stage, queue, stage.clock.now_ms() + 30, b"earlier", group="g")
        stage.clock.advance(0.1)

    # One of these reads looks ahead.
    stage.faults.call(
        "read",
        lambda: write(stage, queue, stage.clock.now_ms() + 40, b"later", group="g"),
        nth=nth,
        after=False,
    )
    stage.faults.call("read", put_earlier, nth=nth)
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["first", "earlier", "later"]


def test_a_group_waits_for_a_retry_and_others_do_not(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    for number in range(3):
        queue.put(f"a{number}", group="a")
        queue.put(f"b{number}", group="b")

    def fail(message: Message) -> None:
        if message.text == "a0" and message.attempt == 1:
            raise Retry("5s")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=4)
    assert seen.texts == ["a0", "b0", "b1", "b2"]
    stage.drain(queue, consumer)
    assert seen.texts[4:] == ["a0", "a1", "a2"]


@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_what_is_put_while_the_head_waits_comes_after_it(stage: Stage, kind: type) -> None:
    queue = stage.connect().queue("mail")
    queue.put("head", group="g")

    def fail(_message: Message) -> None:
        if len(seen) == 1:
            raise kind("10m")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=2)
    for number in range(3):
        queue.put(f"{number}", group="g")
        stage.drive(consumer, seconds=90)
    assert seen.texts == ["head"]
    stage.drain(queue, consumer)
    assert seen.texts == ["head", "head", "0", "1", "2"]


def test_a_buried_head_lets_its_group_go_on(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(3))

    def fail(message: Message) -> None:
        if message.text == "0":
            raise Bury("of no use")

    seen = Recorder(stage.clock, fail)
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == ["0", "1", "2"]
    [dead] = queue.dead.peek()
    assert dead.text == "0"


def test_a_group_is_one_whatever_the_priorities_of_its_messages(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=3)
    for number in range(9):
        queue.put(f"{number}", group="g", priority=number % 3)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == [f"{number}" for number in range(9)]


def test_priority_decides_between_heads(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=2)
    for number in range(4):
        queue.put(f"late{number}", group=f"l{number}", priority=1)
        queue.put(f"first{number}", group=f"f{number}", priority=0)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    assert all(text.startswith("first") for text in seen.texts[:4])


def test_callers_of_receive_get_one_of_a_group_at_a_time(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(3))
    [first] = queue.receive(5)
    assert queue.receive(5) == []
    assert queue.ack(first) is None
    [second] = queue.receive(5)
    queue.retry(second, "10s")
    assert queue.receive(5) == []
    stage.clock.advance(10.1)
    [again] = queue.receive(5)
    assert (first.text, second.text, again.text) == ("0", "1", "1")
    queue.ack(again)
    [third] = queue.receive(5)
    assert third.text == "2"


def test_a_claim_that_nobody_settles_comes_again_before_the_next(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(2))
    [first] = queue.receive(visibility="10s")
    stage.clock.advance(9)
    assert queue.receive() == []
    stage.clock.advance(1.2)
    [again] = queue.receive(visibility="10s")
    assert (again.text, again.attempt) == (first.text, 2)


def test_an_ack_by_another_process_lets_the_group_go_on_at_once(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(2))
    other = stage.connect().queue("mail")
    [first] = queue.receive(visibility="1h")
    other.ack(first)
    stage.clock.advance(0.1)
    [second] = queue.receive()
    assert second.text == "1"


def test_an_extended_claim_keeps_its_group(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(2))
    [first] = queue.receive(visibility="5s")
    receipt = stage.connect().queue("mail").extend(first, "1m")
    stage.clock.advance(20)
    assert queue.receive() == []
    queue.ack(receipt)
    [second] = queue.receive()
    assert second.text == "1"


def test_a_cancelled_message_that_waits_is_not_delivered(stage: Stage, queue: Queue) -> None:
    messages = [queue.put(f"{n}", group="g") for n in range(3)]
    [first] = queue.receive(visibility="1h")
    assert stage.connect().queue("mail").cancel(messages[1])
    queue.ack(first)
    [third] = queue.receive()
    assert third.text == "2"


@pytest.mark.parametrize("is_own", [True, False], ids=["own process", "other process"])
@pytest.mark.parametrize("delay", ["1h", "20s"])
def test_a_message_that_is_cancelled_before_it_is_read_leaves_nothing_to_look_at(
    stage: Stage, delay: str, *, is_own: bool
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    far = [queue.put("far", group="far", delay=delay) for _ in range(6)]
    queue.put("first", group="g")
    consumer = Consumer(queue, Recorder(stage.clock))
    stage.drive(consumer, seconds=2)
    other = queue if is_own else stage.connect().queue("mail")
    assert all(other.cancel(one) for one in far[:3])
    stage.drive(consumer, seconds=5)
    assert consumer._engine.outbox.is_empty
    consumer.close()
    queue.receive()
    assert all(other.cancel(one) for one in far[3:])
    stage.clock.advance(1)
    queue.receive()
    engine = queue._receiver._engine
    assert engine is not None
    assert engine.groups.is_idle
    assert stage.is_empty(queue)


def test_a_note_counts_neither_as_purged_nor_as_an_end(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    assert queue.cancel(queue.put("cancelled", group="g"))
    stage.clock.advance(1)
    queue.purge()
    queue.put("last", group="g")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    consumer.close()
    assert seen.texts == ["last"]
    assert queue.totals().purged == 0
    audit = queue.audit()
    assert (audit.total.put, audit.total.purged, audit.misfits) == (2, 0, [])


@pytest.mark.parametrize("seconds", [0, 5])
def test_one_that_is_moved_to_an_earlier_time_comes_first(stage: Stage, seconds: int) -> None:
    queue = stage.connect().queue("mail")
    queue.put("first", group="g", delay="20s")
    second = queue.put("second", group="g", delay="40s")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=1)
    other = stage.connect().queue("mail")
    assert other.move(ids=[second.id], delay=f"{seconds}s") == {second.id: Answer.DONE}
    asked_ms = stage.clock.now_ms() + seconds * 1_000
    [found] = [one for one in other.peek() if one.id == second.id]
    assert found.due == moment_of(asked_ms)
    stage.drive(consumer, seconds=seconds + 1)
    assert seen.texts == ["second"]
    stage.drain(queue, consumer)
    assert seen.texts == ["second", "first"]


def test_a_head_left_in_a_listed_minute_is_found_by_the_next_owner(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s", group_lanes=1)
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(3))

    def fail(_message: Message) -> None:
        raise Retry("1h")

    consumer = Consumer(queue, fail)
    stage.drive(consumer, seconds=30)
    consumer.close()
    stage.clock.advance(3_600)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert seen.texts == ["0", "1", "2"]


def test_a_group_goes_on_in_order_after_its_consumer_has_died(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "group": f"g{n % 5}"} for n in range(100))
    seen = Recorder(stage.clock)
    dying = Consumer(queue, seen)
    for _ in range(3):
        dying.step()
    got = len(seen)
    stage.clock.advance(20)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    for group in range(5):
        numbers = [int(text) for text in seen.texts if int(text) % 5 == group]
        assert sorted(set(numbers)) == list(range(group, 100, 5))
        after = [int(text) for text in seen.texts[got:] if int(text) % 5 == group]
        assert after == sorted(after)


def test_what_runs_for_long_keeps_its_group_and_its_attempt(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="1s", visibility="5s")
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(2))
    consumer = Consumer(queue, lambda _: None)
    engine = consumer._engine
    one = None
    while one is None:
        stage.clock.advance(max(engine.step(), 0.001))
        one = engine.ready.take()
    for _ in range(200):
        stage.clock.advance(max(engine.step(), 0.05))
        assert engine.ready.take() is None
    consumer._deliver(one)
    seen = Recorder(stage.clock)
    consumer.close()
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert seen.texts == ["1"]


def test_more_rows_than_memory_holds_are_delivered_in_order(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.engine.groups.room.ROWS_MAX", 50)
    queue = stage.connect().queue("mail", group_lanes=2)
    rows = [{"body": f"{n}", "group": f"g{n % 7}"} for n in range(1_000)]
    queue.put_many(rows)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    assert len(seen) == 1_000
    for group in range(7):
        numbers = [int(text) for text in seen.texts if int(text) % 7 == group]
        assert numbers == sorted(numbers)


def test_rereading_for_a_group_does_not_look_again_at_what_was_settled_in_its_minute(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.engine.groups.room.ROWS_MAX", 50)
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put_many({"body": f"{n}", "group": "a"} for n in range(1_000))
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=1, until=lambda: len(seen) >= 20)
    stage.faults.calls.clear()
    stage.drive(consumer, seconds=20, until=lambda: len(seen) >= 1_000)
    assert seen.texts == [f"{n}" for n in range(1_000)]
    assert "occupied" not in stage.faults.calls


def test_small_groups_behind_a_large_one_go_on_while_memory_is_full(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.engine.groups.room.ROWS_MAX", 10)
    monkeypatch.setattr("shardq.engine.groups.left._PAGE", 5)
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put_many({"body": "a" * 1_000, "group": "a"} for _ in range(40))
    queue.put_many({"body": f"{n}", "group": "b"} for n in range(10))
    engine = Consumer(queue, Recorder(stage.clock))._engine
    running: list[Delivery] = []
    seen: list[str] = []
    for _ in range(300):
        stage.clock.advance(max(engine.step(), 0.001))
        while (one := engine.ready.take()) is not None:
            if one.row.group == "a":
                running.append(one)
            else:
                seen.append(one.row.body.decode())
                engine.outbox.finish(one, ACKED)
    assert len(running) == 1
    assert seen == [f"{n}" for n in range(10)]


def test_reading_for_one_group_skips_no_row_of_another_with_rows_further_in_front(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.engine.groups.room.ROWS_MAX", 20)
    monkeypatch.setattr("shardq.engine.groups.left._PAGE", 5)
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put_many({"body": f"{n}", "group": "a"} for n in range(5))

    def fail(message: Message) -> None:
        if message.group == "a" and message.text == "0" and message.attempt == 1:
            raise Retry("8s")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=3)
    queue.put_many({"body": f"{n}", "group": "b"} for n in range(200))
    queue.put_many({"body": f"{n}", "group": "a"} for n in range(5, 9))
    stage.drive(consumer, seconds=30)
    texts = [message.text for message in seen.messages if message.group == "a"]
    assert texts == ["0", *(f"{n}" for n in range(9))]


def test_no_message_goes_before_those_that_a_full_page_of_an_older_minute_left_out(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, minute="10s")
    queue.put("first", group="g")
    seen = Recorder(stage.clock)
    # The ordinary lane has room for one row, and so has the page of both lanes.
    consumer = Consumer(queue, seen, prefetch=1)
    stage.drive(consumer, seconds=1)
    stage.clock.advance((19_500 - stage.clock.now_ms() % 10_000) / 1e3)
    stage.drive(consumer, seconds=0.2)
    for number in range(3):
        queue.put(f"{number}", group="g")
        stage.clock.advance(0.01)
    stage.clock.advance(0.5)
    queue.put("next minute", group="g")
    stage.drain(queue, consumer)
    assert seen.texts == ["first", "0", "1", "2", "next minute"]


def test_no_message_goes_before_one_that_came_due_while_its_lane_was_caught_up_with(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1)
    numbers = range(150)
    queue.put_many({"body": f"{n}", "group": "g", "delay": f"{1 + n / 2}s"} for n in numbers)
    seen = Recorder(stage.clock)
    # In less than a minute it is read up to when it was begun, and then looked ahead in.
    for nth in range(1, 200):
        stage.faults.call("read", lambda: seen.texts or stage.clock.advance(0.4), nth=nth)
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == [f"{n}" for n in numbers]


def test_a_group_behind_a_long_backoff_costs_no_memory(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("head", group="a")

    def fail(message: Message) -> None:
        if message.text == "head":
            raise Retry("1h")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=2)
    queue.put_many({"body": "x", "group": "a"} for _ in range(3_000))
    queue.put_many({"body": f"{n}", "group": "b"} for n in range(20))
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["head", *(f"{n}" for n in range(20))]
    assert len(consumer._engine.memory.known) == 1


def in_backoff(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, delay: str, far_max: int = 3
) -> tuple[Queue, Consumer, Recorder, list[str]]:
    """A consumer with thirty groups of two, more than memory has room for, whose heads wait."""
    for name, most in (("heads.FAR_MAX", far_max), ("room.HEADS_MAX", 5), ("room.ROWS_MAX", 5)):
        monkeypatch.setattr(f"shardq.engine.groups.{name}", most)
    queue = stage.connect().queue("mail", group_lanes=2)

    def fail(message: Message) -> None:
        if message.text == "head" and message.attempt == 1:
            raise Retry(delay)

    heads = []
    for number in range(30):
        heads.append(queue.put("head", group=f"{number}").receipt)
        queue.put("next", group=f"{number}")
    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=10)
    assert seen.texts == ["head"] * 30
    return queue, consumer, seen, heads


def test_many_groups_in_a_backoff_make_no_other_group_late_and_cost_no_memory(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, consumer, seen, _ = in_backoff(stage, monkeypatch, "10m")
    for number in range(20):
        queue.put(f"{number}", group="other")
        queue.put("last", group=f"{number}")
    stage.drive(consumer, seconds=5)
    assert seen.texts[30:] == [f"{number}" for number in range(20)]
    assert len(consumer._engine.memory.known) == 3
    begun_ms = stage.clock.now_ms()
    stage.drain(queue, consumer, within="15m")
    assert stage.clock.now_ms() - begun_ms < 11 * 60_000
    for number in range(30):
        of_group = [one.text for one in seen.messages if one.group == f"{number}"]
        assert of_group == ["head", "head", "next", "last"][: 4 if number < 20 else 3]


def test_a_group_whose_head_is_cancelled_goes_on_though_memory_has_no_room_for_its_head(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, consumer, seen, heads = in_backoff(stage, monkeypatch, "1h")
    other = stage.connect().queue("mail")
    assert all(other.cancel(head) for head in heads)
    stage.drain(queue, consumer, within="30s")
    assert seen.texts[30:] == ["next"] * 30


def test_a_purge_reaches_heads_for_which_memory_has_no_room(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, consumer, seen, _ = in_backoff(stage, monkeypatch, "1h")
    queue.purge()
    stage.drain(queue, consumer, within="30s")
    consumer.close()
    assert queue.totals().purged == 60
    assert len(seen) == 30


def test_groups_in_a_backoff_keep_their_order_when_their_lease_was_lost_meanwhile(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, consumer, seen, _ = in_backoff(stage, monkeypatch, "4m", far_max=0)
    # No sweep reaches back to them any more, and their minute is not sealed.
    stage.drive(consumer, seconds=90)
    # A pause longer than the lease: another could have had the lane.
    stage.clock.advance(25)
    for number in range(30):
        queue.put("last", group=f"{number}")
    stage.drain(queue, consumer)
    for number in range(30):
        of_group = [one.text for one in seen.messages if one.group == f"{number}"]
        assert of_group == ["head", "head", "next", "last"]


def test_what_was_stored_late_while_the_lane_was_another_s_goes_first_once_it_is_ours(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("keeps the lane", group="h")
    holder = Consumer(queue, Recorder(stage.clock))._engine
    while not holder.leases.held():
        stage.clock.advance(0.01)
        holder.step()
    other = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))._engine
    lane = queue._home.register.layout.group_lane("g")
    other.intake.keep([lane], dict)
    other.memory.lanes[lane].advance(stage.clock.now_ms())
    write(stage, queue, stage.clock.now_ms() - 100, b"1", group="g")
    other.reader.poll(back_ms=500)
    assert not other.memory.known
    holder.retire()
    holder.release_idle()
    write(stage, queue, stage.clock.now_ms() + 10, b"2", group="g")
    taken: list[bytes] = []
    for _ in range(20):
        stage.clock.advance(0.3)
        other.reader.poll()
        taken += [one.row.body for one in iter(other.ready.take, None)]
    assert sorted(taken) == [b"1", b"keeps the lane"]


@pytest.mark.parametrize("is_ahead", [False, True], ids=["", "and then looks ahead"])
def test_a_group_keeps_its_order_when_a_step_takes_again_its_lane_s_lease_that_has_lapsed(
    stage: Stage, *, is_ahead: bool
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1)

    def fail(message: Message) -> None:
        if message.text == "head" and message.attempt == 1:
            raise Retry("5s")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    queue.put("head", group="g")
    stage.drive(consumer, seconds=1)
    stage.clock.advance(0.01)
    queue.put("next", group="g")
    queue.put("last", group="g", delay="29s")
    if is_ahead:
        queue.put("ahead", group="h", delay="31s")
    # The poll takes long, and the read of what came before "next" renews the lease too late.
    stage.faults.call("read", lambda: stage.clock.advance(30))
    stage.drain(queue, consumer)
    assert [text for text in seen.texts if text != "ahead"] == ["head", "head", "next", "last"]


def test_a_lane_whose_head_runs_keeps_its_lease_when_an_error_ends_its_reader(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put_many({"body": text, "group": "g"} for text in ("head", "next"))
    engine = Consumer(queue, lambda _: None)._engine
    while engine.ready.take() is None:
        stage.clock.advance(max(engine.step(), 0.001))
    assert engine.let_go() == 1
    seen = Recorder(stage.clock)
    other = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(other, seconds=5)
    assert seen.texts == []
    stage.drain(queue, other)
    assert seen.texts == ["head", "next"]


def test_a_repeated_park_does_not_take_the_edit_of_another_for_its_own(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, hold="1s")
    queue.put("head", group="g")
    elsewhere = stage.connect().queue("mail")

    def outlive_the_lease(message: Message) -> None:
        if len(seen) > 1:
            return
        stage.clock.advance(30)
        stage.faults.fail("edit")
        with suppress(StoreUnavailable):
            consumer._engine.step()
        elsewhere.snooze(message, "5m")
        consumer._engine.step()
        raise Retry("5s")

    seen = Recorder(stage.clock, outlive_the_lease)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=200, stride=1)
    assert seen.texts == ["head"]
    stage.drain(queue, consumer)
    assert seen.texts == ["head", "head"]


# Several of a group at once -----------------------------------------------------------------------


def texts_of(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


def test_a_caller_gets_several_of_a_group_in_their_order(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(25))
    got: list[str] = []
    for _ in range(3):
        messages = queue.receive(100, per_group=10)
        assert queue.receive(100, per_group=10) == []
        queue.ack(*messages)
        got += texts_of(messages)
        assert len(messages) <= 10
    assert got == [f"{n}" for n in range(25)]
    assert stage.is_empty(queue)
    assert (queue.totals().delivered, queue.totals().acked) == (25, 25)


def test_groups_share_what_a_caller_takes_and_none_gives_more_than_asked_for(queue: Queue) -> None:
    queue.put_many({"body": f"{g}{n}", "group": g} for n in range(5) for g in "abcdef")
    queue.put_many(["x", "y", "z"])
    first = queue.receive(7, per_group=3)
    assert len(first) == 7
    rest = queue.receive(1_000, per_group=3)
    by_group: dict[str | None, list[str]] = {}
    for message in (*first, *rest):
        by_group.setdefault(message.group, []).append(message.text)
    assert sorted(by_group.pop(None)) == ["x", "y", "z"]
    assert set(by_group) == set("abcdef")
    assert all(texts == [f"{g}{n}" for n in range(len(texts))] for g, texts in by_group.items())
    assert max(map(len, by_group.values())) == 3


def test_what_comes_after_one_that_is_not_over_waits_for_it(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(6))
    zero, one, two = queue.receive(per_group=3, visibility="1m")
    # The second ends, and the first is tried again: the third is still its caller's.
    queue.retry(zero, "10s")
    queue.ack(one)
    stage.clock.advance(5)
    assert queue.receive(per_group=3) == []
    stage.clock.advance(6)
    [again] = queue.receive(per_group=3)
    assert (again.text, again.attempt) == ("0", 2)
    queue.ack(again)
    assert queue.receive(per_group=3) == []
    queue.ack(two)
    assert texts_of(queue.receive(per_group=3)) == ["3", "4", "5"]


def test_several_of_a_group_that_nobody_settles_come_again_in_their_order(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(4))
    messages = queue.receive(per_group=3, visibility="10s")
    receipt = queue.extend(messages[2], "1m")
    stage.clock.advance(9)
    assert queue.receive(per_group=3) == []
    stage.clock.advance(2)
    again = queue.receive(per_group=3, visibility="2m")
    assert [(one.text, one.attempt) for one in again] == [("0", 2), ("1", 2)]
    queue.ack(*again)
    assert queue.receive(per_group=3) == []
    queue.ack(receipt)
    assert texts_of(queue.receive(per_group=3)) == ["3"]


def test_several_of_a_group_are_ended_by_others_in_any_order(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(6))
    messages = queue.receive(per_group=4, visibility="1h")
    other = stage.connect().queue("mail")
    for place in (2, 0, 3):
        other.ack(messages[place])
        stage.clock.advance(1)
        assert queue.receive(per_group=4) == []
    other.bury(messages[1])
    stage.clock.advance(1)
    assert texts_of(queue.receive(per_group=4)) == ["4", "5"]


def test_one_with_a_key_begins_no_sooner_than_as_a_head(stage: Stage, queue: Queue) -> None:
    for n in range(4):
        queue.put(f"{n}", group="g", key="k" if n == 2 else None)
        stage.clock.advance(0.01)
    first = queue.receive(per_group=4)
    assert texts_of(first) == ["0", "1"]
    assert queue.cancel(key="k") is Answer.DONE
    queue.ack(*first)
    assert texts_of(queue.receive(per_group=4)) == ["3"]


@pytest.mark.parametrize("verb", ["edit", "find"])
@pytest.mark.parametrize("applied", [False, True])
def test_a_claim_of_several_that_fails_keeps_their_order(
    stage: Stage, verb: str, applied: bool
) -> None:
    queue = stage.connect().queue("mail", attempts=20)
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(12))
    got: list[str] = []
    for round_ in range(40):
        if round_ % 2 == 0:
            stage.faults.fail(verb, nth=1 + round_ % 3, applied=applied, times=1 + round_ % 4)
        try:
            messages = queue.receive(per_group=4, visibility="3s", wait="4s")
            got += texts_of(messages)
            queue.ack(*messages)
        except (StoreTimeout, StoreUnavailable, StaleReceipt):
            stage.clock.advance(1)
        if stage.is_empty(queue):
            break
    assert stage.is_empty(queue)
    firsts = list(dict.fromkeys(got))
    assert firsts == sorted(firsts, key=int)


def test_what_was_claimed_of_a_group_is_held_by_its_next_owner_too(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(4))
    zero, one, two = queue.receive(per_group=3, visibility="20s")
    queue.close()
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    queue.ack(zero)
    stage.drive(consumer, seconds=5)
    queue.ack(two)
    stage.drive(consumer, seconds=5)
    assert seen.texts == []
    receipt = queue.extend(one, "1m")
    stage.drive(consumer, seconds=20)
    assert seen.texts == []
    queue.ack(receipt)
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["3"]


@pytest.mark.parametrize("is_taken_over", [False, True], ids=["same owner", "next owner"])
def test_what_was_stored_late_waits_for_those_of_its_group_that_are_at_a_caller(
    stage: Stage, queue: Queue, *, is_taken_over: bool
) -> None:
    stage.clock.advance(10)
    queue.put_many({"body": text, "group": "g"} for text in ("1", "2", "3"))
    one, two = queue.receive(per_group=2, visibility="1m")
    reader = queue
    if is_taken_over:
        queue.close()
        reader = stage.connect().queue("mail")
    write(stage, queue, stage.clock.now_ms() - 400, b"late", group="g")
    for claimed in (one, two):
        stage.clock.advance(6)
        assert reader.receive() == []
        queue.ack(claimed)
    stage.clock.advance(1)
    got: list[str] = []
    while messages := reader.receive():
        got += texts_of(messages)
        reader.ack(*messages)
    assert got == ["late", "3"]


def _with_late_put(stage: Stage, group: str) -> tuple[Queue, Message]:
    """Return a closed queue with a claim of `g` at a caller, before which a row is put late."""
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, minute="1s", offset="1s")
    stage.clock.advance(10)
    late_ms = stage.clock.now_ms()
    stage.clock.advance(1)
    queue.put("claimed", group="g")
    [claimed] = queue.receive(visibility="1m")
    queue.close()
    write(stage, queue, late_ms, b"late", group=group)
    return queue, claimed


def test_what_was_stored_late_waits_for_one_of_a_later_minute_that_is_at_a_caller(
    stage: Stage,
) -> None:
    queue, claimed = _with_late_put(stage, "g")
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=10)
    assert seen.texts == []
    queue.ack(claimed)
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["late"]


def test_what_was_stored_late_waits_for_a_claim_behind_a_head_after_an_error_of_its_consumer(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, minute="1s", offset="1m")
    queue.put("head", group="g")
    stage.clock.advance(10)
    late_ms = stage.clock.now_ms()
    stage.clock.advance(10)
    queue.put("behind", group="g")
    head, behind = queue.receive(10, per_group=10, visibility="10m")
    queue._receiver._engine.let_go()
    queue.ack(head)
    write(stage, queue, late_ms, b"late", group="g")
    seen = Recorder(stage.clock)
    other = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(other, seconds=20)
    assert seen.texts == []
    queue.ack(behind)
    stage.drain(queue, other)
    assert seen.texts == ["late"]


def test_a_claim_that_a_slow_owner_has_not_read_is_waited_for_by_the_next_owner(
    stage: Stage,
) -> None:
    queue = stage.connect().queue(
        "mail", lanes=1, group_lanes=1, minute="1s", offset="1m", lease="1m"
    )
    for number in range(15):
        late_ms = stage.clock.now_ms()
        stage.clock.advance(2)
        queue.put("claimed", group=f"{number}")
    *others, claimed = queue.receive(15, visibility="1h")

    def slow_down() -> None:
        # So the next owner has read no row that is left, and the next pages are empty.
        queue.ack(*others)
        for nth in range(1, 13):
            stage.faults.call("read", partial(stage.clock.advance, 6), nth=nth)
        stage.faults.fail("read", nth=13)

    stage.clock.advance(70)
    slow = stage.connect().queue("mail")
    stage.faults.call("take", slow_down)
    with pytest.raises(StoreUnavailable):
        slow.receive(wait="5m")
    slow.close()
    write(stage, queue, late_ms, b"late", group=claimed.group)
    other = stage.connect().queue("mail")
    assert other.receive(wait="20s") == []
    queue.ack(claimed)
    assert texts_of(other.receive(wait="20s")) == ["late"]


def test_a_claim_that_is_given_up_in_a_pause_is_waited_for_after_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, minute="1s", offset="1m")
    queue.put("first", group="f")
    stage.clock.advance(10)
    late_ms = stage.clock.now_ms()
    stage.clock.advance(10)
    queue.put("claimed", group="g")
    _, claimed = queue.receive(10, visibility="10m")
    queue.pause()
    # The lanes are kept until a heartbeat has said that they are no longer read.
    stage.clock.advance(4)
    stage.faults.fail("note members")
    with pytest.raises(StoreUnavailable):
        queue.receive()
    write(stage, queue, late_ms, b"late", group="g")
    queue.resume()
    assert queue.receive(wait="20s") == []
    queue.ack(claimed)
    assert texts_of(queue.receive(wait="20s")) == ["late"]


def test_a_claim_whose_lane_is_released_for_a_rest_is_waited_for_by_the_next_owner(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, minute="1s", offset="1m")
    stage.clock.advance(10)
    late_ms = stage.clock.now_ms()
    stage.clock.advance(10)
    queue.put("claimed", group="g")
    [claimed] = queue.receive(visibility="1h")
    stage.clock.advance(30)
    resting = Consumer(stage.connect().queue("mail"), print)
    stage.drive(resting, seconds=5)
    resting._engine.rest.begin(stage.clock.now_ms() + 3_600_000)
    write(stage, queue, late_ms, b"late", group="g")
    other = stage.connect().queue("mail")
    assert other.receive(wait="20s") == []
    queue.ack(claimed)
    assert texts_of(other.receive(wait="20s")) == ["late"]


def test_a_new_owner_reads_rows_before_the_claims_that_the_former_owner_left(stage: Stage) -> None:
    _with_late_put(stage, "h")
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=0.1)
    assert seen.texts == ["late"]


@pytest.mark.parametrize("end", ["closed", "extended", "gone"])
def test_a_claim_keeps_its_place_of_several_under_the_next_owner(stage: Stage, end: str) -> None:
    queue = stage.connect().queue(
        "mail", lanes=1, group_lanes=1, minute="1s", offset="1m", groups={"places": 3}
    )
    stage.clock.advance(10)
    late_ms = stage.clock.now_ms()
    stage.clock.advance(20)
    claims: list[Message | str] = []
    for _ in range(2):
        queue.put("claimed", group="g")
        claims += queue.receive(visibility="1m")
        stage.clock.advance(2)
    other = stage.connect().queue("mail")
    if end == "extended":
        stage.clock.advance(52)
        assert queue.receive() == []
        claims = [other.extend(claim, "1m") for claim in claims]
        stage.clock.advance(7)
    if end == "gone":
        stage.clock.advance(20)
    else:
        queue.close()
    for n in range(4):
        write(stage, queue, late_ms, f"late {n}".encode(), group="g")
    got = other.receive(4, wait="3s")
    assert texts_of(got) == ["late 0"]
    assert other.receive(4, wait="3s") == []
    other.ack(*got, claims[0])
    assert texts_of(other.receive(4, wait="3s")) == ["late 1", "late 2"]
    assert other.receive(4, wait="3s") == []
    other.ack(claims[1])
    assert texts_of(other.receive(4, wait="3s")) == ["late 3"]


def test_no_minute_stays_listed_that_is_emptied_from_behind() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail", minute="1s", offset="2s", group_lanes=1)
        for n in range(4):
            queue.put(f"{n}", group="g")
            stage.clock.advance(3)
        sent = queue.receive(10, per_group=10, visibility="10h")
        assert len(sent) == 4
        for message in (None, *reversed(sent)):
            if message is not None:
                queue.ack(message)
            for _ in range(20):
                stage.clock.advance(4)
                assert queue.receive() == []
        lanes = list(queue._home.register.layout.lanes_of_groups())
        assert not any(stage._store.waiting("mail", lanes).values())
