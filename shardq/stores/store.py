"""The store seam: dumb verbs on rows, leases, registers and logs.

```
 Rows       insert delete find move move_once edit read count occupied next_minute
            indexed mend_index shards
 Leases     take renew release locks lane_locks waiting list_minutes
 Registers  note notes erase records write_records
 Logs       record recorded history insert_once
 Store      all of these, and open close clocks changed
```

The life of a message is written once, above this protocol; who needs a part of it asks for that.
Cassandra and SQLite implement it and pass one contract suite (`tests/store/`); SQLite in memory is
the fake. Every call takes many rows or shards, pipelines inside, blocks until all of it is
acknowledged, and may be made from any thread.

Every verb may raise `StoreUnavailable` (not applied), `StoreTimeout` (maybe applied),
`StoreRefused` (refused for good), `StoreFull` or `StoreCorrupt`; a driver's own error never passes
through.
"""

from __future__ import annotations

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
"""A minute that does not come."""


Progress: TypeAlias = "Callable[[str, int, int | None], None]"
"""What is called with what is read, how much of it is read, and of how much, or None."""


class Slice(NamedTuple):
    """A range of rows in several shards of a queue: `after < (due, row id)`, `due <= until`.

    Attributes:
        queue: The queue's name.
        minutes: Minutes to read, ascending.
        lanes: Lanes to read in each of them.
        after_ms: Rows due at or before this are left out; -1 leaves out none.
        until_ms: Rows due after this are left out.
        limit: Most rows of each shard.
        after_id: With it, rows due at `after_ms` whose id comes later are read as well.
        purpose: Who reads: `poll`, `catch-up`, `ahead`, `sweep 5 s` and so on; for counting only.
        bodies: False leaves the bodies where they are: each row comes with an empty one.
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


class Move(NamedTuple):
    """A row's step to another place: `new` is written, then `old` is deleted.

    Attributes:
        old: Where the row is.
        new: The row as it will be.
        note: What is noted once the new row is there, before the old one is deleted. Such a move is
            never one batch on Cassandra: half applied, that shows neither row for a while.
        beside: Further rows that are written with the new one, of whatever queue: with fixed ids,
            so that whoever repeats the move writes the same. Of a move with a note alone.
    """

    old: Position
    new: Row
    note: Note | None = None
    beside: tuple[Row, ...] = ()


class LeaseState(NamedTuple):
    """The static cells of a shard.

    Attributes:
        lock: The token of the lease in force; None where there is none.
        holder: The member that leased it last and has not released it; None after a clean end.
        window: The most rows that `holder`, or one it has taken over from, may have handed out
            without a record.
        ahead_ms: How much later than now a row may be due that these have handed out, milliseconds:
            0 unless the machine's clock was set back since.
    """

    lock: str | None = None
    holder: str | None = None
    window: int = 0
    ahead_ms: int = 0


class Tally(NamedTuple):
    """Rows of a shard.

    Attributes:
        rows: How many there are.
        claims: How many of them are claims.
        waits: How many have a `not_before_ms`, be it past or not.
    """

    rows: int
    claims: int
    waits: int = 0

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally._make(map(sum, zip(self, other, strict=True)))


MINUTE_US = 60_000_000
"""The ledger's minutes are whole ones, however long those of the queue are."""
PARTS = 16
"""Parts of each minute of the ledger: a partition each on Cassandra."""
_TURN_US = 50_000
"""For so long what one process puts goes to one part, so that a batch of puts has few."""


Place: TypeAlias = tuple[str, int, int]
"""Queue, minute of entry and part, 0 to `PARTS` - 1."""


class Entry(NamedTuple):
    """Whose the ledger's record is. Neither moves nor retries nor a change of lanes change it.

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
        """Its partition of the ledger.

        Its part is `(birth / 50 ms + node) % 16`: processes that put at the same time fill
        different ones.
        """
        queue, row_id = self
        born_us = birth_us(row_id)
        return queue, born_us // MINUTE_US, (born_us // _TURN_US + row_id[-1]) % PARTS


class Mark(NamedTuple):
    """What the ledger says of a message: its put, its end, or both.

    Attributes:
        entry: Whose it is.
        due_ms: The due first asked for; None: its put is not recorded.
        name: The id that the user or another queue gave; None where there is none.
        fate: How it ended; None: its end is not recorded.
        ended_ms: When, epoch milliseconds.
        attempt: Deliveries until then.
        member: Who recorded it.
        task: The task that it is a job of; None of any other message.
    """

    entry: Entry
    due_ms: int | None = None
    name: str | None = None
    fate: str | None = None
    ended_ms: int = 0
    attempt: int = 0
    member: str = ""
    task: str | None = None

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
        """A mark of a table's columns, in which what is not recorded is null."""
        return cls(entry, due_ms, name, fate, ended_ms or 0, attempt or 0, member or "", task)

    def checked(self) -> Mark:
        """Itself, where all that it says can be read. How a message ended may be any text.

        Raises:
            StoreCorrupt: If a value is none that shardq records.
        """
        entry, due_ms, name, fate, ended_ms, attempt, member, task = self
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
        return self


