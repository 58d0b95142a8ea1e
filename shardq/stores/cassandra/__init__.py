"""Queues in a Cassandra keyspace.

```
 address ──► session ──► rows       messages
 (the url)  (the driver) minutes    an index of the shards with rows
                │        leases     static cells of a shard, LWT
                │        registers  notes and records: seals, queues, members, stats, keys ..
                │        history    the put and the end of each message
             failures    schema     keyspace, tables, migrations
```
The driver is imported in this package and nowhere else.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shardq.errors import MissingExtra

try:
    import lz4.block  # noqa: F401 - the driver compresses with it
    from cassandra import DependencyException
except ImportError as error:
    raise MissingExtra(
        "a Cassandra store needs its driver: pip install 'shardq[cassandra]'"
    ) from error
try:
    # This import chooses the driver's (3.30) event loop: libev, or asyncore, which only Python 3.11
    # and older have. The driver never chooses asyncio.
    import cassandra.cluster  # noqa: F401 - a missing loop is reported here
except DependencyException as error:
    raise MissingExtra(
        "cassandra-driver has no event loop: its libev extension does not load, and Python 3.12 "
        "and newer have no other for it; install a C compiler and libev with its headers (on "
        "Debian and Alpine: libev-dev), then: "
        "pip install --force-reinstall --no-cache-dir --no-deps 'cassandra-driver>=3.30,<4'"
    ) from error

from shardq.model.ids import birth_us
from shardq.stores import steps
from shardq.stores.cassandra import schema
from shardq.stores.cassandra.address import Address, read_url
from shardq.stores.cassandra.history import Logs
from shardq.stores.cassandra.leases import Leases
from shardq.stores.cassandra.registers import Registers
from shardq.stores.cassandra.rows import Rows
from shardq.stores.cassandra.session import Session
from shardq.stores.store import NO_MARKS, NO_TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import Mark, RowMove, WriteOnce
    from shardq.stores.tables import Change, K, Refused, Table, V

__all__ = ["Address", "CassandraStore"]

_NOW = "SELECT now() FROM system.local"
_GRAIN_US = 1_000
_WRITE_MS_MIN = 2_000
"""The least `write_timeout_ms`: clocks differ, and ids may be a little ahead of their clock."""
_TIME_SECONDS = 1.0
"""Timeout of a request for a node's time: a slower answer says nothing about its clock."""


class CassandraStore(Rows, Leases, Registers, Logs):
    """The store of `shardq.stores.store` on Cassandra 4.1, 5.0 or newer.

    A deleted row stays deleted, however often and late its insert is repeated, by any clock.
    Connections are made when first used, and again in a forked child.

    Args:
        address: The keyspace's address.

    Attributes:
        is_local: False: the nodes' clocks give the time.
        beside: None: members of a keyspace share no directory.
    """

    is_local = False
    beside: Path | None = None

    def __init__(self, address: Address) -> None:
        self.address = address
        super().__init__(Session(address))
        self.write_timeout_ms = max(address.timeout_ms, _WRITE_MS_MIN)
        self.counters = self._session.counters

    @classmethod
    def from_url(cls, url: str) -> CassandraStore:
        """The store of a url, not yet connected.

        Args:
            url: `cassandra://host1,host2:9042/keyspace?dc=..&user=..&password_env=VARIABLE`, with
                `consistency=local_quorum|quorum|all`, `tls=on|any-host|off`, `ca=`, `cert=`,
                `timeout=10s`, `replication=3`.

        Raises:
            BadUrl: If the url cannot be used.
        """
        return cls(read_url(url))

    def open(self, *, create: bool = False) -> None:
        """Connect, and check the schema.

        Args:
            create: True to create or migrate keyspace and tables. Idempotent.
        """
        if create:
            schema.init(self._session)
        else:
            schema.check(self._session)

    def close(self) -> None:
        """End all connections. Idempotent."""
        self._session.close()

    @staticmethod
    def schema_text(address: Address | None = None) -> str:
        """The CQL that `init` runs; connects to nothing.

        Args:
            address: The address of the keyspace; `shardq` with three copies by default.
        """
        return schema.schema_text(address or Address(hosts=()))

    def insert(self, rows: Iterable[Row], once: WriteOnce | None = None) -> Mark | None:
        """Write rows at their births; with `once` step by step, and only if its line is missing."""
        if once is not None:
            return steps.insert(self, rows, once)
        self.insert_rows(rows)
        return None

    def move(
        self,
        moves: Iterable[RowMove],
        marks: Mapping[Position, Sequence[Mark]] = NO_MARKS,
        kept_ms: Mapping[str, int] = NO_TIMES,
    ) -> set[Position]:
        """Write new rows and delete old ones; moves with marks or a note step by step."""
        in_steps: list[RowMove] = []
        self.move_rows(_others(moves, marks, in_steps))
        if in_steps:
            steps.move(self, in_steps, marks, kept_ms)
        return set()

    def write_records(self, table: Table[K, V], changes: Sequence[Change]) -> Refused:
        """Change records by LWT, then insert and delete the messages' rows of applied changes."""
        done, refused = self.change_records(table, changes)
        steps.follow(self, done)
        return refused

    def clocks(self) -> Mapping[str, Callable[[], int]]:
        """`address:port` of each live node -> a function that reads its clock.

        The function raises `StoreUnavailable` if the node is gone.
        """
        nodes = [str(host.endpoint) for host in self._session.live_hosts()]
        return {node: partial(self._time_us, node) for node in nodes}

    def _time_us(self, node: str) -> int:
        host = self._session.host(node)
        ((now,),) = self._session.ask(
            self._session.prepared(_NOW), host=host, seconds=_TIME_SECONDS
        )
        # Cassandra 5.0 reads its clock in whole milliseconds. The digits below them are a counter.
        told = birth_us(now.bytes)
        return told - told % _GRAIN_US

    def changed(self) -> int | None:
        """None: Cassandra has no number that changes with each write."""
        return None

    @property
    def shown(self) -> str:
        """The hosts and the keyspace, without user and password."""
        return self.address.shown


def _others(
    moves: Iterable[RowMove], marks: Mapping[Position, Sequence[Mark]], in_steps: list[RowMove]
) -> Iterator[RowMove]:
    """The moves without marks and note; moves with marks or a note are added to `in_steps`."""
    for move in moves:
        if move.note is None and move.old not in marks:
            yield move
        else:
            in_steps.append(move)
