"""Until when an engine may rest, what it releases before, and what its steps leave out."""

from __future__ import annotations

import logging

import pytest

from shardq import Consumer
from shardq.engine.rest import Rest
from shardq.testing import Recorder, Stage

HOUR_MS = 3_600_000


def consumer_of(stage: Stage) -> tuple[Consumer, Recorder]:
    """A consumer of a queue with one message in an hour, that has read its lanes."""
    queue = stage.connect().queue("mail", lanes=1)
    queue.put("a", delay="1h")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    for _ in range(3):
        consumer.step()
    return consumer, seen


def rest_of(consumer: Consumer) -> Rest:
    return consumer._engine.rest


def advance_to(stage: Stage, at_ms: int) -> None:
    stage.clock.advance(at_ms / 1_000 - stage.clock.true_us() / 1e6)


def test_an_engine_with_nothing_due_may_rest_until_its_queue_s_first_due() -> None:
    with Stage(local=True) as stage:
        now_ms = stage.clock.true_ms()
        consumer, _ = consumer_of(stage)
        assert rest_of(consumer).until_ms() == now_ms + HOUR_MS
        stage.connect().queue("mail").put("b", delay="30m")
        assert rest_of(consumer).until_ms() == now_ms + HOUR_MS // 2


def test_it_may_rest_for_ever_where_nothing_waits_and_where_its_queue_is_paused() -> None:
    with Stage(local=True) as stage:
        consumer, _ = consumer_of(stage)
        queue = stage.connect().queue("mail")
        queue.pause()
        stage.clock.advance(4)
        consumer.step()
        assert rest_of(consumer).until_ms() is None
        queue.resume()
        stage.drain(queue, consumer, within="2h", stride=10)
        assert rest_of(consumer).until_ms() is None


def test_what_waits_for_the_lease_of_another_is_to_be_done_now() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail", lanes=1)
        queue.put("a")
        # It dies as it has read that, with the lease.
        dead = Consumer(queue, print)
        dead._engine.step()
        dead._engine.step()
        other = Consumer(stage.connect().queue("mail"), print)
        for _ in range(3):
            other.step()
        stage.clock.advance(4)
        dead._engine.membership.leave()
        for _ in range(3):
            other.step()
        assert rest_of(other).until_ms() == stage.clock.true_ms()


@pytest.mark.parametrize("rests", [False, True])
def test_leases_are_released_before_a_pause_and_nothing_is_lost_by_it(
    rests: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Stage(local=True) as stage,
        caplog.at_level(logging.INFO, logger="shardq.engine.leases.lease"),
    ):
        consumer, seen = consumer_of(stage)
        stage.connect().queue("mail").put("b")
        stage.clock.advance(0.3)
        consumer.step()
        assert seen.texts == ["b"]
        assert consumer._engine.leases.held()
        at_ms = rest_of(consumer).until_ms()
        assert at_ms is not None
        if rests:
            rest_of(consumer).begin(at_ms)
            assert not consumer._engine.leases.held()
        advance_to(stage, at_ms)
        for _ in range(2):
            consumer.step()
        assert seen.texts == ["b", "a"]
        assert seen.messages[1].attempt == 1
        lost = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert bool(lost) != rests


def test_a_short_pause_releases_nothing() -> None:
    with Stage(local=True) as stage:
        consumer, _ = consumer_of(stage)
        stage.connect().queue("mail").put("b")
        stage.clock.advance(0.3)
        consumer.step()
        rest_of(consumer).begin(stage.clock.true_ms() + 5_000)
        assert consumer._engine.leases.held()


def test_steps_of_one_that_is_alone_are_brief_but_for_one_in_a_thousand() -> None:
    with Stage(local=True) as stage:
        consumer, _ = consumer_of(stage)
        rest = rest_of(consumer)
        rest.is_alone = True
        rest.hurry()
        before = stage.faults.calls["note members"]
        for _ in range(1_002):
            rest.note(stage.clock.true_ms())
            stage.clock.advance(4)
            consumer.step()
        assert stage.faults.calls["note members"] - before == 2


def test_a_brief_step_without_anything_due_asks_the_store_for_nothing() -> None:
    with Stage(local=True) as stage:
        consumer, seen = consumer_of(stage)
        rest = rest_of(consumer)
        rest.is_alone = True
        consumer.step()
        at_ms = rest.until_ms()
        assert at_ms is not None
        rest.pass_to(at_ms - 1)
        advance_to(stage, at_ms - 1)
        before = sum(stage.faults.calls.values())
        consumer.step()
        assert sum(stage.faults.calls.values()) == before
        stage.clock.advance(0.001)
        consumer.step()
        assert seen.texts == ["a"]


def test_a_queue_that_is_resumed_has_its_first_due_again() -> None:
    with Stage(local=True) as stage:
        consumer, _ = consumer_of(stage)
        queue, rest = stage.connect().queue("mail"), rest_of(consumer)
        rest.is_alone = True
        due_ms = rest.until_ms()
        for change in (queue.pause, queue.resume):
            change()
            stage.clock.advance(4)
            rest.hurry()
            consumer.step()
            assert rest.until_ms() == (None if change == queue.pause else due_ms)


def test_what_time_has_passed_over_counts_as_read_and_swept() -> None:
    with Stage(local=True) as stage:
        consumer, seen = consumer_of(stage)
        rest = rest_of(consumer)
        rest.is_alone = True
        consumer.step()
        at_ms = rest.until_ms()
        assert at_ms is not None
        rest.pass_to(at_ms)
        assert {lane.cursor_ms for lane in consumer._engine.memory.polled} == {at_ms - 1}
        advance_to(stage, at_ms)
        rest.hurry()
        reads = stage.faults.calls["read"]
        consumer.step()
        assert seen.texts == ["a"]
        # A sweep of an hour alone makes 180 of them.
        assert stage.faults.calls["read"] - reads <= 6


def test_steps_beside_another_member_are_whole_whatever_was_vouched_for() -> None:
    with Stage(local=True) as stage:
        consumer, _ = consumer_of(stage)
        rest_of(consumer).is_alone = True
        Consumer(stage.connect().queue("mail"), print).step()
        rest_of(consumer).hurry()
        stage.clock.advance(4)
        for _ in range(2):
            consumer.step()
        assert consumer._engine.membership.beats
        assert not rest_of(consumer).was_brief
