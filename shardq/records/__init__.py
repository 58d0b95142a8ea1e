"""What a queue keeps beside its messages, each read and written through the store.

```
 register    settings and secret of a queue       ledger  what became of each message
 membership  who consumes, and who should what    stats   totals of each process
 blocks      until when a group waits             folded  their sum, and the row of ended ones
 results     what came of messages, for a while   keeper  what is done in time, in a thread
 keys        whose a queue's names are            keyrow  the row of a name, as it is stored
 keychanges  how names are taken and freed      standing  what a name stands for, judged
```
"""
