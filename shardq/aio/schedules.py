"""Schedules, from asyncio: each of them, those of a queue, and those of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from shardq.aio.threads import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from datetime import datetime, timedelta, tzinfo

    from apscheduler.triggers.base import BaseTrigger

    import shardq.schedules.face as sync_face
    import shardq.schedules.schedule as sync
    from shardq import tasks
    from shardq.aio.threads import Threads
    from shardq.model.message import Message
    from shardq.model.times import Due, Duration
    from shardq.schedules.options import ChangeOptions, Preview
    from shardq.schedules.policy import Policies, PolicyOptions
    from shardq.schedules.triggers.trigger import Trigger
    from shardq.tasks import Call, WithoutArguments

R = TypeVar("R")


class Schedule:
    """A schedule as it was read, from asyncio. Made by the calls that make or read one.

    Its attributes are those of `shardq.Schedule`.
    """

    def __init__(self, schedule: sync.Schedule, threads: Threads) -> None:
        """Made by the calls that make or read one."""
        self._schedule = schedule
        self._threads = threads
        self.name: str = schedule.name
        self.queue: str = schedule.queue
        self.trigger: Trigger = schedule.trigger
        self.state: Literal["waiting", "paused"] = schedule.state
        self.next: datetime | None = schedule.next
        self.previous: datetime | None = schedule.previous
        self.fired: int = schedule.fired
        self.skipped: int = schedule.skipped
        self.count: int | None = schedule.count
        self.revision: int = schedule.revision
        self.changed: bool = schedule.changed
        self.policies: Policies = schedule.policies
        self.error: str | None = schedule.error
        self.body: bytes = schedule.body
        self.headers: Mapping[str, str] = schedule.headers
        self.priority: int = schedule.priority
        self.group: str | None = schedule.group
        self.key: str | None = schedule.key
        self.on_conflict: str = schedule.on_conflict
        self.unique_for: timedelta | None = schedule.unique_for

    def __repr__(self) -> str:
        return f"<aio.Schedule of {self._schedule!r}>"

    async def change(
        self,
        *,
        body: bytes | str | None = None,
        trigger: BaseTrigger | Trigger | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | tzinfo | None = None,
        **options: Unpack[ChangeOptions],
    ) -> Schedule:
        """Change it, as `shardq.Schedule.change`; returns it as it is now."""
        changed = await self._call(
            lambda schedule: schedule.change(
                body=body,
                trigger=trigger,
                every=every,
                cron=cron,
                tz=tz,
                **options,
            )
        )
        return Schedule(changed, self._threads)

    async def pause(self) -> Schedule:
        """Let it not fire until `resume`, as `shardq.Schedule.pause`."""
        return Schedule(await self._call(lambda schedule: schedule.pause()), self._threads)

    async def resume(self) -> Schedule:
        """Let it fire again, as `shardq.Schedule.resume`."""
        return Schedule(await self._call(lambda schedule: schedule.resume()), self._threads)

    async def run(self) -> Message:
        """Put its message now, as `shardq.Schedule.run`."""
        return await self._call(lambda schedule: schedule.run())

    async def backfill(self, after: Due, until: Due, *, dry_run: bool = False) -> int:
        """Put a message for each fire time of a span, as `shardq.Schedule.backfill`."""
        return await self._call(
            lambda schedule: schedule.backfill(after, until, dry_run=dry_run), kind=Kind.LONG
        )

    async def remove(self) -> bool:
        """Remove it, as `shardq.Schedule.remove`."""
        return await self._call(lambda schedule: schedule.remove())

    async def preview(self, count: int = 10, after: Due | None = None) -> list[Preview]:
        """Its next fire times, as `shardq.Schedule.preview`."""
        return await self._call(lambda schedule: schedule.preview(count, after))

    async def _call(self, call: Callable[[sync.Schedule], R], *, kind: Kind = Kind.QUICK) -> R:
        return await self._threads.call(lambda: call(self._schedule), kind)


class Schedules:
    """The schedules of a queue, from asyncio. Made by `Queue.schedules`.

    `async for schedule in queue.schedules` gives all of them.
    """

    def __init__(self, opened: Callable[[], sync_face.Schedules], threads: Threads) -> None:
        """Made by `Queue.schedules`.

        Args:
            opened: Gives them; called in a thread.
            threads: Where calls run.
        """
        self._opened = opened
        self._threads = threads

    async def __aiter__(self) -> AsyncIterator[Schedule]:
        for found in await self._threads.call(lambda: list(self._opened())):
            yield Schedule(found, self._threads)

    async def get(self, name: str) -> Schedule | None:
        """A schedule as it is now, as `shardq.Schedules.get`."""
        found = await self._threads.call(lambda: self._opened().get(name))
        return None if found is None else Schedule(found, self._threads)

    async def remove(self, name: str) -> bool:
        """Remove one, also a damaged one, as `shardq.Schedules.remove`."""
        return await self._threads.call(lambda: self._opened().remove(name))

    async def preview(self, name: str, count: int = 10, after: Due | None = None) -> list[Preview]:
        """The next fire times of one, as `shardq.Schedules.preview`."""
        return await self._threads.call(lambda: self._opened().preview(name, count, after))


class AppSchedules:
    """The schedules in the queues of an app's tasks, from asyncio. Made by `App.schedules`.

    `async for schedule in app.schedules` gives all of them.
    """

    def __init__(self, schedules: tasks.AppSchedules, threads: Threads) -> None:
        """Made by `App.schedules`."""
        self._schedules = schedules
        self._threads = threads

    async def __aiter__(self) -> AsyncIterator[Schedule]:
        for found in await self._threads.call(lambda: list(self._schedules)):
            yield Schedule(found, self._threads)

    async def get(self, name: str, *, queue: str | None = None) -> Schedule | None:
        """A schedule as it is now, as `shardq.tasks.AppSchedules.get`."""
        found = await self._threads.call(lambda: self._schedules.get(name, queue=queue))
        return None if found is None else Schedule(found, self._threads)

    async def every(
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
        """Put a task again and again, as `shardq.tasks.AppSchedules.every`."""
        return await self._made(
            lambda: self._schedules.every(
                interval,
                call,
                name=name,
                start=start,
                end=end,
                at_start=at_start,
                count=count,
                **policies,
            )
        )

    async def cron(
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
        """Put a task as cron does, as `shardq.tasks.AppSchedules.cron`."""
        return await self._made(
            lambda: self._schedules.cron(
                text, call, tz=tz, name=name, start=start, end=end, count=count, **policies
            )
        )

    async def schedule(
        self,
        trigger: BaseTrigger | Trigger,
        call: Call[Any] | WithoutArguments,
        *,
        name: str | None = None,
        count: int | None = None,
        **policies: Unpack[PolicyOptions],
    ) -> Schedule:
        """Put a task whenever a trigger fires, as `shardq.tasks.AppSchedules.schedule`."""
        return await self._made(
            lambda: self._schedules.schedule(trigger, call, name=name, count=count, **policies)
        )

    async def _made(self, make: Callable[[], sync.Schedule]) -> Schedule:
        return Schedule(await self._threads.call(make), self._threads)
