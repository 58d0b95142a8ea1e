"""What a process keeps in mind does not grow for ever."""

from __future__ import annotations

import pytest

from shardq.lifecycle import moves
from shardq.lifecycle.moves import BegunMoves
from shardq.lifecycle.settle import Settler
from shardq.model.message import Row
from shardq.stores.store import RowMove
from shardq.testing import Stage


def test_of_moves_that_failed_the_oldest_are_forgotten_and_none_of_the_last_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = Settler(queue._home.store, queue._home.clock, queue._home.register)
    rows = [queue.put(b"x" * 100)._row for _ in range(6)]

    def plan(row: Row) -> RowMove:
        return settler.planner.move(row, row.due_ms + 1_000, attempt=0)

    begun = BegunMoves()

    def known() -> list[Row]:
        return [row for row in rows if begun.next_of(row) is not None]

    monkeypatch.setattr(moves, "_BEGUN_BYTES_MAX", 350)
    for row in rows[:3]:
        begun.plan([row], plan)
    # Tried again, it is not the oldest any more.
    begun.plan(rows[:1], plan)
    begun.plan(rows[3:4], plan)
    assert known() == [rows[0], rows[2], rows[3]]
    begun.plan(rows[2:], plan)
    assert known() == rows[2:]
    begun.end(row.position for row in rows)
    begun.plan(rows[:3], plan)
    assert known() == rows[:3]
    monkeypatch.setattr(moves, "BEGUN_MAX", 2)
    begun.plan(rows[3:4], plan)
    assert known() == [rows[2], rows[3]]
