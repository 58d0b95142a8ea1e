"""Places where a test can run: in memory, in a file, on Cassandra; each a store and a time."""

from __future__ import annotations

import atexit
import copy
import re
import secrets
import tempfile
import uuid
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from shardq.clock import BootTime, SystemClock
from shardq.connection import Connection
from shardq.stores import store_of
from shardq.stores.sqlite import SqliteStore
from shardq.testing import ManualClock, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.clock import Clock
    from shardq.stores.store import Store

on_each_store = pytest.mark.parametrize("world", ["memory", "file", "cassandra"], indirect=True)
"""For a test of what depends on the store: the others are run on Cassandra by night alone."""
on_both_stores = pytest.mark.parametrize("url", ["sqlite", "cassandra"], indirect=True)
"""The same for processes that connect by a URL."""


# Worlds -------------------------------------------------------------------------------------------


class World:
    """Where processes live: a store and a time."""

    clock: Clock
    is_real = False
    """True if time passes by itself, and has to be waited for."""

    def connect(self) -> Connection:
        raise NotImplementedError

    def queue_name(self) -> str:
        return "mail"

    def pass_time(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def close(self) -> None:
        pass


class InMemory(World):
    def __init__(self) -> None:
        self.stage = Stage()
        self.clock = self.stage.clock

    def connect(self) -> Connection:
        return self.stage.connect()

    def close(self) -> None:
        self.stage.close()


class InFile(World):
    """Every process has a store of its own on one file."""

    def __init__(self) -> None:
        self.clock = self.hands = ManualClock()
        self.folder = tempfile.TemporaryDirectory(prefix="shardq-world-")
        self.stores: list[SqliteStore] = []

    def connect(self) -> Connection:
        path = Path(self.folder.name) / "jobs.db"
        store = SqliteStore(
            path,
            synchronous="normal",
            machine_us=self.hands.true_us,
            boot_time=lambda: BootTime(self.hands.boot_us(), "stage"),
        )
        store.open()
        self.stores.append(store)
        connection = Connection(store, self.hands.shifted(0), background=False)
        # A crashed connection must not be closed at the end of this process.
        atexit.unregister(connection.close)
        return connection

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.folder.cleanup()


class OnCassandra(World):
    url: ClassVar[str]
    is_real = True

    def __init__(self) -> None:
        self.clock = SystemClock(0)
        self.connections: list[Connection] = []

    def queue_name(self) -> str:
        return f"mail-{uuid.uuid4().hex}"

    def connect(self) -> Connection:
        store = store_on_cassandra(self.url)
        # One clock: of two that were measured one after the other, one is milliseconds ahead.
        connection = Connection(store, self.clock, background=False)
        self.connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def store_on_cassandra(url: str) -> Store:
    """A store whose connections are those of all others: to make them takes most tests' time."""
    store = copy.copy(_opened(url))
    store.close = lambda: None  # type: ignore[method-assign]
    return store


@contextmanager
def own_keyspace(url: str) -> Iterator[str]:
    """The url of a keyspace that does not exist yet, beside that of a url; it is dropped then."""
    from shardq.stores.cassandra import CassandraStore

    name = f"own_{secrets.token_hex(4)}"
    yield re.sub(r"/\w+(?=\?|$)", f"/{name}", url)
    store = CassandraStore.from_url(url)
    store.open()
    store._session.ask(f"DROP KEYSPACE IF EXISTS {name}")
    store.close()


@cache
def _opened(url: str) -> Store:
    store = store_of(url)
    store.open()
    atexit.register(store.close)
    return store


def world_of(request: pytest.FixtureRequest) -> Iterator[World]:
    """For a fixture with the parameters `memory`, `file` and `cassandra`."""
    if request.param == "cassandra":
        OnCassandra.url = request.getfixturevalue("cassandra_url")
    made = {"memory": InMemory, "file": InFile, "cassandra": OnCassandra}[request.param]()
    yield made
    made.close()
