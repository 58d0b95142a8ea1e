"""Reading the lanes of a queue and handing out what is due: one `Engine` for each consumer.

```
 engine ─┬ lease      who may read a shard            reader   polls: rows up to now, and just ahead
         ├ lane       how far a lane has been read    sweeper  rereads behind now; seals
         ├ intake     which of the rows read are new  guard    what a seal has to wait for
         ├ ready      rows until they are taken       care     deliveries after another's crash
         ├ delivery   a row on its way through a handler
         ├ starts     lets those with keys begin, many by one LWT
         ├ outbox     what deliveries come to (outcome), stored in batches by the courier
         │   └ discards   what is deleted and not delivered
         └ groups/    lanes of groups: rows that stay where they are, and their heads
 deliverer gives deliveries to the handler (handler, call)   deaths   tells on_dead
   └ failures, hanging: what the log has of handlers
 receiver  callers of `Queue.receive` (caller), who share one engine: claims  one batch for all
 stepper   one thread that steps many engines     crew, waiters   handler threads of many queues
```
"""
