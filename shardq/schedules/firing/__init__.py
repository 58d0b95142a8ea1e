"""That schedules fire: which are due, their jobs, and who fires them.

```
 firer     steps in a thread of its own, or with a consumer that is stepped
  ├ upcoming   when to look at which schedule; members divide the buckets
  └ firing     fires records: jobs first, then the record's next fire time
```
"""
