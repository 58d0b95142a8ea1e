"""One SQLite database and the connections of this process to it: opening, threads, forks.

```
 any thread ──reading()──► lock ► reader ─┐ a snapshot of its own: a reader waits for no writer
 any thread ──write()────► lock ► writer ─┴► jobs.db, jobs.db-wal ◄── other processes
```

In memory, reader and writer are one. `schema.py` has the tables, `file.py` the file and its name,
and `failures.py` SQLite's errors.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from shardq import locks
from shardq.errors import SchemaMissing, StoreRefused, StoreUnavailable
from shardq.stores.sqlite import schema
from shardq.stores.sqlite.failures import DatabaseFailures
from shardq.stores.sqlite.file import File, OpenedFile
from shardq.stores.sqlite.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_VERSION_MIN = (3, 32)
"""SQLite's first release with `iif`, which the statements use."""
_STATEMENTS = 64
LOG_BYTES = 32 << 20
"""The log is cut to this size once its pages are in the file. It usually has 4 MiB, in bulk 20."""
_WAL_TRIES = 100
"""Tries to change to WAL while other processes are opening the new file too."""


class _Channel(OpenedFile):
    """One connection, and the lock of the threads that share it.

    Attributes:
        connected: How many connections the channel has had, one after the other.
    """

    __slots__ = ("connected", "lock")

    def __init__(self) -> None:
        super().__init__()
        self.lock = locks.new()
        self.connected = 0

    def use(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Take a new connection; the caller has the lock."""
        self.connection = connection
        self.connected += 1
        return connection

    def close(self) -> None:
        """Close the connection; the caller has the lock."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Database:
    """A database file, or one in memory, shared by all threads of this process.

    Each of the two connections has a lock, so that threads of this process never wait in SQLite's
    busy handler, which sleeps; only writers of other processes are waited for there.

    A fork is safe. All connections are closed before it, because SQLite keeps a list of file locks
    in each process, and a child would inherit the list without the locks. Parent and child open new
    connections at their next call. A database in memory stays with the parent.

    Args:
        path: The file, absolute; None for a database in memory.
        synchronous: `FULL`: a commit is on the disk. `NORMAL`: a power cut may undo the last.
        busy_ms: How long to wait for writers of other processes.
        read_only: True to read only, and never write.
    """

    def __init__(
        self, path: Path | None, *, synchronous: str, busy_ms: int, read_only: bool = False
    ) -> None:
        self.path = path
        self._file = File(path, read_only=read_only)
        self.shown = self._file.shown
        self._synchronous = synchronous
        self._busy_ms = busy_ms
        self._writer = _Channel()
        self._reader = self._writer if path is None else _Channel()
        self._channels = {self._writer, self._reader}
        self._failures = DatabaseFailures(self._file, self._writer, self._channels, busy_ms)
        self._turn = Turn(None, self._writer.lock)
        self._halted: list[_Channel] = []
        """Channels whose locks a fork under way has taken."""
        self._is_open = False
        self._is_parents = False
        self._news = 0
        self._quiet_log: tuple[int, int] | None = None
        _databases[id(self)] = self

    def open(self) -> None:
        """Connect, and create or migrate the tables. Idempotent.

        Raises:
            SchemaMissing: If the file is another program's database, or has a format from before
                0.1.0.
            SchemaNewer: If a newer shardq made it.
            StoreCorrupt: If the file is not a database.
            StoreRefused: If this Python's SQLite is too old.
            StoreUnavailable: If the file cannot be opened, or stays locked.
        """
        locks.refuse_within(self._writer.lock, self._reader.lock)
        with self._writer.lock:
            if self._is_open:
                return
            if sqlite3.sqlite_version_info < _VERSION_MIN:
                raise StoreRefused(
                    f"{self.shown} needs SQLite {_VERSION_MIN[0]}.{_VERSION_MIN[1]} or newer, and "
                    f"this Python has {sqlite3.sqlite_version}; take a Python with a newer one."
                )
            self._file.examine()
            with self._failures.translated(writing=False):
                connection = self._connect(self._writer)
                try:
                    self._prepare(connection)
                    self._file.remember(self._writer)
                except BaseException:
                    connection.close()
                    raise
            self._writer.use(connection)
            if self.path is not None and self._file.only_reads is None:
                self._turn = Turn(self._file.log_path, self._writer.lock)
            self._is_open = True
            self._is_parents = False

    @property
    def beside(self) -> Path | None:
        """The directory for members' files beside the file; None if nothing is written."""
        return None if self._file.only_reads is not None else self._file.members_path

    @property
    def log_bytes(self) -> int:
        """The size of the log beside the file; 0 if there is none."""
        return self._file.log_bytes()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        locks.refuse_within(self._writer.lock, self._reader.lock)
        for channel in self._channels:
            with channel.lock:
                self._is_open = False
                channel.close()
                if channel is self._writer:
                    self._turn.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection that reads, for one thread."""
        locks.refuse_within(self._writer.lock, self._reader.lock)
        with self._reader.lock, self._failures.translated(writing=False):
            reader = self._reader
            if reader.settled is not None and reader.settled != self._file.settled_state():
                # Another process writes by now, and this connection would see a part of its writes.
                reader.close()
            elif self._file.only_reads is not None and self._file.is_gone():
                # A reader continues with the file that has the name now.
                self._file.find()
                reader.close()
            connection = reader.connection or self._reconnect(reader)
            self._file.check(reader)
            yield connection

    def write(self, statement: str, values: Sequence[Any]) -> int:
        """Run one statement, a transaction of its own; returns how many rows it wrote.

        No context manager is used: it would add a tenth to the time of a single put.
        """
        channel = self._writer
        locks.refuse_within(channel.lock, self._reader.lock)
        with channel.lock:
            try:
                connection = channel.connection or self._reconnect(channel)
                try:
                    self._turn.take()
                    rows = connection.execute(statement, values).rowcount
                finally:
                    self._turn.give_back()
            except sqlite3.Error as error:
                raise self._failures.error_of(error, writing=True) from error
            self._file.check(channel)
            return rows

    @contextmanager
    def transaction(self, *, is_lasting: bool = True) -> Iterator[sqlite3.Connection]:
        """The connection that writes, in a transaction that is committed at the end.

        Args:
            is_lasting: False if a power cut may undo the transaction. The commit then does not wait
                for the disk; the next lasting commit puts both on the disk.
        """
        locks.refuse_within(self._writer.lock, self._reader.lock)
        with self._writer.lock, self._failures.translated(writing=True):
            connection = self._writer.connection or self._reconnect(self._writer)
            # Immediate: a transaction that began as a reader could not wait for a writer.
            try:
                self._turn.take()
                unsynced = "" if is_lasting else self._synchronous
                with _transaction(connection, "BEGIN IMMEDIATE", unsynced):
                    yield connection
            finally:
                self._turn.give_back()
            self._file.check(self._writer)

    def changed(self) -> int | None:
        """A number that changes when another connection has written; None in memory.

        The number is the writing connection's, so that this process's own writes do not change it.
        While a thread is writing, the last number is returned, without a wait.
        """
        if self.path is None:
            return None
        # Read the log's state before the version: the next call then sees a write in between.
        log = self._file.log_state()
        channel = self._writer
        if log is not None and log == self._quiet_log and channel.connection is not None:
            # An idle consumer calls this a hundred times a second, and the log's state costs a
            # quarter of SQLite's version.
            return self._news
        if not locks.is_free(channel.lock):
            return self._news
        with channel.lock, self._failures.translated(writing=False):
            connection = channel.connection or self._reconnect(channel)
            (version,) = connection.execute("PRAGMA data_version").fetchone()
        # Versions of two connections may be equal; the count of connections makes them differ.
        self._news = channel.connected << 32 | version
        self._quiet_log = log
        return self._news

    def before_fork(self) -> None:
        """Wait for calls under way, then keep every thread out and the file closed."""
        for channel in self._channels:
            channel.lock.acquire()
            self._halted.append(channel)
            if self.path is not None:
                channel.close()
        self._turn.close()

    def after_fork_in_parent(self) -> None:
        """Let the threads in again."""
        while self._halted:
            self._halted.pop().lock.release()

    def after_fork_in_child(self) -> None:
        """Start without connections; a database in memory stays the parent's."""
        while self._halted:
            self._halted.pop().lock.release()
        if self.path is None:
            self._is_parents = self._is_open
            self._is_open = False
            self._writer.connection = None

    def _connect(self, channel: _Channel) -> sqlite3.Connection:
        channel.settled = self._file.settled_state()
        connection = sqlite3.connect(
            self._file.uri(channel.settled),
            timeout=self._busy_ms / 1_000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS,
            uri=self.path is not None,
        )
        try:
            # The first access to the file, which may be no database.
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            # Debian's build overwrites deleted rows with zeros, which would slow acks.
            connection.execute("PRAGMA secure_delete = OFF")
            # The log grows while another program reads, and would never shrink again.
            connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        with _transaction(connection, "BEGIN"):
            is_current = schema.is_current(connection, self.shown)
        only_reads = self._file.only_reads
        if only_reads is not None:
            if not is_current:
                raise SchemaMissing(
                    f"{self.shown} is empty or has an older format, and is open for reading "
                    f"only, {only_reads}; run `shardq init` where it can be written."
                )
            return
        if self.path is not None:
            self._turn_to_wal(connection)
        if not is_current:
            with _transaction(connection, "BEGIN IMMEDIATE"):
                schema.migrate(connection, self.shown)

    def _turn_to_wal(self, connection: sqlite3.Connection) -> None:
        for _ in range(_WAL_TRIES):
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                # The pragma does not wait for other processes; a transaction does.
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("COMMIT")
                continue
            if mode != "wal":
                raise StoreUnavailable(
                    f"{self.shown} lies on a file system without shared memory, which SQLite's "
                    f"write-ahead log needs; name a file on a local disk."
                )
            return
        raise StoreUnavailable(f"{self.shown} is being opened by too many processes; try again.")

    def _reconnect(self, channel: _Channel) -> sqlite3.Connection:
        if not self._is_open:
            raise StoreUnavailable(
                f"{self.shown} is in the memory of the process that opened it, not of its forks; "
                f"use a file to share it."
                if self._is_parents
                else f"{self.shown} is not open."
            )
        if self._file.only_reads is None and self._file.is_gone():
            # SQLite would write the log of the old file into the new one.
            raise self._file.gone()
        connection = self._connect(channel)
        try:
            # The first access opens the log too.
            connection.execute("PRAGMA data_version").fetchone()
            self._file.remember(channel)
        except BaseException:
            connection.close()
            raise
        return channel.use(connection)


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str, unsynced: str = "") -> Iterator[None]:
    """A transaction. If `unsynced` is set, it is not synced; afterwards that level is set again."""
    try:
        if unsynced:
            connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(begin)
        yield
        connection.execute("COMMIT")
    finally:
        # After any error, even one of COMMIT, the whole transaction must be undone.
        if connection.in_transaction:
            connection.rollback()
        if unsynced:
            connection.execute(f"PRAGMA synchronous = {unsynced}")


class _Forks:
    """Holds the databases of this process closed while a fork is under way, one fork at a time."""

    def __init__(self) -> None:
        self._lock = locks.new()
        self._held: list[Database] = []

    def before(self) -> None:
        self._lock.acquire()
        for ref in _databases.valuerefs():
            database = ref()
            if database is not None:
                # Kept first: if a signal's handler raises, the wait ends, but not the fork.
                self._held.append(database)
                database.before_fork()

    def after_in_parent(self) -> None:
        while self._held:
            self._held.pop().after_fork_in_parent()
        self._release()

    def after_in_child(self) -> None:
        while self._held:
            self._held.pop().after_fork_in_child()
        self._release()

    def _release(self) -> None:
        # After a fork in C, as by uWSGI, `before` has not been called.
        if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            self._lock.release()


_databases: WeakValueDictionary[int, Database] = WeakValueDictionary()
"""All databases of this process, by `id`. A dictionary, because copies of a set are not atomic."""
_forks = _Forks()
os.register_at_fork(
    before=_forks.before,
    after_in_parent=_forks.after_in_parent,
    after_in_child=_forks.after_in_child,
)
