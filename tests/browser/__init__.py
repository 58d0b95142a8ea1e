"""The pages of `shardq serve` in a real browser: Debian's Chromium, driven by playwright.

```
 shop      a store with what is late, running, dead, paused and to come, and its server
 chromium  the one browser of a run, or why there is none
 viewer    a page in it: what it complains of, whom it asks, how often it is clicked
 shown     each page, and the facts that it has to show in every mode
```
"""
