"""Settling: what was settled stays settled, and a move is atomic or repeated."""

from __future__ import annotations

import pytest

from shardq import Queue
from shardq.errors import StoreTimeout
from shardq.lifecycle.settle import Settler
from shardq.model.ids import birth_us
from shardq.model.message import Message
from shardq.testing import Stage


def settler_of(queue: Queue) -> Settler:
    return Settler(queue._home.store, queue._home.clock, queue._home.register)


def put(queue: Queue, **options: object) -> Message:
    return queue.put("x", **options)


def test_a_move_writes_a_fresh_row_and_deletes_the_old_one(stage: Stage, queue: Queue) -> None:
    row = put(queue)._row
    stage.clock.advance(1)
    move = settler_of(queue).planner.move(row, stage.clock.now_ms() + 5_000, attempt=1)
    assert settler_of(queue).carry_out([move]) == (set(), {})
    assert stage._store.find([row.position]) == []
    [new] = stage._store.find([move.new.position])
    assert new == move.new
    assert new.id != row.id
    assert birth_us(new.id) >= stage.clock.now_us()
    assert (new.message_id, new.order, new.attempt) == (row.message_id, row.order, 1)


def test_a_move_never_goes_into_the_past(stage: Stage, queue: Queue) -> None:
    row = put(queue)._row
    stage.clock.advance(1.0000004)
    move = settler_of(queue).planner.move(row, 0, attempt=0)
    assert move.new.due_ms * 1_000 >= stage.clock.now_us()


def test_a_row_that_somebody_settled_is_not_moved_back_to_life(stage: Stage, queue: Queue) -> None:
    kept, gone = put(queue)._row, put(queue)._row
    settler = settler_of(queue)
    moves = [settler.planner.move(row, 0, attempt=1) for row in (kept, gone)]
    stage._store.delete([gone.position])
    assert settler.carry_out(moves) == ({gone.position}, {})
    assert [found._row for found in queue.peek()] == [moves[0].new]


def test_a_burial_enters_the_dead_letter_queue_anew_under_the_old_id(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    row = put(queue, id="order-7")._row
    stage.clock.advance(100)
    move = settler_of(queue).planner.burial(row, "why", attempt=3, traceback="t" * 20_000)
    settler_of(queue).carry_out([move])
    [dead] = queue.dead.peek()
    assert dead.id == "order-7"
    assert dead._row.entered_us >= stage.clock.now_us()
    assert dead._row.attempt == 0
    assert len(dead.headers["shardq-traceback"]) == 8_000
    assert stage.is_empty(queue)


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_repeat_tells_where_the_repair_of_a_try_before_put_a_row_that_is_there(
    stage: Stage, *, is_settled: bool
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    row = put(queue)._row
    move = settler.planner.move(row, row.due_ms + 1_000, attempt=1, claim="me")
    stage.faults.call("move", lambda: stage.clock.advance(200), nth=1)
    # All answers to the repair are lost.
    for nth in range(2, 9):
        stage.faults.fail("move", nth=nth, applied=True)
    with pytest.raises(StoreTimeout):
        settler.carry_out([move])
    [claim] = queue.peek()
    assert claim.due_ms > move.new.due_ms
    if is_settled:
        settler.delete([claim._row.position])
    _, repaired = settler.carry_out([move])
    assert repaired == ({} if is_settled else {move.new.id: claim._row})
