"""Queues in SQLite, in a file or in memory.

```
 address ──► database ──► store     messages, leases, registers
 (the url)  (connections) history   what became of each message
                │
             schema     tables, migrations
```
"""

from shardq.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
