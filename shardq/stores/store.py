"""The store seam: dumb verbs on rows, leases, registers and logs.

```
 Rows       insert delete find move edit read count total rows_in seek
            occupied occupied_queues next_minute indexed mend_index shards
 Leases     take renew release locks lane_locks waiting list_minutes
 Registers  note notes notes_of erase records write_records
 Logs       record recorded history
 Store      all of these, and open close clocks changed
```

The life of a message is written once, above this protocol. A module that needs one part of the
protocol takes that part alone. Cassandra and SQLite implement it and pass one contract suite
(`tests/store/`); SQLite in memory is the fake. Every call takes many rows or shards, pipelines
inside, blocks until all of it is acknowledged, and may be made from any thread.

Every verb may raise `StoreUnavailable` (not applied), `StoreTimeout` (maybe applied),
`StoreRefused` (refused for good), `StoreFull` or `StoreCorrupt`; a driver's own error never passes
through.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from shardq.errors import StoreCorrupt, shown
from shardq.model import ids
from shardq.model.ids import birth_us
from shardq.model.times import is_epoch_ms

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardq.model.message import Row
    from shardq.model.shard import Position, Shard
    from shardq.stores.tables import Change, K, Note, Partition, Refused, Table, V

NEVER = 1 << 62
"""The minute of no row: `next_minute` returns it for an empty queue."""

Progress: TypeAlias = "Callable[[str, int, int | None], None]"
"""Called with the name of the thing that is read, the count so far, and the total or None."""


class Slice(NamedTuple):
    """A range of rows in several shards of a queue: `after < (due, row id)`, `due <= until`.

    Attributes:
        queue: The queue's name.
        minutes: Minutes to read, ascending.
        lanes: Lanes to read in each minute.
        after_ms: Rows due at or before this are left out; -1 leaves out none.
        until_ms: Rows due after this are left out.
        limit: The most rows of each shard.
        after_id: If set, rows due at `after_ms` with a later id are read as well.
        purpose: Why rows are read: `poll`, `catch-up`, `ahead`, `sweep 5 s`; for counting only.
        bodies: False reads no bodies: each row has an empty one.
    """

    queue: str
    minutes: Sequence[int]
    lanes: Sequence[int]
    after_ms: int
    until_ms: int
    limit: int
    after_id: bytes | None = None
    purpose: str = "read"
    bodies: bool = True


class RowMove(NamedTuple):
    """A row's step to another place: `new` is written, then `old` is deleted.

    Attributes:
        old: The row's place.
        new: The row after the move.
        note: A note to write after the new row and before the old row's delete. On Cassandra such a
            move is never one batch, because a batch half applied shows neither row for a while.
    """

    old: Position
    new: Row
    note: Note | None = None


class LeaseState(NamedTuple):
    """The static cells of a shard.

    Attributes:
        lock: The token of the lease in force; None without one.
        holder: The member that leased the shard last and has not released it; None after a release.
        window: The most rows that `holder`, or a member it took over from, may have handed out
            without a record.
        ahead_ms: A row that these members have handed out may be due this much later than now,
            milliseconds: 0 unless the machine's clock was set back since.
    """

    lock: str | None = None
    holder: str | None = None
    window: int = 0
    ahead_ms: int = 0


class Tally(NamedTuple):
    """Counts of a shard's rows.

    Attributes:
        rows: All rows.
        claims: Rows that are claims.
        waits: Rows with a `not_before_ms`, past ones included.
    """

    rows: int
    claims: int
    waits: int = 0

    def plus(self, other: Tally) -> Tally:
        """The sum of both."""
        return Tally._make(map(sum, zip(self, other, strict=True)))


class Total(NamedTuple):
    """The counts of all shards of a slice together.

    Attributes:
        tally: The counts.
        end: The minute before which everything is counted; `NEVER`: nothing is left out.
    """

    tally: Tally
    end: int = NEVER


MINUTE_US = 60_000_000
"""A minute of the ledger: 60 s, however long the queue's minutes are."""
PARTS = 16
"""Parts of each minute of the ledger: a partition each on Cassandra."""
_TURN_US = 50_000
"""Puts of one process within this time go to one part, so that a batch of puts has few parts."""


