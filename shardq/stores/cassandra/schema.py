"""The keyspace and its tables: made, migrated, checked.

The tables themselves are in `cql/`, one numbered file a migration.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from shardq.clock import SystemClock
from shardq.errors import SchemaMissing, SchemaNewer, StoreTimeout
from shardq.stores.cassandra import cells, former
from shardq.stores.cassandra.undecided import decide

if TYPE_CHECKING:
    from shardq.stores.cassandra.address import Address
    from shardq.stores.cassandra.session import Session
    from shardq.stores.store import Progress

OURS = "shardq"
"""The name of our row in `schema_version`."""
CARRIED = "history by lane"
"""The name of the row that counts the slices that `former.py` has carried over."""
LEDGER = 3
"""The migration that makes the ledger by message."""

_PACKAGED = Path(__file__).parents[2] / "cql"
_CHECKOUT = Path(__file__).parents[3] / "cql"
_NUMBERED = re.compile(r"(\d{4})_[a-z0-9_]+\.cql\Z")
_COMMENT = re.compile(r"--[^\n]*")
_UNIFIED = "{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'L10'}"
_LEVELED = "{'class': 'LeveledCompactionStrategy'}"
_UNIFIED_SINCE = 5

_REPLICATION = 3
_AGREEMENT_TRIES = 150
_AGREEMENT_PAUSE_SECONDS = 0.2

_TABLE = re.compile(r"\A(CREATE TABLE IF NOT EXISTS |ALTER TABLE )")
_VERSION = "SELECT version FROM {}.schema_version WHERE name = ?"
_MARK = "INSERT INTO schema_version (name, version) VALUES (?, ?) IF NOT EXISTS;"
_FIRST = "INSERT INTO {}.schema_version (name, version) VALUES (?, ?) IF NOT EXISTS"
_NEXT = "UPDATE {}.schema_version SET version = ? WHERE name = ? IF version = ?"
_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
_KEYSPACE = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"


class Migration(NamedTuple):
    """One file of `cql/`."""

    number: int
    text: str

    def statements(self) -> list[str]:
        """Its statements, without comments."""
        bare = _COMMENT.sub("", self.text)
        return [statement.strip() for statement in bare.split(";") if statement.strip()]


def migrations() -> list[Migration]:
    """All migrations, in order; from the installed package, else from the checkout."""
    folder = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
    found = [
        Migration(int(match[1]), path.read_text(encoding="utf-8"))
        for path in folder.iterdir()
        if (match := _NUMBERED.match(path.name))
    ]
    return sorted(found)


def schema_text(address: Address) -> str:
    """The CQL that `init` runs on a Cassandra 5, fit for `cqlsh`; connects to nothing."""
    every = migrations()
    keyspace = _keyspace_cql(address, address.replication or _REPLICATION)
    mark = _MARK.replace("?", f"'{OURS}'", 1).replace("?", str(every[-1].number), 1)
    texts = [migration.text.strip() for migration in every]
    return "\n\n".join([f"{keyspace};", f"USE {address.keyspace};", *texts, mark]) + "\n"


def init(session: Session, on_progress: Progress | None = None) -> None:
    """Create or migrate keyspace and tables. Idempotent; run it from one process at a time.

    Args:
        on_progress: Told what is carried over to new tables, how much of it is, and of how much.

    Raises:
        SchemaMissing: If the keyspace holds tables that are not shardq's; nothing is changed.
        SchemaNewer: If a newer shardq made it.
    """
    address = session.address
    tables = _tables(session)
    if tables and "schema_version" not in tables:
        raise _foreign(address)
    if tables is None:
        copies = address.replication or _copies(session)
        _change(session, _keyspace_cql(address, copies))
    every = migrations()
    done = _version(session, OURS) if tables else 0
    _refuse_newer(address, done, every[-1].number)
    leveled = _oldest_release(session) < _UNIFIED_SINCE
    for migration in every:
        is_new = migration.number > done
        for statement in migration.statements() if is_new else ():
            qualified = _TABLE.sub(rf"\1{address.keyspace}.", statement)
            _change(session, qualified.replace(_UNIFIED, _LEVELED) if leveled else qualified)
        if migration.number == LEDGER:
            # Each time: who is of an older release records there. Before the new version is
            # recorded: nobody is to ask the ledger before it has all.
            _carry(session, on_progress, is_resumed=is_new)
        if is_new:
            _record(session, OURS, migration.number, done)
            done = migration.number


def check(session: Session) -> None:
    """Whether keyspace and tables are there, ours, and of this version.

    Raises:
        SchemaMissing: If not; the text says to run `shardq init`.
        SchemaNewer: If a newer shardq made them.
    """
    address = session.address
    tables = _tables(session)
    if not tables:
        raise SchemaMissing(
            f"{address.shown}: there is no keyspace {address.keyspace!r} with shardq's tables; "
            f"run `shardq init` once to make them."
        )
    if "schema_version" not in tables:
        raise _foreign(address)
    done, newest = _version(session, OURS), migrations()[-1].number
    _refuse_newer(address, done, newest)
    if done < newest:
        raise SchemaMissing(
            f"{address.shown} has schema {done}, this shardq needs {newest}; run `shardq init`."
        )


def _foreign(address: Address) -> SchemaMissing:
    return SchemaMissing(
        f"keyspace {address.keyspace!r} of {address.shown} holds tables that are not shardq's; "
        f"name another keyspace in the url, and run `shardq init` to make it."
    )


def _refuse_newer(address: Address, done: int, newest: int) -> None:
    if done > newest:
        raise SchemaNewer(
            f"{address.shown} has schema {done}, made by a newer shardq; this one knows {newest}. "
            f"Upgrade shardq here."
        )


def _tables(session: Session) -> set[str] | None:
    """The names of the keyspace's tables; None where there is no keyspace."""
    keyspace = (session.address.keyspace,)
    if not session.ask(_KEYSPACE, keyspace):
        return None
    return {name for (name,) in session.ask(_TABLES, keyspace)}


