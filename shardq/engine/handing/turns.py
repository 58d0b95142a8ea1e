"""Heads of groups that are due: groups take turns, so that a flood of one group delays itself.

```
 head ──► line? ── no ──────────────────────────────► turns of its band ─► take
            └─ its line: heads of one group ── first ──┘      ▲
                     └─ the rate allows none yet ─► held ─time─┘
```

A group of one place has one head here at a time. A group with a rate, a tier or more places has a
line: only the first head of the line takes part in the turns. So has a task with limits: its line
has its jobs without groups, and the heads of groups without a line. A head whose task has limits
is taken only if these allow it, in whichever line it is.
"""

from __future__ import annotations

import heapq
import math
from itertools import chain, count
from typing import TYPE_CHECKING

from shardq.model.ids import order_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq.clock import Clock
    from shardq.engine.handing.delivery import Delivery, HeadLine


def since_ms(one: Delivery) -> int:
    """Since when a due row waits: its due, or that from which it was moved."""
    row = one.row
    return row.due_ms if row.since_ms is None else row.since_ms


def _begin_ms(one: Delivery) -> int:
    """When the turn of a head begins: at its due, or when a delivery of its group last ended."""
    return max(since_ms(one), one.turn_ms)


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
        self._turns: list[list[tuple[int, int, int, Delivery]]] = [[] for _ in range(bands)]
        """For each band a heap of (begin of the turn, epoch milliseconds; numbers; head)."""
        self._lines: dict[HeadLine, None] = {}
        self._held: list[tuple[float, int, HeadLine]] = []
        """When the next token is there, time since boot; number of the wait; the line."""
        self._gated: dict[HeadLine, None] = {}
        """Lines that wait for the limits of a task."""
        self._numbers = count(1)
        self.due = 0

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Delivery]:
        """All heads, those of lines last."""
        entries = chain.from_iterable(self._turns)
        unlined = (entry[3] for entry in entries if entry[3].line is None)
        lined = (entry[3] for line in self._lines for entry in line.heads)
        return chain(unlined, lined)

    def add(self, one: Delivery) -> None:
        """Add a head, or a job of a task with limits."""
        line = one.line
        if line is None:
            heapq.heappush(self._turns[one.band], (_begin_ms(one), next(self._numbers), 0, one))
            self.due += 1
            return
        if one.gate is not None:
            one.gate.due += 1
        self._lines[line] = None
        heapq.heappush(line.heads, (one.band, since_ms(one), order_key(one.row.id), one))
        if line.heads[0][3] is one and (not line.held or line in self._gated):
            self._enter(line, goes_on=line.turn is not None, begin_ms=_begin_ms(one))

    def _enter(self, line: HeadLine, *, goes_on: bool = False, begin_ms: int | None = None) -> None:
        """Let the first head of a line take part in the turns, in place of another of the line.

        Args:
            line: The line, with heads.
            goes_on: True if the line's turn goes on, so that no other group comes between.
            begin_ms: When the turn begins, epoch milliseconds; None: now.
        """
        if line.turn is not None:
            line.turn, self.due = None, self.due - 1
        next_us = line.next_us()
        self._gated.pop(line, None)
        line.held = 0
        if next_us > 0 and next_us > self._clock.boot_us():
            line.held = next(self._numbers)
            if line.heads[0][3].gate is not None:
                self._gated[line] = None
            if next_us != math.inf:
                heapq.heappush(self._held, (next_us, line.held, line))
                if self._held[0][2] is line:
                    self._on_hold()
            return
        line.turn, self.due = line.heads[0][3], self.due + 1
        if not goes_on:
            line.left = line.tier
            line.begin_ms = self._clock.now_ms() if begin_ms is None else begin_ms
            line.number = next(self._numbers)
        heapq.heappush(
            self._turns[line.turn.band],
            (line.begin_ms, line.number, next(self._numbers), line.turn),
        )

    def hold(self, line: HeadLine, until_us: int) -> None:
        """Let no head of a line be taken until a time since boot."""
        line.until_us = max(line.until_us, until_us)
        if line.turn is not None:
            self._enter(line)

    def promote(self) -> None:
        """Let lines whose next token is there take part in the turns."""
        held = self._held
        while held and held[0][0] <= self._clock.boot_us():
            _, number, line = heapq.heappop(held)
            if line.held == number:
                self._release(line)

    def awaits_grant(self, line: HeadLine) -> bool:
        """True if a head of a line could be taken if a token was granted."""
        if not (line.heads and line.held) or line.until_us > self._clock.boot_us():
            return False
        gate = line.heads[0][3].gate
        return gate is None or gate.may_begin()

    def release(self, line: HeadLine) -> None:
        """Look again whether a line may be taken from, as a token was granted."""
        self._release(line)

    def reopen(self) -> None:
        """Look again whether lines that wait for limits of tasks, and not for pauses, are open."""
        for line in list(self._gated):
            gate = line.heads[0][3].gate
            if gate is None or not gate.is_closed:
                self._release(line)

    def _release(self, line: HeadLine) -> None:
        line.held = 0
        self._gated.pop(line, None)
        if line.heads:
            self._enter(line)

    def first(self, band: int) -> Delivery | None:
        """Return the head of a band whose turn it is."""
        turns = self._turns[band]
        while turns:
            one = turns[0][3]
            line = one.line
            if line is None:
                return one
            if line.turn is one:
                is_open = line.bucket is None or line.bucket.may_take(self._clock.boot_us())
                if is_open and (one.gate is None or one.gate.may_begin()):
                    return one
                # Another line has taken the token of its task, or its own is granted no more.
                self._enter(line)
            # Another head of its line took its place, or it was removed.
            heapq.heappop(turns)
        return None

    def of_band(self, band: int) -> Iterator[Delivery]:
        """The heads of a band that take part in the turns, and those behind them in their lines."""
        for *_, one in self._turns[band]:
            line = one.line
            if line is None:
                yield one
            elif line.turn is one:
                free = line.heads if line.bucket is None and one.gate is None else ()
                yield from (entry[3] for entry in free if entry[0] == band) if free else (one,)

    def take(self, one: Delivery) -> None:
        """Take out the head that `first` returned: it is handed out."""
        turns, line = self._turns[one.band], one.line
        if line is None:
            heapq.heappop(turns)
            self.due -= 1
            return
        heads = line.heads
        heapq.heappop(heads)
        line.left -= 1
        after = heads[0][3] if heads else None
        is_free = line.bucket is None and one.gate is None and not line.until_us
        if after is not None and is_free and after.band == one.band and after.gate is None:
            # Every message of a backlog takes this path, so it is short.
            if line.left <= 0:
                line.left = line.tier
                line.begin_ms, line.number = self._clock.now_ms(), next(self._numbers)
            line.turn = after
            heapq.heapreplace(turns, (line.begin_ms, line.number, next(self._numbers), after))
            return
        heapq.heappop(turns)
        self.due -= 1
        if one.gate is not None:
            one.gate.due -= 1
            one.gate.begin()
        line.turn = None
        if line.bucket is not None:
            line.bucket.take(self._clock.boot_us())
        if heads:
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
            kept = [entry for entry in turns if entry[3] not in out]
            if len(kept) < len(turns):
                heapq.heapify(kept)
                self._turns[band] = kept
        for one in removed:
            if one.gate is not None:
                one.gate.due -= 1
        self.due -= sum(one.line is None for one in removed)
        for line in {line: None for one in removed if (line := one.line) is not None}:
            line.heads = [entry for entry in line.heads if entry[3] not in out]
            heapq.heapify(line.heads)
            if line.turn in out:
                line.turn, self.due = None, self.due - 1
            if not line.heads:
                del self._lines[line]
                self._gated.pop(line, None)
                # The next head that is added waits anew, if it has to.
                line.held = 0
            elif line.turn is None and (not line.held or line in self._gated):
                # The gate of the next head may be another one.
                self._enter(line)
        return removed

    def seconds_to_next(self) -> float:
        """Seconds until a line that is held gets a token; infinite if none is held."""
        if not self._held:
            return math.inf
        return max(0.0, (self._held[0][0] - self._clock.boot_us()) / 1e6)
