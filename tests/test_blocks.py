"""Blocks of groups: which are read, what is known of them, and what is forgotten."""

from __future__ import annotations

import pytest
from reading import groups_in

from shardq import Consumer
from shardq.engine import lane
from shardq.engine.engine import Engine
from shardq.engine.outcome import ACKED
from shardq.errors import StoreOverread
from shardq.lifecycle.settle import Settler
from shardq.stores.tables import BLOCKED
from shardq.testing import Recorder, Stage

OVERREAD = StoreOverread("more deleted rows than a read may pass")


def reading(stage: Stage) -> Engine:
    """The engine of a consumer that reads lane 0 of the queue, and has put nothing there."""
    engine = Consumer(stage.connect().queue("mail", lanes=1), Recorder(stage.clock))._engine
    engine.intake.keep([0], dict)
    return engine


def block(stage: Stage, group: str, seconds: float, head: str = "head") -> int:
    """Another says that a group waits; gives until when."""
    until_ms = stage.clock.now_ms() + round(seconds * 1_000)
    stage._store.note(BLOCKED, ("mail", 0), {group: (until_ms, head)}, 600_000)
    return until_ms


def taken(stage: Stage, engine: Engine, polls: int) -> list[bytes]:
    """The bodies of what is handed out and acked, one after each poll, 0.1 s apart."""
    bodies = []
    for _ in range(polls):
        engine.reader.poll()
        if (one := engine.ready.take()) is not None:
            bodies.append(one.row.body)
            engine.outbox.finish(one, ACKED)
            engine.outbox.flush()
        stage.clock.advance(0.1)
    return bodies


def test_of_a_lane_s_blocks_those_of_groups_in_hand_are_read(stage: Stage) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    first_ms, second_ms = block(stage, "first", 60), block(stage, "second", 60)
    assert engine.intake.accept([queue.put("x", group="other")._row]) == {}
    assert engine.intake.lanes[0].blocked == {}
    calls = stage.faults.calls["notes blocked"]
    assert engine.intake.accept([queue.put("x", group="first")._row]) == {}
    assert stage.faults.calls["notes blocked"] == calls + 1
    assert engine.intake.lanes[0].blocked == {"first": (first_ms, "head")}
    assert engine.intake.accept([queue.put("x", group="second")._row]) == {}
    assert engine.intake.lanes[0].block_of("second") == (second_ms, "head")


def test_what_no_block_says_any_more_is_not_known_either(stage: Stage) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    block(stage, "g", 60)
    engine.intake.accept([queue.put("x", group="g")._row])
    stage.clock.advance(601)
    engine.intake.lanes[0].advance(stage.clock.now_ms())
    engine.intake.accept([queue.put("x", group="g")._row])
    assert engine.intake.lanes[0].blocked == {}


def test_what_was_pulled_to_where_a_lane_that_lags_is_not_read_yet_goes_first_there(
    stage: Stage,
) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    first, second = (queue.put(text, group="g")._row for text in ("first", "second"))
    stage.clock.advance(10)
    until_ms = block(stage, "g", 0)
    engine.intake.accept([first])
    # What the block says is over before the lane is read up to there.
    stage.clock.advance(601)
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {}
    engine.intake.accept([second])
    lane = engine.intake.lanes[0]
    assert lane.blocked_until(second, lane.read_ms) == until_ms
    lane.advance(until_ms)
    engine.intake.accept([queue.put("third", group="g")._row])
    assert lane.blocked == {}


def test_beside_too_many_blocks_that_ended_known_groups_go_on_after_a_purge(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    row = queue.put("head", group="g")._row
    settler = Settler(queue._home.store, queue._home.clock, queue._home.register)
    groups = groups_in(queue)
    until_ms = groups.block(0, "g", stage.clock.now_ms() + 60_000, row.message_id)
    head = settler.planner.move(row, until_ms, attempt=1)
    settler.carry_out([head])
    stage.clock.advance(1)
    queue.purge()
    engine = reading(stage)
    row = queue.put("next", group="g")._row
    engine.intake.accept([row])
    engine.outbox.flush()
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (until_ms, head.new.message_id)}
    stage.faults.fail("notes blocked", error=OVERREAD)
    engine.outbox.heads.doubt([0])
    engine.outbox.heads.flush()
    assert stage._store.notes(BLOCKED, ("mail", 0))["g"][0] <= stage.clock.now_ms()
    assert {found.due_ms for found in queue.peek() if found.text == "next"} == {
        stage.clock.now_ms()
    }


