"""The records of a queue beside its messages, each read and written through the store.

```
 register    settings and secret of a queue     ledger    the put and the end of each message
 membership  members, and the lanes of each     presence  files that show a member's death
 stats       totals of each process             folded    their sum, and the row of ended processes
 results     results of messages                keeper    calls tasks in time, in a thread
 keys        reads and writes names of messages keyrow    the stored row of a name
 keychanges  changes that take and free names   standing  judges what a name stands for
 home        the parts that a queue shares
```
"""
