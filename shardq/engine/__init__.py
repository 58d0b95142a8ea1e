"""Reading the lanes of a queue and handing out what is due: one `Engine` for each consumer.

```
 engine ─┬ leases/    who may read a shard (lease); lanes that their reader leaves alone (guard)
         ├ reading/   reader    polls: rows up to now, and just ahead (pages)
         │            lane, lanes, quiet    how far each lane has been read, and which are read
         │            sweeper   rereads behind now; seals
         │            intake    which of the rows read are new; memory holds them
         ├ handing/   ready     rows until they are taken by a thread (waiters, crew) or a caller
         │            delivery  a row on its way through a handler (handler, call, outcome)
         │            starts    lets those with keys begin; care: deliveries after another's crash
         │            failures, hanging    what the log has of handlers
         ├ storing/   outbox    what deliveries come to, stored in batches by the courier
         │            ending, discards    ends that no handler makes; deaths tells on_dead
         ├ groups/    lanes of groups: rows that stay where they are, and their heads
         └ members/   sharing   due rows go to members with free threads; auto: how many lanes
 deliverer  gives deliveries to the handler, one after another in each thread
 receiver   callers of `Queue.receive` (caller), who share one engine: claims, one batch for all
 stepper    one thread that steps many engines; rest, news: when a step is next
```
"""
