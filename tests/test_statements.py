"""What reaches SQL and CQL as text: constants of the stores, never a word that a user wrote."""

from __future__ import annotations

import ast
import re
import sqlite3
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cassandra.cluster import Session as DriverSession
from cassandra.query import BatchStatement, BoundStatement
from hostile import INJECTIONS, is_sayable

import shardq
from shardq.errors import ShardqError
from shardq.stores import store_of, tables
from shardq.stores.cassandra import CassandraStore, leases, rows, schema, statements, undecided
from shardq.stores.cassandra.address import read_url
from shardq.stores.sqlite import registers as sqlite_registers
from shardq.stores.sqlite import store as sqlite_store
from shardq.stores.tables import QUEUES, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

CQL = "".join(path.read_text() for path in (Path(__file__).parents[1] / "cql").glob("*.cql"))
TABLES = dict(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\n\)", CQL, re.DOTALL))
"""Table -> how it is made."""
STORES = Path(shardq.__file__).parent / "stores"
PRAGMA = re.compile(
    r"PRAGMA (synchronous = (FULL|NORMAL)"
    r"|(application_id|user_version|journal_size_limit) = \d+)\Z"
)
COMPOSED = (leases, rows, schema, statements, undecided)
NAMES = [name for name in INJECTIONS if is_sayable(name)]


def constants(paths: Iterable[Path]) -> set[str]:
    """Every text that is written out in some modules, those put together of others included."""
    found: set[str] = set()
    for path in paths:
        tree = ast.parse(path.read_text())
        found |= {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return found


def live(url: str, queue_name: str) -> None:
    """The whole life of a queue and its messages, with every name a hostile one."""
    with shardq.connect(url) as db:
        queue = db.queue(queue_name, bands=2)
        for name in [*NAMES, *INJECTIONS]:
            for hostile in ({"id": name}, {"group": name}, {"headers": {name: name}}):
                try:
                    queue.put(name, priority=1, **hostile)  # type: ignore[arg-type]
                except ShardqError:
                    assert not is_sayable(name)
            with pytest.raises(ShardqError):
                db.queue(f"{name}!")
            with pytest.raises(ShardqError):
                queue.ack(name)
        queue.put_many([{"body": name, "id": name, "group": name} for name in NAMES])
        queue.put(NAMES[0], group=NAMES[0], delay="1h")
        settled = 0
        while settled < len(NAMES):
            for message in queue.receive(20, wait="1s"):
                verb = ("ack", "retry", "snooze", "bury", "extend")[settled % 5]
                more: tuple[str, ...] = {"snooze": ("1s",), "bury": (message.text,)}.get(verb, ())
                getattr(queue, verb)(message, *more)
                settled += 1
        queue.redrive()
        queue.depth(exact=True)
        queue.forecast()
        queue.peek(1_000)
        queue.alter(lanes=6)
        queue.check_all()
        shardq.Consumer(queue, print, member=NAMES[0]).step()
        queue.pause()
        queue.drop()
        assert queue_name not in db.queues()


def set_in(insert: str) -> tuple[bool, ...]:
    """For each column whether a statement names it."""
    names = insert.partition("(")[2].partition(")")[0].split(", ")
    return tuple(column in names for column in sqlite_store._COLUMNS)


def test_sqlite_is_told_nothing_that_is_not_written_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: set[str] = set()

    class Told(sqlite3.Connection):
        def execute(self, statement: str, *more: Any) -> sqlite3.Cursor:
            told.add(statement)
            return super().execute(statement, *more)

        def executemany(self, statement: str, *more: Any) -> sqlite3.Cursor:
            told.add(statement)
            return super().executemany(statement, *more)

        def executescript(self, script: str) -> sqlite3.Cursor:
            raise AssertionError(script)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Told, **k))
    live(f"sqlite:///{tmp_path}/a'; DROP TABLE messages; --.db", "mail")
    written = constants((STORES / "sqlite").glob("*.py")) | module_texts(
        "{}", sqlite_store, sqlite_registers
    )
    strange = {one for one in told - written if not PRAGMA.match(one)}
    # Rows are inserted by statements that name the columns in which they hold something.
    assert [one for one in strange if one != sqlite_store._insert_of(set_in(one))] == []
    assert len(told) > 30


