"""Queues in SQLite, in a file or in memory.

```
 address ──► database ──► store     messages, leases
 (the url)  (connections) registers notes and records
                │         history   the put and the end of each message
                │
             schema     tables, migrations
```
"""

from shardq.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
