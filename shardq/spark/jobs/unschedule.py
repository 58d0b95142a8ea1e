"""Taking back what a run of `schedule` has put: its exact inverse.

A row is deleted where the run has put it, and recorded as cancelled. What was delivered, moved or
put by others is left alone, and the run cannot be resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.errors import UsageError
from shardq.model.times import duration_ms
from shardq.spark.asked import Asked
from shardq.spark.jobs.schedule import Plan, run_of
from shardq.spark.writing import UNDO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shardq.model.times import Due, Duration
    from shardq.spark.asked import Named
    from shardq.spark.queue import SparkQueue

__all__ = ["Plan", "plan"]


def plan(
    queue: SparkQueue,
    frame: DataFrame,
    *,
    key: Named,
    due: Named,
    body: Named | None = None,
    priority: Named | int | None = None,
    group: Named | None = None,
    headers: Named | None = None,
    spread: Duration | None = None,
    rate: float | None = None,
    as_of: Due | None = None,
    run: str | None = None,
) -> Plan:
    """Plan to take back what a run has scheduled.

    A message that is being delivered just now is taken back as by a cancel: as well as it goes.

    Args:
        queue: Where it was scheduled.
        frame: The frame that was scheduled, and with it all that `schedule` was given.
        key: As there, and so are all others.
        due: As there.
        body: As there.
        priority: As there.
        group: As there.
        headers: As there.
        spread: As there.
        rate: Most rows a second that are looked for.
        as_of: The run's time, where it is named by it.
        run: The run's name; this or `as_of` is needed.

    Raises:
        UsageError: If no run is named, or a column is missing or of a wrong type.
        UnknownQueue: If there is no such queue.
    """
    if run is None and as_of is None:
        raise UsageError("say which run to take back: its name is in its report.")
    asked = Asked.of(
        frame,
        key=key,
        due=due,
        body=body,
        priority=priority,
        group=group,
        headers=headers,
        spread_ms=0 if spread is None else duration_ms(spread, name="spread"),
    )
    register = queue.register()
    found = run_of(queue, register, run, as_of)
    return Plan(queue, frame, asked, found, register, act=UNDO, rate=rate)