Place: TypeAlias = tuple[str, int, int]
"""Queue, minute of entry and part, 0 to `PARTS` - 1."""


class Entry(NamedTuple):
    """The message that a mark is about. Moves, retries and a change of lanes leave it as it is.

    Attributes:
        queue: The queue's name.
        id: The row id of the message's first placement in the queue.
    """

    queue: str
    id: bytes

    @property
    def minute(self) -> int:
        """The whole minute of 60 s, since the epoch, in which the message entered the queue."""
        return birth_us(self.id) // MINUTE_US

    @property
    def place(self) -> Place:
        """The entry's partition of the ledger.

        The part is `(birth / 50 ms + node) % 16`: processes that put at the same time fill
        different parts.
        """
        queue, row_id = self
        born_us = birth_us(row_id)
        return queue, born_us // MINUTE_US, (born_us // _TURN_US + row_id[-1]) % PARTS


TRIES_MAX = 100
"""Failed attempts of a message that the ledger keeps, the last ones."""
_TRY = re.compile(r"([0-9]{1,9}):([0-9]{1,15}):([0-9]{0,15}):(.*)", re.DOTALL)


class Try(NamedTuple):
    """An attempt that failed, as the ledger keeps it.

    Attributes:
        attempt: The number of the delivery, from 1.
        ended_ms: When it ended, epoch milliseconds.
        run_ms: How long it ran; None if that is not known.
        error: Why it failed.
    """

    attempt: int
    ended_ms: int
    run_ms: int | None
    error: str

    def text(self) -> str:
        """The stored form.

        >>> Try(2, 1_800_000_000_000, 250, "refused: 5").text(), Try(1, 7, None, "").text()
        ('2:1800000000000:250:refused: 5', '1:7::')
        """
        run = "" if self.run_ms is None else self.run_ms
        return f"{self.attempt}:{self.ended_ms}:{run}:{self.error}"

    @classmethod
    def read(cls, text: str) -> Try | None:
        """An attempt from its stored form; None if it is damaged."""
        found = _TRY.fullmatch(text)
        run_ms = int(found[3]) if found and found[3] else None
        return found and cls(int(found[1]), int(found[2]), run_ms, found[4])


def slot_of(text: str) -> int:
    """The slot of a failed attempt in its line of the ledger, by the attempt's stored form."""
    return int(text.partition(":")[0]) % TRIES_MAX


class Mark(NamedTuple):
    """A record of the ledger about a message: its put, its end, an attempt that failed, or all.

    Attributes:
        entry: The message.
        due_ms: The due first asked for; None: the put is not recorded.
        name: The id that the user or another queue gave; None if neither did.
        fate: How the message ended; None: the end is not recorded.
        ended_ms: When it ended, epoch milliseconds.
        attempt: Deliveries until the end.
        member: The member that recorded the end.
        task: The task whose job the message is; None for any other message.
        tries: Attempts that failed, as `Try.text` stores them, in any order.
    """

    entry: Entry
    due_ms: int | None = None
    name: str | None = None
    fate: str | None = None
    ended_ms: int = 0
    attempt: int = 0
    member: str = ""
    task: str | None = None
    tries: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        entry: Entry,
        due_ms: int | None,
        name: str | None,
        fate: str | None,
        ended_ms: int | None,
        attempt: int | None,
        member: str | None,
        task: str | None,
    ) -> Mark:
        """The mark in a row of the ledger's table, where a value that is not recorded is null."""
        return cls(entry, due_ms, name, fate, ended_ms or 0, attempt or 0, member or "", task)

    @property
    def is_try(self) -> bool:
        """True if neither the put nor the end is recorded: of such a message nothing is reported.

        Its producer may be about to record the put.
        """
        return self.due_ms is None and self.fate is None and bool(self.tries)

    def checked(self) -> Mark:
        """Return the mark if shardq can have recorded its values. `fate` may be any text.

        Raises:
            StoreCorrupt: If shardq never records one of the values.
        """
        entry, due_ms, name, fate, ended_ms, attempt, member, task, tries = self
        if due_ms is not None and not is_epoch_ms(due_ms):
            raise _damaged(entry, "due", due_ms)
        if not is_epoch_ms(ended_ms):
            raise _damaged(entry, "ended", ended_ms)
        if type(attempt) is not int or attempt < 0:
            raise _damaged(entry, "attempt", attempt)
        texts = (("name", name), ("fate", fate), ("member", member), ("task", task))
        for column, text in texts:
            if text is not None and type(text) is not str:
                raise _damaged(entry, column, text)
        for one in tries:
            if type(one) is not str or Try.read(one) is None:
                raise _damaged(entry, "tries", one)
        return self


