"""How fast a million rows of 200 bytes are scheduled, beside what `put_many` reaches by itself."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it
from spark_stores import STORES, url

import shardq
from pyspark_shardq import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 1_000_000
BODY = b"x" * 200
AT_LEAST = 0.5
"""The least part of the rate of `put_many`, which has the whole machine."""


@pytest.mark.parametrize("url", STORES, indirect=True)
def test_a_million_rows_are_scheduled_at_half_the_speed_of_put_many(
    spark: SparkSession, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = str(tmp_path / "people")
    spark.range(ROWS).select(
        F.concat(F.lit("key-"), "id").alias("id"),
        F.timestamp_millis(F.lit(4_000_000_000_000) + F.col("id") % 3_600 * 1_000).alias("at"),
        F.repeat(F.lit("x"), len(BODY)).alias("text"),
    ).write.parquet(people)
    name = f"mail-{uuid.uuid4().hex[:8]}"
    with shardq.connect(url) as db:
        alone = _rate(lambda: db.queue(f"{name}-alone").put_many(BODY for _ in range(ROWS)))
        db.queue(name)
        queue = connect(spark, name, url)
        frame = spark.read.parquet(people)
        # Java compiles in the first half minute what it runs from then on.
        db.queue(f"{name}-warm")
        warm = connect(spark, f"{name}-warm", url)
        warm.schedule(frame, key="id", due="at", body="text").run()
        begun = time.perf_counter()
        plan = queue.schedule(frame, key="id", due="at", body="text")
        plan.preview()
        counted = time.perf_counter() - begun
        report = plan.run()
        scheduled = ROWS / (time.perf_counter() - begun)
        assert report.rows == ROWS
        assert db.queue(name).depth().waiting == ROWS
    with capsys.disabled():
        sys.stdout.write(
            f"\n{url}: put_many {alone:,.0f} rows/s; schedule {scheduled:,.0f} rows/s with its "
            f"preview of {counted:.1f} s: {scheduled / alone:.2f} of it\n"
        )
    assert scheduled >= AT_LEAST * alone


def _rate(put: object) -> float:
    begun = time.perf_counter()
    assert callable(put)
    assert put() == ROWS
    return ROWS / (time.perf_counter() - begun)
