"""Counting and judging; never needed to deliver.

```
 scan   rows of many shards        audit  put against ended, by the ledger
 census depth, peek, check         trace  what processes wrote down, judged
 finder looks one message up       state  where a message is, in a word and a sentence
 whereabouts  why it does not run
```
"""
