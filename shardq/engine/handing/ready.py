"""Rows read and not yet handed out: in a heap until due, then in order of priority.

```
 add ──► future (heap by due) ──due──► band 0, band 1, .. (heaps by due, row id) ──► take
```

Handler threads wait here, one of them for the very next due (`waiters.py`): so a timer fires on its
millisecond without a thread between. Bounds are the reader's: it never adds more than it has room
for.
"""

from __future__ import annotations

import heapq
import math
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias

from shardq.engine.handing.delivery import Delivery
from shardq.engine.handing.waiters import Waiters
from shardq.model.ids import order_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardq.clock import Clock


_PASSED_MAX = 1_000
_NEVER_MS = 1 << 62


_Entry: TypeAlias = tuple[int, bytes, Delivery]
"""Due, or from when it has waited; order of the row id; delivery."""


def _nothing(*_given: object) -> None:
    pass


class Ready:
    """The rows between reader and handlers. Every method may be called from any thread.

    Args:
        bands: Priorities of the queue.
        waiters: The threads that wait for its rows, where they wait for those of others too.
        on_take: Called with each delivery as it is taken.
        on_wait: Called when a thread begins to wait, as nothing is due.

    Attributes:
        bands: Likewise.
        waiters: The threads that wait for its rows.
    """

    def __init__(
        self,
        clock: Clock,
        bands: int,
        waiters: Waiters | None = None,
        *,
        on_take: Callable[[Delivery], None] = _nothing,
        on_wait: Callable[[], None] = _nothing,
    ) -> None:
        self._clock = clock
        self.waiters = waiters or Waiters(clock)
        self._lock = self.waiters.lock
        self._changed = self.waiters.changed
        self._future: list[_Entry] = []
        self.bands = bands
        self._due: list[list[_Entry]] = [[] for _ in range(bands)]
        self._horizon: list[int | None] = [None] * bands
        self.is_stopped = False
        """True if nothing more is handed out."""
        self.on_wait = on_wait
        self._on_take = on_take
        self.given_us = 0
        """When a row came due here last that another member has shared, time since boot."""

    def add(self, deliveries: list[Delivery], *, is_taken: bool = False) -> None:
        """Add rows, due or not yet.

        Args:
            deliveries: They.
            is_taken: Whether the calling thread takes a row next, so that no other need wake.
        """
        if not deliveries:
            return
        now_ms = self._clock.now_ms()
        future: list[_Entry] = []
        due: dict[int, list[_Entry]] = {}
        is_given = False
        for one in deliveries:
            row = one.row
            if row.due_ms > now_ms:
                future.append((row.due_ms, order_key(row.id), one))
            else:
                # What was shared has waited for longer than its due says. Of each row: no call.
                at_ms = row.due_ms
                if row.since_ms is not None:
                    at_ms, is_given = row.since_ms, True
                entry = (at_ms, order_key(row.id), one)
                due.setdefault(one.band, []).append(entry)
        if is_given:
            self.given_us = self._clock.boot_us()
        with self._lock:
            head = self._future[0][0] if self._future else _NEVER_MS
            _push(self._future, future)
            for band, entries in due.items():
                _push(self._due[band], entries)
            if (due and not is_taken) or (future and self._future[0][0] < head):
                # The leader waits for a later due: it must look again.
                self.waiters.leader = None
                self._changed.notify(len(deliveries))

    def offer(self, place: tuple[int, bytes], one: Delivery, *, is_taken: bool) -> None:
        """Add one row that is due, as `add` does."""
        with self._lock:
            heapq.heappush(self._due[one.band], (*place, one))
            if not is_taken:
                self.waiters.leader = None
                self._changed.notify()

    def take(self) -> Delivery | None:
        """The first row that is due, or None."""
        with self._lock:
            return self._pop()

    def pop(self) -> Delivery | None:
        """The same, unless it is stopped; the lock of the waiters is held."""
        return None if self.is_stopped else self._pop()

    def wait(self, stopping: Callable[[], bool]) -> Delivery | None:
        """The first row that is due, as soon as there is one; None when stopped.

        Args:
            stopping: Asked before each wait.
        """
        found = self.waiters.wait((self,), stopping)
        return None if found is None else found[1]

    def waiting_since(self) -> list[int]:
        """When each thread that waits began to, time since boot in microseconds."""
        return self.waiters.since()

    @property
    def is_threaded(self) -> bool:
        """True if threads wait here; else who steps the engine takes rows itself."""
        return self.waiters.is_threaded

    def refuse(self) -> None:
        """Hand out nothing more; who waits learns of it within a second, or by `stop`.

        It takes no lock: a signal's handler may have interrupted what others wait for in here.
        """
        self.is_stopped = True

    def stop(self) -> None:
        """Hand out nothing more, and wake all that wait."""
        self.refuse()
        with self._lock:
            self._changed.notify_all()

    def set_horizon(self, horizon: list[int | None]) -> None:
        """Hand out rows of each band only up to this due: a lagging lane may have earlier ones."""
        with self._lock:
            if horizon != self._horizon:
                self._horizon = horizon
                self._let_go()

    def remove(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out and return what was not handed out yet and answers True, in order of due."""
        with self._lock:
            removed: list[Delivery] = []
            self._due = [_sift(heap, unwanted, removed) for heap in self._due]
            self._future = _sift(self._future, unwanted, removed)
            return sorted(removed, key=lambda one: (one.row.due_ms, order_key(one.row.id)))

    def __len__(self) -> int:
        return len(self._future) + sum(map(len, self._due))

    def next_due_ms(self) -> int | None:
        """The due of the first row that can be taken then; None without any.

        What waits for an earlier row of its band, which is on its way, can be taken once that came.
        """
        with self._lock:
            for heap, horizon in zip(self._due, self._horizon, strict=True):
                is_first = horizon is None or (heap and heap[0][0] <= horizon)
                if heap and is_first:
                    return heap[0][0]
                if not is_first:
                    break
            return self._future[0][0] if self._future else None

    def has_due(self) -> bool:
        """Whether a row is due that nobody has taken."""
        return self.due > 0

    @property
    def due(self) -> int:
        """How many rows are due that nobody has taken."""
        with self._lock:
            self._promote()
            return sum(map(len, self._due))

    @property
    def at_hand(self) -> int:
        """How many rows can be taken now: no earlier row of a lane that lags is on its way."""
        count = 0
        with self._lock:
            self._promote()
            for heap, horizon in zip(self._due, self._horizon, strict=True):
                if horizon is not None:
                    return count + sum(entry[0] <= horizon for entry in heap)
                count += len(heap)
        return count

    def find_due(self, wanted: Callable[[Delivery], bool], most: int) -> tuple[int, int]:
        """How many of these `wanted` accepts, and from which due on the first has waited.

        It looks at `most` of them. Where there are more, one that it accepts stands for all.

        Returns:
            Their number and epoch milliseconds; zeros without any.
        """
        with self._lock:
            count = sum(map(len, self._due))
            looked_at = islice(chain.from_iterable(self._due), most)
            found = (entry[0] for entry in looked_at if wanted(entry[2]))
            if count > most:
                # What stands first in a heap is about the first of it.
                first_ms = next(found, None)
                return (0, 0) if first_ms is None else (count, first_ms)
            dues_ms = list(found)
            return len(dues_ms), min(dues_ms, default=0)

    def first_due(
        self, count: int, wanted: Callable[[Delivery], bool], *, looks: int
    ) -> list[Delivery]:
        """The first due rows that `wanted` accepts, in the order in which handlers get them.

        They stay here. So do those whose lanes lag, which are handed out a little later.

        Args:
            count: How many at most.
            wanted: Which of them.
            looks: At how many rows it looks at most.
        """
        found: list[Delivery] = []
        with self._lock:
            self._promote()
            for heap, horizon in zip(self._due, self._horizon, strict=True):
                passed: list[_Entry] = []
                while heap and len(found) < count and looks > 0:
                    looks -= 1
                    # To look for them in their heap takes Python twice as long as this.
                    entry = heapq.heappop(heap)
                    passed.append(entry)
                    if wanted(entry[2]):
                        found.append(entry[2])
                _push(heap, passed)
                if len(found) >= count or horizon is not None:
                    # Bands are strict here too: rows of this one are on their way.
                    break
        return found

    def relinquish(
        self, count: int, wanted: Callable[[Delivery], bool], *, is_early: bool = False
    ) -> list[Delivery]:
        """Take out the first due rows that `wanted` accepts: no handler gets them any more.

        In the order in which handlers would. It looks at `count` and 1,000 more at most.

        Args:
            count: How many at most.
            wanted: Which of them.
            is_early: Whether to go on with those that are not due yet, the first first.
        """
        taken: list[Delivery] = []
        looks = count + _PASSED_MAX
        with self._lock:
            self._promote()
            heaps = list(zip(self._due, self._horizon, strict=True))
            if is_early:
                heaps.append((self._future, None))
            for heap, horizon in heaps:
                passed: list[_Entry] = []
                while heap and len(taken) < count and looks > 0:
                    if horizon is not None and heap[0][0] > horizon:
                        break
                    looks -= 1
                    entry = heapq.heappop(heap)
                    if wanted(entry[2]):
                        taken.append(entry[2])
                    else:
                        passed.append(entry)
                _push(heap, passed)
                if len(taken) >= count or horizon is not None:
                    # Bands are strict here too: rows of this one are on their way.
                    break
        return taken

    def waiting(self, until_ms: Mapping[int, int]) -> set[int]:
        """Those of lanes that have a row, due until then, which waits for a handler."""
        sought, found = dict(until_ms), set()
        with self._lock:
            self._promote()
            for heap in self._due:
                for due_ms, _, one in heap:
                    lane = one.row.shard.lane
                    if due_ms <= sought.get(lane, -1):
                        found.add(lane)
                        del sought[lane]
                        if not sought:
                            return found
        return found

    def _promote(self) -> None:
        future = self._future
        if not future:
            return
        now_ms = self._clock.now_ms()
        while future and future[0][0] <= now_ms:
            entry = heapq.heappop(future)
            one = entry[2]
            if one.row.since_ms is not None:
                self.given_us = self._clock.boot_us()
                entry = (one.row.since_ms, *entry[1:])
            heapq.heappush(self._due[one.band], entry)

    def _pop(self) -> Delivery | None:
        self._promote()
        for band, heap in enumerate(self._due):
            horizon = self._horizon[band]
            if horizon is not None and not (heap and heap[0][0] <= horizon):
                # Bands are strict: while an earlier row of this band is on its way, later bands
                # wait.
                return None
            if heap:
                one = heapq.heappop(heap)[2]
                # Under the lock, so that no moment is left in which a stop could overlook it.
                self._on_take(one)
                return one
        return None

    def _let_go(self) -> None:
        # Every poll comes here; what is not due yet wakes the leader when it is.
        if any(self._due):
            self._changed.notify_all()

    def seconds_to_next(self) -> float:
        """Seconds until a row comes due, or for ever; the lock of the waiters is held."""
        if not self._future:
            return math.inf
        return max(0.0, (self._future[0][0] * 1_000 - self._clock.now_us()) / 1e6)


def _push(heap: list[_Entry], entries: list[_Entry]) -> None:
    if len(entries) > len(heap) // 8:
        # A page at once: linear, where pushes would cost a logarithm each.
        heap += entries
        heapq.heapify(heap)
    else:
        for entry in entries:
            heapq.heappush(heap, entry)


def _sift(
    heap: list[_Entry], unwanted: Callable[[Delivery], bool], removed: list[Delivery]
) -> list[_Entry]:
    kept = [entry for entry in heap if not unwanted(entry[2])]
    if len(kept) == len(heap):
        return heap
    removed += [one for _, _, one in heap if unwanted(one)]
    heapq.heapify(kept)
    return kept
