"""The ledger: the put, the end and the failures of each message, in plain cells with a TTL.

```
 put ──► due, name, task              USING TIMESTAMP birth
 end ──► fate, ended, attempt, member USING TIMESTAMP birth - (ended - birth)
 try ──► tries[attempt % 100]         USING TIMESTAMP ended
```

A put may be repeated any number of times. Of several ends the earliest stands, in whatever order
they arrive, because a later end has an older write time. There are no LWTs and no deletes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.model.ids import birth_us
from shardq.model.shard import spans
from shardq.stores.cassandra import cells
from shardq.stores.store import PARTS, Entry, Mark, slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardq.stores.cassandra.session import Session, Write
    from shardq.stores.store import Place

_BATCH_MARKS = 200
"""Marks of one batch, about 20 kB; the server's limits are for batches across partitions."""
BUFFER_MARKS = 8_192
FIND_MARKS = 500
READ_MINUTES = 5
"""Minutes of one statement, 16 partitions each, which a node reads one by one: an idle day takes
0.5 s, with 30 minutes a statement 1.3 s."""

_ALL_PARTS = cells.ints(range(PARTS))

_PUT = (
    "INSERT INTO {}.history (queue, minute, part, id, due) VALUES (?, ?, ?, ?, ?) "
    "USING TIMESTAMP ? AND TTL ?"
)
_PUT_NAMED = (
    "INSERT INTO {}.history (queue, minute, part, id, due, name) VALUES (?, ?, ?, ?, ?, ?) "
    "USING TIMESTAMP ? AND TTL ?"
)
_PUT_JOB = (
    "INSERT INTO {}.history (queue, minute, part, id, due, task) VALUES (?, ?, ?, ?, ?, ?) "
    "USING TIMESTAMP ? AND TTL ?"
)
_PUT_NAMED_JOB = (
    "INSERT INTO {}.history (queue, minute, part, id, due, name, task) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
)
_PUTS = {(False, False): _PUT, (True, False): _PUT_NAMED, (False, True): _PUT_JOB,
         (True, True): _PUT_NAMED_JOB}  # fmt: skip
"""(has a name, has a task) -> the statement, which leaves the other columns unset."""
_END = (
    "INSERT INTO {}.history (queue, minute, part, id, fate, ended, attempt, member) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
)
_TRY = (
    "UPDATE {}.history USING TIMESTAMP ? AND TTL ? SET tries[?] = ? "
    "WHERE queue = ? AND minute = ? AND part = ? AND id = ?"
)
_MARKS = (
    "SELECT timeuuidAsBlob(id), toUnixTimestamp(due), name, fate, toUnixTimestamp(ended), attempt, "
    "member, task, tries FROM {}.history WHERE queue = ? "
)
_FIND = _MARKS + "AND minute = ? AND part = ? AND id IN ?"
_READ = _MARKS + "AND minute IN ? AND part IN ?"


class Logs:
    """The verbs on the ledger.

    Args:
        session: The connection.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def record(self, marks: Iterable[Mark], ttl_ms: int) -> None:
        """Add marks: unlogged batches, each of one partition."""
        self._session.write(self._batches(marks, cells.seconds(ttl_ms)))

    def recorded(self, entries: Iterable[Entry]) -> list[Mark]:
        """The marks of the entries that are in the ledger: one read a partition."""
        by_queue: dict[str, dict[Place, list[bytes]]] = {}
        for entry in entries:
            partitions = by_queue.setdefault(entry.queue, {})
            partitions.setdefault(entry.place, []).append(entry.id)
        found: list[Mark] = []
        for queue, partitions in by_queue.items():
            statements = [
                self._session.bound(
                    _FIND, [*cells.partition(place), cells.uuids(ids[n : n + FIND_MARKS])]
                )
                for place, ids in partitions.items()
                for n in range(0, len(ids), FIND_MARKS)
            ]
            for page in self._session.read(statements, "ledger"):
                found += _marks(queue, page)
        return found

    def history(self, queue: str, minutes: range) -> Iterator[Mark]:
        """The marks of some minutes of entry."""
        statements = (
            self._session.bound(_READ, [queue.encode(), cells.bigints(some), _ALL_PARTS])
            for some in spans(minutes, READ_MINUTES)
        )
        for page in self._session.read(statements, "history"):
            yield from _marks(queue, page)

    def _batches(self, marks: Iterable[Mark], ttl: bytes) -> Iterator[Any]:
        waiting: dict[Place, list[Mark]] = {}
        count = 0
        for mark in marks:
            place = mark[0].place
            mine = waiting.get(place)
            if mine is None:
                mine = waiting[place] = []
            mine.append(mark)
            count += 1
            if len(mine) >= _BATCH_MARKS:
                yield self._batch(place, waiting.pop(place), ttl)
                count -= _BATCH_MARKS
            elif count >= BUFFER_MARKS:
                for other, left in waiting.items():
                    yield self._batch(other, left, ttl)
                waiting.clear()
                count = 0
        for place, left in waiting.items():
            yield self._batch(place, left, ttl)

    def _batch(self, place: Place, marks: list[Mark], ttl: bytes) -> Any:
        key = cells.partition(place)
        return self._session.bundle([_write_of(key, mark, ttl) for mark in marks])


def _write_of(key: tuple[bytes, bytes, bytes], mark: Mark, ttl: bytes) -> Write:
    """The statement that writes a mark into the ledger's partition with this key."""
    (_, row_id), due_ms, name, fate, ended_ms, attempt, member, task, tries = mark
    born_us = birth_us(row_id)
    bigint = cells.bigint
    if fate is not None:
        # The end's clock may be behind the put's. An end's write time is never after the put's.
        written_us = max(born_us - max(ended_ms * 1_000 - born_us, 0), 1)
        return _END, [
            *key,
            row_id,
            fate.encode(),
            bigint(ended_ms),
            cells.int_(attempt),
            member.encode(),
            bigint(written_us),
            ttl,
        ]
    if tries:
        [text] = tries
        _, ended, _ = text.split(":", 2)
        slot = cells.int_(slot_of(text))
        return _TRY, [bigint(int(ended) * 1_000), ttl, slot, text.encode(), *key, row_id]
    texts = [text.encode() for text in (name, task) if text is not None]
    put = _PUTS[name is not None, task is not None]
    return put, [*key, row_id, bigint(due_ms or 0), *texts, bigint(born_us), ttl]


def _marks(queue: str, page: Iterable[tuple[Any, ...]]) -> list[Mark]:
    marks = []
    for row_id, *told, tries in page:
        mark = Mark.of(Entry(queue, row_id), *told)
        if tries:
            mark = mark._replace(tries=tuple(tries.values()))
        if not mark.is_try:
            marks.append(mark)
    return marks
