"""Counts of a stretch of time: totals and a histogram of lateness.

Each process writes its own rows; `observer.py` turns the rows into sums and rates.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
from msgspec.structs import replace

from shardq import locks
from shardq.errors import StoreCorrupt, StoreError, shown
from shardq.records.membership import name_in_child
from shardq.stores.tables import STATS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.clock import Clock
    from shardq.model.shard import Layout
    from shardq.records.keeper import Keeper
    from shardq.records.meter import Meter
    from shardq.stores.store import Registers

_STORE_EVERY_US = 2_000_000
_STORE_UNTIMED_US = 5_000_000
_CLOSE_AFTER_US = 4_000_000
_LATE_US = 5_000_000
"""A process that stores nothing for this long counts as crashed."""
_REST_US = 300_000_000
"""A row that got no counts for this long gets no more: it is half of the age at which rows are
folded."""
_SET_US = 2_000_000
_FIRST_S = 0.05
"""Pause before the first store, so that a process that puts one message and ends stores totals
once."""
_MINUTE_MS = 60_000
RECENT_MINUTES = 5
NEAR_MS = 300_000
"""Rows due within this time do not raise `farthest_ms`: `depth` always counts at least so far
ahead."""
_SUB = 8
"""Buckets for each doubling: a quantile is exact to within 9 %."""
_MENDED_MIN = -(1 << 52)
_BUCKETS_MAX = 64 * _SUB
"""The number of buckets into which values of 64 bits can fall."""
Count = Annotated[int, msgspec.Meta(ge=0)]
Bucket = Annotated[int, msgspec.Meta(ge=0, lt=_BUCKETS_MAX)]


class Lateness(msgspec.Struct, array_like=True):
    """A histogram of milliseconds from due to hand-out, in buckets that grow by 9 %.

    The first bucket, of 0.1 ms, also counts all shorter times.
    """

    buckets: dict[Bucket, Count] = {}

    def add(self, late_us: int) -> None:
        """Count one delivery."""
        # bit_length gives the doubling, and the three bits below the highest one give the eighth
        # within it.
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
        """How many deliveries were counted."""
        return sum(self.buckets.values())

    def quantile(self, fraction: float) -> float | None:
        """Milliseconds by which a fraction of deliveries was late at most; None without deliveries.

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


