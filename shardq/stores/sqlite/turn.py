"""Turns in which the processes that write one file do so: a lock on its log, `jobs.db-wal`.

SQLite lets a writer that finds the file locked sleep, up to 0.1 s at a time, and whoever asks next
goes first: one of eight writers wrote once in 3 s. Who waits for a lock of the kernel is woken as
soon as it is free, in order. SQLite's own lock remains what keeps the file whole; without a turn,
as when whoever has it stands still, a writer goes on: after a second, and then at once.

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
        self._waiter: _Waiter | None = None

    def take(self) -> None:
        """Wait for a turn; `give_back` is to follow, were it that the wait was interrupted.

        While an earlier wait has no end, nobody waits again.
        """
        if self._waiter is not None and self._waiter.is_alive():
            return
        self._waiter = None
        if self._descriptor is None:
            self._descriptor = self._open()
        if self._descriptor is None:
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Between these two no signal's handler runs.
            self._waiter = _Waiter(self._descriptor)
            self._descriptor = None
            self._waiter.wait()
        except OSError:
            return

    def give_back(self) -> None:
        """End a turn, or the wait for one; there may be none, or a fork has closed its file."""
        if self._waiter is not None:
            if self._waiter.leave():
                self._waiter = None
        elif self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """End a turn and close the file. Idempotent."""
        self.give_back()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int | None:
        if self._path is None:
            return None
        try:
            return os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None


class _Waiter(threading.Thread):
    """Waits for a lock in a thread of its own, as the system's wait has no end.

    Args:
        descriptor: Of the file, which it closes.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(target=self._wait_on, args=(descriptor,), name="shardq-turn", daemon=True)
        self._descriptor: int | None = descriptor
        self._guard = locks.new()
        self._has_ended = threading.Event()
        self._is_left = False

    def wait(self) -> None:
        """Wait for the lock, for a second at most."""
        try:
            self.start()
        except RuntimeError:
            self._has_ended.set()
        self._has_ended.wait(_PATIENCE_S)

    def leave(self) -> bool:
        """Give the lock back, now or when it comes; whether it is now. Idempotent."""
        with self._guard:
            self._is_left = True
            if not self._has_ended.is_set():
                return False
        self._close()
        return True

    def _wait_on(self, descriptor: int) -> None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with self._guard:
            self._has_ended.set()
            if not self._is_left:
                return
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        # A forked child may have the file too: closed here alone, it would stay locked.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
