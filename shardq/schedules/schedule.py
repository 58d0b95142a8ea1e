"""The schedules of one queue, as their users see them.

```
 made, declared ──► waiting ─┬─ fires ──► waiting .. ──► ended: not among the schedules any more
                             └─ pause ─► paused ─ resume ─► waiting
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, Unpack

from msgspec.structs import replace

from shardq.errors import (
    BadSetting,
    BadTime,
    KeyTaken,
    StoreUnavailable,
    UnknownSchedule,
    UsageError,
    not_pickled,
    shown,
)
from shardq.lifecycle.pauses import Pauses
from shardq.model import names, settings
from shardq.model.message import JOB_HEADERS
from shardq.model.times import due_ms as epoch_ms
from shardq.model.times import iso, moment_of
from shardq.schedules.ahead import ahead
from shardq.schedules.definition import ScheduleDefinition
from shardq.schedules.firing.firing import ScheduleFiring
from shardq.schedules.options import (
    ChangeOptions,
    Preview,
    ScheduleOptions,
    applied,
    check,
    content_of,
    draft,
    previewed,
    retimed,
    unlike,
)
from shardq.schedules.policy import Policies
from shardq.schedules.stored import AHEAD_MS, PlannedFiring, StoredSchedule, headers_of, id_of
from shardq.schedules.table import ScheduleTable, ScheduleWrite
from shardq.schedules.triggers.trigger import Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime, tzinfo

    from apscheduler.triggers.base import BaseTrigger

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Message
    from shardq.model.times import Due, Duration
    from shardq.schedules.options import Make, Retime

State: TypeAlias = Literal["waiting", "paused"]

PREVIEW_MAX = 10_000
BACKFILL_MAX = 100_000
_LATE_MAX = 100
"""Most late schedules that are read to find the one that is overdue for the longest."""
_TRIES = 200
_SLOW_US = 3_000_000
"""A write that took longer than this is announced once more."""
_OVERDUE_MS = 10_000
_SOON_MS = 1_000
"""A member that has read a record writes the record's jobs within this time."""
LATE_MS = 60_000
"""A schedule is overdue if its message has been due for longer than this, and was not put."""


@dataclass(frozen=True, repr=False, eq=False)
class ScheduleView:
    """A schedule as it was read.

    Attributes:
        name: Its name, unique in its queue.
        queue: The name of the queue of its messages.
        trigger: When it fires.
        state: `waiting` for its next fire time, or `paused`.
        next: Its next fire time, UTC; None if it is paused, or never fires again.
        previous: The last fire time for which it has put a message, UTC; None before the first.
        fired: For how many fire times it has put messages.
        skipped: For how many fire times it has put none, by its policies.
        count: How often it fires; None: for ever.
        revision: The revision of the code that declares the schedule; 0 if it was made at run time.
        changed: True if the schedule was changed at run time after code had declared it.
        policies: Its policies.
        error: The last error of its trigger; None if there is none.
        body: The body of its messages.
        headers: The headers of its messages, without those of the firing.
        priority: The priority of its messages.
        group: The group of its messages; None: none.
        key: The key of its messages; None: none.
        on_conflict: With a key: the action if a message has it.
        unique_for: With a key: how long it is held after the message's end.
    """

    name: str
    queue: str
    trigger: Trigger
    state: State
    next: datetime | None
    previous: datetime | None
    fired: int
    skipped: int
    count: int | None
    revision: int
    changed: bool
    policies: Policies
    error: str | None
    body: bytes
    headers: Mapping[str, str]
    priority: int
    group: str | None
    key: str | None
    on_conflict: str
    unique_for: timedelta | None


