"""Rows read and not yet handed out: in a heap until due, then in order of priority.

```
 add ──► future (heap by due) ──due──► band 0, band 1, .. (heaps by due, row id) ──► take
   └── heads of groups ─► their turns, a line for each band (`turns.py`) ─────────────┘
```

Of a band the row that is due first is taken: the first of its heap, or the group whose turn it is.

Handler threads wait here, one of them until the very next due (`waiters.py`): a timer fires on its
millisecond, in the thread that handles it. There is no bound here: the reader never adds more rows
than it has room for.
"""

from __future__ import annotations

import heapq
import math
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol, TypeAlias

from shardq.engine.handing.delivery import Delivery
from shardq.engine.handing.turns import Turns, since_ms
from shardq.engine.handing.waiters import Waiters
from shardq.model.ids import order_key
from shardq.stores.store import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shardq.clock import Clock
    from shardq.engine.handing.delivery import HeadLine
    from shardq.engine.handing.gate import Gate
    from shardq.model.message import Row

_PASSED_MAX = 1_000


_Entry: TypeAlias = tuple[int, bytes, Delivery]
"""The due, or since when a shared row has waited; the sort key of the row id; the delivery."""


class Limiter(Protocol):
    """The limits of tasks. The caller holds the lock of `ready`."""

    def has_limits(self, row: Row) -> bool:
        """True if a row is paused or late, or its task has limits."""

    def limit(self, waiting: Iterable[Delivery]) -> None:
        """Record the limits of their tasks in rows that are about to wait for a handler."""


def _nothing(*_given: object) -> None:
    pass


