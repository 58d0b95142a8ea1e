"""The reads of a scrape: the store by one look at all queues, and this process by its meter.

```
 stored totals, at each scrape ──────┬──► Gauges ──┐
 Observer.look, every 5 s at most ───┘             ├──► collector.py
 Meter ──► Counted ────────────────────────────────┘
```
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from shardq.errors import SchemaError, ShardqError, StoreCorrupt, StoreError, UnknownQueue
from shardq.metrics.named import TOTALS
from shardq.model.names import is_dead_queue
from shardq.model.settings import Settings, pauses_of
from shardq.observer import Observer
from shardq.records.folded import stored_totals
from shardq.records.meter import Counted, Known

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.clock import Clock
    from shardq.connection import Connection
    from shardq.observer import QueueView
    from shardq.queue import Queue

log = logging.getLogger(__name__)

LOOK_EVERY_US = 5_000_000
_OLD_US = 60_000_000
"""How long a look is shown: missing gauges are better than wrong ones."""
ANSWER_S = 3.0
"""How long a store may take for the totals before it counts as away."""
LOOK_S = 5.0
"""How long a scrape waits for the first look; with the totals, less than Prometheus waits."""
BRIEF_S = 0.1
"""How long later scrapes wait for a new look before they show the last one."""
AFTER_S = 0.5
"""A look that takes longer than `BRIEF_S` begins this long after its scrape."""
_AHEAD_EVERY_US = 60_000_000
"""How often the load ahead is read: 1,000 schedules take a second or two."""
SCHEDULES_MAX = 1_000
"""Schedules of one queue that are shown."""

Gauges: TypeAlias = dict[str, list[tuple[list[str], float]]]
"""Name of a metric -> its labels, and its value."""
_Series: TypeAlias = tuple[str, tuple[str, ...]]


class _Errand:
    """Work on the store that one thread does at a time. A store that hangs delays no caller.

    Args:
        work: The work.
        clock: The clock by which the age of a result is measured.
        name: The name of the thread.
    """

    def __init__(self, work: Callable[[], dict[_Series, float]], clock: Clock, name: str) -> None:
        self._work = work
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._over.set()
        self._found: dict[_Series, float] | None = None
        self._found_us = self._begun_us = 0
        self.took_us = 0

    def begin(self, *, every_us: int, after_s: float = 0) -> None:
        """Begin the work, unless it is under way or the last result is younger than `every_us`.

        Args:
            every_us: The age that the last result must have.
            after_s: How many seconds the thread waits before it begins.
        """
        with self._lock:
            is_young = self._found is not None and self._age_us() < every_us
            if is_young or not self._over.is_set():
                return
            self._over = threading.Event()
            threading.Thread(
                target=self._run, args=(after_s,), name=self._name, daemon=True
            ).start()

    def is_kept(self, old_us: int) -> bool:
        """True if there is a result of at most this age."""
        return self._found is not None and self._age_us() <= old_us

    def result(self, wait_s: float, *, old_us: int) -> dict[_Series, float] | None:
        """The result of the work under way; after the wait the result before, if it is not too old.

        Args:
            wait_s: How long to wait, seconds.
            old_us: The highest age of the result before; 0: the result before is not returned.
        """
        if self._over.wait(wait_s) or (old_us and self.is_kept(old_us)):
            return self._found
        return None

    def _age_us(self) -> int:
        return self._clock.boot_us() - self._found_us

    def _run(self, after_s: float) -> None:
        found = None
        if after_s:
            threading.Event().wait(after_s)
        self._begun_us = self._clock.boot_us()
        try:
            found = self._work()
        except StoreError as error:
            log.info("the store cannot be read for metrics: %s", error)
        finally:
            self._found, self._found_us = found, self._begun_us
            self.took_us = self._clock.boot_us() - self._begun_us
            self._over.set()


class Process:
    """The measurements of one process.

    Args:
        db: The connection; its meter is on from now on.
    """

    def __init__(self, db: Connection) -> None:
        self._home = db._home
        self._home.meter.turn_on(self._home.store, self._home.clock)

    def counted(self) -> Counted:
        """The counts of the process's meter."""
        return self._home.meter.counted()

    def gauges(self) -> Gauges:
        """The gauges of the process."""
        found: Gauges = {"shardq_clock_offset_seconds": [([], self._home.clock.deviation_us / 1e6)]}
        counters = self._home.store.counters.copy()
        read = [count for name, count in counters.items() if name.startswith("tombstones:")]
        if read:
            found["shardq_tombstones_read"] = [([], sum(read))]
        for name, value_of in self._home.meter.gauges.items():
            found[name] = [([], value_of())]
        return found


