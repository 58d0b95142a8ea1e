"""Pauses between the tries of a change that other processes were quicker with."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardq.clock import Clock

_LONGEST_US = 250_000
_DOUBLINGS_MAX = 4
"""A caller with much longer pauses than newer callers would be outrun by them for ever."""
_BITS = 16


class Pauses:
    """Lets many who change one thing get out of each other's way.

    A pause is random, up to what the last try took, and twice that with each further one, 16 times
    that at most: of 16 who put under one key on Cassandra without any, some lose 20 times in a row.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._since_us = clock.boot_us()

    def wait(self) -> None:
        """Wait: somebody else was quicker."""
        took_us = self._clock.boot_us() - self._since_us
        longest_us = min(took_us << min(self._count, _DOUBLINGS_MAX), _LONGEST_US)
        self._clock.sleep(longest_us * secrets.randbits(_BITS) / (1_000_000 << _BITS))
        self._count += 1
        self._since_us = self._clock.boot_us()
