"""Moves that were begun and maybe not ended: whoever tries again makes the very same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq import locks

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import Move

BEGUN_MAX = 10_000
"""More are those of which somebody else has settled the most."""
_BEGUN_BYTES_MAX = 64 * 1024 * 1024


class Begun:
    """Moves of one queue that may be through, or half: a large one's insert without its delete.

    Of too many the oldest are forgotten, but none of the last call's. From any thread.
    """

    def __init__(self) -> None:
        self._moves: dict[Position, Move] = {}
        self._bytes = 0
        self._lock = locks.new()

    def __len__(self) -> int:
        return len(self._moves)

    def plan(self, rows: Iterable[Row], plan_of: Callable[[Row], Move]) -> list[Move]:
        """The moves of rows: of each that which was begun before, else a new one."""
        moves = [self._moves.get(row.position) or plan_of(row) for row in rows]
        with self._lock:
            for move in moves:
                # Anew: what is tried again just now is not among the oldest.
                self._forget(move.old)
                self._moves[move.old] = move
                size = _size(move)
                self._bytes += size
            while len(self._moves) > len(moves) and (
                len(self._moves) > BEGUN_MAX or self._bytes > _BEGUN_BYTES_MAX
            ):
                self._forget(next(iter(self._moves)))
        return moves

    def next_of(self, row: Row) -> Row | None:
        """The row that this one may have been moved to; None where no such move was begun."""
        move = self._moves.get(row.position)
        return None if move is None else move.new

    def end(self, positions: Iterable[Position]) -> None:
        """What was to be moved from here is no more to be tried again."""
        with self._lock:
            for position in positions:
                self._forget(position)

    def _forget(self, position: Position) -> None:
        move = self._moves.pop(position, None)
        if move is not None:
            size = _size(move)
            self._bytes -= size


class Trail:
    """Rows that are moved on until they are not late, by the ids that they had at first.

    A try that failed has moved some of them, maybe, to where they may be late as well.

    Attributes:
        rows: What may be there, and late: at first them, and as what each may have been moved.
        repaired: Id at first -> the row as it is now, of those that were moved.
    """

    def __init__(self, begun: Begun, rows: Iterable[Row]) -> None:
        self._begun = begun
        self._first: dict[bytes, bytes] = {}
        self._followed: set[bytes] = set()
        self._olds: list[Position] = []
        self.rows = list(rows)
        self.repaired: dict[bytes, Row] = {}
        # Nearly always nothing was begun, and each put comes by here.
        for row in list(self.rows) if len(begun) else ():
            at = row
            while (after := begun.next_of(at)) is not None:
                self._olds.append(at.position)
                at = after
                self._first[at.id] = row.id
                self._followed.add(at.id)
                self.rows.append(at)

    def to_look_for(self, late: Container[bytes]) -> list[Row]:
        """What is late, and what a try before may have moved: its caller has to know where to."""
        return [row for row in self.rows if row.id in self._followed or row.id in late]

    def find(self, rows: Iterable[Row]) -> None:
        """These are there."""
        for row in rows:
            if row.id in self._followed:
                self.repaired[self._first[row.id]] = row

    def go_on(self, moves: Iterable[Move]) -> None:
        """These were moved, and may be late again."""
        self.rows = []
        for move in moves:
            first = self._first[move.new.id] = self._first.get(move.old.id, move.old.id)
            self.repaired[first] = move.new
            self.rows.append(move.new)
            self._olds.append(move.old)
        self._followed.clear()

    def end(self) -> None:
        """All are where they stay: none of their moves is to be tried again."""
        self._begun.end(self._olds)


def _size(move: Move) -> int:
    return len(move.new.body) + len(move.new.headers or "")