class Totals(msgspec.Struct, omit_defaults=True):
    """Counts of one stretch of time of one process, or their sum.

    Attributes:
        put: Messages that entered the queue.
        delivered: Deliveries begun.
        acked: Messages finished.
        retried: Deliveries that failed and were placed again.
        snoozed: Deliveries that were postponed without an attempt.
        parked: Deliveries that ran longer than `hold`, or on through a shutdown.
        buried: Messages moved to the dead-letter queue, or gone where there is none.
        forwarded: Messages moved to another queue; in a dead-letter queue also those put back.
        cancelled: Messages cancelled by receipt.
        expired: Messages that were too old to be delivered.
        purged: Messages deleted by a purge.
        dropped: Rows of messages that had ended already, deleted instead of delivered.
        late_repaired: Late writes that their writer moved to now.
        replaced: Messages that were moved, edited or put anew by their key.
        mended: Messages that full counts have found beyond the other counts; below 0 if they found
            fewer.
        farthest_ms: An upper bound of all dues ever placed, epoch milliseconds.
        lateness: Lateness of the deliveries.
    """

    put: int = 0
    delivered: int = 0
    acked: int = 0
    retried: int = 0
    snoozed: int = 0
    parked: int = 0
    buried: int = 0
    forwarded: int = 0
    cancelled: int = 0
    expired: int = 0
    purged: int = 0
    dropped: int = 0
    late_repaired: int = 0
    replaced: int = 0
    mended: int = 0
    farthest_ms: int = 0
    lateness: Lateness = msgspec.field(default_factory=Lateness)

    def __post_init__(self) -> None:
        # Checked of stored forms too: no process counts below 0.
        least = min(getattr(self, name) for name in _COUNTS if name != "mended")
        if min(least, self.farthest_ms, self.mended - _MENDED_MIN) < 0:
            raise ValueError("a count is below 0")

    def merge(self, other: Totals) -> None:
        """Add the counts and the lateness of other totals."""
        self.count(other)
        self.lateness.merge(other.lateness)

    def count(self, other: Totals) -> None:
        """Add the counts of other totals, without their lateness."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.farthest_ms = max(self.farthest_ms, other.farthest_ms)

    @property
    def gone(self) -> int:
        """How many messages have left the queue."""
        ended = self.acked + self.buried + self.forwarded
        return ended + self.cancelled + self.expired + self.purged

    @property
    def present(self) -> int:
        """How many messages are in the queue; below 0 while ends are counted earlier than puts."""
        return self.put - self.gone + self.mended

    def to_json(self) -> str:
        """The stored form; counts of zero are left out."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str, queue: str, key: tuple[int, str] | None = None) -> Self:
        """Totals, or a row with them, from their stored form.

        Args:
            text: The stored form.
            queue: The queue's name, for the text of an error.
            key: The row's minute and member, for the text of an error; None if not known.

        Raises:
            StoreCorrupt: If shardq never writes such a form.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (ValueError, TypeError, RecursionError, msgspec.DecodeError) as error:
            row = (
                "" if key is None else f" in the row of minute {key[0]} and member {shown(key[1])}"
            )
            name = queue.partition("#")[0]
            raise StoreCorrupt(
                f"totals of queue {queue!r} are damaged{row}: {shown(text)}; run `shardq check "
                f"--all {name}`, which deletes that row and counts what is there."
            ) from error


class StatsRow(Totals):
    """The totals of one process, as stored, with the lateness of the whole stretch.

    Attributes:
        minute: The minute with which the stretch begins, by the row's key.
        member: The process, and the number of its row, by the row's key.
        recent: Minute since the epoch -> lateness of deliveries in it; the last 5.
        recent_put: Minute since the epoch -> messages put in it, to within 2 s; the last 5.
        at_ms: When the row was stored, epoch milliseconds.
        open: 1 if the process was counting when it stored the row, and meant to store it again.
        late_ms: When the row was last stored too late, epoch milliseconds; 0 if never.
    """

    minute: Count = 0
    member: str = ""
    recent: dict[Count, Lateness] = {}
    recent_put: dict[Count, Count] = {}
    at_ms: Count = 0
    open: int = 0
    late_ms: Count = 0

    @property
    def is_open(self) -> bool:
        """True if the process was counting when it stored the row."""
        return self.open != 0

    @property
    def process(self) -> str:
        """The name of the process, the same as in its heartbeats."""
        name, _, number = self.member.rpartition("~")
        return name if name and number.isdecimal() else self.member

    @property
    def digest(self) -> str:
        """Eight characters that tell the row from others of its queue: 10^14 are possible."""
        key = f"{self.minute}/{self.member}".encode()
        return base64.b64encode(hashlib.blake2b(key, digest_size=6).digest()).decode()


_COUNTS = tuple(
    name for name in Totals.__struct_fields__ if name not in ("lateness", "farthest_ms")
)


class StatsLog:
    """Adds up one process's totals of a queue, and stores them every few seconds.

    ```
     count ─► store, open ─► count ─► store, open ─► at rest ─► store, closed
        at most 50 ms    each 2 s at most         4 s
    ```

    An open row that is over 5 s old belongs to a process that has crashed or was frozen: counts of
    its last 2 s are missing. A frozen process that continues marks the row as late and begins
    another, because a full count may have found the missing messages by then.

    A row covers an hour at most. After its hour, after 5 minutes of rest, or once the clock was
    set, a closed row gets no more counts, because other processes may have folded it.

    Args:
        key: Returns the name under which the queue's totals are stored, which changes when the
            queue is dropped and made anew; None for the queue's own name.
        keeper: Calls `keep` when it is due, while counts arrive; None if the owner calls `keep`.
        is_timed: True if `keep` is called when it is due. If not, no row is ever open, and totals
            are due every 5 s.
        meter: Also counts this process's lateness; None without a meter.

    Attributes:
        totals: The row under way, without the lateness of the last minute; count through `add`.
        on_hour: Called by the storing thread when a row has ended with its hour; the function must
            only schedule work.
    """

    def __init__(
        self,
        store: Registers,
        clock: Clock,
        layout: Layout,
        member: str,
        key: Callable[[], str] | None = None,
        *,
        keeper: Keeper | None = None,
        is_timed: bool = False,
        meter: Meter | None = None,
    ) -> None:
        self.totals: StatsRow = StatsRow()
        self.on_hour: Callable[[], object] | None = None
        self._store = store
        self._clock = clock
        self._layout = layout
        self._key = key or (lambda: layout.queue)
        self._keeper = keeper
        self._meter = meter
        self._is_timed = is_timed or keeper is not None
        self._member = member
        self._lock = locks.new()
        self._storing = locks.new()
        self._added: deque[dict[str, int]] = deque()
        self._is_adding = False
        locks.in_child(self, StatsLog._begin_child)
        self._changed = False
        """True if the store lacks counts of the row under way."""
        self._first_us = self._stored_us = self._since_boot_us = 0
        """When the first counts that the store lacks were added; when a row was last stored; and
        how the clock was set then."""
        self._ended: StatsRow | None = None
        """The last row, until it is stored; None once it is."""
        self._rows = 0
        self._begin_queue(self._key())

    @property
    def member(self) -> str:
        """The name under which this process stores its totals."""
        return self._member

    # Counting -------------------------------------------------------------------------------------

    def add(self, **counts: int) -> None:
        """Add counts, from any thread, and from a signal's handler."""
        self._added.append(counts)
        with self._lock:
            is_first = self._add_up()
        if is_first and self._keeper is not None:
            self._keeper.within(max(self._seconds_left() or 0, _FIRST_S), self.keep, self._about)

    def note_farthest(self, due_ms: int) -> None:
        """Raise the bound of all dues to the due of a row, if the bound is lower.

        Args:
            due_ms: The row's due, epoch milliseconds.
        """
        if due_ms > self.totals.farthest_ms:
            # Raise it by more than needed, or each of many timers put in order would raise it.
            self.add(farthest_ms=due_ms + NEAR_MS)

    @property
    def has_rows(self) -> bool:
        """True if this process has stored any row."""
        return self.totals.at_ms > 0 or self._rows > 1

    @property
    def lateness(self) -> Lateness:
        """The histogram of this minute. One thread adds deliveries to it."""
        minute = self._clock.now_ms() // _MINUTE_MS
        if minute != self._late_minute:
            with self._lock:
                if not self._changed and self._is_over():
                    self._leave_row()
                self._turn(minute)
        return self._late

    def count_late(self, late_us: Sequence[int]) -> None:
        """Count deliveries by their lateness in microseconds; one thread at a time."""
        lateness = self.lateness
        for one in late_us:
            lateness.add(one)
        if self._meter is not None and self._meter.is_on:
            self._meter.late(self._layout.queue, late_us)

    # Storing --------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """True if the owner must call `keep`; never True if a keeper calls it."""
        return self._keeper is None and self._seconds_left() == 0

    def keep(self) -> float | None:
        """Store the totals if they are due.

        Returns:
            Seconds until totals are due again; None while no counts arrive.

        Raises:
            StoreUnavailable, StoreTimeout: The totals are still due.
        """
        if self._seconds_left() == 0:
            self._write(is_last=not self._changed)
        return self._seconds_left()

    def store(self) -> None:
        """Store the totals if they have changed; when this returns, the store has them.

        Raises:
            StoreUnavailable, StoreTimeout: The totals are stored with the next counts.
        """
        self._write(is_last=False)

    def close(self) -> None:
        """Store the totals as complete. Idempotent.

        Raises:
            StoreUnavailable, StoreTimeout: The totals are stored with the next counts.
        """
        self._write(is_last=True)

    def _write(self, *, is_last: bool) -> None:
        # Write one row at a time, or the older text may be written last.
        locks.refuse_to_wait(self._storing)
        with self._storing:
            with self._lock:
                self._add_up()
                before = self._changed, self.totals.open, self._first_us
                stored_us = self._stored_us
                row = self._row_to_write(is_last=is_last)
                ended, key = self._ended, self._stored_key
                made = None if row is None else self._made(row)
            try:
                if ended is not None:
                    self._note(key, ended)
                    self._ended = None
                if made is not None:
                    self._note(key, made)
            except StoreError:
                with self._lock:
                    if row is not None:
                        was_changed, row.open, self._first_us = before
                        self._changed = self._changed or was_changed
                        if self._keeper is not None:
                            # Keep the time of the last store: a keeper backs off by itself.
                            self._stored_us = stored_us
                raise

    def _note(self, key: str, row: StatsRow) -> None:
        self._store.note(STATS, (key,), {(row.minute, row.member): row.to_json()})

    def _row_to_write(self, *, is_last: bool) -> StatsRow | None:
        """The row under way, if the store lacks its counts; a row that is over becomes `_ended`."""
        row = self.totals
        if not self._changed and not (is_last and row.open):
            return None
        boot_us, now_ms = self._clock.boot_us(), self._clock.now_ms()
        # A closed keeper does not call `keep` any more.
        is_timed = self._is_timed and not (self._keeper and self._keeper.is_closed)
        is_late = self._changed and boot_us - self._first_us > _LATE_US
        if is_timed and (is_late or (row.open and self._was_set())):
            row.late_ms = now_ms
        is_hour_over = self._hour() != row.minute
        # A row that has ended is stored before the next one.
        is_over = (is_hour_over or row.late_ms > 0) and self._ended is None
        row.at_ms, row.open = now_ms, int(is_timed and not is_last and not is_over)
        self._stored_us, self._since_boot_us = boot_us, self._clock.now_us() - boot_us
        self._changed = False
        if not is_over:
            return row
        self._end_row()
        if is_hour_over and self.on_hour is not None:
            self.on_hour()
        return None

    def _made(self, row: StatsRow) -> StatsRow:
        """A copy of the row under way, with the lateness of this minute."""
        minute = row.at_ms // _MINUTE_MS
        self._turn(minute)
        self._note_puts(minute)
        # Copy the histogram, which is atomic, as another thread may add to it meanwhile.
        running = Lateness(dict(self._late.buckets))
        lateness = Lateness(dict(row.lateness.buckets))
        lateness.merge(running)
        recent = row.recent | ({minute: running} if running.buckets else {})
        return replace(row, lateness=lateness, recent=recent, recent_put=dict(row.recent_put))

    # Rows -----------------------------------------------------------------------------------------

    def _begin_queue(self, key: str) -> None:
        """Count for the queue that has the name now; nobody reads totals of a dropped queue."""
        self._stored_key = key
        self._ended = None
        self._changed = False
        self._first_us = self._stored_us = self._clock.boot_us()
        self._begin_row(farthest_ms=0)

    def _begin_row(self, farthest_ms: int) -> None:
        """Begin a new row, with counts of zero; the caller has the lock."""
        # No two rows of a process may share a name, whatever the clock is set to.
        name = f"{self._member}~{self._rows}" if self._rows else self._member
        self._rows += 1
        self.totals = StatsRow(farthest_ms=farthest_ms, minute=self._hour(), member=name)
        self._put_before = 0
        self._late, self._late_minute = Lateness(), self._clock.now_ms() // _MINUTE_MS

    def _end_row(self) -> None:
        """Begin a new row, and let this one be stored before it; the caller has the lock."""
        self._ended = self._made(self.totals)
        self._begin_row(self.totals.farthest_ms)

    def _is_over(self) -> bool:
        """True if the stored row may be folded soon, and so gets no more counts."""
        row = self.totals
        if not row.at_ms:
            return False
        if self._clock.boot_us() - self._stored_us > _REST_US:
            return True
        return not row.open and (self._hour() != row.minute or self._was_set())

    def _leave_row(self) -> None:
        """Begin a new row after a row that is over; the caller has the lock."""
        row = self.totals
        if row.open and self._ended is None:
            # This process, or its keeper, was stopped for minutes.
            row.at_ms, row.open = self._clock.now_ms(), 0
            self._end_row()
        else:
            self._begin_row(row.farthest_ms)

    def _was_set(self) -> bool:
        """True if the clock was set since the row was last stored."""
        since_boot_us = self._clock.now_us() - self._clock.boot_us()
        return abs(since_boot_us - self._since_boot_us) > _SET_US

    def _add_up(self) -> bool:
        """Move counts into the totals; the caller has the lock.

        Returns:
            True if these are the first counts that the store lacks.
        """
        added = self._added
        if self._is_adding:
            # A signal's handler calls this: the call that it has interrupted moves these counts
            # too.
            return False
        self._is_adding = True
        try:
            key = self._key()
            if key != self._stored_key:
                self._begin_queue(key)
            if not added:
                return False
            is_first = not self._changed
            if is_first:
                if self._is_over():
                    self._leave_row()
                elif not self.totals.at_ms:
                    self.totals.minute = self._hour()
                self._first_us = self._clock.boot_us()
                self._changed = True
            while added:
                self._add_one(added.popleft())
            return is_first
        finally:
            self._is_adding = False

    def _add_one(self, counts: dict[str, int]) -> None:
        totals = self.totals
        for name, count in counts.items():
            if name == "farthest_ms":
                totals.farthest_ms = max(totals.farthest_ms, count)
            else:
                setattr(totals, name, getattr(totals, name) + count)

    def _turn(self, minute: int) -> None:
        """Begin the histogram of a minute; the caller has the lock."""
        if minute == self._late_minute:
            return
        row = self.totals
        if self._late.buckets:
            row.lateness.merge(self._late)
            row.recent.setdefault(self._late_minute, Lateness()).merge(self._late)
        self._late, self._late_minute = Lateness(), minute
        row.recent = {
            one: late for one, late in row.recent.items() if 0 < minute - one < RECENT_MINUTES
        }

    def _note_puts(self, minute: int) -> None:
        """Count the puts since the last store for this minute, so that no put reads the clock."""
        row = self.totals
        put, self._put_before = row.put - self._put_before, row.put
        if put:
            row.recent_put[minute] = row.recent_put.get(minute, 0) + put
        row.recent_put = {
            one: count
            for one, count in row.recent_put.items()
            if 0 <= minute - one < RECENT_MINUTES
        }

    def _seconds_left(self) -> float | None:
        """Seconds until totals are due; 0 if they are due now; None if nothing must be stored."""
        if self._changed and self._is_timed and not self.totals.open:
            return 0
        if self._changed:
            wait_us = _STORE_EVERY_US if self._is_timed else _STORE_UNTIMED_US
        elif self.totals.open:
            wait_us = _CLOSE_AFTER_US
        else:
            return None if self._ended is None else 0
        return max(self._stored_us + wait_us - self._clock.boot_us(), 0) / 1e6

    def _about(self) -> str:
        return f"the totals of queue {self._layout.queue}"

    def _hour(self) -> int:
        return self._layout.hour_of(self._clock.now_ms())

    def _begin_child(self) -> None:
        """Count for the child alone, because each row has one writer."""
        self._added.clear()
        self._is_adding = False
        self._member, self._rows = name_in_child(self._member), 0
        self._begin_queue(self._stored_key)
