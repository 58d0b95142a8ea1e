"""Keys and lasting receipts find rows by notes, which are written as rows move and end.

```
 carry_out, repair ──► new row ──► note of it ──► old row deleted
 finish, drop ───────► before_end ───► the rows are deleted ──► after_end
```

A move writes the note of a key after the new row: written earlier, or in one batch with the row, a
note could name a row that does not exist yet. A name is freed or held before its row is deleted, so
that a crash cannot leave the name taken. A row without its name never begins.

A message without a key has a note if its receipts last and it has moved. The note is erased only
after the row was deleted: without a note, an ack that is tried again would succeed while the row
exists. An ack that finds a note without its row erases the note, and so does `check --all`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from shardq.records.keyrow import first_of, is_dead
from shardq.records.keys import note_of
from shardq.records.ledger import End

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.records.keys import MessageKeys
    from shardq.records.register import Register
    from shardq.stores.store import RowMove, Store

_key_of, _received_of = attrgetter("key"), attrgetter("received")


class KeyPointers:
    """The names and notes of rows. Rows that have neither are left alone."""

    def __init__(self, keys: MessageKeys, register: Register) -> None:
        self._keys = keys
        self._register = register

    def before_end(self, rows: Sequence[Row], fate: End | None) -> None:
        """Free or hold the names of rows that end; in the own dead letters a message keeps it."""
        is_kept = fate is End.DEAD and self._register.has_own_dead
        if not is_kept and any(map(_key_of, rows)):
            self._keys.end(rows)

    def after_end(self, rows: Sequence[Row]) -> None:
        """Erase the notes of rows without a key that were deleted."""
        if any(map(_received_of, rows)):
            self._keys.forget_places(rows)


def noted(
    moves: Sequence[RowMove], there: Mapping[Position, Row] | None = None
) -> Sequence[RowMove]:
    """Add notes of the new places to the moves of rows that are found by notes.

    Args:
        moves: Moves within a queue, or to its dead-letter queue.
        there: Position -> the row that is moved, for rows that leave their queue.
    """
    if not any(move.new.key is not None or move.new.has_place for move in moves):
        return moves
    return [_noted(move, there or {}) for move in moves]


def _noted(move: RowMove, there: Mapping[Position, Row]) -> RowMove:
    if move.new.key is None or move.new.first is not None:
        return move._replace(note=note_of(move.new))
    old = there.get(move.old)
    # A message put back from the dead letters needs no note: its key was taken together with this
    # row's place.
    if old is None or not is_dead(move.new.position):
        return move
    return move._replace(note=note_of(move.new, first_of(old)))


def write_notes(store: Store, moves: Iterable[RowMove]) -> None:
    """Write the notes of moves: after the new rows are written, before the old are deleted."""
    for move in moves:
        if move.note is not None:
            table, partition, key, values = move.note
            store.note(table, partition, {key: values})
