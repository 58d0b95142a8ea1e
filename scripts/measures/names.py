"""Names of keys taken by the bare drivers, for comparison with shardq's speed."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from cassandra.query import BatchStatement, BatchType

from shardq.stores.cassandra import bare as cassandra
from shardq.stores.sqlite import bare as sqlite

if TYPE_CHECKING:
    from collections.abc import Sequence

_UPDATE = (
    "UPDATE {}.keys SET live = ?, state = ? WHERE queue = ? AND bucket = ? AND key = ? "
    "IF live = null"
)
_BATCH = 50
"""Statements of a conditional batch."""
_UPSERT = """\
INSERT INTO keys (queue, bucket, key, live, state) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (queue, bucket, key) DO UPDATE SET live = excluded.live, state = excluded.state"""


class CassandraNames(cassandra.Bare):
    """Takes names by conditional batches."""

    def take_names(self, rows: Sequence[tuple[Any, ...]]) -> int:
        """Write rows of keys that do not exist; returns how many."""
        update = self._session.prepare(_UPDATE.format(self._keyspace))
        by_bucket: dict[int, list[tuple[Any, ...]]] = {}
        for queue, bucket, key, live, state in rows:
            by_bucket.setdefault(bucket, []).append((live, state, queue, bucket, key))
        # The buckets take turns, because two batches of one bucket would wait for each other.
        parts = (
            [mine[n : n + _BATCH] for n in range(0, len(mine), _BATCH)]
            for mine in by_bucket.values()
        )
        turns = zip_longest(*parts)
        self._send(_batch(update, part) for turn in turns for part in turn if part)
        return len(rows)


def _batch(update: Any, values: Sequence[tuple[Any, ...]]) -> BatchStatement:
    batch = BatchStatement(BatchType.UNLOGGED)
    for one in values:
        batch.add(update.bind(one))
    return batch


class SqliteNames(sqlite.Bare):
    """Takes names by one `executemany` in one transaction."""

    def take_names(self, rows: Sequence[tuple[Any, ...]]) -> int:
        """Write rows of keys; returns how many."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_UPSERT, rows)
        self._connection.execute("COMMIT")
        return len(rows)
