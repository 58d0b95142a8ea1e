"""Queues in SQLite: in a file, shared by the processes of one machine, or in memory.

`schema.py` has the tables, `database.py` connections, threads and forks, `failures.py` SQLite's
errors, `history.py` the ledger.

No outcome is ever unknown here: a commit that fails is rolled back before the error is raised.
Nothing is replayed, so no tombstone has to outlive its row as in Cassandra. The one exception, a
disk that fails during a write, is a `StoreTimeout`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice, product
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from shardq import clock
from shardq.errors import StoreCorrupt
from shardq.model.ids import order_key
from shardq.model.message import Row
from shardq.model.shard import LANE_LEASE, Shard
from shardq.stores.sqlite import schema
from shardq.stores.sqlite.address import BUSY_MS, read_url
from shardq.stores.sqlite.database import Database
from shardq.stores.sqlite.history import SqliteHistory
from shardq.stores.sqlite.registers import IN_FORCE, SqliteRegisters
from shardq.stores.store import NEVER, NO_MARKS, NO_TIMES, LeaseState, Tally, Total, by_queue

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from shardq.model.shard import Position
    from shardq.stores.store import Mark, RowMove, Slice, WriteOnce
    from shardq.stores.tables import Change

NODE = "sqlite"

_BATCH_ROWS = 20_000
"""Rows of a transaction: 0.3 s. They are sorted by key, so that each page is written once."""
_BATCH_BYTES = 8 << 20
_PAGE_SHARDS_FIRST, _PAGE_SHARDS = 16, 500
_READ_BEFORE_US = 1_000_000
"""A reader may have read the time since boot this long before it compares a row's with it."""

_COLUMNS = (
    "body", "headers", "attempt", "first", "name", "origin", "in_group", "claim", "since", "key",
    "not_before", "error", "note", "received", "priority",
)  # fmt: skip
"""The columns of a row after its key, without the serial, which an insert leaves at 0."""
_PLAIN = [None] * 11 + [0, 0]
"""The columns after the attempt, for a row that was put without options."""
_DELETE = "DELETE FROM messages WHERE queue = ? AND minute = ? AND lane = ? AND due = ? AND id = ?"
_EDIT = """\
UPDATE messages SET attempt = ?, not_before = ?, claim = ?, error = ?, received = ?, serial = ?
WHERE queue = ? AND minute = ? AND lane = ? AND due = ? AND id = ? AND serial < ?"""
_FIND = """\
SELECT due, id, body, headers, attempt, first, name, origin, in_group, claim, since, key,
    not_before, error, note, received, priority, serial
FROM messages
WHERE queue = ? AND minute = ? AND lane = ? AND due = ? AND id = ?"""
_READ = """\
SELECT due, id, body, headers, attempt, first, name, origin, in_group, claim, since, key,
    not_before, error, note, received, priority, serial
FROM messages
WHERE queue = ? AND minute = ? AND lane = ? AND due <= ? AND due > ?
ORDER BY due, id LIMIT ?"""
_READ_FROM_ID = """\
SELECT due, id, body, headers, attempt, first, name, origin, in_group, claim, since, key,
    not_before, error, note, received, priority, serial
FROM messages
WHERE queue = ? AND minute = ? AND lane = ? AND due <= ? AND (due, id) > (?, ?)
ORDER BY due, id LIMIT ?"""
_NO_BODY = "iif(typeof(body) = 'blob', x'', body)"
"""Reads only the body's type, from the row's head. A damaged body is read, for its error."""
_BARE = {one: one.replace(" body,", f" {_NO_BODY},") for one in (_READ, _READ_FROM_ID)}
_COUNT = """\
SELECT count(*) - count(note), count(claim), count(not_before) FROM messages
WHERE queue = ? AND minute = ? AND lane = ? AND due <= ? AND due > ?"""
_COUNT_FROM_ID = """\
SELECT count(*) - count(note), count(claim), count(not_before) FROM messages
WHERE queue = ? AND minute = ? AND lane = ? AND due <= ? AND (due, id) > (?, ?)"""
_COUNT_EACH = """\
SELECT minute, lane, count(*) - count(note), count(claim), count(not_before) FROM messages
WHERE queue = ? AND minute >= ? AND minute < ? AND due <= ? AND due > ?
    AND lane IN (SELECT value FROM json_each(?))
GROUP BY minute, lane"""
_TOTAL = """\
SELECT count(*) - count(note), count(claim), count(not_before) FROM messages
WHERE queue = ? AND minute >= ? AND minute < ? AND due <= ? AND due > ?
    AND lane IN (SELECT value FROM json_each(?))"""