class WriteOnce(NamedTuple):
    """A line of the ledger that has rows written once, and the marks to write with the rows.

    Attributes:
        line: A put, usually of a pseudo queue such as `mail#runs`; its name holds the text.
        line_ttl_ms: How long the line is kept. A later call writes again.
        marks: The puts of the rows, if their queue keeps a history.
        ttl_ms: How long the marks are kept.
    """

    line: Mark
    line_ttl_ms: int
    marks: Sequence[Mark] = ()
    ttl_ms: int = 0


NO_MARKS: Mapping[Position, Sequence[Mark]] = MappingProxyType({})
"""The marks of moves within a queue: none."""
NO_TIMES: Mapping[str, int] = MappingProxyType({})


def by_queue(marks: Iterable[Mark]) -> dict[str, list[Mark]]:
    """Marks by their queues, in order: each queue keeps its history for a time of its own."""
    found: dict[str, list[Mark]] = {}
    for mark in marks:
        found.setdefault(mark.entry.queue, []).append(mark)
    return found


def _damaged(entry: Entry, column: str, value: object) -> StoreCorrupt:
    """The error for a ledger row with a value that shardq never records."""
    queue, minute, part = entry.place
    return StoreCorrupt(
        f"the history of queue {queue!r} is damaged: {column} of message {ids.text(entry.id)} "
        f"(minute {minute}, part {part}) is {shown(value)}; delete that row, or restore the store "
        f"from a copy."
    )