def _carry(session: Session, on_progress: Progress | None, *, is_resumed: bool) -> None:
    """Carry over the history as older releases keep it.

    Args:
        is_resumed: Whether to begin where the last run stopped. Not once all was carried over: what
            has been recorded since may be anywhere.
    """
    counted = _version(session, CARRIED) if is_resumed else 0
    for number in range(counted, former.SLICES):
        # What was empty is soon read again.
        if former.carry(session, number) and is_resumed:
            _record(session, CARRIED, number + 1, counted)
            counted = number + 1
        if on_progress is not None:
            on_progress("parts of the history", number + 1, former.SLICES)


def _version(session: Session, name: str) -> int:
    statement = session.bound(_VERSION, [name.encode()])
    rows = [row for page in session.read([statement], "registers") for row in page]
    return int(rows[0][0]) if rows else 0


def _record(session: Session, name: str, number: int, done: int) -> None:
    key = name.encode()
    values = [cells.int_(number), key, cells.int_(done)]
    make = (
        partial(session.bound, _NEXT, values)
        if done
        else partial(session.bound, _FIRST, [key, cells.int_(number)])
    )
    # Refused where another process has just recorded the same migration, which is as good.
    decide(session, {number: make})


def _keyspace_cql(address: Address, copies: int) -> str:
    # The name is of a fixed alphabet; the data centre is quoted, for operators choose it.
    where = "replication_factor" if address.dc is None else address.dc.replace("'", "''")
    return (
        f"CREATE KEYSPACE IF NOT EXISTS {address.keyspace} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', '{where}': {copies}}}"
    )


def _copies(session: Session) -> int:
    """3 where every data centre concerned has three nodes, else 1: two could lose neither."""
    counts: dict[str, int] = {}
    for host in session.cluster.metadata.all_hosts():
        if session.address.dc in (None, host.datacenter):
            counts[host.datacenter] = counts.get(host.datacenter, 0) + 1
    return _REPLICATION if min(counts.values(), default=1) >= _REPLICATION else 1


def _oldest_release(session: Session) -> int:
    releases = [host.release_version for host in session.cluster.metadata.all_hosts()]
    return min(int(release.split(".")[0]) for release in releases if release)


def _change(session: Session, cql: str) -> None:
    """One schema change, and the nodes' agreement on it: the next one may reach another node."""
    session.ask(SimpleStatement(cql, consistency_level=ConsistencyLevel.ONE))
    clock = SystemClock(0, corrected=False)
    for _ in range(_AGREEMENT_TRIES):
        if len(_schemas(session)) <= 1:
            return
        clock.sleep(_AGREEMENT_PAUSE_SECONDS)
    raise StoreTimeout(
        f"the nodes of {session.address.shown} do not agree on the schema after "
        f"{_AGREEMENT_TRIES * _AGREEMENT_PAUSE_SECONDS:.0f} s; see `nodetool describecluster`."
    )


def _schemas(session: Session) -> set[Any]:
    up = {host.broadcast_rpc_address or host.address for host in session.live_hosts()}
    local = session.ask("SELECT schema_version FROM system.local")
    peers = session.ask("SELECT rpc_address, schema_version FROM system.peers")
    return {version for (version,) in local} | {
        version for address, version in peers if str(address) in up
    }
