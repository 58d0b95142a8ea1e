"""The ledger in SQLite: the put, the end and the failures of each message, for a retention.

Each batch that is recorded deletes marks of the same queue that have expired.
"""

from __future__ import annotations

import json
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from shardq.errors import StoreCorrupt, shown
from shardq.model import ids
from shardq.model.ids import BYTES, bound, from_order_key, order_key
from shardq.stores.store import MINUTE_US, Entry, Mark, slot_of

if TYPE_CHECKING:
    import sqlite3
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardq.stores.sqlite.database import Database

_BATCH_MARKS = 20_000
_PAGE_MARKS = 5_000
_VOID_MARKS = 20_000
"""Expired rows deleted with one batch: as many as a batch may write, so that none pile up."""
_MINUTE_MS = MINUTE_US // 1_000
_TIME_BYTES = 8
"""The first bytes of an `order_key` are the time of the id."""

_PUT = """\
INSERT INTO history (queue, id, due, name, task, until_ms) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, id) DO UPDATE SET due = excluded.due, name = excluded.name,
    task = excluded.task, until_ms = max(until_ms, excluded.until_ms)
WHERE due IS NULL"""
_END = """\
INSERT INTO history (queue, id, fate, ended, attempt, member, until_ms)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, id) DO UPDATE SET fate = excluded.fate, ended = excluded.ended,
    attempt = excluded.attempt, member = excluded.member,
    until_ms = max(until_ms, excluded.until_ms)
WHERE fate IS NULL OR excluded.ended < ended"""
_TRY = """\
INSERT INTO history (queue, id, tries, until_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, id) DO UPDATE SET
    tries = json_patch(coalesce(tries, '{}'), excluded.tries),
    until_ms = max(until_ms, excluded.until_ms)"""
_FIND = """\
SELECT id, due, name, fate, ended, attempt, member, task, tries FROM history
WHERE queue = ? AND id = ? AND until_ms > ?"""
_PAGE = """\
SELECT id, due, name, fate, ended, attempt, member, task, tries FROM history
WHERE queue = ? AND id > ? AND id < ? AND until_ms > ? ORDER BY id LIMIT ?"""
_VOID = """\
DELETE FROM history WHERE (queue, id) IN (
    SELECT queue, id FROM history WHERE queue = ? AND id < ? AND until_ms <= ? LIMIT ?)"""

_VOID_ONE = "DELETE FROM history WHERE queue = ? AND id = ? AND until_ms <= ?"

_key = itemgetter(0, 1)


