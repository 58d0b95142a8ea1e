"""A benchmark's row work done by the bare driver, for comparison with shardq's speed.

Statements are made through the driver's public `bind`, as any program would. Columns, timestamps,
batch sizes and requests in flight are the same as in the store.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cassandra.query import BatchStatement, BatchType

from shardq.model.ids import birth_us
from shardq.model.names import keyspace_name
from shardq.stores.cassandra.rows import (
    ACROSS_PARTITIONS,
    DELETE_ROWS,
    DELETED_AFTER_US,
    SHARD_BATCH_ROWS,
)
from shardq.stores.cassandra.session import FETCH_ROWS, WINDOW, Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from shardq.stores.cassandra.address import Address

_INSERT = (
    "INSERT INTO {}.messages (queue, minute, lane, due, id, body) "
    "VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
_PAGE = (
    "SELECT due, id, body FROM {}.messages WHERE queue = ? AND minute = ? AND lane = ? "
    "AND (due, id) > (?, ?) LIMIT ?"
)
_DELETE = (
    "DELETE FROM {}.messages USING TIMESTAMP ? "
    "WHERE queue = ? AND minute = ? AND lane = ? AND (due, id) IN ?"
)
_FIRST = UUID(int=0, version=1)


class Bare:
    """Row work without shardq, in a store's tables, over a connection of its own."""

    def __init__(self, address: Address) -> None:
        self._keyspace = keyspace_name(address.keyspace)
        self._connection = Session(address)
        self._session = self._connection.connect()
        self._insert = self._session.prepare(_INSERT.format(self._keyspace))
        self._page = self._session.prepare(_PAGE.format(self._keyspace))
        self._delete = self._session.prepare(_DELETE.format(self._keyspace))
        self._drained = 0

    def near(self, rows: Sequence[Row]) -> list[list[tuple[Any, ...]]]:
        """The values of rows, in batches of one shard each, as large as the store sends them."""
        by_shard: dict[Shard, list[tuple[Any, ...]]] = {}
        for row in rows:
            by_shard.setdefault(row.shard, []).append(_values(row))
        return [part for mine in by_shard.values() for part in _parts(mine, SHARD_BATCH_ROWS)]

    def far(self, rows: Sequence[Row]) -> list[list[tuple[Any, ...]]]:
        """The values of rows, in batches across shards, as the store sends them to one node."""
        return list(_parts([_values(row) for row in rows], ACROSS_PARTITIONS))

    def insert(self, batches: Sequence[list[tuple[Any, ...]]]) -> int:
        """Write unlogged batches, pipelined; returns how many rows."""
        self._send(self._batch(batch) for batch in batches)
        return sum(map(len, batches))

    def drain(self, shards: Sequence[Shard]) -> int:
        """Read shards page by page and delete what was read; returns how many rows."""
        self._drained = 0
        self._send(self._deletes(shards))
        return self._drained

    def drop(self) -> None:
        """Drop the keyspace with the benchmark's tables."""
        self._session.execute(f"DROP KEYSPACE {self._keyspace}", timeout=60)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _batch(self, values: list[tuple[Any, ...]]) -> BatchStatement:
        batch = BatchStatement(BatchType.UNLOGGED)
        for one in values:
            batch.add(self._insert.bind(one))
        return batch

    def _deletes(self, shards: Sequence[Shard]) -> Iterator[Any]:
        for shard in shards:
            after = (datetime.fromtimestamp(0, UTC), _FIRST)
            future = self._next_page(shard, after)
            while future is not None:
                page = list(future.result())
                full = len(page) == FETCH_ROWS
                # The next page is read while this one is deleted.
                future = self._next_page(shard, (page[-1][0], page[-1][1])) if full else None
                self._drained += len(page)
                for part in _parts([(due, row_id) for due, row_id, _ in page], DELETE_ROWS):
                    at_us = max(birth_us(row_id.bytes) for _, row_id in part) + DELETED_AFTER_US
                    yield self._delete.bind((at_us, *shard, part))

    def _next_page(self, shard: Shard, after: tuple[Any, Any]) -> Any:
        return self._session.execute_async(self._page.bind((*shard, *after, FETCH_ROWS)))

    def _send(self, statements: Iterable[Any]) -> None:
        flying: deque[Any] = deque()
        for statement in statements:
            if len(flying) >= WINDOW:
                flying.popleft().result()
            flying.append(self._session.execute_async(statement))
        while flying:
            flying.popleft().result()


def _values(row: Row) -> tuple[Any, ...]:
    due = datetime.fromtimestamp(row.due_ms / 1_000, UTC)
    return (*row.shard, due, UUID(bytes=row.id), row.body, birth_us(row.id))


def _parts(values: list[Any], size: int) -> Iterator[list[Any]]:
    for n in range(0, len(values), size):
        yield values[n : n + size]
