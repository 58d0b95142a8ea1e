"""Notes and records: rows of small tables, written plainly or by LWT.

```
 note, erase      plain; in a table with a latest column, at the time in this column
 write_records    each row IF its columns are as seen; several rows of a partition in one
                  conditional batch, which Paxos decides at once: all of it or nothing
```
A record is written by UPDATE: when its cells have expired, no row is left. An INSERT would leave
its row marker.
"""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cassandra.query import BatchStatement, BatchType

from shardq.errors import StoreTimeout, StoreUnavailable, begun
from shardq.stores.cassandra import cells
from shardq.stores.cassandra.session import ROWS, SERIAL
from shardq.stores.cassandra.statements import STATEMENTS, change_of
from shardq.stores.cassandra.undecided import decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardq.stores.cassandra.session import Session, Write
    from shardq.stores.tables import Change, Column, K, Partition, Place, Refused, Table, V

_KEYS_MAX = 100
"""Keys of one read. It passes a tombstone for each cell of a row that was deleted lately."""
_BATCH_ROWS = 200
_PARTITIONS_MAX = 32
"""Partitions of one read."""
_CHANGES_MAX = 100
"""Changes of a conditional batch; a drain sends a batch for each of 16 partitions at once."""
_EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)


class Registers:
    """The verbs on notes and records.

    Args:
        session: The connection.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def note(
        self,
        table: Table[K, V],
        partition: Partition,
        values: Mapping[K, V],
        ttl_ms: int | None = None,
    ) -> None:
        """Write values under keys: one unlogged batch of one partition."""
        table.check_notes()
        cql, place = STATEMENTS[table].note, _sent(table.partition, partition)
        ttl, writes = _seconds(ttl_ms), []
        for key, one in values.items():
            values_sent = _sent(table.values, table.value_columns(one))
            sent = [ttl, *values_sent, *place, *_sent(table.key, table.key_columns(key))]
            # The value is the write time: the highest stands, in whatever order notes arrive.
            at = [cells.bigint(table.latest_of(one))] if table.latest else []
            writes.append((cql, [*at, *sent]))
        self._write_all(table, writes)

    def notes(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """The values under these keys of a partition, or under all: plain reads."""
        return self._read(table, partition, keys, ROWS)

    def notes_of(
        self, table: Table[K, V], partitions: Sequence[Partition]
    ) -> dict[Partition, dict[K, V]]:
        """The values under all keys of several partitions: plain reads, pipelined."""
        cql, bound = STATEMENTS[table].read_of, self._session.bound
        places = [_sent(table.partition, one) for one in partitions]
        if len(table.partition) == 1:
            places = list(_several(places))
        statements = (bound(cql, place) for place in places)
        begin, end = len(table.partition), len(table.partition) + len(table.key)
        found: dict[Partition, dict[K, V]] = {one: {} for one in partitions}
        for page in self._session.read(statements, "registers"):
            for row in page:
                values = table.values_of(row[end:])
                found[tuple(row[:begin])][table.key_of(row[begin:end])] = values
        return found

    def erase(self, table: Table[K, V], partition: Partition, keys: Iterable[K]) -> None:
        """Delete rows: one unlogged batch of one partition."""
        table.check_notes()
        place, cql = _sent(table.partition, partition), STATEMENTS[table].erase
        self._write_all(
            table, [(cql, [*place, *_sent(table.key, table.key_columns(key))]) for key in keys]
        )

    def records(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """The latest values under these keys of a partition, or under all: SERIAL reads."""
        found = self._read(table, partition, keys, SERIAL)
        return {key: one for key, one in found.items() if table.has_value(one)}

    def change_records(
        self, table: Table[K, V], changes: Sequence[Change]
    ) -> tuple[list[Change], Refused]:
        """Change records: a conditional batch for each 100 of a partition.

        A refused batch is sent once more without the changes that were refused, then one by one.

        Returns:
            The applied changes, and the present values of the refused ones.
        """
        table.check_records()
        done: list[Change] = []
        refused: Refused = {}
        left = list(changes)
        while left:
            # In one batch, two changes of a record would both be judged by its values before it.
            turn: dict[Place, Change] = {}
            later = [one for one in left if turn.setdefault(one.place, one) is not one]
            self._in_turn(table, list(turn.values()), done, refused)
            left = later
        return done, refused

    def _in_turn(
        self, table: Table[K, V], changes: list[Change], done: list[Change], refused: Refused
    ) -> None:
        """Write changes of different records; add each to `done` or to `refused`."""
        for size in (_CHANGES_MAX, _CHANGES_MAX, 1):
            again: list[Change] = []
            # If this step fails, the changes in `done` are applied all the same.
            with begun("some of the records are written") if done else nullcontext():
                decided = self._decided(table, _batches_of(changes, size))
            for batch, present, is_repeated in decided:
                for change in batch:
                    there, is_ours = (None, True) if present is None else present[change.place]
                    if there is None or is_ours:
                        done.append(change)
                    elif len(batch) == 1 or there != dict(change.seen):
                        if is_repeated and change.is_decisive:
                            raise StoreTimeout(
                                f"{change.key} of {change.partition} in table {table.name} may "
                                f"have been changed, and changed again since; read it again."
                            )
                        refused[change.place] = there
                    else:
                        again.append(change)
            changes = again
            if not changes:
                break

    def _decided(
        self, table: Table[K, V], batches: list[list[Change]]
    ) -> list[tuple[list[Change], dict[Place, tuple[dict[str, Any], bool]] | None, bool]]:
        """Each batch, the answer, and True if the batch was sent more than once.

        The answer is None if the batch was applied, else what `_present` returns for it.
        """
        nonces = [secrets.token_hex(8) if table.nonce else None for _ in batches]
        make = {
            number: partial(self._conditional, table, batch, nonce)
            for number, (batch, nonce) in enumerate(zip(batches, nonces, strict=True))
        }
        repeated: set[int] = set()
        try:
            answers = decide(self._session, make, repeated)
        except StoreUnavailable as error:
            if len(batches) == 1:
                raise
            raise StoreTimeout(f"some of the records may be written: {error}") from error
        return [
            (
                batch,
                None if rows[0]["[applied]"] else _present(table, batch, rows, nonce),
                number in repeated,
            )
            for number, (batch, nonce) in enumerate(zip(batches, nonces, strict=True))
            for rows in [answers[number]]
        ]

    def _conditional(self, table: Table[K, V], changes: list[Change], nonce: str | None) -> Any:
        batch = BatchStatement(BatchType.UNLOGGED)
        for partition, key, seen, new, *_, ttl_ms in changes:
            cql = change_of(table, tuple(seen), None if new is None else tuple(new))
            where = [*_sent(table.partition, partition), *_sent(table.key, key)]
            where += _sent(table.named(seen), list(seen.values()))
            if new is not None:
                mine = [] if nonce is None else [nonce.encode()]
                sent = _sent(table.named(new), list(new.values()))
                where = [_seconds(ttl_ms), *sent, *mine, *where]
            statement = self._session.bound(cql, where)
            if len(changes) == 1:
                return statement
            batch.add(statement)
        return batch

    def _read(
        self,
        table: Table[K, V],
        partition: Partition,
        keys: Iterable[K] | None,
        profile: object,
    ) -> dict[K, V]:
        place, is_serial = _sent(table.partition, partition), profile is SERIAL
        statements = self._reads(table, place, keys, is_serial=is_serial)
        width = len(table.key)
        return {
            table.key_of(row[:width]): table.values_of(row[width:])
            for page in self._session.read(statements, "registers", profile=profile)
            for row in page
        }

    def _reads(
        self, table: Table[K, V], place: list[Any], keys: Iterable[K] | None, *, is_serial: bool
    ) -> Iterator[Any]:
        cql, bound = STATEMENTS[table], self._session.bound
        if keys is None:
            yield bound(cql.read, place)
            return
        asked = [_sent(table.key, table.key_columns(key)) for key in keys]
        if not table.partition:
            # Each key is a partition, and a SERIAL read may read only one partition.
            is_alone = is_serial or len(table.key) > 1 or len(asked) == 1
            for key in asked if is_alone else _several(asked):
                yield bound(cql.find if is_alone else cql.read_of, key)
            return
        for n in range(0, len(asked), _KEYS_MAX):
            yield bound(cql.find, [*place, cells.listed(map(cells.item, asked[n : n + _KEYS_MAX]))])

    def _write_all(self, table: Table[K, V], writes: list[Write]) -> None:
        size = _BATCH_ROWS if table.partition else 1
        self._session.write(self._bundle(writes[n : n + size]) for n in range(0, len(writes), size))

    def _bundle(self, writes: list[Write]) -> Any:
        if len(writes) == 1:
            return self._session.bound(*writes[0])
        batch = BatchStatement(BatchType.UNLOGGED)
        for write in writes:
            batch.add(self._session.bound(*write))
        return batch


def _batches_of(changes: list[Change], size: int) -> list[list[Change]]:
    """Batches of `size` changes at most, each of one partition."""
    by_partition: dict[Any, list[Change]] = {}
    for change in changes:
        by_partition.setdefault(change.partition or change.key, []).append(change)
    return [some[n : n + size] for some in by_partition.values() for n in range(0, len(some), size)]


def _present(
    table: Table[K, V], batch: list[Change], rows: list[dict[str, Any]], nonce: str | None
) -> dict[Place, tuple[dict[str, Any], bool]]:
    """Each refused record's present values of the columns seen, and True if its change is done."""
    # The answer of a batch has keys, and no rows for records that do not exist.
    named = {_told(table.key, row): row for row in rows if len(row) > 1} if len(batch) > 1 else {}
    found = {}
    for change in batch:
        row = named.get(change.key, {}) if len(batch) > 1 else rows[0]
        columns = table.named(change.seen)
        there = dict(zip(change.seen, _told(columns, row), strict=True))
        if nonce is not None and change.new is not None:
            found[change.place] = there, row.get(table.nonce) == nonce
        else:
            found[change.place] = there, change.is_done_by(there)
    return found


def _several(names: Sequence[Sequence[Any]]) -> Iterator[list[bytes]]:
    """The values of statements that each read several partitions, which one column names.

    Args:
        names: The serialised name of each partition.
    """
    for n in range(0, len(names), _PARTITIONS_MAX):
        some = names[n : n + _PARTITIONS_MAX]
        yield [cells.listed(name for (name,) in some)]


def _seconds(ttl_ms: int | None) -> bytes:
    # In CQL 0 means for ever.
    return cells.seconds(ttl_ms) if ttl_ms else cells.int_(0)


def _sent(columns: Sequence[Column], values: Sequence[Any]) -> list[Any]:
    """Values, serialised."""
    return [
        None if value is None else cells.OF_KIND[column.kind](value)
        for column, value in zip(columns, values, strict=True)
    ]


def _told(columns: Sequence[Column], row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Values of a refusal, converted back from the driver's types."""
    return tuple(_plain(row.get(column.name)) for column in columns)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(milliseconds=1)
    return value.bytes if isinstance(value, UUID) else value
