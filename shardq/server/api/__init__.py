"""The HTTP API, `/v1`: one table of routes, from which the server and its documentation are made.

```
 request ──► dispatch ──► table: route ──► right of the caller ──► reading: path, query, body
                             │                                                │
              openapi, reference page                                         ▼
                                       answer ◄── problem or struct ◄── handler of a room
```

Rooms, each with its structs and its handlers, which add themselves to the table: queues, messages,
listing, many, deliveries, forwarding, stream, keys, watching, dead, finding, calendar, schedules,
tasks, accounts, actions.
"""

from shardq.server.api.dispatch import answer, refusal

__all__ = ["answer", "refusal"]
