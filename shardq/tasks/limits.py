"""Time limits of functions that cannot be stopped: one thread reports exceeded limits.

If a caller steps the worker there is no thread: limits are checked at the end of each call at the
latest.

This module only reports; `runner.py` decides about the job. Coroutines are cancelled by their loop,
in `loop.py`.
"""

from __future__ import annotations

import heapq
import threading
from typing import TYPE_CHECKING

from shardq import locks
from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock

_LINGER_S = 1.0
"""The thread waits this long for another limit before it ends."""
_ENDED_MAX = 1_000
"""The heap keeps up to this many ended limits, or more while they are at most half of all."""


class TimeLimit(TimeoutError):
    """A job took longer than its time limit."""


class Limit:
    """The time limit of one call. Made by `LimitWatch.begin`."""

    __slots__ = ("_watch", "tell")

    def __init__(self, watch: LimitWatch, tell: Callable[[], object]) -> None:
        self._watch = watch
        self.tell: Callable[[], object] | None = tell

    def end(self) -> None:
        """Note that the call has ended: from now on, its limit is not reported."""
        self._watch._note_end(self)  # noqa: SLF001 - its other half


class LimitWatch:
    """Reports calls that take longer than their limits. Safe from any thread.

    Args:
        clock: A clock; the machine's unless given.

    Attributes:
        is_threaded: True if a thread reports; else `look` does.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock = locks.new()
        self._changed = locks.condition(self._lock)
        self._limits: list[tuple[int, int, Limit]] = []
        """(Time since boot at which the limit is exceeded, number, limit): a heap."""
        self._count = 0
        self._ended = 0
        """How many limits in the heap have ended."""
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self.is_threaded = True
        locks.in_child(self, LimitWatch._begin_child)

    def begin(self, limit_s: float, tell: Callable[[], object]) -> Limit:
        """Watch a call that begins now.

        Args:
            limit_s: How many seconds it may take.
            tell: Called once when the limit is exceeded, if the call has not ended; in the watch's
                thread, or in the thread of `look`.

        Returns:
            The limit; call its `end` when the call has ended.

        Raises:
            RuntimeError: If this process may start no thread.
        """
        at_us = self._clock.boot_us() + round(limit_s * 1e6)
        limit = Limit(self, tell)
        with self._lock:
            if self._is_stopped:
                return limit
            if self._thread is None and self.is_threaded:
                self._start()
            self._count += 1
            heapq.heappush(self._limits, (at_us, self._count, limit))
            if self._limits[0][2] is limit:
                self._changed.notify()
        return limit

    def look(self) -> None:
        """Report exceeded limits in this thread; does nothing if the watch's own thread reports."""
        while not self.is_threaded and (tell := self._over()) is not None:
            tell()

    def stop(self) -> None:
        """Stop reporting."""
        with self._lock:
            self._is_stopped = True
            self._limits.clear()
            self._changed.notify()

    def _note_end(self, limit: Limit) -> None:
        self.look()
        with self._lock:
            if limit.tell is None:
                return
            limit.tell = None
            self._ended += 1
            if self._ended > _ENDED_MAX and 2 * self._ended > len(self._limits):
                # Drop the ended limits: a limit of a day would keep a call that took a second in
                # memory for a day.
                self._limits = [one for one in self._limits if one[2].tell is not None]
                heapq.heapify(self._limits)
                self._ended = 0

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="shardq-limits", daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        try:
            while (tell := self._next()) is not None:
                tell()
        finally:
            with self._lock:
                self._thread = None
                if self._limits:
                    # Limits are left if a report has raised, or if one was added just now.
                    self._start()

    def _next(self) -> Callable[[], object] | None:
        """Wait for the next report to make; None after a second without any limit."""
        has_waited = False
        with self._lock:
            while not self._is_stopped:
                self._forget_ended()
                if not self._limits:
                    if has_waited:
                        return None
                    has_waited = True
                    self._clock.wait(self._changed, _LINGER_S)
                    continue
                has_waited = False
                if (tell := self._over()) is not None:
                    return tell
                left_us = self._limits[0][0] - self._clock.boot_us()
                self._clock.wait(self._changed, left_us / 1e6)
        return None

    def _over(self) -> Callable[[], object] | None:
        """The report to make, if the first limit is exceeded."""
        with self._lock:
            self._forget_ended()
            if not self._limits or self._limits[0][0] > self._clock.boot_us():
                return None
            limit = heapq.heappop(self._limits)[2]
            tell, limit.tell = limit.tell, None
            return tell

    def _forget_ended(self) -> None:
        while self._limits and self._limits[0][2].tell is None:
            heapq.heappop(self._limits)
            self._ended -= 1

    def _begin_child(self) -> None:
        """Forget all limits in a forked child: the limited calls run in its parent."""
        self._limits, self._ended, self._thread = [], 0, None
