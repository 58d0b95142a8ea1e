"""Files of rows, and directories of such files: Parquet, CSV and lines of JSON."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq.asked import TORN
from pyspark_shardq.complaint import translated
from shardq.errors import ShardqError, UsageError, shown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_KINDS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
_PACKED = (".gz", ".bz2", ".zst")
SUFFIXES = ".parquet, .csv, .json and .jsonl, the last three also packed as .gz"


def kind_of(path: str) -> str:
    """`parquet`, `csv` or `json`, by a path's suffix.

    Raises:
        UsageError: If it is none of these.
    """
    name = PurePath(path.rstrip("/")).name.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    kind = _KINDS.get(PurePath(name).suffix)
    if kind is None:
        raise UsageError(
            f"the kind of {shown(path)} is not known; its name must end with one of {SUFFIXES}."
        )
    return kind


def read(spark: SparkSession, path: str) -> DataFrame:
    """The rows of a file.

    CSV has the names of its columns in its first line, and all of its columns are texts. A line
    that cannot be read, or has more or fewer cells than that, keeps its text in a column `TORN`.

    Raises:
        UsageError: If its suffix is not known, or it cannot be read.
    """
    kind = kind_of(path)
    try:
        with translated():
            frame = _csv(spark, path) if kind == "csv" else getattr(spark.read, kind)(path)
    except ShardqError as error:
        raise UsageError(f"{shown(path)} cannot be read: {error}") from error
    if frame.columns == [TORN]:
        raise UsageError(f"no line of {shown(path)} is JSON; each has to be an object.")
    found: DataFrame = frame
    return found


def _csv(spark: SparkSession, path: str) -> DataFrame:
    # Quotes within quotes are doubled, as everybody but Spark writes them.
    reader = spark.read.options(header=True, inferSchema=False, escape='"', multiLine=True)
    schema = reader.csv(path).schema
    return (reader.schema(schema.add(TORN, "string")) if schema.names else reader).csv(path)


def priority_of(frame: DataFrame, path: str, name: str | None) -> str | Column | None:
    """The column of priorities: in a CSV a text, which is read as a number.

    Args:
        frame: The rows.
        path: Of their file.
        name: The column's name; None: none is asked for.
    """
    if name not in frame.columns or kind_of(path) != "csv":
        return name
    return F.col(f"`{name}`").try_cast("bigint")


def write(frame: DataFrame, path: str) -> None:
    """Write rows into a new directory.

    Raises:
        UsageError: If its suffix is not known, or the directory exists.
    """
    kind = kind_of(path)
    options: dict[str, str] = {"header": "true", "escape": '"'} if kind == "csv" else {}
    try:
        frame.write.format(kind).options(**options).save(path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise UsageError(
            f"{shown(path)} already exists, and nothing was put; give the bad rows another path."
        ) from error
