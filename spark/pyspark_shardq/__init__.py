"""Queues in and out of Apache Spark: a data source for PySpark, and jobs on millions of messages.

```
 session() ─► connect(spark, queue) ─► QueueJobs ─┬─ read(view) ─► DataFrame
                                                  └─ schedule, backlog, audit .. ─► jobs/
 spark.read.format("shardq") ─► source ─► the store port, inside Spark's tasks
```

Rows are written and read through the store port inside Spark's tasks. Nothing is ever claimed from
Spark: consuming belongs to consumers. The command line is `pyspark_shardq.cli`.

Spark imports each package whose name begins with `pyspark_`, and registers its `DefaultSource`. No
module here may have the name of one of Python's own: spark-submit runs `__main__.py`, so this
directory comes first where Python looks for modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "ArchiveReport",
    "AuditReport",
    "BacklogReport",
    "DeadReport",
    "DeadTable",
    "HistoryReport",
    "Plan",
    "Preview",
    "QueueJobs",
    "Report",
    "ShardqDataSource",
    "SimulateReport",
    "SparkQueue",
    "connect",
    "register",
    "session",
    "simulate",
]


if TYPE_CHECKING:
    from pyspark_shardq.connection import QueueJobs, connect
    from pyspark_shardq.jobs.archive import ArchiveReport
    from pyspark_shardq.jobs.audit import AuditReport
    from pyspark_shardq.jobs.backlog import BacklogReport
    from pyspark_shardq.jobs.dead import DeadReport, DeadTable
    from pyspark_shardq.jobs.history import HistoryReport
    from pyspark_shardq.jobs.schedule import Plan, Preview, Report
    from pyspark_shardq.jobs.simulate import SimulateReport
    from pyspark_shardq.jobs.simulate import run as simulate
    from pyspark_shardq.queues import SparkQueue
    from pyspark_shardq.sessions import session
    from pyspark_shardq.source import ShardqDataSource, register
else:
    # Imported when first used: each of Spark's Python processes imports this package.
    _ROOMS = {
        "connection": ("QueueJobs", "connect"),
        "jobs.archive": ("ArchiveReport",),
        "jobs.audit": ("AuditReport",),
        "jobs.backlog": ("BacklogReport",),
        "jobs.dead": ("DeadReport", "DeadTable"),
        "jobs.history": ("HistoryReport",),
        "jobs.schedule": ("Plan", "Preview", "Report"),
        "jobs.simulate": ("SimulateReport", "simulate"),
        "queues": ("SparkQueue",),
        "sessions": ("session",),
        "source": ("DefaultSource", "ShardqDataSource", "register"),
    }
    _ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
    _FOUND_BY_SPARK = "DefaultSource"
    _CALLED = {"simulate": "run", _FOUND_BY_SPARK: "ShardqDataSource"}
    """The names in their modules of those that have another name there."""

    def __getattr__(name: str) -> object:
        room = _ROOM_OF.get(name)
        if room is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"{__name__}.{room}")
        except ImportError as error:
            if name == _FOUND_BY_SPARK:
                # Spark would pass over all other data sources too.
                raise AttributeError(f"{__name__} cannot be imported: {error}") from error
            raise
        found = globals()[name] = getattr(module, _CALLED.get(name, name))
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
