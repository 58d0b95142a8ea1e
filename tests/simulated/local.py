"""SQLite in memory, as the processes of one machine share it: the real store, a call at a time.

```
 process ─ LocalStore ── switch point ──► SqliteStore of its own ──► one database in memory
                                                                          │ triggers
                                              on_write, on_delete, .. ◄───┘
```

Each verb is one transaction at one moment, which no other process interrupts. So no outcome is
unknown and no write is late. A process that crashes leaves the database as its last call left it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from shardq.model.ids import from_order_key
from shardq.model.message import Row
from shardq.model.shard import Shard
from shardq.stores.sqlite import SqliteStore
from shardq.stores.store import NO_MARKS, NO_TIMES, LeaseState
from simulated.calls import Calls, Result
from simulated.network import DONE, REFUSED

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from shardq.model.shard import Position
    from shardq.stores.store import Mark, RowMove, WriteOnce
    from shardq.stores.tables import Change, K, Partition, Refused, Table, V
    from simulated.network import Network
    from simulated.scheduler import Process, Scheduler


_COLUMNS = (
    "queue", "minute", "lane", "due", "id", "body", "headers", "attempt", "first", "name",
    "origin", "in_group", "claim", "since", "key", "not_before", "error", "note",
    "received", "priority", "serial",
)  # fmt: skip
_ROWS = """\
SELECT queue, minute, lane, due, id, body, headers, attempt, first, name, origin, in_group, claim,
    since, key, not_before, error, note, received, priority, serial
FROM messages WHERE queue = ? ORDER BY minute, lane, due, id"""
_TRIGGERS = {
    "written": ("INSERT", "NEW"),
    "deleted": ("DELETE", "OLD"),
    "edited": ("UPDATE", "NEW"),
}


def _silent(*_: object) -> None:
    pass


class LocalTables:
    """The database of one machine, with the observer's side of `Cells`, in SQLite.

    Args:
        scheduler: Has the machine's clocks.

    Attributes:
        risen: Empty: no late write can bring a deleted row back.
        survivors: Empty: a delete misses no row.
        beaten: 0: no write is late.
        marks: This object: the ledger is in the same database.
        commits: How many calls have written.
        on_write: Called with each row that becomes visible.
        on_delete: Called with each row that is deleted.
        on_edit: Called with each row that is edited in place, in its new state.
        on_note: Called with table, partition, key and values of each note or record that is
            written; the values are None if it is deleted.
        on_mark: Called with each put and end that is recorded.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.risen: list[Row] = []
        self.survivors: list[Row] = []
        self.beaten = 0
        self.marks = self
        self.commits = 0
        self.on_write: Callable[[Row], None] = _silent
        self.on_delete: Callable[[Row], None] = _silent
        self.on_edit: Callable[[Row], None] = _silent
        self.on_note: Callable[[Table[Any, Any], Partition, Any, Any], None] = _silent
        self.on_mark: Callable[[Mark], None] = _silent
        self._scheduler = scheduler
        self._told: list[tuple[str, Row]] = []
        self._observer = self._made()
        self._observer.open()
        self._watch()

    def store(self) -> SqliteStore:
        """A store on this database for one more process, with nothing in memory yet."""
        made = self._made()
        made._database = self._observer._database
        return made

    def _made(self) -> SqliteStore:
        scheduler = self._scheduler
        return SqliteStore(machine_us=scheduler.wall_us, boot_time=scheduler.boot_time)

    def close(self) -> None:
        """Close the database, which deletes it."""
        self._observer.close()

    def apply(self, work: Callable[[], Result]) -> Result:
        """Carry out a call that writes, then make the callbacks for the rows that it changed."""
        self._told.clear()
        result = work()
        self.commits += 1
        # A move is atomic: report its new row before the delete of the old one.
        told, self._told = sorted(self._told, key=lambda one: one[0] == "deleted"), []
        for what, row in told:
            {"written": self.on_write, "deleted": self.on_delete, "edited": self.on_edit}[what](row)
        return result

    # What an observer asks and does ---------------------------------------------------------------

    def rows(self, queue: str) -> list[Row]:
        """All rows of a queue, in order."""
        with self._observer._database.reading() as connection:
            found = connection.execute(_ROWS, (queue,)).fetchall()
        return [row for columns in found if not (row := _row(*columns)).is_note]

    def find(self, positions: Iterable[Position]) -> list[Row]:
        """The rows, of these positions, that exist."""
        return self._observer.find(positions)

    def waiting(self, queue: str, lanes: Sequence[int]) -> dict[int, dict[int, int]]:
        """The listed minutes of group lanes."""
        return self._observer.waiting(queue, lanes)

    def lease(self, shard: Shard) -> LeaseState:
        """The lease state of a shard."""
        return self._observer.lease_states([shard])[shard]

    def release(self, shard: Shard, lock: str) -> bool:
        """Release a lease if its lock is this one."""
        is_ours = self.lease(shard).lock == lock
        self.apply(lambda: self._observer.release({shard: lock}))
        return is_ours

    def notes(self, table: Table[K, V], partition: Partition) -> dict[K, V]:
        """The values in a partition that have not expired."""
        return self._observer.notes(table, partition)

    def note(
        self, table: Table[K, V], partition: Partition, key: K, _values: None, _at_us: int
    ) -> None:
        """Delete a note."""
        self.apply(lambda: self._observer.erase(table, partition, [key]))
        self.on_note(table, partition, key, None)

    def write(self, row: Row, _at_us: int) -> None:
        """Write a row."""
        self.apply(lambda: self._observer.insert((row,)))

    def drop(self, position: Position) -> None:
        """Lose a row, as no client does: without a callback."""
        self._observer.delete([position])
        self._told.clear()

    # Details --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with self._observer._database.transaction() as connection:
            for name, (event, row) in _TRIGGERS.items():
                connection.create_function(name, len(_COLUMNS), self._hear(name))
                columns = ", ".join(f"{row}.{column}" for column in _COLUMNS)
                connection.execute(
                    f"CREATE TEMP TRIGGER told_{name} AFTER {event} ON messages"
                    f" BEGIN SELECT {name}({columns}); END"
                )

    def _hear(self, name: str) -> Callable[..., None]:
        return lambda *columns: self._told.append((name, _row(*columns)))


