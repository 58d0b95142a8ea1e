"""How many messages a queue holds: rows are counted where they lie, near ones one by one.

```
        ◄── unsealed, due ──► now ◄── counted ──► horizon ◄── put - gone - all that was counted ──►
  rows       ready | running       waiting | claims              waiting
```

The near side of the horizon needs no totals. The far side is taken from the totals, and only if a
message was put so far ahead. The queue's index names the shards to look into.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

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
"""Shards are read up to this far ahead, 0.1 ms each on Cassandra; without an end on SQLite."""
_ROWS_MAX = 20_000
"""Waiting messages beyond this many are not counted: 25 ms for each 10,000 on Cassandra, 5 ms on
SQLite."""
_WAITS_ROWS_MAX, _WAITS_ROWS_MIN = 10_000, 100
"""Most rows of shards to read for postponed messages; each shard counts as this many at least."""
_SHARDS_MAX = 10_000
_PART_FIRST, _PART = 128, 500
"""Shards that are counted at a time; few first, because the first may hold all that is needed."""
PURGE_MS = 10_000
"""For this long after a purge, late puts may still store messages that the purge has reached."""
_PAGE = 1_000
_FAR_MS = 1 << 52


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages a queue holds.

    Attributes:
        ready: Due, and not in flight.
        waiting: Due later.
        in_flight: Delivered, and not settled.
        exact: True if every row was counted; else far ones may be taken from the totals.
    """

    ready: int
    waiting: int
    in_flight: int
    exact: bool

    @property
    def total(self) -> int:
        """The sum of all."""
        return self.ready + self.waiting + self.in_flight


@dataclass(frozen=True, slots=True)
class Inventory:
    """The result of counting every row of a queue, including purged ones.

    Attributes:
        rows: Stored messages.
        doomed: Messages among them that a purge has reached and nobody holds.
        former: Rows of a dropped queue of the same name, not counted in `rows`.
        farthest_ms: The latest due, epoch milliseconds.
        ended: How many of the rows the counter itself has ended, after it had counted them.
    """

    rows: int = 0
    doomed: int = 0
    former: int = 0
    farthest_ms: int = 0
    ended: int = 0


@dataclass(slots=True)
class _CountedRows:
    """The counts of a queue's rows around now.

    Attributes:
        due: Rows that may be delivered by now.
        later: All other rows, including claims.
        claims: How many of the rows in `later` are claims.
    """

    due: int = 0
    later: int = 0
    claims: int = 0

    def add_later(self, rows: int, claims: int) -> None:
        """Count rows that may not be delivered yet."""
        self.later += rows
        self.claims += claims

    def depth(self, running: int, far: int, *, exact: bool) -> Depth:
        """The depth by these counts.

        Args:
            running: Running deliveries whose rows keep their place, as consumers reported up to 3 s
                ago.
            far: Messages beyond the counted rows, by the totals.
            exact: True if every row was counted.
        """
        # A reported delivery may be parked by now, and a claim, or settled, and gone.
        running = min(running, self.due)
        return Depth(
            self.due - running, self.later - self.claims + far, self.claims + running, exact
        )


