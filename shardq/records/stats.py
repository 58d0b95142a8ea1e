"""What happened in a stretch of time, counted: totals and a histogram of lateness.

One process writes one row; sums and rates over rows are `observer.py`'s.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from shardq import locks
from shardq.errors import StoreCorrupt, StoreError, shown
from shardq.records.membership import name_in_child

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.model.shard import Layout
    from shardq.stores.store import Store

_STORE_EVERY_US = 5_000_000
_STORE_QUIET_US = 1_000_000
_HOUR_MS = 3_600_000
_SUB = 8
"""Buckets for each doubling: a quantile is right to within 9 %."""
_BUCKETS_MAX = 64 * _SUB
"""Of what fits in 64 bits."""


class Lateness:
    """A histogram of milliseconds between due and handed out, in buckets that grow by 9 %.

    The bucket of 0.1 ms counts everything below it.
    """

    __slots__ = ("buckets",)

    def __init__(self, buckets: dict[int, int] | None = None) -> None:
        self.buckets: dict[int, int] = buckets or {}

    def add(self, late_us: int) -> None:
        """Count one delivery."""
        # bit_length finds the doubling; the three bits below it, the eighth of it.
        value = max(100, late_us)
        shift = value.bit_length() - 4
        bucket = shift * _SUB + (value >> shift) - _SUB
        buckets = self.buckets
        buckets[bucket] = buckets.get(bucket, 0) + 1

    def merge(self, other: Lateness) -> None:
        """Add another histogram's counts."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    @property
    def count(self) -> int:
        """Deliveries counted."""
        return sum(self.buckets.values())

    def quantile(self, fraction: float) -> float | None:
        """Milliseconds that this fraction of the deliveries was at most late; None without any.

        Args:
            fraction: 0 to 1; 0.5 is the median.
        """
        total = self.count
        if not total:
            return None
        wanted = fraction * total
        reached = 0
        bucket = 0
        for bucket in sorted(self.buckets):
            reached += self.buckets[bucket]
            if reached >= wanted:
                break
        shift, eighth = divmod(bucket, _SUB)
        return ((eighth + _SUB + 1) << shift) / 1_000


