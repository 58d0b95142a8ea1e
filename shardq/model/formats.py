"""The number of the format of stored data, the same for every store."""

from __future__ import annotations

from shardq.errors import SchemaMissing, SchemaNewer

BASE = 14
"""The format of the tables that `cql/` and `stores/sqlite/schema.py` make.

A lower number is refused, because no release made it. A migration has the number of its format.
"""
FORMAT = 14
"""The format that this shardq reads and writes.

Each change of tables, of stored JSON or of receipts raises it. Before 0.1.0 such a change raises
`BASE` as well. After that a change of tables is a migration.
"""


def is_current(number: int, *, shown: str, what: str) -> bool:
    """True if a store has this format; False if its tables are not all made, or not all migrated.

    Args:
        number: The stored format; 0 if there is none yet.
        shown: The store's name in errors.
        what: The kind of store, for errors: file, or keyspace.

    Raises:
        SchemaMissing: If a shardq from before 0.1.0 made the store.
        SchemaNewer: If a newer shardq made the store.
    """
    if number > FORMAT:
        raise SchemaNewer(
            f"{shown} has format {number}, made by a newer shardq; this one knows {FORMAT}: "
            f"upgrade shardq here."
        )
    if 0 < number < BASE:
        raise SchemaMissing(
            f"{shown} has format {number}, made before 0.1.0 by an unreleased shardq, and this one "
            f"needs {FORMAT}: name another {what}, or remove this one."
        )
    return number == FORMAT
