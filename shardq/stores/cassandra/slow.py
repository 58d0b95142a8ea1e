"""Nodes that keep requests waiting, and are asked last for a while.

```
 no answer in time, another's came first ──► slow for 10 s: last in every plan ──► asked as before
```

A node that stands still, or is cut off from the others, is up for the driver until its heartbeat
has failed, eight seconds later or never. An LWT that is sent to it is not sent to another as well,
as reads are: it waits for its whole time, and leases may be over by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cassandra import OperationTimedOut
from cassandra.policies import WrapperPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassandra.policies import LoadBalancingPolicy

    from shardq.clock import Clock

SLOW_US = 10_000_000
"""By then the driver has found out by itself, where a node stands still."""


class SlowNodes:
    """Knows which nodes are slow; one object for all requests of a session.

    Args:
        clock: How long ago that was seen.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_us: dict[Any, int] = {}

    def note(self, future: Any, error: BaseException | None = None) -> None:
        """Learn from a request that is over: who was asked before whoever answered it.

        Who answered itself, though late or that its own time was up, is not slow by that: what it
        was asked for may take long anywhere.

        Args:
            future: The driver's.
            error: What it ended with.
        """
        asked = future.attempted_hosts
        if isinstance(error, OperationTimedOut):
            silent = asked
        elif error is None and len(asked) > 1 and future.coordinator_host in asked:
            # Of several answers the last; where that is the first node's, nothing is learned.
            silent = asked[: asked.index(future.coordinator_host)]
        else:
            return
        until_us = self._clock.boot_us() + SLOW_US
        for host in silent:
            self._until_us[host] = until_us

    def last(self, hosts: Iterator[Any]) -> Iterator[Any]:
        """Hosts in their order, those that are slow after the others."""
        if not self._until_us:
            return hosts
        now_us = self._clock.boot_us()
        slow = {
            host: until_us for host, until_us in self._until_us.copy().items() if until_us > now_us
        }
        self._until_us = slow
        return iter(sorted(hosts, key=slow.__contains__))


class SlowLast(WrapperPolicy):  # type: ignore[misc]
    """A plan of another policy, but for nodes that are slow.

    Args:
        child: That policy.
        nodes: Knows them.

    Attributes:
        child: That policy.
    """

    def __init__(self, child: LoadBalancingPolicy, nodes: SlowNodes) -> None:
        super().__init__(child)
        self.child = child
        self._nodes = nodes

    def check_supported(self) -> None:
        """See the other policy."""
        self.child.check_supported()

    def make_query_plan(self, working_keyspace: Any = None, query: Any = None) -> Iterator[Any]:
        """The nodes to ask, in this order."""
        return self._nodes.last(self.child.make_query_plan(working_keyspace, query))
