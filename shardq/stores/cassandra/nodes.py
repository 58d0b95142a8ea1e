"""What a cluster's nodes are, judged when it is connected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shardq.errors import StoreRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.stores.cassandra.address import Address

RELEASE_MIN = (4, 1)
"""The parser of 4.0 refuses some of the statements."""
NEEDED = "shardq needs Cassandra 4.1 or newer"
_RELEASE = re.compile(r"(\d+)\.(\d+)")


def refuse_old(address: Address, nodes: Iterable[Any]) -> None:
    """Refuse a cluster that is too old.

    Args:
        address: Where it is.
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
        f"{address.shown} has the data centres {', '.join(centres)}, and its url names none: this "
        f"process uses that of the node which it reached first, others may use another, and then "
        f"messages are delivered twice; add dc={centres[0]}, the same one in every url"
    )
