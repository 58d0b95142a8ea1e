"""Calls tasks when they are due, in one thread, which the first task starts.

```
 count ─► within(0.05 s, keep) ─► thread ─► keep() ─► again in 2 s ─► ... ─► None: it waits
                                     └─ an error of the store: again later, logged once
```

The tasks store totals (`stats.py`) and mend counts (`inspection/mend.py`).
"""

from __future__ import annotations

import _thread
import logging
from typing import TYPE_CHECKING, TypeAlias

from shardq import locks
from shardq.errors import ShardqError, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock

    Task: TypeAlias = Callable[[], float | None]

log = logging.getLogger(__name__)

_BACK_OFF_S = (0.1, 5.0)
_CLOSE_S = 10.0
"""How long a close waits for a task that is under way."""


class Keeper:
    """Calls tasks when they are due, one at a time, in a thread that keeps no process alive.

    A forked child has neither the thread nor the tasks.

    Args:
        clock: The clock.
        on_start: Called when the thread starts, in each process, to register work for the end of
            the process. A signal's handler may be the caller.
    """

    def __init__(self, clock: Clock, on_start: Callable[[], object] = lambda: None) -> None:
        self._clock = clock
        self._on_start = on_start
        self._lock = locks.new()
        self._news = locks.condition(self._lock)
        self._due: dict[Task, tuple[int, Callable[[], str]]] = {}
        self._fails: dict[Task, int] = {}
        self._is_running = self._is_closed = False
        locks.in_child(self, Keeper._begin_child)

    @property
    def is_closed(self) -> bool:
        """True if the keeper takes no more tasks; a long task should then end early."""
        return self._is_closed

    def within(self, seconds: float, task: Task, about: Callable[[], str]) -> None:
        """Call a task after `seconds`, or sooner if it is due sooner already.

        May be called from any thread and from a signal's handler. Does nothing once closed.

        Args:
            seconds: The longest delay from now.
            task: Returns the seconds after which to call it again; None if never. A task that
                raises `UnknownQueue` is forgotten; after any other error of shardq it is tried
                again.
            about: Names the task's subject, for the log.
        """
        due_us = self._clock.boot_us() + round(seconds * 1e6)
        with self._lock:
            if self._is_closed or self._due.get(task, (due_us + 1,))[0] <= due_us:
                return
            self._due[task] = due_us, about
            if self._is_running:
                self._news.notify()
            else:
                self._start()

    def forget(self, task: Task) -> None:
        """Never call a task again; a call that is under way continues."""
        with self._lock:
            self._due.pop(task, None)

    def close(self) -> None:
        """End the thread after the task under way. Idempotent."""
        until_us = self._clock.boot_us() + round(_CLOSE_S * 1e6)
        with self._lock:
            self._is_closed = True
            self._due.clear()
            self._news.notify_all()
            while self._is_running and (left_us := until_us - self._clock.boot_us()) > 0:
                self._clock.wait(self._news, left_us / 1e6)

    def _start(self) -> None:
        # `threading` would start the thread under locks, at which the signal's handler that counts
        # may have interrupted it.
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:
            # The next count gives the task again; without one, counts are stored at the end.
            log.warning("nothing is stored in time: %s; raise what limits this process", error)
        else:
            self._is_running = True
            self._on_start()

    def _run(self) -> None:
        try:
            while (found := self._next()) is not None:
                self._do(*found)
        finally:
            # After a fault in this thread, the next task that is given starts another.
            self._is_running = False
        with self._lock:
            self._news.notify_all()

    def _next(self) -> tuple[Task, Callable[[], str]] | None:
        """Wait for the next due task; None once closed."""
        with self._lock:
            while not self._is_closed:
                now_us = self._clock.boot_us()
                first = min(self._due, key=lambda task: self._due[task][0], default=None)
                if first is None:
                    self._clock.wait(self._news, None)
                    continue
                due_us, about = self._due[first]
                if due_us <= now_us:
                    del self._due[first]
                    return first, about
                self._clock.wait(self._news, (due_us - now_us) / 1e6)
        return None

    def _do(self, task: Task, about: Callable[[], str]) -> None:
        try:
            again = task()
        except UnknownQueue:
            self._fails.pop(task, None)
            return
        except ShardqError as error:
            again = self._back_off(task, about, error)
        else:
            if self._fails.pop(task, 0):
                log.info("%s: done by now", about())
        if again is not None:
            self.within(again, task, about)

    def _back_off(self, task: Task, about: Callable[[], str], error: ShardqError) -> float:
        fails = self._fails.get(task, 0)
        # One warning is enough: an unavailable store fails all tasks.
        level = logging.INFO if self._fails else logging.WARNING
        if not fails:
            log.log(level, "%s: %s; trying again", about(), str(error).removesuffix("."))
        self._fails[task] = min(fails + 1, 10)
        least, most = _BACK_OFF_S
        return min(least * (1 << fails), most)

    def _begin_child(self) -> None:
        self._due.clear()
        self._fails.clear()
        self._is_running = False
