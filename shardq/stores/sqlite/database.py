"""One SQLite database and the connections of this process to it: opening, threads, forks, errors.

```
 any thread ──reading()──► lock ► reader ─┐ a snapshot of its own: no writer holds a reader back
 any thread ──write()────► lock ► writer ─┴► jobs.db, jobs.db-wal ◄── other processes
```

In memory, reader and writer are one. What is in the tables is `schema.py`'s.

A file that is only looked at (`mode=ro`, or one that this user cannot write) is left as it is.
Where nobody has it open, nothing is made beside it: SQLite would make a log and its index there,
which are then the looker's own and keep everybody else from writing. Where a log lies there, what
was written last is in it: SQLite then makes its index if that is missing, and a looker that
outlives the last writer leaves both, until the next writer closes the file.

SQLite goes on with files that have lost their names, or whose names are others' by now: what is
written there, nobody else will ever read. So after each commit, and before each read, the name of
the file is looked up, and every 0.1 s the names beside it.
"""

from __future__ import annotations

import os
import resource
import sqlite3
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from weakref import WeakValueDictionary

from shardq import locks
from shardq.clock import machine_us
from shardq.errors import (
    SchemaMissing,
    SchemaNewer,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
)
from shardq.stores.sqlite import schema
from shardq.stores.url import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardq.errors import ShardqError

CACHE_KIB = 16_384
_STATEMENTS = 64
_LOG_SETTLED_US = 1_000_000
"""A commit shows only when the log has been synced, so long after its last write at the most."""
_LOOK_US = 100_000
_WAL_TRIES = 100
"""How often the change to WAL is tried, where other processes are opening the new file as well."""


