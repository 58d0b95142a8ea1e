"""The file of one SQLite database, found by its name, and the files beside it.

A file that is only read (`mode=ro`, or one that this user cannot write) is not changed. If nobody
has it open, SQLite may not make a log and its index beside it: both would belong to the reader's
user, and keep all others from writing. If a log exists, it has the last writes, and SQLite makes
the index if there is none. A reader that outlives the last writer leaves both files until the
next writer closes the database.

SQLite goes on writing to files that were removed or replaced, and nobody would ever read those
writes. So after a commit and before a read, at most every 0.1 s, the names of the file and of those
beside it are looked up. The name of a file that is only read is looked up before each read.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from shardq.clock import machine_us
from shardq.errors import StoreCorrupt, StoreUnavailable
from shardq.stores import beside
from shardq.stores.url import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG_SETTLED_US = 1_000_000
"""A commit becomes visible when the log is synced, at most this long after the log's last write."""
_LOOK_US = 100_000
_MOUNTS = Path("/proc/self/mountinfo")


class OpenedFile:
    """A connection, and the files that had the database's names when the connection was opened.

    Attributes:
        connection: The connection; None while it is closed.
        beside: The inodes of log and index, which stay the same while any connection is open.
        looked_us: When the names were looked up last, epoch microseconds.
        settled: The file's state, if it was opened as a file that nobody changes; else None.
    """

    __slots__ = ("beside", "connection", "looked_us", "settled")

    def __init__(self) -> None:
        self.connection: sqlite3.Connection | None = None
        self.beside = (0, 0)
        self.looked_us = 0
        self.settled: FileState | None = None


