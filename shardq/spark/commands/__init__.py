"""The command line's jobs: a module for each noun, imported when its command is called.

```
 __main__ ─► a command ─► options: a session, a queue, rows ─► jobs/ ─► outcome: text, JSON, files
```
"""
