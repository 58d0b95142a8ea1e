"""Due rows that no slot of a member begins soon, and the free slots of others."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shardq import Consumer, Message, Queue
from shardq.engine.engine import Engine
from shardq.engine.leases.lease import MemberLeases
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.ids import row_ids
from shardq.model.message import Row, moved
from shardq.records.membership import Heartbeat, heartbeats
from shardq.stores.store import RowMove
from shardq.stores.tables import MEMBERS
from shardq.testing import Recorder, Stage


class Busy:
    """A member whose only handler runs a message, beside another that is played by the test."""

    def __init__(self, stage: Stage, **settings: Any) -> None:
        self.stage = stage
        self.queue: Queue = stage.connect().queue("mail", **({"lanes": 4} | settings))
        self.layout = self.queue._home.register.layout
        self.number = 0
        self.beat(lanes=())
        self.engine: Engine = Consumer(self.queue, Recorder(stage.clock), threads=1)._engine
        # Like a consumer one of whose handler threads has asked for a message before.
        self.engine.ready.waiters.is_threaded = True
        self.engine.step()
        self.lanes = sorted(self.engine.memory.lanes)
        self.others = [n for n in self.layout.lanes() if n not in self.engine.memory.lanes]
        assert self.lanes
        assert self.others
        # It is there, so nobody steps in for it.
        self.held = MemberLeases(stage._store, stage.clock, "other", window=1)
        now_ms = stage.clock.now_ms()
        self.held.take(self.layout.shard(now_ms, number) for number in self.others)
        self.put("runs")
        self.step()
        runs = self.engine.ready.take()
        assert runs.run(runs.begun_us)
        self.step(0.2)

    def beat(self, **told: Any) -> None:
        """Heartbeat as the other member."""
        self.number += 1
        plain = {"threads": 1, "demand": True, "free": 0, "number": self.number}
        beat = Heartbeat(**(plain | told))
        self.stage._store.note(MEMBERS, ("mail",), {"other": beat.to_json()}, 60_000)

    def free(self, **told: Any) -> None:
        """Tell of a free slot as the other member."""
        self.beat(**({"free": 1, "lanes": tuple(self.others)} | told))

    def put(self, *texts: str, lane: int | None = None, **options: Any) -> None:
        """Put into a lane of the busy member."""
        store, number = self.queue._home.store, self.lanes[0] if lane is None else lane
        # Due after what has been read.
        self.stage.clock.advance(0.002)
        for text in texts:
            sent = self.queue.put(text, **options)
            row = next(one for one in self.queue.peek(1_000) if one.id == sent.id)._row
            shard = self.layout.shard(row.due_ms, number)
            fresh = row_ids.next(self.stage.clock.now_us())
            new = moved(row, shard, row.due_ms, fresh, attempt=row.attempt, claim=None)
            store.move([RowMove(row.position, new)])

    def step(self, seconds: float = 0.05) -> None:
        self.stage.clock.advance(seconds)
        self.held.renew()
        self.engine.step()

    def shared(self) -> list[str]:
        """What the other member is to find in its lanes, first due first."""
        rows = sorted((one._row for one in self.queue.peek(1_000)), key=lambda row: row.due_ms)
        return [row.body.decode() for row in rows if row.shard.lane in self.others]


def test_a_due_row_that_waits_for_a_slot_goes_to_a_member_with_a_free_one(stage: Stage) -> None:
    busy = Busy(stage)
    busy.put("first", "second")
    busy.free()
    busy.step()
    assert busy.shared() == ["first"]
    assert busy.engine.ready.due == 1


def test_a_shared_message_is_as_late_as_it_was_and_has_used_no_attempt(stage: Stage) -> None:
    busy = Busy(stage)
    due_ms = stage.clock.now_ms()
    busy.put("waits")
    busy.step(0.5)
    busy.free()
    busy.step()
    assert busy.shared() == ["waits"]
    [found] = [one for one in busy.queue.peek(1_000) if one.text == "waits"]
    assert due_ms <= found.due_ms <= due_ms + 5
    assert found._row.attempt == 0


def test_a_free_slot_gets_as_much_as_it_ends_in_0_3_s(stage: Stage) -> None:
    busy = Busy(stage)
    for n in range(20):
        busy.put(f"{n}")
        busy.step(0.05)
        if (one := busy.engine.ready.take()) is not None:
            busy.engine.outbox.hand_over(one)
    busy.put(*(f"waits {n}" for n in range(12)))
    busy.free()
    busy.step()
    assert 4 <= len(busy.shared()) <= 8


def test_messages_that_take_less_than_5_ms_are_not_shared(stage: Stage) -> None:
    busy = Busy(stage)
    for n in range(20):
        busy.put(*(f"{n}/{m}" for m in range(15)))
        busy.step(0.05)
        for _ in range(15):
            one = busy.engine.ready.take()
            assert one is not None
            busy.engine.outbox.hand_over(one)
    busy.put(*(f"waits {n}" for n in range(50)))
    busy.free()
    before = stage.faults.calls["notes members"]
    busy.step(0.01)
    assert busy.shared() == []
    assert stage.faults.calls["notes members"] == before


def test_a_slot_is_filled_once_a_heartbeat(stage: Stage) -> None:
    busy = Busy(stage)
    busy.put("first", "second", "third")
    busy.free()
    for _ in range(10):
        busy.step(0.06)
    assert busy.shared() == ["first"]
    busy.free(begun=1)
    busy.step(0.06)
    assert busy.shared() == ["first", "second"]


def test_each_of_several_free_slots_gets_one(stage: Stage) -> None:
    busy = Busy(stage)
    busy.put("first", "second", "third", "fourth")
    busy.free(free=3, threads=4)
    busy.step()
    assert busy.shared() == ["first", "second", "third"]


def test_no_more_slots_are_believed_than_a_member_has_threads(stage: Stage) -> None:
    busy = Busy(stage)
    busy.put("first", "second", "third")
    busy.free(free=512, threads=2)
    busy.step()
    assert len(busy.shared()) == 2


def test_who_begins_nothing_of_what_it_was_given_is_shunned_for_3_s_and_then_for_30(
    stage: Stage,
) -> None:
    busy = Busy(stage)
    busy.put(*(f"{n}" for n in range(30)))
    given_s: list[float] = []
    until_us = stage.clock.boot_us() + 45_000_000
    while stage.clock.boot_us() < until_us:
        busy.free()
        before = len(busy.engine.sharing._seen) and busy.engine.sharing._turn
        busy.step(0.5)
        if busy.engine.sharing._turn > before:
            given_s.append(stage.clock.boot_us() / 1e6)
        if (one := busy.engine.ready.take()) is not None:
            # Otherwise the member would count as stuck.
            busy.engine.outbox.hand_over(one)
            busy.put("more")
    gaps = sorted(after - before for before, after in itertools.pairwise(given_s))
    assert 30 <= gaps[-1] <= 33
    assert 3 <= gaps[-2] <= 5
    assert len(given_s) <= 14


def test_who_was_given_rows_of_a_lane_that_is_not_its_own_any_more_is_not_shunned(
    stage: Stage,
) -> None:
    busy = Busy(stage)
    busy.put(*(f"{n}" for n in range(9)))
    for _ in range(6):
        busy.free(lanes=(busy.others[0],))
        busy.step(0.6)
        busy.free(lanes=(busy.others[1],))
        busy.step(0.6)
    assert len(busy.shared()) >= 5


@pytest.mark.parametrize(
    "told", [{"isolated": True}, {"demand": False}, {"lanes": ()}, {"lanes": (7_000,)}]
)
def test_nothing_is_given_to_who_would_not_find_it_soon(stage: Stage, told: dict[str, Any]) -> None:
    busy = Busy(stage)
    busy.put("waits")
    busy.free(**told)
    busy.step()
    busy.step()
    assert busy.shared() == []


def test_rows_of_groups_stay_in_their_lane(stage: Stage) -> None:
    busy = Busy(stage)
    busy.queue.put_many({"body": f"{n}", "group": f"g{n}"} for n in range(40))
    of_groups = [one._row.shard.lane for one in busy.queue.peek(1_000) if one.text != "runs"]
    for _ in range(5):
        busy.free()
        busy.step()
    assert [m._row.shard.lane for m in busy.queue.peek(1_000) if m.text != "runs"] == of_groups
    busy.put("free")
    busy.free()
    busy.step()
    assert "free" in busy.shared()


def test_a_claim_whose_time_is_up_stays(stage: Stage) -> None:
    busy = Busy(stage, visibility="2s")
    busy.put("waits")
    [waits] = [one._row for one in busy.queue.peek(1_000) if one.text == "waits"]
    due_ms = stage.clock.now_ms() + 100
    shard = busy.layout.shard(due_ms, waits.shard.lane)
    fresh = row_ids.next(stage.clock.now_us())
    claim = moved(waits, shard, due_ms, fresh, attempt=1, claim="other")
    busy.queue._home.store.move([RowMove(waits.position, claim)])
    busy.step(0.3)
    assert busy.engine.ready.due == 1
    busy.free()
    busy.step()
    assert busy.shared() == []


def test_a_row_that_was_shared_just_now_stays_for_a_while(stage: Stage) -> None:
    busy = Busy(stage)
    busy.put("waits")
    [waits] = [one._row for one in busy.queue.peek(1_000) if one.text == "waits"]
    now_us = stage.clock.now_us()
    due_ms = now_us // 1_000 + 1
    shard = busy.layout.shard(due_ms, waits.shard.lane)
    new = moved(
        waits,
        shard,
        due_ms,
        row_ids.next(now_us),
        attempt=0,
        claim=None,
        since_ms=due_ms - 4_000,
    )
    busy.queue._home.store.move([RowMove(waits.position, new)])
    for _ in range(3):
        busy.free()
        busy.step(0.1)
        assert busy.shared() == []
    # It has been late for 4 s, and so stays for 0.4 s.
    busy.free()
    busy.step(0.2)
    assert busy.shared() == ["waits"]


@pytest.mark.parametrize("applied", [False, True])
def test_a_share_whose_answer_was_lost_is_repeated_unchanged(
    stage: Stage, *, applied: bool
) -> None:
    busy = Busy(stage)
    busy.put("waits")
    busy.free()
    stage.faults.fail("move", applied=applied)
    with pytest.raises((StoreTimeout, StoreUnavailable)):
        busy.step()
    # No thread here gets the row meanwhile.
    assert busy.engine.ready.take() is None
    [pending] = busy.engine.outbox._moves
    busy.step()
    assert busy.engine.outbox.is_empty
    [found] = [one._row for one in busy.queue.peek(1_000) if one.text == "waits"]
    assert found.id == pending.move.new.id
    assert busy.shared() == ["waits"]


def test_nothing_is_moved_once_its_lease_is_over(stage: Stage) -> None:
    busy = Busy(stage)
    busy.put("waits")
    busy.step(0.06)
    [one] = [one for one in busy.engine.memory.known.values() if not one.begun_us]
    assert busy.engine.ready.relinquish(1, lambda _: True) == [one]
    one.lease.deadline_us = stage.clock.boot_us()
    busy.engine.outbox.share(one, busy.others[0])
    assert busy.engine.outbox.is_empty
    assert one.row.id not in busy.engine.memory.known
    assert busy.shared() == []


def test_who_got_nothing_for_a_lease_that_is_over_is_not_shunned(stage: Stage) -> None:
    busy = Busy(stage)
    busy.put("waits")
    busy.step(0.06)
    [lease] = {one.lease for one in busy.engine.memory.known.values() if not one.begun_us}
    was_us, lease.deadline_us = lease.deadline_us, 0
    for _ in range(12):
        busy.free()
        busy.step(0.1)
        assert busy.shared() == []
    lease.deadline_us = was_us
    busy.free()
    busy.step()
    assert busy.shared() == ["waits"]


def test_large_rows_are_moved_few_at_once(stage: Stage) -> None:
    busy = Busy(stage)
    stage.clock.advance(0.002)
    # One by one: of a batch, its own lanes may get none.
    for _ in range(40):
        busy.queue.put(b"x" * (1 << 20))
    busy.step()
    before = len(busy.shared())
    busy.free(free=8, threads=8)
    busy.step()
    assert len(busy.shared()) == before + 4


def test_what_could_not_be_moved_before_the_lease_was_over_is_read_again(stage: Stage) -> None:
    busy = Busy(stage)
    busy.put("waits")
    busy.free()
    stage.faults.fail("move", applied=False)
    with pytest.raises((StoreTimeout, StoreUnavailable)):
        busy.step()
    for lease in busy.engine.leases.held():
        lease.deadline_us = stage.clock.boot_us()
    busy.engine.outbox.flush()
    assert busy.engine.outbox.is_empty
    assert busy.shared() == []
    assert [one.text for one in busy.queue.peek(1_000)].count("waits") == 1


def test_a_member_tells_of_its_surplus_and_of_its_free_slots(stage: Stage) -> None:
    busy = Busy(stage)
    busy.put("first", "second")
    at_ms = stage.clock.now_ms()
    for _ in range(3):
        busy.step(0.1)
    told = heartbeats(stage._store, "mail")[busy.engine.home.member]
    assert (told.free, told.surplus, told.begun) == (0, 2, 1)
    assert at_ms - 2 <= told.oldest_ms <= at_ms + 1


def test_a_slot_that_a_step_finds_free_too_early_is_told_by_another_10_ms_after_it_was_freed(
    stage: Stage,
) -> None:
    busy = Busy(stage)
    freed_us, far_us = stage.clock.boot_us(), stage.clock.boot_us() + 1_000_000
    # A handler's thread that begins to wait makes this call.
    busy.engine.ready.on_wait()
    busy.step(0.003)
    assert busy.engine.news._until_us(far_us) == freed_us + 10_000
    busy.step(0.007)
    assert busy.engine.news._until_us(far_us) == far_us


@pytest.mark.parametrize("shared", [True, False])
def test_a_slot_that_has_ended_what_it_was_given_is_told_at_once_though_no_surplus_was(
    stage: Stage, shared: bool
) -> None:
    queue = stage.connect().queue("mail", lanes=4)
    plain = Heartbeat(threads=1, demand=True, free=0, number=1)
    stage._store.note(MEMBERS, ("mail",), {"other": plain.to_json()}, 60_000)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen, threads=1)
    stage.drive(consumer, seconds=1)
    told = heartbeats(stage._store, "mail")[consumer._engine.home.member]
    assert told.free == 1
    # A member does so that shares a row in the step that has read it.
    now_ms, now_us = stage.clock.now_ms(), stage.clock.now_us()
    shard = queue._home.register.layout.shard(now_ms, told.lanes[0])
    since_ms = now_ms - 200 if shared else None
    row = Row(shard, now_ms, row_ids.next(now_us), b"given", since_ms=since_ms)
    stage._store.insert([row])
    stage.drive(consumer, seconds=0.5)
    assert seen.texts == ["given"]
    assert heartbeats(stage._store, "mail")[consumer._engine.home.member].begun == shared


def test_alone_nothing_but_the_heartbeat_is_written_or_read(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen, threads=1)
    queue.put_many(f"{n}" for n in range(3_000))
    stage.drive(consumer, seconds=2.5)
    assert len(seen) == 3_000
    # One look before the first heartbeat, and one with it.
    assert (stage.faults.calls["notes members"], stage.faults.calls["note members"]) == (2, 1)
    assert "move" not in stage.faults.calls


def test_slow_messages_of_one_lane_are_worked_by_all_members(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4, bands=1)

    def work(_message: Message) -> None:
        stage.clock.advance(0.4)

    seen = [Recorder(stage.clock, work) for _ in range(2)]
    consumers = [Consumer(stage.connect().queue("mail"), one, threads=1) for one in seen]
    stage.drive(*consumers, seconds=4)
    sent = [queue.put(f"{n}") for n in range(40)]
    store, layout = queue._home.store, queue._home.register.layout
    lane = min(consumers[0]._engine.memory.lanes)
    for message in queue.peek(1_000):
        row = message._row
        if row.shard.lane != lane:
            shard = layout.shard(row.due_ms, lane)
            fresh = row_ids.next(stage.clock.now_us())
            new = moved(row, shard, row.due_ms, fresh, attempt=0, claim=None)
            store.move([RowMove(row.position, new)])
    stage.drain(queue, *consumers)
    texts = seen[0].texts + seen[1].texts
    assert sorted(texts, key=int) == [f"{n}" for n in range(len(sent))]
    assert min(map(len, seen)) >= 8


def test_newer_settings_that_another_follows_are_read_once_for_each(stage: Stage) -> None:
    busy = Busy(stage)
    before = stage.faults.calls["records queues"]
    for _ in range(8):
        busy.free(version=1_000_000)
        busy.step(0.3)
    assert stage.faults.calls["records queues"] == before + 1


def test_what_a_receiver_leaves_due_between_two_calls_goes_to_who_waits(stage: Stage) -> None:
    busy = Busy(stage)
    busy.held.release([lease.shard for lease in busy.held.held()])
    busy.engine.close()
    queue = stage.connect().queue("mail")
    queue.receive(max=1, visibility="60s")
    engine = queue._receiver._engine
    busy.lanes = sorted(engine.memory.lanes)
    busy.others = [n for n in busy.layout.lanes() if n not in engine.memory.lanes]
    busy.put("first", "second", "third")
    stage.clock.advance(0.06)
    assert [one.text for one in queue.receive(max=1, visibility="60s")] == ["first"]
    stage.clock.advance(0.11)
    busy.free()
    engine.step()
    assert busy.shared()[:1] == ["second"]


def test_all_agree_who_reads_which_lane_while_some_are_not_filled_yet(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=32, group_lanes=8)
    engines = [Consumer(queue, Recorder(stage.clock), member=f"{n}")._engine for n in range(3)]
    queue.alter(lanes=8)
    for _ in range(40):
        stage.clock.advance(0.1)
        for one in engines:
            one.step()
    layout = queue._home.register.layout
    assert layout.lanes_written < len(layout.lanes()) // layout.bands
    for one in engines:
        readers = one.sharing._readers()
        for other in engines:
            theirs = {lane for lane, name in readers.items() if name == other.home.member}
            assert theirs == (set() if other is one else set(other.memory.lanes))
