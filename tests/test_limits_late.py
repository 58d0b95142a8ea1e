"""The rate at which a queue catches up with late messages, through the face."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Literal

import pytest
from worlds import World, on_each_store

from shardq import Consumer, Message, Queue, Retry
from shardq.errors import BadSetting
from shardq.model.limits import queue_limit_of
from shardq.model.message import TASK_HEADER
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence


def put(queue: Queue, name: str, count: int, **options: object) -> None:
    queue.put_many({"body": f"{name} {n}", **options} for n in range(count))


def of(seen: Recorder, name: str) -> list[int]:
    return [at for at, text in zip(seen.at_us, seen.texts, strict=True) if text.startswith(name)]


def most_within(times_us: Sequence[int], span_us: int) -> int:
    return max(sum(at <= other < at + span_us for other in times_us) for at in times_us)


@on_each_store
def test_late_messages_begin_at_the_rate_and_messages_on_time_pass(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), limits={"catch_up": "2/m"})
    put(queue, "late", 2)
    world.pass_time(6)
    other = world.connect().queue(queue.name)
    [first] = other.receive(20, wait="1s")
    assert first.text.startswith("late")
    put(queue, "now", 3)
    got = other.receive(20, wait="20s") + other.receive(20)
    assert sorted(message.text for message in got) == ["now 0", "now 1", "now 2"]
    queue.alter(limits="off")
    world.pass_time(6)
    [last] = other.receive(20, wait="10s")
    assert {first.text, last.text} == {"late 0", "late 1"}


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("options", [{}, {"group": "a"}])
def test_a_backlog_drains_at_the_rate_over_all_consumers_and_delays_no_other(
    stage: Stage, consumers: int, options: dict[str, str]
) -> None:
    limits = {"catch_up": "50/s"}
    queue = stage.connect().queue("mail", groups={"places": 100}, limits=limits)
    put(queue, "late", 1_500, **options)
    stage.clock.advance(3_600)
    seen = Recorder(stage.clock)
    members = [Consumer(stage.connect().queue("mail"), seen, threads=4) for _ in range(consumers)]
    for _ in range(10):
        put(queue, "now", 10, **(options and {"group": "b"}))
        stage.drive(*members, seconds=1)
    assert len(of(seen, "now")) == 100
    late = [ms for ms, text in zip(seen.late_ms, seen.texts, strict=True) if "now" in text]
    assert max(late) < 3_000
    stage.drive(*members, seconds=55)
    begun = of(seen, "late")
    assert most_within(begun, 1_000_000) <= 50 + 5
    assert len({*seen.texts} - {f"now {n}" for n in range(10)}) == len(begun) == 1_500
    assert {message.attempt for message in seen.messages} == {1}
    assert queue.totals().snoozed == 0


def test_a_message_is_late_from_five_seconds_on_and_a_retry_is_on_time(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"catch_up": "1/h"})
    put(queue, "on time", 5)
    put(queue, "grouped", 1, group="a")
    stage.clock.advance(4.9)

    def fail_once(message: Message) -> None:
        if message.attempt == 1:
            raise Retry("10s")

    seen = Recorder(stage.clock, fail_once)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=20)
    assert len(seen.texts) == 12
    consumer.close()
    put(queue, "late", 5)
    stage.clock.advance(5.1)
    stage.drive(Consumer(stage.connect().queue("mail"), seen), seconds=20)
    assert len({text for text in seen.texts if text.startswith("late")}) == 1


def test_jobs_of_a_task_with_limits_follow_these_alone(stage: Stage) -> None:
    queue = stage.connect().queue(
        "mail", limits={"catch_up": "1/h", "tasks": {"shop": {"rate": "10/s"}}}
    )
    put(queue, "job", 30, headers={TASK_HEADER: "shop"})
    put(queue, "late", 5)
    stage.clock.advance(3_600)
    seen = Recorder(stage.clock)
    stage.drive(Consumer(queue, seen), seconds=5)
    assert len(of(seen, "job")) == 30
    assert len(of(seen, "late")) == 1


def test_the_rate_is_changed_while_a_backlog_drains(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"catch_up": "10/s"})
    put(queue, "late", 1_000)
    stage.clock.advance(60)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=5)
    assert 40 <= len(seen.texts) <= 51
    queue.alter(limits={"catch_up": "100/s"})
    stage.drive(consumer, seconds=90)
    assert len(seen.texts) == 1_000


def test_a_rate_of_late_messages_is_one_of_the_limits_and_has_a_burst_of_its_own(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", limits={"catch_up": "500/s", "running": 3})
    assert json.loads(queue.settings.queue_limit) == {"catch_up": "500/s", "running": 3}
    assert queue_limit_of(queue.settings.queue_limit).of_late.units == 50
    assert queue_limit_of('{"catch_up":"5/s"}').of_late.units == 1
    for given in ("often", ["5/s", "10/m"], 5, "0/s"):
        with pytest.raises(BadSetting, match="catch_up must be"):
            queue.alter(limits={"catch_up": given})
    with pytest.raises(BadSetting, match="limits of a task are"):
        queue.alter(limits={"tasks": {"shop": {"catch_up": "5/s"}}})


# Groups with limits of their own ------------------------------------------------------------------


def calls_of_a_delivery(groups: int) -> float:
    """How many functions a delivery calls while so many groups wait for the rate."""
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail", groups={"places": 2}, limits={"catch_up": "50/s"})
        queue.put_many({"body": "x", "group": f"{n}"} for n in range(groups))
        stage.clock.advance(60)
        seen = Recorder(stage.clock)
        consumer = Consumer(queue, seen)
        stage.drive(consumer, seconds=1)
        begun, calls = len(seen), 0

        def count(_frame: object, event: str, _of: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            stage.drive(consumer, seconds=1)
        finally:
            sys.setprofile(None)
        assert len(seen) - begun >= 40
        return calls / (len(seen) - begun)


def test_a_late_message_costs_the_same_beside_many_groups() -> None:
    assert calls_of_a_delivery(1_000) < 2 * calls_of_a_delivery(100)


def test_groups_take_turns_by_their_tiers_while_they_wait_for_the_rate(stage: Stage) -> None:
    limits = {"places": 2, "vip": {"places": 4, "tier": 3}}
    queue = stage.connect().queue("mail", groups=limits, limits={"catch_up": "20/s"})
    queue.put_many({"body": name, "group": name} for name in ("a", "b", "vip") for _ in range(100))
    stage.clock.advance(60)
    queue.put("last", group="z")
    stage.clock.advance(60)
    seen = Recorder(stage.clock)
    stage.drive(Consumer(queue, seen), seconds=8)
    assert "last" in seen.texts[:10]
    taken = Counter(seen.texts)
    assert taken["a"] == pytest.approx(taken["b"], abs=2)
    assert taken["vip"] == pytest.approx(3 * taken["a"], abs=4)


@pytest.mark.parametrize("priorities", ["strict", "weighted"])
def test_priority_decides_among_groups_that_wait_for_the_rate(
    stage: Stage, priorities: Literal["strict", "weighted"]
) -> None:
    queue = stage.connect().queue(
        "mail", priorities=priorities, groups={"places": 2}, limits={"catch_up": "20/s"}
    )
    queue.put_many(
        {"body": f"{n % 3}", "group": f"{n}", "priority": n % 3} for n in reversed(range(180))
    )
    stage.clock.advance(60)
    seen = Recorder(stage.clock)
    stage.drive(Consumer(queue, seen), seconds=3)
    taken = Counter(seen.texts[5:47])
    assert [taken[name] for name in "012"] == (
        [42, 0, 0] if priorities == "strict" else pytest.approx([24, 12, 6], abs=2)
    )