class Ready:
    """Rows that were read and not handed out yet. Every method may be called from any thread.

    Args:
        bands: How many priorities the queue has.
        waiters: The threads that wait for the queue's rows, if they wait for rows of other queues
            too.
        on_take: Called with each delivery when it is taken.
        on_wait: Called when a thread begins to wait, because nothing is due.

    Attributes:
        bands: How many priorities the queue has.
        waiters: The threads that wait for the queue's rows.
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
        self._turns = Turns(clock, bands, self._look_again)
        self.is_weighted = False
        """True if bands take turns by weight; False: a band waits for all bands before it."""
        self._credits = [0] * bands
        self.gate: Gate | None = None
        """The queue's limits, if it has any."""
        self.tasks: Limiter | None = None
        """The limits of tasks, if there are any."""
        self._horizon: list[int | None] = [None] * bands
        self.is_stopped = False
        """True once no more rows are handed out."""
        self.on_wait = on_wait
        self._on_take = on_take
        self.given_us = 0
        """When a row that another member gave to this one last came due, time since boot."""

    def add(self, deliveries: list[Delivery], *, is_taken: bool = False) -> None:
        """Add rows, due or not yet.

        Args:
            deliveries: The deliveries of the rows.
            is_taken: True if the calling thread takes a row next, so that no other thread need
                wake.
        """
        if not deliveries:
            return
        now_ms = self._clock.now_ms()
        future: list[_Entry] = []
        due: dict[int, list[_Entry]] = {}
        is_given = False
        heads: list[Delivery] = []
        for one in deliveries:
            row = one.row
            if one.grouped:
                heads.append(one)
            elif row.due_ms > now_ms:
                future.append((row.due_ms, order_key(row.id), one))
            else:
                # A row that another member shared has a new due, and has waited since `since_ms`.
                # `Row.wanted_ms` is written out here, as a call for each row would cost too much.
                at_ms = row.due_ms
                if row.since_ms is not None:
                    at_ms, is_given = row.since_ms, True
                entry = (at_ms, order_key(row.id), one)
                due.setdefault(one.band, []).append(entry)
        with self._lock:
            if self.tasks is not None:
                heads += self._without_limited(due)
                is_given = is_given and any(
                    entry[2].row.since_ms is not None for entry in chain(*due.values())
                )
                self.tasks.limit(heads)
            if is_given:
                self.given_us = self._clock.boot_us()
            head = self._future[0][0] if self._future else NEVER
            _push(self._future, future)
            for band, entries in due.items():
                _push(self._due[band], entries)
            for one in heads:
                self._turns.add(one)
            if ((due or heads) and not is_taken) or (future and self._future[0][0] < head):
                # The leader waits for a later due: it must look again.
                self._look_again(len(deliveries))

    def offer(self, one: Delivery, *, is_taken: bool) -> None:
        """Add the head of a group, as `add` does."""
        with self._lock:
            if self.tasks is not None:
                self.tasks.limit([one])
            self._turns.add(one)
            if not is_taken:
                self._look_again()

    def hold(self, line: HeadLine, delay_ms: int) -> None:
        """Hand out no head of a group for so long, and no longer."""
        with self._lock:
            until_us = self._clock.boot_us() + 1_000 * delay_ms if delay_ms else 0
            self._turns.hold(line, until_us)
            self._look_again()

    def awaits_grant(self, line: HeadLine) -> bool:
        """True if a head of a group could be handed out if a token of its rate was granted."""
        with self._lock:
            return self._turns.awaits_grant(line)

    def release(self, line: HeadLine) -> None:
        """Hand out a head of a group, as a token of its rate was granted."""
        with self._lock:
            self._turns.release(line)
            self._look_again()

    def reopen(self) -> None:
        """Let waiting threads look again, as limits may allow another delivery."""
        with self._lock:
            self._turns.reopen()
            self._look_again()

    def _without_limited(self, due: dict[int, list[_Entry]]) -> list[Delivery]:
        """Take the jobs of tasks with limits out of due rows."""
        limited: list[Delivery] = []
        if self.tasks is None:
            return limited
        for band, entries in due.items():
            kept = []
            for entry in entries:
                if self.tasks.has_limits(entry[2].row):
                    limited.append(entry[2])
                else:
                    kept.append(entry)
            due[band] = kept
        return limited

    def _look_again(self, threads: int = 1) -> None:
        """Wake threads, one of which then waits for the first due or token."""
        self.waiters.leader = None
        self._changed.notify(threads)

    def take(self) -> Delivery | None:
        """Take the first row that is due; None if no row is."""
        with self._lock:
            return self._pop()

    def let_follow(self, head: Delivery, row: Row) -> bool:
        """Count a row that is handed out along with a head, if rates allow one more; else False."""
        with self._lock:
            if self.tasks is not None and self.tasks.has_limits(row):
                # It waits for them as the head of its group.
                return False
            if self.gate is not None and not self.gate.may_begin():
                return False
            bucket = None if head.line is None else head.line.bucket
            if bucket is not None and not bucket.take(self._clock.boot_us()):
                return False
            if self.gate is not None:
                self.gate.begin()
            return True

    def pop(self) -> Delivery | None:
        """Like `take`, but None once stopped. The caller holds the lock of the waiters."""
        return None if self.is_stopped else self._pop()

    def waiting_since(self) -> list[int]:
        """When each waiting thread began to wait, time since boot in microseconds."""
        return self.waiters.since()

    @property
    def is_threaded(self) -> bool:
        """True if threads wait here; False if the thread that steps the engine takes the rows."""
        return self.waiters.is_threaded

    def refuse(self) -> None:
        """Hand out no more rows; waiting threads notice this within a second, or by `stop`.

        No lock is taken: a signal handler may call this in a thread that holds the lock.
        """
        self.is_stopped = True

    def stop(self) -> None:
        """Hand out no more rows, and wake all waiting threads."""
        self.refuse()
        with self._lock:
            self._changed.notify_all()

    def set_horizon(self, horizon: list[int | None]) -> None:
        """Set the due up to which a band's rows may be taken: lagging lanes may have earlier."""
        with self._lock:
            if horizon != self._horizon:
                self._horizon = horizon
                self._let_go()

    def remove(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out the rows that `unwanted` accepts; returns them in order of due."""
        with self._lock:
            removed: list[Delivery] = []
            self._due = [_sift(heap, unwanted, removed) for heap in self._due]
            self._future = _sift(self._future, unwanted, removed)
            removed += self._turns.remove(unwanted)
            return sorted(removed, key=lambda one: (one.row.due_ms, order_key(one.row.id)))

    def __len__(self) -> int:
        with self._lock:
            return len(self._future) + sum(map(len, self._due)) + len(self._turns)

    def next_due_ms(self) -> int | None:
        """The due of the first row that can be taken at its due; None if there is no such row.

        A due row that waits because a lagging lane may have an earlier one does not count. If all
        due rows wait for their rates, it is the time of the first token.
        """
        with self._lock:
            self._promote()
            now_us = self._clock.boot_us()
            if self.gate is not None and (opens_us := self.gate.opens_us()) > now_us:
                wait_us = min(opens_us - now_us, 1_000_000)
                return self._clock.now_ms() + int(wait_us // 1_000) + 1
            for band, horizon in enumerate(self._horizon):
                first_ms = self._first_ms(band)
                if first_ms != NEVER and (horizon is None or first_ms <= horizon):
                    return first_ms
                if horizon is not None and not self.is_weighted:
                    break
            seconds = self._turns.seconds_to_next()
            token_ms = (
                NEVER if seconds == math.inf else self._clock.now_ms() + math.ceil(1e3 * seconds)
            )
            first_ms = min(token_ms, self._future[0][0] if self._future else NEVER)
            return None if first_ms == NEVER else first_ms

    def has_due(self) -> bool:
        """True if a row is due and not taken yet."""
        return self.due > 0

    @property
    def due(self) -> int:
        """How many rows are due and not taken yet; rows that wait for a rate do not count."""
        with self._lock:
            self._promote()
            return self._due_count()

    @property
    def held_back(self) -> int:
        """How many due rows the queue's limits hold back."""
        if self.gate is None:
            return 0
        with self._lock:
            self._promote()
            return self._due_count() if self.gate.holds_back else 0

    def _due_count(self) -> int:
        return sum(map(len, self._due)) + self._turns.due

    def has(self, count: int) -> bool:
        """True if `count` rows can be taken now; rows that wait for a lagging lane do not count."""
        with self._lock:
            self._promote()
            if self.gate is not None and not self.gate.may_begin():
                return False
            for band, (heap, horizon) in enumerate(zip(self._due, self._horizon, strict=True)):
                heads = self._turns.of_band(band)
                if horizon is not None:
                    ready = (entry for entry in heap if entry[0] <= horizon)
                    early = (one for one in heads if one.row.due_ms <= horizon)
                    count -= sum(1 for _ in islice(chain(ready, early), count))
                    if count <= 0 or not self.is_weighted:
                        return count <= 0
                    continue
                count -= len(heap) + sum(1 for _ in heads)
                if count <= 0:
                    return True
        return False

    def find_due(self, wanted: Callable[[Delivery], bool], most: int) -> tuple[int, int]:
        """Count the due rows that `wanted` accepts, and find since when the first has waited.

        It looks at `most` rows without groups. If more are due, all count as accepted once one of
        these is.

        Returns:
            The count, and since when, in epoch milliseconds; zeros if no row is accepted.
        """
        with self._lock:
            count = sum(map(len, self._due))
            looked_at = islice(chain.from_iterable(self._due), most)
            found = (entry[0] for entry in looked_at if wanted(entry[2]))
            if count > most:
                # The accepted row nearest the top of a heap has waited about the longest.
                first_ms = next(found, None)
                return (0, 0) if first_ms is None else (count, first_ms)
            dues_ms = list(found)
            return len(dues_ms), min(dues_ms, default=0)

    def first_due(
        self, count: int, wanted: Callable[[Delivery], bool], *, looks: int
    ) -> list[Delivery]:
        """The first due rows that `wanted` accepts, in the order in which handlers get them.

        The rows are not taken out. Rows that wait for a lagging lane are among them, as they are
        handed out soon.

        Args:
            count: The most rows to find.
            wanted: True for a row to find.
            looks: The most rows to look at.
        """
        with self._lock:
            return self._pick(count, wanted, looks, is_taken=False)

    def relinquish(
        self, count: int, wanted: Callable[[Delivery], bool], *, is_early: bool = False
    ) -> list[Delivery]:
        """Take out the first due rows that `wanted` accepts: no handler gets them any more.

        The rows are in the order in which handlers would get them. `count` + 1,000 rows are looked
        at, at most.

        Args:
            count: The most rows to take out.
            wanted: True for a row to take out.
            is_early: True to continue with rows that are not due yet, in order of due.
        """
        with self._lock:
            return self._pick(count, wanted, count + _PASSED_MAX, is_taken=True, is_early=is_early)

    def _pick(
        self,
        count: int,
        wanted: Callable[[Delivery], bool],
        looks: int,
        *,
        is_taken: bool,
        is_early: bool = False,
    ) -> list[Delivery]:
        """Find rows, for `first_due`; or take them out, for `relinquish`."""
        picked: list[Delivery] = []
        self._promote()
        heaps = list(zip(self._due, self._horizon, strict=True))
        if is_early:
            heaps.append((self._future, None))
        for heap, horizon in heaps:
            passed: list[_Entry] = []
            while heap and len(picked) < count and looks > 0:
                if is_taken and horizon is not None and heap[0][0] > horizon:
                    break
                looks -= 1
                # Pop and push: a search of the heap without them takes Python twice as long.
                entry = heapq.heappop(heap)
                is_wanted = wanted(entry[2])
                if is_wanted:
                    picked.append(entry[2])
                if not (is_wanted and is_taken):
                    passed.append(entry)
            _push(heap, passed)
            if len(picked) >= count or horizon is not None:
                # Bands are strict: rows of this band that are not read yet come before later bands.
                break
        return picked

    def waiting(self, until_ms: Mapping[int, int]) -> set[int]:
        """The lanes without groups with a row that waits here, due by their `until_ms`."""
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
        self._turns.promote()
        future = self._future
        if not future:
            return
        now_ms = self._clock.now_ms()
        while future and future[0][0] <= now_ms:
            entry = heapq.heappop(future)
            one = entry[2]
            if self.tasks is not None and self.tasks.has_limits(one.row):
                self.tasks.limit([one])
                self._turns.add(one)
                continue
            if one.row.since_ms is not None:
                self.given_us = self._clock.boot_us()
                entry = (one.row.since_ms, *entry[1:])
            heapq.heappush(self._due[one.band], entry)

    def _order(self) -> Iterable[int]:
        """The bands in the order in which they are asked for a row."""
        if not self.is_weighted:
            return range(self.bands)
        bands = [
            band
            for band, horizon in enumerate(self._horizon)
            if (first_ms := self._first_ms(band)) != NEVER
            and (horizon is None or first_ms <= horizon)
        ]
        if not bands:
            return ()
        # Smooth weighted round robin, as in nginx: each band gains its weight, the first pays all.
        for band in bands:
            self._credits[band] += self._weight(band)
        first = max(bands, key=self._credits.__getitem__)
        self._credits[first] -= sum(map(self._weight, bands))
        return (first,)

    def _weight(self, band: int) -> int:
        """The weight of a band: twice that of the next one."""
        return 1 << (self.bands - 1 - band)

    def _first_ms(self, band: int) -> int:
        """The due of the first of a priority band's due rows; `NEVER` if there is none."""
        heap = self._due[band]
        first_ms = heap[0][0] if heap else NEVER
        if self._turns.due and (head := self._turns.first(band)) is not None:
            return min(first_ms, since_ms(head))
        return first_ms

    def _pop(self) -> Delivery | None:
        # Before the gate: a thread that waits for a due or a token that is over would not wait.
        self._promote()
        if self.gate is not None and not self.gate.may_begin():
            return None
        turns = self._turns
        for band in self._order():
            heap = self._due[band]
            first_ms = heap[0][0] if heap else NEVER
            head = turns.first(band) if turns.due else None
            if head is not None:
                if (head_ms := since_ms(head)) < first_ms:
                    first_ms = head_ms
                else:
                    head = None
            horizon = self._horizon[band]
            if horizon is not None and first_ms > horizon:
                # Bands are strict: while a lagging lane may have an earlier row of this band, later
                # bands wait.
                return None
            if first_ms == NEVER:
                continue
            if head is None:
                one = heapq.heappop(heap)[2]
            else:
                one = head
                turns.take(one)
            # Under the lock, so that a stop cannot overlook this delivery.
            self._on_take(one)
            if self.gate is not None:
                self.gate.begin()
            return one
        return None

    def _let_go(self) -> None:
        # Polls call this often: a row that is not due wakes no thread, as the leader waits for it.
        if any(self._due) or self._turns.due:
            self._changed.notify_all()

    def seconds_to_next(self) -> float:
        """Seconds until a row comes due; infinite without one. The waiters' lock is held."""
        seconds = self._turns.seconds_to_next()
        if self.gate is not None and (opens_us := self.gate.opens_us()):
            wait_s = max(0.0, (opens_us - self._clock.boot_us()) / 1e6)
            if wait_s and self._due_count():
                return wait_s
        if not self._future:
            return seconds
        return min(seconds, max(0.0, (self._future[0][0] * 1_000 - self._clock.now_us()) / 1e6))


def _push(heap: list[_Entry], entries: list[_Entry]) -> None:
    if len(entries) > len(heap) // 8:
        # A page of rows is added at once in linear time; each push would cost a logarithm.
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
