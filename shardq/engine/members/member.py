"""What all parts of one engine share, made once before them.

```
 home ─► membership ─► news ─┐
 memory ─────────────────────┴─► ready      presence ─► leases      failures, discards, courier
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.engine.handing.failures import Failures
from shardq.engine.handing.ready import Ready
from shardq.engine.leases.lease import Leases, new_holder
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
        home: The queue's, of this member alone.
        prefetch: The most rows read and not settled, but for those of groups.
        threads: Handler slots; 0 for callers of `receive`.
        isolated: Read only minutes that ended at least the offset ago.
        on_wake: Called with the seconds in which the next step is to come; None: somebody waits.
        waiters: The handlers' threads, where they wait for rows of other queues too.

    Attributes:
        membership: The other members.
        news: What lets the next step come.
        memory: The rows in memory.
        ready: Those of them that were not handed out.
        presence: Which members of this machine are dead.
        leases: The leases that are held.
        failures: Logs what has failed.
        discards: What is to be deleted.
        courier: Takes acks to the store.
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
        self.home = home
        self.store = store = home.store
        self.clock = clock = home.clock
        self.register = register = home.register
        self.settler = home.settler
        self.stats = home.stats
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
        self.leases = Leases(
            store,
            clock,
            holder,
            window=prefetch,
            ttl_ms=register.settings.lease_ms,
            is_dead=self.presence.is_dead,
        )
        self.courier = Courier(f"shardq-{register.name}-acks", on_return=self.news.wake)
        self.failures = Failures(home)
        self.discards = Discards(home)
