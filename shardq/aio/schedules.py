"""Schedules, from asyncio: a schedule, the schedules of a queue, and those of an app."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import shardq.schedules.face as sync_face
import shardq.schedules.schedule as sync
from shardq import tasks
from shardq.aio.threaded import Face, declared, faced, lengthy, or_none, threaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shardq.aio.threads import Threads


def schedule_face(schedule: sync.Schedule, threads: Threads) -> Schedule:
    """The face of a schedule."""
    return Schedule(schedule, threads)


class Schedule(sync.ScheduleView, Face[sync.Schedule]):
    """A schedule as it was read, from asyncio. Made by calls that make or read a schedule."""

    def __init__(self, schedule: sync.Schedule, threads: Threads) -> None:
        """Made by calls that make or read a schedule."""
        Face.__init__(self, lambda: schedule, threads)
        values = {one.name: getattr(schedule, one.name) for one in fields(sync.ScheduleView)}
        sync.ScheduleView.__init__(self, **values)
        self._schedule = schedule

    def __repr__(self) -> str:
        return f"<aio.Schedule of {self._schedule!r}>"

    @declared(faced(sync.Schedule.change, schedule_face))
    def change(self) -> None:
        """Change the schedule, as `shardq.Schedule.change`; returns the changed schedule."""

    @declared(faced(sync.Schedule.pause, schedule_face))
    def pause(self) -> None:
        """Stop its firings until `resume`, as `shardq.Schedule.pause`."""

    @declared(faced(sync.Schedule.resume, schedule_face))
    def resume(self) -> None:
        """Let the schedule fire again, as `shardq.Schedule.resume`."""

    @declared(threaded(sync.Schedule.run))
    def run(self) -> None:
        """Put its message now, as `shardq.Schedule.run`."""

    @declared(lengthy(sync.Schedule.backfill))
    def backfill(self) -> None:
        """Put a message for each fire time of a span, as `shardq.Schedule.backfill`."""

    @declared(threaded(sync.Schedule.remove))
    def remove(self) -> None:
        """Remove the schedule, as `shardq.Schedule.remove`."""

    @declared(threaded(sync.Schedule.preview))
    def preview(self) -> None:
        """Its next fire times, as `shardq.Schedule.preview`."""


class Schedules(Face[sync_face.Schedules]):
    """The schedules of a queue, from asyncio. Made by `Queue.schedules`.

    `async for schedule in queue.schedules` gives all of them.
    """

    async def __aiter__(self) -> AsyncIterator[Schedule]:
        for found in await self._call(list):
            yield Schedule(found, self._threads)

    @declared(faced(sync_face.Schedules.get, or_none(schedule_face)))
    def get(self) -> None:
        """The current state of a schedule, as `shardq.Schedules.get`."""

    @declared(threaded(sync_face.Schedules.remove))
    def remove(self) -> None:
        """Remove a schedule, even a damaged one, as `shardq.Schedules.remove`."""

    @declared(threaded(sync_face.Schedules.preview))
    def preview(self) -> None:
        """The next fire times of a schedule, as `shardq.Schedules.preview`."""


class AppSchedules(Face[tasks.AppSchedules]):
    """The schedules in the queues of an app's tasks, from asyncio. Made by `App.schedules`.

    `async for schedule in app.schedules` gives all of them.
    """

    async def __aiter__(self) -> AsyncIterator[Schedule]:
        for found in await self._call(list):
            yield Schedule(found, self._threads)

    @declared(faced(tasks.AppSchedules.get, or_none(schedule_face)))
    def get(self) -> None:
        """The current state of a schedule, as `shardq.tasks.AppSchedules.get`."""

    @declared(faced(tasks.AppSchedules.every, schedule_face))
    def every(self) -> None:
        """Put a task repeatedly, after an interval, as `shardq.tasks.AppSchedules.every`."""

    @declared(faced(tasks.AppSchedules.cron, schedule_face))
    def cron(self) -> None:
        """Put a task as cron does, as `shardq.tasks.AppSchedules.cron`."""

    @declared(faced(tasks.AppSchedules.schedule, schedule_face))
    def schedule(self) -> None:
        """Put a task whenever a trigger fires, as `shardq.tasks.AppSchedules.schedule`."""
