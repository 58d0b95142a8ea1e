"""Group lanes: lanes whose rows stay where they are, each read by one owner.

`lane.py` holds one lane in memory and decides which row is a group's head; `room.py` gives heads
to `ready`, and keeps each group in order as its rows end or are edited.
"""
