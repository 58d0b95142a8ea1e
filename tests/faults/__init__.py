"""Real faults: what three real nodes, their network and our processes do on their worst day.

```
 test_faults ─► play ── producers, consumers (processes of `proofs`) ──► files ─► judge ─► a line
                  │                                                                         │
                  └─ nodes (kill, freeze, fill) network (cut) proxy (lose answers)     the table
```

Run by `scripts/faults`; `pytest` alone leaves this directory out, for it takes minutes.
"""
