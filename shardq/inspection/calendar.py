"""The load ahead of one queue: the messages due in each minute, by its rows and its schedules.

```
          now                                                until
 rows      │ · · · count by shard, near ones by minute · · · · │   later: the rest of the depth
 firings   │ · · · by its schedules · · · · · · · · · · · · · ·│
```

Only the shards that the queue's index names are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shardq.errors import BadTime, shown
from shardq.inspection import scan
from shardq.inspection.depth import DepthCounter, may_be_doomed
from shardq.inspection.pace import pace_of
from shardq.model.limits import queue_limit_of
from shardq.model.shard import MINUTE_MS
from shardq.model.times import duration_ms, moment_of
from shardq.records.folded import stored_totals
from shardq.records.membership import heartbeats
from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from shardq.inspection.depth import Depth
    from shardq.inspection.pace import Pace
    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.times import Duration
    from shardq.records.folded import Stored
    from shardq.stores.store import Progress, Tally

_PART = 500
_FAR_MS = 1 << 52
_FORECAST_MS_MAX = 86_400_000
_PAGE = 1_000
FIRINGS_MAX = 1_000_000
"""The most firings to count, which takes seconds, or two minutes if each has its own cron."""

Firings: TypeAlias = "Callable[[int, int], Iterable[tuple[int, int]]]"
"""(after, until), epoch milliseconds -> (due, how many) of the firings that have no rows yet: due
later than `after` and no later than `until`, roughly by due."""


def no_firings(_after_ms: int, _until_ms: int) -> Iterable[tuple[int, int]]:
    """The firings of a queue without schedules."""
    return ()


class Load(NamedTuple):
    """The load of some time: waiting messages, and firings of schedules."""

    rows: int = 0
    firings: int = 0

    @property
    def total(self) -> int:
        """The sum of both."""
        return self.rows + self.firings


@dataclass(frozen=True, slots=True)
class Calendar:
    """The load ahead of a queue.

    Attributes:
        queue: The queue's name.
        at_ms: The start, epoch milliseconds.
        until_ms: The end, exclusive.
        minutes: Start of a minute of 60 s, epoch milliseconds -> its load; ascending, without the
            empty minutes.
        depth: The queue's depth.
        pace: The queue's pace; None if nothing was delivered lately.
        consumers: The number of its consumers.
        is_paused: True if the queue is paused.
        fired_until_ms: The end of the counted firings, if there are more than `FIRINGS_MAX`; None:
            all were counted.
        allowed: Deliveries per second that the queue's rate allows; None: it has no rate.
    """

    queue: str
    at_ms: int
    until_ms: int
    minutes: Mapping[int, Load]
    depth: Depth
    pace: Pace | None = None
    consumers: int = 0
    is_paused: bool = False
    fired_until_ms: int | None = None
    allowed: float | None = None

    @property
    def load(self) -> Load:
        """The whole load."""
        rows, firings = zip(*self.minutes.values(), strict=True) if self.minutes else ((), ())
        return Load(sum(rows), sum(firings))

    @property
    def later(self) -> int:
        """Messages that are due at `until_ms` or later, as far as the depth includes them."""
        return max(self.depth.waiting - self.load.rows, 0)


def forecast_ms(horizon: Duration) -> int:
    """The horizon of a forecast, milliseconds.

    Raises:
        BadTime: If the horizon is more than a day, or no duration.
    """
    horizon_ms = duration_ms(horizon, name="horizon")
    if horizon_ms > _FORECAST_MS_MAX:
        raise BadTime(f"horizon must be at most a day, not {shown(horizon)}.")
    return horizon_ms


def forecast(
    home: QueueHome, horizon_ms: int, stored: Stored, firings: Firings = no_firings
) -> list[tuple[datetime, int]]:
    """Messages due in each of a queue's coming minutes, and firings ahead; zeros included.

    Args:
        home: The queue's home; its record was read just now.
        horizon_ms: The horizon.
        stored: The totals of the queue.
        firings: Returns the firings of the queue's schedules.
    """
    now_ms, layout = home.clock.now_ms(), home.register.layout
    minutes = range(layout.minute_of(now_ms), layout.minute_of(now_ms + horizon_ms) + 1)
    counts = dict.fromkeys(minutes, 0)
    until_ms = layout.end_ms(minutes[-1])
    rows = CalendarCounter(home).rows(now_ms, until_ms, stored, has_claims=True)
    for due_ms, count in chain(rows, firings(now_ms, until_ms - 1)):
        counts[layout.minute_of(due_ms)] += count
    return [(moment_of(layout.start_ms(minute)), count) for minute, count in counts.items()]


def begins(
    due: list[tuple[datetime, int]], ready: int, allowed: float | None, now_ms: int, minute_ms: int
) -> list[tuple[datetime, int]]:
    """How many messages begin in each of a queue's coming minutes, as far as its rate decides.

    Args:
        due: The messages that come due in each minute, as `forecast` returns them.
        ready: The messages that are due now.
        allowed: Deliveries per second that the queue's rate allows; None: any number.
        now_ms: Now, epoch milliseconds.
        minute_ms: The length of the queue's minutes.
    """
    found, left, tokens = [], ready, 0.0
    for minute, count in due:
        # A bucket keeps no tokens of minutes without messages.
        tokens = tokens if left else 0.0
        left += count
        begun = left
        if allowed is not None:
            end_ms = 1_000 * minute.timestamp() + minute_ms
            tokens += allowed * min(end_ms - now_ms, minute_ms) / 1_000
            begun = min(left, int(tokens))
            tokens -= begun
        left -= begun
        found.append((minute, begun))
    return found


class CalendarCounter:
    """Counts the load ahead of one queue; leases, claims and writes nothing.

    Args:
        home: The queue's home.
        on_progress: Called with the progress.
    """

    def __init__(self, home: QueueHome, on_progress: Progress | None = None) -> None:
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self._tell = on_progress or _untold

    def count(self, at_ms: int, until_ms: int, firings: Firings = no_firings) -> Calendar:
        """Count the messages due later than one time and before another; claims are not counted.

        Args:
            at_ms: Now, epoch milliseconds.
            until_ms: The end, exclusive.
            firings: Returns the firings ahead.

        Raises:
            StoreCorrupt: If totals or rows are damaged.
        """
        register = self._register
        register.refresh(force=register.has_unused_lanes)
        stored = stored_totals(self._store, register.totals_key)
        depth = DepthCounter(self._store, self._clock, register).depth(lambda: stored)
        rows: Counter[int] = Counter()
        for due_ms, count in self.rows(at_ms, until_ms, stored, is_fine=self._is_coarse):
            rows[due_ms - due_ms % MINUTE_MS] += count
        fired: Counter[int] = Counter()
        fired_until_ms = None
        for number, (due_ms, count) in enumerate(firings(at_ms, until_ms - 1)):
            if number == FIRINGS_MAX:
                fired_until_ms = due_ms
                break
            fired[due_ms - due_ms % MINUTE_MS] += count
            if not number % _PAGE:
                self._tell("firings", number, None)
        return Calendar(
            register.name,
            at_ms,
            until_ms,
            {start: Load(rows[start], fired[start]) for start in sorted({*rows, *fired})},
            depth,
            pace_of(stored, at_ms, register.settings.lane_made_ms(0)),
            len(heartbeats(self._store, register.members_key)),
            register.settings.paused,
            fired_until_ms,
            queue_limit_of(register.settings.queue_limit).a_second,
        )

    @property
    def _is_coarse(self) -> bool:
        """True if a minute of the queue may belong to two minutes of 60 s."""
        return MINUTE_MS % self._register.layout.minute_ms > 0

    def rows(
        self,
        at_ms: int,
        until_ms: int,
        stored: Stored,
        *,
        is_fine: bool = False,
        has_claims: bool = False,
    ) -> Iterator[tuple[int, int]]:
        """The messages due later than one time and before another, as (due, how many).

        Args:
            at_ms: Now, epoch milliseconds.
            until_ms: The end, exclusive.
            stored: The totals of the queue.
            is_fine: True for exact dues; else a due stands for its whole minute.
            has_claims: True to count messages in flight by the end of their claims.
        """
        if is_fine or may_be_doomed(self._register, stored):
            for row in self._singly(at_ms, until_ms - 1):
                if has_claims or row.claim is None:
                    yield row.due_ms, 1
        else:
            for start_ms, tally in self._together(at_ms, until_ms - 1):
                yield start_ms, tally.rows if has_claims else tally.rows - tally.claims
        for row in scan.postponed(self._store, self._register, at_ms):
            is_counted = (has_claims or row.claim is None) and not self._register.is_purged(row)
            if is_counted and row.ready_ms < until_ms:
                yield row.ready_ms, 1

    def _together(self, after_ms: int, until_ms: int) -> Iterator[tuple[int, Tally]]:
        """(start of a minute, its counts) for each shard."""
        layout = self._register.layout
        minutes = range(layout.minute_of(after_ms), layout.minute_of(until_ms) + 1)
        wanted = Slice(
            layout.queue, (), layout.all_used(), after_ms, until_ms, 0, purpose="calendar"
        )
        for counted in scan.tallies_of(self._store, wanted, minutes):
            if counted:
                self._tell_minute(next(iter(counted)).minute, minutes)
            for shard, tally in counted.items():
                yield max(layout.start_ms(shard.minute), after_ms), tally

    def _singly(self, after_ms: int, until_ms: int) -> Iterator[Row]:
        """The rows that no purge has reached, without their bodies."""
        layout = self._register.layout
        minutes = range(layout.minute_of(after_ms), layout.minute_of(until_ms) + 1)
        for part in scan.parts(self._store.indexed(layout.queue, minutes), _PART, first=_PART):
            self._tell_minute(part[0].minute, minutes)
            found = scan.with_rows(self._store, (one for one in part if layout.has_lane(one.lane)))
            pages = scan.pages(self._store, layout, found, purpose="calendar", bodies=False)
            for row in chain.from_iterable(pages):
                if after_ms < row.due_ms <= until_ms and not self._register.is_purged(row):
                    yield row

    def _tell_minute(self, minute: int, minutes: range) -> None:
        self._tell("minutes ahead", minute - minutes.start, len(minutes))


def _untold(_what: str, _done: int, _total: int | None) -> None:
    pass
