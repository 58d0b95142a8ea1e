"""When a queue's schedules fire.

```
 trigger   when a schedule fires: made, stored as JSON, asked for the next fire time
  ├ rules     every so long, once, any of several, all of several, within bounds
  ├ cron      the text of a cron, as cron(8) reads it     calendar  every so many days or months
  │  └ zones     the wall clock of a zone: the hour that comes twice, the hour that is missing
  └ foreign   triggers of classes that users have written ─► state  as JSON holds it
 starts    the start that a trigger of APScheduler has filled in itself counts as none
 declaring what code declares, and how what is there is brought to it
 firing    which firing has put a message
 ahead     what all of a queue's will put
```
"""
