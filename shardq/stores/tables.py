"""The tables of notes and records: one constant each, from which each store makes its statements.

```
 note     values under a key, written plainly: the last one counts, or the highest
 record   values under a key, written by compare and set alone
```

A table has partitions, and in each of them keys with their values. `cql/` and
`stores/sqlite/schema.py` make the tables; a test holds them to what is said here. What the values
mean is for `records/` to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Position

Partition: TypeAlias = tuple[Any, ...]
"""The values of a table's partition columns; empty where each key is a partition of its own."""

K = TypeVar("K")
V = TypeVar("V")


class Kind(Enum):
    """What a column holds, by CQL's name for it."""

    TEXT = "text"
    INT = "int"
    BIGINT = "bigint"
    TIMESTAMP = "timestamp"
    """Epoch milliseconds, an `int` here and in SQLite."""
    TIMEUUID = "timeuuid"
    """A row id, 16 `bytes` here and in SQLite."""
    BLOB = "blob"


class Lapse(Enum):
    """By what time notes and records of a table run out in SQLite; in Cassandra by their TTL."""

    NEVER = "never"
    WALL = "wall"
    """The wall clock's: column `until_us`."""
    BOOT = "boot"
    """Time since boot: `until_us`, `space`, `from_boot_us` and `until_boot_us`."""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: Its name in Cassandra.
        kind: What it holds.
        local: Its name in SQLite, where that is another.
    """

    name: str
    kind: Kind = Kind.TEXT
    local: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Table(Generic[K, V]):
    """A table: its columns, and what its keys and values look like.

    Where there is but one column, a key or values are its bare value; else a tuple in the order of
    the columns. A record may have columns without a value, None; one without any is not there.

    Attributes:
        name: Its name in both stores.
        partition: The columns that name a partition; none where the key does.
        key: The columns that name a row of a partition.
        values: The other columns. A note has all of them.
        has_notes: Whether rows are written plainly.
        has_records: Whether rows are written by compare and set. In a table with both, each row is
            of the one kind or of the other for good: a plain write hides what LWTs write.
        latest: Of notes: the column whose highest value stands, whatever the order of the writes.
        nonce: Of records: a further column of Cassandra's, in which the store keeps what tells its
            own write from others'. Without one, what is written has to: `Change.is_done_by`.
        lapse: By what time what has a time to live runs out in SQLite.
        shape: What makes a tuple of values what callers see.
    """

    name: str
    partition: tuple[Column, ...]
    key: tuple[Column, ...]
    values: tuple[Column, ...]
    has_notes: bool = True
    has_records: bool = False
    latest: str = ""
    nonce: str = ""
    lapse: Lapse = Lapse.NEVER
    shape: Callable[[Sequence[Any]], Any] = tuple

    def check_notes(self) -> None:
        """Refuse to write notes.

        Raises:
            ValueError: If the table has records alone.
        """
        if not self.has_notes:
            raise ValueError(f"table {self.name} has records alone; use write_records.")

    def check_records(self) -> None:
        """Refuse to write records.

        Raises:
            ValueError: If the table has notes alone.
        """
        if not self.has_records:
            raise ValueError(f"table {self.name} has notes alone; use note and erase.")

    def key_columns(self, key: K) -> tuple[Any, ...]:
        """A key, by columns."""
        return (key,) if len(self.key) == 1 else cast("tuple[Any, ...]", key)

    def key_of(self, columns: Sequence[Any]) -> K:
        """The key of its columns."""
        return cast("K", columns[0] if len(self.key) == 1 else tuple(columns))

    def value_columns(self, values: V) -> tuple[Any, ...]:
        """Values, by columns."""
        return (values,) if len(self.values) == 1 else cast("tuple[Any, ...]", values)

    def values_of(self, columns: Sequence[Any]) -> V:
        """The values of their columns."""
        return cast("V", columns[0] if len(self.values) == 1 else self.shape(columns))

    def has_value(self, values: V) -> bool:
        """Whether a row has any value: else there is none."""
        return any(one is not None for one in self.value_columns(values))

    def latest_of(self, values: V) -> int:
        """The time at which a note with these values is written, of a table with a latest column.

        Where it is a minute it can neither overflow nor lie in the future.
        """
        return int(self.value_columns(values)[self._names().index(self.latest)])

    def named(self, names: Iterable[str]) -> list[Column]:
        """Columns of `values`, in the order of these names."""
        return [self.values[self._names().index(name)] for name in names]

    def _names(self) -> list[str]:
        return [column.name for column in self.values]


class Change(NamedTuple):
    """What becomes of a record, if it is as it was seen.

    Attributes:
        partition: The values of the table's partition columns.
        key: The values of its key columns.
        seen: Column -> the value seen, None for unset or no row; at least one of the record's.
        new: Column -> the value to be there, None for unset; None: the whole row is deleted.
        insert: Rows of messages that are written once it is applied.
        delete: Rows of messages that are deleted after that.
        ttl_ms: For how long `new` is there; None: for ever. Whoever gives one sets each column.
    """

    partition: Partition
    key: tuple[Any, ...]
    seen: Mapping[str, Any]
    new: Mapping[str, Any] | None
    insert: tuple[Row, ...] = ()
    delete: tuple[Position, ...] = ()
    ttl_ms: int | None = None

    @property
    def place(self) -> Place:
        """Whose it is."""
        return self.partition, self.key

    def is_done_by(self, present: Mapping[str, Any]) -> bool:
        """Whether it was applied before, by what is there now of the columns seen.

        So it is where the row is to be deleted and gone; and where each column that is both seen
        and set reads as this sets it, one of them otherwise than it was seen.
        """
        if self.new is None:
            return all(value is None for value in present.values())
        both = self.seen.keys() & self.new.keys()
        is_news = any(self.new[name] != self.seen[name] for name in both)
        return is_news and all(present[name] == self.new[name] for name in both)


Place: TypeAlias = tuple[Partition, tuple[Any, ...]]
"""Partition and key of a record."""
Refused: TypeAlias = "dict[Place, Mapping[str, Any]]"
"""For each change that was refused, the present values of the columns that were seen."""


class Note(NamedTuple):
    """A note that goes with something else, as that of a row that moves.

    Attributes:
        table: Of notes.
        partition: The values of its partition columns.
        key: As the table has it.
        values: Likewise.
    """

    table: Table[Any, Any]
    partition: Partition
    key: Any
    values: Any


class QueueRecord(NamedTuple):
    """A row of `queues`.

    Attributes:
        settings: `Settings.to_json()`.
        secret: 32 random bytes that sign the queue's receipts.
        version: 1 at creation, one more with every change.
    """

    settings: str
    secret: bytes
    version: int


_QUEUE = Column("queue")

LANES: Final[Table[int, int]] = Table(
    "lanes",
    partition=(_QUEUE,),
    key=(Column("lane", Kind.INT),),
    values=(Column("sealed", Kind.BIGINT),),
    latest="sealed",
)
"""(queue): lane -> the last sealed minute, which only rises."""

QUEUES: Final[Table[str, QueueRecord]] = Table(
    "queues",
    partition=(),
    key=(Column("name"),),
    values=(Column("settings"), Column("secret", Kind.BLOB), Column("version", Kind.BIGINT)),
    has_notes=False,
    has_records=True,
    nonce="nonce",
    shape=QueueRecord._make,
)
"""(): name -> what a queue is. Never deleted."""

MEMBERS: Final[Table[str, str]] = Table(
    "members",
    partition=(_QUEUE,),
    key=(Column("member"),),
    values=(Column("info"),),
    lapse=Lapse.BOOT,
)
"""(queue): member -> its heartbeat, JSON, at most 4 KiB; by time to live."""

STATS: Final[Table[tuple[int, str], str]] = Table(
    "stats",
    partition=(_QUEUE,),
    key=(Column("minute", Kind.BIGINT), Column("member")),
    values=(Column("totals"),),
    has_records=True,
)
"""(queue): minute, member -> totals, JSON, at most 16 KiB; of the folded row 32 KiB.

