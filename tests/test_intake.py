"""Taking rows in: what is another's, what was settled meanwhile, whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardq import Consumer
from shardq.settle import Settler
from shardq.testing import Recorder, Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


def test_what_is_settled_between_a_read_and_the_lease_is_not_handed_out_again(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen, again = Recorder(stage.clock), Recorder(stage.clock)
    first = Consumer(queue, seen)
    second = Consumer(stage.connect().queue("mail"), again)
    queue.put("x")
    stage.clock.advance(0.01)
    while (running := first.engine.ready.take()) is None:
        first.engine.step()

    def hand_over() -> None:
        first._deliver(running)
        first.close()

    # The second has read the row by now, and gets its lease from the first in good order.
    stage.faults.call("take", hand_over, after=False)
    stage.drive(second, seconds=10)
    assert seen.texts == ["x"]
    assert again.texts == []
    assert stage.is_empty(queue)


def test_who_gets_a_shard_s_lease_looks_whether_a_head_was_parked_until_just_now(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    holder = Consumer(queue, Recorder(stage.clock))
    queue.put("x", group="g")
    while not holder.engine.leases.held():
        stage.clock.advance(0.01)
        holder.engine.step()
    [lease] = holder.engine.leases.held()
    seen = Recorder(stage.clock)
    other = Consumer(stage.connect().queue("mail"), seen)
    other.engine.intake.keep([0], dict)
    rows = [found.row for found in queue.peek()]
    assert other.engine.intake.accept(rows) != {}
    stage.clock.advance(0.3)
    until_ms = stage.clock.now_ms() + 60_000
    stage.store.block("mail", 0, "g", until_ms=until_ms, message="head", ttl_ms=120_000)
    stage.store.release({lease.shard: lease.lock})
    assert other.engine.intake.accept(rows) == {}
    other.engine.intake.lanes[0].groups_to = None
    other.engine.intake.close_groups()
    other.engine.ready.set_reach({0: (until_ms, b"")})
    assert other.engine.ready.take() is None
    other.engine.outbox.flush()
    assert [found.due_ms for found in queue.peek()] == [until_ms]


def test_what_is_read_before_what_waited_behind_a_head_goes_after_it(stage: Stage) -> None:
    # Another member put it off, and this one has not read up to there yet.
    queue = stage.connect().queue("mail", lanes=1)
    first = queue.put("first", group="g").row
    last = queue.put("last", delay="50ms", group="g").row
    until_ms = stage.clock.now_ms() + 100
    stage.store.block("mail", 0, "g", until_ms=until_ms, message="head", ttl_ms=60_000)
    settler = Settler(queue.store, queue.clock, queue.register)
    settler.carry_out([settler.plan_move(first, until_ms, attempt=0)])
    stage.clock.advance(0.6)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    consumer.engine.intake.keep([0], dict)
    consumer.engine.intake.lanes[0].advance(until_ms - 60)
    assert consumer.engine.intake.accept([last]) == {}
    consumer.engine.outbox.flush()
    assert {found.text: found.due_ms for found in queue.peek()} == {
        "first": until_ms,
        "last": stage.clock.now_ms(),
    }
    stage.drain(queue, consumer)
    assert seen.texts == ["first", "last"]


def test_what_is_read_after_all_that_waited_behind_a_head_stays_where_it_is(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    row = queue.put("last", group="g").row
    until_ms = stage.clock.now_ms() + 100
    stage.store.block("mail", 0, "g", until_ms=until_ms, message="head", ttl_ms=60_000)
    stage.clock.advance(0.6)
    consumer = Consumer(queue, Recorder(stage.clock))
    consumer.engine.intake.keep([0], dict)
    consumer.engine.intake.lanes[0].advance(until_ms)
    assert consumer.engine.intake.accept([row]) == {}
    consumer.engine.outbox.flush()
    assert [found.row for found in queue.peek()] == [row]
