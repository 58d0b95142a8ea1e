"""How many messages a queue holds: rows are counted where they lie, near ones one by one.

```
        ◄── unsealed, due ──► now ◄── counted ──► horizon ◄── put - gone - all that was counted ──►
  rows       ready | running       waiting | claims              waiting
```

What is nearer than the horizon needs no totals. What lies beyond it is taken from them, and only
where somebody has placed a message so far ahead. The queue's index tells which shards to look into.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from shardq.inspection import scan
from shardq.model.names import is_dead_queue
from shardq.model.times import ceil_ms
from shardq.records.membership import heartbeats
from shardq.records.stats import NEAR_MS
from shardq.stores.store import NEVER, Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from shardq.records.folded import Stored
    from shardq.records.membership import Heartbeat
    from shardq.records.register import Register
    from shardq.stores.store import Store, Total

_HORIZON_MS = 3_600_000 + NEAR_MS
"""Shards are looked into up to this far ahead, 0.1 ms each on Cassandra; SQLite has no end."""
_ROWS_MAX = 20_000
"""What lies beyond so many that wait is not counted: 25 ms for each 10,000 on Cassandra, 5 ms on
SQLite."""
_WAITS_ROWS_MAX, _WAITS_ROWS_MIN = 10_000, 100
"""Most rows of shards read for what is put off; each shard counts as so many at least."""
_SHARDS_MAX = 10_000
_PART_FIRST, _PART = 128, 500
"""Shards that are counted at a time; few first, for the first may hold all that is counted."""
PURGE_MS = 10_000
"""For this long after a purge, messages that others put just before it arrive to be counted."""
_PAGE = 1_000
_FAR_MS = 1 << 52


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages a queue holds.

    Attributes:
        ready: Due and not in flight.
        waiting: Due later.
        in_flight: Handed out and not settled.
        exact: Whether every row was counted; else those that are far away may be taken from the
            totals.
    """

    ready: int
    waiting: int
    in_flight: int
    exact: bool

    @property
    def total(self) -> int:
        """All of them."""
        return self.ready + self.waiting + self.in_flight


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there was when every row of a queue was counted, purged ones too.

    Attributes:
        rows: Messages that were there.
        doomed: Those of them that a purge has reached and nobody holds.
        former: Rows, not among these, of a dropped queue of the same name.
        farthest_ms: No row is due later, epoch milliseconds.
        ended: How many of the rows their counter has ended itself, after it had counted them.
    """

    rows: int = 0
    doomed: int = 0
    former: int = 0
    farthest_ms: int = 0
    ended: int = 0


class _Tallied(NamedTuple):
    """Rows between two dues.

    Attributes:
        rows: How many.
        claims: Those that are claims.
        put_off: Those that may not be handed out by the later of the two dues.
        put_off_claims: Those of these that are claims.
    """

    rows: int = 0
    claims: int = 0
    put_off: int = 0
    put_off_claims: int = 0

    @classmethod
    def of(cls, row: Row, until_ms: int) -> _Tallied:
        """One row."""
        is_claim, is_put_off = row.claim is not None, row.ready_ms > until_ms
        return cls(1, is_claim, is_put_off, is_claim and is_put_off)

    def plus(self, other: _Tallied) -> _Tallied:
        """Both together."""
        return _Tallied._make(map(sum, zip(self, other, strict=True)))


@dataclass(slots=True)
class _Counted:
    """Rows that were counted.

    Attributes:
        due: Those that may be handed out by then.
        later: The others, claims included.
        claims: Those of the others that are claims.
    """

    due: int = 0
    later: int = 0
    claims: int = 0

    def add_due(self, found: _Tallied) -> None:
        """Count rows that are due by then."""
        self.due += found.rows - found.put_off
        self.later += found.put_off
        self.claims += found.put_off_claims

    def add_later(self, found: _Tallied) -> None:
        """Count rows that are due later."""
        self.later += found.rows
        self.claims += found.claims

    def depth(self, running: int, far: int, *, exact: bool) -> Depth:
        """What that makes.

        Args:
            running: Deliveries whose rows are where they were, as consumers told up to 3 s ago.
            far: Messages that were not counted.
            exact: Whether there are none, for certain.
        """
        # What was parked since lies among the claims, and what was settled nowhere.
        running = min(running, self.due)
        return Depth(
            self.due - running, self.later - self.claims + far, self.claims + running, exact
        )


class DepthCounter:
    """Counts the messages of one queue.

    Args:
        store: Where they are.
        clock: The time.
        register: The queue.
        anew_us: Above 0: claims among what waits are counted so often, and else only if there are
            more rows, or fewer, than before. For whoever looks again and again.
    """

    def __init__(self, store: Store, clock: Clock, register: Register, *, anew_us: int = 0) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._seen = "", 0, 0, 0
        self._anew_us = anew_us
        self._ahead: tuple[int, tuple[int, Sequence[int], int], Total] | None = None

    def depth(
        self,
        read_totals: Callable[[], Stored],
        *,
        stored: Stored | None = None,
        is_fresh: bool = False,
        beats: Mapping[str, Heartbeat] | None = None,
    ) -> Depth:
        """How many messages there are; far ones by the totals, where there may be any.

        Args:
            read_totals: Reads what has happened in the queue.
            stored: What was read of that a moment ago: enough where every row is counted.
            is_fresh: True if the queue's record was read just now.
            beats: Its members, where they were read just now.
        """
        if not is_fresh:
            self._register.refresh(force=self._register.has_unused_lanes)
        running = self._running(beats)
        now_ms = self._clock.now_ms()
        counted, until_ms = self._near(now_ms)
        # Last: what processes store meanwhile makes up for a part of what they store only 2 s
        # later.
        if stored is None or until_ms < _FAR_MS:
            stored = read_totals()
        if may_be_doomed(self._register, stored):
            since_us = self._register.settings.purged_before_us
            counted, until_ms = self._near(now_ms, since_us)
        far = 0
        if until_ms < stored.totals.farthest_ms:
            far = self._far(stored, counted, until_ms)
        return counted.depth(running, far, exact=False)

    def _far(self, stored: Stored, counted: _Counted, until_ms: int) -> int:
        """What the totals tell of more than was counted.

        What was settled in the last 2 s is in neither: it is not to look like messages that wait.
        There are no more of those than at the last look, but for what was placed since.
        """
        totals = stored.totals
        placed = totals.put + totals.retried + totals.snoozed + totals.mended
        far = max(totals.present - stored.doomed - counted.due - counted.later, 0)
        queue, until_before_ms, placed_before, far_before = self._seen
        if queue == stored.queue and until_ms >= until_before_ms:
            far = min(far, far_before + max(placed - placed_before, 0))
        self._seen = stored.queue, until_ms, placed, far
        return far

    def exact(self) -> Depth:
        """How many messages there are; every row is counted."""
        self._register.refresh()
        running = self._running()
        now_ms = self._clock.now_ms()
        since_us = self._register.settings.purged_before_us
        now_minute = self._register.layout.minute_of(now_ms)
        counted = _Counted()
        for part in self._parts(self._store.indexed(self._register.name, range(NEVER))):
            due = [shard for shard in part if shard.minute <= now_minute]
            counted.add_due(self._tally(due, -1, now_ms, since_us, exact=True))
            later = [shard for shard in part if shard.minute >= now_minute]
            counted.add_later(self._tally(later, now_ms, _FAR_MS, since_us))
        return counted.depth(running, 0, exact=True)

    def inventory(self) -> Generator[float, None, Inventory]:
        """Count every row, a part at a time.

        Yields:
            0 after each part: the seconds until it can go on.
        """
        self._register.refresh(force=True)
        settings, layout = self._register.settings, self._register.layout
        rows = doomed = former = 0
        farthest_ms = 0
        for part in self._parts(self._store.indexed(self._register.name, range(NEVER))):
            if settings.purged_before_us:
                for row in self._rows_of(part):
                    is_former = self._register.is_former(row)
                    former += is_former
                    rows += not is_former
                    is_reached = row.entered_us < settings.purged_before_us
                    doomed += is_reached and not is_former and row.claim is None
            else:
                rows += self._tally(part, -1, _FAR_MS, 0).rows
            farthest_ms = layout.end_ms(part[-1].minute) - 1
            yield 0.0
        return Inventory(rows, doomed, former, farthest_ms)

    def _running(self, beats: Mapping[str, Heartbeat] | None = None) -> int:
        if beats is None:
            beats = heartbeats(self._store, self._register.members_key)
        return sum(beat.busy for beat in beats.values())

    def _near(self, now_ms: int, since_us: int = 0) -> tuple[_Counted, int]:
        """What is due and what is due soon, and the due up to which that is all there is."""
        if not since_us and (found := self._near_at_once(now_ms)) is not None:
            return found
        counted = _Counted()
        layout = self._register.layout
        now_minute = layout.minute_of(now_ms)
        first = min(scan.unsealed_minute(self._store, self._register, now_ms), now_minute)
        minutes = range(first, self._end_minute(now_ms))
        shards = chain(
            scan.listed_shards(self._store, self._register, range(first)),
            self._store.indexed(self._register.name, minutes),
        )
        # What was due before a purge entered before it, too.
        after_ms = ceil_ms(self._register.settings.purged_before_us) - 1
        polled = set(layout.all_used())
        # Parked rows are known from others only where they are counted, and dues up to NEAR_MS
        # ahead are not noted.
        least_ms = max(self._register.settings.visibility_ms, NEAR_MS) + layout.minute_ms
        least_minute = layout.minute_of(now_ms + least_ms)
        looked = 0
        for part in self._parts(shards):
            due = [shard for shard in part if shard.minute <= now_minute]
            counted.add_due(self._tally(due, after_ms, now_ms, since_us))
            ahead = [one for one in part if one.minute >= now_minute and one.lane in polled]
            counted.add_later(self._tally(ahead, now_ms, _FAR_MS, since_us))
            looked += len(ahead)
            if part[-1].minute > least_minute and (
                counted.later >= _ROWS_MAX or looked >= _SHARDS_MAX
            ):
                # The last minute may go on in the next part.
                return counted, layout.start_ms(part[-1].minute) - 1
        return counted, _FAR_MS if minutes.stop == NEVER else layout.end_ms(minutes[-1]) - 1

    def _near_at_once(self, now_ms: int) -> tuple[_Counted, int] | None:
        """The same where the store has an index that counts; None where it has none.

        None also where rows of groups are put off: which of them are is read row by row.
        """
        register = self._register
        layout, name = register.layout, register.name
        now_minute = layout.minute_of(now_ms)
        first = min(register.life_minute, now_minute)
        lanes, used = [*layout.lanes(), *layout.lanes_of_groups()], layout.all_used()
        after_ms = ceil_ms(register.settings.purged_before_us) - 1
        parts = [
            Slice(name, range(first, now_minute + 1), lanes, after_ms, now_ms, 0, purpose="depth"),
            Slice(name, range(now_minute, now_minute + 1), used, now_ms, _FAR_MS, 0),
        ]
        due, soon = map(self._store.total, parts)
        if due is None or soon is None or due.tally.waits or soon.tally.waits:
            return None
        minutes = range(now_minute + 1, NEVER)
        ahead = Slice(name, minutes, used, now_ms, _FAR_MS, _ROWS_MAX, purpose="depth")
        later = self._total_ahead(ahead)
        if later is None or later.tally.waits:
            return None
        both = soon.tally.plus(later.tally)
        counted = _Counted(due.tally.rows, both.rows, both.claims)
        return counted, _FAR_MS if later.end == NEVER else layout.start_ms(later.end) - 1

    def _total_ahead(self, wanted: Slice) -> Total | None:
        if not self._anew_us:
            return self._store.total(wanted)
        minutes, boot_us = range(wanted.minutes[0], NEVER), self._clock.boot_us()
        rows = self._store.rows_in(wanted.queue, minutes, wanted.limit)
        if rows is None:
            return None
        seen = wanted.minutes[0], wanted.lanes, rows
        if self._ahead is not None and rows <= wanted.limit:
            until_us, before, found = self._ahead
            if seen == before and boot_us < until_us:
                return found
        if (counted := self._store.total(wanted)) is not None:
            self._ahead = boot_us + self._anew_us, seen, counted
        return counted

    def _end_minute(self, now_ms: int) -> int:
        """The minute before which what waits is counted."""
        if self._store.is_local:
            return NEVER
        layout = self._register.layout
        horizon_ms = max(_HORIZON_MS, self._register.settings.visibility_ms + layout.minute_ms)
        return layout.minute_of(now_ms + horizon_ms) + 1

    def _parts(self, found: Iterable[Shard]) -> Iterator[list[Shard]]:
        """The shards that lie in the queue's lanes, some at a time."""
        layout = self._register.layout
        shards = (shard for shard in found if layout.has_lane(shard.lane))
        return scan.parts(shards, _PART, first=_PART_FIRST)

    def _tally(
        self,
        shards: Sequence[Shard],
        after_ms: int,
        until_ms: int,
        since_us: int,
        *,
        exact: bool = False,
    ) -> _Tallied:
        """Rows in shards and between two dues, and how many of them are put off.

        Args:
            shards: Where to look.
            after_ms: What is due by then is left out.
            until_ms: What is due later is left out.
            since_us: Where it is above 0, rows are read, and what entered before it is left out.
            exact: True to read which rows of groups are put off, however many rows lie in their
                shards. Else, beyond `_WAITS_ROWS_MAX`, those count whose time has come since, too.
        """
        total = _Tallied()
        if since_us:
            for row in self._rows_of(shards):
                if row.entered_us >= since_us and after_ms < row.due_ms <= until_ms:
                    total = total.plus(_Tallied.of(row, until_ms))
            return total
        layout = self._register.layout
        room = math.inf if exact else _WAITS_ROWS_MAX
        for counted in scan.tallies(self._store, shards, after_ms, until_ms, purpose="depth"):
            for shard, tally in counted.items():
                # Of groups a claim is put off as well, and elsewhere nothing is.
                put_off, claims = tally.waits, tally.claims if tally.waits else 0
                if tally.waits and tally.rows <= room:
                    room -= max(tally.rows, _WAITS_ROWS_MIN)
                    one = scan.whole(layout, shard, _PAGE, "depth")
                    waits = scan.waits_of(self._store, one, tally)
                    later = [row for row in waits if row.ready_ms > until_ms]
                    put_off = len(later)
                    claims = sum(row.claim is not None for row in later)
                total = total.plus(_Tallied(tally.rows, tally.claims, put_off, claims))
        return total

    def _rows_of(self, shards: Iterable[Shard]) -> Iterator[Row]:
        """The rows of shards, without their bodies."""
        layout = self._register.layout
        found = scan.with_rows(self._store, shards)
        for page in scan.pages(self._store, layout, found, purpose="depth", bodies=False):
            yield from page


def may_be_doomed(register: Register, stored: Stored) -> bool:
    """Whether there may be rows that are due after a purge that has reached them.

    Args:
        register: The queue.
        stored: Its totals.
    """
    purged_ms = register.settings.purged_before_us // 1_000
    # What is dead was due when it entered.
    if not purged_ms or is_dead_queue(register.name):
        return False
    is_counted = stored.mended_ms >= purged_ms + PURGE_MS
    return not is_counted or stored.doomed > 0 or stored.folded.former > 0
