"""When a schedule fires: values in, values out; no clock is read and nothing is stored.

```
 trigger   a trigger: made, stored as JSON, asked for its next fire time
  └ rules     an interval, once, any of several, all of several, within bounds
     ├ clocks    the wall clock of a zone: repeated hours, missing hours
     │  ├ cron      the text of a cron, as cron(8) reads it
     │  ├ calendar  every few days or months
     │  └ zones     the zones by their names
     └ foreign   triggers of classes that users have written ─► state  to JSON and back
 fire      a fire time
```
"""
