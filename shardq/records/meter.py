"""The measures of one process, which no store keeps: run times, lateness, store times.

```
 engines ── run times and lateness, a batch at a time ──┐
 calls of the store ── their time, their error ─────────┼──► Meter ──► counted(), a copy in JSON
 a server ── requests, batches ─────────────────────────┘
```

A meter that is off measures nothing. `shardq.metrics` turns it on, and names what it counts.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, TypeAlias

from shardq import locks
from shardq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.clock import Clock
    from shardq.stores.store import Store

NAMES_MAX = 500
"""How many names of queues, or of tasks, are counted apart; later names are counted as `OTHER`."""
OTHER = "other"
BOUNDS_US = tuple(
    round(seconds * 1e6)
    for seconds in (
        *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1, 2.5, 5, 10, 30, 60, 300, 1_800, 3_600),
    )
)
"""Upper bounds of the buckets of times, inclusive; a last bucket has all longer times."""
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""Upper bounds of the buckets of batch sizes, in calls."""
RUN, LATE, STORE, HTTP, BATCH, ERRORS = "run", "late", "store", "http", "batch", "errors"
_MANY = 20
_VERBS = (
    *("insert", "delete", "find", "move", "edit", "read", "count"),
    *("total", "rows_in", "seek", "occupied", "occupied_queues", "next_minute", "mend_index"),
    *("take", "renew", "release", "locks", "lane_locks", "waiting", "list_minutes"),
    *("note", "notes", "notes_of", "erase", "records", "write_records"),
    *("record", "recorded"),
)
"""The store's methods that are timed. `indexed`, `shards` and `history` are not: they return before
they read."""

Labels: TypeAlias = tuple[str, ...]
Counted: TypeAlias = dict[str, list[tuple[list[str], list[float]]]]
"""Kind of measure -> its labels, and its buckets followed by the sum of all values, in
microseconds; only the sum if there are no buckets."""


class Known:
    """The first 500 names of one kind; all other names become `other`. From any thread."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def name(self, name: str) -> str:
        """The name itself if it is among the first 500, else `other`.

        >>> known = Known()
        >>> [known.name(f"queue-{number}") for number in range(502)][-3:]
        ['queue-499', 'other', 'other']
        """
        if name in self._names:
            return name
        if len(self._names) >= NAMES_MAX:
            return OTHER
        self._names.add(name)
        return name


class Meter:
    """The counts of one connection of this process. From any thread.

    Attributes:
        is_on: True if the meter measures.
        queues: Names of queues that are counted apart.
        tasks: Names of tasks that are counted apart.
        gauges: Name of a metric -> returns its value now.
    """

    def __init__(self) -> None:
        self.is_on: bool = False
        self._has_store = False
        self.queues: Known = Known()
        self.tasks: Known = Known()
        self.gauges: dict[str, Callable[[], float]] = {}
        self._counts: dict[tuple[str, Labels], list[float]] = {}
        self._lock = locks.new()
        self._calls: dict[int, int] = {}
        """Thread -> when its present wait for the store began, time since boot."""
        self._ended: dict[int, int] = {}
        """Thread -> when the store last answered the thread, time since boot."""
        locks.in_child(self, Meter._begin_child)

    def turn_on(self, store: Store, clock: Clock) -> None:
        """Measure from now on. Idempotent.

        Args:
            store: The store whose calls are timed.
            clock: The clock that times the calls.
        """
        self.is_on = True
        self.time_store(store, clock)

    def time_store(self, store: Store, clock: Clock) -> None:
        """Time the calls of a store from now on. Idempotent."""
        with self._lock:
            if self._has_store:
                return
            self._has_store = True
        for verb in _VERBS:
            # Replace the methods of the store itself, as all parts of the connection have it
            # already.
            setattr(store, verb, self._timed(verb, getattr(store, verb), clock))

    def observe(
        self, what: str, labels: Labels, values: Sequence[int], bounds: Sequence[int] = BOUNDS_US
    ) -> None:
        """Count values of one kind.

        Args:
            what: What was measured.
            labels: The labels of the measure.
            values: Microseconds, or calls.
            bounds: The upper bounds of the buckets, always the same for one kind.
        """
        with self._lock:
            counts = self._counts.get((what, labels))
            if counts is None:
                counts = self._counts[what, labels] = [0] * (len(bounds) + 2)
            counts[-1] += sum(values)
            if len(values) < _MANY:
                for value in values:
                    counts[bisect_left(bounds, value)] += 1
                return
            # For a large batch this takes a tenth of the time for each value.
            ordered, before = sorted(values), 0
            for place, bound in enumerate(bounds):
                until = bisect_right(ordered, bound)
                counts[place] += until - before
                before = until
            counts[len(bounds)] += len(ordered) - before

    def add(self, what: str, labels: Labels, count: int = 1) -> None:
        """Count events."""
        with self._lock:
            counts = self._counts.setdefault((what, labels), [0])
            counts[0] += count

    def late(self, queue: str, late_us: Sequence[int]) -> None:
        """Count deliveries of a queue by their lateness, microseconds."""
        self.observe(LATE, (self.queues.name(queue),), late_us)

    def counted(self) -> Counted:
        """A copy of all counts."""
        with self._lock:
            found: Counted = {}
            for (what, labels), counts in self._counts.items():
                found.setdefault(what, []).append((list(labels), counts.copy()))
            return found

    def store_calls_us(self, thread_id: int) -> tuple[int | None, int]:
        """When a thread called the store, and when it got the last answer, times since boot.

        Returns:
            When its present wait began, None if it does not wait; and when it got the last answer,
            0 for never.
        """
        return self._calls.get(thread_id), self._ended.get(thread_id, 0)

    def _timed(self, verb: str, call: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
        labels, calls = (verb,), self._calls

        def timed(*args: Any, **named: Any) -> Any:
            begun_us, me = clock.boot_us(), threading.get_ident()
            # A method may call another one of the store: only the outer call counts.
            if me in calls:
                return call(*args, **named)
            calls[me] = begun_us
            try:
                return call(*args, **named)
            except StoreError as error:
                self.add(ERRORS, (type(error).__name__,))
                raise
            finally:
                ended_us = self._ended[me] = clock.boot_us()
                calls.pop(me, None)
                self.observe(STORE, labels, (ended_us - begun_us,))

        return timed

    def _begin_child(self) -> None:
        self._counts.clear()
        self._calls.clear()
        self._ended.clear()


def merged(*parts: Counted) -> Counted:
    """The sum of the counts of several processes.

    >>> merged({"errors": [(["StoreTimeout"], [2])]}, {"errors": [(["StoreTimeout"], [1])]})
    {'errors': [(['StoreTimeout'], [3])]}
    """
    sums: dict[tuple[str, Labels], list[float]] = {}
    for part in parts:
        for what, rows in part.items():
            for labels, counts in rows:
                key = what, tuple(labels)
                before = sums.get(key)
                sums[key] = (
                    list(counts)
                    if before is None
                    else [one + more for one, more in zip(before, counts, strict=True)]
                )
    found: Counted = {}
    for (what, names), counts in sums.items():
        found.setdefault(what, []).append((list(names), counts))
    return found
