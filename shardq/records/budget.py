"""Budgets: how many messages may be due in each stretch of time, so that a burst is spread.

```
 put, due 09:00, spread 10m ─► 09:00 has a free slot? ── yes ──► due in that slot
                                        └── no ─► 09:01, 09:02 .. to 09:10, the end of its tolerance
```

A process takes slots in blocks, each by one compare and set. Slots of a block that it does not use
stay free: a stretch may have fewer messages than its budget.
"""

from __future__ import annotations

import math
import random
import secrets
from typing import TYPE_CHECKING, Any, Final

from shardq import locks
from shardq.errors import StoreUnavailable
from shardq.model.limits import queue_limit_of
from shardq.model.times import kept_ms
from shardq.records.exchange import exchange
from shardq.stores.tables import LIMITS, Change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.clock import Clock
    from shardq.model.limits import BeginRate
    from shardq.records.register import Register
    from shardq.stores.store import Store
    from shardq.stores.tables import Place

_TRIES = 20
_BLOCKS_MAX: Final = 1_000


class Budget:
    """The budget of one queue, as one process uses it. From any thread.

    Args:
        register: The queue's record.
    """

    def __init__(self, store: Store, clock: Clock, register: Register) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._lock = locks.new()
        self._blocks: dict[tuple[int, int], tuple[int, int, int]] = {}
        """Length and number of a stretch -> the next slot of the block, its end, and its size."""

    def due_ms(self, wanted_ms: int, spread_ms: int) -> int:
        """The due of a put that may be late by `spread_ms`; takes a slot.

        Without a budget it is at random within the tolerance.

        Args:
            wanted_ms: The due that is asked for, epoch milliseconds.
            spread_ms: The tolerance.

        Raises:
            StoreTimeout, StoreUnavailable: Nothing is put; a slot may be taken.
        """
        rate = queue_limit_of(self._register.settings.queue_limit).budget
        if rate is None:
            return wanted_ms + random.randint(0, spread_ms)
        with self._lock:
            return self._first_free_ms(rate, wanted_ms, wanted_ms + spread_ms)

    def _first_free_ms(self, rate: BeginRate, wanted_ms: int, last_ms: int) -> int:
        for stretch in range(wanted_ms // rate.per_ms, last_ms // rate.per_ms + 1):
            start_ms = stretch * rate.per_ms
            # Slots before the wanted due are of no use.
            first = -(-max(wanted_ms - start_ms, 0) * rate.number // rate.per_ms)
            slot = self._slot(stretch, rate, first)
            if slot is not None:
                due_ms = start_ms + (first + slot) * rate.per_ms // rate.number
                return min(max(due_ms, wanted_ms), last_ms)
        return last_ms

    def _slot(self, stretch: int, rate: BeginRate, first: int) -> int | None:
        """Take a slot of a stretch; None if none is free after the first one of use."""
        most = rate.number - first
        if most <= 0:
            return None
        key = rate.per_ms, stretch
        slot, end, size = self._blocks.get(key, (0, 0, 0))
        if slot >= end:
            if slot and slot >= most:
                return None
            slot, end = self._take(stretch, rate, max(min(2 * size, rate.number // 10), 1))
            size = end - slot
        if slot >= min(end, most):
            self._keep(key, (max(slot, end), end, size))
            return None
        self._keep(key, (slot + 1, end, size))
        return slot

    def _keep(self, key: tuple[int, int], block: tuple[int, int, int]) -> None:
        if len(self._blocks) >= _BLOCKS_MAX and key not in self._blocks:
            del self._blocks[min(self._blocks, key=math.prod)]
        self._blocks[key] = block

    def _take(self, stretch: int, rate: BeginRate, size: int) -> tuple[int, int]:
        """Take a block of slots: the first, and the one after the last; empty if none is free."""
        partition, name = (self._register.totals_key,), f"put {rate.per_ms} {stretch}"
        ttl_ms = kept_ms((stretch + 1) * rate.per_ms - self._clock.now_ms())
        block = 0, 0

        def plan(place: Place, values: Mapping[str, Any]) -> Change | None:
            nonlocal block
            seen = values["shares"]
            count = (seen or "").partition(" ")[0]
            taken = int(count) if count.isdecimal() else 0
            block = taken, max(min(taken + size, rate.number), taken)
            if block[1] == taken:
                return None
            # The token tells this block from one of the same size that another process takes.
            shares = f"{block[1]} {secrets.token_hex(4)}"
            return Change(*place, {"shares": seen}, {"shares": shares}, ttl_ms=ttl_ms)

        seen = self._store.notes(LIMITS, partition, [name]).get(name)
        present = {(partition, (name,)): {"shares": seen}}
        if exchange(self._store, LIMITS, present, plan, tries=_TRIES):
            return block
        raise StoreUnavailable(
            f"a message could not be put into queue {self._register.name!r} within its budget: "
            f"other processes kept taking slots; put it again."
        )
