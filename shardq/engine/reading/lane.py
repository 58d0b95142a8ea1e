"""The state of a lane that is read, and the ladder of sweeps behind now: decisions, no I/O.

```
 minutes   sealed ]  open, read, drained  |  current
                                          cursor ─► now ─► ahead
           ◄─ 60 s every 30 s ──────────────┤
                        ◄ 5 s every 2.5 s ──┤
                           0.5 s / 0.25 s ◄─┤
```

Every row due at or before the cursor has been read once. Cursors say where to look first; the loss
of a cursor costs time, never a message.
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
"""Rows due within this time are read ahead, and handed out on their millisecond."""
REST_AHEAD_MS = 6_000
"""A look at rest finds rows due within this time, if the store reports changes: steps are rarer
there. Only rows due within `READ_AHEAD_MS` are kept: the others can still be cancelled."""
SOON_MS = 4_000
"""A row that this process places to be due within this time is news: a look ahead at rest comes
only every 3 s and might miss the row."""


@dataclass(slots=True)
class Lane:
    """A lane that this process reads.

    Attributes:
        number: The lane's number.
        band: The lane's priority; 0 for a group lane, whose rows have their own priorities.
        of_groups: True if the lane is a group lane.
        sealed: The last minute up to which all shards of the lane are sealed.
        cursor_ms: Rows due before this have been read once.
        cursor_id: Rows due at `cursor_ms` up to this id have been read; None: all of them.
        again_ms: When the rows due shortly before were last reread, epoch milliseconds.
        behind: Minutes with rows to catch up with, oldest first; None if they were not probed.
        behind_until_ms: The due up to which `behind` was probed.
        full: True if the last read ended at its limit: more rows are due now.
        rows: How many of the lane's rows are in memory, without claims.
        used: Unsealed minute -> how many rows were seen in it, of which most are deleted by now.
        retry_ms: When to retry a lease that another member holds, epoch milliseconds; 0 without
            one.
        eager_until_ms: Until when a lease that another member holds is retried often, epoch
            milliseconds.
        adopted_until_ms: Until when the lane is read in place of another member, epoch
            milliseconds; 0 if the lane is this member's by rank.
        span_ms: The longest stretch of time, by due, to read at once.
        stalled: True if the last poll skipped the lane, for lack of room or of a lease.
        swept: Rung of `SEALED_RUNGS` -> the last minute that was swept at it.
        unswept_ms: The due from which on a sweep skipped the lane; `SWEPT` if no sweep did.
        quiet: True if no rows are expected in the lane, which is then not polled (`quiet.py`).
        stirred: True if rows of the lane were taken in while it was quiet.
        probed: The last minute that was searched for rows while the lane was quiet.
        awake_ms: Until when the lane is polled at least, epoch milliseconds.
        seen_ms: When a row was last seen in the lane, epoch milliseconds; group lanes only.
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
        """Make a lane to be read from the minute after `sealed`.

        Minutes up to `made` are not swept again, as the lane did not exist then.
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
        """True if one read, together with other current lanes, brings the lane to `until_ms`."""
        return (
            not self.full and self.behind is None and until_ms - self.cursor_ms <= layout.minute_ms
        )

    @property
    def read_ms(self) -> int:
        """The due up to which every row has been read once."""
        return self.cursor_ms - (self.cursor_id is not None)

    def passed_ms(self, now_ms: int, read_ms: int) -> int:
        """The due up to which no poll will read the lane again, epoch milliseconds.

        Acks of rows up to this due can be stored at once: no poll reads their tombstones.

        Returns:
            `now_ms` for a stalled lane, which gets no poll soon. For any other lane its cursor, but
            at least `read_ms`.
        """
        return now_ms if self.stalled else max(self.cursor_ms, read_ms)

    def advance(self, cursor_ms: int, cursor_id: bytes | None = None) -> None:
        """Move the cursor forward, never back: all rows up to the new place have been read."""
        if cursor_ms > self.cursor_ms or (
            cursor_ms == self.cursor_ms and self.cursor_id is not None
        ):
            self.cursor_ms, self.cursor_id = cursor_ms, cursor_id

    def stop(self, due_ms: int, row_id: bytes) -> None:
        """Move the cursor to the last row of a full page.

        Rows that the page left out may be behind the cursor: then `again_ms` moves back, so that
        they are reread.
        """
        if due_ms <= self.cursor_ms:
            self.again_ms = min(self.again_ms, due_ms - 1)
        self.advance(due_ms, row_id)

    def look_again(self, after_ms: int, now_ms: int) -> None:
        """Record that all rows due after `after_ms`, until now, were reread.

        A reread that leaves a gap after the last one does not count: rows stored in time since then
        may be due in the gap.
        """
        if after_ms <= max(self.again_ms - _IN_TIME_MS, now_ms - MISSED_MS_MAX):
            self.again_ms = max(self.again_ms, now_ms)

    def sealable_to(self, layout: Layout, newest: int) -> int | None:
        """The last minute that may be sealed by now; None if any up to the newest may.

        The next reader infers from the seal alone which minutes were swept after their seals, so
        the seal must not run ahead of these sweeps. A lane that nobody read for longer than the
        last rung is an exception: it is sealed at once, and swept behind the seal.
        """
        late = [swept + rung for rung, swept in self.swept.items() if swept < self.sealed]
        if not late or newest - self.sealed > SEALED_RUNGS[-1]:
            return None
        to = min(late) + _swept_back(layout)
        return to if to >= self.sealed else None

    def seal(self, minute: int, newest: int) -> None:
        """Record that all minutes up to one were found empty, when `newest` could be sealed.

        That counts as those sweeps of the minutes that were due by then, except at rungs that have
        unswept minutes.
        """
        for rung, swept in self.swept.items():
            if swept >= self.sealed:
                self.swept[rung] = max(swept, min(minute, newest - rung))
        self.sealed = minute
        self.used = {m: count for m, count in self.used.items() if m > minute}

    def reopen(self, minute: int, layout: Layout) -> None:
        """Move the seal back before a minute that has a row, and reread the lane from there."""
        self.sealed = minute - 1
        self.quiet = False
        self.swept = {rung: min(swept, self.sealed) for rung, swept in self.swept.items()}
        self.rewind(layout.start_ms(minute))

    def is_before(self, position: Position) -> bool:
        """True if the cursor has not reached a position."""
        if position.due_ms != self.cursor_ms or self.cursor_id is None:
            return position.due_ms > self.cursor_ms
        return order_key(position.id) > order_key(self.cursor_id)

    def comes_to(self, position: Position) -> bool:
        """True if the cursor will reach a position that is ahead of it.

        The cursor skips minutes that are sealed, or that a probe found empty.
        """
        minute = position.shard.minute
        is_passed = position.due_ms <= self.behind_until_ms and minute not in (self.behind or ())
        return minute > self.sealed and (self.behind is None or not is_passed)

    def rewind(self, due_ms: int) -> None:
        """Reread rows from a due on: move the cursor back if it has passed the due."""
        self.quiet = False
        if due_ms <= self.cursor_ms:
            self.cursor_ms, self.cursor_id = due_ms - 1, None
            self.behind, self.full = None, False

    def reread_listed(self, listed: Mapping[int, int], layout: Layout) -> None:
        """Reread a group lane from its first listed row on: listed minutes, then unsealed ones.

        Args:
            listed: Minute -> due of the minute's first row.
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
"""A row of a group that is stored this long after its due is still delivered before later rows."""
MISSED_MS_MAX = RUNGS[1].depth_ms
"""How far before the cursor such a late row is looked for if nothing was reread for long."""
_IN_TIME_MS = 250
"""docs/guarantees.md promises the order of rows stored this late; the first rung finds such
rows."""
SEALED_RUNGS = (4, 32, 256)
"""How many minutes after its seal a shard is swept: hints and logged batches may arrive late."""