class Rows(Protocol):
    """Rows of messages: written at their births, read, moved, deleted, counted."""

    def insert(self, rows: Iterable[Row], once: WriteOnce | None = None) -> Mark | None:
        """Write rows, each at its birth. Idempotent.

        The rows may come in any order; they are taken lazily, in full batches. Rows of one shard
        are batched together, the others by replica. Rows of a lane for groups that are due within a
        second of their births become visible in the order given. Returns when every row is
        acknowledged.
        Cassandra: a deleted row stays deleted however often its insert is repeated.

        With `once` the rows are written with its marks and its line, unless the line's put is
        recorded: then another call has written the rows.
        SQLite: one transaction reads the line and writes all. Of several calls with one line, from
        any process, one writes. The rows may have been deleted since. Others wait meanwhile, 15 us
        a row.
        Cassandra: reads the line, then writes rows, marks and line, each acknowledged before the
        next: four round trips for a few rows. A repeat, or a second call at the same time, writes
        the same again. Within gc_grace that changes nothing; a later caller first checks whether
        the rows exist.

        Args:
            rows: The rows; the same in every call with the same line.
            once: The line that records the write, and the marks of the rows; None: neither.

        Returns:
            The line as recorded, with its end if it has one; None if this call wrote the rows.

        Raises:
            StoreTimeout, StoreUnavailable: Some rows may be written; repeating all is safe.
            StoreRefused: If a row is too large for the server.
        """

    def delete(self, positions: Iterable[Position]) -> None:
        """Delete rows at `birth + 1 s`, hundreds of a shard in one statement.

        Idempotent. Absent rows are passed over.
        """

    def find(self, positions: Iterable[Position]) -> list[Row]:
        """The rows that exist at these positions, in any order; one read a shard."""

    def move(
        self,
        moves: Iterable[RowMove],
        marks: Mapping[Position, Sequence[Mark]] = NO_MARKS,
        kept_ms: Mapping[str, int] = NO_TIMES,
    ) -> set[Position]:
        """Write each new row, its marks and its note, and delete the old row.

        Atomically, or in that order. Repeating it is safe.

        SQLite: a transaction for each batch, which does the moves whose old rows exist. So of
        several processes that do the same moves one does each.
        Cassandra: does all moves; the caller has checked that the old rows exist. A logged batch
        has a few. A move that is large, or has marks or a note, goes step by step, each
        acknowledged before the next. Within gc_grace a repeat with the same new rows, in any
        process, changes nothing.

        Args:
            moves: The moves.
            marks: Old position -> the marks to record with the move, for a move into another
                queue: the end of one entry, and the put of the other.
            kept_ms: Queue -> how long its marks are kept.

        Returns:
            The old positions that were gone and for which nothing was written. On Cassandra none.

        Raises:
            StoreTimeout, StoreUnavailable: Some may be done; repeating is safe.
        """

    def edit(self, rows: Iterable[Row]) -> None:
        """Edit rows in place: attempt, not before, claim, last error and received of each row.

        These and the row's serial are one cell, written at `birth + serial` microseconds. The
        edit with the highest serial stands, in whatever order edits arrive. Of two edits with the
        same serial one stands whole. A deleted row stays deleted: no read, find or count shows an
        edit of a row that is gone. Idempotent; batched and pipelined as inserts are.

        Args:
            rows: The rows after the edit, with serials from 1 to `SERIAL_MAX`.

        Raises:
            StoreTimeout, StoreUnavailable: Some may be applied; repeating all is safe.
        """

    def read(self, *wanted: Slice) -> list[Row]:
        """Rows and notes of slices of one queue, by (minute, lane), then by (due, row id).

        Returns `limit` rows of each shard at most. No two slices may name the same shard. The
        `purpose` and `bodies` of the first slice hold for all.
        """

    def count(self, wanted: Slice) -> dict[Shard, Tally]:
        """Rows and claims of each non-empty shard of a slice, without notes.

        The slice's limit is ignored.
        """

    def total(self, wanted: Slice) -> Total | None:
        """Rows and claims of all shards of a slice together, without notes.

        Args:
            wanted: The slice; its minutes are a range. With a limit above 0, the count ends before
                the minute of the first row beyond the limit.

        Returns:
            None if no index answers at once; the caller then uses `indexed` and `count`.
        """

    def rows_in(self, queue: str, minutes: range, limit: int) -> int | None:
        """How many rows and notes some minutes have: a fifth of the cost of `total`.

        Returns:
            `limit + 1` if there are more; None if no index answers at once.
        """

    def seek(self, queue: str, entry: bytes | None, name: str) -> list[Row] | None:
        """The rows of a message of a queue, without bodies, wherever they are.

        Args:
            queue: The queue.
            entry: The id of the message's first row, if the message's id holds it; else None.
            name: The message's id.

        Returns:
            The rows by minute; None if the store would have to read the whole queue.
        """

    def occupied(self, queue: str, minutes: Sequence[int], lanes: Sequence[int]) -> list[Shard]:
        """The shards of minutes x lanes with a row or note, by (minute, lane). Cheap for thousands.

        A shard with too many deleted rows to find out is included.
        """

    def occupied_queues(self, wanted: Sequence[Slice]) -> set[str]:
        """The queues that have a row or a note in one of these slices.

        Cassandra: one read for all slices of the same minutes. It covers the dues of all of them,
        so a queue may be named for a row due shortly before or after its own slice.
        """

    def next_minute(self, queue: str, minute: int) -> int | None:
        """The first minute, from this one on, in which a queue has a row; `NEVER` without any.

        None if no index answers that at once.
        """

    def indexed(self, queue: str, minutes: range) -> Iterator[Shard]:
        """The shards of a queue in some minutes that may have a row, ordered by (minute, lane).

        Lazy; the cost depends on the shards of the queue alone.
        SQLite: reads the table's own key, so each shard has a row. Cassandra: reads the index of
        minutes, which every verb that places a row writes. A shard may have no row any more. A
        shard is missing only if the write of its row ended in doubt and was never repeated.
        """

    def mend_index(self, there: Iterable[Shard] = (), gone: Iterable[Shard] = ()) -> None:
        """Add shards to the index that `indexed` reads, and remove others. SQLite: does nothing.

        Args:
            there: Shards that have rows.
            gone: Shards that are empty and in which nobody places a row any more.
        """

    def shards(self, queue: str) -> Iterator[Shard]:
        """Every shard of a queue that has a row, near or far, in any order.

        Visits the whole table, for callers that cannot trust the index.
        """


