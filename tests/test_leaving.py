"""Joining and leaving: a message waits for neither."""

from __future__ import annotations

import threading

import pytest
from reading import write

from shardq import Consumer, Message, Queue
from shardq.engine.engine import Engine
from shardq.errors import StoreUnavailable
from shardq.model.message import Row
from shardq.model.settings import QueueOptions
from shardq.records.membership import heartbeats
from shardq.testing import Recorder, Stage


class Leaver:
    """A consumer that was stopped, up to the end of its handlers: its engine alone is stepped."""

    def __init__(self, consumer: Consumer) -> None:
        self._engine: Engine = consumer._engine
        self._engine.ready.stop()
        self._engine.begin_to_leave()

    def step(self) -> float:
        return self._engine.step()


def member(stage: Stage, name: str, **options: object) -> tuple[Consumer, Recorder]:
    seen = Recorder(stage.clock)
    queue = stage.connect().queue("mail")
    return Consumer(queue, seen, member=name, **options), seen  # type: ignore[arg-type]


def timers(stage: Stage, queue: Queue, seconds: float, *, every_s: float = 0.01) -> int:
    count = round(seconds / every_s)
    for n in range(count):
        put(stage, queue, round(n * every_s * 1e3), n)
    return count


def put(stage: Stage, queue: Queue, delay_ms: int, number: int) -> Row:
    """A message in one of eight lanes in turn."""
    lane = queue._home.register.layout.lane(0, number % 8)
    return write(stage, queue, stage.clock.now_ms() + delay_ms, b"x", lane=lane)


def late_ms(*recorders: Recorder) -> float:
    return max(late for seen in recorders for late in seen.late_ms)


def test_what_comes_due_while_a_member_leaves_is_delivered_on_time_by_others(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=8, bands=1)
    (one, by_one), (two, by_two) = member(stage, "one"), member(stage, "two")
    stage.drive(one, two, seconds=4)
    count = timers(stage, queue, 6)
    stage.drive(one, two, seconds=2)
    assert by_one.texts
    assert by_two.texts
    begun = len(by_one)
    leaver = Leaver(one)
    assert leaver._engine.is_relied_on
    assert stage.drive(leaver, two, seconds=3, until=lambda: not leaver._engine.is_relied_on)
    leaver._engine.retire()
    leaver._engine.close()
    stage.drive(two, seconds=6)
    assert len(by_one) == begun
    assert sorted(one.id for one in [*by_one.messages, *by_two.messages]) == sorted(
        {one.id for one in [*by_one.messages, *by_two.messages]}
    )
    assert len(by_one) + len(by_two) == count
    assert late_ms(by_one, by_two) < 250
    assert max(message.attempt for message in by_two.messages) == 1


def test_what_is_put_while_a_member_leaves_waits_for_nobody(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=8, bands=1)
    (one, by_one), (two, by_two) = member(stage, "one"), member(stage, "two")
    stage.drive(one, two, seconds=4)
    leaver = Leaver(one)
    count = 0
    while leaver._engine.is_relied_on:
        put(stage, queue, 10, count)
        count += 1
        stage.drive(leaver, two, seconds=0.02)
    leaver._engine.retire()
    leaver._engine.close()
    for n in range(50):
        put(stage, queue, 10, n)
        stage.drive(two, seconds=0.02)
    stage.drive(two, seconds=1)
    assert not by_one.texts
    assert len(by_two) == count + 50
    assert late_ms(by_two) < 250


def test_what_a_leaving_member_knows_early_keeps_its_due(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=8, bands=1)
    (one, _), (two, by_two) = member(stage, "one"), member(stage, "two")
    stage.drive(one, two, seconds=4)
    rows = [put(stage, queue, 1_500, n) for n in range(80)]
    dues = {row.message_id: row.due_ms for row in rows}
    # Early enough for both to look ahead.
    stage.drive(one, two, seconds=0.9)
    assert len(one._engine.ready) > 0
    leaver = Leaver(one)
    stage.drive(leaver, two, seconds=0.1)
    assert len(leaver._engine.ready) == 0
    assert not by_two.texts
    stage.drive(leaver, two, seconds=1)
    assert {message.id: message.due_ms for message in by_two.messages} == dues
    assert min(by_two.late_ms) >= 0


def test_a_group_waits_for_its_lane_and_stays_in_order_while_its_member_leaves(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=8, bands=1, group_lanes=8)
    (one, by_one), (two, by_two) = member(stage, "one"), member(stage, "two")
    stage.drive(one, two, seconds=4)
    for n in range(8):
        for group in range(8):
            queue.put(f"{group}:{n}", group=f"{group}", delay=f"{n * 300}ms")
    stage.drive(one, two, seconds=0.9)
    leaver = Leaver(one)
    assert stage.drive(leaver, two, seconds=3, until=lambda: not leaver._engine.is_relied_on)
    leaver._engine.retire()
    leaver._engine.close()
    stage.drive(two, seconds=5)
    for group in range(8):
        texts = [t for t in by_one.texts + by_two.texts if t.startswith(f"{group}:")]
        assert texts == [f"{group}:{n}" for n in range(8)]


def test_a_member_without_others_leaves_at_once(stage: Stage, queue: Queue) -> None:
    (one, _), (two, _) = member(stage, "one"), member(stage, "two")
    stage.drive(one, seconds=1)
    assert not one._engine.is_relied_on
    stage.drive(one, two, seconds=4)
    assert one._engine.is_relied_on
    queue.pause()
    stage.drive(one, two, seconds=6)
    # No member is open.
    assert not one._engine.is_relied_on


