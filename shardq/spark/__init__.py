"""Queues in and out of Apache Spark: a data source for PySpark, and jobs on millions of messages.

```
 session() ─► connect(spark, queue) ─► SparkQueue ─┬─ read(view) ─► DataFrame
                                                   └─ schedule, backlog, audit .. ─► jobs/
 spark.read.format("shardq") ─► source ─► the store port, inside Spark's tasks
```

Rows are written and read through the store port inside Spark's tasks. Nothing is ever claimed from
Spark: consuming belongs to consumers. What needs no Spark is not here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from shardq.errors import MissingExtra

try:
    import pyspark  # noqa: F401 - whether it is there
except ImportError as error:
    raise MissingExtra(
        "shardq.spark needs PySpark: pip install 'shardq[spark]' brings it."
    ) from error

# At once, unlike the others: the module of the function's name would take its place.
from shardq.spark.session import session
from shardq.spark.source import ShardqDataSource, register

__all__ = ["ShardqDataSource", "SparkQueue", "connect", "register", "session"]

if TYPE_CHECKING:
    from shardq.spark.queue import SparkQueue, connect
else:
    # Imported when first used: each of Spark's Python processes imports this package.
    _ROOM_OF = {"SparkQueue": "queue", "connect": "queue"}

    def __getattr__(name: str) -> object:
        room = _ROOM_OF.get(name)
        if room is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{room}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
