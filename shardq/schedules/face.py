"""What a queue has of schedules: by which its messages are put again and again."""

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

    One that is not there raises `UnknownSchedule`, but for `get`.
    """

    def __init__(self, book: Book) -> None:
        """Made by `Queue.schedules`."""
        self._home = book

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._home.all())

    def __getitem__(self, name: str) -> Schedule:
        return self._home.the(name)

    def __len__(self) -> int:
        """How many there are: a read for each 16th of them, without their definitions."""
        return self._home.count()

    def get(self, name: str) -> Schedule | None:
        """A schedule as it is now; None if there is none. One read."""
        return self._home.get(name)

    def remove(self, name: str) -> bool:
        """Remove one, as `Schedule.remove`, also a damaged one. Returns whether it was there."""
        return self._home.remove(name)

    def preview(self, name: str, count: int = 10, after: Due | None = None) -> list[Preview]:
        """The next fire times of one, as `Schedule.preview`.

        Raises:
            UnknownSchedule: If there is none.
        """
        return self._home.preview(name, count, after)


class Scheduled:
    """A queue's schedules: made at run time, once; consumers of the queue fire them.

    The very same schedule that is there already is left as it is, so a program may make it each
    time that it starts. `Schedule.change` changes one.

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
        """Put a message again and again, each time after an interval.

        Args:
            interval: How long, from 1 s. Clock changes do not touch it.
            body: Bytes or text, to 40 KiB.
            name: Its name, 1 to 200 printable characters; as its trigger reads, unless given.
            start: When it fires first; None: one interval from now.
            end: It fires no later.
            at_start: Whether it fires right away, once made; instead of a start.
            options: As `ScheduleOptions` names them.

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
            text: Five fields as cron reads them, `30 2 * * 1-5`; six, where the first is of
                seconds; or `@daily` and the like.
            body: Bytes or text, to 40 KiB.
            tz: The zone of that wall clock, by its IANA name.
            name: Its name, 1 to 200 printable characters; as its trigger reads, unless given.
            start: It fires no sooner.
            end: It fires no later.
            options: As `ScheduleOptions` names them.

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
            trigger: An interval, cron, date or calendar interval, or several by and/or.
            body: Bytes or text, to 40 KiB.
            name: Its name, 1 to 200 printable characters; as its trigger reads, unless given.
            options: As `ScheduleOptions` names them.

        Raises:
            UsageError: If something cannot be used; nothing was written.
            KeyTaken: If another schedule has the name.
        """
        return self.schedules._home.make(chosen(trigger), body, name=name, **options)
