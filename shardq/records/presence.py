"""Finds out that a member of this machine is dead, by a lock that ends with its process.

```
 jobs.db-members/ ─┬─ mailer:4711%2F5b1c09aa   locked: its member may live, and its leases count
                   └─ mailer:4712%2F77e01c3b   free: its member is dead, and its leases are over
```

A member locks a file of its own for as long as it works. POSIX ends such a lock with the process,
however the process ends, and forked children do not inherit it. So a member that can lock another's
file knows that the other is dead. A file that is locked, missing or unreadable proves nothing: a
frozen process keeps its lock. If files or locks are not available, leases decide alone.

A process that closes a file, by any descriptor, loses its locks on it. So shardq never opens the
files of its own members a second time, and each member renews its lock, in case other code did.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import finalize

from shardq import locks
from shardq.clock import machine_us
from shardq.stores.beside import FILES_MAX, is_members, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.clock import Clock

log = logging.getLogger(__name__)

_EVERY_US = 100_000
_TEND_EVERY_US = 60_000_000
"""How often a member marks its file as in use, and removes files of the dead."""
_SCAN_EVERY_US = 30_000_000
"""The members of one process take turns in looking for files of the dead, no more often than
this."""
_LEFT_OVER_US = 180_000_000
"""A file that is free and was last marked this long ago is removed: a lease lasts a minute at
most."""
_KNOWN_MAX = 1_000
"""How many dead members, and how many that only seemed dead, are remembered."""
_MAKE_TRIES = 3

_own: dict[str, int] = {}
"""File name of each member of this process -> the descriptor."""
_scanned_us: dict[Path, int] = {}
"""Directory -> when this process last looked there for files of dead members, time since boot."""


class Presence:
    """The file of one member, and checks of other members' files.

    Args:
        beside: The directory of these files; None if there are no files.
        holder: The beginning of the locks of this member's leases, which no other member has.
    """

    def __init__(self, beside: Path | None, holder: str, clock: Clock) -> None:
        self._beside = beside
        self._name = name_of(holder)
        self._clock = clock
        self._close: finalize[[str], Presence] | None = None
        self._kept_us: int | None = None
        self._looked_us: int | None = None
        self._tended_us: int | None = None
        self._has_failed = False
        self._dead: dict[str, None] = {}
        self._doubted: dict[str, None] = {}
        locks.in_child(self, Presence._begin_child)

    def keep(self) -> None:
        """Lock this member's file, before the first lease and then every 0.1 s."""
        now_us = self._clock.boot_us()
        if self._beside is None or not _is_over(self._kept_us, _EVERY_US, now_us):
            return
        self._kept_us = now_us
        is_long_ago = _is_over(self._tended_us, _TEND_EVERY_US, now_us)
        if is_long_ago:
            self._tended_us = now_us
        if self._name in _own:
            self._lock_again()
        elif is_long_ago:
            self._make(self._beside)
        if is_long_ago:
            self._tend(self._beside)

    def dead_of(self, holders: Mapping[str, str]) -> list[str]:
        """The members that are dead. They are checked every 0.1 s; the list is empty in between.

        Args:
            holders: Member -> the beginning of the locks of its leases.
        """
        now_us = self._clock.boot_us()
        if self._beside is None or not _is_over(self._looked_us, _EVERY_US, now_us):
            return []
        self._looked_us = now_us
        return [member for member, holder in holders.items() if self.is_dead(holder)]

    def is_dead(self, holder: str) -> bool:
        """True if the process of a member is known to have ended. The check takes 20 us."""
        if self._beside is None or not holder or holder in self._doubted:
            return False
        if holder in self._dead:
            return True
        name = name_of(holder)
        if name in _own or not _is_free(str(self._beside / name)):
            return False
        log.info("member of %s is dead: its file is not locked any more", holder)
        _remember(self._dead, holder)
        return True

    def doubt(self, holder: str) -> None:
        """Ignore the file of a member from now on, because the member lives and seemed dead."""
        if self._dead.pop(holder, holder) is None:
            log.warning(
                "%s is alive, though its file in %s is not locked: from now on leases decide alone",
                holder,
                self._beside,
            )
        _remember(self._doubted, holder)

    def leave(self) -> None:
        """Remove this member's file, once it holds no lease. Idempotent."""
        close, self._close = self._close, None
        if close is None or self._beside is None:
            return
        # Remove the file before the lock ends: another member would take a free file for a death.
        with suppress(OSError):
            os.unlink(self._beside / self._name)
        close()
        with suppress(OSError):
            # A directory with files of other members stays.
            os.rmdir(self._beside)

    def _make(self, beside: Path) -> None:
        for _ in range(_MAKE_TRIES):
            try:
                _make_directory(beside)
                made = os.open(beside / self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            except FileNotFoundError:
                # The last other member has just left, and removed the directory.
                continue
            except OSError as error:
                self._log_none(error)
                return
            try:
                fcntl.lockf(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._log_none(error)
                with suppress(OSError):
                    os.unlink(beside / self._name)
                os.close(made)
                return
            _own[self._name] = made
            self._close = finalize(self, _close, self._name)
            # Handlers may still run when the interpreter ends.
            self._close.atexit = False
            return

    def _log_none(self, error: OSError) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        log.info(
            "no file of this member in %s, for %s: others notice its death by its leases alone",
            self._beside,
            error.strerror,
        )

    def _lock_again(self) -> None:
        # The descriptor may be closed, and its number may be that of another file: compare the
        # files first.
        with suppress(OSError):
            fd = _own[self._name]
            if os.path.samestat(os.fstat(fd), os.stat(f"{self._beside}/{self._name}")):
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _tend(self, beside: Path) -> None:
        """Mark this member's file as in use, and remove old files of dead members."""
        with suppress(OSError):
            if self._name in _own:
                os.utime(beside / self._name)
        now_us = self._clock.boot_us()
        if not (
            _is_over(_scanned_us.get(beside), _SCAN_EVERY_US, now_us) and _is_directory(beside)
        ):
            return
        _scanned_us[beside] = now_us
        with suppress(OSError), os.scandir(beside) as entries:
            for entry in islice(entries, FILES_MAX):
                age_us = machine_us() - entry.stat(follow_symlinks=False).st_mtime_ns // 1_000
                is_left_over = age_us > _LEFT_OVER_US and entry.name not in _own
                if is_left_over and is_members(entry) and _is_free(entry.path):
                    os.unlink(entry.path)

    def _begin_child(self) -> None:
        """Leave member and lock to the parent; a close in the child does not end the lock."""
        self._beside = None
        if self._close is not None:
            self._close.detach()
            self._close = None
            with suppress(OSError):
                os.close(_own.pop(self._name))


def _close(name: str) -> None:
    with suppress(KeyError, OSError):
        os.close(_own.pop(name))


def _make_directory(beside: Path) -> None:
    with suppress(FileExistsError):
        os.mkdir(beside)
        with suppress(OSError):
            # Every user that may make files beside the database may make files in this directory.
            os.chmod(beside, os.stat(beside.parent).st_mode & 0o7777)
    if not _is_directory(beside):
        # The store refuses a link when it opens, so this link was made since.
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(beside))


def _is_directory(beside: Path) -> bool:
    """True if the path is a directory, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(beside).st_mode)
    except OSError:
        return False


def _is_free(path: str) -> bool:
    """True if a file exists, can be read, and nobody has locked it."""
    # Open without blocking, as the name may be a pipe's.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags)
    except OSError:
        return False
    try:
        # Take a shared lock, so that several members may check at once.
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
    finally:
        os.close(fd)


def _is_over(since_us: int | None, every_us: int, now_us: int) -> bool:
    return since_us is None or now_us - since_us >= every_us


def _remember(known: dict[str, None], holder: str) -> None:
    while len(known) >= _KNOWN_MAX:
        del known[next(iter(known))]
    known[holder] = None
