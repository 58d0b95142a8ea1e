"""The backlogs of groups and pauses: messages that are due and wait, and messages that run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardq.inspection import scan
from shardq.inspection.finder import open_shards
from shardq.inspection.whereabouts import run_of
from shardq.model.limits import AWAY_MS, limits_of, queue_limit_of
from shardq.records.membership import heartbeats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.model.limits import Pause
    from shardq.model.message import Row
    from shardq.records.register import Register
    from shardq.stores.store import Store

ROWS_MAX = 20_000
"""Most rows to read: half a second on SQLite, a second on Cassandra."""


@dataclass(slots=True)
class PartBacklog:
    """The backlog of one group or pause.

    Attributes:
        due: Messages that are due and wait.
        running: Messages that handlers run, or callers of `receive` hold.
        since_ms: From when the first of the due ones has waited, epoch milliseconds; 0 without any.
        held_ms: Until when a head holds its group back, epoch milliseconds; 0: none does.
        claims_ms: When the claims end that take places of its group, epoch milliseconds.
    """

    due: int = 0
    running: int = 0
    since_ms: int = 0
    held_ms: int = 0
    claims_ms: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PartBacklogs:
    """The backlogs of groups and pauses at one moment.

    Attributes:
        groups: Group -> its backlog, where it has one.
        paused: Pause of tasks or keys -> what it holds back; runs are not counted.
        is_whole: False if there were more rows than are read: the counts are then too small.
    """

    groups: dict[str, PartBacklog] = field(default_factory=dict)
    paused: dict[Pause, PartBacklog] = field(default_factory=dict)
    is_whole: bool = True


def backlogs(
    store: Store, register: Register, now_ms: int, *, lanes: Sequence[int] | None = None
) -> PartBacklogs:
    """Count backlogs; reads rows without their bodies, `ROWS_MAX` at most.

    Args:
        store: The store.
        register: The queue's record.
        now_ms: Now, epoch milliseconds.
        lanes: Only groups of these lanes; None: all groups, and all pauses of tasks and keys.
    """
    layout, found = register.layout, PartBacklogs()
    limit = queue_limit_of(register.settings.queue_limit).at(now_ms)
    until_ms, read = now_ms, 0
    if lanes is None and limit.paused:
        # The messages that a pause holds back may be in any lane, and may have been moved.
        until_ms = now_ms + AWAY_MS
    elif lanes is None:
        lanes = layout.lanes_of_groups()
    shards = open_shards(store, register, until_ms, lanes=lanes)
    beats = heartbeats(store, register.members_key)
    limits, heads = limits_of(register.settings.group_limits), Counter[str]()
    for page in scan.pages(store, layout, shards, purpose="backlog", bodies=False):
        for row in page:
            if row.group is not None and row.due_ms <= now_ms and not register.is_purged(row):
                heads[row.group] += 1
                is_head = heads[row.group] <= limits.of(row.group).places
                if is_head and row.holds_group(now_ms):
                    one = found.groups.setdefault(row.group, PartBacklog())
                    one.held_ms = max(one.held_ms, row.ready_ms)
            is_claimed = row.claim is not None and row.ready_ms > now_ms
            if register.is_purged(row) or (row.wanted_ms > now_ms and not is_claimed):
                continue
            is_run = is_claimed or run_of(row, beats) is not None
            if row.group is not None and row.due_ms <= now_ms:
                _count(found.groups.setdefault(row.group, PartBacklog()), row, is_run=is_run)
            if not is_run and (pause := limit.pause_of(row, now_ms)) is not None:
                _count(found.paused.setdefault(pause, PartBacklog()), row, is_run=False)
        read += len(page)
        if read >= ROWS_MAX:
            return replace(found, is_whole=False)
    return found


def _count(one: PartBacklog, row: Row, *, is_run: bool) -> None:
    if is_run:
        one.running += 1
        if row.claim is not None and not row.is_along:
            one.claims_ms.append(row.ready_ms)
    else:
        one.due += 1
        one.since_ms = min(one.since_ms or row.wanted_ms, row.wanted_ms)
