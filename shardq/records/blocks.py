"""Blocks of groups: until when a group waits, and for which head.

A lane's blocks share a partition, in which those that ended lately are tombstones: so it is read by
group, and whole only where the lane was purged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

from shardq.errors import StoreOverread
from shardq.stores.tables import BLOCKED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from shardq.clock import Clock
    from shardq.model.message import GroupKey
    from shardq.stores.store import Registers

log = logging.getLogger(__name__)

Block: TypeAlias = tuple[int, str]
"""(until, message id of the head)."""
NO_BLOCK: Block = (0, "")
_SLACK_MS = 86_400_000
"""How long all readers may stand still and find the head that a group waited for the first."""
HELD_AHEAD_MS = 3_000
"""Rows due this soon may be in a reader's hands, who looks 2 s ahead."""
_MOMENT_US = 250_000
"""An answer that took longer may be of before what another has said meanwhile."""
_LOOKS_MAX = 3
PULLED_TTL_MS = 30_000
"""How long readers know to where a group was pulled: its lane's next one too, where one dies."""


def read_blocks(store: Registers, queue: str, groups: Iterable[GroupKey]) -> dict[GroupKey, Block]:
    """The blocks of groups, of those that have one: a read for each lane."""
    of_lane: dict[int, set[str]] = {}
    for lane, group in groups:
        of_lane.setdefault(lane, set()).add(group)
    return {
        (lane, group): block
        for lane in sorted(of_lane)
        for group, block in store.notes(BLOCKED, (queue, lane), sorted(of_lane[lane])).items()
    }


def read_lane_blocks(
    store: Registers, queue: str, lane: int, known: Iterable[str]
) -> dict[str, Block]:
    """The blocks of a lane; of known groups alone where too many others have ended lately."""
    try:
        return store.notes(BLOCKED, (queue, lane))
    except StoreOverread as error:
        log.info("queue %s: lane %d's blocks read of known groups, for %s", queue, lane, error)
        return store.notes(BLOCKED, (queue, lane), sorted(known))


class Blocks:
    """The blocks of one queue's groups."""

    def __init__(self, store: Registers, clock: Clock, queue: str) -> None:
        self._store = store
        self._clock = clock
        self._queue = queue

    def block_of(self, lane: int, group: str) -> Block:
        """(until, message id) of a group's head that waits, as it is now; (0, "") of none."""
        return self.read([(lane, group)]).get((lane, group), NO_BLOCK)

    def read(self, groups: Collection[GroupKey]) -> dict[GroupKey, Block]:
        """The blocks of groups, of those that have one, as of a moment ago if the store allows it.

        What is said by them overwrites what others say meanwhile. Where each of three answers
        takes long, the last one stands.
        """
        for _ in range(_LOOKS_MAX):
            asked_us = self._clock.boot_us()
            blocked = read_blocks(self._store, self._queue, groups)
            if self._clock.boot_us() - asked_us < _MOMENT_US:
                break
        return blocked

    def say(
        self, lane: int, group: str, until_ms: int, message_id: str, *, slack_ms: int = _SLACK_MS
    ) -> None:
        """Say until when a group waits for a head, for so long after that."""
        ttl_ms = max(until_ms - self._clock.now_ms(), 0) + slack_ms
        self._store.note(BLOCKED, (self._queue, lane), {group: (until_ms, message_id)}, ttl_ms)

    def cover(self, until_ms: Mapping[GroupKey, int]) -> None:
        """Say for a while to when rows of groups are to come, where their blocks say sooner.

        Who reads the lane from further back then waits with what is due before. What is due later
        waits for a head, or for nobody any more.
        """
        near = {key: due_ms for key, due_ms in until_ms.items() if self.is_near(due_ms)}
        blocked = self.read(near)
        for (lane, group), due_ms in near.items():
            before_ms, head = blocked.get((lane, group), NO_BLOCK)
            if before_ms < due_ms:
                self.say(lane, group, due_ms, head, slack_ms=PULLED_TTL_MS)

    def is_near(self, due_ms: int) -> bool:
        """Whether rows of a due may be in a reader's hands: then they stay."""
        return due_ms <= self._clock.now_ms() + HELD_AHEAD_MS