_SEEK = (
    _READ.partition("WHERE")[0]
    .replace("SELECT ", "SELECT minute, lane, ")
    .replace(" body,", f" {_NO_BODY},")
    + """\
WHERE queue = ? AND (id = ? OR first = ? OR name = ?) AND note IS NULL"""
)
_ROWS_IN = """\
SELECT count(*) FROM (
    SELECT 1 FROM messages WHERE queue = ? AND minute >= ? AND minute < ? LIMIT ?)"""
_MINUTE_AT = """\
SELECT minute FROM messages WHERE queue = ? AND minute >= ? AND minute < ?
ORDER BY minute, lane, due LIMIT 1 OFFSET ?"""
_OCCUPIED = """\
SELECT minutes.value, lanes.value FROM json_each(?) AS minutes CROSS JOIN json_each(?) AS lanes
WHERE EXISTS (SELECT 1 FROM messages
    WHERE queue = ? AND minute = minutes.value AND lane = lanes.value)"""
_OCCUPIED_QUEUES = """\
SELECT DISTINCT json_extract(wanted.value, '$[0]') FROM json_each(?) AS wanted
CROSS JOIN json_each(wanted.value, '$[1]') AS minutes
CROSS JOIN json_each(wanted.value, '$[2]') AS lanes
WHERE EXISTS (SELECT 1 FROM messages
    WHERE queue = json_extract(wanted.value, '$[0]')
        AND minute = minutes.value AND lane = lanes.value
        AND due > json_extract(wanted.value, '$[3]')
        AND due <= json_extract(wanted.value, '$[4]'))"""
_NEXT_MINUTE = """\
SELECT minute FROM messages WHERE queue = ? AND minute >= ? ORDER BY minute LIMIT 1"""
_NEXT_SHARD = """\
SELECT minute, lane FROM messages WHERE queue = ? AND (minute, lane) > (?, ?) AND minute < ?
ORDER BY minute, lane LIMIT 1"""

_LEASE = f"""\
SELECT lock, holder, window, {IN_FORCE},
    iif(space = :space, ahead_us - :ahead_us, until_us - :now_us)
FROM leases
WHERE queue = :queue AND minute = :minute AND lane = :lane"""
_TAKE = """\
INSERT INTO leases (queue, minute, lane, lock, holder, window,
    until_us, space, from_boot_us, until_boot_us, ahead_us)
VALUES (:queue, :minute, :lane, :lock, :holder, :window,
    :until_us, :space, :from_boot_us, :until_boot_us, :ahead_us)
ON CONFLICT (queue, minute, lane) DO UPDATE SET
    lock = :lock, holder = :holder, window = :window, until_us = :until_us,
    space = :space, from_boot_us = :from_boot_us, until_boot_us = :until_boot_us,
    ahead_us = max(:ahead_us, iif(space = :space, ahead_us, until_us - :boot_us))"""
