"""Lets Spark find the data source `shardq` by itself: it looks into packages of such a name.

Spark passes over every such package as soon as one of them fails. So this one never does, and where
`shardq.spark` cannot be had it offers nothing.
"""

from contextlib import suppress

with suppress(ImportError):
    from shardq.spark.source import ShardqDataSource as DefaultSource

    __all__ = ["DefaultSource"]
