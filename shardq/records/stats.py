"""What happened in a stretch of time, counted: totals and a histogram of lateness.

One process writes one row; sums and rates over rows are `observer.py`'s.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

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
FAR_MS = 1 << 52
"""Later than any due."""
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
        mended: Messages that a full count has found beside those counted here; below 0: so many
            were missing.
        farthest_ms: No due that was ever placed is later, epoch milliseconds; `FAR_MS` where an
            older shardq has placed some and does not tell.
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
    mended: int = 0
    farthest_ms: int = 0
    lateness: Lateness = field(default_factory=Lateness)

    def merge(self, other: Totals) -> None:
        """Add another's counts."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.mended += other.mended
        self.farthest_ms = max(self.farthest_ms, other.farthest_ms)
        self.lateness.merge(other.lateness)

    @property
    def gone(self) -> int:
        """Messages that have left the queue."""
        return self.acked + self.buried + self.cancelled + self.purged

    @property
    def present(self) -> int:
        """Messages that are in the queue; below 0 where what they entered by is not counted yet."""
        return self.put - self.gone + self.mended

    def to_json(self, **more: object) -> str:
        """The stored form; counts of zero are left out.

        Args:
            more: What else to store; what is None or empty is left out as well.
        """
        stored = {name: getattr(self, name) for name in (*_COUNTS, "mended", "farthest_ms")}
        stored |= {"lateness": self.lateness.buckets} | more
        return json.dumps({k: v for k, v in stored.items() if v}, separators=(",", ":"))

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
            return cls.of(json.loads(text))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(text, queue) from error

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Totals:
        """Totals of what their stored form says.

        Raises:
            ValueError, TypeError, AttributeError: If it is no such form.
        """
        counts = {name: whole(stored.get(name, 0)) for name in _COUNTS}
        return cls(
            **counts,
            mended=whole(stored.get("mended", 0), least=-FAR_MS),
            farthest_ms=whole(stored.get("farthest_ms", 0)),
            lateness=histogram(stored.get("lateness", {})),
        )


def whole(value: Any, *, least: int = 0) -> int:
    """A stored number.

    Raises:
        ValueError: If it is none, or below the least.
    """
    if type(value) is not int or value < least:
        raise ValueError(f"no count: {shown(value)}")
    return value


def histogram(stored: dict[str, Any]) -> Lateness:
    """A stored histogram.

    Raises:
        ValueError, AttributeError: If it is none.
    """
    buckets = {whole(int(bucket)): whole(count) for bucket, count in stored.items()}
    if any(bucket >= _BUCKETS_MAX for bucket in buckets):
        raise ValueError("no histogram")
    return Lateness(buckets)


def damaged(
    text: object, queue: str, *, minute: int | None = None, member: str = ""
) -> StoreCorrupt:
    """The error of totals that cannot be read.

    Args:
        text: Them.
        queue: Whose they are.
        minute: Of their row; None where it is not known.
        member: Of their row.
    """
    row = "" if minute is None else f" in the row of minute {minute} and member {shown(member)}"
    return StoreCorrupt(
        f"totals of queue {queue!r} are damaged{row}: {shown(text)}; run `shardq check --all "
        f"{queue.partition('#')[0]}`, which deletes that row and counts what is there."
    )


_COUNTS = tuple(
    one.name for one in fields(Totals) if one.name not in ("lateness", "mended", "farthest_ms")
)
KNOWN = {*_COUNTS, "mended", "farthest_ms", "lateness", "recent", "at_ms", "open", "late_ms"}
"""What this release stores of a process."""


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