def test_what_a_group_of_which_nothing_was_known_waited_for_long_ago_frees_nothing(
    stage: Stage,
) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    engine.intake.accept([queue.put("x", group="other")._row])
    lane = engine.intake.lanes[0]
    block(stage, "lately", -20)
    block(stage, "long ago", -40)
    lane.advance(stage.clock.now_ms())
    rows = [queue.put("x", group=group)._row for group in ("lately", "long ago")]
    known = lane.cursor_ms
    engine.intake.accept(rows[1:])
    assert (rows[1].id in engine.intake.known, lane.cursor_ms) == (True, known)
    engine.intake.accept(rows[:1])
    assert (rows[0].id in engine.intake.known, lane.cursor_ms < known) == (False, True)


def test_what_a_group_was_to_wait_for_until_long_ago_frees_nothing_though_it_was_to_be_longer(
    stage: Stage,
) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    lane = engine.intake.lanes[0]
    block(stage, "g", 86_400)
    engine.intake.accept([queue.put("x", group="g")._row])
    block(stage, "g", 10)
    stage.clock.advance(300)
    lane.advance(stage.clock.now_ms())
    known = lane.cursor_ms
    row = queue.put("x", group="g")._row
    engine.intake.accept([row])
    assert (row.id in engine.intake.known, lane.cursor_ms) == (True, known)


def test_what_was_known_of_a_group_and_is_long_over_is_as_nothing(stage: Stage) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    lane = engine.intake.lanes[0]
    block(stage, "g", 0)
    engine.intake.accept([queue.put("x", group="g")._row])
    stage.clock.advance(40)
    block(stage, "g", -1)
    lane.advance(stage.clock.now_ms())
    known = lane.cursor_ms
    row = queue.put("x", group="g")._row
    engine.intake.accept([row])
    assert (row.id in engine.intake.known, lane.cursor_ms < known) == (False, True)


def test_a_group_whose_head_has_ended_here_is_not_read_again_for_it(stage: Stage) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    row = queue.put("head", group="g")._row
    engine.intake.accept([row])
    head, heads = engine.intake.known[row.id], engine.outbox.heads
    heads.block_behind(head, stage.clock.now_ms() + 60_000)
    heads.go_on(head, is_blocked=False)
    heads.flush()
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (stage.clock.now_ms(), row.message_id)}
    stage.clock.advance(1)
    assert engine.intake.accept([queue.put("next", group="g")._row]) == {}


def test_of_very_many_groups_those_whose_blocks_are_known_for_longest_are_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "_BLOCKS_MAX", 2)
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    for group in ("a", "b", "c"):
        block(stage, group, 60)
        engine.intake.accept([queue.put("x", group=group)._row])
    engine.intake.accept([queue.put("x", group="of no block")._row])
    assert list(engine.intake.lanes[0].blocked) == ["b", "c"]


def test_what_is_put_off_is_said_where_another_has_said_sooner_since(stage: Stage) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    block(stage, "g", 2)
    engine.intake.accept([queue.put("x", group="g")._row])
    block(stage, "g", 0)
    due_ms = stage.clock.now_ms() + 1_000
    engine.outbox.heads.cover({(0, "g"): due_ms})
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (due_ms, "head")}


def test_a_block_whose_answer_took_long_is_read_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    block(stage, "g", 60, "former head")

    def meanwhile() -> None:
        stage.clock.advance(5)
        block(stage, "g", 60, "head")

    stage.faults.call("notes blocked", meanwhile, after=True)
    until_ms, head = groups_in(queue).blocks.block_of(0, "g")
    assert (until_ms, head) == (stage.clock.now_ms() + 60_000, "head")


