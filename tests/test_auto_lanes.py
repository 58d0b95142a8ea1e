"""The number of lanes of a queue whose consumers choose it."""

from __future__ import annotations

import pytest
from reading import reading

from shardq import Consumer, Queue
from shardq.engine.members.auto import lanes_needed
from shardq.model.settings import FOLLOWED_MS, create, follow
from shardq.testing import Recorder, Stage


def members(stage: Stage, count: int) -> list[tuple[Consumer, Recorder]]:
    return [reading(stage, stage.connect().queue("mail")) for _ in range(count)]


def lanes_of(queue: Queue) -> tuple[int, int]:
    queue._home.register.refresh(force=True)
    return queue.settings.lanes_read, queue.settings.lanes_written


def test_lanes_needed_follow_members_and_puts() -> None:
    assert [lanes_needed(members, 0) for members in (1, 4, 5, 8, 9, 17, 400)] == [
        8, 8, 16, 16, 32, 64, 64,
    ]  # fmt: skip
    assert [lanes_needed(1, rate) for rate in (0.0, 8_000, 8_001, 1e9)] == [8, 8, 16, 64]


def test_consumers_read_more_lanes_before_producers_fill_them() -> None:
    made = create({}, 0)
    [risen] = follow(made, 16, 1_000)
    assert (risen.lanes_read, risen.lanes_written) == (16, 8)
    assert risen.lanes_polled(1_000) == 16
    assert follow(risen, 16, 1_000 + FOLLOWED_MS - 1) == []
    [filled] = follow(risen, 16, 1_000 + FOLLOWED_MS)
    assert (filled.lanes_read, filled.lanes_written) == (16, 16)
    [fallen] = follow(filled, 8, 700_000)
    assert (fallen.lanes_read, fallen.lanes_written) == (16, 8)
    assert fallen.lanes_polled(700_000 + fallen.offset_ms) == 16
    assert fallen.lanes_polled(700_000 + fallen.offset_ms + FOLLOWED_MS) == 8


def test_a_fixed_number_of_lanes_is_left_alone() -> None:
    assert follow(create({"lanes": 4}, 0), 16, 1_000) == []


def test_lanes_rise_with_the_members_and_fall_ten_minutes_after_they_left(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumers = [consumer for consumer, _ in members(stage, 5)]
    stage.drive(*consumers, seconds=4, stride=0.05)
    assert lanes_of(queue) == (16, 8)
    stage.drive(*consumers, seconds=12, stride=0.05)
    assert lanes_of(queue) == (16, 16)
    for consumer in consumers[1:]:
        consumer.close()
    stage.drive(consumers[0], seconds=590, stride=0.2)
    assert lanes_of(queue) == (16, 16)
    stage.drive(consumers[0], seconds=30, stride=0.2)
    assert lanes_of(queue) == (16, 8)


def test_each_open_member_has_a_lane_of_every_band(stage: Stage, queue: Queue) -> None:
    queue.put("x", priority=2)
    consumers = [consumer for consumer, _ in members(stage, 6)]
    stage.drive(*consumers, seconds=20, stride=0.05)
    layout = queue._home.register.layout
    for consumer in consumers:
        bands = [layout.band_of(lane.number) for lane in consumer._engine.memory.polled]
        assert {bands.count(band) for band in range(3)} <= {1, 2, 3}


def test_each_member_has_lanes_that_are_filled_while_more_are_read_already(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumers = [consumer for consumer, _ in members(stage, 8)]

    def has_risen() -> bool:
        return lanes_of(queue) == (16, 8)

    assert stage.drive(*consumers, seconds=10, stride=0.05, until=has_risen)
    stage.drive(*consumers, seconds=4, stride=0.05)
    assert has_risen()
    index_of = queue._home.register.layout.index_of
    for consumer in consumers:
        assert min(index_of(lane.number) for lane in consumer._engine.memory.polled) < 8


def test_lanes_in_use_are_shared_evenly_beside_those_that_are_not(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=64, group_lanes=8, bands=1)
    queue.alter(lanes=8)
    stage.clock.advance(200)
    consumers = [consumer for consumer, _ in members(stage, 4)]
    stage.drive(*consumers, seconds=20, stride=0.05)
    assert [len(consumer._engine.memory.polled) for consumer in consumers] == [2] * 4
    # A member that gives a row to a lane means the same reader.
    engines = [consumer._engine for consumer in consumers]
    own = {lane: one.home.member for one in engines for lane in one.memory.lanes if lane < 8}
    for one in engines:
        others = {lane: name for lane, name in own.items() if name != one.home.member}
        assert one.sharing._readers() == others


def test_lanes_rise_with_the_puts_and_nothing_is_late_for_it(stage: Stage, queue: Queue) -> None:
    [(consumer, seen)] = members(stage, 1)
    rate = 0.0
    consumer._engine.lanes.auto._put_rate = lambda: rate
    stage.drive(consumer, seconds=5)
    rate = 20_000.0
    for n in range(200):
        queue.put(f"{n}")
        stage.drive(consumer, seconds=0.1)
    assert lanes_of(queue) == (32, 32)
    stage.drive(consumer, seconds=1)
    assert len(seen) == 200
    assert max(seen.late_ms) < 120


def test_a_consumer_knows_how_many_messages_are_put_a_second(stage: Stage, queue: Queue) -> None:
    consumer, _ = reading(stage, queue)
    upkeep = consumer._upkeep
    for _ in range(20):
        queue.put_many(["x"] * 500)
        stage.clock.advance(1)
        upkeep.step()
    assert 300 <= upkeep.put_rate() <= 700
    for _ in range(20):
        stage.clock.advance(1)
        upkeep.step()
    assert upkeep.put_rate() == 0


def test_a_store_that_does_not_take_a_change_of_lanes_holds_up_no_message(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    made = members(stage, 5)
    stage.faults.fail("write_records queues", times=3)
    queue.put_many(f"{n}" for n in range(100))
    stage.drive(*(consumer for consumer, _ in made), seconds=3, stride=0.05)
    assert sum(len(seen) for _, seen in made) == 100
    stage.drive(*(consumer for consumer, _ in made), seconds=30, stride=0.05)
    assert lanes_of(queue) == (16, 16)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_while_lanes_rise_and_fall_under_old_and_new_processes(
    stage: Stage, queue: Queue, seed: int
) -> None:
    producers = [stage.connect().queue("mail") for _ in range(3)]
    made = members(stage, 2)
    consumers = [consumer for consumer, _ in made]
    sent = []
    for turn in range(40):
        for place, producer in enumerate(producers):
            for priority in range(0, 3, 2):
                text = f"{turn}-{place}-{priority}"
                delay = f"{(turn * 7 + place * 3 + seed) % 5 * 20}s"
                sent.append(producer.put(text, delay=delay, priority=priority).text)
        if turn % 10 == seed:
            queue.alter(lanes=(12, 3, 20, 2)[turn // 10])
        if turn % 20 == 19:
            queue.alter(lanes="auto")
        stage.drive(*consumers, seconds=1.3, stride=0.05)
    stage.drain(queue, *consumers, within="10m", stride=0.05)
    texts = [text for _, seen in made for text in seen.texts]
    assert sorted(texts) == sorted(sent)
    assert min(late for _, seen in made for late in seen.late_ms) >= 0
    assert max(late for _, seen in made for late in seen.late_ms) < 3_500
