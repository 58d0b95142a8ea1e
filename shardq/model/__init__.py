"""What things are: values and arithmetic, without I/O and without a clock.

```
 names   what may be called what          shard    where a row lives: (queue, minute, lane)
 ids     row ids, ordered by their birth  message  a message and the row that it is stored as
 times   dues and durations as given      receipt  the token that settles a delivery
                                          settings what a queue is set to
```
"""