def test_what_is_in_hand_of_a_group_waits_for_what_was_pulled_forward_elsewhere(
    stage: Stage,
) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    first, second, third = (queue.put(text, group="g")._row for text in ("1", "2", "3"))
    groups, settler = (
        groups_in(queue),
        Settler(queue._home.store, queue._home.clock, queue._home.register),
    )
    until_ms = stage.clock.now_ms() + 60_000
    settler.carry_out([settler.planner.move(first, until_ms, attempt=0)])
    stage.clock.advance(1)
    engine.reader.poll()
    # Put off by a word that was not true any more, it is pulled back after the others were read.
    groups.block(0, "g", until_ms, "head")
    groups.unblock(0, "g", "head")
    stage.clock.advance(0.1)
    queue.put("4", group="g")
    engine.intake.accept([row for row in (second, third) if row.id not in engine.intake.known])
    assert taken(stage, engine, 10) == [b"1", b"2", b"3", b"4"]


def test_what_is_in_hand_as_a_lane_opens_waits_for_what_was_pulled_while_it_was_closed(
    stage: Stage,
) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    first = queue.put("1", group="g")._row
    queue.put("2", group="g")
    groups, settler = (
        groups_in(queue),
        Settler(queue._home.store, queue._home.clock, queue._home.register),
    )
    until_ms = stage.clock.now_ms() + 60_000
    settler.carry_out([settler.planner.move(first, until_ms, attempt=0)])
    stage.clock.advance(1)
    engine.reader.poll()
    # Another has an older shard of the lane.
    engine.intake.lanes[0].groups_to = -1
    groups.block(0, "g", until_ms, "head")
    groups.unblock(0, "g", "head")
    stage.clock.advance(0.6)
    engine.intake.close_groups()
    assert engine.intake.lanes[0].groups_to is None
    assert engine.ready.take() is None
    engine.reader.poll()
    one = engine.ready.take()
    assert one is not None
    assert one.row.body == b"1"


def test_what_is_in_hand_goes_where_its_group_waits_by_now_for_less_long_than_it_did(
    stage: Stage,
) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    queue.put("1", group="g")
    stage.clock.advance(1)
    engine.reader.poll()
    engine.intake.lanes[0].learn("g", (block(stage, "g", 60), "head"), stage.clock.now_ms())
    until_ms = block(stage, "g", 10)
    stage.clock.advance(0.1)
    queue.put("2", group="g")
    stage.clock.advance(0.1)
    engine.reader.poll()
    assert engine.ready.take() is None
    engine.outbox.flush()
    assert [found.due_ms for found in queue.peek() if found.text == "1"] == [until_ms]


def test_what_is_in_hand_behind_a_head_that_is_due_here_goes_when_that_has_ended(
    stage: Stage,
) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    head = queue.put("head", group="g")
    queue.put("behind", group="g")
    stage.clock.advance(1)
    engine.reader.poll()
    engine.intake.lanes[0].learn("g", (block(stage, "g", 60, head.id), head.id), 0)
    block(stage, "g", 10, head.id)
    stage.clock.advance(0.1)
    queue.put("since", group="g")
    stage.clock.advance(0.1)
    assert taken(stage, engine, 5) == [b"head", b"behind", b"since"]


def test_what_was_put_behind_a_head_stays_where_another_said_so_as_its_block_was_read(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = Settler(queue._home.store, queue._home.clock, queue._home.register)
    row = queue.put("x", group="g")._row
    [move] = moves = [settler.planner.move(row, stage.clock.now_ms() + 60_000, attempt=0)]
    settler.carry_out(moves)

    def meanwhile() -> None:
        stage.clock.advance(5)
        block(stage, "g", 55, "head")

    stage.faults.call("notes blocked", meanwhile, after=True)
    assert groups_in(queue).free([move.new], {}) == []
    assert [found.due_ms for found in queue.peek()] == [move.new.due_ms]


def test_a_block_that_another_ended_is_not_known_any_more_though_it_was_to_last(
    stage: Stage,
) -> None:
    engine = reading(stage)
    queue = stage.connect().queue("mail")
    lane = engine.intake.lanes[0]
    head = queue.put("head", group="g")._row
    groups = groups_in(queue)
    groups.block(0, "g", stage.clock.now_ms() + 3_600_000, head.message_id)
    engine.intake.accept([head])
    assert "g" in lane.blocked
    groups.unblock(0, "g", head.message_id)
    stage.clock.advance(40)
    # What is put then waits for nothing, and is not moved an hour ahead and back.
    row = queue.put("next", group="g")._row
    engine.intake.accept([row])
    engine.outbox.flush()
    assert lane.blocked == {}
    assert row.id in {message._row.id for message in queue.peek()}
