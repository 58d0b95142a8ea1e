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
"""For a minute: by then what was done to the store is over."""


@contextmanager
def opened(url: str, name: str, clock: Clock | None = None) -> Iterator[shardq.Queue]:
    """A queue that is there, and its connection, which is closed at the end.

    A process that begins while the store is away tries again, as who watches over it would start
    it again.

    Args:
        url: The store.
        name: The queue's.
        clock: What waits between two tries; the system's where None.
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
