"""The tables of notes and records: one constant each, from which each store makes its statements.

```
 note     values under a key, written plainly: the last write stands, or the highest value
 record   values under a key, written by compare and set alone
```

A table has partitions, and a partition has keys with their values. `cql/` and
`stores/sqlite/schema.py` make the tables; a test compares them with the constants here. `records/`
defines the meaning of the values.
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
"""The values of a table's partition columns; empty if each key is a partition of its own."""

K = TypeVar("K")
V = TypeVar("V")


class Kind(Enum):
    """The type of a column, by its name in CQL."""

    TEXT = "text"
    INT = "int"
    BIGINT = "bigint"
    TIMESTAMP = "timestamp"
    """Epoch milliseconds, an `int` here and in SQLite."""
    TIMEUUID = "timeuuid"
    """A row id, 16 `bytes` here and in SQLite."""
    BLOB = "blob"


class Lapse(Enum):
    """The clock by which rows of a table expire in SQLite; in Cassandra they have a TTL."""

    NEVER = "never"
    WALL = "wall"
    """Wall clock, in column `until_us`."""
    BOOT = "boot"
    """Time since boot, in `until_us`, `space`, `from_boot_us` and `until_boot_us`."""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: Its name in Cassandra.
        kind: Its type.
        local: Its name in SQLite, if that is another.
    """

    name: str
    kind: Kind = Kind.TEXT
    local: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Table(Generic[K, V]):
    """A table: its columns, and the form of its keys and values.

    A key, or values, of a single column are the bare value; of several columns, a tuple in the
    order of the columns. A record may have unset columns, None; a record with all columns unset
    does not exist.

    Attributes:
        name: Its name in both stores.
        partition: The columns that name a partition; none if each key is a partition.
        key: The columns that name a row of a partition.
        values: The other columns. A note has all of them.
        has_notes: True if rows are written plainly.
        has_records: True if rows are written by compare and set. In a table with both, a row is
            either a note or a record for good: a plain write hides what LWTs write.
        latest: For notes: the column whose highest value stands, in whatever order writes arrive.
        nonce: For records: a further column in Cassandra, by which the store recognizes its own
            write. Without it the store compares the values (`Change.is_done_by`).
        lapse: The clock by which rows with a time to live expire in SQLite.
        shape: Turns the tuple of a row's values into the object that callers see.
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
        """Refuse to write notes to a table that has none.

        Raises:
            ValueError: If the table has records alone.
        """
        if not self.has_notes:
            raise ValueError(f"table {self.name} has records alone; use write_records.")

    def check_records(self) -> None:
        """Refuse to write records to a table that has none.

        Raises:
            ValueError: If the table has notes alone.
        """
        if not self.has_records:
            raise ValueError(f"table {self.name} has notes alone; use note and erase.")

    def key_columns(self, key: K) -> tuple[Any, ...]:
        """The columns of a key."""
        return (key,) if len(self.key) == 1 else cast("tuple[Any, ...]", key)

    def key_of(self, columns: Sequence[Any]) -> K:
        """The key in its columns."""
        return cast("K", columns[0] if len(self.key) == 1 else tuple(columns))

    def value_columns(self, values: V) -> tuple[Any, ...]:
        """The columns of values."""
        return (values,) if len(self.values) == 1 else cast("tuple[Any, ...]", values)

    def values_of(self, columns: Sequence[Any]) -> V:
        """The values in their columns."""
        return cast("V", columns[0] if len(self.values) == 1 else self.shape(columns))

    def has_value(self, values: V) -> bool:
        """True if any value is set: a row without any does not exist."""
        return any(one is not None for one in self.value_columns(values))

    def latest_of(self, values: V) -> int:
        """The value of the `latest` column. Cassandra's write timestamp follows from it."""
        return int(self.value_columns(values)[self._names().index(self.latest)])

    def named(self, names: Iterable[str]) -> list[Column]:
        """The columns of `values` with these names, in this order."""
        return [self.values[self._names().index(name)] for name in names]

    def _names(self) -> list[str]:
        return [column.name for column in self.values]


