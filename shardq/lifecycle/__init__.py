"""How a message's row changes.

```
 producer  puts new rows ─► keyedputs  puts rows under keys
 fate      how a delivery ended ─► planner  plans the row's change ─► settle  carries it out once
 receipts  settles by receipt      keyed     cancels, moves and edits by key
 batch     rows of one put_many    home      what works on a queue shares
 forwarding  moves messages into other queues     pointers  writes keys as rows move or end
 hub       gathers puts and acks of many threads
 moves     moves under way         pauses    pauses between tries that others outran
 cap       the limit of what waits  traced   puts with spans
```
"""
