"""Pauses between tries: after another process was faster, and after the store failed."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.clock import Clock

_TRIES_MAX = 40
_LONGEST_US = 250_000
_DOUBLINGS_MAX = 4
"""How often a pause doubles. With much longer pauses a caller would lose to newer callers for
ever."""
_BITS = 16
_LEAST_S, _MOST_S = 0.1, 5.0
_FAILS_MAX = 10


class Pauses:
    """Iterates over the tries of a change, and keeps callers of one record out of each other's way.

    A pause is random, and at most as long as the last try took; twice as long after each further
    try, up to 16 times. Without pauses some of 16 callers that put under one key on Cassandra lose
    20 times.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._since_us = clock.boot_us()

    def __iter__(self) -> Iterator[int]:
        for turn in range(_TRIES_MAX):
            if turn:
                self.wait()
            yield turn

    def wait(self) -> None:
        """Wait after a try in which another process was faster."""
        took_us = self._clock.boot_us() - self._since_us
        longest_us = min(took_us << min(self._count, _DOUBLINGS_MAX), _LONGEST_US)
        self._clock.sleep(longest_us * secrets.randbits(_BITS) / (1_000_000 << _BITS))
        self._count += 1
        self._since_us = self._clock.boot_us()


class BackOff:
    """The delays after successive failures: 0.1 s, then twice as long each time, up to 5 s.

    Attributes:
        fails: How many failures there were since the last success, up to 10.
    """

    def __init__(self) -> None:
        self.fails = 0

    def after_failure(self) -> float:
        """Count a failure; returns the seconds to wait."""
        seconds = min(_LEAST_S * (1 << self.fails), _MOST_S)
        self.fails = min(self.fails + 1, _FAILS_MAX)
        return seconds

    def end(self) -> None:
        """Note a success: the next failure counts as the first again."""
        self.fails = 0
