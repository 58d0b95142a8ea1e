"""Heads of groups that are due: groups take turns, so that a flood of one group delays itself.

```
 head ──► line? ── no ──────────────────────────────► turns of its band ─► take
            └─ its line: heads of one group ── first ──┘      ▲
                     └─ the rate allows none yet ─► held ─time─┘
```

A group of one place has one head here at a time. A group with a rate, a tier or more places has a
line: only the first head of the line takes part in the turns.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import chain, count
from typing import TYPE_CHECKING

from shardq.model.ids import order_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq.clock import Clock
    from shardq.engine.handing.delivery import Delivery, HeadLine


class Turns:
    """The due heads of one queue's groups. The caller holds the lock of `ready`.

    Args:
        on_hold: Called when a line is held, and its token is there before that of any other line.

    Attributes:
        due: How many heads take part in the turns.
    """

    def __init__(self, clock: Clock, bands: int, on_hold: Callable[[], None]) -> None:
        self._clock = clock
        self._on_hold = on_hold
        self._turns: list[deque[Delivery]] = [deque() for _ in range(bands)]
        self._lines: dict[HeadLine, None] = {}
        self._held: list[tuple[float, int, HeadLine]] = []
        """When the next token is there, time since boot; a number; the line that waits for it."""
        self._numbers = count()
        self.due = 0

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Delivery]:
        """All heads, those of lines last."""
        unlined = (one for one in chain.from_iterable(self._turns) if one.line is None)
        lined = (entry[3] for line in self._lines for entry in line.heads)
        return chain(unlined, lined)

    def add(self, one: Delivery) -> None:
        """Add a head."""
        line = one.line
        if line is None:
            self._turns[one.band].append(one)
            self.due += 1
            return
        self._lines[line] = None
        heapq.heappush(line.heads, (one.band, one.row.due_ms, order_key(one.row.id), one))
        if line.heads[0][3] is one and not line.is_held:
            self._enter(line)

    def _enter(self, line: HeadLine, *, goes_on: bool = False) -> None:
        """Let the first head of a line take part in the turns, in place of another of the line.

        Args:
            line: The line, with heads.
            goes_on: True if the line's turn goes on, so that no other group comes between.
        """
        if line.turn is not None:
            line.turn, self.due = None, self.due - 1
        next_us = line.next_us()
        if next_us > 0 and next_us > self._clock.boot_us():
            line.is_held = True
            heapq.heappush(self._held, (next_us, next(self._numbers), line))
            if self._held[0][2] is line:
                self._on_hold()
            return
        line.turn, self.due = line.heads[0][3], self.due + 1
        turns = self._turns[line.turn.band]
        if goes_on:
            turns.appendleft(line.turn)
        else:
            line.left = line.tier
            turns.append(line.turn)

    def hold(self, line: HeadLine, until_us: int) -> None:
        """Let no head of a line be taken until a time since boot."""
        line.until_us = max(line.until_us, until_us)
        if line.turn is not None:
            self._enter(line)

    def promote(self) -> None:
        """Let lines whose next token is there take part in the turns."""
        held = self._held
        while held and held[0][0] <= self._clock.boot_us():
            line = heapq.heappop(held)[2]
            line.is_held = False
            if line.heads:
                self._enter(line)

    def first(self, band: int) -> Delivery | None:
        """Return the head of a band whose turn it is."""
        turns = self._turns[band]
        while turns:
            one = turns[0]
            if one.line is None or one.line.turn is one:
                return one
            # Another head of its line took its place, or it was removed.
            turns.popleft()
        return None

    def of_band(self, band: int) -> Iterator[Delivery]:
        """The heads of a band that take part in the turns, and those behind them in their lines."""
        for one in self._turns[band]:
            if one.line is None:
                yield one
            elif one.line.turn is one:
                free = one.line.heads if one.line.bucket is None else ()
                yield from (entry[3] for entry in free if entry[0] == band) if free else (one,)

    def take(self, one: Delivery) -> None:
        """Take out the head that `first` returned: it is handed out."""
        self._turns[one.band].popleft()
        line = one.line
        self.due -= 1
        if line is None:
            return
        heapq.heappop(line.heads)
        line.turn = None
        line.left -= 1
        if line.bucket is not None:
            line.bucket.take(self._clock.boot_us())
        if line.heads:
            self._enter(line, goes_on=line.left > 0)
        else:
            del self._lines[line]

    def remove(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out the heads that `unwanted` accepts."""
        removed = [one for one in self if unwanted(one)]
        if not removed:
            return []
        out = set(removed)
        for band, turns in enumerate(self._turns):
            if not out.isdisjoint(turns):
                self._turns[band] = deque(one for one in turns if one not in out)
        self.due -= sum(one.line is None for one in removed)
        for line in {one.line: None for one in removed if one.line is not None}:
            line.heads = [entry for entry in line.heads if entry[3] not in out]
            heapq.heapify(line.heads)
            if line.turn in out:
                line.turn, self.due = None, self.due - 1
            if not line.heads:
                del self._lines[line]
            elif line.turn is None and not line.is_held:
                self._enter(line)
        return removed

    def seconds_to_next(self) -> float:
        """Seconds until a line that is held gets a token; infinite if none is held."""
        if not self._held:
            return math.inf
        return max(0.0, (self._held[0][0] - self._clock.boot_us()) / 1e6)
