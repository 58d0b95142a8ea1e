"""The last failures in a queue: the last failed attempt of each message that is still there.

```
 row that waits, or runs again ── its last error ──┐
 row of a dead message ── reason, time of death ───┴──► LastFailure, the last one first
```

A message that was acked or cancelled since has left no trace of its failures except the number of
attempts in the history.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from shardq.errors import StoreCorrupt
from shardq.inspection import dead, scan
from shardq.inspection.finder import open_shards
from shardq.inspection.whereabouts import run_of
from shardq.lifecycle.fate import OUT_OF_ATTEMPTS
from shardq.model.message import died_after, died_in, failure_of, last_error, task_of
from shardq.model.times import due_ms
from shardq.records.membership import heartbeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.records.membership import Heartbeat

ROWS_MAX = 20_000
"""Rows of a queue to read, those due first: 0.5 s on SQLite, 1 s on Cassandra."""
AHEAD_MS = 86_400_000
"""How far ahead a message may wait for its next attempt and be found."""
_AT = attrgetter("at_ms")


class Next(StrEnum):
    """The next event of a message that has failed."""

    AGAIN = "again"
    """The message is delivered again, at a known time."""
    DUE = "due"
    """The message is due, and is delivered again as soon as a consumer is free."""
    RUNNING = "running"
    """The message runs again."""
    DEAD = "dead"
    """The message is dead: it runs again only if somebody puts it back."""


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The last failed attempt of a message.

    Attributes:
        at_ms: When it failed, epoch milliseconds.
        queue: The queue in which it failed.
        task: The name of its task; None if it is no job.
        id: The message's id.
        attempt: The number of the attempt, from 1.
        error: The reason.
        next: The next event.
        again_ms: When it is delivered again, epoch milliseconds; None unless `next` is `AGAIN`.
    """

    at_ms: int
    queue: str
    task: str | None
    id: str
    attempt: int
    error: str
    next: Next
    again_ms: int | None = None


def of_queue(
    home: QueueHome, is_wanted: Callable[[LastFailure], bool], *, limit: int
) -> tuple[list[LastFailure], bool]:
    """The last failures in a queue, the last first; and True if the whole queue was read.

    Args:
        home: The queue's home.
        is_wanted: Returns True for failures to return.
        limit: The most to return.
    """
    home.register.refresh()
    store, register, now_ms = home.store, home.register, home.clock.now_ms()
    beats = heartbeats(store, register.members_key)
    shards = open_shards(store, register, now_ms + AHEAD_MS)
    pages = scan.pages(store, register.layout, shards, purpose="find", bodies=False)
    rows = chain.from_iterable(pages)
    found = _failed(islice(rows, ROWS_MAX), home, beats, now_ms)
    last = heapq.nlargest(limit, filter(is_wanted, found), key=_AT)
    return last, next(rows, None) is None


def of_dead(
    home: QueueHome, is_wanted: Callable[[LastFailure], bool], *, since_ms: int, limit: int
) -> list[LastFailure]:
    """The last deaths in a dead-letter queue, the last first.

    Args:
        home: The home of the dead-letter queue.
        is_wanted: Returns True for failures to return.
        since_ms: Earlier minutes are not read, epoch milliseconds.
        limit: The most to return.
    """
    home.register.refresh()
    found = (one for one in map(_died, dead.backwards(home, since_ms)) if one is not None)
    return list(islice(filter(is_wanted, found), limit))


def _failed(
    rows: Iterator[Row], home: QueueHome, beats: Mapping[str, Heartbeat], now_ms: int
) -> Iterator[LastFailure]:
    for row in rows:
        if row.error is None or home.register.is_purged(row):
            continue
        try:
            failure = failure_of(row)
        except StoreCorrupt:
            # One damaged message must not hide the others.
            continue
        if failure is None or failure.is_snoozed:
            continue
        after, again_ms = Next.DUE, None
        is_claimed = row.holder is not None and row.ready_ms > now_ms
        if is_claimed or run_of(row, beats) is not None:
            after = Next.RUNNING
        elif row.ready_ms > now_ms:
            after, again_ms = Next.AGAIN, row.ready_ms
        attempt = row.attempt - (row.claim is not None)
        yield LastFailure(
            failure.at_ms,
            row.shard.queue,
            task_of(row),
            row.message_id,
            max(attempt, 1),
            failure.error,
            after,
            again_ms,
        )


def _died(row: Row) -> LastFailure | None:
    """The death of a row's message; None if it has not died, or its headers are damaged."""
    try:
        queue, (error, at) = died_in(row), last_error(row)
    except StoreCorrupt:
        return None
    if queue is None:
        return None
    reason = (error or "").removeprefix(f"{OUT_OF_ATTEMPTS}: ")
    at_ms = row.due_ms if at is None else due_ms(at)
    attempts = died_after(row, row)
    return LastFailure(at_ms, queue, task_of(row), row.message_id, attempts, reason, Next.DEAD)
