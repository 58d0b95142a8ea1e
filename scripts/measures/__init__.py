"""Measurements for those who change shardq, taken and printed as those of `shardq bench` are.

```
 keys groups history workers tasks callers traces metrics server ── lines ──► the table of bench
   └─ sizes (how much) worker (a process) asked, storeless (requests of SQS, and no store)
```
"""
