"""Real faults: three real nodes, their network and our processes on their worst day.

```
 test_faults ─► play ── producers, consumers (processes of `proofs`) ──► files ─► judge ─► a line
                  │                                                                         │
                  └─ nodes (kill, freeze, fill) network (cut) proxy (lose answers)     the table
```

`scripts/faults` runs them. `pytest` alone leaves this directory out, because it takes minutes.
"""
