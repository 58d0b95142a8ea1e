"""Turns in which the processes that write one file do so: locks on its log, `jobs.db-wal`.

```
 in line ──► next ──► turn ──► write, write ..       who waits is next, or waits to be next
                       └── nobody waits, or 5 ms are over, or it writes no more ──► ended
```

SQLite lets a writer that finds the file locked sleep, up to 0.1 s at a time, and whoever asks next
goes first: one of eight writers wrote once in 3 s. Who waits for a lock of the kernel is woken as
soon as it is free, in order. SQLite's own lock remains what keeps the file whole; without a turn,
as when whoever has it stands still, a writer goes on: after a second, and then at once.

To wake the next takes as long as several writes. So one that writes again at once keeps its turn
for a while, though others wait. The system wakes who waits and gives away nothing: the lock that is
free the next moment may be taken by whoever had it. So who is next has a lock of its own, which is
asked for first: one that sees it taken lets the other go first.

Of the log SQLite locks nothing, and it stays the same file while any process has the database open.
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
"""How long a turn is kept while others wait: eight that write all the time wait for 40 ms."""
_AGAIN_US = 150
"""One that mostly writes again so soon keeps its turn: the next would begin no sooner."""
_SCORE_KEPT, _SCORE_MAX = 4, 8
_TRIED_EVERY = 16
"""One that mostly does not keeps one turn in so many all the same: it may by now."""
_LINGER_S = 0.001
"""A turn that is kept, and in which nothing is written for so long, is over."""
_LOOK_S = 0.000_03
"""How often the next looks whether the turn is free. It is one process alone, and a thread that
waits would tell it later: on a busy machine by 0.4 ms, in which three could have written."""
_REST_S = 10.0
"""After so long without a turn to watch its watcher ends."""
_NEXT_AT = 1 << 62
"""The byte of the log whose lock is that of the next: no log is so long."""
_FLOCK = struct.Struct("hhqqi")
"""C's struct on 64 bits: the kind, from where, the first byte, how many, a process."""
_HAS_NEXT = hasattr(fcntl, "F_OFD_SETLKW") and struct.calcsize("P") == struct.calcsize("q")
"""Linux alone has locks of bytes that belong to an open file. Elsewhere each write is a turn, and
whoever has that is next as well."""
_clock = SystemClock(0)


