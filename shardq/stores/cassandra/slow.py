"""Nodes that keep requests waiting, and are asked last for a while.

```
 no answer in time, or a later one than another's ──► slow for 10 s: last in every plan
```

A node that is frozen or cut off counts as up in the driver until its heartbeat has failed, eight
seconds later or never. Reads are also sent to a second node. An LWT is not: it would wait until its
timeout, and leases may have ended by then.
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
"""How long a node counts as slow: within this time the driver itself notices a frozen node."""


class SlowNodes:
    """Knows which nodes are slow; one object for all requests of a session.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_us: dict[Any, int] = {}

    def note(self, future: Any, error: BaseException | None = None) -> None:
        """Learn from a done request: nodes that were asked before the answering node are slow.

        A node that answered late, or with a timeout of its own, is not slow: its request may take
        long on any node.

        Args:
            future: The driver's future of the request.
            error: The error that the request ended with.
        """
        asked = future.attempted_hosts
        if isinstance(error, OperationTimedOut):
            silent = asked
        elif error is None and len(asked) > 1 and future.coordinator_host in asked:
            # The coordinator gave the last answer. If it was asked first, `silent` is empty.
            silent = asked[: asked.index(future.coordinator_host)]
        else:
            return
        until_us = self._clock.boot_us() + SLOW_US
        for host in silent:
            self._until_us[host] = until_us

    def last(self, hosts: Iterator[Any]) -> Iterator[Any]:
        """Hosts in their order, slow ones after the others."""
        if not self._until_us:
            return hosts
        now_us = self._clock.boot_us()
        slow = {
            host: until_us for host, until_us in self._until_us.copy().items() if until_us > now_us
        }
        self._until_us = slow
        return iter(sorted(hosts, key=slow.__contains__))


class SlowLast(WrapperPolicy):  # type: ignore[misc]
    """The plan of another policy, with slow nodes last.

    Args:
        child: The other policy.
        nodes: The slow nodes.

    Attributes:
        child: The other policy.
    """

    def __init__(self, child: LoadBalancingPolicy, nodes: SlowNodes) -> None:
        super().__init__(child)
        self.child = child
        self._nodes = nodes

    def check_supported(self) -> None:
        """Check what the other policy checks."""
        self.child.check_supported()

    def make_query_plan(self, working_keyspace: Any = None, query: Any = None) -> Iterator[Any]:
        """The nodes in the order in which to ask them."""
        return self._nodes.last(self.child.make_query_plan(working_keyspace, query))
