"""Members of a queue: who reads which lane, who steps in, who lets go."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

import pytest

from shardq import Consumer, Message, Queue
from shardq.engine.handing.outcome import ACKED
from shardq.errors import ClockError, StoreUnavailable, UnknownQueue
from shardq.model.shard import Shard
from shardq.records.membership import Heartbeat
from shardq.stores.tables import LANES, MEMBERS
from shardq.testing import ManualClock, Recorder, Stage

WAIT_S = 60


def members(stage: Stage, count: int, **options: object) -> list[tuple[Consumer, Recorder]]:
    made = []
    for _ in range(count):
        seen = Recorder(stage.clock)
        made.append((Consumer(stage.connect().queue("mail"), seen, **options), seen))
    return made


def holders(stage: Stage, consumers: list[Consumer]) -> dict[Shard, list[str]]:
    """Shard -> the consumers that believe to hold its lease."""
    found: dict[Shard, list[str]] = {}
    for consumer in consumers:
        for lease in consumer._engine.leases.held():
            if consumer._engine.leases.is_valid(lease):
                found.setdefault(lease.shard, []).append(consumer.member)
    return found


def test_two_consumers_share_the_lanes_and_no_shard_has_two_active_leases(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=8)
    queue.put_many({"body": f"{n}", "delay": f"{n * 10}ms"} for n in range(1_200))
    made = members(stage, 2)
    consumers = [consumer for consumer, _ in made]
    stage.drive(*consumers, seconds=0.3)

    def check() -> bool:
        assert all(len(names) == 1 for names in holders(stage, consumers).values())
        return stage.is_empty(queue)

    assert stage.drive(*consumers, seconds=120, until=check)
    texts = made[0][1].texts + made[1][1].texts
    assert sorted(texts, key=int) == [f"{n}" for n in range(1_200)]
    assert all(len(seen) >= 100 for _, seen in made)
    assert min(made[0][1].late_ms + made[1][1].late_ms) >= 0


def test_every_lane_is_read_by_one_member_once_they_know_each_other(stage: Stage) -> None:
    stage.connect().queue("mail", lanes=8, bands=1)
    consumers = [consumer for consumer, _ in members(stage, 3)]
    stage.drive(*consumers, seconds=10)
    lanes = Counter(lane for consumer in consumers for lane in consumer._engine.memory.lanes)
    assert lanes == dict.fromkeys(range(8), 1)


def test_a_member_that_joins_takes_its_share_and_one_that_leaves_gives_it_back(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=8, bands=1)
    sent = [queue.put(f"{n}", delay=f"{n * 50}ms").text for n in range(800)]
    (a, seen_a), (b, seen_b) = members(stage, 2)
    stage.drive(a, seconds=5)
    stage.drive(a, b, seconds=15)
    assert set(a._engine.memory.lanes) | set(b._engine.memory.lanes) == set(range(8))
    assert not set(a._engine.memory.lanes) & set(b._engine.memory.lanes)
    b.close()
    stage.drive(a, seconds=4)
    assert set(a._engine.memory.lanes) == set(range(8))
    stage.drain(queue, a)
    assert sorted(seen_a.texts + seen_b.texts) == sorted(sent)


def test_a_clean_end_hands_over_without_waiting_for_a_lease_to_lapse(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    (a, _), (b, seen) = members(stage, 2)
    queue.put("first")
    stage.drive(a, seconds=1)
    queue.put("second", delay="100ms")
    stage.drive(a, seconds=0.05)
    a.close()
    stage.drive(b, seconds=1)
    assert seen.texts == ["second"]
    assert "edit" not in stage.faults.calls


def test_a_due_shard_that_its_member_leaves_alone_is_adopted_by_the_next(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4)
    (a, _), (b, seen) = members(stage, 2)
    stage.drive(a, b, seconds=8)
    # a is frozen: it still counts as a member, but reads nothing.
    for n in range(40):
        queue.put(f"{n}")
    stage.drive(b, seconds=4)
    assert len(seen) == 40


def test_where_members_outnumber_lanes_every_one_gets_something(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    for n in range(600):
        queue.put(f"{n}", delay=f"{n * 50}ms")
    made = members(stage, 3)
    stage.drain(queue, *[consumer for consumer, _ in made])
    assert sorted((text for _, seen in made for text in seen.texts), key=int) == [
        f"{n}" for n in range(600)
    ]
    assert all(len(seen) > 60 for _, seen in made)


def test_a_lane_that_was_given_away_is_not_taken_back_before_it_is_come_for(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue._home.register.use_groups()
    (giver, _), (taker, _) = members(stage, 2)
    stage.drive(giver, taker, seconds=8)
    engine = giver._engine
    group, lane = next(
        (f"g{n}", lane)
        for n in range(200)
        if (lane := queue._home.register.layout.group_lane(f"g{n}")) in engine.memory.lanes
    )
    engine.lanes.give({lane: taker._engine.home.member})
    queue.put("waits", group=group)
    stage.drive(giver, seconds=4)
    assert lane not in engine.memory.lanes
    stage.drive(giver, taker, seconds=2)
    assert lane in taker._engine.memory.lanes


def test_a_lane_that_a_member_was_given_can_be_given_on_after_a_moment(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue._home.register.use_groups()
    (giver, _), (taker, _) = members(stage, 2)
    stage.drive(giver, taker, seconds=8)
    lane = max(giver._engine.memory.lanes)
    giver._engine.lanes.give({lane: taker._engine.home.member})
    while lane not in taker._engine.memory.lanes:
        stage.drive(giver, taker, seconds=0.1)
    assert not taker._engine.lanes.may_give(lane)
    stage.drive(giver, taker, seconds=1)
    assert taker._engine.lanes.may_give(lane)


def test_a_member_that_joins_gets_its_share_of_lanes_and_no_more_until_it_can_have_read_it(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", hold="1h")
    queue.put_many({"body": "x", "group": f"g{n}"} for n in range(200))
    engine = Consumer(queue, Recorder(stage.clock), threads=1)._engine
    layout = queue._home.register.layout

    def lanes_after(seconds: float) -> int:
        for _ in range(round(seconds / 0.05)):
            stage.clock.advance(0.05)
            engine.step()
        return sum(layout.is_of_groups(lane) for lane in engine.memory.lanes)

    assert lanes_after(1) == 64
    assert engine.ready.take() is not None
    assert lanes_after(1) == 64
    beat = Heartbeat(threads=8, demand=True, free=8).to_json()
    stage._store.note(MEMBERS, ("mail",), {"other": beat}, 60_000)
    while lanes_after(0.05) == 64:
        pass
    assert lanes_after(1.2) == 32


def test_groups_of_a_member_without_a_free_handler_go_to_others_and_return_when_these_leave() -> (
    None
):
    with Stage(threaded=True) as stage:
        queue = stage.connect().queue("mail", lanes=8, hold="1h")
        queue._home.register.use_groups()
        started, go, done, back = (threading.Event() for _ in range(4))
        at_us = 0

        def block(message: Message) -> None:
            nonlocal at_us
            at_us = stage.clock.boot_us()
            if message.text == "returns":
                back.set()
                return
            started.set()
            assert go.wait(WAIT_S)

        stuck = Consumer(queue, block, threads=1)
        helper = Consumer(stage.connect().queue("mail"), lambda _: done.set(), threads=1)
        layout = queue._home.register.layout
        with stage.ticking(0.02):
            stuck.start()
            helper.start()
            for _ in range(200):
                stage.clock.sleep(0.2)
                mine, others = stuck._engine.memory.lanes, helper._engine.memory.lanes
                if mine and others and not set(mine) & set(others):
                    break
            groups = [f"g{n}" for n in range(200) if layout.group_lane(f"g{n}") in mine]
            queue.put("blocks", group=groups[0])
            assert started.wait(WAIT_S)
            queue.put("waits", group=groups[1])
            assert done.wait(WAIT_S / 2)
            assert 500_000 <= stage.clock.boot_us() - at_us <= 4_000_000
            go.set()
            helper.stop()
            helper.join(WAIT_S)
            left_us = stage.clock.boot_us()
            queue.put("returns", group=groups[1])
            assert back.wait(WAIT_S / 2)
            assert at_us - left_us <= 4_000_000
            stuck.stop()
            stuck.join(WAIT_S)


def test_a_member_that_waits_for_a_free_handler_sleeps_meanwhile(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="1h")
    engine = Consumer(queue, Recorder(stage.clock), threads=1)._engine
    queue.put("runs")
    while engine.ready.take() is None:
        stage.clock.advance(0.01)
        engine.step()
    engine.step()
    engine._is_stuck = True
    for _ in range(3):
        stage.clock.advance(1)
        assert engine.step() >= 0.05
    assert engine._is_stuck


def test_paused_nothing_is_read_and_resumed_it_catches_up_in_order(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    [(consumer, seen)] = members(stage, 1)
    stage.drive(consumer, seconds=1)
    queue.pause()
    stage.drive(consumer, seconds=5)
    sent = []
    for n in range(60):
        sent.append(queue.put(f"{n:02}").text)
        stage.drive(consumer, seconds=5, stride=0.25)
    assert seen.texts == []
    assert stage._store.notes(MEMBERS, ("mail",))
    queue.resume()
    stage.drain(queue, consumer, within="10s")
    assert seen.texts == sent


def test_a_known_pause_holds_what_is_in_hand_although_no_heartbeat_comes_through(
    stage: Stage,
    queue: Queue,
) -> None:
    [(consumer, seen)] = members(stage, 1)
    queue.put("x", delay="4s")
    stage.drive(consumer, seconds=1)
    queue.pause()
    stage.faults.fail("note members", times=1_000)
    stage.drive(consumer, seconds=20)
    assert seen.texts == []
    stage.faults.heal()
    queue.resume()
    stage.drain(queue, consumer, within="10s")
    assert seen.texts == ["x"]


def test_a_step_that_learns_of_a_pause_by_its_heartbeat_reads_nothing(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    [(consumer, seen), (other, _)] = members(stage, 2)
    stage.drive(consumer, other, seconds=5)

    def meanwhile() -> None:
        queue.put_many([str(n) for n in range(100)])
        queue.pause()
        other._engine._register.refresh(force=True)
        stage.clock.advance(3)
        other._engine._beat(demand=True)

    stage.faults.call("notes members", meanwhile, after=False)
    stage.drive(consumer, seconds=20)
    assert seen.texts == []


def test_a_paused_queue_is_not_sealed(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="1s")
    [(consumer, _)] = members(stage, 1)
    queue.pause()
    stage.drive(consumer, seconds=5)
    before = stage._store.notes(LANES, ("mail",))
    queue.put("x")
    stage.drive(consumer, seconds=20)
    assert stage._store.notes(LANES, ("mail",)) == before


@pytest.mark.parametrize("changes", [(8, 3), (8, 2), (3, 8)])
def test_lanes_change_under_load_and_nothing_is_lost_or_out_of_order(
    stage: Stage, changes: tuple[int, ...]
) -> None:
    queue = stage.connect().queue("mail", lanes=2, bands=3)
    made = members(stage, 2)
    consumers = [consumer for consumer, _ in made]
    producer: Queue = stage.connect().queue("mail")
    sent = []
    for second in range(24):
        if second in (8, 16):
            queue.alter(lanes=changes[second // 8 - 1])
        for n in range(10):
            options = {"group": f"g{n % 3}"} if n % 2 else {}
            message = producer.put(
                f"{second:02} {n}", delay=f"{n * 300}ms", priority=n % 3, **options
            )
            sent.append(message.text)
        stage.drive(*consumers, seconds=1)
    stage.drain(queue, *consumers)
    both = [message for _, seen in made for message in seen.messages]
    assert sorted(message.text for message in both) == sorted(sent)
    at = {m.text: at_us for _, seen in made for m, at_us in zip(seen.messages, seen.at_us)}  # noqa: B905
    for group in {(m.group, m.priority) for m in both if m.group}:
        ordered = sorted(
            (m for m in both if (m.group, m.priority) == group), key=lambda m: m._row.order
        )
        times = [at[m.text] for m in ordered]
        assert times == sorted(times)


def test_idle_members_cost_few_writes_and_no_leases(stage: Stage) -> None:
    stage.connect().queue("mail")
    consumers = [consumer for consumer, _ in members(stage, 2)]
    stage.drive(*consumers, seconds=10)
    before = stage._store.counters["lwt"]
    stage.drive(*consumers, seconds=60)
    assert stage._store.counters["lwt"] - before <= 2 * 60
    assert not any(len(consumer._engine.leases) for consumer in consumers)


@pytest.mark.parametrize("isolated", [False, True])
def test_an_idle_consumer_steps_about_ten_times_a_second(stage: Stage, isolated: bool) -> None:
    stage.connect().queue("mail", minute="1s", offset="1s")
    [(consumer, _)] = members(stage, 1, isolated=isolated)
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    stage.drive(consumer, seconds=20, until=count)
    assert steps <= 20 * 20


def test_a_clock_that_goes_too_wrong_ends_a_consumer_rather_than_its_messages(
    stage: Stage,
) -> None:
    db = stage.connect()
    queue = db.queue("mail")
    consumer = Consumer(queue, lambda _: None)
    queue.put("a", delay="1h")
    stage.drive(consumer, seconds=1)
    assert isinstance(db._home.clock, ManualClock)
    db._home.clock.shift_us = 180 * 1_000_000
    # Corrected by what is measured, it goes on as long as the offset is what it was.
    stage.drive(consumer, seconds=65)
    other = stage.connect().queue("mail")
    other.alter(offset="3m1s")
    stage.drive(consumer, seconds=5)
    other.alter(offset="2m59s")
    with pytest.raises(ClockError):
        stage.drive(consumer, seconds=5)
    assert other.depth(exact=True).total == 1


def test_a_dropped_queue_ends_the_step(stage: Stage, queue: Queue) -> None:
    [(consumer, _)] = members(stage, 1)
    stage.drive(consumer, seconds=1)
    queue.drop()
    with pytest.raises(UnknownQueue, match="dropped"):
        stage.drive(consumer, seconds=5)


def test_a_store_in_trouble_is_left_alone_for_longer_and_longer(stage: Stage) -> None:
    stage.connect().queue("mail")
    [(consumer, _)] = members(stage, 1)
    error = StoreUnavailable("away")
    pauses = [consumer._engine.news.back_off(error) for _ in range(8)]
    assert pauses[0] <= 0.1
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0
    consumer.step()
    assert consumer._engine.news.back_off(error) == pauses[0]


def test_a_store_in_trouble_is_asked_again_before_a_short_claim_is_over(stage: Stage) -> None:
    stage.connect().queue("mail", visibility="2s")
    [(consumer, _)] = members(stage, 1)
    pauses = [consumer._engine.news.back_off(StoreUnavailable("away")) for _ in range(8)]
    # It is moved on in its last second: twice is asked by then.
    assert pauses[-1] == 0.5


def test_a_member_tells_observers_what_it_does(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4)
    [(consumer, _)] = members(stage, 1, threads=3)
    stage.drive(consumer, seconds=4)
    [info] = stage._store.notes(MEMBERS, (queue.name,)).values()
    assert '"threads":3' in info
    assert '"lanes":[0,3,6,9]' in info


@pytest.mark.parametrize(("rows", "prefetch", "reads"), [(3_500, 12_000, 0), (100, 800, 1)])
def test_a_batch_of_outcomes_is_stored_without_a_poll_while_many_rows_are_in_memory(
    stage: Stage, rows: int, prefetch: int, reads: int
) -> None:
    queue = stage.connect().queue("mail")
    engine = Consumer(queue, Recorder(stage.clock), prefetch=prefetch)._engine
    queue.put_many({"body": f"{n}"} for n in range(rows))
    engine.step()
    taken = [engine.ready.take() for _ in range(prefetch // 8)]
    stage.clock.advance(0.01)
    stage.connect().queue("mail").put("new")
    engine.news.take(due_us=stage.clock.boot_us() + 50_000)
    for one in taken:
        assert one is not None
        engine.outbox.finish(one, ACKED)
    engine.news.take(due_us=stage.clock.boot_us() + 50_000)
    engine.step()
    left = rows - len(taken)
    assert queue.depth(exact=True).ready == left + 1
    assert len(engine.memory.known) == left + reads
    engine.news.take()
    engine.step()
    assert len(engine.memory.known) == left + 1


def test_the_next_poll_is_not_later_by_the_time_in_which_outcomes_are_stored(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    engine = Consumer(queue, Recorder(stage.clock), prefetch=12_000)._engine
    queue.put_many({"body": f"{n}"} for n in range(3_500))
    engine.step()
    taken = [engine.ready.take() for _ in range(12_000 // 8)]
    due_us = stage.clock.boot_us() + 50_000
    engine.news.take(due_us=due_us)
    for one in taken:
        assert one is not None
        engine.outbox.finish(one, ACKED)
    engine.news.take(due_us=due_us)
    stage.faults.call("delete", partial(stage.clock.advance, 0.04))
    rest_s = engine.step()
    assert queue.depth(exact=True).ready == 2_000
    assert rest_s <= (due_us - stage.clock.boot_us()) / 1e6
