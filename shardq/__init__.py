"""shardq: a time-sharded priority and delay queue on Apache Cassandra or embedded SQLite.

```python
import shardq

with shardq.connect("sqlite:///jobs.db") as db:
    db.queue("mail").put(b"hello", delay="90s")
    shardq.Consumer(db.queue("mail"), print).run()
```

Public is what this module, `shardq.tasks`, `shardq.errors`, `shardq.testing` and `shardq.aio`
export, and nothing else.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

# Not by `==`: after that, a type checker on Windows takes all that follows for unreachable.
if sys.platform in {"win32"}:  # noqa: FURB171
    # Raised before any other import: clocks, forks and signals need functions that Windows lacks.
    raise ImportError("shardq supports Linux and macOS; on Windows run it in WSL.")

from shardq import errors
from shardq.errors import (
    ClockError,
    KeyTaken,
    QueueFull,
    ReceiptError,
    ShardqError,
    StaleReceipt,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
    UsageError,
)

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "App",
    "Audit",
    "Balance",
    "Bury",
    "ChangeOptions",
    "Check",
    "ClockError",
    "Connection",
    "Consumer",
    "Depth",
    "Due",
    "Duration",
    "FailedAttempt",
    "Fire",
    "Firing",
    "Found",
    "GroupOptions",
    "Item",
    "KeyTaken",
    "LaneView",
    "Lateness",
    "Limited",
    "MemberView",
    "Message",
    "Misfit",
    "MisfitKind",
    "Observer",
    "Policies",
    "PolicyOptions",
    "Preview",
    "Progress",
    "Queue",
    "QueueFull",
    "QueueOptions",
    "QueueView",
    "ReceiptError",
    "Record",
    "Retry",
    "RunView",
    "Schedule",
    "ScheduleOptions",
    "Schedules",
    "Settings",
    "ShardqError",
    "Snapshot",
    "Snooze",
    "StaleReceipt",
    "State",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "TaskLimitOptions",
    "Totals",
    "Trigger",
    "UnknownQueue",
    "UsageError",
    "Where",
    "connect",
    "errors",
    "init",
    "open_shards",
    "run",
]

if TYPE_CHECKING:
    from shardq.connection import Connection, connect, init
    from shardq.consumer import Consumer, run
    from shardq.engine.handing.outcome import Bury, Limited, Retry, Snooze
    from shardq.inspection.audit import Audit, Balance, Misfit, MisfitKind
    from shardq.inspection.census import Check
    from shardq.inspection.depth import Depth
    from shardq.inspection.state import Found, State, Where
    from shardq.lifecycle.batch import Item
    from shardq.lifecycle.keyed import Answer, Snapshot
    from shardq.model.limits import GroupOptions, TaskLimitOptions
    from shardq.model.message import Message
    from shardq.model.settings import QueueOptions, Settings
    from shardq.model.times import Due, Duration
    from shardq.observer import LaneView, MemberView, Observer, QueueView, RunView, open_shards
    from shardq.queue import Queue
    from shardq.records.ledger import FailedAttempt, Record
    from shardq.records.stats import Lateness, Totals
    from shardq.schedules.face import Schedules
    from shardq.schedules.options import ChangeOptions, Preview, ScheduleOptions
    from shardq.schedules.origin import Firing
    from shardq.schedules.policy import Policies, PolicyOptions
    from shardq.schedules.schedule import Schedule
    from shardq.schedules.triggers.trigger import Fire, Trigger
    from shardq.stores.store import Progress
    from shardq.tasks.app import App
else:
    # Imported when first used, so that users of a part do not wait for the whole. Type checkers do
    # not see this branch, because they would take any name for one of shardq's.
    _ROOMS = {
        "connection": ("Connection", "connect", "init"),
        "consumer": ("Consumer", "run"),
        "engine.handing.outcome": ("Bury", "Limited", "Retry", "Snooze"),
        "inspection.audit": ("Audit", "Balance", "Misfit", "MisfitKind"),
        "inspection.census": ("Check",),
        "inspection.depth": ("Depth",),
        "inspection.state": ("Found", "State", "Where"),
        "lifecycle.keyed": ("Answer", "Snapshot"),
        "lifecycle.batch": ("Item",),
        "model.limits": ("GroupOptions", "TaskLimitOptions"),
        "model.message": ("Message",),
        "model.settings": ("QueueOptions", "Settings"),
        "model.times": ("Due", "Duration"),
        "observer": ("LaneView", "MemberView", "Observer", "QueueView", "RunView", "open_shards"),
        "queue": ("Queue",),
        "records.ledger": ("FailedAttempt", "Record"),
        "records.stats": ("Lateness", "Totals"),
        "schedules.face": ("Schedules",),
        "schedules.origin": ("Firing",),
        "schedules.options": ("ChangeOptions", "Preview", "ScheduleOptions"),
        "schedules.policy": ("Policies", "PolicyOptions"),
        "schedules.schedule": ("Schedule",),
        "schedules.triggers.trigger": ("Fire", "Trigger"),
        "stores.store": ("Progress",),
        "tasks.app": ("App",),
    }
    _ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

    def __getattr__(name: str) -> object:
        room = _ROOM_OF.get(name)
        if room is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{room}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
