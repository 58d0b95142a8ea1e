"""The rows of messages: written at their births, deleted a second later, read by slices.

Rows of one shard are sent together, the others by replica. The first row that a process places in
a shard is sent with a note for the index (`minutes.py`):

```
 rows ──► a buffer per shard ──100 rows or 1 MiB──────► unlogged batch of one partition
                 └── other rows, notes ─── by replica ► unlogged batches of up to 10 partitions
```
"""

from __future__ import annotations

import logging
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from cassandra.query import UNSET_VALUE, BatchType

from shardq import clock
from shardq.errors import StoreOverread, StoreUnavailable, begun
from shardq.model.ids import birth_us, from_order_key, order_key
from shardq.model.message import Row
from shardq.model.shard import Position, Shard
from shardq.stores.cassandra import cells
from shardq.stores.cassandra.failures import READ_ERRORS
from shardq.stores.cassandra.minutes import NOTED_MAX, Minutes
from shardq.stores.cassandra.stretch import CONDITIONS, READ_SHARDS, Stretch
from shardq.stores.store import Slice, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cassandra.query import BoundStatement

    from shardq.stores.cassandra.session import Session, Write
    from shardq.stores.store import RowMove

log = logging.getLogger(__name__)

SHARD_BATCH_ROWS = 100
SHARD_BATCH_BYTES = 1 << 20
"""Bytes of a batch of one partition, which is one mutation: the server takes 4 MiB or more."""
ACROSS_PARTITIONS = 10
ACROSS_BYTES = 4_500
"""Bytes of an unlogged batch across partitions: the server warns above 10 partitions or 5 KiB."""
MOVE_ROWS = 100
MOVE_BYTES = 40 << 10
"""Bytes of a logged batch: the server refuses 50 KiB (`batch_size_fail_threshold`)."""
MOVE_WINDOW = 8
BUFFER_ROWS = 8_192
BUFFER_BYTES = 8 << 20
DELETE_ROWS = 1_000
FIND_ROWS = 500
DELETED_AFTER_US = 1_000_000
"""A delete's write time is the row's birth and this: later than its insert and all edits."""

_AT_ONCE_US = 1_000_000
_SPAN_CUT = 16
"""A refused part of the ring is cut to a 16th: a refused read takes over 50 ms, an empty one 1."""
_SPAN_MIN = 1 << 32
"""A part of the ring, one in four billion, that holds one partition at most."""
_ROW_BYTES = 100
"""Bytes that the server counts for a row beside its body, text and queue name, rounded up."""
_CELL_BYTES = 24
_TOMBSTONE_BYTES = 64
_NOTE_BYTES = 128
_REFUSED_MAX = 64
_LIMIT_MAX = (1 << 31) - 1
_DUE_MAX = (1 << 63) - 1
_LATELY_MS = 10_800_000
"""Tombstones stay this long: the tables' gc_grace."""
_ANY_DUE = Stretch("", (0,), (0,), -1, None, _DUE_MAX)

