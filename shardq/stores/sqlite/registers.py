"""Notes and records in SQLite: rows of small tables, with statements made from the tables.

Reads pass over expired rows. The next note of a partition deletes its expired rows. Expired records
are deleted when they are written anew, and once a minute all of a partition. Where notes expire by
the wall clock, each note deletes a few of the rows of the table that expired first.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardq.errors import begun
from shardq.stores.tables import LANES, TABLES, VIEWS, Kind, Lapse

if TYPE_CHECKING:
    import sqlite3
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.stores.sqlite.database import Database
    from shardq.stores.tables import Change, Column, K, Note, Partition, Place, Refused, Table, V

_CHANGES_MAX = 2_000
"""Changes of a transaction, for which others wait: 30 us each."""
_VOID_EVERY_US = 60_000_000
_VOID_A_NOTE = 10
"""Expired rows deleted with each note: over one, or they pile up; few, because others wait."""
_SWEPT_MINUTES = 512
"""The last sweep of a sealed shard is after 256 minutes; after twice that nobody leases it."""

IN_FORCE = """\
CASE WHEN space = :space THEN from_boot_us <= :boot_us AND until_boot_us > :boot_us
ELSE until_us > :now_us END"""
"""True for a lease or member in force, with the parameters of `_now`. A row of an earlier boot is
taken for one of this boot only within the few seconds of time since boot that it lasted."""
_FORGET_LEASES = f"""\
DELETE FROM leases
WHERE queue = :queue AND lane = :lane AND minute BETWEEN 0 AND :minute - 1 AND NOT ({IN_FORCE})"""
_LAPSES = {
    Lapse.NEVER: ((), ""),
    Lapse.WALL: (("until_us",), "(until_us IS NULL OR until_us > :now_us)"),
    Lapse.BOOT: (("until_us", "space", "from_boot_us", "until_boot_us"), f"({IN_FORCE})"),
}
"""The columns that say when a row expires, and the condition that it has not."""


class Statements(NamedTuple):
    """The statements of a table.

    Attributes:
        read: Reads the rows of a partition that have not expired.
        find: Reads one of them by key.
        find_many: Reads those of many keys; empty for a table whose keys have several columns.
        note: Writes a row; in a table with a latest column, unless a later one is stored.
        erase: Deletes a row.
        void: Deletes expired rows; empty for a table without a lapse.
        void_one: Deletes a row if it has expired; empty likewise.
    """

    read: str
    find: str
    find_many: str
    note: str
    erase: str
    void: str
    void_one: str


def _name(column: Column) -> str:
    return column.local or column.name


def statements_of(table: Table[Any, Any]) -> Statements:
    """The statements of a table."""
    lapse, in_force = _LAPSES[table.lapse]
    place, one = _are(table.partition), _are((*table.partition, *table.key))
    read = f"SELECT {', '.join(map(_name, (*table.key, *table.values)))} FROM {table.name}"
    later = f" WHERE excluded.{table.latest} > {table.latest}" if table.latest else ""
    return Statements(
        read=read + _where(place, in_force),
        find=read + _where(one, in_force),
        find_many=read + _where(place, _among(table), in_force) if _has_text_key(table) else "",
        note=write_of(table, tuple(column.name for column in table.values)) + later,
        erase=f"DELETE FROM {table.name}{_where(one)}",
        void=_void_of(table),
        void_one=f"DELETE FROM {table.name}{_where(one, f'NOT {in_force}')}" if lapse else "",
    )


def _void_of(table: Table[Any, Any]) -> str:
    """The statement that deletes expired rows: all of a partition, or a few of the table."""
    lapse, in_force = _LAPSES[table.lapse]
    if not lapse:
        return ""
    if table.lapse is Lapse.BOOT or not table.has_notes:
        return f"DELETE FROM {table.name}{_where(_are(table.partition), f'NOT {in_force}')}"
    # Rows of a log expire in a partition that nobody writes any more.
    row = ", ".join(map(_name, (*table.partition, *table.key)))
    return (
        f"DELETE FROM {table.name} WHERE ({row}) IN (SELECT {row} FROM {table.name} "
        f"WHERE until_us <= :now_us ORDER BY until_us LIMIT :void_max)"
    )


def _has_text_key(table: Table[Any, Any]) -> bool:
    return [column.kind for column in table.key] == [Kind.TEXT]


def _among(table: Table[Any, Any]) -> str:
    return f"{_name(table.key[0])} IN (SELECT value FROM json_each(:keys))"


def write_of(table: Table[Any, Any], names: tuple[str, ...]) -> str:
    """The statement that sets these columns of a row, and inserts the row if it is missing."""
    shape = table, names
    if shape not in WRITES:
        row = [*map(_name, (*table.partition, *table.key))]
        written = [*map(_name, table.named(names)), *_LAPSES[table.lapse][0]]
        columns = [*row, *written]
        WRITES[shape] = (
            f"INSERT INTO {table.name} ({', '.join(columns)}) "
            f"VALUES ({', '.join(f':{name}' for name in columns)}) "
            f"ON CONFLICT ({', '.join(row)}) DO UPDATE "
            f"SET {', '.join(f'{name} = excluded.{name}' for name in written)}"
        )
    return WRITES[shape]


WRITES: dict[tuple[Table[Any, Any], tuple[str, ...]], str] = {}
"""(table, columns set) -> the statement."""


class _Shape(NamedTuple):
    """The shape of changes that one statement makes.

    Attributes:
        seen: The columns that were seen; none if no row was.
        new: The columns to set; None to delete the row.
        has_ttl: True if the new values expire.
    """

    seen: tuple[str, ...]
    new: tuple[str, ...] | None
    has_ttl: bool


def _change_of(table: Table[Any, Any], shape: _Shape) -> str:
    """The statement that changes a row if it is as it was seen.

    Its parameters are the new values, their end, the row's place, the values seen, and now; both
    times only if rows of the table can expire.
    """
    row = [*map(_name, (*table.partition, *table.key))]
    seen, new = ([*map(_name, table.named(names or ()))] for names in (shape.seen, shape.new))
    if not seen:
        columns = [*new, *(["until_us"] if shape.has_ttl else []), *row]
        return (
            f"INSERT INTO {table.name} ({', '.join(columns)}) "
            f"VALUES ({', '.join('?' * len(columns))}) ON CONFLICT DO NOTHING"
        )
    lapses = table.lapse is not Lapse.NEVER
    conditions = [*(f"{name} = ?" for name in row), *(f"{name} IS ?" for name in seen)]
    conditions += ["(until_us IS NULL OR until_us > ?)"] if lapses else []
    if shape.new is None:
        return f"DELETE FROM {table.name}{_where(*conditions)}"
    until = [f"until_us = {'?' if shape.has_ttl else 'NULL'}"] if lapses else []
    written = ", ".join([*(f"{name} = ?" for name in new), *until])
    return f"UPDATE {table.name} SET {written}{_where(*conditions)}"


CHANGES: dict[tuple[Table[Any, Any], _Shape], str] = {}
"""(table, shape) -> the statement."""


def _are(columns: Sequence[Column]) -> str:
    return " AND ".join(f"{name} = :{name}" for name in map(_name, columns))


def _where(*conditions: str) -> str:
    given = [one for one in conditions if one]
    return f" WHERE {' AND '.join(given)}" if given else ""


STATEMENTS: Final[dict[Table[Any, Any], Statements]] = {
    table: statements_of(table) for table in (*TABLES, *VIEWS)
}


class _ChangeBatch:
    """Changes of a transaction, compared with the records read, and written together.

    Args:
        present: The records that exist.
    """

    def __init__(self, table: Table[Any, Any], present: dict[Place, Sequence[Any]]) -> None:
        self._table = table
        self._names = [column.name for column in table.values]
        self._none = (None,) * len(table.values)
        self._place = [_name(column) for column in (*table.partition, *table.key)]
        self._shapes: dict[tuple[str, ...], tuple[str, list[str]]] = {}
        self._present = present
        self._written: set[Place] = set()
        self._writes: dict[str, list[dict[str, Any]]] = {}

    def is_written(self, change: Change) -> bool:
        """True if a change of the same record is not flushed yet."""
        return change.place in self._written

    def apply(self, change: Change, until: Mapping[str, Any], refused: Refused) -> bool:
        """Apply a change and return True, or add it to `refused`."""
        table, names = self._table, self._names
        partition, key, seen, new, *_ = change
        place = partition, key
        stored = dict(zip(names, self._present.get(place, self._none), strict=True))
        present = {name: stored[name] for name in seen}
        if present != dict(seen):
            is_done = not (table.nonce and new) and change.is_done_by(present)
            if not is_done:
                refused[place] = present
            return is_done
        sql = STATEMENTS[table]
        row = dict(until)
        row.update(zip(self._place, (*partition, *key), strict=True))
        if new is None:
            self._add(sql.erase, row)
            self._present.pop(place, None)
        else:
            if sql.void_one and len(new) < len(names):
                # Else the other columns of an expired row would be valid again.
                self._add(sql.void_one, dict(row))
            columns = tuple(new)
            if (shape := self._shapes.get(columns)) is None:
                local = [_name(column) for column in table.named(columns)]
                shape = self._shapes[columns] = write_of(table, columns), local
            statement, local = shape
            row.update(zip(local, new.values(), strict=True))
            self._add(statement, row)
            stored |= new
            self._present[place] = [stored[name] for name in names]
        self._written.add(place)
        return True

    def flush(self, connection: sqlite3.Connection) -> None:
        """Write the applied changes."""
        # Expired rows are deleted first, or a change would make them valid again.
        first = STATEMENTS[self._table].void_one
        for statement in sorted(self._writes, key=lambda one: one != first):
            connection.executemany(statement, self._writes[statement])
        self._writes.clear()
        self._written.clear()

    def _add(self, statement: str, row: dict[str, Any]) -> None:
        self._writes.setdefault(statement, []).append(row)


class SqliteRegisters:
    """The verbs on notes and records."""

    counters: Counter[str]
    _database: Database

    def __init__(self) -> None:
        super().__init__()
        self._void_next_us: dict[tuple[str, Partition], int] = {}

    def _now(self, ttl_ms: int = 0) -> dict[str, Any]:
        """The parameters of `IN_FORCE`, and of a row that lasts `ttl_ms`."""
        raise NotImplementedError

    def note(
        self,
        table: Table[K, V],
        partition: Partition,
        values: Mapping[K, V],
        ttl_ms: int | None = None,
    ) -> None:
        """Write values under keys in one transaction, and delete expired rows.

        The seal of a lane also deletes the lease rows of shards that nobody leases any more.
        """
        table.check_notes()
        if not values:
            return
        sql, place = STATEMENTS[table], _named(table.partition, partition)
        # Rows that expire by time since boot mean nothing after a power cut.
        is_lasting = table.lapse is not Lapse.BOOT
        with self._database.transaction(is_lasting=is_lasting) as connection:
            now = self._until(table, ttl_ms)
            self.counters["batches"] += 1
            if sql.void:
                void_max = {"void_max": _VOID_A_NOTE * len(values)}
                connection.execute(sql.void, now | place | void_max)
            connection.executemany(
                sql.note, [now | place | _row(table, key, one) for key, one in values.items()]
            )
            if table.name == LANES.name:
                for row in (_row(table, key, one) for key, one in values.items()):
                    swept = {"lane": row["lane"], "minute": row["sealed"] - _SWEPT_MINUTES}
                    connection.execute(_FORGET_LEASES, now | place | swept)

    def notes(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """The values under these keys of a partition, or under all."""
        sql, given = STATEMENTS[table], self._now() | _named(table.partition, partition)
        if keys is not None:
            wanted = [given | _named(table.key, table.key_columns(key)) for key in keys]
        found: list[Any] = []
        with self._database.reading() as connection:
            self.counters["reads"] += 1
            if keys is None:
                found = connection.execute(sql.read, given).fetchall()
            else:
                for one in wanted:
                    found += connection.execute(sql.find, one)
        width = len(table.key)
        return {table.key_of(row[:width]): table.values_of(row[width:]) for row in found}

    def notes_of(
        self, table: Table[K, V], partitions: Sequence[Partition]
    ) -> dict[Partition, dict[K, V]]:
        """The values under all keys of several partitions; one statement each."""
        read, now, width = STATEMENTS[table].read, self._now(), len(table.key)
        with self._database.reading() as connection:
            self.counters["reads"] += 1
            return {
                one: {
                    table.key_of(row[:width]): table.values_of(row[width:])
                    for row in connection.execute(read, now | _named(table.partition, one))
                }
                for one in partitions
            }

    def erase(self, table: Table[K, V], partition: Partition, keys: Iterable[K]) -> None:
        """Delete rows in one transaction."""
        table.check_notes()
        place = _named(table.partition, partition)
        if rows := [place | _named(table.key, table.key_columns(key)) for key in keys]:
            with self._database.transaction() as connection:
                self.counters["batches"] += 1
                connection.executemany(STATEMENTS[table].erase, rows)

    def records(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """The values of records, read as notes are: no change is ever undecided here."""
        found = self.notes(table, partition, keys)
        return {key: one for key, one in found.items() if table.has_value(one)}

    def write_records(self, table: Table[K, V], changes: Sequence[Change]) -> Refused:
        """Apply the changes whose records are as seen: a transaction for 2,000 and their rows."""
        table.check_records()
        refused: Refused = {}
        for n in range(0, len(changes), _CHANGES_MAX):
            some = changes[n : n + _CHANGES_MAX]
            with begun("some of the records are written") if n else nullcontext():
                self._change_all(table, some, refused)
        return refused

    def _change_all(self, table: Table[K, V], changes: Sequence[Change], refused: Refused) -> None:
        with self._database.transaction() as connection:
            # Counted as on Cassandra, where a partition's changes are one LWT.
            self.counters["lwt"] += len({one.partition or one.key for one in changes})
            until = {ttl: self._until(table, ttl) for ttl in {one.ttl_ms for one in changes}}
            done = changes
            if not self._change_as_seen(connection, table, changes, until):
                done = self._change_each(connection, table, changes, until, refused)
            self._follow(connection, done)
            if STATEMENTS[table].void:
                for partition in {one.partition for one in done}:
                    self._void_records(connection, table, partition)

    def _change_as_seen(
        self,
        connection: sqlite3.Connection,
        table: Table[K, V],
        changes: Sequence[Change],
        until: Mapping[int | None, Mapping[str, Any]],
    ) -> bool:
        """Apply all changes if each record is as it was seen, which is nearly always so; else none.

        It reads nothing, and takes a third of the time of `_change_each`.
        """
        if len({(one.partition, one.key) for one in changes}) < len(changes):
            return False
        of: dict[_Shape, list[tuple[Any, ...]]] = {}
        values: tuple[Any, ...]
        for partition, key, seen, new, _, _, ttl_ms in changes:
            times = until[ttl_ms]
            ends = () if ttl_ms is None else (times["until_us"],)
            last = () if table.lapse is Lapse.NEVER else (times["now_us"],)
            if new is not None and not any(value is not None for value in seen.values()):
                shape = _Shape((), tuple(new), ttl_ms is not None)
                values = (*new.values(), *ends, *partition, *key)
            elif new is not None:
                shape = _Shape(tuple(seen), tuple(new), ttl_ms is not None)
                values = (*new.values(), *ends, *partition, *key, *seen.values(), *last)
            else:
                shape = _Shape(tuple(seen), None, has_ttl=False)
                values = (*partition, *key, *seen.values(), *last)
            of.setdefault(shape, []).append(values)
        connection.execute("SAVEPOINT as_seen")
        for shape, rows in of.items():
            if (statement := CHANGES.get((table, shape))) is None:
                statement = CHANGES[table, shape] = _change_of(table, shape)
            if connection.executemany(statement, rows).rowcount < len(rows):
                connection.execute("ROLLBACK TO as_seen")
                connection.execute("RELEASE as_seen")
                return False
        connection.execute("RELEASE as_seen")
        return True

    def _change_each(
        self,
        connection: sqlite3.Connection,
        table: Table[K, V],
        changes: Sequence[Change],
        until: Mapping[int | None, Mapping[str, Any]],
        refused: Refused,
    ) -> list[Change]:
        """Apply the changes whose records are as they were seen; returns them."""
        batch = _ChangeBatch(table, self._present(connection, table, changes))
        done = []
        for change in changes:
            if batch.is_written(change):
                batch.flush(connection)
            if batch.apply(change, until[change.ttl_ms], refused):
                done.append(change)
        batch.flush(connection)
        return done

    def _present(
        self, connection: sqlite3.Connection, table: Table[K, V], changes: Sequence[Change]
    ) -> dict[Place, Sequence[Any]]:
        """The records of changes that exist and have not expired."""
        sql, now, width = STATEMENTS[table], self._now(), len(table.key)
        present: dict[Place, Sequence[Any]] = {}
        of: dict[Partition, list[tuple[Any, ...]]] = {}
        for change in changes:
            of.setdefault(change.partition, []).append(change.key)
        for partition, keys in of.items():
            place = now | _named(table.partition, partition)
            if sql.find_many and len(keys) > 1:
                asked = place | {"keys": json.dumps([key[0] for key in keys])}
                rows = connection.execute(sql.find_many, asked).fetchall()
            else:
                rows = []
                for key in keys:
                    rows += connection.execute(sql.find, place | _named(table.key, key))
            for row in rows:
                present[partition, row[:width]] = row[width:]
        return present

    def _follow(self, connection: sqlite3.Connection, done: Sequence[Change]) -> None:
        """Insert and delete the messages' rows of applied changes."""
        raise NotImplementedError

    def _note_all(self, connection: sqlite3.Connection, notes: Iterable[Note]) -> None:
        """Write notes without a time to live, in an open transaction."""
        for table, partition, key, values in notes:
            row = self._until(table, None) | _named(table.partition, partition)
            connection.execute(STATEMENTS[table].note, row | _row(table, key, values))

    def _until(self, table: Table[K, V], ttl_ms: int | None) -> dict[str, Any]:
        if ttl_ms and table.lapse is Lapse.NEVER:
            raise ValueError(f"table {table.name} keeps no time to live; give it a `lapse`.")
        now = self._now(ttl_ms or 0)
        return now if ttl_ms else now | {"until_us": None, "until_boot_us": None}

    def _void_records(
        self, connection: sqlite3.Connection, table: Table[K, V], partition: Partition
    ) -> None:
        """Delete the expired rows of a partition once a minute, because it reads all of it."""
        place, now = (table.name, partition), self._now()
        if now["now_us"] >= self._void_next_us.get(place, 0):
            connection.execute(STATEMENTS[table].void, now | _named(table.partition, partition))
            self._void_next_us[place] = now["now_us"] + _VOID_EVERY_US


def _named(columns: Sequence[Column], values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(map(_name, columns), values, strict=True))


def _row(table: Table[K, V], key: K, values: V) -> dict[str, Any]:
    return _named(table.key, table.key_columns(key)) | _named(
        table.values, table.value_columns(values)
    )
