"""Stops of a store, which work that nobody waits for outlasts."""

from __future__ import annotations

from typing import Final

from shardq.clock import pause
from shardq.errors import StoreFull, StoreTimeout, StoreUnavailable

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.5, 8.0
STOPPED: Final = (StoreUnavailable, StoreTimeout, StoreFull)
"""Errors of a store that may be back soon."""


class Patience:
    """Pauses between tries: each is twice the last one, to 8 s.

    None is so long that another server would take the mover of a task for dead.

    Attributes:
        pause_s: How long the next one is.
    """

    def __init__(self) -> None:
        self.pause_s = _PAUSE_S_MIN

    async def wait(self) -> None:
        """Wait until the next try."""
        await pause(self.pause_s)
        self.pause_s = min(2 * self.pause_s, _PAUSE_S_MAX)