def _damaged(entry: Entry, column: str, value: object) -> StoreCorrupt:
    """The error of a row of the ledger in which a column holds what shardq never records."""
    queue, minute, part = entry.place
    return StoreCorrupt(
        f"the history of queue {queue!r} is damaged: {column} of message {ids.text(entry.id)} "
        f"(minute {minute}, part {part}) is {shown(value)}; delete that row, or restore the store "
        f"from a copy."
    )


class Rows(Protocol):
    """Rows of messages: written at their births, read, moved, deleted, counted."""

    def insert(self, rows: Iterable[Row]) -> None:
        """Write rows, each at its birth. Idempotent.

        Takes them in any order, lazily, in full batches.
        On Cassandra a row that has been deleted stays deleted however often its insert is repeated.
        Rows of one shard are batched together; the rest by replica. Returns when every row is
        acknowledged.

        Raises:
            StoreTimeout, StoreUnavailable: Some rows may be written; repeating all is safe.
            StoreRefused: If a row is too large for the server.
        """

    def delete(self, positions: Iterable[Position]) -> None:
        """Delete rows at `birth + 1 s`.

        Hundreds of a shard in one statement. Idempotent; absent rows are fine.
        """

    def find(self, positions: Iterable[Position]) -> list[Row]:
        """Those of the rows that are there, in any order; one read a shard."""

    def move(self, moves: Iterable[Move]) -> set[Position]:
        """Write each new row, its note, and delete its old one; atomically, or in that order.

        Repeating it is safe. Whether the old rows are there, the caller has looked; on SQLite the
        transaction looks again at those of moves with rows `beside`, and leaves out what is gone.

        Returns:
            The old positions of what was left out. On Cassandra none.
        """

    def move_once(
        self,
        moves: Sequence[Move],
        marks: Mapping[Position, Sequence[Mark]],
        ttl_ms: int,
    ) -> set[Position]:
        """Do those moves whose old rows are there, whoever else does the very same ones.

        SQLite: one transaction, the look included: a row is moved once, however many try.
        Cassandra: new rows, marks, deletes of the old rows, each acknowledged before the next,
        three round trips for a few rows; that the old rows are there, the caller has looked.
        Whoever repeats moves with the same new rows, a twin too, changes nothing, for gc_grace.

        Args:
            moves: Few enough for one transaction, which others wait for: 30 us each.
            marks: By old position, what the ledger says of a move that is done: the end of the one
                entry, and the put of the other.
            ttl_ms: How long the marks are kept.

        Returns:
            The old positions that were gone, where nothing was written. On Cassandra none.

        Raises:
            StoreTimeout, StoreUnavailable: Some of it may be done on Cassandra; repeating is safe.
        """

    def edit(self, rows: Iterable[Row]) -> None:
        """Edit rows where they are: attempt, not before, claim and last error, of each all four.

        They are one cell with the row's serial, written at `birth + serial` microseconds. So the
        edit with the highest serial stands, in whatever order they arrive, and a deleted row stays
        deleted. Of two with the same serial one stands whole. No other column is written.
        Batched and pipelined as inserts are. Idempotent. No read, find or count shows an edit of a
        row that is not there.

        Args:
            rows: As they are to be, with serials from 1 to `SERIAL_MAX`.

        Raises:
            StoreTimeout, StoreUnavailable: Some may be applied; repeating all is safe.
        """

    def read(self, *wanted: Slice) -> list[Row]:
        """Rows of slices of one queue, notes too, ordered by (minute, lane), then (due, row id).

        `limit` of each shard at most. No two slices may name the same shard; they are read for the
        purpose of the first, and with bodies if it is.
        """

    def count(self, wanted: Slice) -> dict[Shard, Tally]:
        """Rows and claims of each non-empty shard of a slice, without notes.

        The slice's limit is ignored.
        """

    def occupied(self, queue: str, minutes: Sequence[int], lanes: Sequence[int]) -> list[Shard]:
        """Those of minutes x lanes with a row or note, by (minute, lane). Cheap for thousands.

        One that is too full of deleted rows to tell is named as well.
        """

    def next_minute(self, queue: str, minute: int) -> int | None:
        """The first minute, from this one on, in which a queue has a row; `NEVER` without any.

        None where no index tells that at once.
        """

    def indexed(self, queue: str, minutes: range) -> Iterator[Shard]:
        """The shards of a queue in some minutes that may have a row, ordered by (minute, lane).

        Each that has a row is among them, but for a row whose write ended in doubt and was never
        repeated. So may be shards that have none any more. Lazily, at the cost of what the queue
        has, whatever else the store holds.
        SQLite: the table's own key tells, so each has a row. Cassandra: the index of minutes, which
        every verb that places a row writes.
        """

    def mend_index(self, there: Iterable[Shard] = (), gone: Iterable[Shard] = ()) -> None:
        """Put right what `indexed` names. SQLite: nothing is to be done.

        Args:
            there: Shards that have rows.
            gone: Shards that are empty, and in which nobody places a row any more.
        """

    def shards(self, queue: str) -> Iterator[Shard]:
        """Every shard of a queue that has a row, near or far, in any order.

        Visits the whole table: for whoever has to see all, whatever has become of an index.
        """


