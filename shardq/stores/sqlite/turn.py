"""Turns in which the processes that share a file write to it: locks on its log, `jobs.db-wal`.

```
 in line ──► next ──► turn ──► write, write ..       a waiting process is next, or in line for that
                       └── nobody waits, or 5 ms are over, or it writes no more ──► ended
```

A writer that finds the file locked sleeps in SQLite, up to 0.1 s at a time, and any writer that
comes meanwhile goes first: one of eight writers wrote once in 3 s. The kernel instead wakes the
waiters of a lock in order, as soon as it is free. SQLite's own lock still protects the file. If the
process that has the turn is frozen, the others write without turns: after a second, then at once.

To wake the next process takes as long as several writes. So a process that writes again at once
keeps its turn for a while, though others wait. The process that has just unlocked may also lock
again before the woken one does. So the next process has a lock of its own, taken before that of the
turn: a process that finds it taken lets the other go first.

SQLite locks nothing in the log, which stays the same file while a process has the database open.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import struct
import threading
from contextlib import suppress

from shardq import locks
from shardq.clock import SystemClock

_PATIENCE_S = 1.0
_KEPT_US = 5_000
"""A turn is kept this long at most while others wait: each of eight busy writers waits 40 ms."""
_AGAIN_US = 150
"""A process that mostly writes again this soon keeps its turn: the next one would be no sooner."""
_SCORE_KEPT, _SCORE_MAX = 4, 8
_TRIED_EVERY = 16
"""A process that mostly writes later keeps one turn in so many, to learn if that has changed."""
_LINGER_S = 0.001
"""A kept turn ends after this long without a write."""
_LOOK_S = 0.000_03
"""The pause of the next process between two looks at the turn's lock. No other process looks. A
wait in a thread would take 0.4 ms more on a busy machine, as long as three writes."""
_REST_S = 10.0
"""A watcher ends after this long without a turn to watch."""
_NEXT_AT = 1 << 62
"""The byte of the log that the next process locks: no log is so long."""
_FLOCK = struct.Struct("hhqqi")
"""C's `struct flock` on 64 bits: kind, origin, first byte, number of bytes, process."""
_LOCK_NEXT = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _NEXT_AT, 1, 0)
_UNLOCK_NEXT = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, _NEXT_AT, 1, 0)
_HAS_NEXT = hasattr(fcntl, "F_OFD_SETLKW") and struct.calcsize("P") == struct.calcsize("q")
"""Only Linux has byte locks that belong to an open file. Elsewhere each write is a turn, and the
turn's lock serves as both locks."""
_clock = SystemClock(0)


