"""What each view has: one table of columns, from which Spark's schema and Arrow's both follow.

Spark compares the Arrow schema of what it gets with its own, nullability included, so neither is
written down twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from shardq.errors import UsageError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from shardq.spark.options import Options

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.string())

_ARROW: dict[str, pa.DataType] = {
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "TIMESTAMP": TIMESTAMP,
    "MAP<STRING, STRING>": HEADERS,
}
"""Spark's types, as a schema in words has them, and Arrow's."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view.

    Attributes:
        name: Its name.
        type: Its type, in Spark's words.
        is_nullable: Whether it may be null.
    """

    name: str
    type: str
    is_nullable: bool = False

    @property
    def arrow(self) -> pa.Field:
        """The field of Arrow's schema."""
        return pa.field(self.name, _ARROW[self.type], nullable=self.is_nullable)

    @property
    def ddl(self) -> str:
        """The column in Spark's words; quoted, since `group` is one of SQL."""
        return f"`{self.name}` {self.type}{'' if self.is_nullable else ' NOT NULL'}"


Columns: TypeAlias = tuple[Column, ...]

BODY = Column("body", "BINARY")

MESSAGES: Columns = (
    Column("queue", "STRING"),
    Column("minute", "BIGINT"),
    Column("lane", "INT"),
    Column("priority", "INT"),
    Column("due", "TIMESTAMP"),
    Column("first_due", "TIMESTAMP"),
    Column("id", "STRING"),
    Column("row_id", "BINARY"),
    Column("entry", "BINARY"),
    Column("entered", "TIMESTAMP"),
    Column("attempt", "INT"),
    Column("group", "STRING", is_nullable=True),
    Column("in_flight", "BOOLEAN"),
    Column("not_before", "TIMESTAMP", is_nullable=True),
    Column("headers", "MAP<STRING, STRING>", is_nullable=True),
    Column("last_error", "STRING", is_nullable=True),
    Column("last_error_at", "TIMESTAMP", is_nullable=True),
    BODY,
)
"""`due` is when the row next needs attention, `first_due` what was first asked for; `id` is the
message's, `row_id` that of its row, which every move changes, `entry` that of its first row, by
which the history knows it; `in_flight`: it is a claim; `not_before`: when a message of a group may
be handed out that is put off where it is."""

DEAD: Columns = (
    *MESSAGES,
    Column("reason", "STRING", is_nullable=True),
    Column("died", "TIMESTAMP", is_nullable=True),
    Column("attempts", "INT", is_nullable=True),
    Column("traceback", "STRING", is_nullable=True),
)
"""A message that was put into the dead-letter queue by hand has none of the last four."""

HISTORY: Columns = (
    Column("queue", "STRING"),
    Column("id", "STRING"),
    Column("row_id", "BINARY"),
    Column("entered", "TIMESTAMP"),
    Column("due", "TIMESTAMP", is_nullable=True),
    Column("fate", "STRING", is_nullable=True),
    Column("ended", "TIMESTAMP", is_nullable=True),
    Column("attempt", "INT"),
    Column("member", "STRING", is_nullable=True),
    Column("task", "STRING", is_nullable=True),
)
"""`row_id` is that of the message's first row, the `entry` of messages; `due` null: the put is not
recorded; `fate` null: it has not ended; `ended` null: no end is recorded."""

SHARDS: Columns = (
    Column("queue", "STRING"),
    Column("minute", "BIGINT"),
    Column("start", "TIMESTAMP"),
    Column("lane", "INT"),
    Column("priority", "INT", is_nullable=True),
    Column("rows", "BIGINT"),
    Column("in_flight", "BIGINT"),
)
"""`priority` null: a lane for groups, whose messages have priorities of their own."""

VIEWS: dict[str, Columns] = {
    "messages": MESSAGES,
    "dead": DEAD,
    "history": HISTORY,
    "shards": SHARDS,
}


def of_view(options: Options) -> Columns:
    """The columns that are asked for.

    Raises:
        UsageError: If there is no such view or column.
    """
    every = VIEWS.get(options.view)
    if every is None:
        raise UsageError(
            f"there is no view {shown(options.view)}; there are {', '.join(VIEWS)}: give one, as "
            f"in .option('view', 'dead')."
        )
    if options.columns is None:
        return tuple(one for one in every if options.bodies or one is not BODY)
    known = {one.name: one for one in every}
    for name in options.columns:
        if name.lower() not in known:
            raise UsageError(
                f"view {options.view!r} has no column {shown(name)}; it has {', '.join(known)}."
            )
    return tuple(known[name.lower()] for name in options.columns)


def columns_in(frame: DataFrame) -> set[str]:
    """The names of a frame's columns, in lower case: to Spark upper and lower case are one."""
    return {name.lower() for name in frame.columns}


def ddl(columns: Sequence[Column]) -> str:
    """A schema in Spark's words."""
    return ", ".join(column.ddl for column in columns)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """A schema in Arrow's."""
    return pa.schema([column.arrow for column in columns])


def of_schema(view: str, schema: StructType) -> Columns:
    """The columns that Spark expects: those of the view, or what the user has given for them.

    Raises:
        UsageError: If a schema was given that the view cannot fill.
    """
    known = {one.name: one for one in VIEWS[view]}
    wanted: list[Column] = []
    for field in schema.fields:
        column = known.get(field.name)
        type_name = field.dataType.simpleString().upper()
        if column is None or type_name != column.type.replace(", ", ",").upper():
            raise UsageError(
                f"view {view!r} has no column {field.name} {type_name}; leave the schema out, or "
                f"choose from {ddl(VIEWS[view])}."
            )
        wanted.append(Column(column.name, column.type, field.nullable))
    return tuple(wanted)
