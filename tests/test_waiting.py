"""A group that waits goes on, in order, whatever the store did not answer meanwhile."""

from __future__ import annotations

import pytest
from reading import groups_in
from test_heads import taken_head
from test_settle import settler_of, with_one_behind

from shardq import Consumer
from shardq.engine.outcome import ACKED
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.stores.tables import BLOCKED
from shardq.testing import Recorder, Stage


@pytest.mark.parametrize("wait_ms", [60_000, 660_000])
@pytest.mark.parametrize("applied", [False, True])
def test_a_group_goes_on_from_where_it_is_though_that_it_waits_less_or_longer_was_not_answered(
    stage: Stage, wait_ms: int, *, applied: bool
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    with_one_behind(queue, settler, 600_000)
    stage.faults.fail("note blocked", applied=applied)
    with pytest.raises(StoreTimeout if applied else StoreUnavailable):
        groups.block(0, "g", stage.clock.now_ms() + wait_ms, "head")
    groups.unblock(0, "g", "head")
    assert [message.due_ms for message in queue.peek()] == [stage.clock.now_ms()]


def test_what_waits_stays_where_it_is_while_its_head_comes_back_soon(stage: Stage) -> None:
    # The head is moved only then: what is there before it would go before it.
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    waiting = with_one_behind(queue, settler, 600_000)
    assert groups.block(0, "g", stage.clock.now_ms() + 500, "head") == waiting.due_ms
    assert [message.due_ms for message in queue.peek()] == [waiting.due_ms]
    groups.unblock(0, "g", "head")
    assert [message.due_ms for message in queue.peek()] == [stage.clock.now_ms()]


def test_a_group_put_off_for_less_twice_waits_at_one_due_though_the_first_could_not_be_said(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    with_one_behind(queue, settler, 600_000)
    now_ms = stage.clock.now_ms()
    stage.faults.fail("note blocked")
    with pytest.raises(StoreUnavailable):
        groups.block(0, "g", now_ms + 60_000, "head")
    groups.block(0, "g", now_ms + 30_000, "head")
    assert [message.due_ms for message in queue.peek()] == [now_ms + 30_000]


def test_what_was_pulled_by_a_try_whose_answer_was_lost_is_said_though_the_look_after_it_failed(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    row = queue.put("first", group="g")._row
    move = settler.planner.move(row, stage.clock.now_ms() + 60_000, attempt=0)
    settler.carry_out([move])
    groups.block(0, "g", stage.clock.now_ms(), "head")
    stage.clock.advance(1)
    stage.faults.fail("move", applied=True)
    with pytest.raises(StoreTimeout):
        groups.free([move.new], {})
    # The repeat finds it gone, and fails as it looks whether it is where it was to go.
    stage.faults.fail("find", nth=2)
    with pytest.raises(StoreUnavailable):
        groups.free([move.new], {})
    groups.free([move.new], {})
    [pulled] = queue.peek()
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (pulled.due_ms, "head")}


@pytest.mark.parametrize("is_said", [False, True])
def test_a_group_is_freed_by_an_ack_whose_answer_was_lost_after_a_park_anew_could_not_be_told(
    stage: Stage, *, is_said: bool
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, hold="30s", visibility="60s")
    consumer, seen, one = taken_head(stage, queue, claimed=True)
    before = dict(stage._store.notes(BLOCKED, ("mail", one.row.shard.lane)))
    stage.clock.advance(max(one.row.due_ms - stage.clock.now_ms() - 29_000, 0) / 1e3)
    stage.faults.fail("note blocked", applied=is_said)
    with pytest.raises(StoreTimeout if is_said else StoreUnavailable):
        consumer._engine.step()
    assert (stage._store.notes(BLOCKED, ("mail", one.row.shard.lane)) != before) == is_said
    stage.faults.fail("delete", applied=True)
    consumer._engine.outbox.finish(one, ACKED)
    with pytest.raises(StoreTimeout):
        consumer._engine.outbox.flush(everything=True)
    consumer._engine.outbox.flush(everything=True)
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["next"]


@pytest.mark.parametrize("stood_s", [0.1, 1, 10])
def test_what_waits_for_an_acked_head_is_not_passed_though_the_answer_of_its_move_came_late(
    stage: Stage, stood_s: float
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1)
    row = queue.put("head", group="g", delay="10m")._row
    with_one_behind(queue, settler_of(queue), 600_000, "next")
    groups_in(queue).block(0, "g", row.due_ms, row.message_id)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    queue.put("other")
    stage.drive(consumer, seconds=5)
    # The answer comes only after a while, and says that nothing is known.
    stage.faults.call("move", lambda: stage.drive(consumer, seconds=stood_s), after=False)
    stage.faults.fail("move", error=StoreTimeout("no answer"))
    queue.ack(next(message for message in queue.peek() if message.text == "head"))
    queue.put("since", group="g")
    begun_us = stage.clock.boot_us()
    while len(seen) < 3 and stage.clock.boot_us() - begun_us < 60_000_000:
        stage.drive(consumer, seconds=0.1)
    # Both may wait until the head would have come.
    assert seen.texts in (["other"], ["other", "next", "since"])


@pytest.mark.parametrize("stood_s", [1, 3])
def test_what_is_pulled_by_a_move_that_is_repeated_goes_before_what_was_put_since(
    stage: Stage, stood_s: float
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, hold="30s", visibility="60s")
    consumer, seen, one = taken_head(stage, queue, claimed=True)
    engine = consumer._engine
    engine.outbox.finish(one, ACKED)
    stage.faults.call("move", lambda: stage.clock.advance(stood_s), after=False)
    stage.faults.fail("move")
    with pytest.raises(StoreUnavailable):
        engine.step()
    # Polls pass the due at which what waited was to come when the store did not take it.
    stage.clock.advance(0.05)
    engine.reader.poll()
    queue.put("since", group="g")
    stage.drive(consumer, seconds=3)
    assert seen.texts == ["next", "since"]


@pytest.mark.parametrize("ends", ["later", "before", "meanwhile"])
def test_what_a_block_that_failed_half_way_has_left_goes_along_at_the_next_flush(
    stage: Stage, ends: str
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, hold="30s", visibility="60s")
    consumer, _, one = taken_head(stage, queue, claimed=True)
    heads, [waits] = consumer._engine.outbox.heads, [m for m in queue.peek() if m.text == "next"]
    until_ms = waits.due_ms + 60_000
    stage.faults.fail("move")
    with pytest.raises(StoreUnavailable):
        heads.block_behind(one, until_ms)
    assert not heads.is_idle

    def end() -> None:
        # Another has the head by then, and pulls what waits where the block says: there is nothing.
        groups_in(queue).unblock(one.row.shard.lane, "g", one.row.message_id)

    if ends == "before":
        end()
    elif ends == "meanwhile":
        stage.faults.call("move", end, after=False)
    heads.flush()
    assert heads.is_idle
    [moved] = [message for message in queue.peek() if message.text == "next"]
    assert moved.due_ms == (until_ms if ends == "later" else stage.clock.now_ms())


def test_what_has_come_due_goes_along_with_a_head_that_is_put_off_to_a_time_long_over(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    engine = Consumer(queue, Recorder(stage.clock))._engine
    rows = [queue.put(text, group="g", delay=f"{n}s")._row for n, text in enumerate("abc")]
    engine.intake.keep([rows[0].shard.lane], dict)
    stage.clock.advance(3)
    engine.reader.poll()
    head = engine.ready.take()
    assert head is not None
    assert head.row.body == b"a"
    engine.outbox.heads.block_behind(head, rows[1].due_ms)
    engine.outbox.flush()
    # Nothing is put to the past: what stayed would pass what is to come back at once.
    now_ms = stage.clock.now_ms()
    assert {m.text: m.due_ms - now_ms for m in queue.peek()} == {"a": -3_000, "b": 0, "c": 0}
