"""What a forked child has of its parent's driver, and leaves alone."""

# ruff: noqa: SLF001 - the driver (3.30) has no other names for these

from __future__ import annotations

import os
import sys
from typing import Any

from cassandra import cluster as driver

from shardq import locks

_REACTORS = ("cassandra.io.libevreactor", "cassandra.io.asyncorereactor")

_kept: list[Any] = []
"""The parent's: what is collected is closed, which takes locks and sends."""


def leave(cluster: Any, session: Any) -> None:
    """Let this child never touch its parent's cluster, when it exits neither.

    At exit the driver shuts down all clusters that there are. Of a parent's, in its child, that
    waits for locks which threads held at the fork, and starts threads of its own to repeat what the
    parent has asked. So does what it does about a fork when the child connects: it first closes
    each connection of the loop before. So the loop is taken from it as well.
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
