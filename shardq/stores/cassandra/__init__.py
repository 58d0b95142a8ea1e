"""Queues in a Cassandra keyspace.

```
 address ──► session ──► rows       messages
 (the url)  (the driver) leases     static cells of a shard, LWT
                │        registers  seals, queues, members, blocked groups, stats
                │        history    what became of each message
             failures    schema     keyspace, tables, migrations
                         former     the history by lane, carried over
```
The driver is imported in this package and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.errors import MissingExtra

try:
    import cassandra  # noqa: F401 - asked for here, imported where it is used
    import lz4.block  # noqa: F401 - as is what the driver compresses with
except ImportError as error:
    raise MissingExtra(
        "a Cassandra store needs its driver: pip install 'shardq[cassandra]'"
    ) from error

from shardq.model.ids import birth_us
from shardq.stores import steps
from shardq.stores.cassandra import schema
from shardq.stores.cassandra.address import Address, read_url
from shardq.stores.cassandra.history import History
from shardq.stores.cassandra.leases import Leases
from shardq.stores.cassandra.registers import Registers
from shardq.stores.cassandra.rows import Rows
from shardq.stores.cassandra.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import Mark, Move, Progress

__all__ = ["Address", "CassandraStore"]

_NOW = "SELECT now() FROM system.local"
_GRAIN_US = 1_000
_TIME_SECONDS = 1.0
"""A clock that takes longer to tell its time tells nothing."""


class CassandraStore(Rows, Leases, Registers, History):
    """The store of `shardq.stores.store` on Cassandra 4.1, 5.0 or newer.

    A row that has been deleted stays deleted, however often and late its insert is repeated, from
    whatever clock. Connections are made when first used, and again in a forked child.

    Args:
        address: Where the keyspace is.

    Attributes:
        is_local: False: the nodes tell the time.
        beside: None: nothing is beside it.
    """

    is_local = False
    beside: Path | None = None

    def __init__(self, address: Address) -> None:
        self.address = address
        super().__init__(Session(address))
        self.counters = self._session.counters

    @classmethod
    def from_url(cls, url: str) -> CassandraStore:
        """The store of a url, not yet connected.

        Args:
            url: `cassandra://host1,host2:9042/keyspace?dc=..&user=..&password_env=VARIABLE`, with
                `consistency=local_quorum|quorum|all`, `tls=on|any-host|off`, `ca=`, `cert=`,
                `timeout=10s`, `replication=3`.

        Raises:
            BadUrl: If it cannot be used.
        """
        return cls(read_url(url))

    def init(self, on_progress: Progress | None = None) -> None:
        """Create or migrate keyspace and tables. Idempotent.

        Args:
            on_progress: Told how much is carried over to new tables.
        """
        schema.init(self._session, on_progress)

    def open(self) -> None:
        """Connect, and check the schema."""
        schema.check(self._session)

    def close(self) -> None:
        """End all connections. Idempotent."""
        self._session.close()

    @staticmethod
    def schema_text(address: Address | None = None) -> str:
        """The CQL that `init` runs; connects to nothing.

        Args:
            address: Of the keyspace to name in it; `shardq` with three copies by default.
        """
        return schema.schema_text(address or Address(hosts=()))

    def insert_once(
        self,
        line: Mark,
        line_ttl_ms: int,
        rows: Sequence[Row],
        marks: Sequence[Mark] = (),
        ttl_ms: int = 0,
    ) -> Mark | None:
        """Look for a line; where it is not there, write rows, marks and the line, in this order."""
        return steps.insert_once(self, line, line_ttl_ms, rows, marks, ttl_ms)

    def move_once(
        self,
        moves: Sequence[Move],
        marks: Mapping[Position, Sequence[Mark]],
        ttl_ms: int,
    ) -> set[Position]:
        """Write new rows, then marks, then delete the old rows."""
        return steps.move_once(self, moves, marks, ttl_ms)

    def nodes(self) -> Sequence[str]:
        """The live nodes, `address:port`."""
        return [str(host.endpoint) for host in self._session.live_hosts()]

    def time_us(self, node: str) -> int:
        """Epoch microseconds by a node's clock, in one round trip.

        Raises:
            StoreUnavailable: If the node is not there any more.
        """
        host = self._session.host(node)
        ((now,),) = self._session.ask(
            self._session.prepared(_NOW), host=host, seconds=_TIME_SECONDS
        )
        # Cassandra 5.0 reads its clock in whole milliseconds; what is below them only counts up.
        told = birth_us(now.bytes)
        return told - told % _GRAIN_US

    def changed(self) -> int | None:
        """None: Cassandra cannot tell cheaply."""
        return None

    def describe(self) -> str:
        """The hosts and the keyspace, without user and password."""
        return self.address.shown
