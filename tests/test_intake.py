"""Taking rows in: what is another's, what was settled meanwhile, whose turn it is."""

from __future__ import annotations

import pytest

from shardq import Consumer
from shardq.errors import StoreUnavailable
from shardq.testing import Recorder, Stage


def test_what_is_settled_between_a_read_and_the_lease_is_not_handed_out_again(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen, again = Recorder(stage.clock), Recorder(stage.clock)
    first = Consumer(queue, seen)
    second = Consumer(stage.connect().queue("mail"), again)
    queue.put("x")
    stage.clock.advance(0.01)
    while (running := first._engine.ready.take()) is None:
        first._engine.step()

    def hand_over() -> None:
        first._deliver(running)
        first._engine.close()

    # The second has read the row by now, and gets its lease from the first in good order.
    stage.faults.call("take", hand_over, after=False)
    stage.drive(second, seconds=10)
    assert seen.texts == ["x"]
    assert again.texts == []
    assert stage.is_empty(queue)


def test_no_lane_is_left_where_it_fails_to_ask_for_those_that_are_new(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer = Consumer(queue, Recorder(stage.clock))
    stage.drive(consumer, seconds=1)
    intake, memory = consumer._engine.intake, consumer._engine.memory
    first, *others = memory.lanes
    intake.keep(others, dict)

    def fail() -> dict[int, int]:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        intake.keep([first], fail)
    assert {lane.number for lane in memory.polled} <= memory.lanes.keys()
    stage.drive(consumer, seconds=1)


def test_who_waits_for_another_s_shard_reads_from_its_first_row_not_what_was_settled_before(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    holder = Consumer(queue, Recorder(stage.clock))
    stage.clock.advance(3)
    queue.put("waits")
    while not holder._engine.leases.held():
        stage.clock.advance(0.01)
        holder._engine.step()
    [row] = [found._row for found in queue.peek()]
    other = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))._engine
    other.intake.keep([0], dict)
    other.reader.poll()
    assert (other.memory.known, other.memory.lanes[0].cursor_ms) == ({}, row.due_ms - 1)
    # The row is read as soon as the shard is free.
    holder._engine.retire()
    holder._engine.release_idle()
    stage.clock.advance(0.3)
    other.reader.poll()
    assert list(other.memory.known) == [row.id]