class Turn:
    """The turns of this process, one at a time; callers hold the owner's lock.

    Args:
        path: The log; None: there are no turns.
        lock: The owner's lock.

    Attributes:
        count: Writes that have begun.
    """

    def __init__(self, path: str | None, lock: threading.RLock) -> None:
        self._path = path
        self._lock = lock
        self._descriptor: int | None = None
        self._waiter: _Waiter | None = None
        self._watcher: _Watcher | None = None
        self._is_here = False
        """True while the turn is this process's."""
        self._is_in_vain = False
        """True if the last wait was in vain. The next waits are skipped until a turn is free."""
        self._since_us = 0
        """When this turn began."""
        self._ended_us = 0
        """When the last write in a kept turn ended."""
        self._score = _SCORE_MAX
        """Kept turns that were soon written in again, less those that were not."""
        self._untried = 0
        """Turns that were not kept because the score is low."""
        self.count = 0

    def take(self) -> None:
        """Wait for a turn; call `give_back` afterwards, even if the wait was interrupted.

        Returns at once while an earlier wait goes on.
        """
        self.count += 1
        if self._is_here:
            self._judge(is_soon=_clock.boot_us() - self._ended_us < _AGAIN_US)
            return
        if self._waiter is not None and self._waiter.is_alive:
            return
        self._waiter = None
        if self._descriptor is None:
            self._descriptor = self._open()
        if self._descriptor is None:
            return
        until_us = 0 if self._is_in_vain else _clock.boot_us() + round(_PATIENCE_S * 1e6)
        try:
            _be_next(self._descriptor)
        except BlockingIOError:
            # No signal's handler runs between these two lines.
            self._waiter = _Waiter(self._descriptor)
            self._descriptor = None
            if not self._waiter.wait():
                return
            self._descriptor, self._waiter = self._waiter.descriptor, None
        if self._descriptor is not None:
            self._is_here = self._follow(self._descriptor, until_us)
            self._is_in_vain = not self._is_here

    def _follow(self, descriptor: int, until_us: int) -> bool:
        """Wait as the next process until the turn is free; False if it is not by `until_us`."""
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if _clock.boot_us() >= until_us:
                    return False
                _clock.sleep(_LOOK_S)
            except OSError:
                return False
            else:
                _be_next_no_more(descriptor)
                self._since_us = _clock.boot_us()
                return True

    def give_back(self) -> None:
        """End a turn or the wait for one, if there is any; a fork may have closed the file."""
        if self._waiter is not None:
            if self._waiter.leave():
                self._waiter = None
        elif self._descriptor is not None and not self._is_kept(self._descriptor):
            self._end(self._descriptor)

    def end_idle(self, count: int) -> None:
        """End a kept turn if no write has begun since the `count`-th."""
        if self._is_here and self._descriptor is not None and self.count == count:
            self._judge(is_soon=False)
            self._end(self._descriptor)

    def forget_watcher(self) -> None:
        """Forget the watcher, which ends; the next kept turn starts another."""
        self._watcher = None

    def close(self) -> None:
        """End a turn and close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        self._is_here = False
        if self._waiter is not None and self._waiter.leave():
            self._waiter = None
        if descriptor is not None:
            _be_next_no_more(descriptor)
            _unlock(descriptor)
            os.close(descriptor)

    def _is_kept(self, descriptor: int) -> bool:
        """True if this process keeps its turn after a write."""
        if not self._is_here or not _is_another_next(descriptor):
            return False
        self._ended_us = _clock.boot_us()
        if self._ended_us - self._since_us > _KEPT_US:
            return False
        if self._score >= _SCORE_KEPT:
            return self._is_watched(_LINGER_S)
        self._untried = (self._untried + 1) % _TRIED_EVERY
        return not self._untried and self._is_watched(_AGAIN_US / 1e6)

    def _judge(self, *, is_soon: bool) -> None:
        """Learn from a kept turn whether the next is worth keeping."""
        if is_soon:
            self._score = min(max(self._score + 1, _SCORE_KEPT), _SCORE_MAX)
        else:
            self._score = max(self._score - 1, 0)

    def _is_watched(self, linger_s: float) -> bool:
        """Let a thread end a kept turn this long after a write; False if no thread starts."""
        if self._watcher is None or not self._watcher.is_alive():
            watcher = _Watcher(self, self._lock)
            try:
                watcher.start()
            except RuntimeError:
                return False
            self._watcher = watcher
        self._watcher.watch(self.count, linger_s)
        return True

    def _end(self, descriptor: int) -> None:
        if not self._is_here:
            # The wait was in vain or interrupted: this process may still be the next.
            _be_next_no_more(descriptor)
        self._is_here = False
        _unlock(descriptor)

    def _open(self) -> int | None:
        if self._path is None:
            return None
        try:
            return os.open(self._path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return None


def _be_next(descriptor: int, *, waits: bool = False) -> None:
    """Take the lock of the next process; on a system without byte locks, the turn's lock.

    Raises:
        BlockingIOError: If another process is next and `waits` is False.
    """
    if not _HAS_NEXT:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        return
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK, _LOCK_NEXT)
    except BlockingIOError:
        raise
    except OSError:
        # gVisor knows the command but has no such locks.
        return


def _be_next_no_more(descriptor: int) -> None:
    """Release the lock of the next process. Idempotent."""
    if _HAS_NEXT:
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _UNLOCK_NEXT)


def _is_another_next(descriptor: int) -> bool:
    """True if another process waits for the end of this turn."""
    if not _HAS_NEXT:
        return False
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK_NEXT)
    except OSError:
        return False
    return int(_FLOCK.unpack(found)[0]) != fcntl.F_UNLCK


def _unlock(descriptor: int) -> None:
    """Release the turn's lock. Closing the file alone does not if a forked child has it open."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class _Watcher(threading.Thread):
    """Ends a kept turn that is not used.

    Args:
        turn: The turn.
        lock: The lock of the turn's owner.
    """

    def __init__(self, turn: Turn, lock: threading.RLock) -> None:
        super().__init__(name="shardq-turn-kept", daemon=True)
        self._turn = turn
        self._lock = lock
        self._is_kept = threading.Event()
        self._count = 0
        self._linger_s = 0.0

    def watch(self, count: int, linger_s: float) -> None:
        """Watch a turn kept after the `count`-th write; the caller has the owner's lock."""
        self._count, self._linger_s = count, linger_s
        if not self._is_kept.is_set():
            self._is_kept.set()

    def run(self) -> None:
        """Watch until no turn was kept for a while."""
        while True:
            if not self._is_kept.wait(_REST_S):
                with self._lock:
                    if not self._is_kept.is_set():
                        self._turn.forget_watcher()
                        return
            self._is_kept.clear()
            count = self._count
            _clock.sleep(self._linger_s)
            if self._turn.count == count:
                with self._lock:
                    self._turn.end_idle(count)


class _Waiter:
    """Waits to be next in a thread of its own, because the system's wait has no timeout.

    The thread is bare: one of `threading` takes as long to start and to end as two writes.

    Args:
        descriptor: The log's.

    Attributes:
        descriptor: The log's; the caller's again if the wait ended in time, else closed here.
        is_alive: True while it waits.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor
        self.is_alive = False
        self._guard = locks.new()
        self._end = _thread.allocate_lock()
        self._is_left = False

    def wait(self) -> bool:
        """Wait for a second at most; True if the wait ended in time."""
        self._end.acquire()
        try:
            _thread.start_new_thread(self._wait_on, ())
        except RuntimeError:
            return True
        return self._end.acquire(timeout=_PATIENCE_S)

    def leave(self) -> bool:
        """Release the lock, now or once it is taken; True if it is released now. Idempotent."""
        with self._guard:
            self._is_left = True
            if self.is_alive:
                return False
        self._close()
        return True

    def _wait_on(self) -> None:
        with self._guard:
            if self._is_left or self.descriptor is None:
                return
            self.is_alive = True
        with suppress(OSError):
            _be_next(self.descriptor, waits=True)
        with self._guard:
            self.is_alive = False
            self._end.release()
            if not self._is_left:
                return
        self._close()

    def _close(self) -> None:
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            _be_next_no_more(descriptor)
            _unlock(descriptor)
            os.close(descriptor)