def test_cassandra_is_told_nothing_that_is_not_written_in_the_store(
    cassandra_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: set[str] = set()

    def texts(statement: Any) -> set[str]:
        if isinstance(statement, BatchStatement):
            # Prepared ones are there by their ids.
            parts = statement._statements_and_parameters
            return {query for is_prepared, query, _ in parts if not is_prepared}
        if isinstance(statement, BoundStatement):
            return {statement.prepared_statement.query_string}
        return {statement if isinstance(statement, str) else statement.query_string}

    prepare, execute = DriverSession.prepare, DriverSession.execute_async

    def told_prepare(self: Any, query: str, *more: Any, **named: Any) -> Any:
        told.add(query)
        return prepare(self, query, *more, **named)

    def told_execute(self: Any, query: Any, *more: Any, **named: Any) -> Any:
        told.update(texts(query))
        return execute(self, query, *more, **named)

    monkeypatch.setattr(DriverSession, "prepare", told_prepare)
    monkeypatch.setattr(DriverSession, "execute_async", told_execute)
    # Its own: other tests damage records of theirs, and the queues of a keyspace are listed here.
    keyspace = f"shardq_{uuid.uuid4().hex[:12]}"
    url = re.sub(r"(://[^/]+)(/\w*)?", rf"\1/{keyspace}", cassandra_url, count=1)
    shardq.init(url)
    try:
        live(url, f"statements-{uuid.uuid4().hex}")
    finally:
        store = CassandraStore.from_url(url)
        store._session.ask(f"DROP KEYSPACE IF EXISTS {keyspace}")
        store.close()
    written = {
        text.replace("{}", keyspace) for text in constants((STORES / "cassandra").glob("*.py"))
    }
    written |= module_texts(keyspace, *COMPOSED)
    for migration in schema.migrations():
        for statement in migration.statements():
            head = r"\ACREATE (TABLE|TYPE) IF NOT EXISTS |\AALTER TABLE "
            written.add(re.sub(head, rf"\g<0>{keyspace}.", statement))
    ddl = re.compile(
        rf"(CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = "
        rf"\{{'class': 'NetworkTopologyStrategy', '[a-z0-9_]+': \d\}}"
        rf"|DROP KEYSPACE IF EXISTS {keyspace})\Z"
    )
    strange = [text for text in told - written if not ddl.match(text)]
    assert strange == []
    assert len(told) > 20


def module_texts(keyspace: str, *modules: ModuleType) -> set[str]:
    """Constants that are put together of others when their modules are imported."""
    names = [(name, value) for module in modules for name, value in vars(module).items()]
    # The built-in names contain a prompt's last result, which may contain itself.
    values = [value for name, value in names if name != "__builtins__"]
    return {text.replace("{}", keyspace) for text in texts_in(values)}


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from texts_in(one)


def cells_of(statement: str) -> set[tuple[str, str]]:
    """(table, column) of each cell that a statement writes; (table, "*") where it deletes rows."""
    words = statement.replace('"', "").replace("{}.", "")
    if said := re.match(r"INSERT INTO (\w+) \(([\w, ]+)\)", words):
        table, columns = said[1], said[2].split(", ")
        return {(table, column) for column in columns} - keys_of(table)
    if said := re.match(r"UPDATE (\w+) .*?SET (.*) WHERE", words):
        return {(said[1], one.split(" = ")[0]) for one in said[2].split(", ")}
    if said := re.match(r"DELETE ([\w, ]*) ?FROM (\w+)", words):
        return {(said[2], column or "*") for column in said[1].strip().split(", ")}
    return set()


def keys_of(table: str) -> set[tuple[str, str]]:
    """The columns of a table's primary key."""
    text = TABLES[table].replace('"', "")
    inline = re.findall(r"^ *(\w+) \w+ PRIMARY KEY", text, re.MULTILINE)
    listed = re.findall(r"^ *PRIMARY KEY \((.*)\)$", text, re.MULTILINE)
    return {(table, name) for name in [*inline, *re.findall(r"\w+", "".join(listed))]}


_RECORDS = ("queues", "keys", "waiting", "accounts", "access", "endpoints", "sent", "limits")
"""The tables whose whole rows are written by LWT."""


def test_a_cell_is_written_by_lwt_always_or_never() -> None:
    decided = {
        (table, line.split()[0].strip('"'))
        for table, text in TABLES.items()
        for line in text.splitlines()
        if line.endswith("LWT only")
    } | {(table, "*") for table in _RECORDS}
    changes = {
        statements.change_of(table, names, new)
        for table in tables.TABLES
        if table.has_records
        for names in [tuple(column.name for column in table.values)]
        for new in (names, None)
    }
    texts = {
        *changes,
        *constants((STORES / "cassandra").glob("*.py")),
        # Tests that ran before in this process changed rows of tables of their own.
        *module_texts("{}", *COMPOSED).difference(statements.CHANGES.values()),
    }
    written = {text: cells for text in texts if (cells := cells_of(text))}
    mixed = {
        text
        for text, cells in written.items()
        if not (cells <= decided if " IF " in text else cells.isdisjoint(decided))
    }
    # Nothing is ever put there: it makes the others of its batch conditional on a row. And of
    # totals, whole rows are written by the one or the other: that of the folded row by LWT.
    # Schedules: LWTs write the buckets, plain writes the notes in the bucket after them.
    # Minutes are listed and erased beside a condition on the lane's lease.
    listing = {leases._LIST, leases._UNLIST}
    of_totals = {text for text in changes if "{}.stats " in text}
    of_schedules = {text for text in changes if "{}.schedules " in text}
    of_schedules.add(statements.STATEMENTS[SCHEDULES].note)
    assert mixed == {leases._ANCHOR} | listing | of_totals | of_schedules
    assert statements.STATEMENTS[QUEUES].note == statements.STATEMENTS[QUEUES].erase == ""
    # A partition's would take its lease along.
    deletes = [text for text, cells in written.items() if ("messages", "*") in cells]
    assert deletes
    assert all("(due, id) IN" in text or "due = ? AND id = ?" in text for text in deletes)
    assert {("messages", "lock"), ("messages", "window"), ("queues", "settings")} < decided
    assert decided <= set().union(*written.values())
    of_tables = {table for cells in written.values() for table, _ in cells}
    assert of_tables == {*TABLES}


@pytest.mark.parametrize("name", [*INJECTIONS, "a;b", "a b", "a.b", "Jobs", "1a", "a" * 49])
def test_a_keyspace_is_of_a_fixed_alphabet(name: str) -> None:
    for url in (f"cassandra://db/{name}", f"cassandra://db/jobs?dc={name}"):
        try:
            address = read_url(url)
        except ShardqError:
            continue
        assert re.fullmatch(r"[a-z][a-z0-9_]{0,47}", address.keyspace)
        quoted = schema._keyspace_cql(address, 1).split("'")
        # Whatever the name of a data centre holds, its quotes are doubled.
        assert "'".join(quoted[5:-1]) == (address.dc or "replication_factor").replace("'", "''")


def test_what_is_said_of_a_store_is_read_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/{'%3b'.join('ab')}%27.db"
    assert store_of(store_of(url).shown).shown == store_of(url).shown