class Leases(Protocol):
    """The exclusive, expiring right to read a shard.

    The lease of a whole lane for groups is taken of `Layout.lane_lease`, and with it go the minutes
    of the lane that are listed as having rows left.
    """

    def take(
        self, seen: Mapping[Shard, str | None], *, lock: str, holder: str, window: int, ttl_ms: int
    ) -> dict[Shard, LeaseState]:
        """Lease shards that nobody holds and whose `holder` is the one seen.

        A lease is ours where the state returned has our `lock`. Unknown outcomes are resolved
        inside: by `lock`, which is fresh for each call, and a SERIAL read.
        """

    def renew(self, locks: Mapping[Shard, str], ttl_ms: int) -> set[Shard]:
        """Give our leases their full time again; returns those that are still ours."""

    def release(self, locks: Mapping[Shard, str]) -> None:
        """End our leases cleanly.

        Neither lock nor holder stays. Those no longer ours are left alone.
        """

    def locks(self, positions: Iterable[Position]) -> dict[Shard, LeaseState]:
        """Lease states, read beside rows: one plain read a shard, and maybe a moment old.

        Shards whose row is gone are left out.
        """

    def lane_locks(self, queue: str, lanes: Sequence[int]) -> dict[int, LeaseState]:
        """Lease states of lanes for groups: one plain read, and maybe a moment old.

        Lanes that were never leased are left out.
        """

    def waiting(self, queue: str, lanes: Sequence[int]) -> dict[int, dict[int, int]]:
        """The listed minutes of lanes for groups: one plain read.

        A holder reads after its `take` what those before it have listed, to the last one.

        Returns:
            Lane -> minute, ascending -> the due of its first row left, epoch milliseconds. Lanes
            without a listed minute are left out.
        """

    def list_minutes(
        self, lease: Shard, lock: str, listed: Mapping[int, int], erased: Collection[int] = ()
    ) -> bool:
        """List minutes of a lane and erase others, where its lease is ours. Idempotent.

        Cassandra: a conditional batch for each 100 minutes. SQLite: one transaction. An unknown
        outcome is resolved inside.

        Args:
            lease: The lane's (`Layout.lane_lease`).
            lock: Our token.
            listed: Minute -> the due of its first row left; what is listed already is replaced.
            erased: Minutes to be taken off the list, whether they are on it or not.

        Returns:
            False: the lease is not ours any more, and nothing was written, or not all. True also
            where nothing is to be written.

        Raises:
            StoreTimeout: Some of it may be written; repeating is safe.
            StoreUnavailable: Likewise.
        """


