"""Queues that tests of Spark share, and a data source whose tasks fail."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext, cloudpickle

import shardq
from pyspark_shardq import connect
from pyspark_shardq.source import ShardqDataSource
from pyspark_shardq.writing import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from pyspark_shardq.pieces import Pieces, WritePiece, WriteTally
    from shardq import Queue
    from shardq.model.message import Row

STORES = ["sqlite", "cassandra"]
"""What `url` is parametrized with, indirectly."""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that is there, a SQLite file unless the test asks for another."""
    if getattr(request, "param", "sqlite") == "cassandra":
        return str(request.getfixturevalue("cassandra_url"))
    made = f"sqlite:///{tmp_path / 'jobs.db'}"
    shardq.init(made)
    return made


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    """A queue of a name of its own, with a history and two priorities."""
    with shardq.connect(url) as db:
        yield db.queue(f"q-{uuid.uuid4().hex[:16]}", history="1d", bands=2)


class Bench:
    """A queue, as users have it and as Spark's jobs see it."""

    def __init__(self, spark: SparkSession, url: str, **given: Any) -> None:
        self.url = url
        self.db = shardq.connect(url)
        self.queue: Queue = self.db.queue(f"mail-{uuid.uuid4().hex[:8]}", **given)
        self.spark = connect(spark, self.queue.name, url)

    def rows(self) -> list[Row]:
        return sorted((row for page in self.queue._rows() for row in page), key=lambda row: row[:3])

    def bodies(self) -> list[str]:
        return sorted(row.body.decode() for row in self.rows())

    def writer(self, frame: DataFrame, **options: str) -> DataFrameWriter:
        given = {"store": self.url, "queue": self.queue.name, **options}
        return frame.write.format("shardq").options(**given).mode("append")


@pytest.fixture
def bench(spark: SparkSession, url: str) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**given: Any) -> Bench:
        made.append(Bench(spark, url, **given))
        return made[-1]

    yield make
    for one in made:
        one.db.close()


def failing(act: Callable[[int], None]) -> type[ShardqDataSource]:
    """A data source `failing` that writes as `shardq`, and acts after each piece on its try."""
    # Spark's processes cannot import this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])

    def write_piece(self: Any, pieces: Pieces, piece: WritePiece) -> WriteTally:
        tally = pieces.undo(piece) if self._options.act == "undo" else pieces.write(piece)
        context = TaskContext.get()
        assert context is not None
        act(context.attemptNumber())
        return tally

    class Batch(BatchWriter):
        _write_piece = write_piece

    class Stream(StreamWriter):
        _write_piece = write_piece

    class Source(ShardqDataSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def writer(self, schema: Any, overwrite: bool) -> Batch:
            return Batch(self._write_options(overwrite=overwrite), schema)

        def streamWriter(self, schema: Any, overwrite: bool) -> Stream:  # noqa: N802 - Spark's
            return Stream(self._write_options(overwrite=overwrite), schema)

    return Source


def killed(attempt: int) -> None:
    """Kills each task's process once, after its first piece."""
    if attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def broken(attempt: int) -> None:
    """Fails each task as often as it is tried."""
    raise RuntimeError("the cluster is gone")
