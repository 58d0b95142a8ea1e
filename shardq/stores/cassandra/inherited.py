"""Keeps a forked child away from the connections that its parent's driver has opened."""

# ruff: noqa: SLF001 - the driver (3.30) has no other names for these

from __future__ import annotations

import os
import sys
from typing import Any

from cassandra import cluster as driver

from shardq import locks

_REACTORS = ("cassandra.io.libevreactor", "cassandra.io.asyncorereactor")

_kept: list[Any] = []
"""The parent's objects. If collected, they would be closed, which takes locks and sends."""


def leave(cluster: Any, session: Any) -> None:
    """Keep this child from ever touching its parent's cluster, even when the child exits.

    At exit the driver shuts down all clusters. In a child, the shutdown of a parent's cluster would
    wait for locks that threads held at the fork, and start threads that repeat the parent's
    requests. When the child connects, the driver would do the same to each connection of the
    parent's event loop, so the loop is taken from the driver as well.
    """
    _kept.append((cluster, session))
    driver._discard_cluster_shutdown(cluster)
    for one in (cluster, session):
        one._lock = locks.new()
        one.is_shutdown = True
    for name in _REACTORS:
        reactor: Any = sys.modules.get(name)
        loop = getattr(reactor, "_global_loop", None)
        if loop is not None and loop._pid != os.getpid():
            _kept.append(loop)
            reactor._global_loop = None
            if hasattr(reactor, "_dispatcher_map"):
                reactor._dispatcher_map = {}
