"""Leases: the exclusive, expiring right to hand out a shard's rows.

```
 take ── refused: another's lock ─────────────► not ours, for now
   │  └─ lock gone, holder still named: unclean end; its first `window` rows are worked carefully
   ▼
 held ── renewed every TTL/3 ── deadline = boot time at the sending of the last renewal + TTL - 2 s
   │
   └─ released: neither lock nor holder stays
```

Who should hold what, `membership.py` says.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.clock import Clock
    from shardq.shard import Shard
    from shardq.store import LeaseState, Store

log = logging.getLogger(__name__)

TTL_MS = 10_000
_MARGIN_US = 2_000_000
"""The store's TTLs have a grain of one second, and its clock may round up once more."""
_CARE_MAX = 1_000
"""Shards of which it is known how many rows need care, though their leases may be lost."""


class Lease:
    """One shard's lease, as its holder keeps it.

    Attributes:
        shard: The shard.
        lock: The token that the store knows it by.
        deadline_us: Time since boot after which nothing may be handed out under it.
        careful: Rows still to be worked carefully, after an unclean end of another's lease.
        unclean: Whether another's lease ended so, who may have left rows that it had settled.
        taken_ms: When it was taken, epoch milliseconds: what is due later no other has handed out.
    """

    __slots__ = ("careful", "deadline_us", "lock", "renewed_us", "shard", "taken_ms", "unclean")

    def __init__(
        self, shard: Shard, lock: str, sent_us: int, ttl_us: int, careful: int, taken_ms: int = 0
    ) -> None:
        self.shard = shard
        self.lock = lock
        self.careful = careful
        self.unclean = careful > 0
        self.taken_ms = taken_ms
        self.renew(sent_us, ttl_us)

    def renew(self, sent_us: int, ttl_us: int) -> None:
        """Count the deadline anew, from when the renewal was sent."""
        self.renewed_us = sent_us
        self.deadline_us = sent_us + ttl_us - min(_MARGIN_US, ttl_us // 2)


def member_of(lock: str) -> str:
    """The member that took a lock.

    >>> member_of("mailer/5b1c09aa/0011223344556677")
    'mailer'
    """
    return lock.rsplit("/", 2)[0]


class Leases:
    """The leases of one member of one queue.

    Args:
        member: This member's name, with which what is recorded as `holder` begins.
        window: The most rows of a shard that it hands out without a record.
        ttl_ms: How long a lease lasts without renewal.
    """

    def __init__(
        self, store: Store, clock: Clock, member: str, *, window: int, ttl_ms: int = TTL_MS
    ) -> None:
        self._store = store
        self._clock = clock
        # Another process under the same name is not this one: what it had is taken over with care.
        self._holder = f"{member}/{secrets.token_hex(4)}"
        self._window = window
        self._ttl_ms = ttl_ms
        self._held: dict[Shard, Lease] = {}
        self._care: dict[Shard, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, shard: Shard) -> Lease | None:
        """The lease that is held on a shard, lapsed or not."""
        return self._held.get(shard)

    def held(self) -> list[Lease]:
        """All that are held."""
        return list(self._held.values())

    def is_valid(self, lease: Lease) -> bool:
        """Whether rows may be handed out under it now."""
        return self._clock.boot_us() < lease.deadline_us

    def take(self, shards: Iterable[Shard]) -> dict[Shard, LeaseState]:
        """Lease those shards that nobody holds.

        Returns:
            The states of those that were refused.
        """
        wanted: dict[Shard, str | None] = {
            shard: None for shard in shards if shard not in self._held
        }
        refused: dict[Shard, LeaseState] = {}
        careful: dict[Shard, int] = {}
        # The second round tells the store which unclean holder was seen; a third finds a race lost.
        for _ in range(3):
            if not wanted:
                break
            lock = f"{self._holder}/{secrets.token_hex(8)}"
            sent = self._clock.boot_us()
            states = self._store.take(
                wanted, lock=lock, holder=self._holder, window=self._window, ttl_ms=self._ttl_ms
            )
            again: dict[Shard, str | None] = {}
            for shard, state in states.items():
                if state.lock == lock:
                    self._hold(shard, lock, sent, careful.get(shard, 0))
                elif state.lock is None and state.holder != wanted[shard]:
                    again[shard] = state.holder
                    careful[shard] = self._care_for(shard, state)
                    if careful[shard]:
                        # Before it is asked for: the answer may be lost, and the lease be ours.
                        self._remember(shard, careful[shard])
                else:
                    refused[shard] = state
            wanted = again
        return refused

    def _care_for(self, shard: Shard, state: LeaseState) -> int:
        """How many rows are to be worked carefully after a lease that ended like this."""
        if state.holder is None:
            return 0
        if state.holder != self._holder:
            return state.window
        # What another may have died of is no safer for a lapse of ours before it was handed out.
        return self._care.get(shard, 0)

    def _remember(self, shard: Shard, careful: int) -> None:
        """Keep in mind how many rows are to be worked carefully, until the lease is let go."""
        if len(self._care) > _CARE_MAX:
            # Of most of these others have been holders since.
            self._care = {one: rows for one, rows in self._care.items() if one in self._held}
        self._care[shard] = careful

    def renew(self) -> list[Lease]:
        """Renew what was renewed TTL/3 ago or earlier.

        Returns:
            The leases that turned out to be lost.
        """
        sent = self._clock.boot_us()
        due = {
            shard: lease.lock
            for shard, lease in self._held.items()
            if sent - lease.renewed_us >= self._ttl_ms * 1_000 // 3
        }
        if not due:
            return []
        kept = self._store.renew(due, self._ttl_ms)
        for shard in kept:
            self._held[shard].renew(sent, self._ttl_ms * 1_000)
        lost = [self._held.pop(shard) for shard in due if shard not in kept]
        for lease in lost:
            log.warning("lease of %s lost: it was not renewed in time", lease.shard)
            lease.deadline_us = 0
        return lost

    def release(self, shards: Iterable[Shard]) -> None:
        """End leases cleanly. Only when none of their rows is in flight any more."""
        locks = {shard: self._held[shard].lock for shard in shards if shard in self._held}
        if not locks:
            return
        for shard in locks:
            # Before it is sent: an answer may be lost, and another hold the shard by then.
            self._held[shard].deadline_us = 0
        self._store.release(locks)
        for shard in locks:
            log.info("lease of %s released", shard)
            del self._held[shard]
            self._care.pop(shard, None)

    def _hold(self, shard: Shard, lock: str, sent: int, careful: int) -> None:
        if careful:
            log.warning("lease of %s taken over unclean: first %d rows with care", shard, careful)
        else:
            log.info("lease of %s taken", shard)
            self._care.pop(shard, None)
        now_ms = self._clock.now_ms()
        self._held[shard] = Lease(shard, lock, sent, self._ttl_ms * 1_000, careful, now_ms)
