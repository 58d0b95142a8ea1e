"""How a message's row changes, whoever asks for it.

```
 producer  put: new rows, in batches a shard ─► keyedputs  under keys ─► taker  takes their names
 fate      how a delivery ended ─► planner  the row that takes its row's place ─► settle  done once
 hub       gathers the puts and acks of many threads
 receipts  settles by receipt      redrive  puts dead messages back     pointers  written before it
 keyedputs puts under keys ─► taker  whose the names are       keyed  cancels, moves, edits by key
 groups    what waits behind a message of its group        moves  under way, and where rows went
```
"""
