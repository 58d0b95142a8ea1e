"""Columns, from which Spark's schema and Arrow's both follow.

Spark compares the Arrow schema of what it gets with its own, nullability included, so neither is
written down twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

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
class ViewColumn:
    """A column of a view.

    Attributes:
        name: Its name.
        type: Its type, in Spark's words.
        values: Makes its values of what a batch is made of.
        is_nullable: True if it may be null.
    """

    name: str
    type: str
    values: Callable[[Any], Any] = field(compare=False, repr=False)
    is_nullable: bool = False

    @property
    def arrow(self) -> pa.Field:
        """The field of Arrow's schema."""
        return pa.field(self.name, _ARROW[self.type], nullable=self.is_nullable)

    def array_of(self, held: Any) -> pa.Array:
        """The column of what a batch is made of."""
        values = self.values(held)
        return values if isinstance(values, pa.Array) else pa.array(values, _ARROW[self.type])

    @property
    def ddl(self) -> str:
        """The column in Spark's words; quoted, since `group` is one of SQL."""
        return f"`{self.name}` {self.type}{'' if self.is_nullable else ' NOT NULL'}"


Columns: TypeAlias = tuple[ViewColumn, ...]


def columns_in(frame: DataFrame) -> set[str]:
    """The names of a frame's columns, in lower case: to Spark upper and lower case are one."""
    return {name.lower() for name in frame.columns}


def ddl(columns: Sequence[ViewColumn]) -> str:
    """A schema in Spark's words."""
    return ", ".join(column.ddl for column in columns)


def arrow_schema(columns: Sequence[ViewColumn]) -> pa.Schema:
    """A schema in Arrow's."""
    return pa.schema([column.arrow for column in columns])
