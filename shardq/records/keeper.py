"""Calls tasks in time: one thread, started when the first task is given.

```
 count ─► within(0.05 s, keep) ─► thread ─► keep() ─► again in 2 s ─► ... ─► None: it waits
                                     └─ a store in trouble: again later, said once
```

The tasks are their owners': storing totals (`stats.py`), mending counts (`inspection/mend.py`).
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
"""How long a close waits for what is under way."""


class Keeper:
    """Calls tasks in time, one at a time, in a thread that keeps no process alive.

    In a forked child it has neither thread nor tasks, until it is given one.

    Args:
        clock: Tells when tasks are due.
        on_start: Called when its thread is begun, in each process: for what is to be done at that
            process's end. It may be called within a signal's handler.
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
        """Whether it takes no more tasks; one that takes long ends early then."""
        return self._is_closed

    def within(self, seconds: float, task: Task, about: Callable[[], str]) -> None:
        """Let a task be called after so long; of several times that it is given, the earliest.

        From any thread, and from a signal's handler. Nothing, once it is closed.

        Args:
            seconds: From now on.
            task: Returns in how many seconds it is to be called again; None: not. It is forgotten
                where it raises `UnknownQueue`; after another error of shardq it is tried again.
            about: What the task is about, for the log.
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
        """Call a task no more; one that is under way goes on."""
        with self._lock:
            self._due.pop(task, None)

    def close(self) -> None:
        """End the thread, once what is under way has ended. Idempotent."""
        until_us = self._clock.boot_us() + round(_CLOSE_S * 1e6)
        with self._lock:
            self._is_closed = True
            self._due.clear()
            self._news.notify_all()
            while self._is_running and (left_us := until_us - self._clock.boot_us()) > 0:
                self._clock.wait(self._news, left_us / 1e6)

    def _start(self) -> None:
        # A thread of `threading` is begun under locks of its own, in the middle of which a signal's
        # handler may count.
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:
            # Its tasks are given again when more is counted; the rest is stored at the end.
            log.warning("nothing is stored in time: %s; raise what limits this process", error)
        else:
            self._is_running = True
            self._on_start()

    def _run(self) -> None:
        try:
            while (found := self._next()) is not None:
                self._do(*found)
        finally:
            # Whoever gives it a task makes another thread, should a fault have ended this one.
            self._is_running = False
        with self._lock:
            self._news.notify_all()

    def _next(self) -> tuple[Task, Callable[[], str]] | None:
        """Wait for the next task that is due; None: it is closed."""
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
        # One store is in trouble for all.
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
