"""Corrects the totals after crashes of processes, by counting every row.

```
 before: put, gone ─► every row is counted ─► all counts made by then are stored ─► after

 the rows that the totals miss lie between                   rows - (put after - gone before)
                                                       and   rows - (put before - gone after)
```

If 0 lies between these bounds, nothing is proven. Else the totals are corrected by the bound nearer
to 0; at rest both are equal. The result is written by compare and set: of two processes that mend
at once, one succeeds. `records/folded.py` explains the counters.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

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
    from shardq.lifecycle.home import QueueHome
    from shardq.records.folded import Folded, Stored
    from shardq.records.register import Register
    from shardq.records.stats import StatsLog, Totals
    from shardq.stores.store import Store

T = TypeVar("T")

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_LOOK_SOON_S = 1.0
_RATE_US = 6_000_000
"""Processes store their totals every 2 s: over less time a steady rate would seem to vary."""
_LOOK_QUIET_S = 10.0
"""Seconds between looks if nothing was counted for 20 s: a consumer at rest reads little."""
_QUIET_MS = 20_000
_FOLD_US = 60_000_000
_FORGET_US = 600_000_000
"""How often empty shards are removed from the index."""
_OLD_MS = 600_000
_AGAIN_MS = 3_600_000
"""How often rows are counted without a reason: a process may die before its totals are stored."""
_SHARE, _SHARE_AGAIN = 20, 1_000
"""A count of every row may take a 20th of the time; without a reason, a 1,000th."""
_SHORT_US = 500_000
_TURN_US = 100_000
_FIRST_S = 0.25
"""A process that begins to count has stored this fact within this time."""
_STORED_S = 2.5
"""A process has stored its counts within this time: 2 s, and 0.5 s by which clocks may differ."""
_TRIES = 3
_COUNTS_AGAIN = 2
"""How often `check --all` repeats its count if others put or settled messages meanwhile."""
_MOVES = ("delivered", "retried", "snoozed", "parked", "late_repaired", "replaced")
"""Counters of moves: a moved row may be counted twice, or not at all."""

Mending: TypeAlias = "Generator[float, None, tuple[int, bool]]"
"""Yields the seconds after which it can continue. Returns the number of messages by which the
totals were provably too low, or, below 0, too high; and True if the number is exact."""


class Mender:
    """Corrects the totals of one queue.

    Args:
        store: The store.
        clock: The store's clock.
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

        Unreadable rows of totals are deleted.

        Args:
            visit: Visits the partitions.
        """
        key = self._register.totals_key
        damaged = drop_damaged(self._store, key, self._clock.now_ms())
        at_ms, before = self._clock.now_ms(), self.read()
        check, found = visit()
        mended, is_proven = result_of(self._end(at_ms, before, found), self._clock)
        counter = DepthCounter(self._store, self._clock, self._register)
        for _ in range(_COUNTS_AGAIN):
            if is_proven:
                break
            more, is_proven = result_of(self.mend(counter.inventory()), self._clock)
            mended += more
        return replace(check, mended=mended, is_proven=is_proven, damaged=tuple(damaged))

    def mend(self, counting: Generator[float, None, Inventory]) -> Mending:
        """Count every row, and correct the totals.

        Args:
            counting: Counts the rows.

        Raises:
            StoreCorrupt: If totals are damaged.
        """
        at_ms, before = self._clock.now_ms(), self.read()
        found = yield from counting
        return (yield from self._end(at_ms, before, found))

    def _end(self, at_ms: int, before: Stored, found: Inventory) -> Mending:
        """Correct the totals by a count of rows that began at `at_ms`, after `before` was read."""
        after = self.read()
        own = None if self._own is None else self._own.member
        if _others_count(after, own, self._clock.now_ms()):
            # Counts made during the count of rows may not be stored yet.
            yield _STORED_S
        elif _missing(before.totals, found, after.totals)[0]:
            yield _FIRST_S
            if _others_count(self.read(), own, self._clock.now_ms()):
                yield _STORED_S
        for _ in range(_TRIES):
            after = self.read()
            if after.folded.mended_ms != before.folded.mended_ms:
                # Another process has mended meanwhile, by totals that have changed since.
                break
            missing, is_all = _missing(before.totals, found, after.totals)
            made = after.settled(self._register.layout, self._clock.now_ms())
            made.mended += missing
            made.mended_ms = at_ms
            made.farthest_ms = max(made.farthest_ms, found.farthest_ms)
            made.doomed, made.purged_then = found.doomed, after.totals.purged
            made.former, made.rough = found.former, int(not is_all)
            if self._write(after, made):
                if missing:
                    self._log(before, at_ms, missing)
                return missing, is_all
        return 0, False

    def doom(self) -> None:
        """Note that a purge has reached all stored messages.

        The purge is valid without this note. Without it, the messages may count as waiting until
        every row is counted.
        """
        try:
            for _ in range(_TRIES):
                stored = self.read()
                made = stored.folded
                made.doomed = max(stored.totals.present, 0)
                made.purged_then = stored.totals.purged
                if self._write(stored, made):
                    return
        except StoreError as error:
            log.warning(
                "queue %s is purged, but its totals do not record that: %s",
                self._register.name,
                error,
            )

    def _write(self, stored: Stored, folded: Folded) -> bool:
        return write_folded(self._store, stored, folded, self._clock.now_ms())

    def _log(self, before: Stored, at_ms: int, missing: int) -> None:
        gone = ", ".join(sorted({row.process for row in before.gaps(at_ms)}))
        log.info(
            "queue %s: its totals reported %d messages %s than there are%s; mended",
            self._register.name,
            abs(missing),
            "fewer" if missing > 0 else "more",
            f", since these processes ended while they counted: {gone}" if gone else "",
        )


def result_of(working: Generator[float, None, T], clock: Clock) -> T:
    """The result of a generator, after all its pauses."""
    while True:
        try:
            wait_s = next(working)
        except StopIteration as end:
            found: T = end.value
            return found
        if wait_s:
            clock.sleep(wait_s)


def _missing(before: Totals, found: Inventory, after: Totals) -> tuple[int, bool]:
    """How many messages the totals provably miss, and True if the number is exact.

    A message that was put, settled or moved during the count may have been counted or not.
    """
    moved: int = max(sum(getattr(after, name) - getattr(before, name) for name in _MOVES), 0)
    # Messages that the counter itself has ended existed when they were counted.
    gone_after = after.gone - found.ended
    least = found.rows - (after.put - before.gone) - after.mended - moved
    most = found.rows - (before.put - gone_after) - after.mended + moved
    return max(least, 0) or min(most, 0), least == most


def _others_count(stored: Stored, own: str | None, now_ms: int) -> bool:
    """True if a process other than this one counts."""
    return any(row.process != own for row in stored.counting(now_ms))


def _is_at_rest(stored: Stored, now_ms: int) -> bool:
    """True if no process has counted anything for a while."""
    return all(now_ms - row.at_ms > _STORED_S * 1_000 for row in stored.counting(now_ms))


class Upkeep:
    """Mends and folds a queue's totals and clears its index now and then, beside a consumer.

    Of several consumers only the first by name does so.

    Args:
        home: The queue's home. Its chores call `step` regularly, if threads may run.
        member: The consumer's name.
    """

    def __init__(self, home: QueueHome, member: str) -> None:
        store, clock, register = home.store, home.clock, home.register
        self._store = store
        self._clock = clock
        self._register = register
        self._member = member
        self._chores = home.chores
        # Without `store_own`, because this process stores its counts every 2 s anyway.
        self._mender = Mender(store, clock, register)
        self._counter = DepthCounter(store, clock, register)
        self._mending: Mending | None = None
        self._ended_us = self._fold_from_us = self._forget_from_us = clock.boot_us()
        self._took_us = 0
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
        return f"the counts of queue {self._register.name}"

    def _look(self) -> float:
        now_ms, boot_us = self._clock.now_ms(), self._clock.boot_us()
        stored = stored_totals(self._store, self._register.totals_key)
        self._note_put(stored.totals.put, boot_us)
        is_to_mend = self._is_to_mend(stored, now_ms, boot_us)
        is_to_fold = boot_us >= self._fold_from_us and any(
            abs(now_ms - row.at_ms) >= _OLD_MS for row in (*stored.rows, *stored.left_out)
        )
        is_to_forget = boot_us >= self._forget_from_us
        if is_to_mend or is_to_fold or is_to_forget:
            # If another consumer is the first, that one does the work, and the totals will show it.
            is_first = self._is_first(stored, now_ms)
            if is_to_forget:
                self._forget_from_us = boot_us + _FORGET_US
                if is_first:
                    forget_empty(self._store, self._register, now_ms)
            if is_to_fold:
                self._fold_from_us = boot_us + _FOLD_US
                if is_first:
                    fold(self._store, self._clock, self._register)
            if is_to_mend and is_first:
                self._mending = self._mender.mend(self._counting())
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

    def _is_to_mend(self, stored: Stored, now_ms: int, boot_us: int) -> bool:
        """True if every row is to be counted, and the last count was long enough ago."""
        ago_us = boot_us - self._ended_us
        if ago_us < min(_SHARE * self._took_us, 1_000 * _AGAIN_MS):
            return False
        purged_ms = self._register.settings.purged_before_us // 1_000
        folded = stored.folded
        # While messages arrive and leave, each count proves a little more. A short one is worth it.
        is_worth_it = self._took_us <= _SHORT_US or _is_at_rest(stored, now_ms)
        if stored.gaps(now_ms) or (folded.rough and is_worth_it):
            return True
        if purged_ms and folded.mended_ms < purged_ms + PURGE_MS <= now_ms:
            return True
        # Without a reason rows are counted only at rest, when a count proves the most.
        is_old = abs(now_ms - folded.mended_ms) >= _AGAIN_MS
        return is_old and ago_us >= _SHARE_AGAIN * self._took_us and _is_at_rest(stored, now_ms)

    def _is_first(self, stored: Stored, now_ms: int) -> bool:
        beats = heartbeats(self._store, self._register.members_key)
        # Heartbeats outlive their members by 10 s; the totals report crashes earlier.
        crashed = {row.process for row in stored.gaps(now_ms) if not row.late_ms}
        names = (name for name, beat in beats.items() if beat.threads and name not in crashed)
        return self._member == min(names, default=self._member)

    def _counting(self) -> Generator[float, None, Inventory]:
        begun_us = self._clock.boot_us()
        try:
            return (yield from self._counter.inventory())
        finally:
            self._ended_us = self._clock.boot_us()
            self._took_us = self._ended_us - begun_us