Each process has notes of its own. The folded row is a record: no note is ever written to it.
"""

_BUCKET = (_QUEUE, Column("bucket", Kind.INT))

KEYS: Final[Table[str, tuple[str | None, str | None]]] = Table(
    "keys",
    partition=_BUCKET,
    key=(Column("key"),),
    values=(Column("live"), Column("state")),
    has_notes=False,
    has_records=True,
    lapse=Lapse.WALL,
)
"""(queue, bucket): name -> whose it is, and what that does; by time to live where it is held."""

PLACES: Final[Table[tuple[str, str], tuple[str, int]]] = Table(
    "places",
    partition=_BUCKET,
    key=(Column("key"), Column("message")),
    values=(Column("place"), Column("born", Kind.BIGINT)),
    latest="born",
)
"""(queue, bucket): name, message -> where its row has moved to, and when that was born."""


class ResultNote(NamedTuple):
    """A row of `results`; what it means, `records/results.py` says. No column is ever unset."""

    state: str
    attempt: int
    value: bytes
    error: str
    traceback: str
    progress: int
    note: str
    entered: int
    written: int


RESULTS: Final[Table[tuple[str, str], ResultNote]] = Table(
    "results",
    partition=(),
    key=(_QUEUE, Column("message")),
    values=(
        Column("state"),
        Column("attempt", Kind.INT),
        Column("value", Kind.BLOB),
        Column("error"),
        Column("traceback"),
        Column("progress", Kind.INT),
        Column("note"),
        Column("entered", Kind.BIGINT),
        Column("written", Kind.BIGINT),
    ),
    latest="written",
    lapse=Lapse.WALL,
    shape=ResultNote._make,
)
"""(): queue, message id -> what came of it; always by time to live."""

SCHEDULES: Final[Table[str, tuple[str, int]]] = Table(
    "schedules",
    partition=(_QUEUE,),
    key=(Column("name"),),
    values=(Column("definition"), Column("written", Kind.BIGINT)),
    latest="written",
)
"""(queue): name -> what a schedule is, JSON, and when that was written, epoch microseconds."""

TABLES: Final[tuple[Table[Any, Any], ...]] = (
    LANES, QUEUES, MEMBERS, STATS, KEYS, PLACES, RESULTS, SCHEDULES
)  # fmt: skip
"""All of them."""
