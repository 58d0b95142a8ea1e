"""Pages for people: what is late, why, what died, and buttons that put it right.

```
 table    path ─► page: what it reads, its template         page     one request: session, place
 acts     forms ─► calls of /v1, by deeds                  leading  answers that lead elsewhere
 looks    one look at all queues, for all viewers           live     a page again, as events
 markup   times, bodies and numbers as people read them     templates, static
```

What a page shows it reads by the calls of `/v1`, under the levels of whoever is signed in.
"""

from __future__ import annotations

from shardq.server.pages.dispatch import answer, is_page, refusal

__all__ = ["answer", "is_page", "refusal"]
