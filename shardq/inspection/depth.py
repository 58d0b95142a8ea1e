"""How many messages a queue holds: rows are counted where they lie, near ones one by one.

```
        ◄── unsealed, due ──► now ◄── counted ──► horizon ◄── put - gone - all that was counted ──►
  rows       ready | running       waiting | claims              waiting
```

What is nearer than the horizon needs no totals. What lies beyond it is taken from them, and only
where somebody has placed a message so far ahead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardq.inspection import scan
from shardq.model.names import is_dead_queue
from shardq.model.times import ceil_ms
from shardq.records.membership import heartbeats
from shardq.records.stats import NEAR_MS
from shardq.stores.store import NEVER, Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.records.folded import Stored
    from shardq.records.register import Register
    from shardq.stores.store import Store

_HORIZON_MS = 3_600_000 + NEAR_MS
_HORIZON_SHARDS = 1_000
"""Where no index tells which minutes have rows: so many partitions are looked into, 20 ms."""
_PROBED_ROWS_MAX = 20_000
"""What lies beyond so many that wait is not counted: 25 ms for each 10,000 on Cassandra."""
_INDEXED_ROWS_MAX = 100_000
"""Where an index tells: so many are counted, 50 ms on SQLite."""
_INDEXED_MINUTES_MAX = 16
_SPANS_MAX = 1_000
_COUNT_MINUTES = 500
PURGE_MS = 10_000
"""So long after a purge, what others put just before it is there to be counted."""
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
    """Counts the messages of one queue."""

    def __init__(self, store: Store, clock: Clock, register: Register) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._seen = "", 0, 0, 0

    def depth(self, read_totals: Callable[[], Stored]) -> Depth:
        """How many messages there are; far ones by the totals, where there may be any.

        Args:
            read_totals: Reads what has happened in the queue.
        """
        self._register.refresh(force=self._register.has_unused_lanes)
        running = self._running()
        now_ms = self._clock.now_ms()
        counted, until_ms = self._near(now_ms)
        # Last: what processes store meanwhile makes up for a part of what they store only 2 s
        # later.
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
        counted = _Counted()
        for part in _parts({shard.minute for shard in self._store.shards(self._register.name)}):
            due, later = _parted(part, self._register.layout.minute_of(now_ms))
            counted.add_due(self._tally([due], -1, now_ms, since_us, exact=True))
            counted.add_later(self._tally([later], now_ms, _FAR_MS, since_us))
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
        minutes: set[int] = set()
        for found, shard in enumerate(self._store.shards(self._register.name), 1):
            minutes.add(shard.minute)
            if not found % _PAGE:
                yield 0.0
        for part in _parts(minutes):
            if settings.purged_before_us:
                for row in self._rows_of(part, layout.all_lanes()):
                    is_former = self._register.is_former(row)
                    former += is_former
                    rows += not is_former
                    is_reached = row.entered_us < settings.purged_before_us
                    doomed += is_reached and not is_former and row.claim is None
            else:
                rows += self._tally([part], -1, _FAR_MS, 0).rows
            farthest_ms = layout.end_ms(part[-1]) - 1
            yield 0.0
        return Inventory(rows, doomed, former, farthest_ms)

    def _running(self) -> int:
        beats = heartbeats(self._store, self._register.members_key)
        return sum(beat.busy for beat in beats.values())

    def _near(self, now_ms: int, since_us: int = 0) -> tuple[_Counted, int]:
        """What is due and what is due soon, and the due up to which that is all there is."""
        counted = _Counted()
        past = scan.unsealed_minutes(self._store, self._register, now_ms)
        # What was due before a purge entered before it, too.
        after_ms = ceil_ms(self._register.settings.purged_before_us) - 1
        counted.add_due(self._tally(past, after_ms, now_ms, since_us))
        layout = self._register.layout
        is_indexed = self._store.next_minute(layout.queue, 0) is not None
        most = _INDEXED_ROWS_MAX if is_indexed else _PROBED_ROWS_MAX
        ahead = self._with_rows(now_ms) if is_indexed else self._probed(now_ms, counted)
        lanes = layout.all_used()
        part = range(0)
        for spans, part in enumerate(ahead, 1):
            counted.add_later(self._tally([part], now_ms, _FAR_MS, since_us, lanes))
            if counted.later >= most or spans == _SPANS_MAX:
                break
        else:
            if is_indexed:
                return counted, _FAR_MS
        return counted, layout.end_ms(part[-1]) - 1

    def _with_rows(self, now_ms: int) -> Iterator[range]:
        """The minutes from now on that have rows, as an index tells, a few at a time."""
        minute, length = self._register.layout.minute_of(now_ms), 1
        queue = self._register.name
        while (minute := self._store.next_minute(queue, minute) or NEVER) < NEVER:
            yield range(minute, minute + length)
            minute += length
            length = min(2 * length, _INDEXED_MINUTES_MAX)

    def _probed(self, now_ms: int, counted: _Counted) -> Iterator[range]:
        """The minutes up to the horizon, where no index tells which of them have rows.

        Args:
            now_ms: Epoch milliseconds.
            counted: What was counted in those before.
        """
        layout, settings = self._register.layout, self._register.settings
        few_ms = _HORIZON_SHARDS // len(layout.all_used()) * layout.minute_ms
        # Parked rows are known from others only where they are counted, and dues up to NEAR_MS
        # ahead are not noted.
        least_ms = max(settings.visibility_ms, NEAR_MS) + layout.minute_ms
        horizon_ms = max(min(_HORIZON_MS, few_ms), least_ms)
        first, end = layout.minute_of(now_ms), layout.minute_of(now_ms + horizon_ms) + 1
        minute, length = first, layout.minute_of(now_ms + least_ms) + 1 - first
        while minute < end:
            yield range(minute, min(minute + length, end))
            minute += length
            # As many as are likely to have what may still be counted.
            left = _PROBED_ROWS_MAX - counted.later
            length = max((minute - first) * left // (counted.later + 1), length)

    def _tally(
        self,
        parts: Iterable[Sequence[int]],
        after_ms: int,
        until_ms: int,
        since_us: int,
        lanes: Sequence[int] | None = None,
        *,
        exact: bool = False,
    ) -> _Tallied:
        """Rows in minutes and between two dues, and how many of them are put off.

        Args:
            parts: The minutes, in parts that are counted one after the other.
            after_ms: What is due by then is left out.
            until_ms: What is due later is left out.
            since_us: Where it is above 0, rows are read, and what entered before it is left out.
            lanes: In which lanes; None: in all.
            exact: Whether to read which rows of groups are put off. Else those count whose time has
                come since, too: no more than one for each place of a group.
        """
        total = _Tallied()
        layout = self._register.layout
        lanes = layout.all_lanes() if lanes is None else lanes
        for part in filter(None, parts):
            if since_us:
                for row in self._rows_of(part, lanes):
                    if row.entered_us >= since_us and after_ms < row.due_ms <= until_ms:
                        total = total.plus(_Tallied.of(row, until_ms))
                continue
            wanted = Slice(layout.queue, part, lanes, after_ms, until_ms, _PAGE)
            for shard, tally in self._store.count(wanted).items():
                # Of groups a claim is put off as well, and elsewhere nothing is.
                put_off, claims = tally.waits, tally.claims if tally.waits else 0
                if exact:
                    one = wanted._replace(minutes=[shard.minute], lanes=[shard.lane])
                    waits = list(scan.waits_of(self._store, one, tally))
                    later = [row for row in waits if row.ready_ms > until_ms]
                    put_off = len(later)
                    claims = sum(row.claim is not None for row in later)
                total = total.plus(_Tallied(tally.rows, tally.claims, put_off, claims))
        return total

    def _rows_of(self, minutes: Sequence[int], lanes: Sequence[int]) -> Iterator[Row]:
        """The rows of some minutes, without their bodies."""
        layout = self._register.layout
        shards = self._store.occupied(layout.queue, minutes, lanes)
        for page in scan.pages(self._store, layout, shards, purpose="depth", bodies=False):
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


def _parts(minutes: Iterable[int]) -> Iterator[Sequence[int]]:
    """Minutes, a few hundred at a time, ascending."""
    ordered = sorted(minutes)
    for first in range(0, len(ordered), _COUNT_MINUTES):
        yield ordered[first : first + _COUNT_MINUTES]


def _parted(minutes: Sequence[int], now_minute: int) -> tuple[Sequence[int], Sequence[int]]:
    """The minutes up to now, and those from now on; the present one is in both."""
    past = bisect_right(minutes, now_minute)
    return minutes[:past], minutes[bisect_left(minutes, now_minute) :]