class Leases(Protocol):
    """The exclusive, expiring right to read a shard.

    A whole lane for groups has one lease, on the shard `Layout.lane_lease`. Beside this lease the
    store lists the minutes of the lane that have rows left.
    """

    def take(
        self, seen: Mapping[Shard, str | None], *, lock: str, holder: str, window: int, ttl_ms: int
    ) -> dict[Shard, LeaseState]:
        """Lease shards that nobody leases and whose `holder` is the one in `seen`.

        A lease is ours if its state returned here has our `lock`. Unknown outcomes are resolved
        inside, by a SERIAL read of `lock`, which is fresh for each call.
        """

    def renew(self, locks: Mapping[Shard, str], ttl_ms: int) -> set[Shard]:
        """Extend our leases to their full time again; returns those that are still ours."""

    def release(self, locks: Mapping[Shard, str]) -> None:
        """Release our leases: clear lock and holder. Leases no longer ours stay as they are."""

    def locks(self, positions: Iterable[Position]) -> dict[Shard, LeaseState]:
        """Lease states, read together with rows: one plain read a shard, maybe a moment old.

        Shards without a row at the position are left out.
        """

    def lane_locks(self, queue: str, lanes: Sequence[int]) -> dict[int, LeaseState]:
        """Lease states of lanes for groups, without those never leased.

        One plain read, maybe a moment old.
        """

    def waiting(self, queue: str, lanes: Sequence[int]) -> dict[int, dict[int, int]]:
        """The listed minutes of lanes for groups: one plain read.

        After its `take` a holder reads every minute that earlier holders have listed.

        Returns:
            Lane -> minute, ascending -> the due of its first row left, epoch milliseconds; without
            lanes that have no listed minute.
        """

    def list_minutes(
        self, lease: Shard, lock: str, listed: Mapping[int, int], erased: Collection[int] = ()
    ) -> bool:
        """List minutes of a lane and erase others, if its lease is ours. Idempotent.

        Cassandra: a conditional batch for each 100 minutes. SQLite: one transaction. An unknown
        outcome is resolved inside.

        Args:
            lease: The shard of the lane's lease (`Layout.lane_lease`).
            lock: Our token.
            listed: Minute -> the due of its first row left; replaces the due listed before.
            erased: Minutes to remove from the list, if they are on it.

        Returns:
            False if the lease is not ours any more; then nothing was written, or a part. True also
            if there is nothing to write.

        Raises:
            StoreTimeout, StoreUnavailable: Some of it may be written; repeating is safe.
        """


