"""Queues in and out of Apache Spark: a data source for PySpark, and jobs on millions of messages.

```
 session() ─► connect(spark, queue) ─► QueueJobs ─┬─ read(view) ─► DataFrame
                                                  └─ schedule, backlog, audit .. ─► jobs/
 spark.read.format("shardq") ─► source ─► the store port, inside Spark's tasks
```

Rows are written and read through the store port inside Spark's tasks. Nothing is ever claimed from
Spark: consuming belongs to consumers. What needs no Spark is not here; the command line is
`shardq.cli.spark`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shardq.errors import MissingExtra

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


def require() -> None:
    """Refuse to go on where PySpark or PyArrow is not installed.

    Raises:
        MissingExtra: If so.
    """
    if any(find_spec(name) is None for name in ("pyspark", "pyarrow")):
        raise MissingExtra(
            "shardq.spark needs PySpark and PyArrow: pip install 'shardq[spark]' brings both."
        )


# `python -m shardq.spark` imports this first, and its command line makes one line of the error.
if sys.argv[:1] != ["-m"] or __name__ not in sys.orig_argv:
    require()

if TYPE_CHECKING:
    from shardq.spark.connection import QueueJobs, connect
    from shardq.spark.jobs.archive import ArchiveReport
    from shardq.spark.jobs.audit import AuditReport
    from shardq.spark.jobs.backlog import BacklogReport
    from shardq.spark.jobs.dead import DeadReport, DeadTable
    from shardq.spark.jobs.history import HistoryReport
    from shardq.spark.jobs.schedule import Plan, Preview, Report
    from shardq.spark.jobs.simulate import SimulateReport
    from shardq.spark.jobs.simulate import run as simulate
    from shardq.spark.queue import SparkQueue
    from shardq.spark.sessions import session
    from shardq.spark.source import ShardqDataSource, register
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
        "queue": ("SparkQueue",),
        "sessions": ("session",),
        "source": ("ShardqDataSource", "register"),
    }
    _ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
    _CALLED = {"simulate": "run"}
    """What is called otherwise where it comes from."""

    def __getattr__(name: str) -> object:
        room = _ROOM_OF.get(name)
        if room is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{room}")
        found = globals()[name] = getattr(module, _CALLED.get(name, name))
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
