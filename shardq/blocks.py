"""Blocks of groups as they are read: until when a group waits, and for which head.

A lane's blocks share a partition, in which those that ended lately are tombstones: so it is read by
group, and whole only where a lane is new here, or purged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

from shardq.errors import StoreOverread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardq.lane import Lane
    from shardq.ready import GroupKey
    from shardq.store import Store

log = logging.getLogger(__name__)

Block: TypeAlias = tuple[int, str]
"""(until, message id of the head)."""
NO_BLOCK: Block = (0, "")
PULLED_TTL_MS = 30_000
"""How long readers know to where a group was pulled: its lane's next one too, where one dies."""


def read_blocks(store: Store, queue: str, groups: Iterable[GroupKey]) -> dict[GroupKey, Block]:
    """The blocks of groups, of those that have one: a read for each lane."""
    of_lane: dict[int, set[str]] = {}
    for lane, group in groups:
        of_lane.setdefault(lane, set()).add(group)
    return {
        (lane, group): block
        for lane in sorted(of_lane)
        for group, block in store.blocked(queue, lane, sorted(of_lane[lane])).items()
    }


def read_lane_blocks(store: Store, queue: str, lane: int, known: Iterable[str]) -> dict[str, Block]:
    """The blocks of a lane; of known groups alone where too many others have ended lately."""
    try:
        return store.blocked(queue, lane)
    except StoreOverread as error:
        log.info("queue %s: lane %d's blocks read of known groups, for %s", queue, lane, error)
        return store.blocked(queue, lane, sorted(known))


def learn_blocks(
    store: Store, queue: str, lanes: Mapping[int, Lane], groups: Iterable[GroupKey]
) -> dict[GroupKey, Block]:
    """Read which heads wait, after the rows behind them: who moves a head says so before.

    Args:
        lanes: Those that are to know; groups of others are passed over.

    Returns:
        What these knew of the groups before.
    """
    asked = sorted(key for key in groups if key[0] in lanes)
    numbers = sorted({number for number, _ in asked})
    for number in numbers:
        lanes[number].forget_blocks()
    before = {key: block for key in asked if (block := lanes[key[0]].blocked.get(key[1]))}
    for number in numbers:
        lane = lanes[number]
        if not lane.asked_all_blocks:
            said = read_lane_blocks(store, queue, number, lane.blocked)
            for group in sorted(said):
                lane.learn(group, said[group])
            lane.asked_all_blocks = True
    found = read_blocks(store, queue, asked)
    for number, group in asked:
        lanes[number].learn(group, found.get((number, group), NO_BLOCK))
    return before