_RENEW = f"""\
UPDATE leases SET until_us = :until_us, space = :space, from_boot_us = :from_boot_us,
    until_boot_us = :until_boot_us, ahead_us = max(ahead_us, :ahead_us)
WHERE queue = :queue AND minute = :minute AND lane = :lane AND lock = :lock AND {IN_FORCE}"""
_RELEASE = f"""\
DELETE FROM leases
WHERE queue = :queue AND minute = :minute AND lane = :lane AND lock = :lock AND {IN_FORCE}"""
_SET_BACK_US = 100_000
"""Two clocks that a busy machine reads in turn may seem to differ by less than this."""
_WAITING = """\
SELECT lane, minute, due FROM waiting WHERE queue = ? AND lane IN (SELECT value FROM json_each(?))
ORDER BY lane, minute"""
_LIST = "INSERT OR REPLACE INTO waiting (queue, lane, minute, due) VALUES (?, ?, ?, ?)"
_UNLIST = "DELETE FROM waiting WHERE queue = ? AND lane = ? AND minute = ?"
_SYNCHRONOUS = {"full": "FULL", "normal": "NORMAL"}

_key = itemgetter(0, 1, 2, 3, 4)
_Values: TypeAlias = "tuple[Any, ...]"

Item = TypeVar("Item")


