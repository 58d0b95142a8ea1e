"""What names a row by its place, from elsewhere: a key, written as its row moves or ends.

```
 carry_out, repair ──► new row ──► note of it ──► old row deleted
 finish, drop ───────► before_end ───► the rows are deleted
```

The notes of a key go with the moves: a note that came before its row, or in one batch with
it, could name a row that is not there yet. A name is freed before its row is deleted: it is held
where it was put to be held, whatever crashes, and a row without its name never begins.
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
    from shardq.records.keys import Keys
    from shardq.stores.store import Move, Store

_key_of = attrgetter("key")


class KeyPointers:
    """The notes and names of rows with a key. Where no row has one, nothing is done."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def before_end(self, rows: Sequence[Row], fate: End | None) -> None:
        """Names are freed, or held. One that has died keeps its own."""
        if fate is not End.DEAD and any(map(_key_of, rows)):
            self._keys.end(rows)


def noted(moves: Sequence[Move], there: Mapping[Position, Row] | None = None) -> Sequence[Move]:
    """The same moves, those of rows with a key with the note of where that is.

    Args:
        moves: Within a queue or from it to its dead-letter queue.
        there: The rows that are moved, where they leave their queue.
    """
    if not any(move.new.key is not None for move in moves):
        return moves
    return [_noted(move, there or {}) for move in moves]


def _noted(move: Move, there: Mapping[Position, Row]) -> Move:
    if move.new.first is not None:
        return move._replace(note=note_of(move.new))
    old = there.get(move.old)
    # Who is put back from the dead is where its key says: it took that with this row.
    if old is None or not is_dead(move.new.position):
        return move
    return move._replace(note=note_of(move.new, first_of(old)))


def write_notes(store: Store, moves: Iterable[Move]) -> None:
    """Write the notes of moves whose new rows are written, and whose old ones still stand."""
    for move in moves:
        if move.note is not None:
            table, partition, key, values = move.note
            store.note(table, partition, {key: values})