class SqliteHistory:
    """The verbs on the ledger."""

    counters: Counter[str]
    _database: Database
    _machine_us: Callable[[], int]

    def __init__(self) -> None:
        self._void_next_ms: dict[str, int] = {}

    def record(self, marks: Iterable[Mark], ttl_ms: int) -> None:
        """Add marks, a transaction for each batch, and delete some expired ones."""
        iterator = iter(marks)
        while batch := list(islice(iterator, _BATCH_MARKS)):
            with self._database.transaction() as connection:
                self.counters["batches"] += 1
                self._record(connection, batch, ttl_ms)

    def _record(self, connection: sqlite3.Connection, marks: Sequence[Mark], ttl_ms: int) -> None:
        now_ms = self._machine_us() // 1_000
        puts, ends, tries = _values(marks, now_ms + ttl_ms)
        connection.executemany(_PUT, puts)
        connection.executemany(_END, ends)
        if tries:
            connection.executemany(_TRY, tries)
        for queue in {mark.entry.queue for mark in marks}:
            if now_ms >= self._void_next_ms.get(queue, 0):
                self._void(connection, queue, now_ms, ttl_ms)

    def _recorded_line(self, connection: sqlite3.Connection, entry: Entry) -> Mark | None:
        """The line of an entry, if its put is recorded; an expired line is deleted."""
        now_ms = self._machine_us() // 1_000
        key = (entry.queue, order_key(entry.id), now_ms)
        connection.execute(_VOID_ONE, key)
        for mark in _marks(entry.queue, connection.execute(_FIND, key)):
            if mark.due_ms is not None:
                return mark
        return None

    def recorded(self, entries: Iterable[Entry]) -> list[Mark]:
        """The marks of the entries that are in the ledger: one look-up each."""
        wanted = list(entries)
        found: list[Mark] = []
        with self._database.reading() as connection:
            now_ms = self._machine_us() // 1_000
            self.counters["reads"] += 1
            for queue, row_id in wanted:
                found += _marks(
                    queue, connection.execute(_FIND, (queue, order_key(row_id), now_ms))
                )
        return found

    def history(self, queue: str, minutes: range) -> Iterator[Mark]:
        """The marks of some minutes of entry, in order."""
        after, until = _first(minutes.start), _first(minutes.stop)
        more = len(minutes) > 0
        while more:
            with self._database.reading() as connection:
                now_ms = self._machine_us() // 1_000
                self.counters["reads"] += 1
                page = connection.execute(
                    _PAGE, (queue, after, until, now_ms, _PAGE_MARKS)
                ).fetchall()
            yield from _marks(queue, page)
            more = len(page) == _PAGE_MARKS
            after = page[-1][0] if more else b""

    def _void(self, connection: sqlite3.Connection, queue: str, now_ms: int, ttl_ms: int) -> None:
        """Delete expired rows, `_VOID_MARKS` at most; the next batches delete the others."""
        # Later entries may have expired under a shorter retention; these are deleted later.
        entered = _first((now_ms - ttl_ms) // _MINUTE_MS + 1)
        dropped = connection.execute(_VOID, (queue, entered, now_ms, _VOID_MARKS)).rowcount
        if dropped < _VOID_MARKS:
            self._void_next_ms[queue] = now_ms + _MINUTE_MS


def _values(
    marks: Sequence[Mark], until_ms: int
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The values for `_PUT`, for `_END` and for `_TRY`, each in order of key."""
    puts: list[tuple[Any, ...]] = []
    ends: list[tuple[Any, ...]] = []
    failed: list[tuple[Any, ...]] = []
    for (queue, row_id), due_ms, name, fate, ended_ms, attempt, member, task, tries in marks:
        place = (queue, order_key(row_id))
        if due_ms is not None:
            puts.append((*place, due_ms, name, task, until_ms))
        if fate is not None:
            ends.append((*place, fate, ended_ms, attempt, member, until_ms))
        if tries:
            failed += [(*place, json.dumps({slot_of(one): one}), until_ms) for one in tries]
    return sorted(puts, key=_key), sorted(ends, key=_key), sorted(failed, key=_key)


def _first(minute: int) -> bytes:
    """A bound below the keys of a minute's entries, and above all earlier ones."""
    return order_key(bound(minute * MINUTE_US))[:_TIME_BYTES]


def _marks(queue: str, found: Iterable[tuple[Any, ...]]) -> list[Mark]:
    marks = []
    for key, *told, tries in found:
        mark = Mark.of(Entry(queue, _row_id(queue, key)), *told)
        if tries is not None:
            mark = mark._replace(tries=_tries(queue, key, tries))
        if not mark.is_try:
            marks.append(mark)
    return marks


def _tries(queue: str, key: bytes, text: str) -> tuple[str, ...]:
    try:
        return tuple(json.loads(text).values())
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoreCorrupt(
            f"the history of queue {queue!r} is damaged: tries of message "
            f"{ids.text(_row_id(queue, key))} is {shown(text)}; delete that row, or restore the "
            f"store from a copy."
        ) from error


def _row_id(queue: str, key: object) -> bytes:
    if isinstance(key, bytes) and len(key) == BYTES:
        return from_order_key(key)
    raise StoreCorrupt(
        f"the history of queue {queue!r} is damaged: an id in it is {shown(key)}; delete that row, "
        f"or restore the store from a copy."
    )
