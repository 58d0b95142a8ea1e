"""Looking after lanes of others: seen in time, and at little cost."""

from __future__ import annotations

import pytest
from reading import write

from shardq import Consumer, Queue
from shardq.engine.leases.guard import Guard
from shardq.records.membership import Heartbeat
from shardq.stores.store import Slice
from shardq.stores.tables import MEMBERS
from shardq.testing import Recorder, Stage


def read_by(guard: Guard, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[Slice]:
    """What the next look reads."""
    seen: list[Slice] = []
    read = queue._home.store.read

    def spy(*wanted: Slice) -> object:
        seen.extend(wanted)
        return read(*wanted)

    with monkeypatch.context() as patched:
        patched.setattr(guard, "_store", _With(queue._home.store, spy))
        guard.left_alone(dict.fromkeys(queue._home.register.layout.lanes(), 1))
    return seen


class _With:
    def __init__(self, store: object, read: object) -> None:
        self._store = store
        self.read = read

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_each_look_begins_where_the_last_one_ended(
    stage: Stage, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Guard(queue._home)
    [first] = read_by(guard, queue, monkeypatch)
    assert first.until_ms - first.after_ms == 29_000
    stage.clock.advance(1)
    [second] = read_by(guard, queue, monkeypatch)
    assert second.until_ms - second.after_ms == 2_000


def test_a_row_that_waits_is_looked_at_until_it_is_settled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stage.connect().queue("mail", lanes=1, bands=1)
    waits = queue.put("x")
    guard = Guard(queue._home)
    for _ in range(12):
        stage.clock.advance(2)
        [wanted] = read_by(guard, queue, monkeypatch)
        assert wanted.after_ms < waits.due_ms
    assert guard.left_alone({0: 1}) == {0}
    queue.ack(waits)
    assert guard.left_alone({0: 1}) == set()
    stage.clock.advance(1)
    [wanted] = read_by(guard, queue, monkeypatch)
    assert wanted.until_ms - wanted.after_ms == 2_000


def test_lanes_of_others_that_cannot_be_read_hold_up_nothing(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4, bands=1)
    queue.put("x")
    stage.clock.advance(2)
    guard = Guard(queue._home)
    ranks = dict.fromkeys(range(4), 1)
    stage.faults.fail("read")
    assert guard.left_alone(ranks) == set()
    assert len(guard.left_alone(ranks)) == 1


def test_who_is_further_back_in_line_looks_more_rarely(stage: Stage, queue: Queue) -> None:
    guard = Guard(queue._home)
    looked = []
    for _ in range(9):
        stage.clock.advance(1)
        assert guard.is_due()
        before = stage.faults.calls.get("read", 0)
        guard.left_alone({0: 3})
        looked.append(stage.faults.calls.get("read", 0) > before)
    assert looked == [False, False, True] * 3


def test_a_lane_is_adopted_though_all_before_one_in_line_are_open_and_read_nothing(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=16, bands=1)
    for n in range(8):
        beat = Heartbeat(demand=True, free=0, holder=f"m{n}/1").to_json()
        stage._store.note(MEMBERS, ("mail",), {f"m{n}": beat}, 3_600_000)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen, member="last")
    stage.drive(consumer, seconds=2)
    lanes = queue._home.register.layout.lanes()
    ranks = consumer._engine.membership.ranks(lanes, stage.clock.now_ms())
    rank, lane = max((rank, lane) for lane, rank in ranks.items() if rank <= 6)
    assert rank > 2
    write(stage, queue, stage.clock.now_ms() + 10, b"x", lane=lane)
    stage.drive(consumer, seconds=2 * rank + 2)
    assert seen.texts == ["x"]


def test_a_lane_whose_holder_stands_still_is_adopted_when_its_lease_is_over(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4)
    made = []
    for _ in range(2):
        seen = Recorder(stage.clock)
        made.append((Consumer(stage.connect().queue("mail"), seen), seen))
    (a, _), (b, seen) = made
    queue.put_many(f"{n}" for n in range(400))
    stage.drive(a, b, seconds=8)
    held = {lease.shard.lane for lease in a._engine.leases.held()}
    assert held
    before = len(seen)
    queue.put_many(f"more-{n}" for n in range(400))
    stage.drive(b, seconds=13)
    assert len(seen) - before == 400
