"""What names a row by its place, from elsewhere: written before the row moves, or its message ends.

```
 carry_out, repair ──► before_move ──► the rows are moved
 finish, drop ───────► before_end ───► the rows are deleted
```

Groups have blocks: until when a group waits for its head. Who plans the move of a head says so in
its block at once (`groups.py`), since rows in memory follow; a repair moves it once more.
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
    """What has to be right before rows go. Called by `Settler` alone, for many rows at once.

    Each may be called again with the same rows, as their moves and ends are repeated. What either
    raises leaves the rows where they are.
    """

    def before_move(self, moves: Sequence[Move], *, is_repair: bool) -> None:
        """Rows are about to be moved, within their queue or into another.

        Args:
            moves: Their moves. The old rows were there a moment ago.
            is_repair: Whether they go to now since they were written too late for their minute:
                whoever planned where they were to be knows nothing of this move.
        """
        ...

    def before_end(self, rows: Sequence[Row], fate: End | None) -> None:
        """Messages end in their queue: that is recorded, and their rows are about to go.

        Args:
            rows: Their rows, all of one queue, whether they are there or not.
            fate: How they end; None where that was recorded before, by somebody who got no further.
        """
        ...


class GroupPointers:
    """The blocks of groups."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def before_move(self, moves: Sequence[Move], *, is_repair: bool) -> None:
        """What was put off, and is moved once more, comes later than its block says."""
        if is_repair:
            self._blocks.cover(
                {
                    (move.old.shard.lane, move.new.group): move.new.due_ms
                    for move in moves
                    if move.new.group is not None and move.new.first != move.old.id
                }
            )

    def before_end(self, rows: Sequence[Row], fate: End | None) -> None:
        """Who ends a head unblocks its group after that, where it has nothing of it in memory."""
