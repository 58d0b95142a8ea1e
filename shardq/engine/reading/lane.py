"""One lane as its reader keeps it, and the ladder of sweeps behind now: decisions, no I/O.

```
 minutes   sealed ]  open, read, drained  |  current
                                          cursor ─► now ─► ahead
           ◄─ 60 s every 30 s ──────────────┤
                        ◄ 5 s every 2.5 s ──┤
                           0.5 s / 0.25 s ◄─┤
```

Every row due at or before the cursor has been read once. Cursors say where to look first; losing
one costs time, never a message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shardq.model.ids import order_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.model.shard import Layout, Position

SWEPT = 1 << 62
READ_AHEAD_MS = 2_000
"""Rows that are due within it are read before they are, and fire on their millisecond."""


@dataclass(slots=True)
class Lane:
    """A lane that this process reads.

    Attributes:
        number: The lane.
        band: Its priority; 0 for a group lane, whose rows keep their own.
        of_groups: Whether it is a group lane.
        sealed: The last minute up to which all its shards are done with.
        cursor_ms: Rows due before this have been read once.
        cursor_id: Rows due at `cursor_ms` up to this id have been read; None: all of them.
        again_ms: When all that was due shortly before was last read again.
        behind: Minutes with rows that are still to be read first, oldest first; None: not looked
            for.
        behind_until_ms: The due up to which `behind` was looked for.
        full: The last read ended at its limit: more rows are there now.
        rows: Rows that are in memory and no claims.
        used: Unsealed minute -> rows seen in it, which are tombstones by now.
        retry_ms: Epoch milliseconds before which another's lease is not tried again.
        eager_until_ms: Until when it is tried often, epoch milliseconds.
        adopted_until_ms: Until when it is read in place of a member that does not; 0: by right.
        span_ms: The longest stretch of due to read at once.
        stalled: Whether the last poll passed it over, for want of room or lease.
        swept: Rung of `SEALED_RUNGS` -> last minute that was swept at it.
        unswept_ms: The due from which on a sweep passed it over; `SWEPT`: none did.
        quiet: Whether nothing is expected in it: then it is not polled (`quiet.py`).
        stirred: Whether rows of it were taken in while it was quiet.
        probed: The last minute in which rows were looked for while it was quiet.
        awake_ms: Until when it is polled at least, epoch milliseconds.
        seen_ms: Of a group lane: when a row was last seen in it, epoch milliseconds.
    """

    number: int
    band: int
    sealed: int
    cursor_ms: int
    cursor_id: bytes | None = None
    again_ms: int = 0
    behind: deque[int] | None = None
    behind_until_ms: int = 0
    full: bool = False
    rows: int = 0
    used: dict[int, int] = field(default_factory=dict)
    retry_ms: int = 0
    eager_until_ms: int = 0
    adopted_until_ms: int = 0
    span_ms: int = 0
    stalled: bool = False
    swept: dict[int, int] = field(default_factory=dict)
    unswept_ms: int = SWEPT
    quiet: bool = False
    stirred: bool = False
    probed: int = -1
    awake_ms: int = 0
    of_groups: bool = False
    seen_ms: int = 0

    @classmethod
    def fresh(cls, number: int, layout: Layout, sealed: int, made: int = -1) -> Lane:
        """A lane to be read from the minute after `sealed`.

        What was sealed up to when it was made, nothing has been in.
        """
        back = _swept_back(layout)
        return cls(
            number,
            0 if layout.is_of_groups(number) else layout.band_of(number),
            sealed,
            layout.start_ms(sealed + 1) - 1,
            again_ms=layout.start_ms(sealed + 1) - 1,
            span_ms=layout.minute_ms,
            swept={rung: min(max(sealed - rung - back, made), sealed) for rung in SEALED_RUNGS},
            probed=sealed,
            of_groups=layout.is_of_groups(number),
        )

    def is_current(self, until_ms: int, layout: Layout) -> bool:
        """Whether one read with all the other current lanes brings it to `until_ms`."""
        return (
            not self.full and self.behind is None and until_ms - self.cursor_ms <= layout.minute_ms
        )

    @property
    def read_ms(self) -> int:
        """The due up to which every row has been read once."""
        return self.cursor_ms - (self.cursor_id is not None)

    def passed_ms(self, now_ms: int, read_ms: int) -> int:
        """The due that polls have passed; now where none comes soon that could be spared a row."""
        return now_ms if self.stalled else max(self.cursor_ms, read_ms)

    def advance(self, cursor_ms: int, cursor_id: bytes | None = None) -> None:
        """Everything up to here has been read; the cursor never goes back."""
        if cursor_ms > self.cursor_ms or (
            cursor_ms == self.cursor_ms and self.cursor_id is not None
        ):
            self.cursor_ms, self.cursor_id = cursor_ms, cursor_id

    def stop(self, due_ms: int, row_id: bytes) -> None:
        """A read was cut off there; the rest of it may be behind the cursor, and not read again."""
        if due_ms <= self.cursor_ms:
            self.again_ms = min(self.again_ms, due_ms - 1)
        self.advance(due_ms, row_id)

    def look_again(self, after_ms: int, now_ms: int) -> None:
        """All that was due from then until now has been read again.

        It leaves a gap where it does not reach back to what was stored in time, but since the last.
        """
        if after_ms <= max(self.again_ms - _IN_TIME_MS, now_ms - MISSED_MS_MAX):
            self.again_ms = max(self.again_ms, now_ms)

    def sealable_to(self, layout: Layout, newest: int) -> int | None:
        """The last minute that may be sealed by now; None: any, up to the newest.

        That those before were looked at again, the next reader knows from the seal alone: it must
        not be further on than these looks. But who finds a lane that nobody has read for longer
        than the last of them takes is not held up for minutes, and makes them up behind the seal.
        """
        late = [swept + rung for rung, swept in self.swept.items() if swept < self.sealed]
        if not late or newest - self.sealed > SEALED_RUNGS[-1]:
            return None
        to = min(late) + _swept_back(layout)
        return to if to >= self.sealed else None

    def seal(self, minute: int, newest: int) -> None:
        """All up to this minute were found empty, when that was the newest that could be sealed.

        Which stands for those of their later looks whose time had come, where none is left out.
        """
        for rung, swept in self.swept.items():
            if swept >= self.sealed:
                self.swept[rung] = max(swept, min(minute, newest - rung))
        self.sealed = minute
        self.used = {m: count for m, count in self.used.items() if m > minute}

    def reopen(self, minute: int, layout: Layout) -> None:
        """A minute that was sealed has a row: it is read again from there on."""
        self.sealed = minute - 1
        self.quiet = False
        self.swept = {rung: min(swept, self.sealed) for rung, swept in self.swept.items()}
        self.rewind(layout.start_ms(minute))

    def is_before(self, position: Position) -> bool:
        """True if the cursor has not come to a position."""
        if position.due_ms != self.cursor_ms or self.cursor_id is None:
            return position.due_ms > self.cursor_ms
        return order_key(position.id) > order_key(self.cursor_id)

    def comes_to(self, position: Position) -> bool:
        """True if the cursor is to come to a position that it has not come to.

        It passes minutes that are sealed, or were empty when they were looked for.
        """
        minute = position.shard.minute
        is_passed = position.due_ms <= self.behind_until_ms and minute not in (self.behind or ())
        return minute > self.sealed and (self.behind is None or not is_passed)

    def rewind(self, due_ms: int) -> None:
        """Rows from this due on were given up unread by a handler: they are to be read again."""
        self.quiet = False
        if due_ms <= self.cursor_ms:
            self.cursor_ms, self.cursor_id = due_ms - 1, None
            self.behind, self.full = None, False

    def reread_listed(self, listed: Mapping[int, int], layout: Layout) -> None:
        """Read a group lane from its first listed row on: the listed minutes, then those after.

        Args:
            listed: Minute -> due of its first row.
        """
        self.rewind(min(listed.values()))
        self.behind = deque(sorted(minute for minute in listed if minute <= self.sealed))
        self.behind_until_ms = layout.end_ms(self.sealed) - 1


class Rung(NamedTuple):
    """One rung of the ladder: how far back it reads, and how often, in milliseconds."""

    depth_ms: int
    every_ms: int
    purpose: str


RUNGS = (
    Rung(500, 250, "sweep 0.5 s"),
    Rung(5_000, 2_500, "sweep 5 s"),
    Rung(60_000, 30_000, "sweep 60 s"),
)
MISSED_MS = 500
"""How long after its due a group's row may be stored and still go before the next one."""
MISSED_MS_MAX = RUNGS[1].depth_ms
"""How far before the cursor such a row is looked for where nothing was read again for long."""
_IN_TIME_MS = 250
"""How long after its due the README says that it may be: what the first rung looks for."""
SEALED_RUNGS = (4, 32, 256)
"""Minutes after its seal at which a shard is read again: hints and logged batches may be late."""