_SWEPT_BACK = 1
_SWEPT_BACK_MS = 1_000
"""The sealer may have read the sealed minutes up to this long before it wrote the seal."""
_SWEPT_AT_ONCE = 4


def _swept_back(layout: Layout) -> int:
    return _SWEPT_BACK + _SWEPT_BACK_MS // layout.minute_ms


SLICES = 12
"""Into how many slices a swept minute is cut: even with 2,000 settled rows a second a read then
meets fewer than 10,000 tombstones."""
SLICE_MS_MIN = 1_000
"""The shortest slice planned for a sealed minute; failed reads make slices shorter."""
SPAN_MS_MIN = 10
"""Failed reads make no slice shorter than this."""


class Ladder:
    """Decides which sweeps are due. The sweeps read each tombstone ten times at most.

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
        """The deepest rung that is due, whose sweep also does for shallower rungs; None without.

        A late rung reaches further back, by as much as it is late. Otherwise rows that were stored
        behind the cursors just before an outage of the store would wait for the sweep of their
        seal.
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
        """Record that a rung's sweep, begun at `at_ms`, succeeded. After a failure it stays due."""
        for place, one in enumerate(RUNGS):
            if one.every_ms <= rung.every_ms:
                self._swept_ms[place] = at_ms
        self._next_ms = self._first_due_ms()

    def sealed_due(self, lane: Lane, now_ms: int) -> list[tuple[int, int]]:
        """The (rung, minute) of a lane's sealed minutes that are due for another sweep.

        They follow from the seal and the time: the sealer of a minute had swept earlier minutes
        (see `sealable_to`). So a lane that is new to this member starts at the seal, however long
        nobody read the lane. The caller records in `lane.swept` which sweeps were made.
        """
        due = []
        for rung in SEALED_RUNGS:
            newest = min(self._sealed_minute(rung, now_ms), lane.sealed)
            minutes = range(lane.swept[rung] + 1, newest + 1)[:_SWEPT_AT_ONCE]
            due += [(rung, minute) for minute in minutes]
        return due

    def _sealed_minute(self, rung: int, now_ms: int) -> int:
        return self._layout.newest_sealable(now_ms) - rung
