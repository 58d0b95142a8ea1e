"""Deterministic simulation: real producers, consumers and callers in worlds where much goes wrong.

```
 seed ─► plan ─► world: processes on `simulated` tables ─► history ─► checker: the rules, one by one
           └─ shrink: drop the parts without which a failing seed still fails
```
"""
