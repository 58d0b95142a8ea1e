"""Jobs that wait for others of their batch: of one task, with one policy.

The first of a batch waits a moment for the others in its handler's thread, and runs all of them
there; the threads of the others are free for the next. A full batch waits no longer. Where a caller
steps the worker, all wait in its thread, until nothing more is due.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from shardq import locks
from shardq.engine.handing.outcome import Bury

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.tasks.run import Run

_WAIT_S = 0.05
"""How long the first of a batch waits for others, where it does not become full."""


class _Batch:
    def __init__(self, first: Run, work: Callable[[list[Run]], None]) -> None:
        self.runs = [first]
        self.work = work
        self.is_full = threading.Event()


class Batches:
    """The batches of one queue's consumer that are still open.

    Attributes:
        is_threaded: Whether the first of a batch waits in a thread; else `finish` runs it.
    """

    def __init__(self) -> None:
        self._lock = locks.new()
        self._open: dict[object, _Batch] = {}
        self.is_threaded = True

    def add(self, run: Run, size: int, work: Callable[[list[Run]], None]) -> None:
        """Let a run wait for others of its kind, and run them together; its delivery is held.

        Args:
            run: One that begins.
            size: How many run together at most.
            work: Runs them, in the thread of the first; where there is but one, in that of the
                last.
        """
        kind = (run.plan.task.name, run.plan.policy)
        with self._lock:
            batch = self._open.get(kind)
            is_first = batch is None
            if batch is None:
                batch = self._open[kind] = _Batch(run, work)
            else:
                batch.runs.append(run)
            is_full = len(batch.runs) == size
            if is_full:
                del self._open[kind]
                batch.is_full.set()
        if is_first and not is_full and self.is_threaded and not batch.is_full.wait(_WAIT_S):
            with self._lock:
                if self._open.get(kind) is batch:
                    del self._open[kind]
        if is_first if self.is_threaded else is_full:
            work(batch.runs)

    def finish(self) -> None:
        """Run those that are not full, in this thread: nothing more comes."""
        with self._lock:
            batches, self._open = list(self._open.values()), {}
        for batch in batches:
            batch.work(batch.runs)


def errors_of(value: Any, count: int, task: str) -> list[BaseException | None]:
    """What each job of a batch has failed by, None where it is done, as its function returned it.

    Args:
        value: What that was: a list with an error among others, as `asyncio.gather` of coroutines
            gives it, is one outcome a job. Of anything else all are done.
        count: How many jobs there were.
        task: The task's name, for errors.
    """
    is_each = isinstance(value, list | tuple)
    if not is_each or not any(isinstance(one, BaseException) for one in value):
        return [None] * count
    if len(value) != count:
        return [
            Bury(f"task {task} returned {len(value):,} outcomes for a batch of {count:,}")
        ] * count
    return [one if isinstance(one, BaseException) else None for one in value]
