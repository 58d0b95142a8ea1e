"""What names a row by its place, from elsewhere: written before the row moves or its message ends.

```
 carry_out, repair ──► before_move ──► the rows are moved
 finish, drop ───────► before_end ───► the rows are deleted
```

A block is one: until when a group waits for its head. Whoever plans the move of a head writes its
block at once (`groups.py`), since rows of the group that are in memory follow. Nobody has planned a
repair: it is written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.model.message import Row
    from shardq.records.blocks import Blocks
    from shardq.records.ledger import End
    from shardq.stores.store import Move


class Pointers(Protocol):
    """What must be written before rows move or end. `Settler` alone calls it, for many at once.

    It may be called again with the same rows, when their moves or ends are repeated. Where it
    raises, the rows stay where they are.
    """

    def before_move(self, moves: Sequence[Move], *, is_repair: bool) -> None:
        """Rows are about to be moved, within their queue or into another.

        Args:
            moves: Their moves. The old rows were there a moment ago.
            is_repair: Whether they go to now because they were written too late for their minute:
                whoever planned where they were to be does not know of this move.
        """
        ...

    def before_end(self, rows: Sequence[Row], fate: End | None) -> None:
        """Messages end in their queue: their rows are about to be deleted.

        Where the queue keeps a history, their ends are recorded by now. In a move to another queue
        that goes in steps, the new rows are stored.

        Args:
            rows: Their rows, all of one queue, whether they are there or not.
            fate: How they end; None where somebody recorded that before and crashed.
        """
        ...


class GroupPointers:
    """The blocks of groups."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def before_move(self, moves: Sequence[Move], *, is_repair: bool) -> None:
        """Rows that waited behind a head, and are repaired, come later than its block says."""
        if is_repair:
            self._blocks.cover(
                {
                    (move.old.shard.lane, move.new.group): move.new.due_ms
                    for move in moves
                    if move.new.group is not None and move.new.first != move.old.id
                }
            )

    def before_end(self, rows: Sequence[Row], fate: End | None) -> None:
        """Nothing: a group is unblocked once the row of its head is gone (`Groups.end`)."""
