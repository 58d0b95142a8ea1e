"""Reads the lanes of a queue and hands out due rows: one `Engine` for each consumer.

```
 engine ─┬ leases/    the right to read a shard (lease); lanes that no member reads (guard)
         ├ reading/   reader    polls rows due by now, and reads just ahead (pages)
         │            lane, lanes, quiet    which lanes are read, and how far
         │            sweeper   rereads behind now; seals
         │            intake    takes in the rows that are new; memory holds them
         ├ handing/   ready     rows that wait for a thread (waiters, crew) or a caller
         │            delivery  a row on its way through a handler (handler, call, outcome)
         │            starts    begins deliveries with keys; care: begins them after a crash
         │            failures, hanging    the log of handlers that fail, or hang
         ├ storing/   outbox    stores outcomes of deliveries in batches; courier: a thread for acks
         │            ending, discards    ends apart from handlers, rows to delete; deaths: on_dead
         ├ groups/    group lanes: rows that stay where they are, and the heads of groups
         └ members/   sharing   gives due rows to members with free slots; auto: number of lanes
 deliverer  gives deliveries to the handler, one after another in each thread
 receiver   serves callers of `Queue.receive` (caller) from one engine; claims: one batch for all
 stepper    one thread that steps many engines; rest, news: when the next step is due
```
"""
