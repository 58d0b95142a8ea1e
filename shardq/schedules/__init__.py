"""The schedules of a queue, and what fires them.

```
 triggers/ when a schedule fires: values in, values out
 policy    what a schedule does where nobody was there, a run lasts too long, or clocks change
 options   what can be chosen of a schedule, checked and previewed
 declaring what code declares, and how what is there is brought to it
 firing    which firing has put a message
 ahead     what all of a queue's will put
```
"""
