"""Whether a process works, for those who restart it or send it work: probes, a file, systemd.

```
 consumers, loop, store ──► Vitals ──┬─ page: /livez, /readyz
                                     └─ Beat, each second ──► a file, systemd's watchdog
```

Live is a process whose loops turn, however busy its threads are. Ready is one whose store answers
and that is not about to end.
"""
