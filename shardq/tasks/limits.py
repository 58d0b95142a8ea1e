"""Time limits of functions that cannot be stopped: one thread tells when they are over.

Where a caller steps the worker there is no thread: then it is told at the end of each call at the
latest.

Nothing but the telling is here: what becomes of the job, `runner.py` knows. Coroutines are
cancelled by their loop, in `loop.py`.
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
"""Limits that are kept though nobody needs them, or as many as there are others."""


class TimeLimit(TimeoutError):
    """A job took longer than its time limit."""


class Limit:
    """The time limit of one call. Made by `Watch.begin`."""

    __slots__ = ("_watch", "tell")

    def __init__(self, watch: Watch, tell: Callable[[], object]) -> None:
        self._watch = watch
        self.tell: Callable[[], object] | None = tell

    def end(self) -> None:
        """The call has ended: nothing is told, unless it has been, or just is."""
        self._watch._note_end(self)  # noqa: SLF001 - its other half


class Watch:
    """Tells when calls take longer than their limits. From any thread.

    Args:
        clock: By which time is told; the machine's unless given.

    Attributes:
        is_threaded: Whether a thread tells; else `look` does.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock = locks.new()
        self._changed = locks.condition(self._lock)
        self._limits: list[tuple[int, int, Limit]] = []
        """(Time since boot at which it is over, number, limit): a heap."""
        self._count = 0
        self._ended = 0
        """How many of them are not needed any more."""
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self.is_threaded = True
        locks.in_child(self, Watch._begin_child)

    def begin(self, limit_s: float, tell: Callable[[], object]) -> Limit:
        """Watch a call that begins now.

        Args:
            limit_s: How many seconds it may take.
            tell: Called once when these are over, if it has not ended; in the watch's thread, or
                in that which looks.

        Returns:
            What is to be told its end.

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
        """Tell what is over, in this thread; of a watch without a thread of its own."""
        while not self.is_threaded and (tell := self._over()) is not None:
            tell()

    def stop(self) -> None:
        """Tell nothing any more."""
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
                # Else a limit of a day would keep what ended within a second for a day.
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
                    # What it told has raised, or another limit came just now.
                    self._start()

    def _next(self) -> Callable[[], object] | None:
        """What is to be told next, once it is; None after a second without any limit."""
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
        """What is to be told, if the time of the first limit is over."""
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
        """A forked child has none of the threads: what is limited is its parent's."""
        self._limits, self._ended, self._thread = [], 0, None
