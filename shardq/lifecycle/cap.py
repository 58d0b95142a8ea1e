"""The cap of a queue's depth, by its totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.errors import QueueFull
from shardq.records.folded import stored_totals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardq.clock import Clock
    from shardq.lifecycle.batch import Item
    from shardq.model.message import Row
    from shardq.records.register import Register
    from shardq.records.stats import StatsLog
    from shardq.stores.store import Store

_READ_US = 1_000_000
"""How often the totals are read at most. Other processes store their own every 2 s."""


class Cap:
    """Refuses puts into a queue that has as many messages as its `depth_max`.

    The number is exact but for puts and ends by other processes in the last 3 s.

    Args:
        stats: This process's counts, which include the puts that the cap admits.
    """

    def __init__(self, store: Store, clock: Clock, register: Register, stats: StatsLog) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._stats = stats
        self._read_us: int | None = None
        self._others = 0
        """How many messages the queue's totals showed when they were read, without this process's
        (`StatsLog.totals`)."""

    def check(self, more: int = 0) -> None:
        """Refuse a put if the queue is full. Costs a read and a write a second at most.

        Args:
            more: How many messages are about to be put before this one.

        Raises:
            QueueFull: If the queue is full.
        """
        depth_max = self._register.settings.depth_max
        if not depth_max:
            return
        present = self._present() + more
        if present < depth_max:
            return
        name = self._register.name
        raise QueueFull(
            f"queue {name!r} is full: it has about {present:,} messages, and its depth_max is "
            f"{depth_max:,}; put again once some have ended, or raise it by alter(depth_max=..), "
            f"at a shell with `shardq queues alter {name} --depth-max N`."
        )

    def admitted(self, items: Iterator[Item], rows: Sequence[Row]) -> Iterator[Item]:
        """The items of a batch, each checked before it is taken.

        Args:
            items: The items.
            rows: The rows of the items before, which are about to be put too.
        """
        return self._checked(items, rows) if self._register.settings.depth_max else items

    def _checked(self, items: Iterator[Item], rows: Sequence[Row]) -> Iterator[Item]:
        for item in items:
            self.check(len(rows))
            yield item

    def _present(self) -> int:
        now_us = self._clock.boot_us()
        if self._read_us is None or now_us - self._read_us >= _READ_US:
            self._stats.store()
            stored = stored_totals(self._store, self._register.totals_key)
            self._others = stored.totals.present - stored.doomed - self._stats.totals.present
            self._read_us = now_us
        return self._others + self._stats.totals.present
