"""Turns in which the processes that write one file do so: a lock on its log, `jobs.db-wal`.

SQLite lets a writer that finds the file locked sleep, up to 0.1 s at a time, and whoever asks next
goes first: one of eight writers wrote once in 3 s. Who waits for a lock of the kernel is woken as
soon as it is free, in order. SQLite's own lock remains what keeps the file whole; without a turn,
as when whoever has it stands still, a writer goes on after a second.

Of the log SQLite locks nothing, and it stays the same file while any process has the database open.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress

from shardq import locks

_PATIENCE_S = 1.0


class Turn:
    """The turns of this process, one at a time; its owner has a lock around each.

    Args:
        path: The log; None: there are no turns.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Wait for a turn; True if it has come, and is to be given back."""
        if self._descriptor is None:
            self._descriptor = self._open()
        if self._descriptor is None:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._wait()
        except OSError:
            return False
        return True

    def give_back(self) -> None:
        """End a turn; it has ended already where a fork has closed its file."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, which ends a turn. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _drop(descriptor)

    def _open(self) -> int | None:
        if self._path is None:
            return None
        try:
            return os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None

    def _wait(self) -> bool:
        descriptor, self._descriptor = self._descriptor, None
        assert descriptor is not None  # noqa: S101 - it was just tried
        waiter = _Waiter(descriptor)
        if not waiter.wait():
            return False
        self._descriptor = descriptor
        return True


class _Waiter:
    """Waits for a lock in a thread of its own: the system's wait has no end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = locks.new()
        self._has_come = threading.Event()
        self._is_left = False

    def wait(self) -> bool:
        """True if the lock has come in time; else the file is closed."""
        try:
            threading.Thread(target=self._run, name="shardq-turn", daemon=True).start()
        except RuntimeError:
            os.close(self._descriptor)
            return False
        try:
            self._has_come.wait(_PATIENCE_S)
        finally:
            with self._lock:
                self._is_left = True
        return self._has_come.is_set()

    def _run(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._lock:
            if not self._is_left:
                self._has_come.set()
                return
        _drop(self._descriptor)


def _drop(descriptor: int) -> None:
    # A forked child may have the file too: closed here alone, it would stay locked.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
