"""Heads of groups that are due: groups take turns, so that a flood of one group delays itself.

```
 head ──► line? ── no ──────────────────────────────► turns of its band ─► take
            └─ its line: heads of one group ── first ──┘      ▲
                     ├─ the rate allows none yet ─► held ─time─┤
                     └─ its task has limits ─► queue of the gate ── first, once it opens
```

A group of one place has one head here at a time. A group with a rate, a tier or more places has a
line: only the first head of the line takes part in the turns. So has a task with limits: its line
has its jobs without groups, and the heads of groups without a line. A head whose task has limits
is taken only if these allow it, in whichever line it is: lines that wait for the same limits have a
queue at their gate, and only the first of a band enters the turns once it opens. The next follows
when that was taken, so that a token costs the same beside any number of groups.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from itertools import chain, count
from typing import TYPE_CHECKING

from shardq.engine.handing.delivery import HeadLine
from shardq.model.ids import order_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq.clock import Clock
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.handing.gate import Gate


def since_ms(one: Delivery) -> int:
    """Since when a due row waits: its due, or that from which it was moved."""
    row = one.row
    return row.due_ms if row.since_ms is None else row.since_ms


def _begin_ms(one: Delivery) -> int:
    """When the turn of a head begins: at its due, or when a delivery of its group last ended."""
    return max(since_ms(one), one.turn_ms)


def _gate_of(one: Delivery | None) -> tuple[Gate, int] | None:
    """The gate of a head and its band, for which its line waits if it is the first of it."""
    return None if one is None or one.gate is None else (one.gate, one.band)


@dataclass(slots=True)
class _Queue:
    """Lines that wait for a gate, and whose first heads are of one band.

    Attributes:
        lines: A heap of (begin of the turn, epoch milliseconds; numbers of turn and wait; line).
        opens_us: When the gate opens, as `Turns` last noted it, time since boot.
    """

    lines: list[tuple[int, int, int, HeadLine]] = field(default_factory=list)
    opens_us: float = 0


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
        self._held: list[tuple[float, int, HeadLine | tuple[Gate, int]]] = []
        """When the next token is there, time since boot; number of the wait; the line or gate."""
        self._queues: dict[tuple[Gate, int], _Queue] = {}
        """Gate and band -> the lines that wait there."""
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
        if line.heads[0][3] is one and (not line.held or line.at is not None):
            self._enter(line, goes_on=line.turn is not None, begin_ms=_begin_ms(one))

    def _enter(self, line: HeadLine, *, goes_on: bool = False, begin_ms: int | None = None) -> None:
        """Let the first head of a line take part in the turns, in place of another of the line.

        Args:
            line: The line. It is forgotten if it has no heads.
            goes_on: True if the line's turn goes on, so that no other group comes between. The turn
                of a line that waits for a gate goes on in any case.
            begin_ms: When the turn begins, epoch milliseconds; None: now.
        """
        first = line.heads[0][3] if line.heads else None
        former, at = _gate_of(line.turn), _gate_of(first)
        if line.turn is not None:
            line.turn, self.due = None, self.due - 1
        if first is None:
            # The next head that is added waits anew, if it has to.
            line.held, line.at = 0, None
            self._lines.pop(line, None)
        elif line.at is None or line.at != at:
            if not goes_on and line.at is None:
                line.left = line.tier
                line.begin_ms = self._clock.now_ms() if begin_ms is None else begin_ms
                line.number = next(self._numbers)
            if self._rests(line):
                pass
            elif at is None:
                self._join(line)
            else:
                line.held, line.at = next(self._numbers), at
                entry = (line.begin_ms, line.number, line.held, line)
                heapq.heappush(self._queues.setdefault(at, _Queue()).lines, entry)
        for gate in dict.fromkeys((former, at)):
            if gate is not None:
                self._admit(gate)

    def _rests(self, line: HeadLine) -> bool:
        """Hold a line, unless its group allows its next head now; True if it is held."""
        line.held, line.at = 0, None
        next_us = line.next_us()
        if next_us <= 0 or next_us <= self._clock.boot_us():
            return False
        line.held = next(self._numbers)
        if next_us != math.inf:
            self._note(next_us, line.held, line)
        return True

    def _note(self, at_us: float, number: int, held: HeadLine | tuple[Gate, int]) -> None:
        heapq.heappush(self._held, (at_us, number, held))
        if self._held[0][1] == number:
            self._on_hold()

    def _join(self, line: HeadLine) -> None:
        line.turn, self.due = line.heads[0][3], self.due + 1
        heapq.heappush(
            self._turns[line.turn.band],
            (line.begin_ms, line.number, next(self._numbers), line.turn),
        )

    def _admit(self, at: tuple[Gate, int]) -> None:
        """Let the first line that waits at a gate take part in the turns, once the gate is open."""
        queue = self._queues.get(at)
        if queue is None:
            return
        lines, opens_us = queue.lines, at[0].opens_us()
        is_open = opens_us <= self._clock.boot_us()
        while lines and (is_open or lines[0][3].held != lines[0][2]):
            *_, number, line = heapq.heappop(lines)
            if line.held == number and not self._rests(line):
                self._join(line)
                break
        if not lines:
            del self._queues[at]
        elif not is_open and opens_us not in (queue.opens_us, math.inf):
            queue.opens_us = opens_us
            self._note(opens_us, next(self._numbers), at)

    def hold(self, line: HeadLine, until_us: int) -> None:
        """Let no head of a line be taken until a time since boot, in place of a former such time.

        Args:
            line: The line.
            until_us: The time; 0: heads may be taken.
        """
        is_sooner, line.until_us = until_us < line.until_us, until_us
        must_wait = line.turn is not None and until_us > self._clock.boot_us()
        if must_wait or (line.held and is_sooner):
            self._enter(line)

    def promote(self) -> None:
        """Let lines whose next token is there take part in the turns."""
        held = self._held
        while held and held[0][0] <= self._clock.boot_us():
            _, number, one = heapq.heappop(held)
            if not isinstance(one, HeadLine):
                self._admit(one)
            elif one.held == number:
                self._enter(one)

    def awaits_grant(self, line: HeadLine) -> bool:
        """True if a head of a line could be taken if a token was granted."""
        if not (line.heads and line.held) or line.until_us > self._clock.boot_us():
            return False
        gate = line.heads[0][3].gate
        return gate is None or gate.may_begin()

    def release(self, line: HeadLine) -> None:
        """Look again whether a line may be taken from, as a token was granted."""
        if line.held:
            self._enter(line)

    def reopen(self) -> None:
        """Look again whether gates for which lines wait are open."""
        for at in list(self._queues):
            self._admit(at)

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
            heapq.heappop(turns)
            if line.turn is one:
                # Another line has taken the token of its task, or its own is granted no more.
                self._enter(line, goes_on=True)
            # Else another head of its line took its place, or it was removed.
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
        if one.gate is not None:
            one.gate.due -= 1
            one.gate.begin()
        if line.bucket is not None:
            line.bucket.take(self._clock.boot_us())
        self._enter(line, goes_on=line.left > 0)

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
            if not line.heads or line.turn in out or line.at is not None:
                # The gate of the next head may be another one.
                self._enter(line)
        return removed

    def seconds_to_next(self) -> float:
        """Seconds until a line that is held gets a token; infinite if none is held."""
        if not self._held:
            return math.inf
        return max(0.0, (self._held[0][0] - self._clock.boot_us()) / 1e6)
