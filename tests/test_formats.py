"""The number of a store's format: what is refused, what is migrated, what an init leaves alone."""

from __future__ import annotations

import re
import shutil
import sqlite3
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shardq
from shardq.errors import SchemaMissing, SchemaNewer
from shardq.model import formats
from shardq.model.formats import BASE
from shardq.stores.cassandra import CassandraStore
from shardq.stores.cassandra import schema as cassandra_schema
from shardq.stores.sqlite import schema as sqlite_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

CQL = Path(__file__).parents[1] / "cql"
DOCS = Path(__file__).parents[1] / "docs"
LACKS = "lacks some of the tables of format .*; run `shardq init`"


class Place:
    """Where a store is made, looked at by no code of shardq's above the driver."""

    url: str

    def content(self) -> object:
        """All that another format's shardq would find there."""
        raise NotImplementedError

    def number(self) -> int:
        """The format that is recorded."""
        raise NotImplementedError

    def record(self, number: int) -> None:
        """Record another format, and drop a table, as if that format had none of its name."""
        raise NotImplementedError

    def columns(self, table: str) -> set[str]:
        raise NotImplementedError

    def close(self) -> None:
        """End what was opened."""


class File(Place):
    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path

    def content(self) -> bytes:
        return self._path.read_bytes()

    def number(self) -> int:
        return int(self._ask("PRAGMA user_version")[0][0])

    def record(self, number: int) -> None:
        self._ask("DROP TABLE places")
        self._ask(f"PRAGMA user_version = {number}")

    def columns(self, table: str) -> set[str]:
        return {name for _, name, *_ in self._ask(f"PRAGMA table_info({table})")}

    def _ask(self, statement: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self._path, isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


class Keyspace(Place):
    def __init__(self, url: str) -> None:
        self.name = f"shardq_{uuid.uuid4().hex[:12]}"
        self.url = re.sub(r"(://[^/?]+)(/[^?]*)?", rf"\1/{self.name}", url)
        self._store = CassandraStore.from_url(self.url)

    def content(self) -> object:
        found = [
            self.ask(f"SELECT * FROM system_schema.{what} WHERE keyspace_name = '{self.name}'")
            for what in ("tables", "columns")
        ]
        tables = ("messages", "queues", "schema_version")
        return [*found, *(self.ask(f"SELECT * FROM {self.name}.{table}") for table in tables)]

    def number(self) -> int:
        ((number,),) = self.ask(f"SELECT version FROM {self.name}.schema_version")
        return int(number)

    def record(self, number: int) -> None:
        self.ask(f"DROP TABLE {self.name}.places")
        key = f"WHERE name = 'shardq' IF version = {self.number()}"
        self.ask(f"UPDATE {self.name}.schema_version SET version = {number} {key}")

    def columns(self, table: str) -> set[str]:
        found = self.ask(
            f"SELECT column_name FROM system_schema.columns "
            f"WHERE keyspace_name = '{self.name}' AND table_name = '{table}'"
        )
        return {name for (name,) in found}

    def ask(self, statement: str) -> list[tuple[object, ...]]:
        return list(self._store._session.ask(statement))

    def close(self) -> None:
        self.ask(f"DROP KEYSPACE IF EXISTS {self.name}")
        self._store.close()


@pytest.fixture(params=["file", "cassandra"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    is_file = request.param == "file"
    found = File(tmp_path / "jobs.db") if is_file else keyspace_of(request)
    yield found
    found.close()


@pytest.fixture
def keyspace(request: pytest.FixtureRequest) -> Iterator[Keyspace]:
    found = keyspace_of(request)
    yield found
    found.close()


def keyspace_of(request: pytest.FixtureRequest) -> Keyspace:
    return Keyspace(request.getfixturevalue("cassandra_url"))


def migrate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Be a shardq of two formats later: of the first a table has a column more."""
    shutil.copytree(CQL, folder)
    added = "ALTER TABLE lanes ADD {}note text"
    text = f"-- What is noted.\n{added.format('IF NOT EXISTS ')};\n"
    (folder / f"{BASE + 1:04}_note.cql").write_text(text)
    monkeypatch.setattr(cassandra_schema, "_PACKAGED", folder)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", {BASE + 1: (added.format(""),)})
    monkeypatch.setattr(formats, "FORMAT", BASE + 2)


@pytest.mark.parametrize("number", [1, BASE - 1])
def test_a_format_of_before_the_first_release_is_refused_and_left_alone(
    place: Place, number: int
) -> None:
    shardq.init(place.url)
    with shardq.connect(place.url) as db:
        db.queue("mail").put("x", delay="1h")
    place.record(number)
    before = place.content()
    said = f"has format {number}, made before 0.1.0 by an unreleased shardq, and this one needs "
    for verb in (shardq.init, shardq.connect):
        with pytest.raises(SchemaMissing, match=rf"{said}{BASE}: name another (file|keyspace), or"):
            verb(place.url)
    assert place.content() == before


def test_a_newer_format_is_refused_and_left_alone(place: Place) -> None:
    shardq.init(place.url)
    place.record(formats.FORMAT + 1)
    before = place.content()
    for verb in (shardq.init, shardq.connect):
        with pytest.raises(SchemaNewer, match=r"made by a newer shardq; .* upgrade shardq here"):
            verb(place.url)
    assert place.content() == before


def test_a_second_init_changes_nothing(place: Place) -> None:
    shardq.init(place.url)
    assert place.number() == formats.FORMAT
    before = place.content()
    shardq.init(place.url)
    assert place.content() == before


def test_an_init_that_was_cut_short_is_ended_by_the_next(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, made = cassandra_schema._change, 0

    def killed(session: object, cql: str) -> None:
        nonlocal made
        if made == 5:
            raise ChildProcessError(cql)
        change(session, cql)  # type: ignore[arg-type]
        made += 1

    with monkeypatch.context() as short:
        short.setattr(cassandra_schema, "_change", killed)
        with pytest.raises(ChildProcessError):
            shardq.init(keyspace.url)
    with pytest.raises(SchemaMissing, match=LACKS):
        shardq.connect(keyspace.url)
    shardq.init(keyspace.url)
    assert keyspace.number() == formats.FORMAT
    with shardq.connect(keyspace.url) as db:
        db.queue("mail").put("x", key="k")


def test_a_migration_follows_the_tables_and_keeps_their_rows(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shardq.init(place.url)
    with shardq.connect(place.url) as db:
        db.queue("mail").put("kept", delay="1h")
    assert "note" not in place.columns("lanes")
    with monkeypatch.context() as later:
        migrate(later, tmp_path / "cql")
        if isinstance(place, Keyspace):
            with pytest.raises(SchemaMissing, match=LACKS):
                shardq.connect(place.url)
        shardq.init(place.url)
        assert place.number() == BASE + 2
        assert "note" in place.columns("lanes")
        with shardq.connect(place.url) as db:
            assert [message.text for message in db.queue("mail").peek()] == ["kept"]
        before = place.content()
        shardq.init(place.url)
        assert place.content() == before
    with pytest.raises(SchemaNewer, match=f"has format {BASE + 2}"):
        shardq.connect(place.url)


def test_a_new_store_has_what_was_migrated(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(monkeypatch, tmp_path / "cql")
    shardq.init(place.url)
    assert place.number() == BASE + 2
    assert "note" in place.columns("lanes")


def test_the_schema_that_is_printed_has_the_migrations_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(monkeypatch, tmp_path / "cql")
    text = CassandraStore.schema_text()
    assert text.index("ADD IF NOT EXISTS note text;") < text.index(f"VALUES ('shardq', {BASE + 2})")
    connection = sqlite3.connect(":memory:")
    connection.executescript(sqlite_schema.schema_text())
    assert connection.execute("PRAGMA user_version").fetchone() == (BASE + 2,)
    assert "note" in {name for _, name, *_ in connection.execute("PRAGMA table_info(lanes)")}
    connection.close()


@pytest.mark.parametrize(
    ("page", "shown", "what"),
    [
        ("cassandra.md", "cassandra://127.0.0.1:9042/shardq", "keyspace"),
        ("sqlite.md", "sqlite:///jobs.db", "file"),
    ],
)
def test_the_pages_for_operators_show_the_sentence(page: str, shown: str, what: str) -> None:
    with pytest.raises(SchemaMissing) as refused:
        formats.is_current(BASE - 1, shown=shown, what=what)
    assert f"\n{refused.value}\n" in (DOCS / "operations" / page).read_text()
