"""Pictures of what a queue holds, in a terminal's colours or as a file.

```
 scale    counts ─► levels         drawing  shapes and texts ─► SVG by hand, PNG by matplotlib
 colours  levels ─► colours        loadmap  the load ahead, drawn of these
                                   png      the one writer of PNG, by matplotlib
```
"""
