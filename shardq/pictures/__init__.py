"""Pictures of what a queue holds, in a terminal's colours or as a file.

```
 scale    counts ─► levels         drawing  shapes and texts ─► SVG by hand, PNG by matplotlib
 colours  levels ─► colours        loadmap  the load ahead, drawn of these
 plots    numbers ─► PNG           page     plots, tables and sentences ─► one HTML file
                                   png      the one writer of PNG, by matplotlib
```
"""
