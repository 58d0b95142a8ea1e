"""Jobs that wait for others of their batch: of one task, with one policy.

The first of a batch waits a moment for the others in its handler's thread, and runs all of them
there; the threads of the others are free for the next. A full batch waits no longer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from shardq import locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.tasks.run import Run

_WAIT_S = 0.05
"""How long the first of a batch waits for others, where it does not become full."""


class _Batch:
    def __init__(self, first: Run) -> None:
        self.runs = [first]
        self.is_full = threading.Event()


class Batches:
    """The batches of one queue's consumer that are still open."""

    def __init__(self) -> None:
        self._lock = locks.new()
        self._open: dict[object, _Batch] = {}

    def add(self, run: Run, size: int, work: Callable[[list[Run]], None]) -> None:
        """Let a run wait for others of its kind, and run them together; its delivery is held.

        Args:
            run: One that begins.
            size: How many run together at most.
            work: Runs them, in the thread of the first.
        """
        kind = (run.plan.task.name, run.plan.policy)
        with self._lock:
            batch = self._open.get(kind)
            if batch is not None:
                batch.runs.append(run)
                if len(batch.runs) == size:
                    del self._open[kind]
                    batch.is_full.set()
                return
            batch = _Batch(run)
            if size > 1:
                self._open[kind] = batch
        if size > 1 and not batch.is_full.wait(_WAIT_S):
            with self._lock:
                if self._open.get(kind) is batch:
                    del self._open[kind]
        work(batch.runs)
