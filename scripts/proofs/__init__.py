"""Proofs of shardq's promises, on a real store and by real processes.

```
 prove ─► timers catchup lanes purge crash ── each: a stage, a play on it, a list of promises
            └─ stage (store, processes, files)
                 ├─ producer (process) ──► what was put, and when ─────┐
                 └─ consumer, caller ────► what was handed out, when ──┴─► judge ─► promise
```

The judge believes these files alone, never shardq's own counters. `demo` shows the same in a
minute, with the command line's own producers and consumers.
"""
