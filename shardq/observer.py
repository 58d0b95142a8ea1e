"""Views of queues for people: depth, rates, members, producers, lag, and the load ahead.

Deliveries do not need this module, and it writes nothing. An observer that looks again begins at
the oldest waiting message of its last look, so that it does not read rows settled before that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, groupby, zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from shardq.errors import SchemaNewer, StoreCorrupt
from shardq.inspection import scan
from shardq.inspection.calendar import forecast, forecast_ms, no_firings
from shardq.inspection.depth import DepthCounter
from shardq.inspection.whereabouts import run_of
from shardq.model.message import priority_of
from shardq.model.names import is_dead_queue
from shardq.model.settings import expected_lanes, layout_of
from shardq.model.shard import Shard, spans
from shardq.model.times import iso
from shardq.records.folded import stored_totals
from shardq.records.membership import heartbeats, member_of
from shardq.records.register import settings_in
from shardq.records.stats import Totals
from shardq.records.together import Together
from shardq.schedules.schedule import ScheduleFigures
from shardq.stores.store import Slice, Tally
from shardq.stores.tables import MEMBERS, QUEUES, STATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from shardq.clock import Clock
    from shardq.connection import Connection
    from shardq.inspection.depth import Depth
    from shardq.model.message import Row
    from shardq.model.settings import Settings
    from shardq.model.shard import Layout
    from shardq.queue import Queue
    from shardq.records.folded import Stored
    from shardq.records.membership import Heartbeat
    from shardq.stores.store import LeaseState, Progress

T = TypeVar("T")

_BACK_MINUTES_MAX = 1_440
"""How far back to look for the oldest waiting message."""
_NEAR_MINUTES = 3
_MINUTE_MS = 60_000
_RATE_US = 10_000_000
"""The shortest span of a rate: totals are stored every 2 s, so rates over less would jump."""
_ANEW_US = 60_000_000
"""How often to look for the oldest message from the start, for late writes behind it."""
_FORECAST_US = 10_000_000
_FORECAST_SHARE = 20
"""The forecast takes one part in this many of the time: 10,000 schedules are read in 5 s."""
_DEPTH_SHARE = 10
"""Counts of depth take one part in this many of the time: 20,000 rows take 10 ms."""
_IN_FLIGHT_MAX = 256
"""The most rows of a lane to read in order to find one that is ready."""
_CLAIMS_US = 20_000_000
"""How often to count the claims among waiting rows; changes of the number show at each look."""
_NO_SCHEDULES = ScheduleFigures()
_SCHEDULES_SHARE = 20
"""Counts of schedules take one part in this many of the time."""
_DEAD_SHARE = 20
"""Counts of the dead take one part in this many of the time: Cassandra reads hour by hour."""
_TOGETHER = 64
"""How many queues have their totals and members read together."""

Quantiles: TypeAlias = "tuple[float, float] | None"
"""p50 and p99, milliseconds; None without any deliveries."""


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane of one band, or a group lane in which messages are due.

    Attributes:
        lane: Its number within its band, below the `lanes` of the queue's settings; for a group
            lane, below its `group_lanes`.
        band: Its priority; 0 is first. None: it is a group lane.
        owner: The member that reads it, or None.
        lag_ms: How long its oldest ready message has waited; 0 without any. Messages that run, or
            were postponed, are not ready.
        oldest: The id of its oldest ready message; None without any.
    """

    lane: int
    band: int | None
    owner: str | None
    lag_ms: int
    oldest: str | None = None


class RunView(NamedTuple):
    """A run of a handler.

    Attributes:
        message: The message's id.
        run_ms: How long it has run, milliseconds.
        task: The name of the task, if the message is a job; else None.
    """

    message: str
    run_ms: int
    task: str | None


