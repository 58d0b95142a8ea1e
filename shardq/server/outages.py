"""Outages of a store: the errors, and the pauses of work that outlasts them."""

from __future__ import annotations

from typing import Final

from shardq.clock import pause
from shardq.errors import StoreFull, StoreTimeout, StoreUnavailable

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.5, 8.0
STOPPED: Final = (StoreUnavailable, StoreTimeout, StoreFull)
"""The errors of a store that may answer again soon."""


class Patience:
    """Pauses between tries: each is twice the last one, to 8 s.

    Each is short enough that no other server takes the mover of a task for dead.

    Attributes:
        pause_s: How long the next one is.
    """

    def __init__(self) -> None:
        self.pause_s = _PAUSE_S_MIN

    async def wait(self) -> None:
        """Wait until the next try."""
        await pause(self.pause_s)
        self.pause_s = min(2 * self.pause_s, _PAUSE_S_MAX)