class DepthCounter:
    """Counts the messages of one queue.

    Args:
        store: The store.
        clock: The clock.
        register: The queue's record.
        anew_us: Above 0: claims among waiting rows are counted this often, and in between only if
            the number of rows has changed. For callers that count again and again.
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
        """The number of messages: near ones counted, far ones taken from the totals.

        Args:
            read_totals: Reads the queue's totals.
            stored: The totals as read a moment ago, which suffice if every row is counted.
            is_fresh: True if the queue's record was read just now.
            beats: Its members' heartbeats, if they were read just now.
        """
        if not is_fresh:
            self._register.refresh(force=self._register.has_unused_lanes)
        running = self._running(beats)
        now_ms = self._clock.now_ms()
        counted, until_ms = self._near(now_ms)
        # Read last: the totals then include some messages put or settled during the count.
        if stored is None or until_ms < _FAR_MS:
            stored = read_totals()
        if may_be_doomed(self._register, stored):
            since_us = self._register.settings.purged_before_us
            counted, until_ms = self._near(now_ms, since_us)
        far = 0
        if until_ms < stored.totals.farthest_ms:
            far = self._far(stored, counted, until_ms)
        return counted.depth(running, far, exact=False)

    def _far(self, stored: Stored, counted: _CountedRows, until_ms: int) -> int:
        """How many messages the queue has beyond the counted ones, by its totals.

        The totals still include messages settled in the last 2 s, which must not look like waiting
        ones. So the result is no more than at the last look, plus the messages put since.
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
        """The number of messages; every row is counted."""
        self._register.refresh()
        running = self._running()
        now_ms = self._clock.now_ms()
        since_us = self._register.settings.purged_before_us
        now_minute = self._register.layout.minute_of(now_ms)
        counted = _CountedRows()
        for part in self._parts(self._store.indexed(self._register.name, range(NEVER))):
            due = [shard for shard in part if shard.minute <= now_minute]
            self._count_due(counted, due, -1, now_ms, since_us, exact=True)
            later = [shard for shard in part if shard.minute >= now_minute]
            self._count_later(counted, later, now_ms, since_us)
        return counted.depth(running, 0, exact=True)

    def inventory(self) -> Generator[float, None, Inventory]:
        """Count every row, a part at a time.

        Yields:
            0 after each part: the seconds until it can continue.
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
                tallies = scan.tallies(self._store, part, -1, _FAR_MS, purpose="depth")
                rows += sum(tally.rows for some in tallies for tally in some.values())
            farthest_ms = layout.end_ms(part[-1].minute) - 1
            yield 0.0
        return Inventory(rows, doomed, former, farthest_ms)

    def _running(self, beats: Mapping[str, Heartbeat] | None = None) -> int:
        if beats is None:
            beats = heartbeats(self._store, self._register.members_key)
        return sum(beat.busy for beat in beats.values())

    def _near(self, now_ms: int, since_us: int = 0) -> tuple[_CountedRows, int]:
        """The counts of due and soon due rows, and the due up to which every row is counted."""
        if not since_us and (found := self._near_at_once(now_ms)) is not None:
            return found
        counted = _CountedRows()
        layout = self._register.layout
        now_minute = layout.minute_of(now_ms)
        first = min(scan.unsealed_minute(self._store, self._register, now_ms), now_minute)
        minutes = range(first, self._end_minute(now_ms))
        shards = chain(
            scan.listed_shards(self._store, self._register, range(first)),
            self._store.indexed(self._register.name, minutes),
        )
        # A message that was due before a purge also entered before it.
        after_ms = ceil_ms(self._register.settings.purged_before_us) - 1
        polled = set(layout.all_used())
        # Parked rows are known only if counted, and totals do not note dues up to NEAR_MS ahead.
        least_ms = max(self._register.settings.visibility_ms, NEAR_MS) + layout.minute_ms
        least_minute = layout.minute_of(now_ms + least_ms)
        looked = 0
        for part in self._parts(shards):
            due = [shard for shard in part if shard.minute <= now_minute]
            self._count_due(counted, due, after_ms, now_ms, since_us)
            ahead = [one for one in part if one.minute >= now_minute and one.lane in polled]
            self._count_later(counted, ahead, now_ms, since_us)
            looked += len(ahead)
            if part[-1].minute > least_minute and (
                counted.later >= _ROWS_MAX or looked >= _SHARDS_MAX
            ):
                # The last minute may continue in the next part.
                return counted, layout.start_ms(part[-1].minute) - 1
        return counted, _FAR_MS if minutes.stop == NEVER else layout.end_ms(minutes[-1]) - 1

    def _near_at_once(self, now_ms: int) -> tuple[_CountedRows, int] | None:
        """The result of `_near` by an index that counts; None if the store has no such index.

        None also if rows of groups are postponed, because those are recognized row by row.
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
        counted = _CountedRows(due.tally.rows, both.rows, both.claims)
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
        """The minute before which waiting messages are counted."""
        if self._store.is_local:
            return NEVER
        layout = self._register.layout
        horizon_ms = max(_HORIZON_MS, self._register.settings.visibility_ms + layout.minute_ms)
        return layout.minute_of(now_ms + horizon_ms) + 1

    def _parts(self, found: Iterable[Shard]) -> Iterator[list[Shard]]:
        """The shards in the queue's lanes, in parts."""
        layout = self._register.layout
        shards = (shard for shard in found if layout.has_lane(shard.lane))
        return scan.parts(shards, _PART, first=_PART_FIRST)

    def _count_due(
        self,
        counted: _CountedRows,
        shards: Sequence[Shard],
        after_ms: int,
        now_ms: int,
        since_us: int,
        *,
        exact: bool = False,
    ) -> None:
        """Count rows of shards that are due by now; postponed ones count as later.

        Args:
            counted: Gets the counts.
            shards: The shards.
            after_ms: Rows due by this time are left out.
            now_ms: Epoch milliseconds.
            since_us: If above 0, rows are read, and those that entered before it are left out.
            exact: True to read all rows of groups for postponed ones. Else, in shards beyond
                `_WAITS_ROWS_MAX`, rows whose time has come meanwhile also count as postponed.
        """
        if since_us:
            for row in self._rows_of(shards):
                if row.entered_us < since_us or not after_ms < row.due_ms <= now_ms:
                    continue
                if row.ready_ms > now_ms:
                    counted.add_later(1, row.claim is not None)
                else:
                    counted.due += 1
            return
        layout = self._register.layout
        room = math.inf if exact else _WAITS_ROWS_MAX
        for found in scan.tallies(self._store, shards, after_ms, now_ms, purpose="depth"):
            for shard, tally in found.items():
                # A claim in a group counts as postponed too; no row without a group is postponed.
                postponed, claims = tally.waits, tally.claims if tally.waits else 0
                if tally.waits and tally.rows <= room:
                    room -= max(tally.rows, _WAITS_ROWS_MIN)
                    one = scan.whole(layout, shard, _PAGE, "depth")
                    waits = scan.waits_of(self._store, one, tally)
                    later = [row for row in waits if row.ready_ms > now_ms]
                    postponed = len(later)
                    claims = sum(row.claim is not None for row in later)
                counted.due += tally.rows - postponed
                counted.add_later(postponed, claims)

    def _count_later(
        self, counted: _CountedRows, shards: Sequence[Shard], now_ms: int, since_us: int
    ) -> None:
        """Count rows of shards that are due later; for arguments see `_count_due`."""
        if since_us:
            for row in self._rows_of(shards):
                if row.entered_us >= since_us and row.due_ms > now_ms:
                    counted.add_later(1, row.claim is not None)
            return
        for found in scan.tallies(self._store, shards, now_ms, _FAR_MS, purpose="depth"):
            for tally in found.values():
                counted.add_later(tally.rows, tally.claims)

    def _rows_of(self, shards: Iterable[Shard]) -> Iterator[Row]:
        """The rows of shards, without their bodies."""
        layout = self._register.layout
        found = scan.with_rows(self._store, shards)
        for page in scan.pages(self._store, layout, found, purpose="depth", bodies=False):
            yield from page


def may_be_doomed(register: Register, stored: Stored) -> bool:
    """True if there may be rows that a purge has reached and that are due after the purge.

    Args:
        register: The queue's record.
        stored: The queue's totals.
    """
    purged_ms = register.settings.purged_before_us // 1_000
    # A dead message was due when it entered.
    if not purged_ms or is_dead_queue(register.name):
        return False
    is_counted = stored.folded.mended_ms >= purged_ms + PURGE_MS
    return not is_counted or stored.doomed > 0 or stored.folded.former > 0
