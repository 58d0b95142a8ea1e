"""What an error of SQLite means: nothing written, maybe written, or refused for good.

```
 locked, or its disk, directory or system stands in the way ──► StoreUnavailable (full: StoreFull)
 a disk that failed while a commit was written              ──► StoreTimeout
 no database, a damaged one, or one that is gone            ──► StoreCorrupt
 tables of a newer shardq, or of another program            ──► SchemaNewer, SchemaMissing
 refused because of what it says, or open for reading only  ──► StoreRefused
```

SQLite often says less than the file, its disk and their limits tell, so these are asked first.
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
from shardq.stores.sqlite import schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from shardq.errors import ShardqError
    from shardq.stores.sqlite.file import File, Opened


@dataclass(frozen=True, slots=True)
class Failures:
    """The errors of one database.

    Attributes:
        file: What the errors name, and what is looked at for their cause.
        writer: The connection that writes.
        connections: The one that writes and the one that reads.
        busy_ms: How long each waits for writers of other processes.
    """

    file: File
    writer: Opened
    connections: Collection[Opened]
    busy_ms: int

    @contextmanager
    def told(self, *, writing: bool) -> Iterator[None]:
        """Raise what an error of SQLite means in place of it."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.error_of(error, writing=writing) from error

    def error_of(self, error: sqlite3.Error, *, writing: bool) -> ShardqError:
        """The error to raise for one of SQLite's.

        Args:
            error: What a connection of this database raised.
            writing: Whether the call may have changed anything.
        """
        # The low byte is the kind, the rest its refinement.
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF
        said = f"{self.file.shown}: SQLite says {str(error)!r}"
        trouble = self._trouble_of(kind)
        if trouble is not None:
            return trouble
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreUnavailable(
                f"{self.file.shown} was locked by another process for more than "
                f"{self.busy_ms / 1_000:g} s; nothing was written, try again."
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
        """What a fork closed in the middle of a call, which its own thread makes."""
        if not str(error).startswith("Cannot operate on a closed"):
            return None
        return (StoreTimeout if writing else StoreUnavailable)(
            f"{self.file.shown} was closed by a fork in a signal's handler; "
            f"{'maybe written, ' if writing else ''}try again, and fork elsewhere."
        )

    def _trouble_of(self, kind: int) -> StoreError | None:
        """What is the matter with the file or its disk, of which SQLite says this or less."""
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
        """Let the log be written from its beginning again, if the file has room for what is in it.

        Then acks, and the release of leases, need no more of a full disk; the writer's lock is
        held.
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