class Change(NamedTuple):
    """A change of a record, applied if the record is as it was seen.

    Attributes:
        partition: The values of the table's partition columns.
        key: The values of its key columns.
        seen: Column -> the value seen, None for unset or no row; at least one column.
        new: Column -> the value to set, None to unset it; None: the whole row is deleted.
        insert: Rows of messages that are written after the change is applied.
        delete: Rows of messages that are deleted after that.
        is_decisive: True if a refusal must mean that the change was never applied.
        ttl_ms: How long `new` is kept; None: for ever. A change with a TTL sets all columns.
    """

    partition: Partition
    key: tuple[Any, ...]
    seen: Mapping[str, Any]
    new: Mapping[str, Any] | None
    insert: tuple[Row, ...] = ()
    delete: tuple[Position, ...] = ()
    is_decisive: bool = False
    ttl_ms: int | None = None

    @property
    def place(self) -> Place:
        """The place of the record."""
        return self.partition, self.key

    def is_done_by(self, present: Mapping[str, Any]) -> bool:
        """True if the present values of the columns seen show that the change was applied.

        A delete is done if the row is gone. Any other change is done if each column both seen and
        set has its new value, and one of these new values differs from the one seen.
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
    """A note that is written together with a row that moves.

    Attributes:
        table: A table of notes.
        partition: The values of its partition columns.
        key: The key, in the table's form.
        values: The values, in the table's form.
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
        version: 1 at creation; each change adds one.
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
"""(queue): lane -> the last sealed minute, which never falls."""

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
"""(): name -> a queue's record. Never deleted."""

MEMBERS: Final[Table[str, str]] = Table(
    "members",
    partition=(_QUEUE,),
    key=(Column("member"),),
    values=(Column("info"),),
    lapse=Lapse.BOOT,
)
"""(queue): member -> its heartbeat, JSON, at most 4 KiB, with a time to live."""

STATS: Final[Table[tuple[int, str], str]] = Table(
    "stats",
    partition=(_QUEUE,),
    key=(Column("minute", Kind.BIGINT), Column("member")),
    values=(Column("totals"),),
    has_records=True,
)
"""(queue): minute, member -> totals, JSON, at most 16 KiB; the folded row at most 32 KiB.

Each process writes notes of its own. The folded row is a record: no note is ever written to it.
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
"""(queue, bucket): name -> the message that has it, and its state; a held name has a TTL."""

PLACES: Final[Table[tuple[str, str], tuple[str, int]]] = Table(
    "places",
    partition=_BUCKET,
    key=(Column("key"), Column("message")),
    values=(Column("place"), Column("born", Kind.BIGINT)),
    latest="born",
)
"""(queue, bucket): name, message -> the place its row has moved to, and that row's birth."""


class ResultNote(NamedTuple):
    """A row of `results`, as `records/results.py` explains it. No column is ever unset."""

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
"""(): queue, message id -> the result, always with a time to live."""


class ScheduleRecord(NamedTuple):
    """A row of `schedules`.

    Attributes:
        definition: JSON, as `schedules/definition.py` explains it.
        state: JSON, as `schedules/stored.py` explains it.
        next: The next fire time, epoch milliseconds; None: it does not fire.
    """

    definition: str | None
    state: str | None
    next: int | None


SCHEDULES: Final[Table[str, ScheduleRecord]] = Table(
    "schedules",
    partition=_BUCKET,
    key=(Column("name"),),
    values=(Column("definition"), Column("state"), Column("next", Kind.BIGINT)),
    has_records=True,
    shape=ScheduleRecord._make,
)
"""(queue, bucket): name -> a schedule. The bucket after the others has notes: bucket -> a number,
`next`, that is drawn anew before a command changes a schedule of this bucket."""

