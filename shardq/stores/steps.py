"""Verbs of a store that has no transactions over rows and ledger: one step after the other.

Each step is acknowledged before the next. What fails between two is done again, and is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.errors import begun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import Mark, Move, Store


def insert_once(
    store: Store,
    line: Mark,
    line_ttl_ms: int,
    rows: Sequence[Row],
    marks: Sequence[Mark],
    ttl_ms: int,
) -> Mark | None:
    """Look for a line; where it is not there, write rows, marks and the line, in this order."""
    for mark in store.recorded([line.entry]):
        if mark.due_ms is not None:
            return mark
    store.insert(rows)
    with begun("the rows are written"):
        store.record(marks, ttl_ms)
        store.record([line], line_ttl_ms)
    return None


def move_once(
    store: Store, moves: Sequence[Move], marks: Mapping[Position, Sequence[Mark]], ttl_ms: int
) -> set[Position]:
    """Write new rows, then marks, then delete the old rows."""
    store.insert([move.new for move in moves])
    with begun("the new rows are written"):
        store.record((mark for move in moves for mark in marks.get(move.old, ())), ttl_ms)
        store.delete([move.old for move in moves])
    return set()
