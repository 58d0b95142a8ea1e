"""Reading a view as Spark does, in this process: the plan, then each bin, without a Java."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_shardq import views
from pyspark_shardq.options import Options
from pyspark_shardq.reading import reader

TYPES: dict[str, DataType] = {
    "BINARY": BinaryType(),
    "BOOLEAN": BooleanType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "STRING": StringType(),
    "TIMESTAMP": TimestampType(),
    "MAP<STRING, STRING>": MapType(StringType(), StringType()),
}


def options_of(url: str, queue: str, **given: str) -> Options:
    return Options.of_reader({"store": url, "queue": queue, **given})


def schema_of(options: Options) -> StructType:
    """The schema that Spark gives to a reader."""
    fields = [
        StructField(one.name, TYPES[one.type], one.is_nullable) for one in views.of_view(options)
    ]
    return StructType(fields)


def reader_of(url: str, queue: str, **given: str) -> Any:
    options = options_of(url, queue, **given)
    return reader(options, schema_of(options), cores=2)


def rows_by(one: Any) -> list[dict[str, Any]]:
    """All rows of a reader, bin after bin."""
    return [
        row for part in one.partitions() for batch in one.read(part) for row in batch.to_pylist()
    ]


def read(url: str, queue: str, **given: str) -> list[dict[str, Any]]:
    return rows_by(reader_of(url, queue, **given))