NEXTS: Final[Table[str, int | None]] = Table(
    SCHEDULES.name,
    partition=SCHEDULES.partition,
    key=SCHEDULES.key,
    values=(Column("next", Kind.BIGINT),),
    has_notes=False,
)
"""A table that reads only the fire times of `SCHEDULES`."""


class AccountRecord(NamedTuple):
    """A row of `accounts`.

    Attributes:
        info: JSON, as `server/accounts.py` explains it.
        version: 1 at creation; each change adds one.
    """

    info: str
    version: int


ACCOUNTS: Final[Table[str, AccountRecord]] = Table(
    "accounts",
    partition=(),
    key=(Column("account"),),
    values=(Column("info"), Column("version", Kind.BIGINT)),
    has_notes=False,
    has_records=True,
    nonce="nonce",
    shape=AccountRecord._make,
)
"""(): 12 digits -> an account; `master` -> the key from which secrets are derived."""


class AccessRecord(NamedTuple):
    """A row of `access`.

    Attributes:
        account: The account to which the key belongs.
        info: JSON, as `server/accounts.py` explains it.
        version: 1 at creation; each change adds one.
    """

    account: str
    info: str
    version: int


ACCESS: Final[Table[str, AccessRecord]] = Table(
    "access",
    partition=(),
    key=(Column("key"),),
    values=(Column("account"), Column("info"), Column("version", Kind.BIGINT)),
    has_notes=False,
    has_records=True,
    nonce="nonce",
    shape=AccessRecord._make,
)
"""(): a key's id -> what it may do. Never deleted: a revoked one is marked as such."""


class ActionNote(NamedTuple):
    """A row of `actions`, as `records/actions.py` explains it. No column is ever unset."""

    who: str
    via: str
    what: str
    object: str
    outcome: str


ACTIONS: Final[Table[bytes, ActionNote]] = Table(
    "actions",
    partition=(Column("day", Kind.INT),),
    key=(Column("at", Kind.TIMEUUID),),
    values=(Column("who"), Column("via"), Column("what"), Column("object"), Column("outcome")),
    lapse=Lapse.WALL,
    shape=ActionNote._make,
)
"""(days since the epoch): a row id -> a command that changed something, with a time to live."""


class EndpointRecord(NamedTuple):
    """A row of `endpoints`.

    Attributes:
        info: JSON, as `server/endpoints.py` explains it.
        version: 1 at creation; each change adds one.
    """

    info: str
    version: int


ENDPOINTS: Final[Table[str, EndpointRecord]] = Table(
    "endpoints",
    partition=(Column("account"), Column("region")),
    key=(Column("name"),),
    values=(Column("info"), Column("version", Kind.BIGINT)),
    has_notes=False,
    has_records=True,
    nonce="nonce",
    shape=EndpointRecord._make,
)
"""(account, region): the name that SQS clients know -> their queue."""

SENT: Final[Table[str, str]] = Table(
    "sent",
    partition=_BUCKET,
    key=(Column("name"),),
    values=(Column("place"),),
    has_notes=False,
    has_records=True,
    lapse=Lapse.WALL,
)
"""(queue, bucket): the name under which a message is put once -> its id and first place; a TTL."""

LIMITS: Final[Table[str, str]] = Table(
    "limits",
    partition=(_QUEUE,),
    key=(Column("name"),),
    values=(Column("shares"),),
    has_notes=False,
    has_records=True,
    lapse=Lapse.WALL,
)
"""(queue): limit -> the shares that members have of it, JSON; stretch of time -> slots taken;
group with a slow rate -> when its tokens are all there again, JSON."""

TABLES: Final[tuple[Table[Any, Any], ...]] = (
    LANES, QUEUES, MEMBERS, STATS, KEYS, PLACES, RESULTS, SCHEDULES, ACCOUNTS, ACCESS, ACTIONS,
    ENDPOINTS, SENT, LIMITS
)  # fmt: skip
"""All tables of notes and records."""
VIEWS: Final[tuple[Table[Any, Any], ...]] = (NEXTS,)
"""Tables that read some of the columns of another table."""
