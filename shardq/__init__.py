"""shardq: a time-sharded priority and delay queue on Apache Cassandra or embedded SQLite.

```python
import shardq

with shardq.connect("sqlite:///jobs.db") as db:
    db.queue("mail").put(b"hello", delay="90s")
    shardq.Consumer(db.queue("mail"), print).run()
```
"""

import sys

# Not by `==`, after which a type checker on Windows takes all that follows for unreachable.
if sys.platform in {"win32"}:  # noqa: FURB171
    # Before all else: clocks, forks and signals here need what Windows lacks.
    raise ImportError("shardq supports Linux and macOS; on Windows run it in WSL.")

from shardq.connection import Connection, connect, init
from shardq.consumer import Bury, Consumer, Retry, Snooze, run
from shardq.inspection.audit import Audit, Balance
from shardq.inspection.census import Depth
from shardq.model.message import Message
from shardq.observer import open_shards
from shardq.queue import Queue

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "Balance",
    "Bury",
    "Connection",
    "Consumer",
    "Depth",
    "Message",
    "Queue",
    "Retry",
    "Snooze",
    "connect",
    "init",
    "open_shards",
    "run",
]
