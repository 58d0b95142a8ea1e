"""Writing frames and streams into a queue, each row once, and what of them is refused."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)
from spark_stores import Bench, bench, failing, killed, url

import shardq
from pyspark_shardq import runs
from pyspark_shardq.complaint import translated
from pyspark_shardq.options import Options
from pyspark_shardq.runs import PLAN, SparkRun
from pyspark_shardq.source import ShardqDataSource, register
from pyspark_shardq.writing import BatchWriter, PlainRows
from shardq import Queue
from shardq.errors import BadUrl, UsageError
from shardq.model.message import Row
from shardq.model.shard import Layout
from shardq.testing.clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.spark

_FROM = datetime(2040, 1, 1, tzinfo=UTC)


# Runs, as tasks and Spark's driver work on them ---------------------------------------------------

_LAID_OUT = StructType(
    [
        StructField("bin", IntegerType()),
        StructField("lane", IntegerType()),
        StructField("due_ms", LongType()),
        StructField("name", StringType()),
        StructField("body", BinaryType()),
    ]
)


def laid_out(first: int, last: int) -> pa.RecordBatch:
    """Rows of a bin, as `schedule` has laid them out."""
    numbers = range(first, last)
    columns = [
        pa.array([0] * len(numbers), pa.int32()),
        pa.array([0] * len(numbers), pa.int32()),
        pa.array([int(_FROM.timestamp() * 1_000) + number for number in numbers]),
        pa.array([f"key-{number:03}" for number in numbers]),
        pa.array([b"body"] * len(numbers)),
    ]
    return pa.RecordBatch.from_arrays(columns, names=_LAID_OUT.fieldNames())


def writer_of(here: Bench, run: SparkRun, **options: str) -> BatchWriter:
    given = {"store": here.url, "queue": here.queue.name, "run": run.id, "piece": "5", **options}
    return BatchWriter(Options.of_writer(given), _LAID_OUT)


def test_a_run_whose_queue_is_purged_meanwhile_ends_there(bench: Callable[..., Bench]) -> None:
    here = bench()
    run = SparkRun.new(here.db._home.clock.now_us())

    def batches() -> Iterator[pa.RecordBatch]:
        yield laid_out(0, 7)
        here.queue.purge()
        yield laid_out(7, 14)

    with pytest.raises(UsageError, match="has been purged or dropped since run"):
        writer_of(here, run).write(batches())

    assert len(here.rows()) == 5


def test_what_a_run_that_failed_has_written_is_counted_and_what_is_taken_back_of_it(
    bench: Callable[..., Bench],
) -> None:
    here = bench()
    run = SparkRun.new(here.db._home.clock.now_us())
    header = {"bins": 1}
    runs.agreed(here.queue._home.store, run.entry(here.queue.name, PLAN), header)

    def batches() -> Iterator[pa.RecordBatch]:
        yield laid_out(0, 12)
        raise OSError("the cluster is gone")

    writer = writer_of(here, run)
    with pytest.raises(OSError, match="gone"):
        writer.write(batches())
    # The driver counts nothing, as if it had been killed too.
    assert here.queue.totals().put == 0
    undo = writer_of(here, run, act="undo")
    undo.commit([undo.write(iter([laid_out(0, 12)]))])
    for _ in range(2):
        totals = here.queue.totals()
        assert (totals.put, totals.cancelled) == (10, 10)
        # A task of the run itself was the last to end.
        writer.abort([None])

    other = SparkRun.new(run.as_of_us + 1)
    writer = writer_of(here, other)
    with pytest.raises(OSError, match="gone"):
        writer.write(batches())
    writer.abort([None])
    assert here.queue.totals().put == 20
    writer.commit([writer.write(iter([laid_out(0, 12)]))])
    assert here.queue.totals().put == 22


def test_a_task_of_a_cluster_writes_into_no_file(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = bench()
    # Spark's driver does not know where it runs where it has found shardq by itself.
    writer = writer_of(here, SparkRun.new(here.db._home.clock.now_us()))
    context = TaskContext()
    context._localProperties = {"spark.master": "spark://host:7077"}
    monkeypatch.setattr(TaskContext, "_taskContext", context)

    with pytest.raises(BadUrl, match="keep the queue in Cassandra"):
        writer.write(iter([laid_out(0, 7)]))

    assert here.rows() == []


# Frames -------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_frame_with_all_columns_becomes_messages_as_put_makes_them(
    spark: SparkSession, bench: Callable[..., Bench]
) -> None:
    here = bench(bands=2, history="1d")
    rows = [
        (b"one", _FROM, "a", 1, "team", {"k": "v"}),
        (b"two", _FROM + timedelta(microseconds=1), "b", 0, None, None),
    ]
    frame = spark.createDataFrame(
        rows, "body binary, due timestamp, id string, priority int, `group` string, "
        "headers map<string,string>",
    )  # fmt: skip

    here.writer(frame).save()

    first, second = sorted(here.queue.peek(), key=lambda one: one.id)
    assert (first.body, first.due, first.id, first.priority, first.group, first.headers) == (
        b"one", _FROM, "a", 1, "team", {"k": "v"}
    )  # fmt: skip
    assert (second.due, second.priority, second.group) == (
        _FROM + timedelta(milliseconds=1), 0, None
    )  # fmt: skip
    assert here.queue.totals().put == 2
    assert here.queue.audit().misfits == []


@pytest.mark.gate
def test_rows_of_bodies_alone_are_due_now_and_written_once_though_each_task_is_killed(
    spark: SparkSession, bench: Callable[..., Bench]
) -> None:
    here = bench()
    # Some of them alike: each is a message of its own.
    frame = spark.range(0, 600, 1, 3).select((F.col("id") % 500).cast("string").alias("body"))
    spark.dataSource.register(failing(killed))

    here.writer(frame, piece="60").format("failing").save()

    assert here.bodies() == sorted(str(number % 500) for number in range(600))
    now_ms = here.db._home.clock.now_ms()
    assert all(row.due_ms <= now_ms for row in here.rows())
    assert here.queue.totals().put == 600


@pytest.mark.gate
def test_rows_come_by_sql_and_upper_and_lower_case_are_one(
    spark: SparkSession, bench: Callable[..., Bench]
) -> None:
    here = bench()
    register(spark)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW outbox (ID STRING, Due TIMESTAMP, BODY STRING) "
        f"USING shardq OPTIONS (store '{here.url}', queue '{here.queue.name}')"
    )

    spark.sql(f"INSERT INTO outbox SELECT 'a', TIMESTAMP '{_FROM.isoformat()}', 'one'")

    [message] = here.queue.peek()
    assert (message.id, message.due, message.text) == ("a", _FROM, "one")


_BODY = StructType([StructField("body", StringType())])


@pytest.mark.parametrize(
    ("text", "schema", "options"),
    [
        ("no column 'body'", StructType([StructField("id", StringType())]), {}),
        ("has a column 'extra'", StructType([*_BODY, StructField("extra", StringType())]), {}),
        ("'due' is string", StructType([*_BODY, StructField("due", StringType())]), {}),
        ("without a zone", StructType([*_BODY, StructField("due", TimestampNTZType())]), {}),
        ("'body' is int", StructType([StructField("body", IntegerType())]), {}),
        ("have one name", StructType([*_BODY, *_BODY]), {}),
        ("have one name", StructType([*_BODY, StructField("Body", StringType())]), {}),
        ("no option of a write", _BODY, {"speed": "1"}),
        ("option rate must be", _BODY, {"rate": "none", "tasks": "2"}),
        ("say in option tasks", _BODY, {"rate": "10"}),
        ("option act must be", _BODY, {"act": "steal"}),
        ("option create must be", _BODY, {"create": "maybe"}),
        ("127.0.0.1:9", _BODY, {"store": "cassandra://127.0.0.1:9/shardq"}),
        ("names no run", _BODY, {"run": "mine"}),
        ("no queue", _BODY, {"queue": "nobody"}),
        ("no file", _BODY, {"store": "sqlite:////tmp/there/is/none.db"}),
        ("in the memory", _BODY, {"store": "sqlite://"}),
        ("cannot be overwritten", _BODY, {"overwrite": "yes"}),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_before_anything_is(
    bench: Callable[..., Bench], text: str, schema: StructType, options: dict[str, str]
) -> None:
    here = bench()
    given = {"store": here.url, "queue": here.queue.name, **options}
    is_over = given.pop("overwrite", "") != ""
    with pytest.raises(shardq.ShardqError, match=text):
        ShardqDataSource(given).writer(schema, is_over)


def test_a_stream_needs_the_time_of_each_row(bench: Callable[..., Bench]) -> None:
    here = bench()
    given = {"store": here.url, "queue": here.queue.name}
    with pytest.raises(shardq.UsageError, match="needs a column entered"):
        ShardqDataSource(given).streamWriter(_BODY, False)


def test_a_row_that_cannot_be_put_fails_the_write_with_its_reason(
    spark: SparkSession, bench: Callable[..., Bench]
) -> None:
    here = bench()
    rows = [("a", _FROM), ("b", _FROM), ("c", datetime(2020, 1, 1, tzinfo=UTC))]
    frame = spark.createDataFrame(rows, "body string, due timestamp").coalesce(1)

    told = r"row 3 of partition 0 cannot be put: due 2020-01-01T00:00:00.000Z is past\."
    with pytest.raises(shardq.errors.BadTime, match=told), translated():
        here.writer(frame).save()

    assert here.rows() == []


_GOOD = {"body": b"x", "due": _FROM, "id": "a", "priority": 0, "group": None, "headers": None}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("body is null", {"body": None}),
        ("larger than 1,048,576", {"body": b"x" * 1_048_577}),
        ("due is null", {"due": None}),
        ("more than 100 years away", {"due": datetime(2900, 1, 1, tzinfo=UTC)}),
        ("id must be text, not None", {"id": None}),
        ("id '' must be 1 to 256", {"id": ""}),
        ("priority must be 0 to 1, not 2", {"priority": 2}),
        ("priority must be 0 to 1, not None", {"priority": None}),
        ("group .* must be 1 to 256", {"group": "a\nb"}),
        ("header 'a' must be text, not NoneType", {"headers": [("a", None)]}),
        ("names that begin with 'shardq-'", {"headers": [("shardq-reason", "b")]}),
        ("entered must be a time", {"entered": None}),
        ("not ahead of now", {"entered": datetime(2039, 1, 1, tzinfo=UTC)}),
    ],
)
def test_what_makes_a_row_unfit_is_said(text: str, changed: dict[str, Any]) -> None:
    layout = Layout("mail", bands=2)
    row = {**_GOOD, "entered": datetime(2026, 1, 1, tzinfo=UTC), **changed}
    batch = pa.RecordBatch.from_pylist([row], schema=_SCHEMA)
    reader = PlainRows(batch.schema.names, layout, 4, "0")
    with pytest.raises(shardq.UsageError, match=text):
        list(reader.sorted([batch], ManualClock()))


_SCHEMA = pa.schema(
    {
        "body": pa.binary(),
        "due": pa.timestamp("us", "UTC"),
        "id": pa.string(),
        "priority": pa.int32(),
        "group": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
        "entered": pa.timestamp("us", "UTC"),
    }
)


def test_a_frame_tells_consumers_of_the_priorities_that_it_is_the_first_to_use(
    spark: SparkSession, bench: Callable[..., Bench]
) -> None:
    here = bench()
    frame = spark.createDataFrame([(b"one", 0), (b"two", 1)], "body binary, priority int")
    here.writer(frame).save()
    here.queue._home.register.refresh(force=True)
    assert here.queue.settings.bands_used == 2


def test_what_entered_before_a_purge_is_left_out_and_counted() -> None:
    entered = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{**_GOOD, "entered": entered + timedelta(hours=hour)} for hour in range(3)]
    batch = pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)
    reader = PlainRows(batch.schema.names, Layout("mail"), 4, "0")
    reader.purged_before_us = int((entered + timedelta(hours=2)).timestamp()) * 1_000_000
    [found] = reader.sorted([batch], ManualClock())
    assert (len(found), reader.purged) == (1, 2)


def test_a_rate_of_the_whole_write_is_shared_by_the_tasks_that_run_at_a_time() -> None:
    options = Options.of_writer({"queue": "mail", "rate": "100", "tasks": "4"})
    assert options.task_rate == 25
    assert Options.of_writer({"queue": "mail"}).task_rate is None


# Streams ------------------------------------------------------------------------------------------


def _stream(here: Bench, frame: DataFrame, checkpoint: Path, source: str) -> DataStreamWriter:
    given = {"store": here.url, "queue": here.queue.name, "checkpointLocation": str(checkpoint)}
    return frame.writeStream.format(source).options(**given).trigger(availableNow=True)


def test_a_micro_batch_that_is_written_again_finds_its_rows_written(
    spark: SparkSession, bench: Callable[..., Bench], tmp_path: Path
) -> None:
    here = bench(history="1d")
    events = tmp_path / "events"
    entered = datetime.now(UTC) - timedelta(seconds=5)
    for part in range(2):
        spark.createDataFrame(
            [(f"{part}-{n}", entered + timedelta(milliseconds=n), _FROM) for n in range(40)],
            "id string, entered timestamp, due timestamp",
        ).write.mode("append").parquet(str(events))
    spark.dataSource.register(failing(killed))
    stream = (
        spark.readStream.schema("id string, entered timestamp, due timestamp")
        .parquet(str(events))
        .withColumn("body", F.col("id"))
    )
    checkpoint = tmp_path / "checkpoint"

    _stream(here, stream, checkpoint, "failing").start().awaitTermination()
    first = here.rows()
    assert sorted(row.name or "" for row in first) == sorted(
        f"{part}-{n}" for part in range(2) for n in range(40)
    )
    assert {row.entered_us // 1_000_000 - int(entered.timestamp()) for row in first} <= {0, 1, 2}

    # Half are finished; then it is as if Spark had been killed before it wrote down the batch.
    here.queue._settler.finish(first[::2], shardq.records.ledger.End.ACKED)
    for name in ("commits/0", "commits/.0.crc"):
        (checkpoint / name).unlink()
    # Consumers have found meanwhile that more lanes are needed.
    here.queue._home.register.change(lambda now: [replace(now, lanes_read=32, lanes_written=32)])
    _stream(here, stream, checkpoint, "shardq").start().awaitTermination()

    assert here.rows() == first[1::2]
    assert here.queue.totals().put == 80
    balance = here.queue.audit()
    assert (balance.total.put, balance.total.acked, balance.misfits) == (80, 40, [])