class SqliteStore(SqliteRegisters, SqliteHistory):
    """The store of `shardq.stores.store.Store` in one SQLite database.

    Args:
        path: The file, which is made if it does not exist; its directory is not. None: in memory.
        synchronous: `full`: each commit is on the disk. `normal`: a power failure may undo the last
            commits, the death of a process never does.
        busy_ms: How long a call waits for other processes' writes before it is `StoreUnavailable`.
        read_only: True to refuse every write by `StoreRefused`, as also for a file or directory
            that this user cannot write.
        machine_us: The machine's clock, epoch microseconds.
        boot_time: Time since boot, by which leases and members expire.

    Attributes:
        is_local: True: this machine's clock gives the time.
        write_timeout_ms: 0: every outcome is known.
    """

    is_local = True
    write_timeout_ms = 0

    def __init__(
        self,
        path: Path | None = None,
        *,
        synchronous: str = "full",
        busy_ms: int = BUSY_MS,
        read_only: bool = False,
        machine_us: Callable[[], int] = clock.machine_us,
        boot_time: Callable[[], clock.BootTime] = clock.boot_time,
    ) -> None:
        super().__init__()
        # Absolute, because it is opened again after a fork, maybe in another working directory.
        self.path = None if path is None else path.absolute()
        self.synchronous = synchronous
        self.busy_ms = busy_ms
        self.counters: Counter[str] = Counter()
        self._machine_us = machine_us
        self._boot_time = boot_time
        self._database = Database(
            self.path,
            synchronous=_SYNCHRONOUS[synchronous],
            busy_ms=busy_ms,
            read_only=read_only,
        )

    @classmethod
    def from_url(cls, url: str) -> SqliteStore:
        """The store of a url, not yet opened.

        Args:
            url: `sqlite:///jobs.db` (relative), `sqlite:////var/jobs.db` (absolute) or `sqlite://`
                (memory), with the options `?synchronous=full|normal&busy=10s&mode=ro`.

        Raises:
            BadUrl: If the url names no file, or an option is unknown or unreadable.
        """
        path, options = read_url(url)
        return cls(path, **options)

    @staticmethod
    def schema_text() -> str:
        """The SQL that makes the tables; opens nothing."""
        return schema.schema_text()

    def open(self, *, create: bool = False) -> None:  # noqa: ARG002 - it always does
        """Connect, and create or migrate the tables. Idempotent.

        Raises:
            SchemaMissing: If the file is another program's database, or has a format from before
                0.1.0.
            SchemaNewer: If a newer shardq made it.
            StoreCorrupt: If the file is not a database.
            StoreRefused: If this Python's SQLite is too old.
            StoreUnavailable: If the file cannot be opened, or stays locked.
        """
        self._database.open()

    @property
    def beside(self) -> Path | None:
        """A directory beside the file, the same under any link to it; None if nothing is written.

        It need not exist.
        """
        return self._database.beside

    @property
    def log_bytes(self) -> int:
        """The size of the log beside the file; 0 if there is none."""
        return self._database.log_bytes

    def close(self) -> None:
        """Close the connections, which ends a database in memory. Idempotent."""
        self._database.close()

    # Rows ----------------------------------------------------------------------------------------

    def insert(self, rows: Iterable[Row], once: WriteOnce | None = None) -> Mark | None:
        """Write rows, a transaction a batch; with `once` one for all, if its line is missing.

        Idempotent while the rows exist. Rows are gathered before the write lock is taken, so that
        nobody waits for a slow iterable.
        """
        if once is not None:
            return self._insert_once(rows, once)
        if isinstance(rows, tuple) and len(rows) == 1:
            statement, values = _inserted(rows[0])
            self._write(statement, values)
            return None
        for batch in _cut(rows, _row_bytes):
            inserts = _inserts(batch)
            with self._database.transaction() as connection:
                self.counters["batches"] += 1
                _insert(connection, inserts)
        return None

    def _insert_once(self, rows: Iterable[Row], once: WriteOnce) -> Mark | None:
        inserts = _inserts(rows)
        with self._database.transaction() as connection:
            before = self._recorded_line(connection, once.line.entry)
            if before is not None:
                return before
            self.counters["batches"] += 1
            _insert(connection, inserts)
            if once.marks:
                self._record(connection, once.marks, once.ttl_ms)
            self._record(connection, [once.line], once.line_ttl_ms)
        return None

    def delete(self, positions: Iterable[Position]) -> None:
        """Delete rows. Idempotent."""
        left = iter(positions)
        while batch := [_placed(position) for position in islice(left, _BATCH_ROWS)]:
            batch.sort()
            self._write_many(_DELETE, batch)

    def find(self, positions: Iterable[Position]) -> list[Row]:
        """The rows that exist at these positions: one look-up each, 5 us."""
        wanted = [(position.shard, _placed(position)) for position in positions]
        found: list[Row] = []
        with self._database.reading() as connection:
            for shard, place in wanted:
                found += _rows(shard, connection.execute(_FIND, place))
            self._count_read(len(found), "find")
        return found

    def move(
        self,
        moves: Iterable[RowMove],
        marks: Mapping[Position, Sequence[Mark]] = NO_MARKS,
        kept_ms: Mapping[str, int] = NO_TIMES,
    ) -> set[Position]:
        """Do the moves whose old rows exist, with their marks; a transaction for each batch."""
        gone: set[Position] = set()
        for batch in _cut(moves, _move_bytes):
            with self._database.transaction() as connection:
                self.counters["batches"] += 1
                done = []
                for move in batch:
                    if connection.execute(_DELETE, _placed(move.old)).rowcount:
                        done.append(move)
                    else:
                        gone.add(move.old)
                _insert(connection, _inserts(move.new for move in done))
                self._note_all(connection, [move.note for move in done if move.note is not None])
                recorded = [mark for move in done for mark in marks.get(move.old, ())]
                for queue, some in by_queue(recorded).items():
                    self._record(connection, some, kept_ms[queue])
        return gone

    def edit(self, rows: Iterable[Row]) -> None:
        """Edit rows that exist with lower serials; a transaction for each batch."""
        for batch in _cut(rows, _edit_bytes):
            self._write_many(_EDIT, list(map(_edited, batch)))

    def read(self, *wanted: Slice) -> list[Row]:
        """Rows of slices in order: one statement a shard, 12 us for an empty one."""
        found: dict[Shard, list[Row]] = {}
        with self._database.reading() as connection:
            for queue, minutes, lanes, after_ms, until_ms, limit, after_id, *_ in wanted:
                after = (until_ms, after_ms, *(() if after_id is None else (order_key(after_id),)))
                statement = _READ if after_id is None else _READ_FROM_ID
                if not wanted[0].bodies:
                    statement = _BARE[statement]
                for place in product((queue,), minutes, lanes):
                    if rows := connection.execute(statement, (*place, *after, limit)).fetchall():
                        shard = Shard(*place)
                        found[shard] = _rows(shard, rows)
            self._count_read(sum(map(len, found.values())), wanted[0].purpose)
        return [row for shard in sorted(found) for row in found[shard]]

    def count(self, wanted: Slice) -> dict[Shard, Tally]:
        """Rows and claims of each non-empty shard of a slice."""
        after: tuple[Any, ...] = (wanted.until_ms, wanted.after_ms)
        statement = _COUNT
        if wanted.after_id is not None:
            statement, after = _COUNT_FROM_ID, (*after, order_key(wanted.after_id))
        tallies = {}
        with self._database.reading() as connection:
            self.counters["reads"] += 1
            if isinstance(wanted.minutes, range) and wanted.after_id is None:
                minutes, lanes = wanted.minutes, json.dumps(list(wanted.lanes))
                place = (wanted.queue, minutes.start, minutes.stop, *after, lanes)
                return {
                    Shard(wanted.queue, minute, lane): Tally(*counts)
                    for minute, lane, *counts in connection.execute(_COUNT_EACH, place)
                    if counts[0]
                }
            for minute, lane in _occupied(connection, wanted.queue, wanted.minutes, wanted.lanes):
                key = (wanted.queue, minute, lane, *after)
                tally = Tally(*connection.execute(statement, key).fetchone())
                if tally.rows:
                    tallies[Shard(wanted.queue, minute, lane)] = tally
        return tallies

    def total(self, wanted: Slice) -> Total | None:
        """Rows and claims of all shards of a slice together; 0.3 us a row."""
        minutes, end = wanted.minutes, NEVER
        place = (wanted.queue, minutes[0], minutes[-1] + 1)
        with self._database.reading() as connection:
            self.counters["reads"] += 1
            asked = (*place, wanted.limit)
            if wanted.limit and (behind := connection.execute(_MINUTE_AT, asked).fetchone()):
                end = behind[0]
                place = (wanted.queue, minutes[0], end)
            lanes = json.dumps(list(wanted.lanes))
            within = (*place, wanted.until_ms, wanted.after_ms, lanes)
            return Total(Tally(*connection.execute(_TOTAL, within).fetchone()), end)

    def rows_in(self, queue: str, minutes: range, limit: int) -> int | None:
        """How many rows and notes some minutes have; 0.05 us a row."""
        asked = (queue, minutes.start, minutes.stop, limit + 1)
        with self._database.reading() as connection:
            self.counters["reads"] += 1
            count: int = connection.execute(_ROWS_IN, asked).fetchone()[0]
        return count

    def seek(self, queue: str, entry: bytes | None, name: str) -> list[Row] | None:
        """The rows of a message; 0.15 us for each row of the queue."""
        wanted = (queue, None if entry is None else order_key(entry), entry, name)
        with self._database.reading() as connection:
            self.counters["reads"] += 1
            found = connection.execute(_SEEK, wanted).fetchall()
        return [row for one in found for row in _rows(Shard(queue, *one[:2]), [one[2:]])]

    def occupied(self, queue: str, minutes: Sequence[int], lanes: Sequence[int]) -> list[Shard]:
        """The shards of minutes x lanes that have a row, in order; one statement, 2 us a shard."""
        with self._database.reading() as connection:
            self.counters["reads"] += 1
            found = _occupied(connection, queue, minutes, lanes)
        return [Shard(queue, minute, lane) for minute, lane in found]

    def occupied_queues(self, wanted: Sequence[Slice]) -> set[str]:
        """The queues of slices that have a row there."""
        asked = json.dumps(
            [
                (one.queue, list(one.minutes), list(one.lanes), one.after_ms, one.until_ms)
                for one in wanted
            ]
        )
        with self._database.reading() as connection:
            found = {queue for (queue,) in connection.execute(_OCCUPIED_QUEUES, (asked,))}
            self._count_read(len(found), "occupied queues")
        return found

    def next_minute(self, queue: str, minute: int) -> int | None:
        """The first minute, from this one on, in which a queue has a row; one look-up, 5 us."""
        with self._database.reading() as connection:
            found = connection.execute(_NEXT_MINUTE, (queue, minute)).fetchone()
        return found[0] if found else NEVER

    def shards(self, queue: str) -> Iterator[Shard]:
        """Every shard of a queue that has a row, in order."""
        return self.indexed(queue, range(NEVER))

    def mend_index(self, there: Iterable[Shard] = (), gone: Iterable[Shard] = ()) -> None:
        """Do nothing: the key of the table is the index."""

    def indexed(self, queue: str, minutes: range) -> Iterator[Shard]:
        """The shards of some minutes that have a row, in order; skips from shard to shard."""
        minute, lane = minutes.start, -1
        size, page = _PAGE_SHARDS_FIRST, [Shard(queue, minute, lane)]
        while page:
            page = []
            with self._database.reading() as connection:
                self.counters["reads"] += 1
                while len(page) < size and (
                    found := connection.execute(
                        _NEXT_SHARD, (queue, minute, lane, minutes.stop)
                    ).fetchone()
                ):
                    minute, lane = found
                    page.append(Shard(queue, minute, lane))
            yield from page
            size = min(2 * size, _PAGE_SHARDS)

    def _follow(self, connection: sqlite3.Connection, done: Sequence[Change]) -> None:
        _insert(connection, _inserts(row for change in done for row in change.insert))
        deleted = [_placed(place) for change in done for place in change.delete]
        connection.executemany(_DELETE, sorted(deleted))

    # Leases --------------------------------------------------------------------------------------

    def take(
        self, seen: Mapping[Shard, str | None], *, lock: str, holder: str, window: int, ttl_ms: int
    ) -> dict[Shard, LeaseState]:
        """Lease shards that nobody leases and whose `holder` is the one seen; one transaction."""
        states = {}
        with self._lease_changes(len(seen)) as connection:
            now = self._now(ttl_ms)
            ours = LeaseState(lock, holder, window)
            for shard, expected in seen.items():
                state = _lease_state(connection, shard, now)
                if state.lock is None and state.holder == expected:
                    connection.execute(_TAKE, now | shard._asdict() | ours._asdict())
                    state = ours
                states[shard] = state
        return states

    def renew(self, locks: Mapping[Shard, str], ttl_ms: int) -> set[Shard]:
        """Extend our leases to their full time again; returns those that are still ours."""
        with self._lease_changes(len(locks)) as connection:
            now = self._now(ttl_ms)
            return {
                shard
                for shard, lock in locks.items()
                if connection.execute(_RENEW, now | shard._asdict() | {"lock": lock}).rowcount
            }

    def release(self, locks: Mapping[Shard, str]) -> None:
        """Release our leases; those no longer ours stay as they are."""
        with self._lease_changes(len(locks)) as connection:
            now = self._now()
            connection.executemany(
                _RELEASE, [now | shard._asdict() | {"lock": lock} for shard, lock in locks.items()]
            )

    def lease_states(self, shards: Sequence[Shard]) -> dict[Shard, LeaseState]:
        """The lease states of shards, whether they have rows or not."""
        with self._database.reading() as connection:
            now = self._now()
            self.counters["reads"] += 1
            return {shard: _lease_state(connection, shard, now) for shard in shards}

    def locks(self, positions: Iterable[Position]) -> dict[Shard, LeaseState]:
        """Lease states of the shards of those rows that exist."""
        return self.lease_states(list({row.shard for row in self.find(positions)}))

    def lane_locks(self, queue: str, lanes: Sequence[int]) -> dict[int, LeaseState]:
        """Lease states of lanes for groups."""
        states = self.lease_states([Shard(queue, LANE_LEASE, lane) for lane in lanes])
        return {shard.lane: state for shard, state in states.items() if state != LeaseState()}

    def waiting(self, queue: str, lanes: Sequence[int]) -> dict[int, dict[int, int]]:
        """The listed minutes of lanes for groups."""
        found: dict[int, dict[int, int]] = {}
        with self._database.reading() as connection:
            self.counters["reads"] += 1
            asked = (queue, json.dumps(list(lanes)))
            for lane, minute, due_ms in connection.execute(_WAITING, asked):
                found.setdefault(lane, {})[minute] = due_ms
        return found

    def list_minutes(
        self, lease: Shard, lock: str, listed: Mapping[int, int], erased: Collection[int] = ()
    ) -> bool:
        """List minutes of a lane and erase others, if its lease is ours; one transaction."""
        queue, _, lane = lease
        if not listed and not erased:
            return True
        with self._lease_changes(1) as connection:
            if _lease_state(connection, lease, self._now()).lock != lock:
                return False
            connection.executemany(_LIST, [(queue, lane, *one) for one in listed.items()])
            connection.executemany(_UNLIST, [(queue, lane, minute) for minute in erased])
        return True

    # Time and news -------------------------------------------------------------------------------

    def clocks(self) -> Mapping[str, Callable[[], int]]:
        """The operating system's clock, as that of the only node."""
        return {NODE: self._machine_us}

    def changed(self) -> int | None:
        """A number that changes when another process has written, in 3 us; None in memory."""
        return self._database.changed()

    @property
    def shown(self) -> str:
        """The store's url, without its options."""
        return self._database.shown

    def _write(self, statement: str, values: Sequence[Any]) -> None:
        self.counters["batches"] += 1
        self._database.write(statement, values)

    def _write_many(self, statement: str, batch: list[tuple[Any, ...]]) -> None:
        if len(batch) == 1:
            self._write(statement, batch[0])
            return
        with self._database.transaction() as connection:
            self.counters["batches"] += 1
            connection.executemany(statement, batch)

    def _now(self, ttl_ms: int = 0) -> dict[str, Any]:
        """The parameters of `IN_FORCE`, and of a lease or member row that lasts `ttl_ms`."""
        now_us, (boot_us, space) = self._machine_us(), self._boot_time()
        return {
            "now_us": now_us,
            "until_us": now_us + ttl_ms * 1_000,
            "space": space,
            "boot_us": boot_us,
            "from_boot_us": boot_us - _READ_BEFORE_US,
            "until_boot_us": boot_us + ttl_ms * 1_000,
            "ahead_us": now_us - boot_us,
        }

    @contextmanager
    def _lease_changes(self, leases: int) -> Iterator[sqlite3.Connection]:
        with self._database.transaction() as connection:
            # Counted as on Cassandra, where each lease is an LWT.
            self.counters["lwt"] += leases
            yield connection

    def _count_read(self, rows: int, purpose: str) -> None:
        # The caller has the connection's lock, because an addition to a counter is not atomic.
        counters = self.counters
        counters["reads"] += 1
        counters["rows_read"] += rows
        counters["reads:" + purpose] += 1
        counters["rows_read:" + purpose] += rows


