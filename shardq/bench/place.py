"""The place of measurements, beside the user's store; it is removed at the end.

On SQLite it is a temporary directory beside the file, on the same disk. On Cassandra it is a
keyspace beside the user's, on the same nodes.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import shardq
from shardq.errors import UsageError
from shardq.stores import store_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from shardq.clock import Clock
    from shardq.connection import Connection
    from shardq.queue import Queue
    from shardq.stores.cassandra.address import Address

_KEYSPACE_CHARS = 36


class BenchPlace:
    """A context manager that makes the place, and removes it with all its contents.

    Args:
        url: The user's store; nothing is written into it.
        clock: Measures and waits.

    Attributes:
        is_cassandra: True if it is a Cassandra, False if it is SQLite.
        shown: The user's store, for people.

    Raises:
        UsageError: If the store is in memory, where no other process could consume.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self.clock = clock
        self._parts = urlsplit(url)
        self._stack = ExitStack()
        self._made = 0
        store = store_of(url)
        self.shown = store.shown
        self.is_cassandra = self._parts.scheme == "cassandra"
        self._path: Path | None = getattr(store, "path", None)
        if not self.is_cassandra and self._path is None:
            raise UsageError("a store in memory has one process; name a file to measure beside it.")
        self._directory = ""
        self._keyspace = ""

    def __enter__(self) -> BenchPlace:
        with ExitStack() as stack:
            if self.is_cassandra:
                asked = self._parts.path.strip("/") or "shardq"
                self._keyspace = f"{asked[:_KEYSPACE_CHARS]}_bench_{secrets.token_hex(2)}"
                shardq.init(self.url())
                stack.callback(self._drop)
            elif self._path is not None:
                self._directory = stack.enter_context(
                    TemporaryDirectory(prefix="shardq-bench-", dir=self._path.parent)
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def url(self, **options: str) -> str:
        """The place's url; on SQLite each call returns the url of a new file.

        Args:
            options: Options to add to those of the url.
        """
        if self.is_cassandra:
            path = f"/{self._keyspace}"
        else:
            self._made += 1
            path = f"/{quote(self._directory)}/{self._made}.db"
        query = "&".join(
            filter(None, [self._parts.query, *(f"{k}={v}" for k, v in options.items())])
        )
        # Do not use urlunsplit, which drops the empty host of a SQLite url.
        return f"{self._parts.scheme}://{self._parts.netloc}{path}" + (f"?{query}" if query else "")

    def address(self) -> Address:
        """The address of the keyspace."""
        from shardq.stores.cassandra.address import read_url

        return read_url(self.url())

    def queue(self, db: Connection, what: str, **settings: Any) -> Queue:
        """Make a queue that nobody has used, with default settings if none are given."""
        return db.queue(self.name(what), **settings)

    def name(self, what: str) -> str:
        """The name of a queue that nobody has used."""
        self._made += 1
        return f"{what}-{self._made}"

    def _drop(self) -> None:
        from shardq.stores.cassandra.bare import Bare

        bare = Bare(self.address())
        bare.drop()
        bare.close()
