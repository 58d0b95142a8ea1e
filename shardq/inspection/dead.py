"""Reads a dead-letter queue: a dead message is due at its death, and keeps its place."""

from __future__ import annotations

from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from shardq.inspection import scan
from shardq.model import ids
from shardq.model.shard import spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from shardq.records.register import Register
    from shardq.stores.store import Slice, Store

_AHEAD_MS = 3_600_000
"""How far a death may lie ahead of this clock, because clocks differ."""
_PART = 1_000
_PAGE = 50
_FEW = 200
"""A span with fewer dead messages is read as a whole."""
_SPAN_MS = 1_000
_MINUTE = attrgetter("minute")


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


def backwards(home: QueueHome, since_ms: int = 0, until_ms: int | None = None) -> Iterator[Row]:
    """The rows that no purge has reached, without bodies, the last death first.

    Args:
        home: The home of the dead-letter queue.
        since_ms: Earlier minutes are left out, epoch milliseconds.
        until_ms: Later deaths are left out; None: all are wanted.
    """
    until_ms = home.clock.now_ms() + _AHEAD_MS if until_ms is None else until_ms
    found = shards(home.store, home.register, since_ms, until_ms)
    for _, some in groupby(found, key=_MINUTE):
        for rows in _windows(home, list(some), until_ms):
            yield from sorted(_kept(home, rows), key=_died, reverse=True)


def last(home: QueueHome, limit: int, is_wanted: Callable[[Row], bool]) -> list[Row]:
    """The rows of the last dead messages, the last death first.

    Args:
        home: The home of the dead-letter queue.
        limit: The most to return.
        is_wanted: Returns True for rows to return; called without bodies.
    """
    home.register.refresh()
    rows = islice(filter(is_wanted, backwards(home)), limit)
    whole = [row.checked() for row in home.store.find([row.position for row in rows])]
    return sorted(whole, key=_died, reverse=True)


def every(home: QueueHome, *, bodies: bool = True) -> Iterator[Row]:
    """All rows, the last minute's rows first; without `bodies` their bodies are empty.

    Args:
        home: The home of the dead-letter queue.
        bodies: True to read their bodies.
    """
    register = home.register
    register.refresh()
    found = shards(home.store, register, 0, home.clock.now_ms() + _AHEAD_MS)
    pages = scan.pages(home.store, register.layout, found, purpose="peek", bodies=bodies)
    return _kept(home, chain.from_iterable(pages))


def _kept(home: QueueHome, rows: Iterable[Row]) -> Iterator[Row]:
    return (row for row in rows if not home.register.is_purged(row))


def _windows(home: QueueHome, some: Sequence[Shard], until_ms: int) -> Iterator[list[Row]]:
    """The rows of shards of one minute without bodies, the last ones first.

    A minute with few rows is read at once. Else its time is halved, so that the last rows are
    found without a read of the thousands before them.
    """
    layout = home.register.layout
    wholes = [scan.whole(layout, one, _PAGE, "list")._replace(bodies=False) for one in some]
    end_ms = min(until_ms, layout.end_ms(some[0].minute) - 1)
    yield from _halves(home, wholes, wholes[0].after_ms, end_ms)


def _halves(
    home: QueueHome, wholes: Sequence[Slice], after_ms: int, until_ms: int
) -> Iterator[list[Row]]:
    parts = [one._replace(after_ms=after_ms, until_ms=until_ms) for one in wholes]
    rows = chain.from_iterable(map(partial(scan.rows_of, home.store), parts))
    if until_ms - after_ms <= _SPAN_MS:
        yield list(rows)
        return
    found = list(islice(rows, _FEW))
    if len(found) < _FEW:
        yield found
        return
    middle_ms = (after_ms + until_ms) // 2
    yield from _halves(home, wholes, middle_ms, until_ms)
    yield from _halves(home, wholes, after_ms, middle_ms)


def _died(row: Row) -> tuple[int, bytes]:
    return row.due_ms, ids.order_key(row.id)
