"""The file of one SQLite database as others find it: by its name, with what lies beside it.

A file that is only looked at (`mode=ro`, or one that this user cannot write) is left as it is.
Where nobody has it open, nothing is made beside it: SQLite would make a log and its index there,
which are then the looker's own and keep everybody else from writing. Where a log lies there, what
was written last is in it: SQLite then makes its index if that is missing, and a looker that
outlives the last writer leaves both, until the next writer closes the file.

SQLite goes on with files that have lost their names, or whose names are others' by now: what is
written there, nobody else will ever read. So after a commit and before a read, at most every
0.1 s, the names are looked up: the file's and those beside it. A file that is only looked at is
looked up before each read.
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
"""A commit shows only when the log has been synced, so long after its last write at the most."""
_LOOK_US = 100_000
_MOUNTS = Path("/proc/self/mountinfo")


class Opened:
    """A connection, and what it found under the names of the file when it opened it.

    Attributes:
        connection: None while it is closed.
        beside: The inodes of what lies beside the file: the same while one connection is open.
        looked_us: When the names were looked up last, epoch microseconds.
        settled: The file as it was when it was opened as one that nobody changes; else None.
    """

    __slots__ = ("beside", "connection", "looked_us", "settled")

    def __init__(self) -> None:
        self.connection: sqlite3.Connection | None = None
        self.beside = (0, 0)
        self.looked_us = 0
        self.settled: FileState | None = None


class File:
    """The file of a database, and whether its name is still its own.

    Args:
        path: Absolute; None for a database in memory, which has no name to lose.
        read_only: Whether to look alone, and never to write.

    Attributes:
        shown: The url, for people.
        only_reads: Why it is open for reading only; None where it is not.
        members_path: A directory for the files of members, which need not be there; None in memory.
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
        """Device and inode of the file that was opened; a fork closes it, and opens it anew."""

    def examine(self) -> None:
        """Find out, before the first connection, whether it can be opened, and for what.

        Raises:
            StoreUnavailable: If it cannot be opened; the error says why, which SQLite does not.
        """
        self._named = None
        with self._looking():
            self._check_path()

    def _check_path(self) -> None:
        # SQLite says `unable to open database file` to all of these.
        path = self.path
        if path is None:
            return
        # What SQLite keeps beside a file lies beside that itself, not beside a link to it.
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
        """What SQLite is told to open, given the file's state where nobody changes it."""
        if self.path is None:
            return ":memory:"
        uri = f"file:{quote(os.fsencode(self.path))}"
        if self.only_reads is None:
            # What was there once is not made anew.
            return uri if self._named is None else f"{uri}?mode=rw"
        # Only so nothing is made beside the file. It may change, so its state is watched.
        return f"{uri}?mode=ro" if settled is None else f"{uri}?mode=ro&immutable=1"

    def settled_state(self) -> FileState | None:
        """The file as it is, where it is only looked at and nobody has it open; else None."""
        if self.path is None or self.only_reads is None:
            return None
        with self._looking():
            return None if _has_log(self.path) else _state_of(self.path)

    def remember(self, opened: Opened) -> None:
        """Keep in mind which files were opened.

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

    def check(self, opened: Opened) -> None:
        """Raise `StoreCorrupt` where what is open is not what others find.

        It is looked up every 0.1 s alone. Each time would add a tenth to a single put, and since
        Linux 6.13 the next write to a file whose times were looked at costs 50 us more. What is
        written just before a file loses its name is lost either way.
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
        # Only now: no call succeeds after the first that has found something gone.
        opened.looked_us = now_us

    def _check_beside(self, opened: Opened) -> None:
        log, index = opened.beside
        found = _inode_of(self.log_path), _inode_of(self.index_path)
        if opened.connection is None:
            # A fork in a signal's handler has closed it; whoever opens it looks anew.
            return
        # What had no name when it was looked for first is not known.
        if log and index and found != opened.beside:
            if not found[0] and found[1] in (0, index):
                # Nobody has begun another log: what is in this one can still be had in the file.
                with suppress(sqlite3.Error):
                    opened.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            raise self.gone()

    def find(self) -> None:
        """Raise `StoreUnavailable` where nothing has its name."""
        with self._looking():
            os.stat(self.name)

    def is_gone(self) -> bool:
        """Whether the file that is open has lost its name, or another has it; 2 us."""
        if self._named is None:
            return False
        try:
            found = os.stat(self.name)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            # Of a directory that this process may not search any more, nothing can be told.
            return False
        return (found.st_dev, found.st_ino) != self._named

    def gone(self) -> StoreCorrupt:
        """The error of a call that finds it gone."""
        return StoreCorrupt(
            f"{self.shown}, or what SQLite keeps beside it, was removed, moved or replaced while "
            f"it was open: what was put or settled since may be lost; stop all processes that "
            f"have it open, see to the file, and start them again."
        )

    def log_state(self) -> tuple[int, int] | None:
        """Size and time of the write-ahead log; None where it is not there or was just written."""
        try:
            found = os.stat(self.log_path)
        except FileNotFoundError:
            return None
        age_us = machine_us() - found.st_mtime_ns // 1_000
        return (found.st_size, found.st_mtime_ns) if age_us > _LOG_SETTLED_US else None

    def log_bytes(self) -> int:
        """The size of the write-ahead log; 0 where there is none."""
        try:
            return os.stat(self.log_path).st_size
        except OSError:
            return 0

    @contextmanager
    def _looking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A name too long, a directory that may not be searched, or a file that is gone by now.
            raise StoreUnavailable(
                f"{self.shown} cannot be opened: {error.strerror}; name another file."
            ) from error


class FileState(NamedTuple):
    """What tells that a file is not as it was."""

    changed_ns: int
    bytes: int
    number: int


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


def _other_name(path: Path) -> str | None:
    """Why a file can have another name than this, and what to do; None if it has no other."""
    links = path.stat().st_nlink
    if links > 1:
        return f"has {links} names (hard links); remove all but one"
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        # No Linux: a file cannot be mounted alone.
        return None
    # The fifth field is where it is mounted; blanks, tabs, line ends and backslashes are octal.
    name = str(path)
    for plain, octal in (("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")):
        name = name.replace(plain, octal)
    if any(line.split(" ", 5)[4] == name for line in mounts.splitlines()):
        return "is mounted by itself, as by `docker run -v`; mount its directory"
    return None


def _state_of(path: Path) -> FileState:
    found = os.stat(path)
    return FileState(found.st_mtime_ns, found.st_size, found.st_ino)