def _cut(items: Iterable[Item], bytes_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in lists; a list ends after `_BATCH_ROWS` items, or once it has `_BATCH_BYTES`."""
    batch: list[Item] = []
    room = _BATCH_BYTES
    for item in items:
        batch.append(item)
        room -= bytes_of(item)
        if room <= 0 or len(batch) == _BATCH_ROWS:
            yield batch
            batch, room = [], _BATCH_BYTES
    if batch:
        yield batch


def _row_bytes(row: Row) -> int:
    # Body and headers, read by index because it is faster: a drain calls this for each row.
    return len(row[3]) + len(row[4] or "")


def _move_bytes(move: RowMove) -> int:
    return _row_bytes(move.new)


def _edit_bytes(row: Row) -> int:
    return len(row.error or "")


def _inserts(rows: Iterable[Row]) -> dict[str, list[_Values]]:
    """Statement -> the values that it inserts, in order of key."""
    inserts: defaultdict[str, list[_Values]] = defaultdict(list)
    for row in rows:
        place, due, row_id, body, headers, attempt, *rest = row
        if rest == _PLAIN and headers is None:
            # Most rows are plain, and take 1.5 us here instead of 4.
            own = bytearray(row_id[6:8] + row_id[4:6] + row_id[:4] + row_id[8:])
            inserts[_INSERT_PLAIN].append((*place, due, own, bytearray(body), attempt))
        else:
            statement, values = _inserted(row)
            inserts[statement].append(values)
    return {statement: sorted(values, key=_key) for statement, values in inserts.items()}


def _inserted(row: Row) -> tuple[str, _Values]:
    """The statement that inserts a row, and its values.

    Columns without a value are left out, and bytes are given as a bytearray, because sqlite3 offers
    each None and each bytes to adapters first, which takes 1 us.
    """
    place, due, row_id, *columns, _serial = row
    is_set = tuple([value is not None for value in columns])
    own = bytearray(row_id[6:8] + row_id[4:6] + row_id[:4] + row_id[8:])
    given = [
        bytearray(value) if type(value) is bytes else value
        for value in columns
        if value is not None
    ]
    return _insert_of(is_set), (*place, due, own, *given)


@lru_cache(256)
def _insert_of(is_set: tuple[bool, ...]) -> str:
    """The statement that inserts a row in which these columns are set."""
    columns = [name for name, has in zip(_COLUMNS, is_set, strict=True) if has]
    names = ", ".join(("queue", "minute", "lane", "due", "id", *columns))
    marks = ", ".join("?" * (5 + len(columns)))
    return f"""\
INSERT INTO messages ({names}) VALUES ({marks})
ON CONFLICT (queue, minute, lane, due, id) DO NOTHING"""


_INSERT_PLAIN = _insert_of(tuple(name in ("body", "attempt") for name in _COLUMNS))


def _insert(connection: sqlite3.Connection, inserts: Mapping[str, list[_Values]]) -> None:
    for statement, values in inserts.items():
        connection.executemany(statement, values)


def _placed(position: Position) -> tuple[Any, ...]:
    """The key of a position, for `_DELETE` and `_FIND`."""
    # A bytearray, as in `_inserted`: with bytes each row takes 1 us more.
    shard, due_ms, row_id = position
    return (*shard, due_ms, bytearray(row_id[6:8] + row_id[4:6] + row_id[:4] + row_id[8:]))


def _edited(row: Row) -> _Values:
    """The values of an edit for `_EDIT`."""
    state = (row.attempt, row.not_before_ms, row.claim, row.error, row.received, row.serial)
    return (*state, *_placed(row.position), row.serial)


def _rows(shard: Shard, found: Iterable[tuple[Any, ...]]) -> list[Row]:
    # `from_order_key` and the constructor are inlined: a row takes 0.4 us instead of 0.7.
    new = tuple.__new__
    try:
        return [
            new(Row, (
                shard, due, born[4:8] + born[2:4] + born[:2] + born[8:], body, headers, attempt,
                first, name, origin, group, claim, since, key, not_before, error, note, received,
                priority, serial,
            ))
            for due, born, body, headers, attempt, first, name, origin, group, claim, since, key,
                not_before, error, note, received, priority, serial
            in found
        ]  # fmt: skip
    except TypeError as error:
        raise StoreCorrupt(
            f"a row of queue {shard.queue!r} (minute {shard.minute}, lane {shard.lane}) is "
            f"damaged: its id is none; delete that row, or restore the store from a copy."
        ) from error


def _occupied(
    connection: sqlite3.Connection, queue: str, minutes: Sequence[int], lanes: Sequence[int]
) -> list[tuple[int, int]]:
    """(minute, lane) of the shards that have a row, sorted."""
    asked = (json.dumps(list(minutes)), json.dumps(list(lanes)), queue)
    return sorted(connection.execute(_OCCUPIED, asked))


def _lease_state(connection: sqlite3.Connection, shard: Shard, now: dict[str, Any]) -> LeaseState:
    found = connection.execute(_LEASE, now | shard._asdict()).fetchone()
    if found is None:
        return LeaseState()
    lock, holder, window, is_in_force, ahead_us = found
    ahead_ms = ahead_us // 1_000 if ahead_us > _SET_BACK_US else 0
    return LeaseState(lock if is_in_force else None, holder, window, ahead_ms)