class _Channel:
    """One connection, and the lock of the threads that share it.

    Attributes:
        connected: How often it was connected.
        beside: The inodes of what lies beside the file: the same while one connection is open.
        looked_us: When these were looked up last, epoch microseconds.
        settled: The file as it was when it was opened as one that nobody changes; else None.
    """

    __slots__ = ("beside", "connected", "connection", "lock", "looked_us", "settled")

    def __init__(self) -> None:
        self.lock = locks.new()
        self.connection: sqlite3.Connection | None = None
        self.connected = 0
        self.beside = (0, 0)
        self.looked_us = 0
        self.settled: _FileState | None = None

    def use(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Take a new connection; the lock is held."""
        self.connection = connection
        self.connected += 1
        return connection

    def close(self) -> None:
        """Close the connection; the lock is held."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Database:
    """A database file, or one in memory, shared by all threads of this process.

    Two connections, each with a lock: threads that write then wait for each other without SQLite's
    sleeping busy handler, which is left to the writers of other processes.

    A fork is safe: all connections are closed before it, since SQLite keeps its account of file
    locks by process and a child would inherit the account without the locks. Parent and child
    open new ones at their next call. A database in memory stays with the parent.

    Args:
        path: The file, absolute; None for a database in memory.
        synchronous: `FULL`: a commit is on the disk. `NORMAL`: a power cut may undo the last.
        busy_ms: How long to wait for writers of other processes.
        read_only: Whether to look alone, and never to write.
    """

    def __init__(
        self, path: Path | None, *, synchronous: str, busy_ms: int, read_only: bool = False
    ) -> None:
        self.path = path
        self.shown = "sqlite://" if path is None else f"sqlite:///{printable(path)}"
        if read_only:
            self.shown += "?mode=ro"
        self._read_only = read_only
        self._only_reads: str | None = None
        """Why the file is open for reading only; None where it is not."""
        self._synchronous = synchronous
        self._busy_ms = busy_ms
        self._writer = _Channel()
        self._reader = self._writer if path is None else _Channel()
        self._channels = {self._writer, self._reader}
        self._halted: list[_Channel] = []
        """Those whose locks a fork that is under way has taken."""
        self._is_open = False
        self._is_parents = False
        self._news = 0
        self._file, self._log_path, self._index_path = str(path), f"{path}-wal", f"{path}-shm"
        self._named: tuple[int, int] | None = None
        """Device and inode of the file that was opened; a fork closes it, and opens it anew."""
        self._quiet_log: tuple[int, int] | None = None
        _databases[id(self)] = self

    def open(self) -> None:
        """Connect, and create or migrate the tables. Idempotent.

        Raises:
            SchemaMissing: If the file is a database of another program.
            SchemaNewer: If a newer shardq made it.
            StoreCorrupt: If the file is not a database.
            StoreUnavailable: If the file cannot be opened, or stays locked.
        """
        locks.refuse_within(self._writer.lock, self._reader.lock)
        with self._writer.lock:
            if self._is_open:
                return
            self._named = None
            with self._looking():
                self._check_path()
            with self._errors(writing=False):
                connection = self._connect(self._writer)
                try:
                    self._prepare(connection)
                    self._name(self._writer)
                except BaseException:
                    connection.close()
                    raise
            self._writer.use(connection)
            self._is_open = True
            self._is_parents = False

    def close(self) -> None:
        """Close all connections. Idempotent."""
        locks.refuse_within(self._writer.lock, self._reader.lock)
        for channel in self._channels:
            with channel.lock:
                self._is_open = False
                channel.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection that reads, for one thread."""
        locks.refuse_within(self._writer.lock, self._reader.lock)
        with self._reader.lock, self._errors(writing=False):
            reader = self._reader
            if reader.settled is not None and reader.settled != self._settled_state():
                # Somebody writes by now, of which this connection would see a part.
                reader.close()
            elif self._only_reads is not None and self._is_gone():
                # Whoever only looks follows the name.
                with self._looking():
                    os.stat(self._file)
                reader.close()
            connection = reader.connection or self._reconnect(reader)
            self._check_named(reader)
            yield connection

    def write(self, statement: str, values: Sequence[Any]) -> int:
        """Run one statement, a transaction of its own; returns how many rows it wrote.

        Without a context manager, which would add a tenth to a single put.
        """
        channel = self._writer
        locks.refuse_within(channel.lock, self._reader.lock)
        with channel.lock:
            try:
                connection = channel.connection or self._reconnect(channel)
                rows = connection.execute(statement, values).rowcount
            except sqlite3.Error as error:
                raise self._error_of(error, writing=True) from error
            self._check_named(channel)
            return rows

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection that writes, in a transaction that is committed at the end."""
        locks.refuse_within(self._writer.lock, self._reader.lock)
        with self._writer.lock, self._errors(writing=True):
            connection = self._writer.connection or self._reconnect(self._writer)
            # Immediate: one that begins by reading could not wait for a writer, only fail.
            with _transaction(connection, "BEGIN IMMEDIATE"):
                yield connection
            self._check_named(self._writer)

    def changed(self) -> int | None:
        """A number that changes when another connection has written; None in memory.

        It is asked of the connection that writes, so that this process's own writes do not change
        it. While a thread is writing the last answer is given again, rather than waiting.
        """
        if self.path is None:
            return None
        # Looked at before it is asked, so that what is written in between is seen the next time.
        log = self._log_state()
        channel = self._writer
        if log is not None and log == self._quiet_log and channel.connection is not None:
            # An idle consumer comes here a hundred times a second: a look at the log costs a
            # quarter of what asking SQLite does.
            return self._news
        if not locks.is_free(channel.lock):
            return self._news
        with channel.lock, self._errors(writing=False):
            connection = channel.connection or self._reconnect(channel)
            (version,) = connection.execute("PRAGMA data_version").fetchone()
        # Versions of two connections cannot be compared; the count of connections parts them.
        self._news = channel.connected << 32 | version
        self._quiet_log = log
        return self._news

    def _log_state(self) -> tuple[int, int] | None:
        """Size and time of the write-ahead log; None where it is not there or was just written."""
        try:
            found = os.stat(self._log_path)
        except FileNotFoundError:
            return None
        age_us = machine_us() - found.st_mtime_ns // 1_000
        return (found.st_size, found.st_mtime_ns) if age_us > _LOG_SETTLED_US else None

    def before_fork(self) -> None:
        """Wait for what is under way, then keep every thread out and the file closed."""
        for channel in self._channels:
            channel.lock.acquire()
            self._halted.append(channel)
            if self.path is not None:
                channel.close()

    def after_fork_in_parent(self) -> None:
        """Let the threads in again."""
        while self._halted:
            self._halted.pop().lock.release()

    def after_fork_in_child(self) -> None:
        """Start with no connection; what is in memory is the parent's."""
        while self._halted:
            self._halted.pop().lock.release()
        if self.path is None:
            self._is_parents = self._is_open
            self._is_open = False
            self._writer.connection = None

    def _check_path(self) -> None:
        # SQLite says `unable to open database file` to all of these.
        path = self.path
        if path is None:
            return
        # What SQLite keeps beside a file lies beside that itself, not beside a link to it.
        self._log_path, self._index_path = str(_beside(path, "-wal")), str(_beside(path, "-shm"))
        if path.is_dir():
            raise StoreUnavailable(f"{self.shown} is a directory; name a file in it.")
        if not path.parent.is_dir():
            raise StoreUnavailable(
                f"{self.shown} cannot be opened: no directory {printable(path.parent)} exists; "
                f"make it first."
            )
        if not path.exists():
            if self._read_only:
                raise StoreUnavailable(
                    f"{self.shown} is not there, and is not made for reading only; check the name."
                )
            if not os.access(path.parent, os.W_OK):
                raise StoreUnavailable(
                    f"{self.shown} cannot be written by this user; change its permissions."
                )
        elif not os.access(path, os.R_OK):
            raise StoreUnavailable(
                f"{self.shown} cannot be read by this user; change its permissions."
            )
        self._only_reads = self._why_only_read(path)

    def _why_only_read(self, path: Path) -> str | None:
        if self._read_only:
            return "as its url asks by mode=ro"
        if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
            return "for its file system is mounted so"
        if path.exists() and not os.access(path, os.W_OK):
            return "for this user may not write the file"
        if not os.access(path.parent, os.W_OK) and not _is_in_use(path):
            return "for this user may not write its directory"
        return None

    def _connect(self, channel: _Channel) -> sqlite3.Connection:
        channel.settled = self._settled_state()
        connection = sqlite3.connect(
            ":memory:" if self.path is None else self._uri(self.path, channel.settled),
            timeout=self._busy_ms / 1_000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS,
            uri=self.path is not None,
        )
        # Of the page cache alone: the file is not touched before it is known to be ours.
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        # Debian's build writes zeros over what is deleted, for which acks would pay.
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    def _uri(self, path: Path, settled: _FileState | None) -> str:
        uri = f"file:{quote(os.fsencode(path))}"
        if self._only_reads is None:
            # What was there once is not made anew.
            return uri if self._named is None else f"{uri}?mode=rw"
        # Only so nothing is made beside the file. It may change, so its state is watched.
        return f"{uri}?mode=ro" if settled is None else f"{uri}?mode=ro&immutable=1"

    def _settled_state(self) -> _FileState | None:
        """The file as it is, where it is only looked at and nobody has it open; else None."""
        if self.path is None or self._only_reads is None:
            return None
        with self._looking():
            return None if _has_log(self.path) else _state_of(self.path)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        with _transaction(connection, "BEGIN"):
            is_current = schema.is_current(connection, self.shown)
        if self._only_reads is not None:
            if not is_current:
                raise SchemaMissing(
                    f"{self.shown} is empty or was made by an older shardq, and is open for "
                    f"reading only, {self._only_reads}; run `shardq init` where it can be written."
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
                # This change does not wait for other processes; a transaction does.
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
        if self._only_reads is None and self._is_gone():
            # SQLite would write the log of the one file into the other.
            raise self._gone()
        connection = self._connect(channel)
        try:
            # The log is opened by the first look at the file.
            connection.execute("PRAGMA data_version").fetchone()
            self._name(channel)
        except BaseException:
            connection.close()
            raise
        return channel.use(connection)

    def _name(self, channel: _Channel) -> None:
        """Keep in mind which files a channel has opened.

        Raises:
            StoreCorrupt: If the file is not the one that was opened first.
        """
        if self.path is None:
            return
        with self._looking():
            found = os.stat(self._file)
            named = found.st_dev, found.st_ino
            if self._named not in (None, named) and self._only_reads is None:
                raise self._gone()
            self._named = named
            if self._only_reads is None:
                channel.beside = _inode_of(self._log_path), _inode_of(self._index_path)

    def _check_named(self, channel: _Channel) -> None:
        """Raise `StoreCorrupt` where what a channel has open is not what others find.

        It is looked up every 0.1 s alone. Each time would add a tenth to a single put, and since
        Linux 6.13 the next write to a file whose times were looked at costs 50 us more. What is
        written just before a file loses its name is lost either way.
        """
        if self._named is None or channel.settled is not None:
            return
        now_us = machine_us()
        if abs(now_us - channel.looked_us) <= _LOOK_US:
            return
        if self._is_gone():
            raise self._gone()
        with suppress(PermissionError):
            self._check_beside(channel)
        # Only now: no call succeeds after the first that has found something gone.
        channel.looked_us = now_us

    def _check_beside(self, channel: _Channel) -> None:
        log, index = channel.beside
        found = _inode_of(self._log_path), _inode_of(self._index_path)
        if channel.connection is None:
            # A fork in a signal's handler has closed it; whoever opens it looks anew.
            return
        # What had no name when it was looked for first is not known.
        if log and index and found != channel.beside:
            if not found[0] and found[1] in (0, index):
                # Nobody has begun another log: what is in this one can still be had in the file.
                with suppress(sqlite3.Error):
                    channel.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            raise self._gone()

    def _is_gone(self) -> bool:
        """Whether the file that is open has lost its name, or another has it; 2 us."""
        if self._named is None:
            return False
        try:
            found = os.stat(self._file)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            # Of a directory that this process may not search any more, nothing can be told.
            return False
        return (found.st_dev, found.st_ino) != self._named

    def _gone(self) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.shown}, or what SQLite keeps beside it, was removed, moved or replaced while "
            f"it was open: what was put or settled since may be lost; stop all processes that "
            f"have it open, see to the file, and start them again."
        )

    @contextmanager
    def _looking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A name too long, a directory that may not be searched, or a file that is gone by now.
            raise StoreUnavailable(
                f"{self.shown} cannot be opened: {error.strerror}; name another file."
            ) from error

    @contextmanager
    def _errors(self, *, writing: bool) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error_of(error, writing=writing) from error

    def _error_of(self, error: sqlite3.Error, *, writing: bool) -> ShardqError:
        # The low byte is the kind, the rest its refinement.
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF
        said = f"{self.shown}: SQLite says {str(error)!r}"
        trouble = self._trouble_of(kind)
        if trouble is not None:
            return trouble
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreUnavailable(
                f"{self.shown} was locked by another process for more than "
                f"{self._busy_ms / 1_000:g} s; nothing was written, try again."
            )
        if kind in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return StoreCorrupt(f"{said}; name another file, or restore it from a copy.")
        if kind == sqlite3.SQLITE_ERROR and str(error).startswith("no such "):
            return self._newer() or SchemaMissing(
                f"{said}; another program has changed its tables."
            )
        if kind == sqlite3.SQLITE_IOERR and writing:
            # A failed sync leaves a commit in the log, which is void unless the machine fails next.
            return StoreTimeout(f"{said}; maybe written, check the disk and your quota on it.")
        return self._ended_by_fork(error, writing=writing) or self._refusal_of(kind, said)

    def _newer(self) -> SchemaNewer | None:
        """Where a newer shardq has migrated the file since it was opened: what `open` says then."""
        for channel in self._channels:
            if channel.connection is not None:
                try:
                    schema.is_current(channel.connection, self.shown)
                except SchemaNewer as newer:
                    return newer
                except (SchemaMissing, sqlite3.Error):
                    pass
        return None

    def _ended_by_fork(self, error: sqlite3.Error, *, writing: bool) -> StoreError | None:
        """What a fork closed in the middle of a call, which its own thread makes."""
        if not str(error).startswith("Cannot operate on a closed"):
            return None
        return (StoreTimeout if writing else StoreUnavailable)(
            f"{self.shown} was closed by a fork in a signal's handler; "
            f"{'maybe written, ' if writing else ''}try again, and fork elsewhere."
        )

    def _trouble_of(self, kind: int) -> StoreError | None:
        """What is the matter with the file or its disk, of which SQLite says this or less."""
        if self._only_reads is not None:
            return None
        if self._is_gone():
            return self._gone()
        why = None
        if kind in _DISK and self.path is not None:
            why = _why_not_written(self.path.parent, (self._file, self._log_path))
        if why is None and kind == sqlite3.SQLITE_FULL:
            why = _FULL
            self._empty_log()
        if why is None:
            return None
        error = StoreUnavailable if why is _MOUNTED else StoreFull
        return error(f"{why[0]} under {self.shown} {why[1]}; nothing was written, {why[2]}.")

    def _empty_log(self) -> None:
        """Let the log be written from its beginning again, if the file has room for what is in it.

        Then acks, and the release of leases, need no more of a full disk; the writer's lock is
        held.
        """
        if self._writer.connection is not None:
            with suppress(sqlite3.Error):
                self._writer.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _refusal_of(self, kind: int, said: str) -> StoreError:
        if self._only_reads is None or kind not in _READING:
            return _BY_KIND.get(kind, StoreRefused)(f"{said}; nothing was written.")
        if kind == sqlite3.SQLITE_READONLY:
            return StoreRefused(
                f"{self.shown} is open for reading only, {self._only_reads}; nothing was written."
            )
        return StoreUnavailable(
            f"{self.shown} cannot be read: what was written last is in the log beside it, and the "
            f"log's index cannot be made here; copy both to a directory that this user may write."
        )


