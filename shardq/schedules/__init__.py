"""When a queue's schedules fire, and that they do.

```
 schedule   the schedules of a queue, as users hold them ─► face: the methods of `Queue`
  ├ declaring  what code declares, and how the records are brought to it
  ├ options    what can be chosen of a schedule     policy  what it does if things go otherwise
  ├ starts     the start that a trigger of APScheduler has filled in itself counts as none
  ├ past       what became of its last firings      ahead   what all of a queue's will put
  ├ firing/    which schedules are due, and their jobs
  └ table      the records, in the store
      └ stored     one of them, and what its next firing puts
          ├ definition  when it fires, what it puts, and how
          └ origin      the firing that has put a message, in its headers
 triggers/  when a schedule fires: pure
```
"""
