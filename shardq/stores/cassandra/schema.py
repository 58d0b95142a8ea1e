"""Makes, migrates and checks the keyspace and its tables.

Each table is a file in `cql/`; migrations are numbered files beside them.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from shardq.clock import SystemClock
from shardq.errors import SchemaMissing, StoreTimeout
from shardq.model import formats
from shardq.stores.cassandra import cells
from shardq.stores.cassandra.undecided import decide

if TYPE_CHECKING:
    from shardq.stores.cassandra.address import Address
    from shardq.stores.cassandra.session import Session

OURS = "shardq"
"""The name of shardq's row in `schema_version`."""
TABLES = (
    "schema_version",
    "messages",
    "minutes",
    "waiting",
    "lanes",
    "queues",
    "members",
    "stats",
    "history",
    "keys",
    "places",
    "results",
    "schedules",
    "accounts",
    "access",
    "actions",
    "endpoints",
    "sent",
    "limits",
)
"""The files of `cql/`, in the order of creation. The first marks a keyspace as ours."""

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

_TABLE = re.compile(r"\A(CREATE (?:TABLE|TYPE) IF NOT EXISTS |ALTER TABLE )")
_VERSION = "SELECT version FROM {}.schema_version WHERE name = ?"
_MARK = "INSERT INTO schema_version (name, version) VALUES (?, ?) IF NOT EXISTS;"
_FIRST = "INSERT INTO {}.schema_version (name, version) VALUES (?, ?) IF NOT EXISTS"
_NEXT = "UPDATE {}.schema_version SET version = ? WHERE name = ? IF version = ?"
_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
_KEYSPACE = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"


class Migration(NamedTuple):
    """The statements that bring a keyspace to a format.

    Attributes:
        number: The format that the statements make; `BASE` for the tables.
        text: CQL with comments.
    """

    number: int
    text: str

    def statements(self) -> list[str]:
        """The statements, without comments."""
        bare = _COMMENT.sub("", self.text)
        return [statement.strip() for statement in bare.split(";") if statement.strip()]


def migrations() -> list[Migration]:
    """The tables, then all migrations; from the installed package, else from the checkout."""
    folder = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
    tables = [(folder / f"{name}.cql").read_text(encoding="utf-8").strip() for name in TABLES]
    numbered = [
        Migration(int(match[1]), path.read_text(encoding="utf-8").strip())
        for path in folder.iterdir()
        if (match := _NUMBERED.match(path.name))
    ]
    return [Migration(formats.BASE, "\n\n".join(tables)), *sorted(numbered)]


def schema_text(address: Address) -> str:
    """The CQL that `init` runs on a Cassandra 5, fit for `cqlsh`; connects to nothing."""
    keyspace = _keyspace_cql(address, address.replication or _REPLICATION)
    mark = _MARK.replace("?", f"'{OURS}'", 1).replace("?", str(formats.FORMAT), 1)
    texts = [migration.text for migration in migrations()]
    return "\n\n".join([f"{keyspace};", f"USE {address.keyspace};", *texts, mark]) + "\n"


def init(session: Session) -> None:
    """Create or migrate keyspace and tables. Idempotent; run it from one process at a time.

    Raises:
        SchemaMissing: If the keyspace has tables that are not shardq's, or are from before 0.1.0;
            nothing is changed.
        SchemaNewer: If a newer shardq made it.
    """
    address = session.address
    tables = _tables(session)
    done = _format(session, tables) if tables else 0
    if formats.is_current(done, shown=address.shown, what="keyspace"):
        return
    if tables is None:
        copies = address.replication or _copies(session)
        _change(session, _keyspace_cql(address, copies))
    leveled = _oldest_release(session) < _UNIFIED_SINCE
    for migration in migrations():
        if migration.number <= done:
            continue
        for statement in migration.statements():
            qualified = _TABLE.sub(rf"\1{address.keyspace}.", statement)
            _change(session, qualified.replace(_UNIFIED, _LEVELED) if leveled else qualified)
        _record(session, migration.number, done)
        done = migration.number
    if done < formats.FORMAT:
        # A format in which only records change has no migration.
        _record(session, formats.FORMAT, done)


def check(session: Session) -> None:
    """Refuse a keyspace that lacks shardq's tables, or has those of another format.

    Raises:
        SchemaMissing: If tables are missing or older; the text says what to do.
        SchemaNewer: If a newer shardq made them.
    """
    address = session.address
    tables = _tables(session)
    if not tables:
        raise SchemaMissing(
            f"{address.shown}: there is no keyspace {address.keyspace!r} with shardq's tables; "
            f"run `shardq init` once to make them."
        )
    done = _format(session, tables)
    if not formats.is_current(done, shown=address.shown, what="keyspace"):
        raise SchemaMissing(
            f"{address.shown} lacks some of the tables of format {formats.FORMAT}; "
            f"run `shardq init`."
        )


def _tables(session: Session) -> set[str] | None:
    """The names of the keyspace's tables; None if there is no keyspace."""
    keyspace = (session.address.keyspace,)
    if not session.ask(_KEYSPACE, keyspace):
        return None
    return {name for (name,) in session.ask(_TABLES, keyspace)}


def _format(session: Session, tables: set[str]) -> int:
    """The format of a keyspace that has tables; 0 if `init` was interrupted.

    Raises:
        SchemaMissing: If the tables are not shardq's.
    """
    if "schema_version" not in tables:
        address = session.address
        raise SchemaMissing(
            f"keyspace {address.keyspace!r} of {address.shown} holds tables that are not shardq's; "
            f"name another keyspace in the url, and run `shardq init` to make it."
        )
    statement = session.bound(_VERSION, [OURS.encode()])
    rows = [row for page in session.read([statement], "registers") for row in page]
    return int(rows[0][0]) if rows else 0


def _record(session: Session, number: int, done: int) -> None:
    key = OURS.encode()
    make = (
        partial(session.bound, _NEXT, [cells.int_(number), key, cells.int_(done)])
        if done
        else partial(session.bound, _FIRST, [key, cells.int_(number)])
    )
    # A refusal is fine: another process has just recorded the same format.
    decide(session, {number: make})


def _keyspace_cql(address: Address, copies: int) -> str:
    # The keyspace's name is of a fixed alphabet. Operators name the data centre, so it is quoted.
    where = "replication_factor" if address.dc is None else address.dc.replace("'", "''")
    return (
        f"CREATE KEYSPACE IF NOT EXISTS {address.keyspace} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', '{where}': {copies}}}"
    )


def _copies(session: Session) -> int:
    """3 if each data centre in use has three nodes, else 1: of two copies, a quorum needs both."""
    counts: dict[str, int] = {}
    for host in session.cluster.metadata.all_hosts():
        if session.address.dc in (None, host.datacenter):
            counts[host.datacenter] = counts.get(host.datacenter, 0) + 1
    return _REPLICATION if min(counts.values(), default=1) >= _REPLICATION else 1


def _oldest_release(session: Session) -> int:
    releases = [host.release_version for host in session.cluster.metadata.all_hosts()]
    return min(int(release.split(".")[0]) for release in releases if release)


def _change(session: Session, cql: str) -> None:
    """Change the schema and wait until the nodes agree: the next change may reach another node."""
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
