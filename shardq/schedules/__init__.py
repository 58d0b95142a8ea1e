"""Schedules: when they fire, and their firings.

```
 schedule   the schedules of a queue, as users see them ─► face: the methods of `Queue`
  ├ declaring  schedules that code declares, and how records are brought up to date
  ├ options    the options of a schedule            policy  options for missed times, long runs
  ├ starts     a start that an APScheduler trigger has filled in itself is dropped
  ├ ahead      the jobs that schedules will put
  ├ firing/    which schedules are due, and their jobs
  └ table      the records, in the store
      └ stored     one record, and the jobs of its next firing
          ├ definition  when it fires, its job, and how
          └ origin      the firing that has put a message, in its headers
 triggers/  when a schedule fires: pure
```
"""
