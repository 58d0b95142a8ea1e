"""What Spark raises, as the error that it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shardq
from pyspark_shardq import connect
from pyspark_shardq.complaint import read, translated
from shardq import errors

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

JAVA = """
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
"""
TASK = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 1.0 (TID 7): org.apache.spark.api.python.PythonException: "
)
TRACEBACK = """\
Traceback (most recent call last):
  File "store.py", line 3, in put
    raise ValueError("inner
ValueError: inner
of two lines

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "pieces.py", line 30, in write
    raise StoreTimeout(
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            f"{TASK}{TRACEBACK}shardq.errors.StoreTimeout: mail: no answer\nin 10 s.\n{JAVA}",
            errors.StoreTimeout("mail: no answer in 10 s."),
        ),
        (
            f"[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: {TRACEBACK}"
            "shardq.errors.UnknownQueue: there is no queue 'mail'.\n SQLSTATE: 38000",
            errors.UnknownQueue("there is no queue 'mail'."),
        ),
        (
            "An error occurred while calling o7.parquet.\n: org.apache.spark.SparkException: "
            f"[CANNOT_READ] Could not read footer for file: a.parquet. SQLSTATE: KD001{JAVA}",
            errors.ShardqError("Spark: Could not read footer for file: a.parquet."),
        ),
        (
            f"{TASK}{TRACEBACK}ZeroDivisionError: division by zero\n{JAVA}",
            errors.ShardqError(
                "a Python process of Spark's failed: ZeroDivisionError: division by zero"
            ),
        ),
        (
            f"{TASK}{TRACEBACK}shardq.errors.Newer: of a later release\n{JAVA}",
            errors.ShardqError(
                "a Python process of Spark's failed: shardq.errors.Newer: of a later release"
            ),
        ),
        (
            "[USER_RAISED_EXCEPTION] no such day SQLSTATE: P0001\n\nJVM stacktrace:\norg.x",
            errors.ShardqError("Spark: no such day"),
        ),
    ],
)
def test_an_error_of_spark_is_told_in_one_sentence(text: str, wanted: Exception) -> None:
    told = read(RuntimeError(text))

    assert (type(told), str(told)) == (type(wanted), str(wanted))


def test_an_error_of_shardq_s_in_spark_s_own_processes_is_that_error_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with shardq.connect(url) as db:
        db.queue("mail")

    with pytest.raises(shardq.UnknownQueue, match="there is no queue 'mial'") as caught:
        connect(spark, "mial", url).read()

    assert "Traceback" not in str(caught.value)
    assert "Traceback" in str(caught.value.__cause__)


def test_what_spark_refuses_before_it_begins_is_wrong_usage(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(shardq.UsageError, match="Spark: Path does not exist"), translated():
        spark.read.parquet(str(tmp_path / "none.parquet"))
    with pytest.raises(shardq.UsageError, match="`nmae` cannot be resolved"), translated():
        spark.range(1).select("nmae")