_SWEPT_BACK = 1
_SWEPT_BACK_MS = 1_000
"""How long who seals a lane may have looked before that at what was sealed."""
_SWEPT_AT_ONCE = 4


def _swept_back(layout: Layout) -> int:
    return _SWEPT_BACK + _SWEPT_BACK_MS // layout.minute_ms


SLICES = 12
"""Slices of a swept minute: 2,000 settled rows a second stay under 10,000 tombstones a read."""
SLICE_MS_MIN = 1_000
"""No slice of a sealed minute need be shorter than this, but for what it holds."""
SPAN_MS_MIN = 10
"""No slice is made shorter for what it holds."""


class Ladder:
    """The sweeps of a lane and when they are due; they read each tombstone ten times at most.

    Args:
        now_ms: Epoch milliseconds.
    """

    def __init__(self, layout: Layout, now_ms: int) -> None:
        self._layout = layout
        self._swept_ms = [now_ms] * len(RUNGS)
        self._next_ms = self._first_due_ms()

    def next_ms(self) -> int:
        """When the next rung is due, epoch milliseconds."""
        return self._next_ms

    def _first_due_ms(self) -> int:
        return min(
            swept_ms + rung.every_ms for swept_ms, rung in zip(self._swept_ms, RUNGS, strict=True)
        )

    def due(self, now_ms: int) -> Rung | None:
        """The deepest rung that is due; it stands for all shallower ones that are due as well.

        It reaches back further by as much as it is late: what was stored behind the cursors just
        before the store was in trouble would else wait for the seal's sweep.
        """
        if now_ms < self._next_ms:
            return None
        deepest = None
        for swept_ms, rung in zip(self._swept_ms, RUNGS, strict=True):
            late_ms = now_ms - swept_ms - rung.every_ms
            if late_ms >= 0:
                deepest = rung._replace(depth_ms=rung.depth_ms + late_ms)
        return deepest

    def swept(self, rung: Rung, at_ms: int) -> None:
        """A rung's sweep, which began then, has been made; one that failed stays due."""
        for place, one in enumerate(RUNGS):
            if one.every_ms <= rung.every_ms:
                self._swept_ms[place] = at_ms
        self._next_ms = self._first_due_ms()

    def sealed_due(self, lane: Lane, now_ms: int) -> list[tuple[int, int]]:
        """(rung, minute) of a lane's sealed minutes whose time for another look has come.

        Follows from the register and the time: who sealed a minute had swept those before by then
        (see `sealable_to`), so a lane that is new here starts there, however long nobody read it.
        The caller says in `lane.swept` which of them were done.
        """
        due = []
        for rung in SEALED_RUNGS:
            newest = min(self._sealed_minute(rung, now_ms), lane.sealed)
            minutes = range(lane.swept[rung] + 1, newest + 1)[:_SWEPT_AT_ONCE]
            due += [(rung, minute) for minute in minutes]
        return due

    def _sealed_minute(self, rung: int, now_ms: int) -> int:
        return self._layout.newest_sealable(now_ms) - rung
