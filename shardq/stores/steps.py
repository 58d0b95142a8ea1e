"""Verbs of a store without transactions over rows and ledger: one step after the other.

Each step is acknowledged before the next begins. A caller repeats a verb that failed between two
steps, and the repeat writes the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shardq.errors import begun
from shardq.stores.store import Logs, Registers, Rows, by_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import Mark, RowMove, WriteOnce
    from shardq.stores.tables import Change, Partition, Table


class _Parts(Rows, Registers, Logs, Protocol):
    """The parts of a store that these verbs use."""


def insert(store: _Parts, rows: Iterable[Row], once: WriteOnce) -> Mark | None:
    """Look for a line; if it is missing, write rows, marks and the line, in this order."""
    for mark in store.recorded([once.line.entry]):
        if mark.due_ms is not None:
            return mark
    store.insert(rows)
    with begun("the rows are written"):
        store.record(once.marks, once.ttl_ms)
        store.record([once.line], once.line_ttl_ms)
    return None


def move(
    store: _Parts,
    moves: Sequence[RowMove],
    marks: Mapping[Position, Sequence[Mark]],
    kept_ms: Mapping[str, int],
) -> None:
    """Write new rows, then their marks and notes, then delete the old rows."""
    store.insert([move.new for move in moves])
    with begun("the new rows are written"):
        made = by_queue(mark for move in moves for mark in marks.get(move.old, ()))
        for queue, some in made.items():
            store.record(some, kept_ms[queue])
        _note(store, moves)
        store.delete([move.old for move in moves])


def _note(store: _Parts, moves: Sequence[RowMove]) -> None:
    of_partition: dict[tuple[Table[Any, Any], Partition], dict[Any, Any]] = {}
    for note in (move.note for move in moves if move.note is not None):
        of_partition.setdefault((note.table, note.partition), {})[note.key] = note.values
    for (table, partition), values in of_partition.items():
        store.note(table, partition, values)


def follow(store: _Parts, done: Sequence[Change]) -> None:
    """Insert, then delete, the messages' rows of changes that were applied."""
    with begun("some of the records are written"):
        store.insert([row for change in done for row in change.insert])
        store.delete([place for change in done for place in change.delete])