_DISK = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
_FULL = "the disk", "is full", "make room"
_LIMITED = "the limit on the size of files", "is reached", "raise it (ulimit -f)"
_MOUNTED = "the file system", "is mounted for reading only", "mount it for writing"
_ROOM_BYTES = 1 << 16
"""The log's index takes half of it when it is made."""
_READING = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
_BY_KIND: dict[int, type[StoreError]] = {
    sqlite3.SQLITE_CANTOPEN: StoreUnavailable,
    sqlite3.SQLITE_IOERR: StoreUnavailable,
    sqlite3.SQLITE_PERM: StoreUnavailable,
    sqlite3.SQLITE_PROTOCOL: StoreUnavailable,
    sqlite3.SQLITE_READONLY: StoreUnavailable,
}


def _why_not_written(directory: Path, files: Sequence[str]) -> tuple[str, str, str] | None:
    """What keeps these files from being written, as far as their system tells; None: nothing."""
    with suppress(OSError):
        disk = os.statvfs(directory)
        if disk.f_flag & os.ST_RDONLY:
            return _MOUNTED
        free = disk.f_bavail if os.geteuid() else disk.f_bfree
        if free * disk.f_frsize < _ROOM_BYTES or (disk.f_files and not disk.f_ffree):
            return _FULL
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        largest_bytes = max(os.stat(file).st_size for file in files)
        if limit_bytes != resource.RLIM_INFINITY and largest_bytes + _ROOM_BYTES > limit_bytes:
            return _LIMITED
    return None


