"""The schedules of one queue, as their users hold them.

```
 made, declared ──► waiting ──► firing ──► waiting .. ──► done: it is off the list
                      └─ pause ─► paused ─ resume ─┘
```
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, Unpack

from shardq.errors import (
    BadSetting,
    BadTime,
    KeyTaken,
    StoreUnavailable,
    UnknownSchedule,
    UsageError,
    begun,
    not_pickled,
    shown,
)
from shardq.model import names
from shardq.model.message import JOB_HEADERS
from shardq.model.times import due_ms as epoch_ms
from shardq.model.times import iso, moment_of
from shardq.schedules.ahead import ahead, ahead_by
from shardq.schedules.definition import Definition
from shardq.schedules.listing import Listing
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
from shardq.schedules.past import past_firings
from shardq.schedules.policy import Policies
from shardq.schedules.tick import PlannedFiring, Tick, headers_of, id_of
from shardq.schedules.ticks import Ticks
from shardq.schedules.triggers.trigger import Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, tzinfo

    from apscheduler.triggers.base import BaseTrigger

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Message
    from shardq.model.times import Due, Duration
    from shardq.records.ledger import Ledger
    from shardq.schedules.options import Make, Retime
    from shardq.schedules.past import PastFiring
    from shardq.schedules.ticks import Found

State: TypeAlias = Literal["waiting", "firing", "paused"]

PREVIEW_MAX = 10_000
BACKFILL_MAX = 100_000
LATE_MS = 60_000
"""A schedule whose message should have been there for longer is overdue."""


@dataclass(frozen=True, slots=True, repr=False)
class Schedule:
    """A schedule as it was read, and what can be done to it; that holds in every process at once.

    Attributes:
        name: Its name, unique in its queue.
        queue: The name of the queue that it puts into.
        trigger: When it fires.
        state: `waiting` for its next fire time, `firing`, or `paused`.
        next: Its next fire time, UTC; None where it is paused, or never fires again.
        previous: The last fire time for which it has put a message, UTC; None before the first.
        fired: For how many fire times it has put messages.
        skipped: For how many it has not, by its policies.
        count: How often it fires; None: for ever.
        revision: Of the code that declares it; 0 of one that was made at run time.
        changed: Whether it was changed at run time since code has declared it.
        policies: What it does when things do not go by the clock.
        error: Why its trigger failed last; None where it has not.
        body: What it puts.
        headers: Of what it puts, but for those that say which firing it is.
        priority: Likewise.
        group: Likewise; None: none.
        key: Likewise; None: none.
        on_conflict: With a key: what it does where a message has it.
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
        """Change it: when this returns, nothing fires any more as it was before.

        What is not given stays: the zone, start and end too where only the times are changed.

        What is due within 1.75 s, on SQLite 0.15 s, may be put already.

        Args:
            body: What it puts.
            trigger: When it fires; or instead:
            every: An interval.
            cron: A cron text.
            tz: The zone whose wall clock decides.
            options: As when it was made, `start` and `end` among them. None takes one back. Headers
                take the place of all others, but for those that name the task of a job.

        Returns:
            It as it is now.

        Raises:
            UsageError: If something cannot be used; nothing was changed.
            UnknownSchedule: If it is gone.
        """
        given: dict[str, Any] = dict(options)
        bounds: dict[str, Due | None] = {
            name: given.pop(name) for name in ("start", "end") if name in given
        }
        retime = retimed(trigger, every=every, cron=cron, tz=tz, bounds=bounds)
        return self._of.change(self.name, retime, body, given)

    def pause(self) -> Schedule:
        """Let it not fire until `resume`; fire times meanwhile are passed by."""
        return self._of.set_paused(self.name, paused=True)

    def resume(self) -> Schedule:
        """Let it fire again, from its next fire time on."""
        return self._of.set_paused(self.name, paused=False)

    def run(self) -> Message:
        """Put its message now, beside what it fires, which goes on as it would.

        Returns:
            The message; with a key that another has, what its `on_conflict` leaves there.

        Raises:
            KeyTaken: If its key is held, or another message has it that is not to be replaced.
        """
        return self._of.run(self.name)

    def backfill(self, after: Due, until: Due, *, dry_run: bool = False) -> int:
        """Put a message for each fire time of a span, all due now, with its time in the headers.

        Each call puts them again, under the same ids `NAME@TIME`, and so those as well for which it
        has fired: whoever needs each once asks for what is missing alone, or has a handler that
        goes by the id. Of a schedule with a `key` one waits at a time: of a span one is put.

        Args:
            after: The span's begin.
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
        """Remove it: when this returns, it never fires again. Returns whether it was there."""
        return self._of.remove(self.name)

    def preview(self, count: int = 10, after: Due | None = None) -> list[Preview]:
        """Its next fire times.

        Args:
            count: How many, 1 to 10,000.
            after: From when on; None: now.
        """
        return self._of.preview(self.name, count, after)


class Book:
    """The schedules of one queue, and all that is done to them, by name. From any thread.

    Args:
        home: The queue's.

    Attributes:
        listing: The list that is kept beside the ticks.
    """

    def __init__(self, home: QueueHome) -> None:
        self._home = home
        self._clock = home.clock
        self._producer = home.producer
        self._queue = home.register.name
        self.listing: Listing = Listing(home.store, home.clock, self._queue)
        self._ticks: Ticks | None = None

    # Reading --------------------------------------------------------------------------------------

    def get(self, name: str) -> Schedule | None:
        """A schedule as it is now; None if there is none. Three or four reads."""
        found = self._read([names.label(name, what="schedule name")])
        return self._schedule(name, found[name]) if name in found else None

    def all(self) -> list[Schedule]:
        """All schedules, by name: a few reads for each 16th of them."""
        listed = self.names()
        found = self._read(listed)
        return [self._schedule(name, found[name]) for name in listed if name in found]

    def readable(self) -> tuple[list[Schedule], list[str]]:
        """All that are not damaged, by name, and a sentence of each that is; as `all`."""
        damaged: dict[str, str] = {}
        found = self._read(self.names(), damaged)
        return [self._schedule(name, found[name]) for name in sorted(found)], [*damaged.values()]

    def names(self) -> list[str]:
        """The names of all schedules: one read, of the list alone."""
        return [] if self.ticks() is None else self.listing.names()

    def the(self, name: str) -> Schedule:
        """A schedule as it is now.

        Raises:
            UnknownSchedule: If there is none.
        """
        found = self.get(name)
        if found is None:
            raise self._gone(name)
        return found

    def count(self) -> int:
        """How many there are: one read, of the list alone."""
        return len(self.names())

    def definitions(self) -> list[Definition]:
        """What each is that is not damaged, by name, as the list has it: one read."""
        return [] if self.ticks() is None else self.listing.definitions()

    def firings(self, after_ms: int, until_ms: int) -> Iterator[tuple[int, int]]:
        """(due, 1) of each message that they will put, first ones first but for their jitter.

        Some 5 us for each firing, 50 us for the first of each cron. One that is damaged, or whose
        trigger fails, has none: it does not fire.

        Args:
            after_ms: Of those that are due later, epoch milliseconds.
            until_ms: Of those that are due no later.
        """
        ticks = [found.tick for found in self._read(self.names(), {}).values()]
        for due_ms in ahead(ticks, after_ms, until_ms):
            yield due_ms, 1

    def firings_by(self, stretches: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """(begin of a stretch, messages that a schedule will put in it), as `firings`.

        Some 5 us for each stretch of an interval, 0.1 ms for each day of a cron.

        Args:
            stretches: (begin, end) in epoch milliseconds, one after the other.
        """
        ticks = [found.tick for found in self._read(self.names(), {}).values()]
        return ahead_by(ticks, stretches)

    def preview(self, name: str, count: int = 10, after: Due | None = None) -> list[Preview]:
        """See `Schedule.preview`."""
        if type(count) is not int or not 1 <= count <= PREVIEW_MAX:
            raise BadSetting(f"count must be 1 to {PREVIEW_MAX:,}, not {shown(count)}.")
        tick = self._tick(name)
        now_ms = self._clock.now_ms() if after is None else epoch_ms(after, name="after")
        return previewed(tick.definition, now_ms, count, fired=tick.fired)

    def past(self, name: str, ledger: Ledger, count: int) -> list[PastFiring]:
        """What became of the last firings of a schedule, the last one first.

        Args:
            name: Its name.
            ledger: The queue's.
            count: How many at most.

        Raises:
            UnknownSchedule: If there is none.
            HistoryOff: If the queue keeps no history.
        """
        return past_firings(self._tick(name), ledger, self._clock.now_ms(), count)

    # Making ---------------------------------------------------------------------------------------

    def make(
        self,
        make: Make | None,
        body: bytes | str,
        *,
        name: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Make a schedule, unless the very same is there.

        Args:
            make: Its trigger.
            body: What it puts.
            name: Its name, 1 to 200 printable characters; as its trigger reads, unless given.
            options: What else was chosen.

        Raises:
            UsageError: If something cannot be used; nothing was written.
            KeyTaken: If another schedule has the name.
            UnknownSchedule: If it was made, and another process has removed it at once.
        """
        if make is None:
            raise UsageError("give the schedule a trigger: when is it to fire?")
        definition = self.drafted(make, body, options, name=name)
        check(definition, definition.made_ms)
        self.open()
        for _ in range(3):
            present = self.present(definition.name)
            if present is not None and present.tick.next_ms is not None:
                there = present.tick.definition
                if not unlike(there, definition, make):
                    return self._schedule(definition.name, present)
                raise KeyTaken(
                    f"queue {self._queue!r} has another schedule {definition.name!r}, "
                    f"{there.trigger}; change that one, or give this another "
                    f"name."
                )
            if self.write(definition):
                break
        return self._now(definition.name)

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

        def changed(now: Definition) -> Definition:
            made = now if retime is None else retime(now, now_ms)
            if content is not None:
                made = replace(made, job=replace(made.job, body=content))
            made = applied(made, options)
            own = {one: text for one, text in now.job.headers.items() if one in JOB_HEADERS}
            made = replace(made, job=replace(made.job, headers=own | {**made.job.headers}))
            self._check_priority(made)
            check(made, now_ms)
            return replace(made, declared=now.declared or (now if now.revision else None))

        fired, count = self._tick(name).fired, options.get("count")
        if isinstance(count, int) and 0 < count <= fired:
            raise UsageError(
                f"schedule {name!r} has fired {fired:,} times, so its count must be more than "
                f"that; or remove it."
            )
        self.apply(name, changed)
        return self._now(name)

    def set_paused(self, name: str, *, paused: bool) -> Schedule:
        """See `Schedule.pause` and `Schedule.resume`."""
        self.apply(name, lambda now: replace(now, paused=paused))
        return self._now(name)

    def run(self, name: str) -> Message:
        """See `Schedule.run`."""
        tick = self._tick(name)
        now_ms = self._clock.now_ms()
        firing = PlannedFiring(now_ms, tick.previous_ms, now_ms)
        return self._producer.put(**self._arguments(tick, firing))

    def backfill(self, name: str, after: Due, until: Due, *, dry_run: bool = False) -> int:
        """See `Schedule.backfill`."""
        tick = self._tick(name)
        after_ms, until_ms = epoch_ms(after, name="after"), epoch_ms(until, name="until")
        if until_ms <= after_ms:
            raise BadTime(f"until, {iso(until_ms)}, must be later than after, {iso(after_ms)}.")
        firings: list[PlannedFiring] = []
        found, before_ms = tick.after(after_ms - 1), None
        while found is not None and found.at_ms < until_ms:
            if len(firings) == BACKFILL_MAX:
                raise BadTime(
                    f"between {iso(after_ms)} and {iso(until_ms)} schedule {name!r} has more than "
                    f"{BACKFILL_MAX:,} fire times; ask for a shorter span."
                )
            firings.append(PlannedFiring(found.at_ms, before_ms, found.at_ms))
            before_ms, found = found.at_ms, tick.after(found.at_ms)
        if dry_run:
            return len(firings)
        return self._producer.put_many(self._arguments(tick, one) for one in firings)

    def remove(self, name: str) -> bool:
        """See `Schedule.remove`."""
        ticks = self.ticks()
        if ticks is None:
            return False
        # Of one that is made anew meanwhile nothing is removed.
        version = self.listing.removal(names.label(name, what="schedule name"))
        is_there, row = ticks.has(name), ticks.find(name)
        if version is not None:
            # First: a process that dies here is followed by whoever minds the list.
            self.listing.remove(name, version)
        if row is None and not is_there:
            return False
        is_done = ticks.cancel(name, row)
        if (left := self.left_over(name)) is not None:
            self.listing.remove(name, left)
        return is_done

    def left_over(self, name: str) -> int | None:
        """The version by which to remove what a change has listed that found its tick still there.

        To be asked once the tick is cancelled. None: nothing is left, or it was made anew.
        """
        if not self.listing.names([name]) or self.found([name], {}):
            return None
        return self.listing.removal(name)

    def drop(self) -> None:
        """Remove all, as the queue is dropped."""
        if (ticks := self.ticks()) is None:
            return
        for name in self.listing.noted():
            self.remove(name)
        ticks.drop()

    def close(self) -> None:
        """Store what is counted."""
        if self._ticks is not None:
            self._ticks.close()

    # Steps of these, and of `declaring` -----------------------------------------------------------

    def ticks(self) -> Ticks | None:
        """The ticks of the queue, where it has ever had schedules."""
        if self._ticks is None or self._ticks.register.settings.dropped:
            self._ticks = Ticks.found(self._home)
        return self._ticks

    def open(self) -> Ticks:
        """The ticks of the queue, which has schedules from now on.

        Raises:
            UsageError: If it can have none.
        """
        if names.is_schedules_queue(self._queue) or names.is_dead_queue(self._queue):
            raise UsageError(f"queue {self._queue!r} can have no schedules; choose another.")
        if self.ticks() is None:
            self._ticks = Ticks.made(self._home)
        if self._ticks is None:
            raise UsageError(f"queue {self._queue!r} has been dropped.")
        return self._ticks

    def found(
        self, asked: Iterable[str], damaged: dict[str, str] | None = None
    ) -> dict[str, Found]:
        """Those of these names that are there, also those that only end: a few reads.

        Args:
            asked: Names.
            damaged: Given a sentence of each that is damaged; None: the first one raises.

        Raises:
            StoreCorrupt: If one is damaged.
        """
        ticks, asked = self.ticks(), list(asked)
        if ticks is None or not asked:
            return {}
        self._clock.measure(self._home.store)
        return ticks.read(asked, damaged)

    def present(self, name: str) -> Found | None:
        """Find one as `found` does, and put its tick again where that is lost.

        What a removal that was begun has left of it is removed.
        """
        found = self.found([name]).get(name) or self._put_again(name)
        if found is None or found.tick.next_ms is None or self.listing.names([name]):
            return found
        ticks = self.open()
        if (row := ticks.find(name)) is not None:
            ticks.cancel(name, row)
        return None

    def drafted(
        self,
        make: Make,
        body: bytes | str,
        options: Mapping[str, Any],
        *,
        name: str | None,
        revision: int = 0,
    ) -> Definition:
        """What a schedule would be, made now; nothing is read or written.

        Raises:
            UsageError: If something cannot be used.
        """
        now_ms = self._clock.now_ms()
        made = draft(make, body, options, now_ms, name=name, revision=revision)
        self._check_priority(made)
        return made

    def write(self, definition: Definition) -> bool:
        """Write a schedule that is not there; False where another was quicker."""
        ticks = self.open()
        self._use_lane_of(definition)
        listed = self.listing.read([definition.name]).get(definition.name)
        made = replace(definition, version=self.listing.next_version(listed))
        self.listing.write(made)
        try:
            with begun("the schedule is listed"):
                # A fire time that comes right now counts where the trigger begins with it.
                ticks.put(Tick(made, None).aimed(made.made_ms - 1))
        except KeyTaken:
            self._relist(made.name)
            return False
        if not self.listing.names([made.name]):
            # Who removed the one before has taken this for what that left.
            listed = self.listing.read([made.name]).get(made.name)
            self.listing.write(replace(made, version=self.listing.next_version(listed)))
        return True

    def apply(self, name: str, change: Callable[[Definition], Definition]) -> None:
        """Change a schedule, its list first; whatever fires meanwhile is heeded.

        Raises:
            UsageError: If there is none, or what comes of it cannot be used.
            StoreUnavailable: If it is fired all the time, or its tick is lost.
        """
        ticks = self.open()
        version = self.listing.next_version(self.listing.read([name]).get(name))

        def changed(tick: Tick) -> Tick:
            made = replace(change(tick.definition), version=version)
            now_ms = self._clock.now_ms()
            new = tick.of(made)
            was = tick.definition
            is_kept = made.trigger == was.trigger and not (was.paused or new.is_spent)
            if is_kept and made.policies.of_hours == was.policies.of_hours:
                return new
            return new.aimed(max(now_ms, tick.previous_ms or 0))

        # Whether it can be, before it is listed.
        wanted = changed(self._tick(name)).definition
        self._use_lane_of(wanted)
        self.listing.write(wanted)
        with begun("the change is listed"):
            made = ticks.change(name, changed)
        if made is None:
            if ticks.is_lost(name):
                # It stays on the list, from which its tick is put again.
                raise StoreUnavailable(
                    f"schedule {name!r} of queue {self._queue!r} has lost its tick, which is put "
                    f"again within a minute; try again then."
                )
            self.listing.withdraw(name, version)
            raise self._gone(name)
        listed = self.listing.read([name]).get(name)
        if listed is None or listed.written == version:
            return
        # Another command has listed its own, and was carried out before this one.
        if made.next_ms is None:
            self.listing.end(replace(made.definition, version=listed.written))
        else:
            self._relist(name)

    # Details --------------------------------------------------------------------------------------

    def _use_lane_of(self, definition: Definition) -> None:
        """Let the lanes that its jobs are written to be read."""
        if definition.job.group is None:
            self._home.register.use_band(definition.job.priority)
        else:
            self._home.register.use_groups()

    def _check_priority(self, definition: Definition) -> None:
        bands, priority = self._home.register.layout.bands, definition.job.priority
        if priority >= bands:
            raise BadSetting(
                f"schedule {definition.name!r}: priority must be below the {bands} bands of queue "
                f"{self._queue!r}, not {priority}."
            )

    def _read(self, asked: list[str], damaged: dict[str, str] | None = None) -> dict[str, Found]:
        """Those of these names that are there, and are to fire."""
        found = self.found(asked, damaged)
        return {name: one for name, one in found.items() if one.tick.next_ms is not None}

    def _now(self, name: str) -> Schedule:
        found = self._read([name]).get(name)
        if found is None:
            raise self._gone(name)
        return self._schedule(name, found)

    def _tick(self, name: str) -> Tick:
        found = self.found([names.label(name, what="schedule name")]).get(name)
        found = found or self._put_again(name)
        if found is None or found.tick.next_ms is None:
            raise self._gone(name)
        return found.tick

    def _put_again(self, name: str) -> Found | None:
        """Put the tick again of a schedule that is on the list, and has none."""
        ticks = self.ticks()
        listed = None if ticks is None else self.listing.read([name]).get(name)
        if ticks is None or listed is None or listed.definition is None:
            return None
        with suppress(KeyTaken):
            ticks.put_again(listed.definition)
        found = self.found([name]).get(name)
        if found is None or not found.tick.is_again or self.listing.names([name]):
            return found
        # A change had listed it once it was removed, and has found none.
        if (row := ticks.find(name)) is not None:
            ticks.cancel(name, row)
        return None

    def _gone(self, name: str) -> UnknownSchedule:
        return unknown(f"queue {self._queue!r} has no schedule {name!r}", name, self.names())

    def _schedule(self, name: str, found: Found) -> Schedule:
        tick, definition = found.tick, found.tick.definition
        job, held_ms = definition.job, definition.job.unique_for_ms
        state: State = "firing" if found.is_firing else "waiting"
        paused = definition.paused
        next_ms = None if paused else tick.next_ms
        return Schedule(
            name=name,
            queue=self._queue,
            trigger=definition.trigger,
            state="paused" if paused else state,
            next=None if next_ms is None else moment_of(next_ms),
            previous=None if tick.previous_ms is None else moment_of(tick.previous_ms),
            fired=tick.fired,
            skipped=tick.skipped,
            count=definition.count,
            revision=definition.revision,
            changed=definition.declared is not None,
            policies=definition.policies,
            error=found.error,
            body=job.body,
            headers=job.headers,
            priority=job.priority,
            group=job.group,
            key=job.key,
            on_conflict=job.on_conflict,
            unique_for=None if held_ms is None else timedelta(milliseconds=held_ms),
            _of=self,
        )

    def _relist(self, name: str) -> None:
        """List what the tick of a name is: a change of it that was refused has listed another."""
        found = self._read([name]).get(name)
        if found is None:
            return
        listed = self.listing.read([name]).get(name)
        # Not one that has been removed, or has ended, meanwhile.
        if listed is not None and listed.definition is not None:
            # Only in the place of this: a removal that comes before it is written has a later one.
            self.listing.write(replace(found.tick.definition, version=listed.written + 1))

    def _arguments(self, tick: Tick, firing: PlannedFiring) -> dict[str, Any]:
        job = tick.definition.job
        given: dict[str, Any] = {
            "body": job.body,
            "headers": headers_of(tick, firing),
            "priority": job.priority,
            "group": job.group,
            "id": id_of(tick.definition.name, firing.time_ms),
        }
        if job.key is not None:
            held_ms = job.unique_for_ms
            given |= {
                "key": job.key,
                "on_conflict": job.on_conflict,
                "unique_for": None if held_ms is None else timedelta(milliseconds=held_ms),
            }
        return given


def late_ms(one: Schedule, now_ms: int) -> int:
    """How long ago its next message should have been due, milliseconds; 0 if that is to come."""
    if one.next is None:
        return 0
    time_ms = epoch_ms(one.next)
    return max(0, now_ms - time_ms - one.policies.late_ms(one.name, time_ms))


def unknown(said: str, name: str, known: Iterable[str]) -> UnknownSchedule:
    """The error of a name that no schedule has.

    Args:
        said: What it is, without its end.
        name: The name.
        known: Those that there are, of which one may be meant.
    """
    hint = names.hint(name, known, "")
    return UnknownSchedule(f"{said}; {hint}" if hint else f"{said}, or not any more.")
