"""How a message's row changes, whoever asks for it.

```
 producer  put: new rows, in batches a shard         settle  ack, move, bury
 groups    what waits behind a message of its group  moves   moves under way, and where rows went
 redrive   put dead messages back
```
"""
