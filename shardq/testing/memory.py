"""SQLite in memory that tells of each row which is placed in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.clock import BootTime
from shardq.stores.sqlite import SqliteStore
from shardq.stores.tables import QUEUES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import Mark, Move
    from shardq.stores.tables import Change, Refused, Table
    from shardq.testing.clock import ManualClock


class MemoryStore(SqliteStore):
    """A store in memory, by a clock.

    Args:
        clock: Of the machine.
        on_rows: Told rows that have been written, new ones and those that have moved; and where.
        on_settings: Told when settings of a queue may have changed.
    """

    def __init__(
        self,
        clock: ManualClock,
        *,
        on_rows: Callable[[MemoryStore, Sequence[Row]], object],
        on_settings: Callable[[], object],
    ) -> None:
        super().__init__(
            machine_us=clock.true_us, boot_time=lambda: BootTime(clock.boot_us(), "sandbox")
        )
        self._on_rows = on_rows
        self._on_settings = on_settings

    def insert(self, rows: Iterable[Row]) -> None:
        """As any store."""
        written = tuple(rows)
        super().insert(written)
        self._on_rows(self, written)

    def insert_once(
        self,
        line: Mark,
        line_ttl_ms: int,
        rows: Sequence[Row],
        marks: Sequence[Mark] = (),
        ttl_ms: int = 0,
    ) -> Mark | None:
        """As any store."""
        before = super().insert_once(line, line_ttl_ms, rows, marks, ttl_ms)
        if before is None:
            self._on_rows(self, rows)
        return before

    def move(self, moves: Iterable[Move]) -> None:
        """As any store."""
        done = tuple(moves)
        super().move(done)
        self._on_rows(self, [row for move in done for row in (move.new, *move.beside)])

    def move_once(
        self, moves: Sequence[Move], marks: Mapping[Position, Sequence[Mark]], ttl_ms: int
    ) -> set[Position]:
        """As any store."""
        gone = super().move_once(moves, marks, ttl_ms)
        self._on_rows(self, [move.new for move in moves if move.old not in gone])
        return gone

    def write_records(self, table: Table[Any, Any], changes: Sequence[Change]) -> Refused:
        """As any store."""
        refused = super().write_records(table, changes)
        if table is QUEUES:
            self._on_settings()
        return refused

    def _follow(self, connection: sqlite3.Connection, done: Sequence[Change]) -> None:
        super()._follow(connection, done)
        if rows := [row for change in done for row in change.insert]:
            self._on_rows(self, rows)
