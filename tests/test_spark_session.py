from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_session_counts_in_utc(spark: SparkSession) -> None:
    [row] = spark.sql("SELECT current_timezone(), count(*) FROM range(1000)").collect()

    assert tuple(row) == ("UTC", 1_000)
