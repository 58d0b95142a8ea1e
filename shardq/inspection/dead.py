"""Reads a dead-letter queue: a dead message is due at its death, and keeps its place."""

from __future__ import annotations

import heapq
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from shardq.inspection import scan
from shardq.model.shard import spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from shardq.records.register import Register
    from shardq.stores.store import Store

_AHEAD_MS = 3_600_000
"""How far clocks may differ."""
_PART = 1_000
_MINUTE = attrgetter("minute")
_DIED = attrgetter("due_ms", "entered_us")


def shards(store: Store, register: Register, since_ms: int, until_ms: int) -> Iterator[Shard]:
    """The shards with the dead messages of a span, the last minute first.

    Args:
        store: The store.
        register: The record of the dead-letter queue.
        since_ms: Epoch milliseconds; 0: since the queue exists.
        until_ms: Epoch milliseconds, included.
    """
    layout = register.layout
    minutes = range(layout.minute_of(since_ms), layout.minute_of(until_ms) + 1)
    found = list(store.indexed(layout.queue, minutes))
    for part in reversed(list(spans(range(len(found)), _PART))):
        some = scan.with_rows(store, found[part.start : part.stop])
        yield from reversed(list(some))


def last(
    home: QueueHome,
    limit: int,
    is_wanted: Callable[[Row], bool],
    *,
    since_ms: int = 0,
    bodies: bool = True,
) -> list[Row]:
    """The rows of the last dead messages, the last death first.

    Args:
        home: The home of the dead-letter queue.
        limit: The most to return.
        is_wanted: Returns True for rows to return; called without bodies.
        since_ms: Earlier minutes are left out, epoch milliseconds.
        bodies: True to read their bodies.
    """
    register = home.register
    register.refresh()
    rows: list[Row] = []
    found = shards(home.store, register, since_ms, home.clock.now_ms() + _AHEAD_MS)
    for _, some in groupby(found, key=_MINUTE):
        wanted = filter(is_wanted, _kept(home, some, bodies=False))
        rows += heapq.nlargest(limit - len(rows), wanted, key=_DIED)
        if len(rows) == limit:
            break
    if not bodies:
        return rows
    whole = [row.checked() for row in home.store.find([row.position for row in rows])]
    return sorted(whole, key=_DIED, reverse=True)


def every(home: QueueHome, *, bodies: bool = True) -> Iterator[Row]:
    """All rows, those of the last minute first; without `bodies` their bodies are empty.

    Args:
        home: The home of the dead-letter queue.
        bodies: True to read their bodies.
    """
    register = home.register
    register.refresh()
    found = shards(home.store, register, 0, home.clock.now_ms() + _AHEAD_MS)
    return _kept(home, found, bodies=bodies)


def _kept(home: QueueHome, some: Iterator[Shard], *, bodies: bool) -> Iterator[Row]:
    """The rows of shards that no purge has reached."""
    register = home.register
    pages = scan.pages(home.store, register.layout, some, purpose="peek", bodies=bodies)
    purged_us = register.settings.purged_before_us
    return (row for row in chain.from_iterable(pages) if row.entered_us >= purged_us)
