"""Signs that a process works, for systems that restart it or send it work.

```
 consumers, loop, store ──► Vitals ──┬─ page: /livez, /readyz
                                     └─ Beat, each second ──► a file, systemd's watchdog
```

A process is live if its loops turn, however busy its threads are. It is ready if its store answers
and it is not about to end.
"""
