"""Corrects the totals after crashes of processes, by counting every row.

```
 before: put, gone ─► every row is counted ─► all counts made by then are stored ─► after

 the rows that the totals miss lie between                   rows - (put after - gone before)
                                                       and   rows - (put before - gone after)
```

If 0 lies between the two, nothing is proven. Else the totals are corrected by the nearer of them;
at rest the two are equal. The result is written by compare and set: of two processes that mend at
once, one succeeds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardq.errors import StoreError
from shardq.inspection.depth import PURGE_MS, DepthCounter
from shardq.inspection.scan import forget_empty
from shardq.records.folded import drop_damaged, fold, stored_totals, write_folded
from shardq.records.membership import heartbeats

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from shardq.clock import Clock
    from shardq.inspection.census import Check
    from shardq.inspection.depth import Inventory
    from shardq.records.folded import Stored
    from shardq.records.keeper import Keeper
    from shardq.records.register import Register
    from shardq.records.stats import StatsLog, Totals
    from shardq.stores.store import Store

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_LOOK_SOON_S = 1.0
_RATE_US = 6_000_000
"""Processes store their totals every 2 s: over less time a steady rate would seem to vary."""
_LOOK_QUIET_S = 10.0
"""The pause if nothing was counted for 20 s: a consumer at rest hardly reads more for it."""
_QUIET_MS = 20_000
_FOLD_US = 60_000_000
_FORGET_US = 600_000_000
"""How often empty shards are removed from the index."""
_OLD_MS = 600_000
_AGAIN_MS = 3_600_000
"""How often rows are counted without a reason: a process may die before its totals are stored."""
_AGAIN_SHARE = 1_000
_TURN_US = 100_000
_SHARE = 20
"""Counting every row takes at most one part in this many of a busy queue's time."""
_SHORT_US = 500_000
_DOUBLINGS_MAX = 12
"""How often the pause doubles, up to an hour, if counts that begin at rest prove only a part."""
_FIRST_MS = 250
"""A process that begins to count has stored that by then; clocks may differ by as much."""
_WAIT_S = 0.5
_STORED_MS = 2_000
"""A process that counts stores its totals at least this often."""
_TRIES = 3
_COUNTS_AGAIN = 2
"""How often `check --all` repeats its count if others put or settled messages meanwhile."""
_MOVES = ("delivered", "retried", "snoozed", "parked", "late_repaired", "replaced")
"""Counters of moves: a moved row may be counted twice, or not at all."""


@dataclass(frozen=True, slots=True)
class BegunCount:
    """The totals at the beginning of a count of every row.

    Attributes:
        stored: The totals.
        at_ms: The time, epoch milliseconds.
        damaged: The faults of unreadable rows, which are deleted.
    """

    stored: Stored
    at_ms: int
    damaged: tuple[str, ...] = ()


