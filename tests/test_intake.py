"""Taking rows in: what is another's, what was settled meanwhile, whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

from shardq import Consumer
from shardq.errors import StoreOverread
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from shardq.message import Row
    from shardq.shard import Shard
    from shardq.store import Slice, Store


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


class Laden:
    """A store in which so much was settled that reads of first rows fail, unless they are short."""

    def __init__(self, store: Store, *, span_ms_max: int) -> None:
        self._store = store
        self._span_ms_max = span_ms_max
        self.refused = 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    def read(self, *wanted: Slice) -> list[Row]:
        for one in wanted:
            if one.purpose == "groups" and one.until_ms - one.after_ms > self._span_ms_max:
                self.refused += 1
                raise StoreOverread("too many tombstones")
        return self._store.read(*wanted)

    def occupied(self, *_: object) -> list[Shard]:
        raise StoreOverread("too many tombstones")


def handed_over(stage: Stage, *, span_ms_max: int, group: str | None) -> tuple[Recorder, Laden]:
    """What a member is handed that gets a lane from another, whose minutes are full of settled."""
    queue = stage.connect().queue("mail", lanes=1)
    first = Consumer(queue, Recorder(stage.clock))
    queue.put_many({"body": body, "group": group} for body in "abc")
    while not first.engine.leases.held():
        stage.clock.advance(0.01)
        first.engine.step()
    seen = Recorder(stage.clock)
    second = Consumer(stage.connect().queue("mail"), seen)
    laden = Laden(second.engine.intake._store, span_ms_max=span_ms_max)
    second.engine.intake._store = cast("Store", laden)
    second.engine.intake.keep([0], dict)
    # Refused, for the first has the lease.
    assert second.engine.intake.accept([found.row for found in queue.peek()]) != {}
    first.close()
    stage.drive(second, seconds=30)
    assert stage.is_empty(queue)
    return seen, laden


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("span_ms_max", [20_000, 1_000, 60])
def test_who_gets_a_lane_reads_in_pieces_what_is_full_of_settled_rows(
    stage: Stage, caplog: pytest.LogCaptureFixture, span_ms_max: int, group: str | None
) -> None:
    seen, laden = handed_over(stage, span_ms_max=span_ms_max, group=group)
    assert sorted(seen.texts) == ["a", "b", "c"]
    assert laden.refused > 0
    # No step fails for it, for what else the step has to do would not be done.
    assert "trying again" not in caplog.text