class Registers(Protocol):
    """What a queue keeps beside its messages, in tables of `shardq.stores.tables`.

    Notes are written plainly, records by compare and set alone.
    """

    def note(
        self,
        table: Table[K, V],
        partition: Partition,
        values: Mapping[K, V],
        ttl_ms: int | None = None,
    ) -> None:
        """Write values under keys of a partition, plainly; what stood there is replaced.

        Of a table with a `latest` column a row is replaced only by one in which that is higher,
        whatever the order of the writes.
        Idempotent, but for a repeat after somebody else's note. Cassandra: an unlogged batch of the
        partition, one round trip. SQLite: one transaction.

        Args:
            table: Of notes; never a row of it that `write_records` writes.
            partition: Which one.
            values: By key; all columns of each.
            ttl_ms: After that it is as if it had not been written; None: for ever.
        """

    def notes(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """What stands under keys of a partition, in any order: a plain read.

        Of records it tells what was decided a moment ago, maybe less.

        Args:
            table: Of notes or records.
            partition: Which one; of a table whose partitions are its keys, the whole table.
            keys: Those asked for; None: all. All costs a read of the tombstones of all that ended
                lately, and some only of theirs.
        """

    def erase(self, table: Table[K, V], partition: Partition, keys: Iterable[K]) -> None:
        """Delete notes plainly; one that is written afterwards is there again. Idempotent.

        Of a table with a `latest` column one that is written afterwards may stay hidden on
        Cassandra. Never a row that `write_records` writes.
        """

    def records(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """What is under keys of a partition as last decided, in any order: a SERIAL read.

        Args:
            table: Of records.
            partition: Which one.
            keys: Those asked for; None: all, where the table has partitions of several keys.
        """

    def write_records(self, table: Table[K, V], changes: Sequence[Change]) -> Refused:
        """Apply each of the changes whose record is as it was seen.

        Each is conditional by itself; those of one partition and key follow each other.
        SQLite: a transaction for each 2,000, with the messages' rows of `insert` and `delete`.
        Cassandra: a conditional batch for each 100 of a partition, partitions side by side. A batch
        that is refused is sent once more without those whose answer says no, then one by one. Then
        the rows of those applied are inserted, then rows are deleted, each acknowledged before the
        next.
        An unknown outcome is resolved inside, by the identical repeat. Where its answer says no, a
        change that reads as done counts as applied (`Change.is_done_by`), its rows are written
        again: so whoever sets a column that it has seen gives it a value that nobody else does. Of
        a table with a nonce, that tells instead.

        Args:
            table: Of records.
            changes: Any number, of any partitions.

        Returns:
            By partition and key, those refused: what is there of the columns that they have seen.

        Raises:
            StoreTimeout: Some may be applied; read again.
            StoreUnavailable: None is.
        """


class Logs(Protocol):
    """The ledger: what became of each message, and rows that are written with a line of it."""

    def record(self, marks: Iterable[Mark], ttl_ms: int) -> None:
        """Add to the ledger: puts, at the entry's time, and ends, of which the earliest stands.

        Each mark says one of the two. Idempotent, in whatever order they come and come again.

        Args:
            marks: Taken lazily, in full batches.
            ttl_ms: How long each is kept from now on.
        """

    def insert_once(
        self,
        line: Mark,
        line_ttl_ms: int,
        rows: Sequence[Row],
        marks: Sequence[Mark] = (),
        ttl_ms: int = 0,
    ) -> Mark | None:
        """Write rows, the marks of their puts, and a line of a log that says so.

        Nothing where the line's put is recorded: then somebody has written them.

        SQLite: one transaction, the look included. All is written or nothing, and of several calls
        with one line, from whatever process, one writes; the rows may have been deleted since.
        Cassandra: the look, rows, marks, line, each acknowledged before the next: four round trips
        for a few rows, then as many as `insert` and `record` need. What failed half way, and two
        calls at once, write the very same again, which changes nothing, and deleted rows stay
        deleted, for gc_grace: a caller that comes later looks first whether they are there.

        Args:
            line: A put, usually of a pseudo queue such as `mail#runs`; its name is what it says.
            line_ttl_ms: How long the line is kept. After that it is as if it had not been written.
            rows: The same with every call. On SQLite other writers wait meanwhile, 15 us a row.
            marks: Their puts, where their queue keeps a history.
            ttl_ms: How long the marks are kept.

        Returns:
            The line as it is recorded, with its end where it has one; None where this call wrote.

        Raises:
            StoreTimeout, StoreUnavailable: Some of it may be written on Cassandra; repeating is
                safe.
        """

    def recorded(self, entries: Iterable[Entry]) -> list[Mark]:
        """What the ledger says of those entries that it knows, in any order."""

    def history(self, queue: str, minutes: range) -> Iterator[Mark]:
        """The ledger of those minutes of entry, one after the other, in any order, by pages."""


class Store(Rows, Leases, Registers, Logs, Protocol):
    """What a database must do to hold queues: all of it, and what it tells of itself."""

    is_local: bool
    """Whether its time is this machine's own clock (`shardq.clock.Reference`)."""

    write_timeout_ms: int
    """How long a write may be under way before its caller learns that it may not be; 0 where every
    outcome is known. Nothing takes effect later than two of them, but for what a node that was away
    is told when it is back."""

    counters: Counter[str]
    """What was asked of the database since this object was made: `lwt`, `reads`, `batches`, .."""

    @property
    def shown(self) -> str:
        """Where the store is, for people; no passwords."""

    @property
    def beside(self) -> Path | None:
        """Where the members may keep files by which others notice their death; None: nowhere.

        The directory need not be there. Its files are of processes of one machine.
        """

    def open(self, *, create: bool = False) -> None:
        """Connect, and check that the schema is there and is ours. Idempotent.

        Args:
            create: Whether to create or migrate it. SQLite does so in any case.

        Raises:
            SchemaMissing: If keyspace or tables are not there, are not shardq's, or are of a format
                of before 0.1.0.
            SchemaNewer: If a newer shardq made them.
        """

    def close(self) -> None:
        """End all connections. Idempotent."""

    def clocks(self) -> Mapping[str, Callable[[], int]]:
        """By the name of each node: what asks its clock for epoch microseconds, in a round trip."""

    def changed(self) -> int | None:
        """A number that changes when another connection has written.

        None where that cannot be told cheaply.
        """