@dataclass(frozen=True, slots=True, repr=False)
class Schedule(ScheduleView):
    """A schedule as it was read, and its commands, which apply in every process at once."""

    _of: Book = field(compare=False)

    def __repr__(self) -> str:
        following = "" if self.next is None else f", next {iso(self.next)}"
        return (
            f"<Schedule {self.name!r} of {self.queue!r}: {self.trigger}, {self.state}{following}>"
        )

    def __reduce__(self) -> NoReturn:
        where = f"shardq.connect(url).queue({self.queue!r}).schedules[{self.name!r}]"
        raise not_pickled(f"schedule {self.name!r}", where)

    def change(
        self,
        *,
        body: bytes | str | None = None,
        trigger: BaseTrigger | Trigger | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | tzinfo | None = None,
        **options: Unpack[ChangeOptions],
    ) -> Schedule:
        """Change the schedule: once this returns, it fires only as changed.

        Parts that are not given stay: the zone, start and end too if only the times change.

        Messages that are due within 2.75 s, on SQLite 0.35 s, may have been put already.

        Args:
            body: The new body.
            trigger: When it fires; or instead:
            every: An interval.
            cron: A cron text.
            tz: The zone whose wall clock decides.
            options: Options as when it was made, including `start` and `end`. None removes an
                option. New headers replace all others, except those that name the task of a job.

        Returns:
            The changed schedule.

        Raises:
            UsageError: If something cannot be used; nothing was changed.
            UnknownSchedule: If it does not exist any more.
        """
        given: dict[str, Any] = dict(options)
        bounds: dict[str, Due | None] = {
            name: given.pop(name) for name in ("start", "end") if name in given
        }
        retime = retimed(trigger, every=every, cron=cron, tz=tz, bounds=bounds)
        return self._of.change(self.name, retime, body, given)

    def pause(self) -> Schedule:
        """Stop its firings until `resume`; fire times meanwhile never fire."""
        return self._of.set_paused(self.name, paused=True)

    def resume(self) -> Schedule:
        """Let the schedule fire again, from its next fire time on."""
        return self._of.set_paused(self.name, paused=False)

    def run(self) -> Message:
        """Put its message now, besides its firings, which continue.

        Returns:
            The message; if another message has the key, the message that `on_conflict` leaves in
            the queue.

        Raises:
            KeyTaken: If its key is held, or another message has it that is not replaced.
        """
        return self._of.run(self.name)

    def backfill(self, after: Due, until: Due, *, dry_run: bool = False) -> int:
        """Put a message for each fire time of a span, all due now, with its time in the headers.

        Each call puts all of them, under the same ids `NAME@TIME`, even for fire times that have
        fired or were backfilled before. To put each once, ask for a span without messages, or
        deduplicate by the id in the handler. With a `key` one message waits at a time, so that a
        span puts one.

        Args:
            after: The beginning of the span.
            until: Its end, exclusive.
            dry_run: Put none, and return how many would be.

        Returns:
            How many were put.

        Raises:
            BadTime: If `until` is not later, or more than 100,000 fire times lie between; nothing
                was put.
            KeyTaken: As `run`; some may have been put.
        """
        return self._of.backfill(self.name, after, until, dry_run=dry_run)

    def remove(self) -> bool:
        """Remove the schedule: once this returns, it never fires again. True if it existed.

        Raises:
            StoreTimeout: The schedule may be removed, and another process may have made one of the
                same name since.
        """
        return self._of.remove(self.name)

    def preview(self, count: int = 10, after: Due | None = None) -> list[Preview]:
        """Its next fire times.

        Args:
            count: How many, 1 to 10,000.
            after: The start; None: now.
        """
        return self._of.preview(self.name, count, after)


@dataclass(frozen=True, slots=True)
class ScheduleFigures:
    """The schedules of a queue in figures.

    Attributes:
        count: How many there are.
        soon: How many of them fire within the horizon.
        lag_ms: How long the most overdue of them has been overdue, milliseconds; 0 if none is.
    """

    count: int = 0
    soon: int = 0
    lag_ms: int = 0


