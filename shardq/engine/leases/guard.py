"""Watches lanes of other members: a reader that leaves due rows unread for a second loses its lane.

`lanes.py` adopts the lanes that the guard finds.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row

log = logging.getLogger(__name__)

_EVERY_US = 1_000_000
_ALONE_MS = 1_000
"""A lane whose reader leaves a row unread for this long goes to the next member in rank."""
_BACK_MS = 30_000
_AGAIN_MS = 1_000
"""How far before the due up to which all rows were settled the next look begins: writes may be
late."""


class Guard:
    """Looks for due rows in lanes of other members that nobody has leased.

    Each look begins where the last one ended, so that a tombstone is read twice, not by every look
    of 30 s. A member further back in line looks more rarely: it is needed only if the members
    before it read nothing.
    """

    def __init__(self, home: QueueHome) -> None:
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self._looked_us = self._looks = 0
        self._settled_ms: dict[int, int] = {}

    def is_due(self) -> bool:
        """True if a second has passed since the last look; an answer True counts as a look."""
        now_us = self._clock.boot_us()
        if now_us - self._looked_us < _EVERY_US:
            return False
        self._looked_us = now_us
        self._looks += 1
        return True

    def left_alone(self, ranks: Mapping[int, int]) -> set[int]:
        """Find the lanes whose readers leave due rows unread.

        Args:
            ranks: Lane of another member -> this member's place in line for it; the member at place
                0 should read it.
        """
        lanes = [lane for lane, rank in ranks.items() if self._looks % max(rank, 1) == 0]
        self._settled_ms = {lane: self._settled_ms.get(lane, 0) for lane in ranks}
        if not lanes:
            return set()
        try:
            return self._look(lanes, ranks)
        except (StoreUnavailable, StoreTimeout) as error:
            # A failed look at lanes of other members must not hold up this member's own lanes.
            log.info("queue %s: not looked after others, for %s", self._register.name, error)
            return set()

    def _look(self, lanes: Iterable[int], ranks: Mapping[int, int]) -> set[int]:
        now_ms = self._clock.now_ms()
        first = self._first_rows(lanes, now_ms)
        waiting = [
            row
            for lane, row in first.items()
            if row.due_ms <= now_ms - _ALONE_MS * max(ranks[lane], 1)
        ]
        layout = self._register.layout
        grouped = sorted(
            {lane for lane, _ in ranks.items() if layout.is_of_groups(lane)}
            & {row.shard.lane for row in waiting}
        )
        locks = self._store.locks([r.position for r in waiting if r.shard.lane not in grouped])
        free = {shard.lane for shard, state in locks.items() if state.lock is None}
        states = self._store.lane_locks(layout.queue, grouped) if grouped else {}
        return free | {lane for lane in grouped if lane not in states or states[lane].lock is None}

    def _first_rows(self, lanes: Iterable[int], now_ms: int) -> dict[int, Row]:
        """Lane -> its first row that has waited a second; lanes without such a row are left out."""
        until_ms = now_ms - _ALONE_MS
        together: dict[int, list[int]] = {}
        for lane in lanes:
            together.setdefault(max(self._settled_ms[lane], now_ms - _BACK_MS), []).append(lane)
        layout = self._register.layout
        wanted = [
            Slice(
                layout.queue,
                range(max(layout.minute_of(after_ms + 1), 0), layout.minute_of(until_ms) + 1),
                lanes,
                after_ms,
                until_ms,
                1,
                purpose="guard",
            )
            for after_ms, lanes in together.items()
            if after_ms < until_ms
        ]
        first: dict[int, Row] = {}
        for row in self._store.read(*wanted) if wanted else ():
            held = first.get(row.shard.lane)
            if held is None or row.due_ms < held.due_ms:
                first[row.shard.lane] = row
        for lane in lanes:
            waits = first.get(lane)
            self._settled_ms[lane] = until_ms - _AGAIN_MS if waits is None else waits.due_ms - 1
        return first
