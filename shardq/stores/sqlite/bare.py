"""A benchmark's row work done by `sqlite3` alone, for comparison with shardq's speed.

Schema, log, columns and the connection's settings are the same as in the store.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from shardq.model.ids import order_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from shardq.stores.sqlite import SqliteStore

_INSERT = """\
INSERT INTO messages (queue, minute, lane, due, id, body, attempt) VALUES (?, ?, ?, ?, ?, ?, ?)"""
_PAGE = """\
SELECT queue, minute, lane, due, id, body, headers, attempt FROM messages
WHERE queue = ? AND minute = ? AND lane = ? ORDER BY due, id LIMIT ?"""
_DELETE = "DELETE FROM messages WHERE queue = ? AND minute = ? AND lane = ? AND due = ? AND id = ?"
_PAGE_ROWS = 5_000


class Bare:
    """Row work without shardq, in the file of an open store."""

    def __init__(self, store: SqliteStore) -> None:
        self._connection = sqlite3.connect(str(store.path), isolation_level=None)
        self._connection.execute(f"PRAGMA synchronous = {store.synchronous}")
        self._connection.execute("PRAGMA secure_delete = OFF")

    def values(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """The columns of rows, which have neither headers nor a group."""
        return [(*row.shard, row.due_ms, order_key(row.id), row.body, row.attempt) for row in rows]

    def insert_each(self, values: Sequence[tuple[Any, ...]]) -> int:
        """Write rows one by one, each with a commit of its own; returns how many."""
        execute = self._connection.execute
        for one in values:
            execute(_INSERT, one)
        return len(values)

    def insert(self, values: Sequence[tuple[Any, ...]]) -> int:
        """Write rows by one `executemany` in one transaction; returns how many."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_INSERT, values)
        self._connection.execute("COMMIT")
        return len(values)

    def drain(self, shards: Sequence[Shard]) -> int:
        """Read shards page by page and delete what was read; returns how many rows."""
        drained = 0
        for shard in shards:
            while page := self._connection.execute(_PAGE, (*shard, _PAGE_ROWS)).fetchall():
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(_DELETE, [row[:5] for row in page])
                self._connection.execute("COMMIT")
                drained += len(page)
        return drained

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
