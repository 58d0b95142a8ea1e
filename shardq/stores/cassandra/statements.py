"""The CQL of notes and records, made from their tables when this module is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardq.stores.tables import TABLES, VIEWS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.stores.tables import Column, Table


class Statements(NamedTuple):
    """The statements of a table; `{}` stands for the keyspace.

    Attributes:
        read: Reads all rows of a partition; of the table if each key is a partition.
        read_of: Reads all rows of a partition, or of several if one column names a partition; a row
            begins with the partition's name. For a table whose keys are partitions: reads rows by
            several keys of one column; empty if keys have more columns.
        find: Reads rows by key.
        note: Writes a row plainly; empty for a table of records alone.
        erase: Deletes a row plainly; empty for a table of records alone.
    """

    read: str
    read_of: str
    find: str
    note: str
    erase: str


def statements_of(table: Table[Any, Any]) -> Statements:
    """The statements of a table."""
    name = f"{{}}.{table.name}"
    columns = ", ".join(_read(one) for one in (*table.key, *table.values))
    listed = ", ".join(_names(table.key))
    place, row = _are(table.partition), _are((*table.partition, *table.key))
    read = f"SELECT {columns} FROM {name}"
    time = "TIMESTAMP ? AND TTL ?" if table.latest else "TTL ?"
    note = erase = ""
    if table.has_notes:
        note = f"UPDATE {name} USING {time} SET {_are(table.values, ', ')} WHERE {row}"
        erase = f"DELETE FROM {name} WHERE {row}"
    if not place:
        by_keys = f"{read} WHERE {listed} IN ?" if len(table.key) == 1 else ""
        return Statements(read, by_keys, f"{read} WHERE {row}", note, erase)
    where = f"{read} WHERE {place}"
    named = ", ".join([*map(_read, table.partition), columns])
    by_key = f"{where} AND {listed if len(table.key) == 1 else f'({listed})'} IN ?"
    several = f"{_names(table.partition)[0]} IN ?" if len(table.partition) == 1 else place
    read_of = f"SELECT {named} FROM {name} WHERE {several}"
    return Statements(where, read_of, by_key, note, erase)


def change_of(table: Table[Any, Any], seen: tuple[str, ...], new: tuple[str, ...] | None) -> str:
    """The statement that sets columns of a row, or deletes it, if its columns are as seen."""
    shape = table, seen, new
    if shape not in CHANGES:
        name, row = f"{{}}.{table.name}", _are((*table.partition, *table.key))
        condition = _are(table.named(seen))
        if table.nonce:
            # The nonce is never empty; with this condition a refusal shows it.
            condition += f" AND \"{table.nonce}\" != ''"
        if new is None:
            CHANGES[shape] = f"DELETE FROM {name} WHERE {row} IF {condition}"
        else:
            mine = f', "{table.nonce}" = ?' if table.nonce else ""
            cells = _are(table.named(new), ", ") + mine
            CHANGES[shape] = f"UPDATE {name} USING TTL ? SET {cells} WHERE {row} IF {condition}"
    return CHANGES[shape]


CHANGES: dict[tuple[Table[Any, Any], tuple[str, ...], tuple[str, ...] | None], str] = {}
"""(table, columns seen, columns set) -> the statement."""


def _names(columns: Sequence[Column]) -> list[str]:
    return [f'"{one.name}"' for one in columns]


def _are(columns: Sequence[Column], between: str = " AND ") -> str:
    return between.join(f"{name} = ?" for name in _names(columns))


def _read(column: Column) -> str:
    name = f'"{column.name}"'
    if column.kind is Kind.TIMESTAMP:
        return f"toUnixTimestamp({name})"
    return f"timeuuidAsBlob({name})" if column.kind is Kind.TIMEUUID else name


STATEMENTS: Final[dict[Table[Any, Any], Statements]] = {
    table: statements_of(table) for table in (*TABLES, *VIEWS)
}
