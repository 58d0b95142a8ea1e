"""A cluster's nodes: checked when they are connected, and watched for a time when all are down.

The driver (3.30) keeps to the addresses that it knows. If all nodes come back under others, as
containers do, only the url's name leads to them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cassandra.policies import HostDistance, HostStateListener

from shardq.errors import StoreRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.clock import Clock
    from shardq.stores.cassandra.address import Address

RELEASE_MIN = (4, 1)
"""The oldest release: the parser of 4.0 refuses some of the statements."""
NEEDED = "shardq needs Cassandra 4.1 or newer"
_RELEASE = re.compile(r"(\d+)\.(\d+)")


def refuse_old(address: Address, nodes: Iterable[Any]) -> None:
    """Refuse a cluster that is too old.

    Args:
        address: The cluster's address.
        nodes: The driver's hosts.

    Raises:
        StoreRefused: If a node has a release before `RELEASE_MIN`.
    """
    for node in nodes:
        found = _RELEASE.match(node.release_version or "")
        if found and (int(found[1]), int(found[2])) < RELEASE_MIN:
            raise StoreRefused(
                f"node {node.endpoint} of {address.shown} is a Cassandra {node.release_version}, "
                f"and {NEEDED}; upgrade it."
            )


def many_centres(address: Address, nodes: Iterable[Any]) -> str | None:
    """A warning if a url names none of several data centres; else None."""
    centres = sorted({node.datacenter for node in nodes if node.datacenter})
    if address.dc is not None or len(centres) < 2:
        return None
    return (
        f"{address.shown} has the data centres {', '.join(centres)}, and its url names none: "
        f"processes that use different ones deliver messages twice; add dc={centres[0]}, the same "
        f"one in every url"
    )


class NodeWatch(HostStateListener):  # type: ignore[misc] # the driver has no types
    """Knows since when a cluster has had no node.

    Args:
        cluster: The driver's cluster, connected.
        clock: The clock.

    Attributes:
        since_us: When the last node went down, microseconds since boot; None while one is up.
        tried_us: When a new connection was last tried, microseconds since boot; 0: not since then.
        said_us: When a failed try was last logged, microseconds since boot; 0: never.
    """

    def __init__(self, cluster: Any, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self.since_us: int | None = None
        self.tried_us = self.said_us = 0
        cluster.register_listener(self)

    def _look(self, _node: object) -> None:
        # The driver sends nothing to nodes of other data centres, and does not know if they are up.
        distance = self._cluster.profile_manager.distance
        is_up = any(
            node.is_up and distance(node) != HostDistance.IGNORED
            for node in self._cluster.metadata.all_hosts()
        )
        if is_up:
            self.since_us = None
        elif self.since_us is None:
            self.since_us, self.tried_us = self._clock.boot_us(), 0

    on_up = on_down = on_add = on_remove = _look