_INSERT_PLAIN = (
    "INSERT INTO {}.messages (queue, minute, lane, due, id, body) "
    "VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
_INSERT_FULL = (
    "INSERT INTO {}.messages (queue, minute, lane, due, id, body, headers, state, first, name, "
    'origin, "group", since, key, note, priority) '
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
_DELETE = (
    "DELETE FROM {}.messages USING TIMESTAMP ? "
    "WHERE queue = ? AND minute = ? AND lane = ? AND (due, id) IN ?"
)
_EDIT = (
    "UPDATE {}.messages USING TIMESTAMP ? SET state = ? "
    "WHERE queue = ? AND minute = ? AND lane = ? AND due = ? AND id = ?"
)
# Reads times and ids as numbers and bytes: datetimes and UUIDs would cost more than all else.
_ROWS = (
    "SELECT minute, lane, toUnixTimestamp(due), timeuuidAsBlob(id), body, headers, state.attempt, "
    'timeuuidAsBlob(first), name, toUnixTimestamp(origin), "group", state.claim, '
    "toUnixTimestamp(since), key, toUnixTimestamp(state.not_before), state.error, note, "
    "state.received, priority, state.serial FROM {}.messages"
)
_FIND = f"{_ROWS} WHERE queue = ? AND minute = ? AND lane = ? AND (due, id) IN ?"
_IN_SHARDS = "WHERE queue = ? AND minute IN ? AND lane IN ?"
_TALLIES = (
    "SELECT minute, lane, count(body), count(note), count(state.claim), count(state.not_before) "
    "FROM {}.messages"
)
# An edit of a deleted row leaves a stub, in which the body's write time is null.
_PLACES = "SELECT minute, lane, writetime(body) FROM {}.messages"
_FIRSTS = (
    "SELECT queue, minute, lane, writetime(body), token(queue, minute, lane) FROM {}.messages "
    "WHERE token(queue, minute, lane) > ? AND token(queue, minute, lane) <= ?"
)

_PLAIN = (None, 0, *[None] * 11, 0, 0)
"""The columns after the body of a message that was put without options and never changed."""

_READS = {c: f"{_ROWS} {_IN_SHARDS} {c} PER PARTITION LIMIT ?" for c in CONDITIONS.values()}
_BARE_READS = {c: cql.replace(" body,", " writetime(body),") for c, cql in _READS.items()}
"""Reads of the body's write time in place of the body; a deleted row's stub has neither."""
_COUNTS = {
    c: f"{_TALLIES} {_IN_SHARDS} {c} GROUP BY queue, minute, lane" for c in CONDITIONS.values()
}
_OCCUPIED = {c: f"{_PLACES} {_IN_SHARDS} {c} PER PARTITION LIMIT 1" for c in CONDITIONS.values()}
_FIRST = {c: f"{_FIRSTS} {c} PER PARTITION LIMIT 1 ALLOW FILTERING" for c in CONDITIONS.values()}

_OCCUPIED_QUEUES = (
    "SELECT queue, lane FROM {}.messages WHERE queue IN ? AND minute IN ? AND lane IN ? "
    "AND due > ? AND due <= ? PER PARTITION LIMIT 1"
)

_Asked = tuple[Stretch, int | None]
"""The rows that a read covers, and the most rows of each shard; None: rows are counted."""


class _Piece(NamedTuple):
    """Writes to one partition, not yet in a batch."""

    key: tuple[bytes, ...]
    writes: list[Write]
    bytes: int


class Rows:
    """The verbs on messages.

    Args:
        session: The connection.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._minutes = Minutes(session)
        self._refused: tuple[Stretch, ...] = ()

    # Writing --------------------------------------------------------------------------------------

    def insert_rows(self, rows: Iterable[Row]) -> None:
        """Write rows at their births."""
        noted: set[Shard] = set()
        self._session.write(self._inserts(rows, noted))
        self._minutes.remember(noted)

    def delete(self, positions: Iterable[Position]) -> None:
        """Delete rows a second after their births."""
        self._session.write(self._deletes(positions))

    def move_rows(self, moves: Iterable[RowMove]) -> None:
        """Write new rows and delete old ones: in logged batches or, if too large, in that order."""
        large: list[RowMove] = []
        noted: set[Shard] = set()
        self._session.write(self._moves(moves, large, noted), window=MOVE_WINDOW)
        self._minutes.remember(noted)
        if large:
            self.insert_rows(move.new for move in large)
            with begun("the new rows are written"):
                self.delete(move.old for move in large)

    def edit(self, rows: Iterable[Row]) -> None:
        """Write the states of rows, each at the row's birth + its serial in microseconds."""
        self._session.write(self._edits(rows))

    def _edits(self, rows: Iterable[Row]) -> Iterator[Any]:
        by_shard: dict[Shard, list[Row]] = {}
        for row in rows:
            by_shard.setdefault(row.shard, []).append(row)
        small = []
        for shard, mine in by_shard.items():
            key = cells.partition(shard)
            for n in range(0, len(mine), SHARD_BATCH_ROWS):
                writes = [_edit_write(key, row) for row in mine[n : n + SHARD_BATCH_ROWS]]
                size = sum(_ROW_BYTES + len(shard.queue) + len(one[1][1]) for one in writes)
                if len(writes) > ACROSS_PARTITIONS or size > ACROSS_BYTES:
                    yield self._session.bundle(writes)
                else:
                    small.append(_Piece(key, writes, size))
        yield from self._packed(small)

    def _inserts(self, rows: Iterable[Row], noted: set[Shard]) -> Iterator[Any]:
        """Batches of rows. A shard's note is in the batch of its first row, or in a batch before.

        Consumers may read rows of groups while later ones are written. So for such rows that are
        due at once, a lane's batch is acknowledged before its next batch is sent, and all rows of a
        minute before those of the next minute.

        Args:
            rows: The rows.
            noted: Gets the shards that are noted.

        Yields:
            The batches; None where all batches before it must be acknowledged first.
        """
        waiting: dict[Shard, tuple[list[Row], int]] = {}
        waiting_rows = waiting_bytes = 0
        minutes: dict[int, int] = {}
        sent: set[int] = set()
        for row in rows:
            shard = row[0]
            if row.group is not None and _is_due_at_once(row):
                minute = minutes.get(shard.lane, shard.minute)
                before = shard._replace(minute=minute)
                if minute < shard.minute and (before in waiting or shard.lane in sent):
                    yield None
                    yield from self._left_over(waiting, noted)
                    yield None
                    waiting_rows = waiting_bytes = 0
                    waiting.clear()
                    sent.clear()
                minutes[shard.lane] = max(minute, shard.minute)
            size = _size(row)
            mine, mine_bytes = waiting.get(shard) or ([], 0)
            if mine and (len(mine) >= SHARD_BATCH_ROWS or mine_bytes + size > SHARD_BATCH_BYTES):
                if shard.lane in sent:
                    yield None
                    sent.clear()
                if shard.lane in minutes:
                    sent.add(shard.lane)
                for note in self._notes([mine[0]], noted):
                    yield self._session.bundle(note.writes)
                yield self._session.bundle(_insert_writes(shard, mine))
                waiting_rows -= len(mine)
                waiting_bytes -= mine_bytes
                mine, mine_bytes = [], 0
            mine.append(row)
            waiting[shard] = mine, mine_bytes + size
            waiting_rows += 1
            waiting_bytes += size
            if waiting_rows >= BUFFER_ROWS or waiting_bytes >= BUFFER_BYTES:
                if sent:
                    yield None
                yield from self._left_over(waiting, noted)
                sent.update(minutes)
                waiting.clear()
                waiting_rows = waiting_bytes = 0
        if sent:
            yield None
        yield from self._left_over(waiting, noted)

    def _notes(self, rows: Iterable[Row], noted: set[Shard]) -> list[_Piece]:
        """The notes of shards that are not noted yet; adds these shards to `noted`.

        Args:
            rows: One row of each shard.
            noted: The shards noted in this call.
        """
        is_noted = self._minutes.is_noted
        new = {row[0]: row[2] for row in rows if row[0] not in noted and not is_noted(row[0])}
        if len(noted) >= NOTED_MAX:
            # The set stays small. Later rows of the forgotten shards note them once more.
            noted.clear()
        noted.update(new)
        return [_Piece(*one) for one in self._minutes.writes(new)] if new else []

    def _left_over(
        self, waiting: dict[Shard, tuple[list[Row], int]], noted: set[Shard]
    ) -> Iterator[Any]:
        notes = self._notes([rows[0] for rows, _ in waiting.values()], noted)
        small = []
        for note in notes:
            if len(note.writes) > ACROSS_PARTITIONS or note.bytes > ACROSS_BYTES:
                yield self._session.bundle(note.writes)
            else:
                small.append(note)
        for shard, (rows, size) in waiting.items():
            if len(rows) > ACROSS_PARTITIONS or size > ACROSS_BYTES:
                yield self._session.bundle(_insert_writes(shard, rows))
            else:
                small.append(_Piece(cells.partition(shard), _insert_writes(shard, rows), size))
        yield from self._packed(small)

    def _deletes(self, positions: Iterable[Position]) -> Iterator[Any]:
        waiting: dict[Shard, list[Position]] = {}
        count = 0
        for position in positions:
            shard = position[0]
            mine = waiting.get(shard)
            if mine is None:
                mine = waiting[shard] = []
            mine.append(position)
            count += 1
            if len(mine) >= DELETE_ROWS:
                yield self._session.bundle([_delete_write(cells.partition(shard), mine)])
                count -= len(waiting.pop(shard))
            elif count >= BUFFER_ROWS:
                yield from self._packed(map(_delete_piece, waiting.items()))
                waiting.clear()
                count = 0
        yield from self._packed(map(_delete_piece, waiting.items()))

    def _moves(
        self, moves: Iterable[RowMove], large: list[RowMove], noted: set[Shard]
    ) -> Iterator[Any]:
        """Batches of moves, and of the notes of their new shards.

        Args:
            moves: The moves.
            large: Gets the moves that are too large for a batch.
            noted: Gets the shards that are noted.
        """
        batch: list[RowMove] = []
        batch_bytes = 0
        for move in moves:
            size = _size(move.new) + _TOMBSTONE_BYTES + len(move.old.shard.queue)
            if not self._minutes.is_noted(move.new.shard):
                size += _NOTE_BYTES
            if size > MOVE_BYTES:
                large.append(move)
                continue
            if batch and (len(batch) >= MOVE_ROWS or batch_bytes + size > MOVE_BYTES):
                yield self._moved(batch, noted)
                batch, batch_bytes = [], 0
            batch.append(move)
            batch_bytes += size
        if batch:
            yield self._moved(batch, noted)

    def _moved(self, moves: list[RowMove], noted: set[Shard]) -> Any:
        """One batch of moves. It notes all its new shards: another batch with a note may fail."""
        writes = _move_writes(moves)
        mine: set[Shard] = set()
        for note in self._notes([move.new for move in moves], mine):
            writes += note.writes
        if len(noted) < NOTED_MAX:
            noted.update(mine)
        return self._session.bundle(writes, BatchType.LOGGED)

    def _packed(self, pieces: Iterable[_Piece]) -> Iterator[Any]:
        """Batches of pieces that share their first replica, each below the server's warnings."""
        replica_of = self._session.replica_of
        started: dict[object, list[_Piece]] = {}
        sizes: dict[object, int] = {}
        for piece in pieces:
            replica = replica_of(cells.routing_key(piece.key))
            mine = started.setdefault(replica, [])
            size = sizes.get(replica, 0) + piece.bytes
            if mine and (len(mine) >= ACROSS_PARTITIONS or size > ACROSS_BYTES):
                yield self._session.bundle([write for part in mine for write in part.writes])
                mine = started[replica] = []
                size = piece.bytes
            mine.append(piece)
            sizes[replica] = size
        for mine in started.values():
            yield self._session.bundle([write for part in mine for write in part.writes])

    # Reading --------------------------------------------------------------------------------------

    def find(self, positions: Iterable[Position]) -> list[Row]:
        """The rows that exist at these positions."""
        by_shard: dict[Shard, list[Position]] = {}
        for position in positions:
            by_shard.setdefault(position.shard, []).append(position)
        asked = [
            (shard, mine[n : n + FIND_ROWS])
            for shard, mine in by_shard.items()
            for n in range(0, len(mine), FIND_ROWS)
        ]
        statements = (
            self._session.bound(_FIND, [*cells.partition(shard), cells.positions(mine)])
            for shard, mine in asked
        )
        # A page has minute and lane, but not the queue, so the reads are made queue by queue.
        found: list[Row] = []
        by_queue: dict[str, list[BoundStatement]] = {}
        for (shard, _), statement in zip(asked, statements, strict=True):
            by_queue.setdefault(shard.queue, []).append(statement)
        for queue, mine in by_queue.items():
            for page in self._session.read(mine, "find"):
                found.extend(chain.from_iterable(_by_shard(queue, page).values()))
        return found

    def read(self, *wanted: Slice) -> list[Row]:
        """Rows of slices, by (minute, lane), then (due, row id)."""
        asked = [(Stretch.of(one), one.limit) for one in wanted]
        shards: dict[Shard, list[Row]] = {}
        bodies, purpose = wanted[0].bodies, wanted[0].purpose
        for page in self._pages(_READS if bodies else _BARE_READS, asked, purpose):
            found = page if bodies else _bare(page)
            for shard, rows in _by_shard(wanted[0].queue, found).items():
                shards.setdefault(shard, []).extend(rows)
        least = min(one.limit for one in wanted)
        for shard, rows in shards.items():
            # If a slice was read in halves, each half has returned up to the slice's limit.
            if len(rows) > least:
                del rows[_limit_of(shard, wanted) :]
        # The server returns partitions by token, and orders rows within each.
        return [row for shard in sorted(shards) for row in shards[shard]]

    def count(self, wanted: Slice) -> dict[Shard, Tally]:
        """Rows and claims of each non-empty shard of a slice."""
        tallies: dict[Shard, Tally] = {}
        for shard, rows, notes, claims, waits in self._counted(wanted):
            if rows > notes:
                found = Tally(rows - notes, claims, waits)
                tallies[shard] = found.plus(tallies.get(shard, Tally(0, 0)))
        return dict(sorted(tallies.items()))

    def _counted(self, wanted: Slice) -> Iterator[tuple[Shard, int, int, int, int]]:
        """For each shard: the shard, its rows with notes, notes alone, claims and waits.

        A shard may come in several parts, which the caller adds up.
        """
        for page in self._pages(_COUNTS, [(Stretch.of(wanted), None)], "count"):
            for minute, lane, *counts in page:
                yield Shard(wanted.queue, minute, lane), *counts

    def _pages(
        self, cql: Mapping[str, str], asked: Sequence[_Asked], purpose: str
    ) -> list[list[tuple[Any, ...]]]:
        """The pages of reads; a read of too many tombstones is split into halves."""
        is_known = any(self._is_known(one) for one, _ in asked)
        if not is_known:
            try:
                return list(self._session.read(self._selects(cql, asked), purpose))
            except StoreOverread:
                if not _parts(asked):
                    raise
                log.info("%s of queue %s refused, read in parts", purpose, asked[0][0].queue)
        if len(asked) == 1 and not is_known:
            self._remember(asked[0][0])
        pages: list[list[tuple[Any, ...]]] = []
        for part, limit in _parts(asked):
            pages += self._pages(cql, [(part, limit)], purpose)
            is_in_order = len(asked) == 1 and part.is_of_one_shard
            if is_in_order and limit is not None and sum(map(len, pages)) >= limit:
                break
        return pages

    def _selects(self, cql: Mapping[str, str], asked: Sequence[_Asked]) -> Iterator[Any]:
        for stretch, limit in asked:
            condition, bounds = stretch.bounds()
            if limit is not None:
                bounds.append(cells.int_(min(limit, _LIMIT_MAX)))
            for place in stretch.places():
                yield self._session.bound(cql[condition], [*place, *bounds])

    def _is_known(self, stretch: Stretch) -> bool:
        """True if a stretch covers one whose read was refused before."""
        return any(stretch.covers(refused) for refused in self._refused)

    def _remember(self, refused: Stretch) -> None:
        """Remember a refused stretch, so that any stretch that covers it is split before a read."""
        if refused.is_of_one_shard:
            others = [one for one in self._refused if not one.covers(refused)]
            self._refused = (*others[-_REFUSED_MAX:], refused)

    def total(self, wanted: Slice) -> None:
        """None: each shard is counted by itself."""

    def rows_in(self, queue: str, minutes: range, limit: int) -> None:
        """None: each shard is counted by itself."""

    def seek(self, queue: str, entry: bytes | None, name: str) -> None:
        """None: Cassandra would have to read the whole queue."""

    def occupied(self, queue: str, minutes: Sequence[int], lanes: Sequence[int]) -> list[Shard]:
        """The shards of minutes x lanes with a row, or with too many deleted ones to find out."""
        # The bound on due leaves out partitions that have only the static cells of a lease.
        everything = Stretch(queue, minutes, lanes, -1, None, _DUE_MAX)
        if self._is_known(everything):
            return self._occupied_in_parts(everything)
        condition, bounds = everything.bounds()
        statements = (
            self._session.bound(_OCCUPIED[condition], [*place, *bounds])
            for place in everything.places()
        )
        try:
            places = [
                place for page in self._session.read(statements, "occupied") for place in page
            ]
        except StoreOverread:
            return self._occupied_in_parts(everything)
        else:
            shards = ((Shard(queue, minute, lane), written) for minute, lane, written in places)
            return sorted(shard for shard, written in shards if self._has_row(shard, written))

    def _occupied_in_parts(self, stretch: Stretch) -> list[Shard]:
        if stretch.is_of_one_shard:
            return [Shard(stretch.queue, stretch.minutes[0], stretch.lanes[0])]
        return sorted(
            shard
            for half in stretch.halves()
            for shard in self.occupied(half.queue, half.minutes, half.lanes)
        )

    def occupied_queues(self, wanted: Sequence[Slice]) -> set[str]:
        """The queues that have a row, or a deleted row's stub, in one of their slices."""
        places = {(one.queue, lane) for one in wanted for lane in one.lanes}
        by_minutes: dict[tuple[int, ...], list[Slice]] = {}
        for one in wanted:
            by_minutes.setdefault(tuple(one.minutes), []).append(one)
        statements = (
            self._session.bound(_OCCUPIED_QUEUES, values)
            for minutes, slices in by_minutes.items()
            for values in _queues_of(minutes, slices)
        )
        return {
            queue
            for page in self._session.read(statements, "occupied queues")
            for queue, lane in page
            if (queue, lane) in places
        }

    def next_minute(self, queue: str, minute: int) -> int | None:  # noqa: ARG002 - of none
        """None: Cassandra has no quick way to find the minute."""
        return None

    def indexed(self, queue: str, minutes: range) -> Iterator[Shard]:
        """The shards of a queue in some minutes that may have a row, from the index."""
        return self._minutes.indexed(queue, minutes)

    def mend_index(self, there: Iterable[Shard] = (), gone: Iterable[Shard] = ()) -> None:
        """Add shards with rows to the index, and remove empty ones."""
        self._minutes.mend(there, gone)

    def shards(self, queue: str) -> Iterator[Shard]:
        """Every shard of a queue that has a row; visits the whole table, a page at a time.

        If a read passes more deleted rows than the server allows, its part of the ring is cut. A
        part with a single partition is cut by dues.
        """
        for start, until in self._token_ranges():
            after, span = start, until - start
            while after < until:
                end = min(after + span, until)
                try:
                    for first in self._firsts(after, end, _ANY_DUE):
                        yield from self._named(queue, first)
                        after = first[-1]
                except StoreUnavailable as error:
                    if not isinstance(error.__cause__, READ_ERRORS):
                        raise
                    span = (end - after) // _SPAN_CUT
                    if span < _SPAN_MIN:
                        for first in self._first_in_parts(after, end, _by_age()):
                            yield from self._named(queue, first)
                        after, span = end, _SPAN_MIN
                else:
                    after, span = end, span * _SPAN_CUT

    def _named(self, queue: str, first: tuple[Any, ...]) -> Iterator[Shard]:
        """The shard of a first row, if it belongs to the queue."""
        name, minute, lane, written, _ = first
        if name == queue and self._has_row(shard := Shard(name, minute, lane), written):
            yield shard

    def _firsts(self, after: int, until: int, dues: Stretch) -> Iterator[tuple[Any, ...]]:
        """The first row of each shard of all queues, by token."""
        condition, bounds = dues.bounds()
        values = [cells.bigint(after), cells.bigint(until), *bounds]
        for page in self._session.read([self._session.bound(_FIRST[condition], values)], "shards"):
            yield from page

    def _first_in_parts(
        self, after: int, until: int, parts: Iterable[Stretch]
    ) -> list[tuple[Any, ...]]:
        """The first row between two tokens that have only one shard between them."""
        for part in parts:
            try:
                firsts = list(self._firsts(after, until, part))
            except StoreOverread:
                halves = part.halves()
                if not halves:
                    raise
                firsts = self._first_in_parts(after, until, halves)
            if firsts:
                return firsts
        return []

    def _has_row(self, shard: Shard, first_written: int | None) -> bool:
        """True if a shard has a row.

        Args:
            first_written: The write time of the shard's first row; None if that row is the stub of
                a deleted row. Then the shard's rows are counted.
        """
        if first_written is not None:
            return True
        everything = Slice(shard.queue, [shard.minute], [shard.lane], -1, _DUE_MAX, limit=1)
        return any(rows for _, rows, *_ in self._counted(everything))

    def _token_ranges(self) -> list[tuple[int, int]]:
        """The ring, cut at the nodes' tokens, so that each read stays with one set of replicas."""
        least, most = -(1 << 63), (1 << 63) - 1
        token_map = self._session.cluster.metadata.token_map
        cuts = {token.value for token in token_map.ring} if token_map else set()
        edges = [least, *sorted(cuts - {least, most}), most]
        return list(pairwise(edges))


def _size(row: Row) -> int:
    """At least the bytes that the server counts for a row."""
    size = _ROW_BYTES + len(row[3]) + len(row[0][0])
    if row[4:] != _PLAIN:
        texts = (row.headers, row.name, row.group, row.claim, row.key, row.error, row.received)
        size += 4 * _CELL_BYTES + sum(4 * len(text) + _CELL_BYTES for text in texts if text)
    return size


def _insert_writes(shard: Shard, rows: list[Row]) -> list[Write]:
    queue, minute, lane = cells.partition(shard)
    bigint = cells.bigint
    return [
        (
            _INSERT_PLAIN,
            [queue, minute, lane, bigint(row[1]), row[2], row[3], bigint(birth_us(row[2]))],
        )
        if row[4:] == _PLAIN
        else (_INSERT_FULL, [queue, minute, lane, *_full_values(row)])
        for row in rows
    ]


def _full_values(row: Row) -> list[Any]:
    # Unset, never null: a null would be a tombstone in every empty column of every message.
    _, due_ms, row_id, body, headers, _, first, name, origin_ms, group, *_ = row
    return [
        cells.bigint(due_ms),
        row_id,
        body,
        UNSET_VALUE if headers is None else headers.encode(),
        _state(row, 0) if _has_state(row) else UNSET_VALUE,
        UNSET_VALUE if first is None else first,
        UNSET_VALUE if name is None else name.encode(),
        UNSET_VALUE if origin_ms is None else cells.bigint(origin_ms),
        UNSET_VALUE if group is None else group.encode(),
        UNSET_VALUE if row.since_ms is None else cells.bigint(row.since_ms),
        UNSET_VALUE if row.key is None else row.key.encode(),
        UNSET_VALUE if row.note is None else row.note.encode(),
        cells.int_(row.priority) if row.priority else UNSET_VALUE,
        cells.bigint(birth_us(row_id)),
    ]


def _has_state(row: Row) -> bool:
    state = row.attempt, row.claim, row.not_before_ms, row.error, row.received
    return state != (0, None, None, None, None)


def _state(row: Row, serial: int) -> bytes:
    """The fields of a row that an edit changes, as a value of the type `message_state`."""
    not_before_ms, claim, error = row.not_before_ms, row.claim, row.error
    return cells.record(
        [
            cells.int_(serial),
            cells.int_(row.attempt),
            None if not_before_ms is None else cells.bigint(not_before_ms),
            None if claim is None else claim.encode(),
            None if error is None else error.encode(),
            None if row.received is None else row.received.encode(),
        ]
    )


def _edit_write(key: tuple[bytes, bytes, bytes], row: Row) -> Write:
    at_us = birth_us(row.id) + row.serial
    values = [cells.bigint(at_us), _state(row, row.serial), *key, cells.bigint(row.due_ms), row.id]
    return _EDIT, values


def _delete_write(key: tuple[bytes, bytes, bytes], positions: list[Position]) -> Write:
    last = max([order_key(position[2]) for position in positions])
    at_us = birth_us(from_order_key(last)) + DELETED_AFTER_US
    return _DELETE, [cells.bigint(at_us), *key, cells.positions(positions)]


def _delete_piece(waiting: tuple[Shard, list[Position]]) -> _Piece:
    shard, positions = waiting
    key = cells.partition(shard)
    size = _TOMBSTONE_BYTES * len(positions) + len(shard.queue)
    return _Piece(key, [_delete_write(key, positions)], size)


def _move_writes(moves: list[RowMove]) -> list[Write]:
    writes: list[Write] = []
    new: dict[Shard, list[Row]] = {}
    old: dict[Shard, list[Position]] = {}
    for move in moves:
        new.setdefault(move.new.shard, []).append(move.new)
        old.setdefault(move.old.shard, []).append(move.old)
    for shard, rows in new.items():
        writes.extend(_insert_writes(shard, rows))
    writes.extend(_delete_write(cells.partition(shard), mine) for shard, mine in old.items())
    return writes


def _by_age() -> Iterator[Stretch]:
    """All dues in three parts; most rows that were deleted lately were due in the middle part."""
    now_ms = clock.machine_us() // 1_000
    edges = -1, now_ms - _LATELY_MS, now_ms + _LATELY_MS, _DUE_MAX
    for after_ms, until_ms in pairwise(edges):
        yield _ANY_DUE._replace(after_ms=after_ms, until_ms=until_ms)


def _parts(asked: Sequence[_Asked]) -> Sequence[_Asked]:
    """Smaller reads in place of a refused one; empty if it cannot be split."""
    if len(asked) > 1:
        return asked
    ((stretch, limit),) = asked
    return [(half, limit) for half in stretch.halves()]


def _queues_of(minutes: Sequence[int], slices: Sequence[Slice]) -> Iterator[list[bytes]]:
    """The values of each query for the queues of slices; all lanes are asked for in each queue."""
    lanes = sorted({lane for one in slices for lane in one.lanes})
    step = max(1, READ_SHARDS // max(len(minutes) * len(lanes), 1))
    for n in range(0, len(slices), step):
        some = slices[n : n + step]
        yield [
            cells.listed({one.queue.encode() for one in some}),
            cells.bigints(minutes),
            cells.ints(lanes),
            cells.bigint(min(one.after_ms for one in some)),
            cells.bigint(max(one.until_ms for one in some)),
        ]


def _is_due_at_once(row: Row) -> bool:
    """True if a row was due within a second of its birth: it may be read as soon as it exists."""
    return row.due_ms * 1_000 - birth_us(row.id) <= _AT_ONCE_US


def _limit_of(shard: Shard, wanted: Sequence[Slice]) -> int:
    return next(
        one.limit for one in wanted if shard.minute in one.minutes and shard.lane in one.lanes
    )


def _bare(page: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A page with an empty body in place of each body's write time."""
    return [(*one[:4], None if one[4] is None else b"", *one[5:]) for one in page]


def _by_shard(queue: str, page: list[tuple[Any, ...]]) -> dict[Shard, list[Row]]:
    """The rows of a page, with one Shard object for all rows of a shard."""
    shards: dict[Shard, list[Row]] = {}
    shard = Shard(queue, -1, -1)
    rows: list[Row] = []
    # The tuple's constructor: Row's own would double the cost of the loop.
    new = tuple.__new__
    for minute, lane, due, row_id, body, headers, attempt, *rest, priority, serial in page:
        if minute != shard[1] or lane != shard[2] or not shards:
            shard = Shard(queue, minute, lane)
            rows = shards.setdefault(shard, [])
        # An edit of a row that is gone leaves a stub without a body.
        if body is not None:
            rows.append(new(Row, (
                shard, due, row_id, body, headers, attempt or 0, *rest, priority or 0, serial or 0,
            )))  # fmt: skip
    return shards