@dataclass(slots=True)
class Totals:
    """Counts of one stretch of time of one process, or their sum.

    Attributes:
        put: Messages that entered the queue.
        delivered: Deliveries begun.
        acked: Messages finished.
        retried: Deliveries that failed and were placed again.
        snoozed: Deliveries that were put off without an attempt.
        parked: Deliveries that outlived `hold` or a shutdown.
        buried: Messages moved to the dead-letter queue.
        cancelled: Messages cancelled by receipt.
        purged: Messages deleted by a purge.
        dropped: Rows of messages that had ended already, deleted instead of delivered.
        late_repaired: Late writes that their writer moved to now.
        lateness: Lateness of the deliveries.
    """

    put: int = 0
    delivered: int = 0
    acked: int = 0
    retried: int = 0
    snoozed: int = 0
    parked: int = 0
    buried: int = 0
    cancelled: int = 0
    purged: int = 0
    dropped: int = 0
    late_repaired: int = 0
    lateness: Lateness = field(default_factory=Lateness)

    def merge(self, other: Totals) -> None:
        """Add another's counts."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lateness.merge(other.lateness)

    @property
    def gone(self) -> int:
        """Messages that have left the queue."""
        return self.acked + self.buried + self.cancelled + self.purged

    def to_json(self) -> str:
        """The stored form; counts of zero are left out."""
        stored: dict[str, object] = {
            name: count for name in _COUNTS if (count := getattr(self, name))
        }
        if self.lateness.buckets:
            stored["lateness"] = self.lateness.buckets
        return json.dumps(stored, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, queue: str) -> Totals:
        """Totals from their stored form; counts of a newer shardq are passed over.

        Args:
            text: That form.
            queue: Whose they are, for an error.

        Raises:
            StoreCorrupt: If it is no such form.
        """
        try:
            stored = json.loads(text)
            lateness = {int(k): v for k, v in stored.pop("lateness", {}).items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged(queue, text) from error
        counts = {k: v for k, v in stored.items() if k in _COUNTS}
        numbers = *counts.values(), *lateness.values()
        if any(type(one) is not int or one < 0 for one in numbers) or not all(
            0 <= bucket < _BUCKETS_MAX for bucket in lateness
        ):
            raise _damaged(queue, text)
        return cls(**counts, lateness=Lateness(lateness))


def stored_totals(store: Store, queue: str) -> Totals:
    """What has happened in a queue since it was made, as its processes have stored it.

    Raises:
        StoreCorrupt: If one of them cannot be read.
    """
    total = Totals()
    for _, _, text in store.stats(queue):
        total.merge(Totals.from_json(text, queue))
    return total


def _damaged(queue: str, text: object) -> StoreCorrupt:
    return StoreCorrupt(
        f"totals of queue {queue!r} are damaged: {shown(text)}; delete that row of its statistics, "
        f"or restore the store from a copy."
    )


_COUNTS = tuple(f.name for f in fields(Totals) if f.name != "lateness")


class StatsLog:
    """Adds up one process's totals of a queue and stores them, every 5 s at most.

    A row covers an hour, so that a year of one process is 8,760 rows. After a crash the totals of
    its last 5 s are missing.

    Args:
        key: Gives the name under which the queue's totals are stored, which changes when it is
            dropped and made anew; its own name where None.

    Attributes:
        totals: What has happened in the hour that is under way; count through `add`.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        layout: Layout,
        member: str,
        key: Callable[[], str] | None = None,
    ) -> None:
        self.totals = Totals()
        self._store = store
        self._clock = clock
        self._layout = layout
        self._key = key or (lambda: layout.queue)
        self._stored_key = self._key()
        self._member = member
        self._lock = locks.new()
        self._storing = locks.new()
        self._added: deque[dict[str, int]] = deque()
        self._stored_us = clock.boot_us()
        self._changed = self._is_adding = False
        self._hour_minute = self._hour()
        locks.in_child(self, StatsLog._begin_child)

    def add(self, **counts: int) -> None:
        """Count."""
        self._added.append(counts)
        with self._lock:
            self._follow()
            self._changed = True
            self._add_up()

    def is_due(self, *, quiet: bool = False) -> bool:
        """Whether 5 s have passed since the totals were stored; where nothing happens, 1 s."""
        every_us = _STORE_QUIET_US if quiet else _STORE_EVERY_US
        return self._changed and self._clock.boot_us() - self._stored_us >= every_us

    def store(self) -> None:
        """Store the totals, where they have changed; when this returns, the store has them.

        Raises:
            StoreUnavailable, StoreTimeout: They are stored with what is counted next.
        """
        # One at a time, or the older text may be written last.
        locks.refuse_to_wait(self._storing)
        with self._storing:
            with self._lock:
                self._follow()
                if not self._changed:
                    return
                self._add_up()
                self._changed = False
                self._stored_us = self._clock.boot_us()
                key, minute, text = self._stored_key, self._hour_minute, self.totals.to_json()
            try:
                self._store.write_stats(key, minute, self._member, text)
            except StoreError:
                with self._lock:
                    self._changed = True
                raise
            with self._lock:
                hour = self._hour()
                # What was counted during the write belongs to the old row, and is stored with it.
                # Never back to a row that was stored as whole, wherever the clock was set to.
                if hour > minute and not self._changed:
                    self._hour_minute = hour
                    self.totals = Totals()

    def _follow(self) -> None:
        """Count for the queue that has the name by now; under the lock."""
        key = self._key()
        if key != self._stored_key:
            # What is counted of one that was dropped nobody asks for any more.
            self._stored_key, self.totals, self._changed = key, Totals(), False

    def _add_up(self) -> None:
        """Add what was counted to the totals; the lock is held."""
        added = self._added
        if self._is_adding:
            # A signal's handler: what it has interrupted goes on to this.
            return
        self._is_adding = True
        try:
            while added:
                totals = self.totals
                for name, count in added.popleft().items():
                    setattr(totals, name, getattr(totals, name) + count)
        finally:
            self._is_adding = False

    def _begin_child(self) -> None:
        """A forked child counts for itself: one writer a row."""
        self._added.clear()
        self._changed = self._is_adding = False
        self._member = name_in_child(self._member)
        self.totals = Totals()

    def _hour(self) -> int:
        now_ms = self._clock.now_ms()
        return self._layout.minute_of(now_ms - now_ms % _HOUR_MS)