class Reading:
    """The metrics of a store: totals as of now, and gauges by a look. Any thread may ask.

    A look at many queues takes seconds. A scrape waits for the first one. Later ones run in the
    background, and a scrape shows the last one that has ended, at most a minute old.

    Args:
        db: The connection.
        names: The queues to look at; None: all of the store, as they are made and dropped.
    """

    def __init__(self, db: Connection, names: Sequence[str] | None = None) -> None:
        self._db = db
        self._names = names
        self._clock = db._home.clock
        # Each named queue has an observer of its own, so one that cannot be read hides no other.
        self._observers = (
            [Observer(db, horizon=None, beside=False)]
            if names is None
            else [Observer(db, [name], horizon=None) for name in names]
        )
        self._counting = _Errand(self._totals, self._clock, "shardq-totals")
        self._looking = _Errand(self._look, self._clock, "shardq-look")
        self._ahead = _Errand(self._look_ahead, self._clock, "shardq-ahead")
        self._queues, self._schedules = Known(), Known()

    def gauges(self) -> Gauges:
        """The totals of all queues now, and their gauges, read 5 s ago or by the last scrape.

        If the store cannot be read within 3 s, there is only `shardq_store_up`, which is 0.
        """
        self._counting.begin(every_us=0)
        is_kept = self._looking.is_kept(_OLD_US)
        is_long = is_kept and self._looking.took_us > BRIEF_S * 1e6
        # A scrape does not wait for a long look, which begins later so as not to slow the scrape.
        self._looking.begin(every_us=LOOK_EVERY_US, after_s=AFTER_S if is_long else 0)
        is_far = self._ahead.took_us > BRIEF_S * 1e6
        self._ahead.begin(every_us=_AHEAD_EVERY_US, after_s=AFTER_S if is_far else 0)
        sums = self._counting.result(ANSWER_S, old_us=0)
        if sums is None:
            return {"shardq_store_up": [([], 0)]}
        found: Gauges = {"shardq_store_up": [([], 1)]}
        wait_s = 0 if is_long else BRIEF_S if is_kept else LOOK_S
        seen = self._looking.result(wait_s, old_us=_OLD_US) or {}
        # No scrape waits long for the load ahead, not even the first one.
        wait_s, old_us = 0 if is_far else BRIEF_S, _OLD_US + _AHEAD_EVERY_US
        seen |= self._ahead.result(wait_s, old_us=old_us) or {}
        for (name, labels), value in (seen | sums).items():
            found.setdefault(name, []).append((list(labels), value))
        return found

    def _totals(self) -> dict[_Series, float]:
        """The totals of each queue: a read of all records, and one of each queue's totals."""
        sums: dict[_Series, float] = {}
        unread = 0
        for name, queue in self._opened().items():
            if isinstance(queue, ShardqError):
                unread += 1
            elif not is_dead_queue(name):
                try:
                    # Stored first, so that the totals include the counts of this process.
                    queue._home.stats.store()
                    totals = stored_totals(queue._home.store, queue._home.register.totals_key)
                except StoreCorrupt:
                    unread += 1
                    continue
                for part in TOTALS:
                    series = f"shardq_{part}", (self._queues.name(name),)
                    sums[series] = sums.get(series, 0) + getattr(totals.totals, part)
        sums["shardq_queues_unread", ()] = unread
        return sums

    def _opened(self) -> dict[str, Queue | ShardqError]:
        if self._names is None:
            return {
                name: one
                for name, one in self._db._home.open_all(
                    lambda name: not is_dead_queue(name)
                ).items()
                if not isinstance(one, Settings)
            }
        found: dict[str, Queue | ShardqError] = {}
        for name in self._names:
            try:
                found[name] = self._db.queue(name, create=False)
            except (SchemaError, StoreCorrupt, UnknownQueue) as error:
                found[name] = error
        return found

    def _look(self) -> dict[_Series, float]:
        begun_us = self._clock.boot_us()
        views: list[QueueView] = []
        for observer in self._observers:
            # `_totals` counts the queues that cannot be read.
            with suppress(SchemaError, StoreCorrupt, UnknownQueue):
                views += observer.look()
        queues = {
            name: one for observer in self._observers for name, one in observer.queues.items()
        }
        dead = {one._home.register.dead_name for one in queues.values()}
        sums: dict[_Series, float] = {}
        for view in views:
            # A dead-letter queue without consumers is left out: its messages are counted as dead of
            # their queue, and wait for nobody, so no alert should fire.
            if not (view.name in dead and not view.members):
                self._add(sums, view)
        sums["shardq_look_seconds", ()] = (self._clock.boot_us() - begun_us) / 1e6
        return sums

    def _add(self, sums: dict[_Series, float], view: QueueView) -> None:
        """Add a queue; queues beyond the first 500 are shown as a sum, or by their largest age."""
        queue = self._queues.name(view.name)
        for (name, labels), value in _values(view).items():
            series = name, (queue, *labels)
            if name.endswith("_seconds"):
                sums[series] = max(sums.get(series, 0), value)
            else:
                sums[series] = sums.get(series, 0) + value

    def _look_ahead(self) -> dict[_Series, float]:
        """The messages due within an hour, and the fire times of schedules."""
        found: dict[_Series, float] = {}
        for name, queue in self._opened().items():
            if isinstance(queue, ShardqError) or is_dead_queue(name):
                continue
            series = "shardq_due_next_hour", (self._queues.name(name),)
            with suppress(SchemaError, StoreCorrupt, UnknownQueue):
                due = sum(count for _, count in queue.forecast("1h"))
                found[series] = found.get(series, 0) + due
                if not queue.settings.schedules_used:
                    continue
                for schedule in islice(queue.schedules, SCHEDULES_MAX):
                    labels = self._queues.name(name), self._schedules.name(schedule.name)
                    for part, at in (("last_fired", schedule.previous), ("next", schedule.next)):
                        if at is not None:
                            found[f"shardq_schedule_{part}_timestamp_seconds", labels] = (
                                at.timestamp()
                            )
        return found


