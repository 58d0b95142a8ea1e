"""Group lanes: a row that is retried or claimed is edited in place; each lane has one reader.

`lane.py` holds one lane in memory and decides which row is a group's head; `room.py` gives heads
to `ready`, and keeps each group in order as its rows end or are edited.
"""
