"""Counting and judging; never needed to deliver.

```
 depth    how many messages        mend         totals corrected by counting every row
 census   peek, check, forecast    audit        put against ended, by the ledger
 scan     rows of many shards      orphans      names that crashes left
 finder   looks one message up     whereabouts  why it does not run
 failed   the last failures of messages that are still there
 dead     the last dead messages   state        where a message is, in a word and a sentence
 calendar what comes due ahead    grid         minutes, hours and days by a zone's clocks
 pace     how fast it is worked    outlook      hot minutes, and when a backlog clears
```
"""
