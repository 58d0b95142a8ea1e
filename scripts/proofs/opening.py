"""How the processes of a proof open their queue."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import shardq
from shardq.clock import SystemClock
from shardq.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.clock import Clock

_PAUSE_S = 0.5
_TRIES = 120
"""Tries within about a minute; by then the trouble of the store is over."""


@contextmanager
def opened(url: str, name: str, clock: Clock | None = None) -> Iterator[shardq.Queue]:
    """Open an existing queue; its connection is closed at the end.

    A process that begins while the store is away tries again, as a supervisor would restart it.

    Args:
        url: The store.
        name: The queue's.
        clock: Waits between two tries; None: the system's.
    """
    waits = clock or SystemClock()
    with ExitStack() as stack:
        for left in range(_TRIES - 1, -1, -1):
            try:
                db = stack.enter_context(shardq.connect(url))
                queue = db.queue(name, create=False)
                break
            except StoreUnavailable:
                stack.close()
                if not left:
                    raise
                waits.sleep(_PAUSE_S)
        yield queue
