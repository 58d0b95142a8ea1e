"""Counting and judging; never needed to deliver.

```
 depth    how many messages        mend         totals put right by counting every row
 census   peek, check, forecast    audit        put against ended, by the ledger
 scan     rows of many shards      trace        what processes wrote down, judged
 finder   looks one message up     whereabouts  why it does not run
 failed   what failed last, of all that is there
 dead     those that died last     state        where a message is, in a word and a sentence
 orphans  names that crashes left
 calendar what comes due ahead    grid         minutes, hours and days by a zone's clocks
 pace     how fast it is worked    outlook      hot minutes, and when a backlog clears
```
"""