def _row(queue: str, minute: int, lane: int, due_ms: int, key: bytes, *rest: Any) -> Row:
    return Row(Shard(queue, minute, lane), due_ms, from_order_key(key), *rest)


class LocalStore(Calls):
    """A `shardq.stores.store.Store` on one machine's database, as one of its processes sees it.

    Args:
        network: Decides how long a call takes, and if it is refused.
        tables: The database.
        process: The process that calls; None: no simulated process, calls are done at once.

    Attributes:
        is_local: True: the store uses the machine's clock.
    """

    is_local = True
    write_timeout_ms = 0

    def __init__(
        self, network: Network, tables: LocalTables, process: Process | None = None
    ) -> None:
        super().__init__(network, tables.store(), process)
        self._tables = tables
        self._store: SqliteStore
        self.counters = self._store.counters
        self._own_commits = 0

    # Rows -----------------------------------------------------------------------------------------

    def insert(self, rows: Iterable[Row], once: WriteOnce | None = None) -> Mark | None:
        """Write rows in one transaction; with `once` its marks and line too, if that is new."""
        # One alone has a statement of its own, which goes by the tuple.
        asked = tuple(rows)
        about = [row.id for row in asked]
        if once is None:
            self._write_all("insert", about, lambda: self._store.insert(asked))
            return None

        def work() -> Mark | None:
            return self._store.insert(asked, once)

        told = [*once.marks, once.line]
        return self._write("insert", about, lambda: self._telling(told, work))

    def delete(self, positions: Iterable[Position]) -> None:
        """Delete rows."""
        asked = list(positions)
        self._write_all("delete", [one.id for one in asked], lambda: self._store.delete(asked))

    def move(
        self,
        moves: Iterable[RowMove],
        marks: Mapping[Position, Sequence[Mark]] = NO_MARKS,
        kept_ms: Mapping[str, int] = NO_TIMES,
    ) -> set[Position]:
        """Carry out those moves whose old rows exist, with their marks, in one transaction."""
        asked = list(moves)
        self._network.on_move(asked)
        if not asked:
            return set()

        def work() -> set[Position]:
            return self._store.move(asked, marks, kept_ms)

        told = [mark for some in marks.values() for mark in some]
        about = [row_id for move in asked for row_id in (move.old.id, move.new.id)]
        gone = self._write("move", about, lambda: self._telling(told, work))
        if self._process is not None:
            self._network.on_moved(self._process, asked)
        return gone

    def edit(self, rows: Iterable[Row]) -> None:
        """Edit existing rows with lower serials."""
        edited = list(rows)
        self._write("edit", [row.id for row in edited], lambda: self._store.edit(edited))

    # Leases ---------------------------------------------------------------------------------------

    def take(
        self, seen: Mapping[Shard, str | None], *, lock: str, holder: str, window: int, ttl_ms: int
    ) -> dict[Shard, LeaseState]:
        """Lease shards that nobody holds and whose holder is the one seen, in one transaction."""

        def work() -> dict[Shard, LeaseState]:
            states = self._store.take(seen, lock=lock, holder=holder, window=window, ttl_ms=ttl_ms)
            for shard, state in states.items():
                if state.lock == lock:
                    is_unclean = seen[shard] not in (None, holder)
                    self._tell("taken over" if is_unclean else "taken", shard, lock)
            return states

        return self._decide("take", seen, work)

    def renew(self, locks: Mapping[Shard, str], ttl_ms: int) -> set[Shard]:
        """Renew our leases for their full time."""

        def work() -> set[Shard]:
            kept = self._store.renew(locks, ttl_ms)
            for shard in sorted(kept):
                self._tell("renewed", shard, locks[shard])
            return kept

        kept = self._write("renew", sorted(locks), work)
        for shard in sorted(locks):
            if self._process is not None:
                self._network.on_answer(self._process, "renew", shard, shard in kept)
        return kept

    def release(self, locks: Mapping[Shard, str]) -> None:
        """End our leases cleanly."""

        def work() -> None:
            states = self._store.lease_states(sorted(locks))
            self._store.release(locks)
            for shard, state in states.items():
                if state.lock == locks[shard]:
                    self._tell("released", shard, locks[shard])

        self._write("release", sorted(locks), work)

    def list_minutes(
        self, lease: Shard, lock: str, listed: Mapping[int, int], erased: Collection[int] = ()
    ) -> bool:
        """List minutes of a lane and erase others if its lease is ours."""

        def work() -> bool:
            return self._store.list_minutes(lease, lock, listed, erased)

        return self._write("list_minutes", lease, work)

    # Registers ------------------------------------------------------------------------------------

    def note(
        self,
        table: Table[K, V],
        partition: Partition,
        values: Mapping[K, V],
        ttl_ms: int | None = None,
    ) -> None:
        """Write values under keys, in one transaction."""
        self._tell_note(table, partition, values)

        def work() -> None:
            self._store.note(table, partition, values, ttl_ms)
            for key, one in values.items():
                self._tables.on_note(table, partition, key, one)

        if values:
            self._write(f"note {table.name}", list(values), work)

    def notes_of(
        self, table: Table[K, V], partitions: Sequence[Partition]
    ) -> dict[Partition, dict[K, V]]:
        """The values under all keys of several partitions."""
        return self._read(f"notes {table.name}", lambda: self._store.notes_of(table, partitions))

    def erase(self, table: Table[K, V], partition: Partition, keys: Iterable[K]) -> None:
        """Delete rows, in one transaction."""
        asked = list(keys)

        def work() -> None:
            self._store.erase(table, partition, asked)
            for key in asked:
                self._tables.on_note(table, partition, key, None)

        if asked:
            self._write(f"erase {table.name}", asked, work)

    def write_records(self, table: Table[K, V], changes: Sequence[Change]) -> Refused:
        """Change records, and the messages' rows that belong to them, in one transaction."""

        def work() -> Refused:
            refused = self._store.write_records(table, changes)
            for change in changes:
                if change.place not in refused:
                    key = table.key_of(change.key)
                    there = self._store.notes(table, change.partition, [key])
                    self._tables.on_note(table, change.partition, key, there.get(key))
            return refused

        if not changes:
            return {}
        return self._write(f"write_records {table.name}", [one.place for one in changes], work)

    # The ledger -----------------------------------------------------------------------------------

    def record(self, marks: Iterable[Mark], ttl_ms: int) -> None:
        """Add puts and ends to the ledger."""
        asked = list(marks)

        def work() -> None:
            self._telling(asked, lambda: self._store.record(asked, ttl_ms))

        self._write_all("record", [mark.entry.id for mark in asked], work)

    # Time and news --------------------------------------------------------------------------------

    def clocks(self) -> Mapping[str, Callable[[], int]]:
        """The machine's clock."""
        return self._store.clocks()

    def changed(self) -> int:
        """A number that changes when another process has written."""
        return self._tables.commits - self._own_commits

    # Details --------------------------------------------------------------------------------------

    def _telling(self, marks: Iterable[Mark], work: Callable[[], Result]) -> Result:
        """Carry out a call that may record marks, and report those that are new in the ledger."""
        entries = [mark.entry for mark in marks]
        before = {mark.entry: mark for mark in self._store.recorded(entries)}
        result = work()
        for mark in self._store.recorded(entries):
            self._tell_of(before.get(mark.entry), mark)
        return result

    def _tell_of(self, before: Mark | None, mark: Mark) -> None:
        """Call `on_mark` for the put and the end that a mark has and did not have before."""
        if mark.due_ms is not None and (before is None or before.due_ms is None):
            self._tables.on_mark(mark._replace(fate=None))
        if mark.fate is not None and (before is None or before.fate != mark.fate):
            self._tables.on_mark(mark)

    def _fate(self, verb: str, chance: random.Random) -> int:
        # On SQLite each outcome is known, so all other fates are refusals.
        return DONE if super()._fate(verb, chance) == DONE else REFUSED

    def _decide(
        self,
        verb: str,
        asked: Iterable[Shard],
        work: Callable[[], dict[Shard, LeaseState]],
    ) -> dict[Shard, LeaseState]:
        """Lease shards, and report each answer."""
        states = self._write(verb, sorted(asked), work)
        for shard, state in states.items():
            if self._process is not None:
                self._network.on_answer(self._process, verb, shard, state)
        return states

    def _write(self, verb: str, about: object, work: Callable[[], Result]) -> Result:
        return self._call(verb, about, partial(self._apply, work))

    def _write_all(self, verb: str, ids: list[bytes], work: Callable[[], object]) -> None:
        """Write the rows with these ids; without any, the database is not called."""
        if ids:
            self._write(verb, ids, work)

    def _apply(self, work: Callable[[], Result]) -> Result:
        self._own_commits += 1
        return self._tables.apply(work)

    def _read(self, verb: str, work: Callable[[], Result], about: object = None) -> Result:
        return self._call(verb, about, lambda: _at_once(work()))

    def _call(self, verb: str, about: object, work: Callable[[], Result]) -> Result:
        process = self._process
        if process is None:
            return work()
        network, chance = self._network, process.chance
        network.calls += 1
        fate = self._fate(verb, chance)
        network.on_call(process, verb, fate, about)
        if fate == REFUSED:
            self._refuse(process, verb)
        # A call waits for the lock before its work, or for its turn after it.
        if chance.random() < 0.5:
            result = work()
            self._pass(process)
            return result
        self._pass(process)
        return work()


def _at_once(found: Result) -> Result:
    """A result, read to its end, because a transaction shows one moment."""
    return cast("Result", iter(list(found))) if isinstance(found, Iterator) else found