class File:
    """The file of a database; knows if another file has its name by now.

    Args:
        path: The absolute path; None for a database in memory, which has no name to lose.
        read_only: True to read only, and never write.

    Attributes:
        shown: The url, for people.
        only_reads: Why the file is open for reading only; None if it is open for writing too.
        members_path: The directory of members' files, which need not exist; None in memory.
    """

    def __init__(self, path: Path | None, *, read_only: bool) -> None:
        self.path = path
        self.shown = "sqlite://" if path is None else f"sqlite:///{printable(path)}"
        if read_only:
            self.shown += "?mode=ro"
        self.only_reads: str | None = None
        self.name, self.log_path, self.index_path = str(path), f"{path}-wal", f"{path}-shm"
        self.members_path: Path | None = None
        self._read_only = read_only
        self._named: tuple[int, int] | None = None
        """Device and inode of the file that was opened first; after a fork it is opened again."""

    def examine(self) -> None:
        """Find out, before the first connection, if the file can be opened, and if for writing.

        Raises:
            StoreUnavailable: If it cannot be opened; the error says why, unlike SQLite's.
        """
        self._named = None
        with self._looking():
            self._check_path()

    def _check_path(self) -> None:
        # SQLite's error for each of these cases is `unable to open database file`.
        path = self.path
        if path is None:
            return
        # SQLite keeps its files beside the file itself, not beside a link to it.
        self.log_path, self.index_path = str(_beside(path, "-wal")), str(_beside(path, "-shm"))
        self.members_path = _beside(path, "-members")
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
        elif why := _other_name(path.resolve()):
            raise StoreUnavailable(
                f"{self.shown} {why}, and SQLite keeps a log beside each name: two processes that "
                f"open it by different names destroy it."
            )
        self.only_reads = self._why_only_read(path)
        if self.only_reads is None:
            beside.check(self.members_path, self.shown)

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

    def uri(self, settled: FileState | None) -> str:
        """The uri for SQLite to open; `settled` is the file's state if nobody changes it."""
        if self.path is None:
            return ":memory:"
        uri = f"file:{quote(os.fsencode(self.path))}"
        if self.only_reads is None:
            # A file that was opened before and is gone is not made again.
            return uri if self._named is None else f"{uri}?mode=rw"
        # If immutable, SQLite makes nothing beside the file; callers watch its state for changes.
        return f"{uri}?mode=ro" if settled is None else f"{uri}?mode=ro&immutable=1"

    def settled_state(self) -> FileState | None:
        """The file's state, if it is only read and nobody has it open; else None."""
        if self.path is None or self.only_reads is None:
            return None
        with self._looking():
            return None if _has_log(self.path) else _state_of(self.path)

    def remember(self, opened: OpenedFile) -> None:
        """Remember the files that were opened.

        Raises:
            StoreCorrupt: If the file is not the one that was opened first.
        """
        if self.path is None:
            return
        with self._looking():
            found = os.stat(self.name)
            named = found.st_dev, found.st_ino
            if self._named not in (None, named) and self.only_reads is None:
                raise self.gone()
            self._named = named
            if self.only_reads is None:
                opened.beside = _inode_of(self.log_path), _inode_of(self.index_path)

    def check(self, opened: OpenedFile) -> None:
        """Raise `StoreCorrupt` if other processes find other files under the names.

        The names are looked up every 0.1 s. To do so each time would add a tenth to a single put,
        and since Linux 6.13 the next write to a file after `stat` costs 50 us more. Writes just
        before a file loses its name are lost either way.
        """
        if self._named is None or opened.settled is not None:
            return
        now_us = machine_us()
        if abs(now_us - opened.looked_us) <= _LOOK_US:
            return
        if self.is_gone():
            raise self.gone()
        with suppress(PermissionError):
            self._check_beside(opened)
        # Set last: after one call has found a file gone, no later call may succeed.
        opened.looked_us = now_us

    def _check_beside(self, opened: OpenedFile) -> None:
        log, index = opened.beside
        found = _inode_of(self.log_path), _inode_of(self.index_path)
        if opened.connection is None:
            # A fork in a signal's handler has closed the connection; the next connection checks.
            return
        # An inode of 0 is unknown: the file had no name yet when it was looked up.
        if log and index and found != opened.beside:
            if not found[0] and found[1] in (0, index):
                # Nobody has begun another log, so the writes in this one can still go to the file.
                with suppress(sqlite3.Error):
                    opened.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            raise self.gone()

    def find(self) -> None:
        """Raise `StoreUnavailable` if no file has the name."""
        with self._looking():
            os.stat(self.name)

    def is_gone(self) -> bool:
        """True if the open file has lost its name, or another file has it; 2 us."""
        if self._named is None:
            return False
        try:
            found = os.stat(self.name)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            # Unknown: this process may no longer search the directory.
            return False
        return (found.st_dev, found.st_ino) != self._named

    def gone(self) -> StoreCorrupt:
        """The error for a call that finds the file gone."""
        return StoreCorrupt(
            f"{self.shown}, or what SQLite keeps beside it, was removed, moved or replaced while "
            f"it was open: what was put or settled since may be lost; stop all processes that "
            f"have it open, see to the file, and start them again."
        )

    def log_state(self) -> tuple[int, int] | None:
        """Size and time of the write-ahead log; None if it is missing or was just written."""
        try:
            found = os.stat(self.log_path)
        except FileNotFoundError:
            return None
        age_us = machine_us() - found.st_mtime_ns // 1_000
        return (found.st_size, found.st_mtime_ns) if age_us > _LOG_SETTLED_US else None

    def log_bytes(self) -> int:
        """The size of the write-ahead log; 0 if there is none."""
        try:
            return os.stat(self.log_path).st_size
        except OSError:
            return 0

    @contextmanager
    def _looking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The name is too long, the directory may not be searched, or the file is gone by now.
            raise StoreUnavailable(
                f"{self.shown} cannot be opened: {error.strerror}; name another file."
            ) from error


class FileState(NamedTuple):
    """The time, size and inode of a file: if one differs, the file has changed."""

    changed_ns: int
    bytes: int
    number: int


def _inode_of(path: str) -> int:
    """The inode of a file; 0 if there is none."""
    try:
        return os.stat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _has_log(path: Path) -> bool:
    """True if the log may hold writes that the file lacks, now or in a moment."""
    if _is_in_use(path):
        return True
    try:
        return _beside(path, "-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def _is_in_use(path: Path) -> bool:
    """True if a process has the database open or did not close it: then the log's index exists."""
    return _beside(path, "-shm").exists()


def _beside(path: Path, suffix: str) -> Path:
    """The path of a file beside the database itself, not beside a link to it."""
    real = path.resolve() if path.is_symlink() else path
    return real.with_name(real.name + suffix)


def _other_name(path: Path) -> str | None:
    """How the file has a second name, and what to do about it; None if it has only one."""
    links = path.stat().st_nlink
    if links > 1:
        return f"has {links} names (hard links); remove all but one"
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        # This is not Linux, so no file can be mounted alone.
        return None
    # The fifth field is the mount point; blanks, tabs, line ends and backslashes are octal.
    name = str(path)
    for plain, octal in (("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")):
        name = name.replace(plain, octal)
    if any(line.split(" ", 5)[4] == name for line in mounts.splitlines()):
        return "is mounted by itself, as by `docker run -v`; mount its directory"
    return None


def _state_of(path: Path) -> FileState:
    found = os.stat(path)
    return FileState(found.st_mtime_ns, found.st_size, found.st_ino)