class _FileState(NamedTuple):
    """What tells that a file is not as it was."""

    changed_ns: int
    bytes: int
    number: int


def _state_of(path: Path) -> _FileState:
    found = os.stat(path)
    return _FileState(found.st_mtime_ns, found.st_size, found.st_ino)


def _inode_of(path: str) -> int:
    """The inode of a file; 0 where there is none."""
    try:
        return os.stat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _has_log(path: Path) -> bool:
    """Whether the file alone is not the whole database, or may not be in a moment."""
    if _is_in_use(path):
        return True
    try:
        return _beside(path, "-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def _is_in_use(path: Path) -> bool:
    """Whether a process has the database open, or did not close it: then its index is there."""
    return _beside(path, "-shm").exists()


def _beside(path: Path, suffix: str) -> Path:
    """A file of SQLite's own: beside the database, not beside a link to it."""
    real = path.resolve() if path.is_symlink() else path
    return real.with_name(real.name + suffix)


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    try:
        connection.execute(begin)
        yield
        connection.execute("COMMIT")
    finally:
        # After an error, that of COMMIT included, nothing of it may stay.
        if connection.in_transaction:
            connection.rollback()


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
                # Kept first: what a signal's handler raises in the wait ends it, not the fork.
                self._held.append(database)
                database.before_fork()

    def after_in_parent(self) -> None:
        while self._held:
            self._held.pop().after_fork_in_parent()
        self._let_go()

    def after_in_child(self) -> None:
        while self._held:
            self._held.pop().after_fork_in_child()
        self._let_go()

    def _let_go(self) -> None:
        # Of a fork by C, as uWSGI makes it, only what comes after is called.
        if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            self._lock.release()


_databases: WeakValueDictionary[int, Database] = WeakValueDictionary()
"""All of this process, by their `id`: of this dictionary, unlike of a set, a copy is one step."""
_forks = _Forks()
os.register_at_fork(
    before=_forks.before,
    after_in_parent=_forks.after_in_parent,
    after_in_child=_forks.after_in_child,
)