class Turn:
    """The turns of this process, one at a time; its owner has a lock around each.

    Args:
        path: The log; None: there are no turns.
        lock: The owner's.

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
        """Whether the turn is this process's."""
        self._is_in_vain = False
        """Whether the last wait had no end: then nobody waits until a turn is free again."""
        self._since_us = 0
        """When it came."""
        self._ended_us = 0
        """When the last write ended of a turn that was kept."""
        self._score = _SCORE_MAX
        """How many of the last writes began soon in turns that were kept, less the others."""
        self._untried = 0
        """Turns that were not kept because of that."""
        self.count = 0

    def take(self) -> None:
        """Wait for a turn; `give_back` is to follow, were it that the wait was interrupted.

        While an earlier wait has no end, nobody waits again.
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
            # Between these two no signal's handler runs.
            self._waiter = _Waiter(self._descriptor)
            self._descriptor = None
            if not self._waiter.wait():
                return
            self._descriptor, self._waiter = self._waiter.descriptor, None
        if self._descriptor is not None:
            self._is_here = self._follow(self._descriptor, until_us)
            self._is_in_vain = not self._is_here

    def _follow(self, descriptor: int, until_us: int) -> bool:
        """Take the turn as the next, once it is free; whether it was by this time since boot."""
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
                _be_next(descriptor, kind=fcntl.F_UNLCK)
                self._since_us = _clock.boot_us()
                return True

    def give_back(self) -> None:
        """End a turn, or the wait for one; there may be none, or a fork has closed its file."""
        if self._waiter is not None:
            if self._waiter.leave():
                self._waiter = None
        elif self._descriptor is not None and not self._is_kept(self._descriptor):
            self._end(self._descriptor)

    def end_idle(self, count: int) -> None:
        """End a turn that is kept, if nothing was written since so many writes had begun."""
        if self._is_here and self._descriptor is not None and self.count == count:
            self._judge(is_soon=False)
            self._end(self._descriptor)

    def forget_watcher(self) -> None:
        """Let another watch from now on."""
        self._watcher = None

    def close(self) -> None:
        """End a turn and close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        self._is_here = False
        if self._waiter is not None and self._waiter.leave():
            self._waiter = None
        if descriptor is not None:
            _unlock(descriptor)
            os.close(descriptor)

    def _is_kept(self, descriptor: int) -> bool:
        """Whether this process goes on with its turn after a write."""
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
        """Learn from a turn that was kept whether it is of use to keep the next."""
        if is_soon:
            self._score = min(max(self._score + 1, _SCORE_KEPT), _SCORE_MAX)
        else:
            self._score = max(self._score - 1, 0)

    def _is_watched(self, linger_s: float) -> bool:
        """Whether a turn that is kept ends, should nothing more be written for so long."""
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
        self._is_here = False
        _unlock(descriptor)

    def _open(self) -> int | None:
        if self._path is None:
            return None
        try:
            return os.open(self._path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return None


def _be_next(descriptor: int, *, kind: int = fcntl.F_WRLCK, waits: bool = False) -> None:
    """Take the lock of the next, or release it; of the turn, where there are no such locks.

    Raises:
        BlockingIOError: Another is next, and it is not to be waited for.
    """
    if not _HAS_NEXT and kind == fcntl.F_WRLCK:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    elif _HAS_NEXT:
        command = fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK
        try:
            fcntl.fcntl(descriptor, command, _FLOCK.pack(kind, os.SEEK_SET, _NEXT_AT, 1, 0))
        except BlockingIOError:
            raise
        except OSError:
            # As in gVisor, which knows the command and no such lock.
            return


def _is_another_next(descriptor: int) -> bool:
    """Whether another waits for the end of this turn."""
    if not _HAS_NEXT:
        return False
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _NEXT_AT, 1, 0)
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    except OSError:
        return False
    return int(_FLOCK.unpack(found)[0]) != fcntl.F_UNLCK


def _unlock(descriptor: int) -> None:
    """Release both locks: closed alone, the file would keep them where a forked child has it."""
    with suppress(OSError):
        _be_next(descriptor, kind=fcntl.F_UNLCK)
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class _Watcher(threading.Thread):
    """Ends a turn that is kept and not used.

    Args:
        turn: It.
        lock: Its owner's.
    """

    def __init__(self, turn: Turn, lock: threading.RLock) -> None:
        super().__init__(name="shardq-turn-kept", daemon=True)
        self._turn = turn
        self._lock = lock
        self._is_kept = threading.Event()
        self._count = 0
        self._linger_s = 0.0

    def watch(self, count: int, linger_s: float) -> None:
        """A turn is kept after so many writes had begun; the owner has its lock."""
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
    """Waits to be next in a thread of its own, as the system's wait has no end.

    A bare thread: one of `threading` takes as long to start and to end as two writes.

    Args:
        descriptor: Of the log.

    Attributes:
        descriptor: Likewise: its own, to be closed, unless that has come in time.
        is_alive: Whether it still waits.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor
        self.is_alive = False
        self._guard = locks.new()
        self._end = _thread.allocate_lock()
        self._is_left = False

    def wait(self) -> bool:
        """Wait for a second at most; whether that has come."""
        self._end.acquire()
        try:
            _thread.start_new_thread(self._wait_on, ())
        except RuntimeError:
            return True
        return self._end.acquire(timeout=_PATIENCE_S)

    def leave(self) -> bool:
        """Release the lock, now or when it comes; whether it is now. Idempotent."""
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
            _unlock(descriptor)
            os.close(descriptor)
