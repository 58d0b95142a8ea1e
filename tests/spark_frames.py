"""Frames of the views' columns for tests of the jobs, made without a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

TIME = pa.timestamp("us", tz="UTC")
LEDGER = {
    "row_id": pa.binary(),
    "id": pa.string(),
    "entered": TIME,
    "due": TIME,
    "fate": pa.string(),
    "ended": TIME,
}
"""The columns of the view `history` that an audit needs."""
HISTORY = {"queue": pa.string(), **LEDGER, "attempt": pa.int32(), "member": pa.string(),
           "task": pa.string()}  # fmt: skip
"""The view `history`."""
ROWS = {
    "entry": pa.binary(),
    "row_id": pa.binary(),
    "id": pa.string(),
    "entered": TIME,
    "in_flight": pa.bool_(),
}
"""The columns of the view `messages` that an audit needs."""


def frame_of(
    spark: SparkSession, columns: Mapping[str, pa.DataType], lines: Iterable[tuple[Any, ...]]
) -> DataFrame:
    """A frame of lines, which no Python process of Spark's has to make."""
    held = list(lines)
    arrays = [
        pa.array([line[place] for line in held], one) for place, one in enumerate(columns.values())
    ]
    return spark.createDataFrame(pa.table(arrays, names=list(columns)))
