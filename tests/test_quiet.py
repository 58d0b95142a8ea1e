"""Lanes in which nothing is expected: what they cost, and that nothing is lost in them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from reading import reading, write
from stages import either_stage  # noqa: F401 - a fixture

from shardq import Consumer, Queue, Retry
from shardq.stores.tables import LANES
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

BAND_0 = list(range(0, 24, 3))


def polled(consumer: Consumer) -> list[int]:
    return sorted(lane.number for lane in consumer._engine.memory.polled)


def test_only_priorities_that_were_put_to_are_polled(stage: Stage, queue: Queue) -> None:
    consumer, seen = reading(stage, queue)
    queue.put("first")
    stage.drive(consumer, seconds=200, stride=0.05)
    assert polled(consumer) == BAND_0
    queue.put("second", priority=1)
    stage.drive(consumer, seconds=0.2)
    assert polled(consumer) == sorted(BAND_0 + [lane + 1 for lane in BAND_0])
    assert seen.texts == ["first", "second"]
    assert max(seen.late_ms) < 120


def test_a_priority_that_another_process_puts_to_for_the_first_time_is_polled_in_3_s(
    stage: Stage,
) -> None:
    consumer, seen = reading(stage, stage.connect().queue("mail"))
    stage.drive(consumer, seconds=100, stride=0.05)
    elsewhere = stage.connect().queue("mail")
    for priority in (2, 1):
        elsewhere.put(f"{priority}", priority=priority)
    stage.drive(consumer, seconds=4)
    assert seen.texts == ["1", "2"]
    assert max(seen.late_ms) <= 3_200


def test_settings_are_read_upon_news_of_others_while_a_band_is_unused_at_a_bounded_rate() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail")
        consumer, _ = reading(stage, queue)
        stage.drive(consumer, seconds=3)
        register, news = queue._home.register, consumer._engine.news

        def read(tell: Callable[[], object]) -> int:
            before = stage.faults.calls["records queues"]
            for _ in range(100):
                stage.clock.advance(0.01)
                tell()
                consumer.step()
            return stage.faults.calls["records queues"] - before

        assert read(lambda: news.on_put(stage.clock.now_ms())) <= 3
        assert 10 <= read(news.on_change) <= 13
        register.use_band(2)
        register.use_groups()
        assert read(news.on_change) <= 3


def test_a_queue_whose_bands_are_unused_is_read_no_more_than_one_without_them(
    stage: Stage,
) -> None:
    reads = []
    for name, settings in (("plain", {"lanes": 8, "bands": 1}), ("usual", {})):
        queue = stage.connect().queue(name, **settings)
        consumer, _ = reading(stage, queue)
        stage.drive(consumer, seconds=90, stride=0.05)
        before = dict(stage.faults.calls)
        stage.drive(consumer, seconds=200, stride=0.05)
        reads.append({v: n - before.get(v, 0) for v, n in stage.faults.calls.items()})
        consumer.close()
    plain, usual = reads
    assert usual.get("occupied", 0) <= plain.get("occupied", 0) + 4
    # A further lane would be read some hundred times.
    for verb in ("read", "take", "renew", "queue"):
        assert usual.get(verb, 0) <= plain.get(verb, 0) + 5, verb


def test_what_is_in_a_band_that_nobody_has_recorded_is_delivered(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=100, stride=0.05)
    write(stage, queue, stage.clock.now_ms(), b"unknown", lane=4)
    stage.drive(consumer, seconds=190, stride=0.05)
    assert seen.texts == ["unknown"]
    # From now on the band is polled.
    assert stage.connect().queue("mail").settings.bands_used == 2
    write(stage, queue, stage.clock.now_ms(), b"known", lane=7)
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["unknown", "known"]
    assert stage.is_empty(queue)


def test_far_timers_in_lanes_that_are_no_more_filled_fire_on_their_millisecond(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=16)
    for n in range(100):
        queue.put(f"{n}", delay=f"{320_000 + n * 900}ms")
    queue.alter(lanes=4)
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=300, stride=0.05)
    stage.drive(consumer, seconds=120)
    assert sorted(seen.texts, key=int) == [f"{n}" for n in range(100)]
    assert 0 <= max(seen.late_ms) < 5
    assert min(seen.late_ms) >= 0


@pytest.mark.parametrize("written_by", ["alter", "the one before"])
def test_lanes_that_fall_are_quiet_after_the_offset_and_polled_where_they_have_rows(
    stage: Stage, written_by: str
) -> None:
    queue = stage.connect().queue("mail", lanes=32, group_lanes=8, bands=1)
    stale = stage.connect().queue("mail")
    for n in range(64):
        queue.put(f"far-{n}", delay="10m")
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=20)
    queue.alter(lanes=8)
    # A producer that has not read of it yet, and one that never will.
    for n in range(32):
        stale.put(f"stale-{n}")
    stage.drive(consumer, seconds=60)
    assert polled(consumer) == list(range(32))
    assert len(seen) == 32
    assert max(seen.late_ms) < 120
    stage.drive(consumer, seconds=150, stride=0.05)
    assert polled(consumer) == list(range(8))
    if written_by == "the one before":
        write(stage, queue, stage.clock.now_ms(), b"lost", lane=30)
        stage.drive(consumer, seconds=200, stride=0.05)
        assert len(seen) == 33
        assert 30 in polled(consumer)
    stage.drive(consumer, seconds=610 - stage.clock.boot_us() / 1e6 + 20, stride=0.05)
    stage.drain(queue, consumer, stride=0.05)
    assert {f"far-{n}" for n in range(64)} <= set(seen.texts)
    far = [late for late, text in zip(seen.late_ms, seen.texts, strict=True) if text[0] == "f"]
    assert max(far) < 120


def test_what_is_retried_leaves_a_lane_that_nobody_fills_and_a_group_stays(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=16, bands=1, group_lanes=16)
    for n in range(64):
        queue.put(f"{n}")
        queue.put(f"{n}", group=f"{n}")
    queue.alter(lanes=2)
    before = {m.text: m._row.shard.lane for m in queue.peek(200) if m.group is not None}

    def fail(_message: object) -> None:
        raise Retry("5m")

    consumer = Consumer(queue, Recorder(stage.clock, fail))
    stage.drive(consumer, seconds=3)
    waiting = queue.peek(200)
    assert len(waiting) == 128
    assert all(m.attempt == 1 for m in waiting)
    assert {m._row.shard.lane for m in waiting if m.group is None} == {0, 1}
    assert {m.text: m._row.shard.lane for m in waiting if m.group is not None} == before


def test_a_quiet_lane_is_sealed_as_others_and_its_lease_released(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=16, bands=1, group_lanes=4)
    for n in range(32):
        queue.put(f"{n}")
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=2)
    queue.alter(lanes=4)
    stage.drive(consumer, seconds=400, stride=0.05)
    layout = queue._home.register.layout
    newest = layout.newest_sealable(stage.clock.now_ms())
    assert min(stage._store.notes(LANES, ("mail",)).values()) >= newest - 1
    assert sorted(stage._store.notes(LANES, ("mail",))) == list(range(16))
    assert not consumer._engine.leases.held()


def test_a_consumer_that_was_away_catches_up_in_quiet_lanes_too(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=32)
    for n in range(300):
        queue.put(f"{n}", delay=f"{n}m", priority=n % 3)
    queue.alter(lanes=8)
    stage.clock.advance(3 * 86_400)
    consumer, seen = reading(stage, queue)
    stage.drain(queue, consumer, within="2m", stride=0.02)
    assert sorted(seen.texts, key=int) == [f"{n}" for n in range(300)]


def test_rows_in_quiet_lanes_of_a_member_that_only_beats_are_delivered_by_another() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail", lanes=32, group_lanes=8, bands=1)
        lane_of = {queue.put(f"{n}", delay="10m")._row.shard.lane: n for n in range(32)}
        assert len(lane_of) == 32
        queue.alter(lanes=8)
        one, seen_one = reading(stage, stage.connect().queue("mail"))
        other, _ = reading(stage, stage.connect().queue("mail"))
        stage.drive(one, other, seconds=400, stride=0.05)

        def only_beat() -> float:
            other._engine.membership.beat(other._engine._told, demand=True)
            return 0.5

        other.step = only_beat  # type: ignore[method-assign]
        stage.drive(one, other, seconds=260, stride=0.05)
        assert len(seen_one) == 32
        assert max(seen_one.late_ms) < 20_000


def test_a_queue_with_a_number_of_lanes_keeps_it_and_can_be_made_auto(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4, bands=2)
    consumer, seen = reading(stage, queue)
    settings = queue.settings
    assert (settings.lanes_auto, settings.lanes_written, settings.bands) == (False, 4, 2)
    queue.put("x", priority=1)
    # Nothing is stored anew for that: each of its bands may have been put to.
    assert queue.settings == settings
    stage.drive(consumer, seconds=30)
    assert polled(consumer) == list(range(8))
    queue.alter(lanes="auto")
    assert (queue.settings.lanes_auto, queue.settings.lanes_written) == (True, 8)
    for n in range(100):
        queue.put(f"{n}", priority=n % 2)
    stage.drive(consumer, seconds=5)
    assert len(seen) == 101
    assert polled(consumer) == list(range(16))
    queue.alter(lanes=3)
    assert not queue.settings.lanes_auto


def test_a_queue_made_anew_polls_the_bands_that_others_may_still_put_to(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("mail")
    queue.put("x", priority=2)
    stale = stage.connect().queue("mail")
    stage.clock.advance(1)
    queue.drop()
    stage.clock.advance(1)
    again = db.queue("mail")
    assert again.settings.bands_used == 3
    stale.put("late", priority=2)
    consumer, seen = reading(stage, again)
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["late"]
    again.drop()
    stage.clock.advance(1)
    other = stage.connect().queue("mail", bands=5)
    assert other.settings.bands_used == replace(other.settings).bands_used >= 5