def _values(view: QueueView) -> dict[_Series, float]:
    """The values of a queue, by metric and labels without the queue's own."""
    depth, members = view.depth, view.members
    states = {
        "ready": depth.ready,
        "waiting": depth.waiting,
        "in_flight": depth.in_flight,
        "dead": view.dead,
    }
    busy = sum(member.busy for member in members)
    threads = {"busy": busy, "idle": sum(member.threads for member in members) - busy}
    paused = Counter(pause.of for pause in pauses_of(view.settings, view.at_ms))
    # Messages that are due and run are no backlog.
    oldest_ms = view.lag_ms if depth.ready else 0
    return {
        **{("shardq_messages", (state,)): count for state, count in states.items()},
        **{("shardq_threads", (state,)): count for state, count in threads.items()},
        ("shardq_oldest_due_seconds", ()): oldest_ms / 1e3,
        ("shardq_paused", ()): int(view.settings.paused),
        **{("shardq_paused_names", (of,)): paused[of] for of in ("group", "task", "key")},
        **{
            ("shardq_limited_messages", (limit,)): view.limited.get(limit, 0)
            for limit in ("place", "rate", "queue", "task", "late", "pause")
        },
        ("shardq_workers", ()): len(members),
        ("shardq_leases", ()): sum(lane.owner is not None for lane in view.lanes),
        ("shardq_clock_offset_max_seconds", ()): view.settings.offset_ms / 1e3,
    }
