"""What a queue keeps beside its messages, each read and written through the store.

```
 register    settings and secret of a queue       ledger  what became of each message
 membership  who consumes, and who should what    stats   totals of each process
 blocks      until when a group waits             folded  their sum, and the row of ended ones
                                                  keeper  what is done in time, in a thread
```
"""