class Registers(Protocol):
    """Notes and records of a queue, in the tables of `shardq.stores.tables`.

    Notes are written plainly, records by compare and set alone.
    """

    def note(
        self,
        table: Table[K, V],
        partition: Partition,
        values: Mapping[K, V],
        ttl_ms: int | None = None,
    ) -> None:
        """Write values under keys of a partition, plainly, in place of those stored there.

        In a table with a `latest` column the row with its highest value stands, in whatever order
        the writes arrive. Idempotent, but a repeat overwrites a note that another process wrote
        meanwhile. Cassandra: an unlogged batch, one round trip. SQLite: one transaction.

        Args:
            table: A table of notes.
            partition: The partition to write to.
            values: Key -> all its columns. `write_records` never writes a row of such a key.
            ttl_ms: The rows are gone after this time; None: never.
        """

    def notes(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """The values under keys of a partition, in any order: a plain read.

        The read may miss the newest changes of records.

        Args:
            table: A table of notes or records.
            partition: The partition to read; the whole table if each key is a partition.
            keys: The keys to read; None: all. A read of all passes the tombstones of all rows that
                ended lately, a read of some keys only theirs.
        """

    def notes_of(
        self, table: Table[K, V], partitions: Sequence[Partition]
    ) -> dict[Partition, dict[K, V]]:
        """The values under all keys of several partitions, as `notes` reads one partition.

        Cassandra: a read for each partition, pipelined. SQLite: one snapshot.

        Args:
            table: A table with partitions.
            partitions: The partitions to read; one without rows has an empty mapping.
        """

    def erase(self, table: Table[K, V], partition: Partition, keys: Iterable[K]) -> None:
        """Delete notes plainly, never a row that `write_records` writes. Idempotent.

        A note may be written again later; but in a table with a `latest` column it may stay hidden
        on Cassandra.
        """

    def records(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """The latest values under keys of a partition, in any order: a SERIAL read.

        Args:
            table: A table of records.
            partition: The partition to read.
            keys: The keys to read; None: all, if the table's partitions have several keys.
        """

    def write_records(self, table: Table[K, V], changes: Sequence[Change]) -> Refused:
        """Apply each change whose record is as it was seen.

        Each change is conditional by itself. Changes of one record are applied in their order.
        SQLite: a transaction for each 2,000, with the messages' rows of `insert` and `delete`.
        Cassandra: a conditional batch for each 100 of a partition, partitions side by side. A batch
        that is refused is sent once more without the changes that were refused, then one by one.
        Then the rows of applied changes are inserted, then rows are deleted, each acknowledged
        before the next.
        An unknown outcome is resolved inside, by the identical repeat. If the repeat is refused, a
        change that reads as done (`Change.is_done_by`) counts as applied, and its rows are written
        again. So a caller that sets a column it has seen gives it a value that no other caller
        gives. In a table with a nonce, the nonce decides instead. A repeat that is refused in
        another way counts as refused, though the change may have been applied, and overwritten
        since. If the change is decisive, the call fails with `StoreTimeout`.

        Args:
            table: A table of records.
            changes: Any number, in any partitions.

        Returns:
            Partition and key of each refused change -> the present values of the columns it saw.

        Raises:
            StoreTimeout: Some may be applied; reread the records.
            StoreUnavailable: None is applied.
        """


class Logs(Protocol):
    """The ledger: how each message entered and ended."""

    def record(self, marks: Iterable[Mark], ttl_ms: int) -> None:
        """Add marks to the ledger: puts, at the entry's time, ends, and attempts that failed.

        The earliest end stands, and the last `TRIES_MAX` attempts. Each mark is one of the three.
        Idempotent, in whatever order marks arrive.

        Args:
            marks: Taken lazily, in full batches.
            ttl_ms: How long each is kept from now on.
        """

    def recorded(self, entries: Iterable[Entry]) -> list[Mark]:
        """The marks of the entries that are in the ledger, in any order, without tries alone."""

    def history(self, queue: str, minutes: range) -> Iterator[Mark]:
        """The marks of these minutes of entry, minute by minute, in any order within, by pages.

        A message of which only failed attempts are recorded is left out.
        """


class Store(Rows, Leases, Registers, Logs, Protocol):
    """All verbs that a database must have to hold queues, and facts about the database."""

    is_local: bool
    """True if the store's time is this machine's own clock (`shardq.clock.Reference`)."""

    write_timeout_ms: int
    """A write without an answer ends in `StoreTimeout` after this time; 0: every outcome is known.
    No write takes effect later than after twice this time, except on a node that was away."""

    counters: Counter[str]
    """Requests to the database since this object was made: `lwt`, `reads`, `batches`, .."""

    @property
    def shown(self) -> str:
        """The store's url for people, without passwords."""

    @property
    def beside(self) -> Path | None:
        """The directory of the files by which members notice each other's death; None without one.

        The directory need not exist. All members that use it run on one machine.
        """

    def open(self, *, create: bool = False) -> None:
        """Connect, and check that the schema is there and is ours. Idempotent.

        Args:
            create: True to create or migrate the schema. SQLite does so in any case.

        Raises:
            SchemaMissing: If keyspace or tables do not exist, are not shardq's, or have a format
                from before 0.1.0.
            SchemaNewer: If a newer shardq made them.
        """

    def close(self) -> None:
        """End all connections. Idempotent."""

    def clocks(self) -> Mapping[str, Callable[[], int]]:
        """Node name -> a function that reads the node's clock, epoch microseconds: a round trip."""

    def changed(self) -> int | None:
        """A number that changes when another connection has written; None if not known cheaply."""
