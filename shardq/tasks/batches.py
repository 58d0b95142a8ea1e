"""Collects jobs of one task and one policy into batches, which run together.

The first job of a batch waits a moment in its handler's thread, and runs the whole batch there. The
threads of the other jobs stay free. A full batch starts at once. If a caller steps the worker, all
jobs wait in the caller's thread until nothing more is due.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardq import locks
from shardq.engine.handing.outcome import Bury

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.tasks.run import JobRun

_WAIT_S = 0.05
"""How long the first job of a batch waits for others, unless the batch fills up."""


@dataclass(slots=True, eq=False)
class _OpenBatch:
    runs: list[JobRun]
    work: Callable[[list[JobRun]], None]
    is_full: threading.Event = field(default_factory=threading.Event)


class Batches:
    """The open batches of one queue's consumer.

    Attributes:
        is_threaded: True if the first job of a batch waits in a thread; else `finish` runs it.
    """

    def __init__(self) -> None:
        self._lock = locks.new()
        self._open: dict[object, _OpenBatch] = {}
        self.is_threaded = True

    def add(self, run: JobRun, size: int, work: Callable[[list[JobRun]], None]) -> None:
        """Add a run to the batch of its task and policy. The run's delivery is held.

        Args:
            run: A run that begins.
            size: How many run together at most.
            work: Runs the batch, in the thread of the batch's first run; without threads, in the
                thread of its last run.
        """
        kind = (run.plan.task.name, run.plan.policy)
        with self._lock:
            batch = self._open.get(kind)
            is_first = batch is None
            if batch is None:
                batch = self._open[kind] = _OpenBatch([run], work)
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
        """Run the batches that are not full, in this thread, because no more jobs arrive."""
        with self._lock:
            batches, self._open = list(self._open.values()), {}
        for batch in batches:
            batch.work(batch.runs)


def errors_of(value: Any, count: int, task: str) -> list[BaseException | None]:
    """The error of each job of a batch, None if the job succeeded.

    Args:
        value: The value that the function returned. A list with an error among its items, as
            `asyncio.gather` returns it, is one outcome for each job. With any other value all
            succeeded.
        count: The number of jobs.
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
