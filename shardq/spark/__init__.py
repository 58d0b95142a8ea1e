"""Queues in and out of Apache Spark: a data source for PySpark, and jobs on millions of messages.

Rows are written and read through the store port inside Spark's tasks. Nothing is ever claimed from
Spark: consuming belongs to consumers. What needs no Spark is not here.
"""

from __future__ import annotations

from shardq.errors import MissingExtra

try:
    import pyspark  # noqa: F401 - whether it is there
except ImportError as error:
    raise MissingExtra(
        "shardq.spark needs PySpark: pip install 'shardq[spark]' brings it."
    ) from error

from shardq.spark.source import ShardqDataSource, register

__all__ = ["ShardqDataSource", "register"]
