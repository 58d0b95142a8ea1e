"""The backlogs of groups: messages that are due and wait, and messages that run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardq.inspection import scan
from shardq.inspection.finder import open_shards
from shardq.inspection.whereabouts import run_of
from shardq.records.membership import heartbeats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.records.register import Register
    from shardq.stores.store import Store

ROWS_MAX = 20_000
"""Most rows to read: half a second on SQLite, a second on Cassandra."""


@dataclass(slots=True)
class GroupBacklog:
    """The backlog of one group.

    Attributes:
        due: Messages that are due and wait.
        running: Messages that handlers run, or callers of `receive` hold.
        since_ms: From when the first of the due ones has waited, epoch milliseconds; 0 without any.
    """

    due: int = 0
    running: int = 0
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupBacklogs:
    """The backlogs of groups at one moment.

    Attributes:
        groups: Group -> its backlog, where it has one.
        is_whole: False if there were more rows than are read: the counts are then too small.
    """

    groups: dict[str, GroupBacklog] = field(default_factory=dict)
    is_whole: bool = True


def backlogs(
    store: Store, register: Register, now_ms: int, *, lanes: Sequence[int] | None = None
) -> GroupBacklogs:
    """Count the backlogs of groups; reads rows without their bodies, `ROWS_MAX` at most.

    Args:
        store: The store.
        register: The queue's record.
        now_ms: Now, epoch milliseconds.
        lanes: Only groups of these lanes; None: all groups.
    """
    layout, found, read = register.layout, dict[str, GroupBacklog](), 0
    lanes = layout.lanes_of_groups() if lanes is None else lanes
    shards = open_shards(store, register, now_ms, lanes=lanes)
    beats = heartbeats(store, register.members_key)
    for page in scan.pages(store, layout, shards, purpose="backlog", bodies=False):
        for row in page:
            if row.due_ms > now_ms or register.is_purged(row):
                continue
            is_claimed = row.claim is not None and row.ready_ms > now_ms
            is_run = is_claimed or run_of(row, beats) is not None
            if not is_run and row.ready_ms > now_ms:
                continue
            one = found.setdefault(row.group or "", GroupBacklog())
            if is_run:
                one.running += 1
            else:
                one.due += 1
                one.since_ms = min(one.since_ms or row.wanted_ms, row.wanted_ms)
        read += len(page)
        if read >= ROWS_MAX:
            return GroupBacklogs(found, is_whole=False)
    return GroupBacklogs(found)
