"""Several processes as one: their counts are added up; they are live and ready together.

```
 a scrape, a probe ──► supervisor ──► each process: counts, live, ready · one: the store's contents
 a process that ends ──► its counts stay in the sum
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.health.vitals import Sign
from shardq.tasks import line

if TYPE_CHECKING:
    from shardq.records.meter import Counted
    from shardq.tasks.processes import Supervisor

_COUNTS_S = 1.0
_STORE_S = 9.0
_PROBE_S = 3.0
"""The wait for a process's answer: it waits a second for its store, and for its interpreter."""
_LARGEST = ("shardq_clock_offset_seconds",)
"""Gauges of which the largest value is shown; of others, the sum."""


class Several:
    """The processes of a supervisor, shown as one. Safe from any thread.

    Args:
        supervisor: The supervisor.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    # Metrics --------------------------------------------------------------------------------------

    def metrics(self) -> tuple[dict[str, Any], Counted]:
        """Gauges and totals, and the counts of all processes, including those that have ended."""
        [store] = self._supervisor.ask(line.STORE, _STORE_S, of_all=False) or [None]
        answers = self._supervisor.ask(line.COUNTS, _COUNTS_S)
        values: dict[str, list[float]] = {}
        for _, gauges in filter(None, answers):
            for name, rows in gauges.items():
                values.setdefault(name, []).extend(value for _, value in rows)
        found: dict[str, Any] = store or {"shardq_store_up": [([], 0)]}
        for name, of_each in values.items():
            value = max(of_each, key=abs) if name in _LARGEST else sum(of_each)
            found[name] = [([], value)]
        return found, self._supervisor.counted()

    # Health ---------------------------------------------------------------------------------------

    def live(self) -> Sign:
        """Live if each working process is; a process that does not answer is not."""
        return self._worst(self._supervisor.ask(line.LIVE, _PROBE_S))

    def ready(self) -> Sign:
        """Ready if there are working processes and each is ready."""
        if self.is_leaving():
            return Sign(False, "leaving")
        answers = self._supervisor.ask(line.READY_NOW, _PROBE_S)
        return self._worst(answers) if answers else Sign(False, "no process is ready")

    def is_leaving(self) -> bool:
        """True once all processes are to end."""
        return self._supervisor.is_stopping

    @staticmethod
    def _worst(answers: list[Any]) -> Sign:
        silent = Sign(False, "a process does not answer")
        signs = [silent if one is None else Sign(*one) for one in answers]
        return next((sign for sign in signs if not sign.is_well), Sign())
