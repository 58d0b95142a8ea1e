"""SQLite's errors as ours: nothing written, maybe written, or refused for good.

```
 locked, or its disk, directory or system prevents it       ──► StoreUnavailable (full: StoreFull)
 a disk that failed while a commit was written              ──► StoreTimeout
 no database, a damaged one, or one that is gone            ──► StoreCorrupt
 tables of a newer shardq, or of another program            ──► SchemaNewer, SchemaMissing
 refused for its content, or open for reading only          ──► StoreRefused
```

SQLite's errors often hide their cause, so the file, its disk and their limits are checked first.
"""

from __future__ import annotations

import os
import resource
import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from shardq.model.times import span
from shardq.stores.sqlite import schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from shardq.errors import ShardqError
    from shardq.stores.sqlite.file import File, OpenedFile


@dataclass(frozen=True, slots=True)
class DatabaseFailures:
    """The errors of one database.

    Attributes:
        file: The file that errors name, and that is checked for their cause.
        writer: The connection that writes.
        connections: The connections that write and read.
        busy_ms: How long a connection waits for writers of other processes.
    """

    file: File
    writer: OpenedFile
    connections: Collection[OpenedFile]
    busy_ms: int

    @contextmanager
    def translated(self, *, writing: bool) -> Iterator[None]:
        """Raise our error in place of SQLite's."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.error_of(error, writing=writing) from error

    def error_of(self, error: sqlite3.Error, *, writing: bool) -> ShardqError:
        """The error of shardq to raise for an error of SQLite.

        Args:
            error: The error that a connection of this database raised.
            writing: True if the call may have changed anything.
        """
        # The low byte of an error's code is its kind. The other bytes refine the kind.
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF
        said = f"{self.file.shown}: SQLite says {str(error)!r}"
        trouble = self._trouble_of(kind)
        if trouble is not None:
            return trouble
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreUnavailable(
                f"{self.file.shown} was locked by another process for more than "
                f"{span(self.busy_ms)}; nothing was written, try again."
            )
        if kind in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return StoreCorrupt(f"{said}; name another file, or restore it from a copy.")
        if kind == sqlite3.SQLITE_ERROR and str(error).startswith("no such "):
            return self._newer() or SchemaMissing(
                f"{said}; another program has changed its tables."
            )
        if kind == sqlite3.SQLITE_IOERR and writing:
            # A failed sync leaves the commit in the log: it counts only if the machine fails next.
            return StoreTimeout(f"{said}; maybe written, check the disk and your quota on it.")
        return self._ended_by_fork(error, writing=writing) or self._refusal_of(kind, said)

    def _newer(self) -> SchemaNewer | None:
        """The error of `open`, if a newer shardq has migrated the file since it was opened."""
        for opened in self.connections:
            if opened.connection is not None:
                try:
                    schema.is_current(opened.connection, self.file.shown)
                except SchemaNewer as newer:
                    return newer
                except (SchemaMissing, sqlite3.Error):
                    pass
        return None

    def _ended_by_fork(self, error: sqlite3.Error, *, writing: bool) -> StoreError | None:
        """The error if a fork in a signal's handler closed the connection during the call."""
        if not str(error).startswith("Cannot operate on a closed"):
            return None
        return (StoreTimeout if writing else StoreUnavailable)(
            f"{self.file.shown} was closed by a fork in a signal's handler; "
            f"{'maybe written, ' if writing else ''}try again, and fork elsewhere."
        )

    def _trouble_of(self, kind: int) -> StoreError | None:
        """The error for a file that is gone, or a disk that cannot be written; None if neither."""
        if self.file.only_reads is not None:
            return None
        if self.file.is_gone():
            return self.file.gone()
        why = None
        if kind in _DISK and self.file.path is not None:
            why = _why_not_written(self.file.path.parent, (self.file.name, self.file.log_path))
        if why is None and kind == sqlite3.SQLITE_FULL:
            why = _FULL
            self._empty_log()
        if why is None:
            return None
        error = StoreUnavailable if why is _MOUNTED else StoreFull
        return error(f"{why[0]} under {self.file.shown} {why[1]}; nothing was written, {why[2]}.")

    def _empty_log(self) -> None:
        """Copy the log into the file, if the file has room; the log then starts from its beginning.

        Acks and the release of leases then need no more of a full disk. The caller has the writer's
        lock.
        """
        if self.writer.connection is not None:
            with suppress(sqlite3.Error):
                self.writer.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _refusal_of(self, kind: int, said: str) -> StoreError:
        if self.file.only_reads is None or kind not in _READING:
            return _BY_KIND.get(kind, StoreRefused)(f"{said}; nothing was written.")
        if kind == sqlite3.SQLITE_READONLY:
            return StoreRefused(
                f"{self.file.shown} is open for reading only, {self.file.only_reads}; "
                f"nothing was written."
            )
        return StoreUnavailable(
            f"{self.file.shown} cannot be read: what was written last is in the log beside it, and "
            f"the log's index cannot be made here; copy both to a directory that this user may "
            f"write."
        )


_DISK = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
_FULL = "the disk", "is full", "make room"
_LIMITED = "the limit on the size of files", "is reached", "raise it (ulimit -f)"
_MOUNTED = "the file system", "is mounted for reading only", "mount it for writing"
_ROOM_BYTES = 1 << 16
"""A disk with less room than this counts as full: a new log's index takes half as much."""
_READING = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
_BY_KIND: dict[int, type[StoreError]] = {
    sqlite3.SQLITE_CANTOPEN: StoreUnavailable,
    sqlite3.SQLITE_IOERR: StoreUnavailable,
    sqlite3.SQLITE_PERM: StoreUnavailable,
    sqlite3.SQLITE_PROTOCOL: StoreUnavailable,
    sqlite3.SQLITE_READONLY: StoreUnavailable,
}


def _why_not_written(directory: Path, files: Sequence[str]) -> tuple[str, str, str] | None:
    """The reason for which these files cannot be written; None if the system shows none."""
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