def test_members_that_leave_together_do_not_wait_for_each_other(stage: Stage) -> None:
    stage.connect().queue("mail")
    pair = [member(stage, name)[0] for name in ("one", "two")]
    stage.drive(*pair, seconds=4)
    leavers = [Leaver(one) for one in pair]
    assert stage.drive(
        *leavers, seconds=0.2, until=lambda: not any(one._engine.is_relied_on for one in leavers)
    )


def test_a_slot_that_is_freed_as_a_member_ends_leaves_it_its_rest(stage: Stage) -> None:
    stage.connect().queue("mail")
    one, two = (member(stage, name)[0] for name in ("one", "two"))
    stage.drive(one, two, seconds=4)
    stage.drive(Leaver(one), two, seconds=0.5)
    engine = one._engine
    engine.news.on_free()
    stage.clock.advance(1)
    engine.retire()
    since_us = stage.clock.true_us()
    engine.news.wait(0.05)
    assert stage.clock.true_us() - since_us >= 50_000


def test_a_lane_that_is_another_s_is_released_though_a_handler_runs_on() -> None:
    with Stage(threaded=True) as stage:
        queue = stage.connect().queue("mail", lanes=1)
        begun, go_on = threading.Event(), threading.Event()
        attempts: list[int] = []

        def handle(message: Message) -> None:
            attempts.append(message.attempt)
            begun.set()
            go_on.wait(60)

        queue.put(b"x", delay="10ms")
        consumer = Consumer(queue, handle, threads=1)
        engine = consumer._engine
        with stage.ticking(0.002):
            consumer.start()
            assert begun.wait(60)
            consumer.stop()
            # Its handler it waits for, for 25 s; but others do not wait for that.
            for _ in range(40):
                if not len(engine.leases):
                    break
                stage.clock.sleep(0.1)
            assert not len(engine.leases)
            assert not go_on.is_set()
            go_on.set()
            consumer.join(60)
        assert attempts == [1]
        assert stage.is_empty(queue)


@pytest.mark.parametrize("given", [QueueOptions(lanes=8, bands=1), QueueOptions()])
def test_a_member_opens_once_it_has_read_what_will_be_its_lanes(
    stage: Stage, given: QueueOptions
) -> None:
    queue = stage.connect().queue("mail", **given)
    one, _ = member(stage, "one")
    stage.drive(one, seconds=1)
    assert heartbeats(stage._store, "mail")["one"].demand
    timers(stage, queue, 4)
    stage.drive(one, seconds=1)
    two, by_two = member(stage, "two")
    two.step()
    assert not heartbeats(stage._store, "mail")["two"].demand
    assert two._engine.memory.lanes
    stage.drive(one, two, seconds=0.5)
    assert heartbeats(stage._store, "mail")["two"].demand
    stage.drive(one, two, seconds=4)
    assert by_two.texts
    assert late_ms(by_two) < 250


def test_lanes_that_are_new_are_tried_twenty_times_a_second_and_later_four(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=8, bands=1, hold="1h")
    one, two = member(stage, "one")[0], member(stage, "two")[0]
    one.step()
    for n in range(8):
        put(stage, queue, 10, n)
    for _ in range(20):
        stage.clock.advance(0.05)
        one._engine.step()
    # It has taken what is there, and works on it for ever.
    assert len(one._engine.leases) == 8
    tries: list[int] = []
    for _ in range(6):
        before = stage.faults.calls.get("locks", 0)
        stage.drive(two, seconds=1)
        tries.append(stage.faults.calls.get("locks", 0) - before)
        one._engine.leases.renew()
        one._engine.membership.beat(one._engine._told, demand=True)
    assert 10 <= tries[1] <= 45
    assert tries[5] <= 10


def test_lanes_of_who_has_left_are_taken_soon_though_the_store_fails_at_that(stage: Stage) -> None:
    one, two = member(stage, "one")[0]._engine, member(stage, "two")[0]._engine
    for _ in range(40):
        stage.clock.advance(0.1)
        one.step()
        two.step()
    assert len(one.memory.lanes) < len(one._register.layout.lanes())
    two.close()
    stage.clock.advance(1)
    stage.faults.fail("notes lanes")
    with pytest.raises(StoreUnavailable):
        one.step()
    one.step()
    assert len(one.memory.lanes) == len(one._register.layout.lanes())


def test_what_comes_due_goes_to_others_though_the_store_fails_amid_a_leaving(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=8, bands=1)
    one, two = member(stage, "one")[0], member(stage, "two")[0]
    stage.drive(one, two, seconds=4)
    lane = min(one._engine.memory.lanes)
    one._engine.ready.stop()
    write(stage, queue, stage.clock.now_ms() + 20, b"x", lane=lane)
    stage.faults.fail("read")
    one._hand_over(stage.clock.boot_us() + 1_000_000)
    [message] = queue.peek(10)
    assert message._row.shard.lane in two._engine.memory.lanes


def test_a_member_that_tells_nothing_holds_up_no_end_for_long() -> None:
    with Stage(threaded=True) as stage:
        queue = stage.connect().queue("mail")
        other, _ = member(stage, "other")
        stage.drive(other, seconds=1)
        consumer = Consumer(queue, lambda _: None, threads=1)
        with stage.ticking():
            consumer.start()
            for _ in range(200):
                if consumer._engine.membership.others:
                    break
                stage.clock.sleep(0.1)
            since_us = stage.clock.boot_us()
            consumer.stop()
            consumer.join(60)
            took_s = (stage.clock.boot_us() - since_us) / 1e6
        assert 3 < took_s < 20
