"""The number of lanes of a queue whose consumers choose it (`lanes="auto"`).

A queue needs two lanes for each member, so that each member has lanes of its own, and at least one
lane for each 1,000 puts a second, which a partition of Cassandra takes well. The member that ranks
first for the first lane decides.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model import settings
from shardq.model.settings import AUTO_LANES_MAX, AUTO_LANES_MIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.lifecycle.home import QueueHome

log = logging.getLogger(__name__)

_EVERY_US = 3_000_000
"""The least time between two changes, and about the time between two calls of `decide`."""
_DOWN_US = 600_000_000
"""Lanes are removed once fewer sufficed for this long: all processes follow each change."""
_OF_MEMBER = 2
_PUTS = 1_000


def lanes_needed(members: int, puts_per_s: float) -> int:
    """How many lanes a queue needs for its members and puts: a power of two, from 8 to 64.

    >>> [lanes_needed(*given) for given in ((1, 0), (5, 0), (1, 9_500), (500, 0))]
    [8, 16, 16, 64]
    """
    wanted = max(_OF_MEMBER * members, puts_per_s / _PUTS)
    lanes = AUTO_LANES_MIN
    while lanes < min(wanted, AUTO_LANES_MAX):
        lanes *= 2
    return lanes


class AutoLanes:
    """Changes the number of lanes of one queue, while it is this member that decides.

    Args:
        put_rate: Returns how many messages are put a second.
    """

    def __init__(self, home: QueueHome, put_rate: Callable[[], float]) -> None:
        self._clock = home.clock
        self._register = home.register
        self._put_rate = put_rate
        self._next_us = self._asked_us = self._below_us = 0
        self._most = 0

    @property
    def may_fall(self) -> bool:
        """True if the queue has more lanes than the minimum: call `decide` every 3 s."""
        settings = self._register.settings
        return settings.lanes_auto and settings.lanes_written > AUTO_LANES_MIN

    def decide(self, members: int) -> None:
        """Change the number of lanes if another number is needed: to more at once, to fewer later.

        Args:
            members: How many members are open, with this one.
        """
        now_us, current = self._clock.boot_us(), self._register.settings
        if not current.lanes_auto or current.paused:
            return
        if now_us - self._asked_us > 2 * _EVERY_US:
            # Another member decided since the last call: count anew.
            self._below_us, self._most = now_us, 0
        self._asked_us = now_us
        needed = lanes_needed(members, self._put_rate())
        if needed >= current.lanes_written:
            self._below_us, self._most = now_us, 0
        else:
            self._most = max(self._most, needed)
            if now_us - self._below_us < _DOWN_US:
                return
            needed = self._most
        if now_us >= self._next_us and settings.follow(current, needed, self._clock.now_ms()):
            self._next_us = now_us + _EVERY_US
            self._change_to(needed)

    def _change_to(self, lanes: int) -> None:
        now_ms, before = self._clock.now_ms(), self._register.settings
        try:
            self._register.change(lambda now: settings.follow(now, lanes, now_ms))
        except (StoreUnavailable, StoreTimeout) as error:
            log.info("queue %s: keeps its lanes for now: %s", self._register.name, error)
            return
        after = self._register.settings
        if after.lanes_written != before.lanes_written:
            log.info(
                "queue %s: producers fill %d lanes, %d before",
                self._register.name,
                after.lanes_written,
                before.lanes_written,
            )
