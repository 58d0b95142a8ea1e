"""Values and arithmetic, without I/O and without a clock.

```
 names   the alphabets of names           shard    the place of a row: (queue, minute, lane)
 ids     row ids, ordered by their birth  message  a message and the row that it is stored as
 times   dues and durations as given      receipt  the token that settles a delivery
                                          settings the settings of a queue
```
"""
