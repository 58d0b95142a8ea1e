"""The schedules of an app's tasks in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from shardq.schedules.options import chosen
from shardq.schedules.schedule import unknown
from shardq.tasks.declared import scheduled
from shardq.tasks.task import check_attempts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import tzinfo

    from apscheduler.triggers.base import BaseTrigger

    from shardq.model.times import Due, Duration
    from shardq.queue import Queue
    from shardq.schedules.options import Make
    from shardq.schedules.policy import PolicyOptions
    from shardq.schedules.schedule import Schedule
    from shardq.schedules.triggers.trigger import Trigger
    from shardq.tasks.registry import Registry
    from shardq.tasks.task import Call, WithoutArguments


class AppSchedules:
    """The schedules in the queues of an app's tasks: `app.schedules["nightly"]`.

    Made by `App.schedules`. A missing schedule raises `UnknownSchedule`, except in `get`.

    `every`, `cron` and `schedule` make a schedule now, at run time: one for each customer, say. An
    identical existing schedule stays as it is. A worker's start does not change schedules that were
    made at run time.

    """

    def __init__(self, registry: Registry) -> None:
        """Made by `App.schedules`."""
        self._registry = registry

    def get(self, name: str, *, queue: str | None = None) -> Schedule | None:
        """The current state of a schedule; None if there is none.

        Args:
            name: Its name.
            queue: The name of its queue; None: any queue of the tasks.
        """
        for one in self._queues(queue):
            found = one.schedules.get(name)
            if found is not None:
                return found
        return None

    def __getitem__(self, name: str) -> Schedule:
        found = self.get(name)
        if found is None:
            searched = ", ".join(self._registry.queue_names) or "no queue"
            known = [one for queue in self._queues(None) for one in queue.schedules._home.names()]
            raise unknown(f"there is no schedule {name!r} in {searched}", name, known)
        return found

    def __iter__(self) -> Iterator[Schedule]:
        for one in self._queues(None):
            yield from one.schedules

    def every(
        self,
        interval: Duration,
        call: Call[Any] | WithoutArguments,
        *,
        name: str | None = None,
        start: Due | None = None,
        end: Due | None = None,
        at_start: bool = False,
        count: int | None = None,
        **policies: Unpack[PolicyOptions],
    ) -> Schedule:
        """Put a task repeatedly, each time after an interval, from now on.

        Args:
            interval: The time between two fire times, 1 s or more. Clock changes do not affect it.
            call: The task, or `task.of(..)` with its arguments.
            name: The schedule's, unique in the task's queue; the task's name unless given.
            start: The first fire time; None: one interval from now.
            end: The schedule fires no later than this.
            at_start: True to fire as soon as the schedule is made; instead of `start`.
            count: How often the schedule fires; None: without end.
            policies: Policies, by their names in `PolicyOptions`.

        Raises:
            UsageError: If something cannot be used, or the function does not take the arguments;
                nothing was written.
            KeyTaken: If another schedule has the name.
        """
        made = chosen(every=interval, start=start, end=end, at_start=at_start)
        return self._make(made, call, name, {"count": count, **policies})

    def cron(
        self,
        text: str,
        call: Call[Any] | WithoutArguments,
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        start: Due | None = None,
        end: Due | None = None,
        count: int | None = None,
        **policies: Unpack[PolicyOptions],
    ) -> Schedule:
        """Put a task at times of the wall clock, as cron does, from now on.

        Args:
            text: As for `App.cron`.
            call: The task, or `task.of(..)` with its arguments.
            tz: The zone of that wall clock, by its IANA name.
            name: The schedule's, unique in the task's queue; the task's name unless given.
            start: The schedule fires no sooner than this.
            end: The schedule fires no later than this.
            count: How often the schedule fires; None: without end.
            policies: Policies, by their names in `PolicyOptions`.

        Raises:
            UsageError, KeyTaken: As `every`.
        """
        made = chosen(cron=text, tz=tz, start=start, end=end)
        return self._make(made, call, name, {"count": count, **policies})

    def schedule(
        self,
        trigger: BaseTrigger | Trigger,
        call: Call[Any] | WithoutArguments,
        *,
        name: str | None = None,
        count: int | None = None,
        **policies: Unpack[PolicyOptions],
    ) -> Schedule:
        """Put a task whenever a trigger of APScheduler fires, from now on.

        Args:
            trigger: An interval, cron, date or calendar interval, or several combined by
                `AndTrigger` or `OrTrigger`.
            call: The task, or `task.of(..)` with its arguments.
            name: The schedule's, unique in the task's queue; the task's name unless given.
            count: How often the schedule fires; None: without end.
            policies: Policies, by their names in `PolicyOptions`.

        Raises:
            UsageError, KeyTaken: As `every`.
        """
        return self._make(chosen(trigger), call, name, {"count": count, **policies})

    def _make(
        self,
        make: Make | None,
        call: Call[Any] | WithoutArguments,
        name: str | None,
        options: Mapping[str, Any],
    ) -> Schedule:
        job = scheduled(call, self._registry, options)
        queue = self._registry.queue(job.queue)
        check_attempts(job.task.name, job.attempts, queue)
        name = name or job.task.name
        return queue.schedules._home.make(make, job.body, name=name, **job.options, **options)

    def _queues(self, queue: str | None) -> list[Queue]:
        searched = self._registry.queue_names if queue is None else [queue]
        return [self._registry.queue(name) for name in searched]
