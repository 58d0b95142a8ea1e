"""The methods of a queue for schedules, which put its messages repeatedly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from shardq.schedules.options import chosen
from shardq.schedules.schedule import Book

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

    from apscheduler.triggers.base import BaseTrigger

    from shardq.lifecycle.home import QueueHome
    from shardq.model.times import Due, Duration
    from shardq.schedules.options import Preview, ScheduleOptions
    from shardq.schedules.schedule import Schedule
    from shardq.schedules.triggers.trigger import Trigger


class Schedules:
    """The schedules of a queue: `schedules["nightly"]`. Made by `Queue.schedules`.

    A missing schedule raises `UnknownSchedule`, except in `get`.
    """

    def __init__(self, book: Book) -> None:
        """Made by `Queue.schedules`."""
        self._home = book

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._home.all())

    def __getitem__(self, name: str) -> Schedule:
        return self._home.the(name)

    def __len__(self) -> int:
        """The number of schedules: a read for each 16th of them, without their definitions."""
        return self._home.count()

    def get(self, name: str) -> Schedule | None:
        """The current state of a schedule; None if there is none. One read."""
        return self._home.get(name)

    def remove(self, name: str) -> bool:
        """Remove a schedule, as `Schedule.remove`, even if it is damaged. True if it existed."""
        return self._home.remove(name)

    def preview(self, name: str, count: int = 10, after: Due | None = None) -> list[Preview]:
        """The next fire times of a schedule, as `Schedule.preview`.

        Raises:
            UnknownSchedule: If there is none.
        """
        return self._home.preview(name, count, after)


class Scheduled:
    """Makes schedules of a queue at run time; consumers of the queue fire them.

    An identical existing schedule stays as it is, so a program may make its schedules at each
    start. `Schedule.change` changes a schedule.

    """

    _home: QueueHome
    _schedules: Schedules | None = None

    @property
    def schedules(self) -> Schedules:
        """The queue's schedules, by name."""
        if self._schedules is None:
            self._schedules = Schedules(Book(self._home))
        return self._schedules

    def every(
        self,
        interval: Duration,
        body: bytes | str,
        *,
        name: str | None = None,
        start: Due | None = None,
        end: Due | None = None,
        at_start: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Put a message repeatedly, each time after an interval.

        Args:
            interval: The time between two fire times, 1 s or more. Clock changes do not affect it.
            body: Bytes or text, to 40 KiB.
            name: Its name, 1 to 200 printable characters; by default its trigger as text.
            start: The first fire time; None: one interval from now.
            end: The schedule fires no later than this.
            at_start: True to fire as soon as the schedule is made; instead of `start`.
            options: Options, by their names in `ScheduleOptions`.

        Returns:
            The schedule.

        Raises:
            UsageError: If something cannot be used; nothing was written.
            KeyTaken: If another schedule has the name.
        """
        make = chosen(every=interval, start=start, end=end, at_start=at_start)
        return self.schedules._home.make(make, body, name=name, **options)

    def cron(
        self,
        text: str,
        body: bytes | str,
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        start: Due | None = None,
        end: Due | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Put a message at times of the wall clock, as cron does.

        Args:
            text: Five fields as cron reads them, `30 2 * * 1-5`; six, with the seconds first; or
                `@daily` and the like.
            body: Bytes or text, to 40 KiB.
            tz: The zone of that wall clock, by its IANA name.
            name: Its name, 1 to 200 printable characters; by default its trigger as text.
            start: The schedule fires no sooner than this.
            end: The schedule fires no later than this.
            options: Options, by their names in `ScheduleOptions`.

        Raises:
            UsageError: If something cannot be used; nothing was written.
            KeyTaken: If another schedule has the name.
        """
        make = chosen(cron=text, tz=tz, start=start, end=end)
        return self.schedules._home.make(make, body, name=name, **options)

    def schedule(
        self,
        trigger: BaseTrigger | Trigger,
        body: bytes | str,
        *,
        name: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Put a message whenever a trigger of APScheduler fires.

        Args:
            trigger: An interval, cron, date or calendar interval, or several combined by
                `AndTrigger` or `OrTrigger`.
            body: Bytes or text, to 40 KiB.
            name: Its name, 1 to 200 printable characters; by default its trigger as text.
            options: Options, by their names in `ScheduleOptions`.

        Raises:
            UsageError: If something cannot be used; nothing was written.
            KeyTaken: If another schedule has the name.
        """
        return self.schedules._home.make(chosen(trigger), body, name=name, **options)
