"""The HTTP API, `/v1`: one table of routes, and what is made of it.

```
 request ──► dispatch ──► table: route ──► right of the caller ──► reading: path, query, body
                             │                                                │
              openapi, reference page                                         ▼
                                       answer ◄── problem or struct ◄── handler of a room
```

Rooms, each with its structs, its handlers and its lines of the table: queues, messages, deliveries,
stream, keys, watching, schedules, tasks, accounts, actions.
"""

from shardq.server.api.dispatch import answer, refusal

__all__ = ["answer", "refusal"]
