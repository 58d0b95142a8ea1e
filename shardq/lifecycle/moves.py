"""Moves that were begun and perhaps not ended, kept so that a retry repeats the same moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq import locks

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import RowMove

BEGUN_MAX = 10_000
"""The most moves that are kept. If there are more, other processes have settled the rows of
most."""
_BEGUN_BYTES_MAX = 64 * 1024 * 1024


class BegunMoves:
    """Moves of one queue that may be done, or half done: a large move's insert without its delete.

    If there are too many moves, the oldest are forgotten, but none of the last call. From any
    thread.
    """

    def __init__(self) -> None:
        self._moves: dict[Position, RowMove] = {}
        self._bytes = 0
        self._lock = locks.new()

    def __len__(self) -> int:
        return len(self._moves)

    def plan(self, rows: Iterable[Row], plan_of: Callable[[Row], RowMove]) -> list[RowMove]:
        """The moves of rows: for each row the move that was begun before, else a new move."""
        moves = [self._moves.get(row.position) or plan_of(row) for row in rows]
        with self._lock:
            for move in moves:
                # Add it anew, so that a move tried again now is not among the oldest.
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
        """The row to which this row may have been moved; None if no such move was begun."""
        move = self._moves.get(row.position)
        return None if move is None else move.new

    def end(self, positions: Iterable[Position]) -> None:
        """Forget the moves from these positions."""
        with self._lock:
            for position in positions:
                self._forget(position)

    def _forget(self, position: Position) -> None:
        move = self._moves.pop(position, None)
        if move is not None:
            size = _size(move)
            self._bytes -= size


class Trail:
    """Rows that are moved to now until none is late, by the ids that they had first.

    An earlier try that failed may have moved some of them, to places that may be late by now too.

    Attributes:
        rows: Rows that may exist and be late: those given, and the rows they may have become.
        repaired: First id of a row that was moved -> its present row.
    """

    def __init__(self, begun: BegunMoves, rows: Iterable[Row]) -> None:
        self._begun = begun
        self._first: dict[bytes, bytes] = {}
        self._followed: set[bytes] = set()
        self._olds: list[Position] = []
        self.rows = list(rows)
        self.repaired: dict[bytes, Row] = {}
        # This is on the path of every put, and `begun` is nearly always empty.
        for row in list(self.rows) if len(begun) else ():
            at = row
            while (after := begun.next_of(at)) is not None:
                self._olds.append(at.position)
                at = after
                self._first[at.id] = row.id
                self._followed.add(at.id)
                self.rows.append(at)

    def to_look_for(self, late: Container[bytes]) -> list[Row]:
        """The rows to look up: late rows, and rows that an earlier try may have moved."""
        return [row for row in self.rows if row.id in self._followed or row.id in late]

    def find(self, rows: Iterable[Row]) -> None:
        """Keep those of the found rows that an earlier try has moved."""
        for row in rows:
            if row.id in self._followed:
                self.repaired[self._first[row.id]] = row

    def go_on(self, moves: Iterable[RowMove]) -> None:
        """Continue with the new rows of these moves, which may be late again."""
        self.rows = []
        for move in moves:
            first = self._first[move.new.id] = self._first.get(move.old.id, move.old.id)
            self.repaired[first] = move.new
            self.rows.append(move.new)
            self._olds.append(move.old)
        self._followed.clear()

    def end(self) -> None:
        """Forget the moves, because all rows have reached their places."""
        self._begun.end(self._olds)


def _size(move: RowMove) -> int:
    return move.new.size_bytes
