"""How long handlers run, by queue, task and outcome: noted when a run ends, counted in batches."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from shardq.lifecycle.fate import Fate
from shardq.model.message import task_of
from shardq.records.meter import RUN

if TYPE_CHECKING:
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.storing.ending import Endings
    from shardq.lifecycle.fate import Outcome
    from shardq.lifecycle.home import QueueHome

OUTCOMES = {
    Fate.ACK: "acked",
    Fate.RETRY: "retried",
    Fate.SNOOZE: "snoozed",
    Fate.BURY: "buried",
    Fate.CANCEL: "cancelled",
    Fate.EXPIRE: "expired",
}
_TASKS_MAX = 1_000


class Runs:
    """The runs of one consumer's handlers.

    Args:
        home: The queue's home.
        endings: Has the time at which the work of a held delivery began.
    """

    def __init__(self, home: QueueHome, endings: Endings) -> None:
        self._clock = home.clock
        self._meter = home.meter
        self._queue = home.register.name
        self._held = endings.held
        self._ended: deque[tuple[str, Fate, int]] = deque()
        self._tasks: dict[str | None, str] = {None: ""}

    def note(self, one: Delivery, outcome: Outcome, _error: BaseException | None) -> None:
        """Note a run that has just ended, in the run's thread."""
        begun_us = one.begun_us
        if self._held and (ending := self._held.get(one)) is not None:
            begun_us = ending.begun_us or begun_us
        headers = one.row.headers
        task = self._tasks.get(headers)
        if task is None:
            task = self._meter.tasks.name(task_of(one.row) or "")
            if len(self._tasks) >= _TASKS_MAX:
                self._tasks = {None: ""}
            self._tasks[headers] = task
        self._ended.append((task, outcome.fate, self._clock.boot_us() - begun_us))

    def count(self) -> None:
        """Count the runs noted since the last call. Only one thread may call this."""
        ended = self._ended
        if not ended:
            return
        batches: dict[tuple[str, Fate], list[int]] = {}
        for _ in range(len(ended)):
            task, fate, run_us = ended.popleft()
            batches.setdefault((task, fate), []).append(run_us)
        queue = self._meter.queues.name(self._queue)
        for (task, fate), runs_us in batches.items():
            outcome = OUTCOMES.get(fate, fate.name.lower())
            self._meter.observe(RUN, (queue, task, outcome), runs_us)
