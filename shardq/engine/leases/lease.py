"""Leases: the exclusive, expiring right to hand out a shard's rows.

```
 take ── refused: another's lock ─────────────► not ours, for now
   │  └─ lock gone, holder still named: unclean end; its first `window` rows are worked carefully
   ▼
 held ── renewed in time ── deadline = boot time at the sending of the last renewal + TTL - 2 s
   │
   └─ released: neither lock nor holder stays
```

`membership.py` decides which member should hold which.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from shardq.model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq.clock import Clock
    from shardq.model.shard import Shard
    from shardq.stores import store as port
    from shardq.stores.store import LeaseState

log = logging.getLogger(__name__)

TTL_MS = Settings().lease_ms
_MARGIN_US = 2_000_000
"""How long before a lease runs out its holder stops: the store counts TTLs in whole seconds, and
its clock may round up once more."""
_RENEWED_AFTER = 0.75
"""A lease is renewed after this part of the time to its deadline: 6 s at a TTL of 10 s. Nearly all
LWTs are renewals: with 8 lanes they are 1.6 a second, against 2.7 if renewed after a third of the
time, and 1.9 after half."""
_CARE_MAX = 1_000
"""The most shards that are not held and whose rows in need of care are still counted."""


class Lease:
    """One shard's lease, as its holder keeps it.

    Attributes:
        shard: The shard.
        lock: The token of the lease in the store.
        deadline_us: Time since boot after which no row may be handed out under the lease.
        renew_us: Time since boot from which the renewal is due.
        renewed_us: Time since boot at which the last renewal was sent.
        careful: How many more rows, without those of groups, need care after the unclean end of
            another member.
        window: The first value of `careful`: the other member may have handed out this many rows.
        unclean: True after an unclean end: rows may be left that the other member had settled.
        is_after_lapse: True if the lease before this one, another member's or our own, was not
            released: the last writes of its holder may still arrive.
        taken_ms: When the lease was taken, epoch milliseconds; 0 if it was not yet. Another member
            has handed out no row that is due later than this. If the clock was set back since, the
            value is later by as much.
        claimed: Minutes of a lane for groups in which claims run, each with the due to list it by
            when the lease is released: the next owner reads them before it begins a group.
        reach_ms: For a lease not taken yet: the last due of which the other member may have handed
            out rows.
    """

    __slots__ = (
        "_heir",
        "careful",
        "claimed",
        "deadline_us",
        "is_after_lapse",
        "lock",
        "reach_ms",
        "renew_us",
        "renewed_us",
        "shard",
        "taken_ms",
        "unclean",
        "window",
    )

    def __init__(
        self, shard: Shard, lock: str, sent_us: int, ttl_us: int, careful: int, taken_ms: int = 0
    ) -> None:
        self.shard = shard
        self.lock = lock
        self.careful = careful
        self.unclean = careful > 0
        self.is_after_lapse = False
        self.window = careful
        self.taken_ms = taken_ms
        self.claimed: dict[int, int] = {}
        self.reach_ms = 0
        self._heir: Lease | None = None
        self.renew(sent_us, ttl_us)

    def renew(self, sent_us: int, ttl_us: int) -> None:
        """Set the deadline anew, from the sending of the renewal."""
        self.renewed_us = sent_us
        self.renew_us = sent_us + _renewed_after_us(ttl_us)
        self.deadline_us = sent_us + _valid_us(ttl_us)

    def needs_care(self) -> bool:
        """True if the next row needs care; each call that returns True counts one such row less.

        Call it for rows without a group that were due when the lease was taken. The former holder
        may have handed out some of the first.
        """
        is_one = self.careful > 0
        self.careful -= is_one
        return is_one

    def give_back(self) -> None:
        """Count one row more as in need of care; after a lapse count it in the next lease."""
        lease = self
        while lease._heir is not None:
            lease = lease._heir
        lease.careful += 1

    def inherit(self, former: Lease) -> None:
        """Continue the count of care of a former lease: a lapsed one of ours, or a foreseen one."""
        former._heir = self
        # The other member has handed out no row that came due after this lease was first taken.
        self.taken_ms = former.taken_ms or max(self.taken_ms, former.reach_ms)
        self.window = former.window


def new_holder(member: str) -> str:
    """The prefix of a member's locks, which differs for each process.

    Leases of an earlier process of the same name are thus another member's, and taken over with
    care.
    """
    return f"{member}/{secrets.token_hex(4)}"


class MemberLeases:
    """The leases of one member of one queue.

    Args:
        holder: The beginning of the locks of all leases taken here, as `new_holder` makes it.
        window: The most rows of a shard that the member hands out without a record.
        ttl_ms: How long a lease lasts without renewal.
        is_dead: Returns True for a beginning of locks whose member is known to be dead. The leases
            of such a member are free, and taken over with the care of any unclean end.

    Attributes:
        holder: The beginning of the locks of all leases taken here.
        ttl_ms: How long a lease lasts without renewal, from its next renewal on.
    """

    def __init__(
        self,
        store: port.Leases,
        clock: Clock,
        holder: str,
        *,
        window: int,
        ttl_ms: int = TTL_MS,
        is_dead: Callable[[str], bool] = lambda _holder: False,
    ) -> None:
        self._store = store
        self._clock = clock
        self.holder: str = holder
        self._window = window
        self.ttl_ms = ttl_ms
        self._is_dead = is_dead
        self._held: dict[Shard, Lease] = {}
        self._care: dict[Shard, Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, shard: Shard) -> Lease | None:
        """The lease that this member holds on a shard, lapsed or not; None without one."""
        return self._held.get(shard)

    def held(self) -> list[Lease]:
        """All leases that this member holds, lapsed or not."""
        return list(self._held.values())

    def is_valid(self, lease: Lease) -> bool:
        """True if rows may be handed out under a lease now."""
        return self._clock.boot_us() < lease.deadline_us

    def holds(self, shard: Shard) -> bool:
        """True if rows of a shard may be handed out now."""
        lease = self._held.get(shard)
        return lease is not None and self.is_valid(lease)

    def take(self, shards: Iterable[Shard]) -> dict[Shard, LeaseState]:
        """Lease the shards that nobody holds.

        Returns:
            The states of the shards that were refused.
        """
        wanted: dict[Shard, str | None] = {
            shard: None for shard in shards if shard not in self._held
        }
        refused: dict[Shard, LeaseState] = {}
        # The second round names the holder, which ended unclean, that the first has seen. The third
        # finds that another member was quicker.
        for _ in range(3):
            if not wanted:
                break
            again: dict[Shard, str | None] = {}
            for window, part in self._by_window(wanted).items():
                again |= self._try(part, window, refused)
            wanted = again | self._end_of_dead(refused)
        self._hold_unknown(refused)
        # Evict after the attempts above: they read entries of shards not held yet.
        self._forget_some()
        return refused

    def is_free(self, lock: str | None) -> bool:
        """True if a shard with this lock, on which this member holds no lease, may be taken."""
        return lock is None or self._is_own(lock) or self._is_dead(_holder_of(lock))

    def _is_own(self, lock: str) -> bool:
        return _holder_of(lock) == self.holder

    def _end_of_dead(self, refused: dict[Shard, LeaseState]) -> dict[Shard, str | None]:
        """End the refused leases of dead members; returns their shards, each with its holder."""
        ended = {
            shard: state
            for shard, state in refused.items()
            if state.lock is not None
            and not self._is_own(state.lock)
            and self._is_dead(_holder_of(state.lock))
        }
        if ended:
            # If another member has ended a lease first, this has no effect, and the next round
            # finds that.
            self._store.renew({shard: str(state.lock) for shard, state in ended.items()}, 0)
        for shard, state in ended.items():
            self._foresee(shard, state)
            del refused[shard]
        return {shard: state.holder for shard, state in ended.items()}

    def _hold_unknown(self, refused: dict[Shard, LeaseState]) -> None:
        """Hold the leases of an earlier try: its answer was lost, or another shard failed it.

        Otherwise no member could read these shards until the leases expire.
        """
        ours = {
            shard: state.lock
            for shard, state in refused.items()
            if state.lock is not None and self._is_own(state.lock)
        }
        if not ours:
            return
        sent = self._clock.boot_us()
        for shard in self._store.renew(ours, self.ttl_ms):
            self._hold(shard, ours[shard], sent, is_after_lapse=True)
            del refused[shard]

    def _try(
        self, wanted: dict[Shard, str | None], window: int, refused: dict[Shard, LeaseState]
    ) -> dict[Shard, str | None]:
        """Ask once for shards; returns those to ask for again, each with the holder to name."""
        lock = f"{self.holder}/{secrets.token_hex(8)}"
        sent = self._clock.boot_us()
        states = self._store.take(
            wanted, lock=lock, holder=self.holder, window=window, ttl_ms=self.ttl_ms
        )
        again: dict[Shard, str | None] = {}
        for shard, state in states.items():
            if state.lock == lock:
                if wanted[shard] is None:
                    self._care.pop(shard, None)
                self._hold(shard, lock, sent, is_after_lapse=wanted[shard] is not None)
            elif state.lock is None and state.holder != wanted[shard]:
                again[shard] = state.holder
                # Call it before the next round: the answer of that may be lost although the lease
                # was taken.
                self._foresee(shard, state)
            else:
                refused[shard] = state
        return again

    def _by_window(self, wanted: dict[Shard, str | None]) -> dict[int, dict[Shard, str | None]]:
        """Group shards by the window to store: how many rows need care if this member dies too.

        Then rows of a former holder still need care, even if this member reads fewer ahead. So the
        larger of the two windows is stored.
        """
        parts: dict[int, dict[Shard, str | None]] = {}
        for shard, holder in wanted.items():
            care = self._care.get(shard) if holder is not None else None
            window = self._window if care is None else max(self._window, care.window)
            parts.setdefault(window, {})[shard] = holder
        return parts

    def _foresee(self, shard: Shard, state: LeaseState) -> None:
        """Remember how many rows need care after the lease of another member that ended unclean.

        A row that the other member may have died of is as dangerous after a lapse of our own lease.
        So the count passes from lease to lease, until a lease is released.
        """
        if state.holder is None:
            self._care.pop(shard, None)
        elif state.holder != self.holder:
            # Count anew, as the newest entry: until the shard is taken, the other member may wake
            # and hand out more rows.
            self._care.pop(shard, None)
            foreseen = self._care[shard] = Lease(shard, "", 0, 0, state.window)
            foreseen.reach_ms = self._clock.now_ms() + state.ahead_ms

    def _forget_some(self) -> None:
        """Forget shards not held: first those without rows in need of care, then the oldest."""
        surplus = len(self._care) - len(self._held) - _CARE_MAX
        if surplus <= 0:
            return
        away = [shard for shard in self._care if shard not in self._held]
        away.sort(key=lambda shard: self._care[shard].careful > 0)
        for shard in away[:surplus]:
            del self._care[shard]

    def renew(self) -> list[Lease]:
        """Renew the leases whose renewal is due, by their own TTL or a shorter present TTL.

        Returns:
            The leases that turned out to be lost.
        """
        sent, ttl_ms = self._clock.boot_us(), self.ttl_ms
        after_us = _renewed_after_us(ttl_ms * 1_000)
        due = {
            shard: lease.lock
            for shard, lease in self._held.items()
            if sent >= min(lease.renew_us, lease.renewed_us + after_us)
        }
        if not due:
            return []
        kept = self._store.renew(due, ttl_ms)
        for shard in kept:
            self._held[shard].renew(sent, ttl_ms * 1_000)
        lost = [self._held.pop(shard) for shard in due if shard not in kept]
        for lease in lost:
            log.warning("%s: lease lost, for it was not renewed in time", lease.shard)
            lease.deadline_us = 0
        return lost

    def release(self, shards: Iterable[Shard]) -> None:
        """End leases cleanly. Call this only when none of their rows is in flight any more."""
        locks = {shard: self._held[shard].lock for shard in shards if shard in self._held}
        if not locks:
            return
        for shard in locks:
            # End it here before the release is sent: if the answer is lost, another member may hold
            # the shard by then.
            self._held[shard].deadline_us = 0
        for shard, lock in locks.items():
            if claimed := self._held[shard].claimed:
                self._store.list_minutes(shard, lock, claimed)
        self._store.release(locks)
        for shard in locks:
            log.info("%s: lease released", shard)
            del self._held[shard]
            self._care.pop(shard, None)

    def _hold(self, shard: Shard, lock: str, sent: int, *, is_after_lapse: bool) -> None:
        former = self._care.get(shard)
        careful = former.careful if former is not None else 0
        if careful:
            log.warning(
                "%s: taken over from a member that ended unclean; first %d rows with care",
                shard,
                careful,
            )
        else:
            log.info("%s: lease taken", shard)
        now_ms = self._clock.now_ms()
        lease = Lease(shard, lock, sent, self.ttl_ms * 1_000, careful, now_ms)
        lease.is_after_lapse = is_after_lapse
        if former is not None:
            lease.inherit(former)
            self._care[shard] = lease
        self._held[shard] = lease


def _holder_of(lock: str) -> str:
    return lock.rpartition("/")[0]


def _valid_us(ttl_us: int) -> int:
    """How long a lease of `ttl_us` is valid, from the sending of its renewal."""
    return ttl_us - min(_MARGIN_US, ttl_us // 2)


def _renewed_after_us(ttl_us: int) -> int:
    return round(_valid_us(ttl_us) * _RENEWED_AFTER)