@dataclass(frozen=True, slots=True)
class MemberView:
    """A consumer.

    Attributes:
        name: Its name; each start has another one.
        threads: How many handlers it can run at once; 0 for callers of `receive`.
        busy: How many handlers run, `threads` at most.
        longest_ms: How long the handler that began first has run; 0 without any.
        unsettled: How many deliveries were handed out whose outcome is not stored, without parked
            ones.
        ready: How many messages wait in its memory for its handlers.
        lanes: The (lane, band) of each lane that it reads.
        isolated: True if it delivers only from minutes that ended at least the offset ago.
        shortest_ms: How long the handler that began last has run; 0 without any.
        runs: Its runs, the first begun first, 32 at most.
        limited: (limit, due messages in its memory that the limit holds back), as
            `Heartbeat.limited` names them.
    """

    name: str
    threads: int
    busy: int
    longest_ms: int
    unsettled: int
    ready: int
    lanes: tuple[tuple[int, int], ...]
    isolated: bool
    shortest_ms: int = 0
    runs: tuple[RunView, ...] = ()
    limited: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue at one moment.

    Attributes:
        name: The queue's name.
        at_ms: The moment, epoch milliseconds.
        settings: Its settings.
        depth: Messages ready, waiting and in flight, counted a second or two ago at most.
        dead: How many messages its dead-letter queue has.
        totals: The totals since the queue was made.
        put_rate: Messages put a second, over the last `rate_s`.
        delivered_rate: Deliveries a second, over the last `rate_s`.
        rate_s: The span of the rates, seconds: since a look 10 s ago or more; without one, since
            the minute before this one began, or the queue was made.
        late_ms: (p50, p99) of the lateness of deliveries begun in the last five minutes; None
            without any.
        late_day_ms: (p50, p99) for the last 24 h, and up to 4 h before them.
        uncounted: The processes that ended while they counted, or were stopped, and for which the
            totals are not corrected yet: the name of each, and when it last stored its totals,
            epoch milliseconds. The totals may miss the last 2 s of each.
        lanes: Every lane that is read.
        members: Its consumers.
        producers: The name and puts of each process that has put into it in this minute and the
            four before; most puts first.
        forecast: Minutes, each with the messages and firings due in it.
        schedules: How many schedules it has.
        schedules_soon: How many schedules fire within the forecast.
        schedules_lag_ms: For how long the first schedule has been overdue; 0 if none is.
    """

    name: str
    at_ms: int
    settings: Settings
    depth: Depth
    dead: int
    totals: Totals
    put_rate: float
    delivered_rate: float
    rate_s: float
    late_ms: Quantiles
    late_day_ms: Quantiles
    uncounted: tuple[tuple[str, int], ...]
    lanes: tuple[LaneView, ...]
    members: tuple[MemberView, ...]
    producers: tuple[tuple[str, int], ...]
    forecast: tuple[tuple[datetime, int], ...]
    schedules: int = 0
    schedules_soon: int = 0
    schedules_lag_ms: int = 0

    @property
    def busy(self) -> int:
        """How many handlers of all its consumers run."""
        return sum(member.busy for member in self.members)

    @property
    def limited(self) -> dict[str, int]:
        """Limit -> due messages that it holds back, of those in the memory of all consumers."""
        counts: Counter[str] = Counter()
        for member in self.members:
            counts.update(dict(member.limited))
        return dict(counts)

    @property
    def lag_ms(self) -> int:
        """How long its oldest ready message has waited: the largest lag of its lanes."""
        return max((lane.lag_ms for lane in self.lanes), default=0)

    @property
    def oldest(self) -> str | None:
        """The id of its oldest ready message; None without any."""
        behind = [lane for lane in self.lanes if lane.oldest is not None]
        return max(behind, key=lambda lane: lane.lag_ms).oldest if behind else None

    def to_json(self) -> dict[str, Any]:
        """The view as JSON."""
        return {
            "queue": self.name,
            "at": iso(self.at_ms),
            "paused": self.settings.paused,
            "ready": self.depth.ready,
            "waiting": self.depth.waiting,
            "in_flight": self.depth.in_flight,
            "dead": self.dead,
            "put": self.totals.put,
            "delivered": self.totals.delivered,
            "acked": self.totals.acked,
            "retried": self.totals.retried,
            "buried": self.totals.buried,
            "forwarded": self.totals.forwarded,
            "expired": self.totals.expired,
            "put_rate": self.put_rate,
            "delivered_rate": self.delivered_rate,
            "rate_s": self.rate_s,
            **late_to_json(self.late_ms, self.late_day_ms),
            "lag_ms": self.lag_ms,
            "lanes": [asdict(lane) for lane in self.lanes],
            "members": [
                {
                    "member": v.name,
                    "threads": v.threads,
                    "busy": v.busy,
                    "longest_ms": v.longest_ms,
                    "shortest_ms": v.shortest_ms,
                    "unsettled": v.unsettled,
                    "ready": v.ready,
                    "lanes": [{"lane": lane, "band": band} for lane, band in v.lanes],
                    "isolated": v.isolated,
                    "runs": [run._asdict() for run in v.runs],
                }
                for v in self.members
            ],
            "producers": [{"member": name, "put": put} for name, put in self.producers],
            "forecast": [[minute.isoformat(), count] for minute, count in self.forecast],
            "schedules": self.schedules,
            "schedules_lag_ms": self.schedules_lag_ms,
        }


class Observer:
    """Looks at queues again and again; from one thread.

    Args:
        db: The connection.
        names: The queues to look at; None: all queues of the store, as they are made and dropped.
        horizon: How far ahead the forecast goes; None: no forecast.
        beside: True to look at dead-letter queues as well.

    Attributes:
        newer: Queues of the store that the last look passed over, because they need a newer release
            of shardq; each with a sentence that says so.
        damaged: Queues that the last look passed over, because a record of theirs cannot be read;
            each with a sentence that says so.
        unseen: How many queues were not looked at yet.
        queues: The queues that were looked at, by name.
    """

    def __init__(
        self,
        db: Connection,
        names: Sequence[str] | None = None,
        *,
        horizon: str | None = "10m",
        beside: bool = True,
    ) -> None:
        self._db = db
        self._names = names
        self._horizon_ms = None if horizon is None else forecast_ms(horizon)
        self._beside = beside
        self._others: dict[str, Settings] | None = None
        self._watches: dict[str, _Watch] = {}
        self._views: dict[str, QueueView] = {}
        self._looks = 0
        self._looked: dict[str, int] = {}
        self._is_stale = False
        self.newer: dict[str, str] = {}
        self.damaged: dict[str, str] = {}
        self.unseen: int = 0
        self.queues: dict[str, Queue] = {}

    def look(
        self,
        *,
        seconds: float | None = None,
        first: Sequence[str] = (),
        on_progress: Progress | None = None,
    ) -> list[QueueView]:
        """Look at the queues; returns the view of each.

        Args:
            seconds: About how long to look. A queue that was not reached has the view of an earlier
                look, or none, and the next look begins with it. None: until all are looked at.
            first: Queues to look at before others.
            on_progress: Called with the count of queues that were looked at, and of all.

        Raises:
            UnknownQueue: If one of `names` does not exist.
            SchemaNewer: If one of `names` needs a newer release of shardq.
            StoreCorrupt: If a record of one of `names` cannot be read.
        """
        self.newer, self.damaged = {}, {}
        if self._is_stale:
            self._is_stale = False
            for watch in self._watches.values():
                watch.forget_counts()
        self.queues = self._open()
        for gone in self._watches.keys() - self.queues.keys():
            for kept in (self._watches, self._views, self._looked):
                kept.pop(gone, None)
        self._looks += 1
        tell = on_progress or _untold
        clock = self._db._home.clock
        until_us = None if seconds is None else clock.boot_us() + round(seconds * 1e6)
        looked = self._look_at_all(self._in_turn(first), until_us)
        for count, (name, view) in enumerate(looked, 1):
            self._looked[name] = self._looks
            if isinstance(view, QueueView):
                self._views[name] = view
            else:
                self._views.pop(name, None)
                self._pass_over(name, view)
            tell("queues", count, len(self.queues))
        self.unseen = len(self.queues.keys() - self._looked.keys())
        return [self._views[name] for name in self.queues if name in self._views]

    def forget_counts(self) -> None:
        """Have the next look count anew, because messages were changed. From any thread."""
        self._is_stale = True

    def views(self) -> dict[str, QueueView]:
        """The last views of the queues, by name; also while another thread looks."""
        views = self._views.copy()
        return {name: views[name] for name in self.queues if name in views}

    def _open(self) -> dict[str, Queue]:
        """The queues to look at, by name."""
        if self._names is not None:
            return {name: self._db.queue(name, create=False) for name in self._names}
        found = self._db._home.open_all(self._is_shown)
        for name, error in list(found.items()):
            if isinstance(error, (SchemaNewer, StoreCorrupt)):
                del found[name]
                if self._is_shown(name):
                    self._pass_over(name, error)
        shown = {name: queue for name, queue in found.items() if self._is_shown(name)}
        self._others = {name: one.settings if name in shown else one for name, one in found.items()}
        return shown

    def _is_shown(self, name: str) -> bool:
        return self._beside or not is_dead_queue(name)

    def _in_turn(self, first: Sequence[str]) -> list[str]:
        """The queues in the order of looks: the queue that was looked at longest ago first."""
        shown = set(first)
        return sorted(self.queues, key=lambda name: (name not in shown, self._looked.get(name, 0)))

    def _look_at_all(
        self, names: Sequence[str], until_us: int | None
    ) -> Iterator[tuple[str, _Looked]]:
        """Look at queues, in their order, until the time is up."""
        home = self._db._home
        for part in spans(range(len(names)), _TOGETHER):
            some = names[part.start : part.stop]
            queues = [self.queues[name]._home for name in some]
            for one in queues:
                # Stored first, so that the totals read below include the counts of this process.
                one.stats.store()
            registers = [one.register for one in queues]
            noted = Together(
                home.store,
                {
                    MEMBERS: [(one.members_key,) for one in registers],
                    STATS: [(one.totals_key,) for one in registers],
                },
            )
            taken = self._in_time(some, until_us)
            found = dict(home.side_by_side(partial(self._look_at, noted), taken))
            seen = [one for one in found.values() if isinstance(one, _QueueLook)]
            locks = home.store.locks(row.position for one in seen for row in one.first)
            for name, made in found.items():
                yield name, made.view(locks) if isinstance(made, _QueueLook) else made
            if len(found) < len(some) or self._is_late(until_us):
                return

    def _in_time(self, names: Sequence[str], until_us: int | None) -> Iterator[str]:
        for name in names:
            yield name
            if self._is_late(until_us):
                return

    def _is_late(self, until_us: int | None) -> bool:
        return until_us is not None and self._db._home.clock.boot_us() >= until_us

    def _look_at(
        self, noted: Together, name: str
    ) -> tuple[str, _QueueLook | SchemaNewer | StoreCorrupt]:
        try:
            watch = self._watches.get(name)
            if watch is None or watch.queue is not self.queues[name]:
                watch = _Watch(self._db, self.queues[name], self._horizon_ms)
                self._watches[name] = watch
            return name, watch.look(noted, self._others)
        except (SchemaNewer, StoreCorrupt) as error:
            return name, error

    def _pass_over(self, name: str, error: SchemaNewer | StoreCorrupt) -> None:
        if self._names is not None:
            raise error
        passed_over = self.newer if isinstance(error, SchemaNewer) else self.damaged
        passed_over[name] = str(error)


class _Rates(NamedTuple):
    """The rates of a `QueueView`."""

    put_rate: float
    delivered_rate: float
    rate_s: float


@dataclass(slots=True)
class _TimedTotals:
    """Totals as they were at a time since boot."""

    boot_us: int
    totals: Totals

    def since(self, before: _TimedTotals) -> _Rates:
        """The rates from an earlier look to this one."""
        seconds = (self.boot_us - before.boot_us) / 1e6
        now, then = self.totals, before.totals
        return _Rates(
            (now.put - then.put) / seconds, (now.delivered - then.delivered) / seconds, seconds
        )


@dataclass(frozen=True, slots=True)
class _QueueLook:
    """The result of one look at a queue, before the leases of its lanes are read.

    Attributes:
        watch: The queue's watch.
        layout: Its layout.
        beats: The heartbeats of its members.
        due: Lane -> the first of its due rows.
        partial: The view, without its lanes.
    """

    watch: _Watch
    layout: Layout
    beats: dict[str, Heartbeat]
    due: dict[int, list[Row]]
    partial: QueueView

    @property
    def first(self) -> list[Row]:
        """The first due row of each ordinary lane; the lease of its shard names the reader."""
        return [rows[0] for rows in self.due.values() if rows[0].group is None]

    def view(self, locks: Mapping[Shard, LeaseState]) -> QueueView:
        """The queue's view.

        Args:
            locks: The leases of the shards of `first`, among others.
        """
        return replace(self.partial, lanes=tuple(self._lanes(locks)))

    def _lanes(self, locks: Mapping[Shard, LeaseState]) -> Iterable[LaneView]:
        layout, now_ms = self.layout, self.partial.at_ms
        reader = {lane: member for member, beat in self.beats.items() for lane in beat.lanes}
        oldest = {lane: rows[0] for lane, rows in self.due.items()}
        ready = _ready(layout, self.due, reader, self.beats)
        # Lanes without due rows are read by the members that report them in their heartbeats.
        holders = {
            row.shard.lane: locks[row.shard].lock for row in self.first if row.shard in locks
        }
        holders |= self.watch.holders(list(filter(layout.is_of_groups, oldest)))
        expected = set(expected_lanes(self.partial.settings, layout, now_ms))
        for lane in layout.all_lanes():
            row, lock, waits = oldest.get(lane), holders.get(lane), ready.get(lane)
            owner = member_of(lock) if lock else reader.get(lane)
            is_of_groups = layout.is_of_groups(lane)
            if row is None and (is_of_groups or (lane not in expected and owner is None)):
                continue
            first = layout.first_group_lane
            yield LaneView(
                lane=lane - first if is_of_groups else layout.index_of(lane),
                band=None if is_of_groups else layout.band_of(lane),
                owner=owner,
                lag_ms=0 if waits is None else max(now_ms - waits.wanted_ms, 0),
                oldest=None if waits is None else waits.message_id,
            )


_Looked: TypeAlias = "QueueView | SchemaNewer | StoreCorrupt"


class _Paced(Generic[T]):
    """A value that is found anew now and then, so that finding takes a bounded part of the time.

    Args:
        share: The pause after a find is this many times as long as the find took.
        least_us: The shortest pause.
    """

    def __init__(self, clock: Clock, share: int, least_us: int = 0) -> None:
        self._clock = clock
        self._share = share
        self._least_us = least_us
        self._kept: tuple[int, T] | None = None

    def forget(self) -> None:
        """Have the next call find the value anew."""
        self._kept = None

    def at(self, boot_us: int, find: Callable[[], T]) -> T:
        """The value, found now if the pause is over.

        Args:
            boot_us: When the look began, time since boot.
            find: Finds the value.
        """
        if self._kept is None or boot_us >= self._kept[0]:
            begun_us = self._clock.boot_us()
            found = find()
            took_us = self._clock.boot_us() - begun_us
            self._kept = boot_us + max(self._least_us, self._share * took_us), found
        return self._kept[1]


class _Watch:
    """One queue, and the facts that are kept from look to look."""

    def __init__(self, db: Connection, queue: Queue, horizon_ms: int | None) -> None:
        self._store = db._home.store
        self._clock = db._home.clock
        self.queue = queue
        self._counter = DepthCounter(
            self._store, self._clock, queue._home.register, anew_us=_CLAIMS_US
        )
        self._horizon_ms = horizon_ms
        self._counted: list[_TimedTotals] = []
        self._from_ms: dict[int, int] = {}
        self._anew_us: int | None = None
        self._forecast: _Paced[tuple[tuple[datetime, int], ...]] = _Paced(
            self._clock, _FORECAST_SHARE, _FORECAST_US
        )
        self._depth: _Paced[Depth] = _Paced(self._clock, _DEPTH_SHARE)
        self._dead: _Paced[int] = _Paced(self._clock, _DEAD_SHARE)
        self._schedules: _Paced[ScheduleFigures] = _Paced(self._clock, _SCHEDULES_SHARE)
        self._totals_key = queue._home.register.totals_key

    def look(self, noted: Together, others: Mapping[str, Settings] | None) -> _QueueLook:
        """Look at the queue, without the leases of its lanes.

        Args:
            noted: The members and totals of this queue, among those of other queues.
            others: The settings of all queues of the store, if they were read just now.
        """
        register = self.queue._home.register
        now_ms, boot_us = self._clock.now_ms(), self._clock.boot_us()
        settings = self.queue.settings
        layout = layout_of(settings, register.name)
        if self._totals_key != register.totals_key:
            # The queue was dropped and made anew: all earlier looks were at the former one.
            self._totals_key = register.totals_key
            self._counted, self._from_ms, self._anew_us = [], {}, None
            self._forecast.forget()
            self._depth.forget()
        beats = heartbeats(noted, register.members_key)
        # Counted first: totals that are read later include the rows that the count leaves to them.
        depth, stored = self._depth_at(boot_us, noted, beats, is_fresh=others is not None)
        counted = _TimedTotals(boot_us, stored.totals)
        before = self._remember(counted)
        rates = _recent(stored, settings, now_ms) if before is None else counted.since(before)
        ahead: tuple[tuple[datetime, int], ...] = ()
        if (horizon_ms := self._horizon_ms) is not None:
            ahead = self._forecast.at(boot_us, partial(self._ahead, horizon_ms, stored, others))
        dead = self._dead.at(boot_us, partial(self._count_dead, others))
        due = self._due(layout, beats, depth, now_ms, boot_us)
        schedules = _NO_SCHEDULES
        if settings.schedules_used:
            schedules = self._schedules.at(boot_us, self._outlook)
        late_ms, late_day_ms = lateness_of(stored, layout, now_ms)
        view = QueueView(
            name=layout.queue,
            at_ms=now_ms,
            settings=settings,
            depth=depth,
            dead=dead,
            totals=stored.totals,
            **rates._asdict(),
            late_ms=late_ms,
            late_day_ms=late_day_ms,
            uncounted=tuple((row.process, row.late_ms or row.at_ms) for row in stored.gaps(now_ms)),
            lanes=(),
            members=tuple(
                _member(name, beat, layout, now_ms) for name, beat in sorted(beats.items())
            ),
            producers=tuple(stored.recent_producers(now_ms).most_common()),
            forecast=ahead,
            schedules=schedules.count,
            schedules_soon=schedules.soon,
            schedules_lag_ms=schedules.lag_ms,
        )
        return _QueueLook(self, layout, beats, due, view)

    def holders(self, lanes: Sequence[int]) -> dict[int, str | None]:
        """Group lane -> the lock of its lease."""
        if not lanes:
            return {}
        states = self._store.lane_locks(self.queue.name, lanes)
        return {lane: state.lock for lane, state in states.items()}

    def _remember(self, now: _TimedTotals) -> _TimedTotals | None:
        """Keep these totals; returns the newest that are old enough for a rate."""
        self._counted.append(now)
        old = [one for one in self._counted if now.boot_us - one.boot_us >= _RATE_US]
        if not old:
            return None
        self._counted = self._counted[len(old) - 1 :]
        return old[-1]

    def _depth_at(
        self, boot_us: int, noted: Together, beats: Mapping[str, Heartbeat], *, is_fresh: bool
    ) -> tuple[Depth, Stored]:
        """The depth, counted a moment ago, and the present totals."""
        home = self.queue._home

        def read_totals() -> Stored:
            home.stats.store()
            return stored_totals(self._store, home.register.totals_key)

        stored = stored_totals(noted, home.register.totals_key)

        def count() -> Depth:
            return self._counter.depth(read_totals, stored=stored, is_fresh=is_fresh, beats=beats)

        return self._depth.at(boot_us, count), stored

    def forget_counts(self) -> None:
        """Count anew at the next look."""
        self._depth.forget()
        self._dead.forget()

    def _count_dead(self, others: Mapping[str, Settings] | None) -> int:
        """How many dead messages the queue has; a dead-letter queue has none."""
        if is_dead_queue(self.queue.name):
            return 0
        name = self.queue._home.register.dead_name
        if name is None:
            return 0
        if others is None:
            settings = settings_in(self._store.notes(QUEUES, (), [name]).get(name), name)
        else:
            settings = others.get(name)
        if settings is None:
            return 0
        layout, now_ms = layout_of(settings, name), self._clock.now_ms()
        # A dead message is due when it dies, which is when it enters its queue: purged ones are due
        # before the purge.
        purged_ms = settings.purged_before_us // 1_000
        minutes = range(layout.minute_of(purged_ms), layout.minute_of(now_ms) + 1)
        lanes = [*layout.lanes(), *layout.lanes_of_groups()]
        all_of_it = Slice(name, minutes, lanes, purged_ms, now_ms, 0, purpose="observe")
        if (total := self._store.total(all_of_it)) is not None:
            return total.tally.rows
        shards = self._store.indexed(name, minutes)
        counted = scan.tallies(self._store, shards, purged_ms, now_ms, purpose="observe")
        return sum(tally.rows for part in counted for tally in part.values())

    def _ahead(
        self, horizon_ms: int, stored: Stored, others: Mapping[str, Settings] | None
    ) -> tuple[tuple[datetime, int], ...]:
        home, queue = self.queue._home, self.queue
        if others is None:
            home.register.refresh(force=home.register.has_unused_lanes)
        has_schedules = queue.settings.schedules_used
        firings = queue.schedules._home.firings if has_schedules else no_firings
        return tuple(forecast(home, horizon_ms, stored, firings))

    def _outlook(self) -> ScheduleFigures:
        return self.queue.schedules._home.outlook(self._horizon_ms or 0)

    def _due(
        self,
        layout: Layout,
        beats: Mapping[str, Heartbeat],
        depth: Depth,
        now_ms: int,
        boot_us: int,
    ) -> dict[int, list[Row]]:
        """Lane -> its first due rows that are not postponed: enough to find one that waits."""
        if not (depth.ready or depth.in_flight):
            self._from_ms = dict.fromkeys(layout.all_lanes(), now_ms)
            return {}
        # A member's rows in flight are the first of its lanes, unless earlier ones were put since.
        limit = 1 + min(max((beat.busy for beat in beats.values()), default=0), _IN_FLIGHT_MAX)
        is_old = self._anew_us is None or boot_us - self._anew_us >= _ANEW_US
        # The dues are from the last look. If the clock was set back since, they are later than now.
        if is_old or any(from_ms > now_ms for from_ms in self._from_ms.values()):
            self._anew_us = boot_us
            self._from_ms = self._starts(layout, now_ms)
        # Lanes that keep up are read together, and lagging ones apart: otherwise all lanes would be
        # read from as far back.
        near_ms = layout.start_ms(layout.minute_of(now_ms) - _NEAR_MINUTES + 1)
        near = [from_ms for from_ms in self._from_ms.values() if from_ms >= near_ms]
        groups: dict[int, list[int]] = {}
        starts_of: dict[int, int] = {}
        for lane in layout.all_lanes():
            from_ms = self._from_ms.get(lane, near_ms)
            together = min(near) if near and from_ms >= near_ms else from_ms
            minute = layout.minute_of(together)
            groups.setdefault(minute, []).append(lane)
            starts_of[minute] = min(starts_of.get(minute, together), together)
        found: dict[int, list[Row]] = {}
        starts = dict.fromkeys(layout.all_lanes(), now_ms)
        for minute, lanes in groups.items():
            found |= self._due_of(layout, lanes, limit, starts_of[minute], now_ms, starts)
        self._from_ms = starts
        return found

    def _starts(self, layout: Layout, now_ms: int) -> dict[int, int]:
        register = self.queue._home.register
        # The seals first: a minute is listed before its lane's seal passes it.
        oldest = scan.unsealed_minute(self._store, register, now_ms)
        waiting = scan.waiting_minutes(self._store, register)
        bound = max(layout.minute_of(now_ms) - _BACK_MINUTES_MAX, 0)
        return {
            lane: layout.start_ms(max(min([oldest, *waiting.get(lane, ())]), bound))
            for lane in layout.all_lanes()
        }

    def _due_of(
        self,
        layout: Layout,
        lanes: Sequence[int],
        limit: int,
        from_ms: int,
        now_ms: int,
        starts: dict[int, int],
    ) -> dict[int, list[Row]]:
        minutes = range(layout.minute_of(from_ms), layout.minute_of(now_ms) + 1)
        found = self._store.indexed(layout.queue, minutes)
        asked = (shard for shard in found if shard.lane in lanes)

        def is_ready(row: Row) -> bool:
            if row.entered_us < self.queue.settings.purged_before_us:
                return False
            # A postponed row may be ready at the next look.
            starts[row.shard.lane] = min(starts[row.shard.lane], row.due_ms)
            return row.ready_ms <= now_ms

        due: dict[int, list[Row]] = {}
        with_rows = asked if self._store.is_local else scan.with_rows(self._store, asked)
        for minute, some in groupby(with_rows, key=attrgetter("minute")):
            if left := [shard.lane for shard in some if len(due.get(shard.lane, ())) < limit]:
                wanted = Slice(
                    layout.queue,
                    [minute],
                    left,
                    from_ms - 1,
                    now_ms,
                    limit,
                    purpose="observe",
                    bodies=False,
                )
                for row in scan.first_kept(self._store, [wanted], is_ready):
                    due.setdefault(row.shard.lane, []).append(row)
            if len(due) == len(lanes) and all(len(rows) >= limit for rows in due.values()):
                break
        return due


def _ready(
    layout: Layout,
    due: Mapping[int, Sequence[Row]],
    reader: Mapping[int, str],
    beats: Mapping[str, Heartbeat],
) -> dict[int, Row]:
    """Lane -> the first of its due rows that is not in flight.

    A heartbeat names 32 runs and counts all deliveries. Members deliver in order, so the deliveries
    that it does not name are the first other rows of the member's lanes.

    Args:
        layout: The queue's layout.
        due: Lane -> the first of its rows that are due.
        reader: Lane -> the member that reads it.
        beats: The members' heartbeats.
    """
    unnamed = {name: beat.busy for name, beat in beats.items()}
    left: list[Row] = []
    for row in chain.from_iterable(due.values()):
        run = run_of(row, beats)
        if run is not None:
            unnamed[run[0]] -= 1
        else:
            left.append(row)
    ready: dict[int, Row] = {}
    for row in sorted(left, key=lambda row: (priority_of(row, layout), row.due_ms)):
        member = reader.get(row.shard.lane, "")
        if unnamed.get(member, 0) > 0:
            unnamed[member] -= 1
        else:
            ready.setdefault(row.shard.lane, row)
    return ready


def _member(name: str, beat: Heartbeat, layout: Layout, now_ms: int) -> MemberView:
    return MemberView(
        name=name,
        threads=beat.threads,
        busy=beat.running,
        longest_ms=beat.longest_ms,
        unsettled=beat.busy,
        ready=beat.ready,
        lanes=tuple(
            (layout.index_of(lane), layout.band_of(lane))
            for lane in beat.lanes
            if not layout.is_of_groups(lane)
        ),
        isolated=beat.isolated,
        shortest_ms=beat.shortest_ms,
        runs=runs_of(beat, now_ms),
        limited=tuple(sorted(beat.limited.items())),
    )


def runs_of(beat: Heartbeat, now_ms: int) -> tuple[RunView, ...]:
    """The runs that a heartbeat names.

    Args:
        beat: The heartbeat of a member.
        now_ms: Epoch milliseconds.
    """
    return tuple(
        RunView(message, max(now_ms - begun_ms, 0), task or None)
        for (message, begun_ms), task in zip_longest(beat.runs, beat.tasks[: len(beat.runs)])
    )


def _recent(stored: Stored, settings: Settings, now_ms: int) -> _Rates:
    """The rates since the last minute began, for a first look."""
    first = now_ms // _MINUTE_MS - 1
    since_ms = max(first * _MINUTE_MS, settings.lane_made_ms(0))
    seconds = max(now_ms - since_ms, 1_000) / 1_000
    put = sum(count for one, count in stored.recent_put(now_ms).items() if one >= first)
    late = stored.recent(now_ms).items()
    return _Rates(
        put / seconds, sum(of.count for one, of in late if one >= first) / seconds, seconds
    )


def _untold(_what: str, _done: int, _total: int | None) -> None:
    """Ignore the progress."""


def lateness_of(stored: Stored, layout: Layout, now_ms: int) -> tuple[Quantiles, Quantiles]:
    """(p50, p99) of the lateness of deliveries: in the last five minutes, and in the day.

    Args:
        stored: The queue's totals.
        layout: The queue's layout.
        now_ms: Epoch milliseconds.
    """
    late = stored.lateness(now_ms), stored.lateness_of_day(now_ms, layout)
    recent, day = ((one.quantile(0.5), one.quantile(0.99)) for one in late)
    return _told(recent), _told(day)


def _told(quantiles: tuple[float | None, float | None]) -> Quantiles:
    p50, p99 = quantiles
    return None if p50 is None or p99 is None else (p50, p99)


def late_to_json(recent: Quantiles, day: Quantiles) -> dict[str, float | None]:
    """Lateness as JSON."""
    p50, p99 = recent or (None, None)
    day_p50, day_p99 = day or (None, None)
    return {
        "late_p50_ms": p50,
        "late_p99_ms": p99,
        "late_day_p50_ms": day_p50,
        "late_day_p99_ms": day_p99,
    }


def open_shards(queue: Queue) -> dict[int, list[tuple[int, int]]]:
    """Open minute -> (messages due by now, all messages) in each lane.

    Lanes of bands to which nobody has ever put are left out. Settled messages do not count. Every
    row is read, so this is for a person's look at a small queue.

    Args:
        queue: The queue.
    """
    home = queue._home
    home.register.refresh(force=home.register.has_unused_lanes)
    layout = home.register.layout
    now_ms = home.clock.now_ms()
    minutes = range(layout.newest_sealable(now_ms) + 1, layout.minute_of(now_ms) + 2)
    lanes = layout.all_used()
    due, rows = (
        home.store.count(Slice(queue.name, minutes, lanes, -1, until, 0, purpose="observe"))
        for until in (now_ms, layout.end_ms(minutes[-1]))
    )
    none = Tally(0, 0)
    counts: dict[int, list[tuple[int, int]]] = {minute: [] for minute in minutes}
    for minute, of_lanes in counts.items():
        for lane in lanes:
            shard = Shard(queue.name, minute, lane)
            of_lanes.append((due.get(shard, none).rows, rows.get(shard, none).rows))
    return counts