class Mender:
    """Corrects the totals of one queue.

    Args:
        store: The store.
        clock: Its clock.
        register: The queue's record.
        store_own: Stores the counts of this process in the queue.
        own: The counts of this process, to distinguish them from others'.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        *,
        store_own: Callable[[], object] = lambda: None,
        own: StatsLog | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._store_own = store_own
        self._own = own

    def read(self) -> Stored:
        """The queue's totals, including all counts of this process.

        Raises:
            StoreCorrupt: If totals are damaged.
        """
        self._store_own()
        return stored_totals(self._store, self._register.totals_key)

    def check(self, visit: Callable[[], tuple[Check, Inventory]]) -> Check:
        """Visit every partition, and correct the totals by the rows found.

        Args:
            visit: Visits the partitions.
        """
        begun = self.begin(drops_damaged=True)
        check, found = visit()
        mended, is_proven = self._mend(begun, found)
        counter = DepthCounter(self._store, self._clock, self._register)
        for _ in range(_COUNTS_AGAIN):
            if is_proven:
                break
            again = self.begin()
            more, is_proven = self._mend(again, last_of(counter.inventory()))
            mended += more
        return replace(check, mended=mended, is_proven=is_proven, damaged=begun.damaged)

    def _mend(self, begun: BegunCount, found: Inventory) -> tuple[int, bool]:
        counted_ms = self._clock.now_ms()
        while wait_s := self.wait_s(begun, found, counted_ms):
            self._clock.sleep(wait_s)
        return self.end(begun, found)

    def begin(self, *, drops_damaged: bool = False) -> BegunCount:
        """Read the totals, before every row is counted.

        Args:
            drops_damaged: True to delete unreadable rows of totals.

        Raises:
            StoreCorrupt: If a row cannot be read, and is not deleted.
        """
        damaged: list[str] = []
        if drops_damaged:
            key = self._register.totals_key
            damaged = drop_damaged(self._store, key, self._clock.now_ms())
        at_ms = self._clock.now_ms()
        return BegunCount(self.read(), at_ms, tuple(damaged))

    def wait_s(self, begun: BegunCount, found: Inventory, counted_ms: int) -> float:
        """Seconds to wait before asking again; 0: the totals can be corrected now.

        Counts made during the count of rows may not be stored yet.

        Args:
            begun: The totals before the count.
            found: The result of the count.
            counted_ms: The end of the count, epoch milliseconds.
        """
        after = self.read()
        now_ms = self._clock.now_ms()
        own = self._own and self._own.member
        counting = [one for one in after.counting(now_ms) if one.member != own]
        missing, is_all = _missing(begun.stored.totals, found, after.totals)
        if not missing and not (is_all and counting):
            # Counts that are stored later only widen the bounds.
            return 0.0
        if now_ms - counted_ms < _FIRST_MS:
            return _FIRST_MS / 1_000
        is_due = any(
            one.at_ms < counted_ms + _FIRST_MS
            and now_ms < max(one.at_ms + _STORED_MS, counted_ms) + _WAIT_S * 1_000
            for one in counting
        )
        return _WAIT_S if is_due else 0.0

    def end(self, begun: BegunCount, found: Inventory) -> tuple[int, bool]:
        """Correct the totals by the stored rows.

        Args:
            begun: The totals before.
            found: The result of the count.

        Returns:
            By how many messages the totals were too low, as far as that is proven; below 0: too
            high. And True if that is the exact number.
        """
        for _ in range(_TRIES):
            after = self.read()
            if after.mended_ms != begun.stored.mended_ms:
                # Another process has mended meanwhile, by totals that have changed since.
                break
            missing, is_all = _missing(begun.stored.totals, found, after.totals)
            now_ms = self._clock.now_ms()
            made = after.mended(
                missing,
                counted_ms=begun.at_ms,
                farthest_ms=found.farthest_ms,
                layout=self._register.layout,
                now_ms=now_ms,
            )
            made.doomed, made.purged_then = found.doomed, after.totals.purged
            made.former, made.rough = found.former, int(not is_all)
            if write_folded(self._store, after, made, now_ms):
                if missing:
                    self._log(begun, missing)
                return missing, is_all
        return 0, False

    def doom(self) -> None:
        """Note that a purge has reached all stored messages.

        The purge is valid without this note: then its messages may count as waiting until every row
        is counted.
        """
        try:
            for _ in range(_TRIES):
                stored = self.read()
                present, purged = max(stored.totals.present, 0), stored.totals.purged
                made = stored.folded
                made.doomed, made.purged_then = present, purged
                if write_folded(self._store, stored, made, self._clock.now_ms()):
                    return
        except StoreError as error:
            log.warning(
                "queue %s is purged, but its totals do not tell: %s", self._register.name, error
            )

    def _log(self, begun: BegunCount, missing: int) -> None:
        gone = ", ".join(sorted({one.member for one in begun.stored.gaps(begun.at_ms)}))
        log.info(
            "queue %s: its totals told of %d messages %s than there are%s; mended",
            self._register.name,
            abs(missing),
            "fewer" if missing > 0 else "more",
            f", since these ended while they counted: {gone}" if gone else "",
        )


def last_of(counting: Generator[float, None, Inventory]) -> Inventory:
    """The result of a count, made without pauses."""
    while True:
        try:
            next(counting)
        except StopIteration as end:
            found: Inventory = end.value
            return found


def _missing(before: Totals, found: Inventory, after: Totals) -> tuple[int, bool]:
    """How many messages the totals miss, as far as that is proven, and True if that is exact.

    A message that was put, settled or moved during the count may have been counted or not.
    """
    told = after.mended
    moved: int = max(sum(getattr(after, name) - getattr(before, name) for name in _MOVES), 0)
    # Messages that the counter itself has ended existed when they were counted.
    gone_after = after.gone - found.ended
    least = found.rows - (after.put - before.gone) - told - moved
    most = found.rows - (before.put - gone_after) - told + moved
    return max(least, 0) or min(most, 0), least == most


def _is_at_rest(stored: Stored, now_ms: int) -> bool:
    """True if no process has counted anything for a while."""
    rested_ms = _STORED_MS + _WAIT_S * 1_000
    return all(now_ms - one.at_ms > rested_ms for one in stored.counting(now_ms))


class Upkeep:
    """Mends and folds a queue's totals and clears its index now and then, beside a consumer.

    Of several consumers only the first by name does so.

    Args:
        store: The store.
        clock: Its clock.
        register: The queue's record.
        member: The consumer's name.
        chores: Calls it regularly; None if no threads may run.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        member: str,
        chores: Keeper | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._member = member
        # This process stores its counts in time, as others do.
        self._mender = Mender(store, clock, register)
        self._counter = DepthCounter(store, clock, register)
        self._chores = chores
        self._mending: Generator[float, None, None] | None = None
        self._ended_us = self._fold_from_us = self._again_from_us = clock.boot_us()
        self._forget_from_us = clock.boot_us()
        self._took_us = self._unproven = 0
        self._put_us = self._put = 0
        self._put_rate = 0.0
        self._is_stopped = False

    def put_rate(self) -> float:
        """The messages put into the queue per second, when its totals were last read."""
        return self._put_rate

    def start(self) -> None:
        """Begin regular calls of `step`."""
        if self._chores is not None:
            self._chores.within(_LOOK_S, self.step, self._about)

    def stop(self) -> None:
        """End the calls."""
        self._is_stopped = True
        if self._chores is not None:
            self._chores.forget(self.step)

    def step(self) -> float | None:
        """Check the queue, or continue a count for a tenth of a second.

        Returns:
            Seconds until the next call; None: it is stopped.

        Raises:
            StoreError: The interrupted work begins anew with the next call.
        """
        mending, self._mending = self._mending, None
        if self._is_stopped:
            return None
        if mending is None:
            return self._look()
        until_us = self._clock.boot_us() + _TURN_US
        for wait_s in mending:
            if self._is_stopped:
                return None
            if wait_s or self._clock.boot_us() >= until_us:
                self._mending = mending
                return wait_s
        return _LOOK_SOON_S

    def _about(self) -> str:
        return f"what is counted in queue {self._register.name}"

    def _look(self) -> float:
        now_ms, boot_us = self._clock.now_ms(), self._clock.boot_us()
        stored = stored_totals(self._store, self._register.totals_key)
        self._note_put(stored.totals.put, boot_us)
        is_at_rest = _is_at_rest(stored, now_ms)
        # At rest one count proves everything, unless a message arrives now and then.
        pauses = 1 << self._unproven if is_at_rest else _SHARE
        pause_us = min(pauses * self._took_us, _AGAIN_MS * 1_000)
        is_to_mend = boot_us >= self._ended_us + pause_us and (
            self._needs_count(stored, now_ms) or self._is_time(stored, now_ms)
        )
        is_to_fold = boot_us >= self._fold_from_us and any(
            abs(now_ms - row.at_ms) >= _OLD_MS for row in (*stored.rows, *stored.left_out)
        )
        is_to_forget = boot_us >= self._forget_from_us
        if (is_to_mend or is_to_fold or is_to_forget) and not self._is_first(stored, now_ms):
            # The first consumer does it, and its result will show.
            self._again_from_us = self._fold_from_us = boot_us + _FOLD_US
            self._forget_from_us = boot_us + _FORGET_US
        elif is_to_mend or is_to_fold or is_to_forget:
            if is_to_forget:
                self._forget_from_us = boot_us + _FORGET_US
                forget_empty(self._store, self._register, now_ms)
            if is_to_fold:
                self._fold_from_us = boot_us + _FOLD_US
                fold(self._store, self._clock, self._register)
            if is_to_mend:
                self._mending = self._mend(is_at_rest=is_at_rest)
                return 0.0
        if stored.folded.rough:
            return _LOOK_SOON_S
        is_busy = any(abs(now_ms - row.at_ms) < _QUIET_MS for row in stored.rows)
        return _LOOK_S if is_busy else _LOOK_QUIET_S

    def _note_put(self, put: int, boot_us: int) -> None:
        passed_us = boot_us - self._put_us
        if passed_us < _RATE_US:
            return
        if self._put_us:
            self._put_rate = max(put - self._put, 0) * 1e6 / passed_us
        self._put_us, self._put = boot_us, put

    def _needs_count(self, stored: Stored, now_ms: int) -> bool:
        """True if totals report missing messages, or the remains of a purge are unknown."""
        if stored.gaps(now_ms):
            return True
        # While messages arrive and leave, each count proves a little more; a long one is not worth
        # it.
        is_short = self._took_us <= _SHORT_US
        if stored.folded.rough and (is_short or _is_at_rest(stored, now_ms)):
            return True
        purged_ms = self._register.settings.purged_before_us // 1_000
        return purged_ms > 0 and stored.mended_ms < purged_ms + PURGE_MS <= now_ms

    def _is_time(self, stored: Stored, now_ms: int) -> bool:
        """True if it is time to count without a reason, at rest, when a count proves the most."""
        is_old = abs(now_ms - stored.mended_ms) >= _AGAIN_MS
        is_due = self._clock.boot_us() >= self._again_from_us
        return is_old and is_due and _is_at_rest(stored, now_ms)

    def _is_first(self, stored: Stored, now_ms: int) -> bool:
        beats = heartbeats(self._store, self._register.members_key)
        # Heartbeats outlive their members by 10 s; the totals report crashes earlier.
        crashed = {one.member for one in stored.gaps(now_ms) if not one.is_late}
        names = (name for name, beat in beats.items() if beat.threads and name not in crashed)
        return self._member == min(names, default=self._member)

    def _mend(self, *, is_at_rest: bool) -> Generator[float, None, None]:
        begun_us = self._clock.boot_us()
        try:
            begun = self._mender.begin()
            found = yield from self._counter.inventory()
        finally:
            now_us = self._clock.boot_us()
            self._ended_us, self._took_us = now_us, now_us - begun_us
            self._again_from_us = now_us + _AGAIN_SHARE * (now_us - begun_us)
        counted_ms = self._clock.now_ms()
        while wait_s := self._mender.wait_s(begun, found, counted_ms):
            yield wait_s
        _, is_proven = self._mender.end(begun, found)
        if is_proven:
            self._unproven = 0
        elif is_at_rest:
            self._unproven = min(self._unproven + 1, _DOUBLINGS_MAX)