class Book:
    """The schedules of one queue and their commands, by name. Safe from any thread.

    Args:
        home: The queue's home.
    """

    def __init__(self, home: QueueHome) -> None:
        self._home = home
        self._clock = home.clock
        self._producer = home.producer
        self._queue = home.register.name
        self._is_local = home.store.is_local
        self._stored = ScheduleTable(home.store, home.register)
        self._firing = ScheduleFiring(home)

    # Reading --------------------------------------------------------------------------------------

    def get(self, name: str) -> Schedule | None:
        """The current state of a schedule; None if there is none. One read."""
        found = self.found([names.label(name, what="schedule name")])
        return self._schedule(found[name]) if name in found else None

    def all(self) -> list[Schedule]:
        """All schedules, by name: a read for each 16th of them."""
        return [self._schedule(one) for one in self.records().values()]

    def readable(self) -> tuple[list[Schedule], list[str]]:
        """All undamaged schedules, by name, and a sentence for each damaged one; as `all`."""
        damaged: dict[str, str] = {}
        found = self.records(damaged)
        return [self._schedule(one) for one in found.values()], [*damaged.values()]

    def names(self) -> list[str]:
        """The names of all schedules, even damaged ones, as `all`, without their definitions."""
        return self._stored.names() if self._has_any() else []

    def the(self, name: str) -> Schedule:
        """The current state of a schedule.

        Raises:
            UnknownSchedule: If there is none.
        """
        found = self.get(name)
        if found is None:
            raise self._gone(name)
        return found

    def count(self) -> int:
        """The number of schedules, as `names`."""
        return len(self.names())

    def outlook(self, horizon_ms: int) -> ScheduleFigures:
        """The schedules in figures: a read of names and times, and of the records of late ones.

        Args:
            horizon_ms: The horizon, milliseconds.
        """
        if not self._has_any():
            return ScheduleFigures()
        times, now_ms = self._stored.times(), self._clock.now_ms()
        nexts = [(next_ms, name) for name, next_ms in times.items() if next_ms is not None]
        late = nsmallest(_LATE_MAX, (one for one in nexts if one[0] < now_ms))
        records = self.found((name for _, name in late), {}).values() if late else ()
        lags_ms = [
            now_ms - one.at_ms(one.next_ms)
            for one in records
            if one.next_ms is not None and one.error is None
        ]
        soon = sum(now_ms <= next_ms <= now_ms + horizon_ms for next_ms, _ in nexts)
        return ScheduleFigures(len(times), soon, max([0, *lags_ms]))

    def records(self, damaged: dict[str, str] | None = None) -> dict[str, StoredSchedule]:
        """The records of all schedules, by name, as `all`.

        Args:
            damaged: Gets a sentence for each damaged schedule; None: the first one is raised.
        """
        found = self._stored.all(damaged) if self._has_any() else {}
        return {name: one for name, one in found.items() if not one.has_ended}

    def record(self, name: str) -> StoredSchedule:
        """The record of a schedule.

        Raises:
            UnknownSchedule: If there is none.
        """
        found = self.found([names.label(name, what="schedule name")]).get(name)
        if found is None:
            raise self._gone(name)
        return found

    def definitions(self) -> list[ScheduleDefinition]:
        """The definitions of all undamaged schedules, by name, as `all`."""
        return [one.definition for one in self.records({}).values()]

    def firings(self, after_ms: int, until_ms: int) -> Iterator[tuple[int, int]]:
        """(due, 1) for each message that the schedules will put, in order except for jitter.

        Some 5 us for each firing, 50 us for the first of each cron. A schedule that is damaged, or
        whose trigger fails, has no firings.

        Args:
            after_ms: Only later dues, epoch milliseconds.
            until_ms: Only dues up to here, included.
        """
        for due_ms in ahead(self.records({}).values(), after_ms, until_ms):
            yield due_ms, 1

    def preview(self, name: str, count: int = 10, after: Due | None = None) -> list[Preview]:
        """See `Schedule.preview`."""
        if type(count) is not int or not 1 <= count <= PREVIEW_MAX:
            raise BadSetting(f"count must be 1 to {PREVIEW_MAX:,}, not {shown(count)}.")
        record = self.record(name)
        now_ms = self._clock.now_ms() if after is None else epoch_ms(after, name="after")
        return previewed(record.definition, now_ms, count, fired=record.fired)

    # Making ---------------------------------------------------------------------------------------

    def make(
        self,
        make: Make | None,
        body: bytes | str,
        *,
        name: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Make a schedule, unless an identical one exists.

        Args:
            make: Its trigger.
            body: The body of its messages.
            name: Its name, 1 to 200 printable characters; by default its trigger as text.
            options: The other options.

        Raises:
            UsageError: If something cannot be used; nothing was written.
            KeyTaken: If another schedule has the name.
            UnknownSchedule: If another process has removed the schedule as soon as it was made.
        """
        if make is None:
            raise UsageError("give the schedule a trigger: when is it to fire?")
        definition = self.drafted(make, body, options, name=name)
        check(definition, definition.made_ms)
        self.open()
        for _ in range(3):
            there = self.found_any([definition.name]).get(definition.name)
            if there is not None and not there.has_ended:
                if not unlike(there.definition, definition, make):
                    return self._schedule(there)
                raise KeyTaken(
                    f"queue {self._queue!r} has another schedule {definition.name!r}, "
                    f"{there.definition.trigger}; change that one, or give this another "
                    f"name."
                )
            if self.write(definition, there):
                return self.the(definition.name)
        raise self._busy(definition.name)

    # Changing -------------------------------------------------------------------------------------

    def change(
        self,
        name: str,
        retime: Retime | None,
        body: bytes | str | None,
        options: Mapping[str, Any],
    ) -> Schedule:
        """See `Schedule.change`."""
        now_ms = self._clock.now_ms()
        content = None if body is None else content_of(body)

        def changed(now: ScheduleDefinition) -> ScheduleDefinition:
            made = now if retime is None else retime(now, now_ms)
            if content is not None:
                made = replace(made, job=replace(made.job, body=content))
            made = applied(made, options)
            own = {one: text for one, text in now.job.headers.items() if one in JOB_HEADERS}
            made = replace(made, job=replace(made.job, headers=own | {**made.job.headers}))
            self._check_priority(made)
            check(made, now_ms)
            return replace(made, declared=now.declared or (now if now.revision else None))

        fired, count = self.record(name).fired, options.get("count")
        if isinstance(count, int) and 0 < count <= fired:
            raise UsageError(
                f"schedule {name!r} has fired {fired:,} times, so its count must be more than "
                f"that; or remove it."
            )
        return self._schedule(self.apply(name, changed))

    def set_paused(self, name: str, *, paused: bool) -> Schedule:
        """See `Schedule.pause` and `Schedule.resume`."""
        return self._schedule(self.apply(name, lambda now: replace(now, paused=paused)))

    def run(self, name: str) -> Message:
        """See `Schedule.run`."""
        record = self.record(name)
        now_ms = self._clock.now_ms()
        firing = PlannedFiring(now_ms, record.previous_ms, now_ms)
        return self._producer.put(**self._arguments(record, firing))

    def backfill(self, name: str, after: Due, until: Due, *, dry_run: bool = False) -> int:
        """See `Schedule.backfill`."""
        record = self.record(name)
        after_ms, until_ms = epoch_ms(after, name="after"), epoch_ms(until, name="until")
        if until_ms <= after_ms:
            raise BadTime(f"until, {iso(until_ms)}, must be later than after, {iso(after_ms)}.")
        firings: list[PlannedFiring] = []
        found, before_ms = record.after(after_ms - 1), None
        while found is not None and found.at_ms < until_ms:
            if len(firings) == BACKFILL_MAX:
                raise BadTime(
                    f"between {iso(after_ms)} and {iso(until_ms)} schedule {name!r} has more than "
                    f"{BACKFILL_MAX:,} fire times; ask for a shorter span."
                )
            firings.append(PlannedFiring(found.at_ms, before_ms, found.at_ms))
            before_ms, found = found.at_ms, record.after(found.at_ms)
        if dry_run:
            return len(firings)
        return self._producer.put_many(self._arguments(record, one) for one in firings)

    def remove(self, name: str) -> bool:
        """See `Schedule.remove`."""
        return self._has_any() and self._stored.remove(names.label(name, what="schedule name"))

    def drop(self) -> None:
        """Remove all schedules, as the queue is dropped."""
        if self._has_any():
            for name in self._stored.names(ended=True):
                self._stored.remove(name)

    # Steps of these, and of `declaring` -----------------------------------------------------------

    def open(self) -> None:
        """Let the queue have schedules from now on.

        Raises:
            UsageError: If it cannot have schedules.
        """
        register = self._home.register
        if names.is_dead_queue(self._queue):
            raise UsageError(f"queue {self._queue!r} can have no schedules; choose another.")
        register.refresh()
        if register.settings.dropped:
            raise UsageError(f"queue {self._queue!r} has been dropped.")
        if not register.settings.schedules_used:
            register.change(settings.use_schedules)

    def found(
        self, asked: Iterable[str], damaged: dict[str, str] | None = None
    ) -> dict[str, StoredSchedule]:
        """The records of these names that have not ended; see `ScheduleTable.read`.

        Raises:
            StoreCorrupt: If one is damaged.
        """
        found = self.found_any(asked, damaged)
        return {name: one for name, one in found.items() if not one.has_ended}

    def found_any(
        self, asked: Iterable[str], damaged: dict[str, str] | None = None
    ) -> dict[str, StoredSchedule]:
        """The records of `found`, and those of ended schedules that code has declared."""
        if not self._has_any():
            return {}
        self._clock.measure(self._home.store)
        return self._stored.read(asked, damaged)

    def drafted(
        self,
        make: Make,
        body: bytes | str,
        options: Mapping[str, Any],
        *,
        name: str | None,
        revision: int = 0,
    ) -> ScheduleDefinition:
        """The schedule for these options, made now; nothing is read or written.

        Raises:
            UsageError: If something cannot be used.
        """
        now_ms = self._clock.now_ms()
        made = draft(make, body, options, now_ms, name=name, revision=revision)
        self._check_priority(made)
        return made

    def write(self, definition: ScheduleDefinition, before: StoredSchedule | None) -> bool:
        """Write a new schedule; False if another process was quicker.

        Args:
            definition: The schedule.
            before: The record of an ended schedule with the same name; None: there is none.
        """
        self._use_lane_of(definition)
        lanes = self._home.register.settings.lanes_agreed
        # Include this very moment, because a trigger may begin with a fire time now.
        made = (
            StoredSchedule(definition, lanes=lanes).anew(definition).aimed(definition.made_ms - 1)
        )
        return self._write(ScheduleWrite(definition.name, before, made))

    def end(self, record: StoredSchedule) -> bool:
        """End a schedule; code of its revision does not remake it. False if it was changed."""
        definition = replace(record.definition, paused=False)
        ended = record.anew(definition)._replace(next_ms=None)
        return self._write(ScheduleWrite(definition.name, record, ended))

    def apply(
        self, name: str, change: Callable[[ScheduleDefinition], ScheduleDefinition]
    ) -> StoredSchedule:
        """Change a schedule; a firing meanwhile is kept. Returns its record.

        Raises:
            UsageError: If there is none, or the changed one cannot be used.
            StoreUnavailable: If it is fired or changed all the time.
        """
        pauses = Pauses(self._clock)
        for _ in range(_TRIES):
            record = self.record(name)
            made = change(record.definition)
            if self._fires_soon(record):
                # Fire the schedule first: another member may be writing jobs that the changed
                # schedule would not have.
                self._firing.fire([name], ahead_ms=_SOON_MS)
                fired = self.record(name)
                if fired.next_ms != record.next_ms:
                    continue
                # The firing did nothing, because the trigger fails say; no member fires it either.
                record = fired
            self._use_lane_of(made)
            after = record.changed(made, self._clock.now_ms())
            if after is record:
                return record
            if self._write(ScheduleWrite(name, record, after)):
                return self.record(name)
            pauses.wait()
        raise self._busy(name)

    def _busy(self, name: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"schedule {name!r} of queue {self._queue!r} could not be changed: it is being fired "
            f"or changed all the time; try again."
        )

    def _write(self, written: ScheduleWrite) -> bool:
        """Announce and write a record; False if it has changed since it was read."""
        begun_us = self._clock.boot_us()
        self._stored.announce(written.name)
        is_done = not self._stored.write([written])
        if self._clock.boot_us() - begun_us > _SLOW_US:
            self._stored.announce(written.name)
        return is_done

    def _fires_soon(self, record: StoredSchedule) -> bool:
        """True if a member may be firing it; never on SQLite, where that is one transaction."""
        begin_ms = record.begin_ms(is_local=self._is_local)
        if self._is_local or begin_ms is None or not record.is_plain:
            return False
        late_ms = self._clock.now_ms() - begin_ms
        # A firing that is long overdue may happen in the changed way.
        return -_SOON_MS <= late_ms <= _OVERDUE_MS

    # Details --------------------------------------------------------------------------------------

    def _use_lane_of(self, definition: ScheduleDefinition) -> None:
        """Let the lanes that its jobs are written to be read."""
        if definition.job.group is None:
            self._home.register.use_band(definition.job.priority)
        else:
            self._home.register.use_groups()

    def _check_priority(self, definition: ScheduleDefinition) -> None:
        bands, priority = self._home.register.layout.bands, definition.job.priority
        if priority >= bands:
            raise BadSetting(
                f"schedule {definition.name!r}: priority must be below the {bands} bands of queue "
                f"{self._queue!r}, not {priority}."
            )

    def _has_any(self) -> bool:
        """True if the queue ever had a schedule, and was not dropped."""
        register = self._home.register
        # Reread the settings: another process may have made the first schedule just now.
        register.refresh(force=not register.settings.schedules_used)
        return register.settings.schedules_used

    def _gone(self, name: str) -> UnknownSchedule:
        return unknown(f"queue {self._queue!r} has no schedule {name!r}", name, self.names())

    def _schedule(self, record: StoredSchedule) -> Schedule:
        definition, next_ms = record.definition, record.next_ms
        job, held_ms = definition.job, definition.job.unique_for_ms
        return Schedule(
            name=definition.name,
            queue=self._queue,
            trigger=definition.trigger,
            state="paused" if definition.paused else "waiting",
            next=None if next_ms is None else moment_of(next_ms),
            previous=None if record.previous_ms is None else moment_of(record.previous_ms),
            fired=record.fired,
            skipped=record.skipped,
            count=definition.count,
            revision=definition.revision,
            changed=definition.declared is not None,
            policies=definition.policies,
            error=record.error,
            body=job.body,
            headers=job.headers,
            priority=job.priority,
            group=job.group,
            key=job.key,
            on_conflict=job.on_conflict,
            unique_for=None if held_ms is None else timedelta(milliseconds=held_ms),
            _of=self,
        )

    def _arguments(self, record: StoredSchedule, firing: PlannedFiring) -> dict[str, Any]:
        job = record.definition.job
        given: dict[str, Any] = {
            "body": job.body,
            "headers": headers_of(record, firing),
            "priority": job.priority,
            "group": job.group,
            "id": id_of(record.definition.name, firing.time_ms),
        }
        if job.key is not None:
            held_ms = job.unique_for_ms
            given |= {
                "key": job.key,
                "on_conflict": job.on_conflict,
                "unique_for": None if held_ms is None else timedelta(milliseconds=held_ms),
            }
        return given


def fired_ahead(one: Schedule, now_ms: int) -> bool:
    """True if a clock that was ahead fired this schedule, which waits until time catches up."""
    if one.state == "paused" or one.previous is None:
        return False
    return epoch_ms(one.previous) > now_ms + AHEAD_MS


def late_ms(one: Schedule, now_ms: int) -> int:
    """How long ago its next message should have been due, milliseconds; 0 if it is not due yet."""
    if one.next is None:
        return 0
    time_ms = epoch_ms(one.next)
    return max(0, now_ms - time_ms - one.policies.late_ms(one.name, time_ms))


def unknown(said: str, name: str, known: Iterable[str]) -> UnknownSchedule:
    """The error of a name that no schedule has.

    Args:
        said: The beginning of the sentence.
        name: The name.
        known: The existing names, one of which may be suggested.
    """
    hint = names.hint(name, known, "")
    return UnknownSchedule(f"{said}; {hint}" if hint else f"{said}, or not any more.")
