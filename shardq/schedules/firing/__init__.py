"""The firing of schedules: the due ones, their jobs, and the members that fire them.

```
 firer     steps in a thread of its own, or with a consumer that is stepped
  ├ upcoming   when to look at which schedule; members divide the buckets
  └ firing     fires records: jobs first, then the record's next fire time
```
"""
