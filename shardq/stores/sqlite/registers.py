"""Notes and records in SQLite: rows of small tables, with statements made from the tables.

Reads pass over expired rows. The next note of a partition deletes its expired rows. Expired records
are deleted when they are written anew, and once a minute all of a partition. Where notes expire by
the wall clock, each note deletes a few of the rows of the table that expired first.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardq.errors import begun
from shardq.stores.tables import LANES, TABLES, VIEWS, Lapse

if TYPE_CHECKING:
    import sqlite3
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.stores.sqlite.database import Database
    from shardq.stores.tables import Change, Column, K, Note, Partition, Refused, Table, V

_CHANGES_MAX = 2_000
"""Changes of a transaction; other writers wait 30 us for each change."""
_VOID_EVERY_US = 60_000_000
_VOID_A_NOTE = 10
"""Expired rows deleted with each note: with one, they might pile up; with many, writers wait."""
_SWEPT_MINUTES = 512
"""The last sweep of a sealed shard is after 256 minutes. After 512 minutes a shard without rows is
not leased."""

IN_FORCE = """\
CASE WHEN space = :space THEN from_boot_us <= :boot_us AND until_boot_us > :boot_us
ELSE until_us > :now_us END"""
"""True for a lease or member in force, with the parameters of `_now`. A row of an earlier boot is
taken for one of this boot only within the few seconds of time since boot that it lasted."""
_FORGET_LEASES = f"""\
DELETE FROM leases
WHERE queue = :queue AND lane = :lane AND minute BETWEEN 0 AND :minute - 1 AND NOT ({IN_FORCE})
AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.queue = leases.queue
AND messages.minute = leases.minute AND messages.lane = leases.lane)"""
"""Keep the lease row of a shard with rows: its holder may have died of one."""
_LAPSES = {
    Lapse.NEVER: ((), ""),
    Lapse.WALL: (("until_us",), "(until_us IS NULL OR until_us > :now_us)"),
    Lapse.BOOT: (("until_us", "space", "from_boot_us", "until_boot_us"), f"({IN_FORCE})"),
}
"""The columns that record when a row expires, and the condition that the row has not expired."""


class Statements(NamedTuple):
    """The statements of a table.

    Attributes:
        read: Reads the rows of a partition that have not expired.
        find: Reads a row that has not expired, by its key.
        note: Writes a row; in a table with a latest column, unless a later row is stored.
        erase: Deletes a row.
        void: Deletes expired rows; empty for a table without a lapse.
        void_one: Deletes a row if it has expired; empty for a table without a lapse.
    """

    read: str
    find: str
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
    """The statement that changes a row if the row is as it was seen.

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
        """Apply each change whose record has not changed since it was read.

        A transaction writes up to 2,000 changes, with the rows that belong to them.
        """
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
        for partition, key, seen, new, *_, ttl_ms in changes:
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
        """Apply the changes whose records are as they were seen; returns the applied changes."""
        sql, names = STATEMENTS[table], [column.name for column in table.values]
        done = []
        for change in changes:
            partition, key, seen, new, *_ = change
            row = {**until[change.ttl_ms], **_named(table.partition, partition)}
            row |= _named(table.key, key)
            if sql.void_one:
                # Else a change of one column would make an expired row's others valid again.
                connection.execute(sql.void_one, row)
            found = connection.execute(sql.find, row).fetchone()
            values = found[len(key) :] if found else (None,) * len(names)
            stored = dict(zip(names, values, strict=True))
            present = {name: stored[name] for name in seen}
            if present == dict(seen):
                if new is None:
                    connection.execute(sql.erase, row)
                else:
                    columns = tuple(new)
                    row |= _named(table.named(columns), list(new.values()))
                    connection.execute(write_of(table, columns), row)
                done.append(change)
            elif not (table.nonce and new) and change.is_done_by(present):
                done.append(change)
            else:
                refused[change.place] = present
        return done

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
        """Delete a partition's expired rows once a minute: the delete reads the whole partition."""
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
