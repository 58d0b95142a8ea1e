"""Moves that were begun and have failed: whoever tries again makes the very same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq.message import Row
    from shardq.shard import Position
    from shardq.store import Move

BEGUN_MAX = 10_000
"""More are those of which somebody else has settled the most."""


class Begun:
    """Moves of one queue that may be through, or half: a large one's insert without its delete.

    Attributes:
        moves: By where their rows were.
    """

    def __init__(self) -> None:
        self.moves: dict[Position, Move] = {}

    def plan(self, rows: Iterable[Row], plan_of: Callable[[Row], Move]) -> list[Move]:
        """The moves of rows: of each that which was begun before, else a new one."""
        moves = [self.moves.get(row.position) or plan_of(row) for row in rows]
        self.moves.update({move.old: move for move in moves})
        return moves

    def followed(self, rows: Iterable[Row]) -> list[tuple[bytes, Row]]:
        """Rows, and as what each may have been moved, beside the id that it had at first."""
        followed = []
        for row in rows:
            followed.append((row.id, row))
            at = row
            while (move := self.moves.get(at.position)) is not None:
                at = move.new
                followed.append((row.id, at))
        return followed

    def end(self, positions: Iterable[Position]) -> None:
        """What was to be moved from here is no more to be tried again."""
        for position in positions:
            self.moves.pop(position, None)
        if len(self.moves) > BEGUN_MAX:
            # Somebody else has settled what is still in there.
            self.moves.clear()
