"""The objects that all parts of one engine share, made once before the parts.

```
 home ─► membership ─► news ─┐
 memory ─────────────────────┴─► ready      presence ─► leases      failures, discards, courier
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.engine.handing.failures import FailureLog
from shardq.engine.handing.ready import Ready
from shardq.engine.leases.lease import MemberLeases, new_holder
from shardq.engine.news import News
from shardq.engine.reading.memory import Memory
from shardq.engine.storing.courier import Courier
from shardq.engine.storing.discards import Discards
from shardq.records.membership import Membership
from shardq.records.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.engine.handing.waiters import Waiters
    from shardq.lifecycle.home import QueueHome


class Member:
    """One member of a queue, as the parts of its engine see it.

    Args:
        home: The queue's home, of this member alone.
        prefetch: The most rows, without those of groups, that are read and not settled.
        threads: Handler slots; 0 for callers of `receive`.
        isolated: True to read only minutes that ended at least the offset ago.
        on_wake: Called with the seconds until the next step is needed; None if `News.wait` is used.
        waiters: The handlers' threads, if the threads wait for rows of other queues too.

    Attributes:
        home: The queue's home.
        membership: The other members.
        news: The news by which the next step comes early.
        memory: The rows in memory.
        ready: The rows in memory that may be handed out, now or when due.
        presence: Finds out which members on this machine are dead.
        leases: The leases that are held.
        failures: Logs failed deliveries.
        discards: The rows to delete.
        courier: Runs the storing of acks.
    """

    def __init__(
        self,
        home: QueueHome,
        *,
        prefetch: int,
        threads: int,
        isolated: bool,
        on_wake: Callable[[float], None] | None,
        waiters: Waiters | None,
    ) -> None:
        store, clock, register = home.store, home.clock, home.register
        self.home = home
        self.prefetch = prefetch
        self.threads = threads
        self.isolated = isolated
        self.membership = Membership(store, clock, register.members_key, home.member)
        self.news = News(home, self.membership, on_wake)
        self.memory = Memory(home)
        self.ready = Ready(
            clock,
            register.layout.bands,
            waiters,
            on_take=self.memory.begin,
            on_wait=self.news.on_free,
        )
        holder = new_holder(home.member)
        self.presence = Presence(store.beside, holder, clock)
        self.leases = MemberLeases(
            store,
            clock,
            holder,
            window=prefetch,
            ttl_ms=register.settings.lease_ms,
            is_dead=self.presence.is_dead,
        )
        self.courier = Courier(f"shardq-{register.name}-acks", on_return=self.on_outcomes)
        self.failures = FailureLog(home)
        self.discards = Discards(home)

    def on_outcomes(self) -> None:
        """Wake the engine: outcomes can be stored, or were stored."""
        memory = self.memory
        awaits_room = any(lane.stalled for lane in memory.polled)
        self.news.on_outcomes(0 if awaits_room else len(memory.known))
