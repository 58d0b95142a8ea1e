"""A stored schedule, and the jobs of its next firing. Pure.

```
 next ─┬─ to come ──────────────► a job for each fire time from `next` on, within a quarter second,
       │                          due at its own time          └─ next: the first fire time after it
       └─ missed by a minute ───► `aim` is written first: the time as of which the missed ones fire
```

All writes of a firing follow from the record as it was read: a repeat writes the very same.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shardq.errors import StoreCorrupt, shown
from shardq.model import ids
from shardq.model.message import Row
from shardq.model.times import iso
from shardq.schedules.definition import ScheduleDefinition
from shardq.schedules.origin import NAME_HEADER, PREVIOUS_HEADER, TIME_HEADER
from shardq.schedules.policy import MISSED_MS

if TYPE_CHECKING:
    from shardq.model.shard import Layout
    from shardq.schedules.triggers.trigger import Fire

FIRES_MAX = 100
"""Most fire times of one firing; the next firing, which follows at once, has the rest."""
TOGETHER_MS = 250
"""Fire times this close to the first one of a firing are fired together with the first."""
_MISSED_MAX = 1_000
"""Most missed fire times that are visited one by one; further ones are only counted."""
_BACK_MS = 1_000
_CACHED_CHARS_MAX = 2_000
AHEAD_MS = 5_000
"""A job is put no longer than this before its fire time, if clocks are right."""
LEAD_LOCAL_MS = 100
"""How long before its fire time a schedule fires on SQLite, where consumers notice writes of others
within 13 ms."""
LEAD_MS = 1_500
"""How long before its fire time a schedule fires on Cassandra: longer than consumers look ahead, so
that they deliver on the millisecond."""


class PlannedFiring(NamedTuple):
    """A fire time for which a job is put.

    Attributes:
        time_ms: The fire time, epoch milliseconds, by the trigger, without jitter.
        previous_ms: The last earlier fire time for which a job was put; None for the first.
        at_ms: When its job is due.
        is_missed: True if the fire time was missed by a minute.
    """

    time_ms: int
    previous_ms: int | None
    at_ms: int
    is_missed: bool = False


class _State(msgspec.Struct, omit_defaults=True):
    """The state of a record as JSON; `StoredSchedule` explains the fields."""

    generation: str
    lanes: int = 1
    previous: int | None = None
    fired: int = 0
    skipped: int = 0
    last: str | None = None
    aim: int | None = None
    since: int | None = None
    spent: tuple[int, int] | None = None
    error: str | None = None
    late: tuple[int, ...] = ()
    nonce: str = ""


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(_State)


class StoredSchedule(NamedTuple):
    """A schedule's record.

    Attributes:
        definition: The definition of the schedule.
        next_ms: Its next fire time, epoch milliseconds; None: the schedule is paused, or never
            fires again.
        generation: Drawn anew at each creation, change, pause and resume.
        lanes: The number of lanes over which its jobs are spread.
        previous_ms: The last fire time for which a job was put; None before the first.
        fired: For how many fire times jobs were put.
        skipped: How many fire times its policies skipped.
        last_key: The key of the last job, or of the next job once its put is decided; None: the
            next job does not depend on the last one's end.
        aim_ms: The time as of which missed fire times are fired, epoch milliseconds; None: none is
            missed.
        since_ms: The first fire time that was fired after fire times had last been missed.
        spent: The first and last of the fire times that a clock which was ahead has fired too
            early, and that are not fired again; None: there are none.
        error: The last error of its trigger; None if there is none.
        late_ms: The times to which members have moved jobs of the next firing that were written too
            late for readers, epoch milliseconds. Members move them to the last one.
        stored: The state as it was read; a write is refused if the store has another state.
    """

    definition: ScheduleDefinition
    next_ms: int | None = None
    generation: str = ""
    lanes: int = 1
    previous_ms: int | None = None
    fired: int = 0
    skipped: int = 0
    last_key: str | None = None
    aim_ms: int | None = None
    since_ms: int | None = None
    spent: tuple[int, int] | None = None
    error: str | None = None
    late_ms: tuple[int, ...] = ()
    stored: str = ""

    # As it is stored ------------------------------------------------------------------------------

    def state(self) -> str:
        """The state as JSON: all but the definition and the next fire time.

        No two calls return the same text. Otherwise a refused write would look done if another
        member has written the same firing.
        """
        return _encoder.encode(_State(*self[2:-1], nonce=secrets.token_hex(8))).decode()

    @classmethod
    def read(cls, definition: str, state: str, next_ms: int | None, whose: str) -> StoredSchedule:
        """A record from its columns.

        Args:
            definition: JSON.
            state: JSON.
            next_ms: Its next fire time.
            whose: The schedule, for the error.

        Raises:
            StoreCorrupt: If it is damaged.
        """
        made = _definition(definition, whose)
        try:
            held = _decoder.decode(state)
        except (msgspec.DecodeError, ValueError) as error:
            raise StoreCorrupt(
                f"{whose} is damaged: {shown(state)}; remove the schedule, and make it again."
            ) from error
        *fields, _nonce = msgspec.structs.astuple(held)
        return cls(made, next_ms, *fields)._replace(stored=state)

    def anew(self, definition: ScheduleDefinition) -> StoredSchedule:
        """The same state under another definition, as a new generation."""
        generation = secrets.token_hex(8)
        return self._replace(
            definition=definition, generation=generation, aim_ms=None, error=None, late_ms=()
        )

    @property
    def has_ended(self) -> bool:
        """True if it never fires again."""
        return self.next_ms is None and not self.definition.paused

    # Fire times -----------------------------------------------------------------------------------

    @property
    def is_spent(self) -> bool:
        """True if it has fired as often as it may."""
        count = self.definition.count
        return count is not None and self.fired >= count

    @property
    def is_plain(self) -> bool:
        """True if its jobs are put regardless of the messages that exist."""
        definition = self.definition
        return definition.job.key is None and definition.policies.overlap in ("allow", "queue")

    def lead_ms(self, *, is_local: bool) -> int:
        """How long before a fire time the schedule is fired.

        0 if the firing depends on the messages that exist at the fire time.
        """
        if not self.is_plain:
            return 0
        return LEAD_LOCAL_MS if is_local else LEAD_MS

    def begin_ms(self, *, is_local: bool) -> int | None:
        """When its next firing begins, epoch milliseconds; None: there is none."""
        if self.next_ms is None:
            return None
        return self.at_ms(self.next_ms) - self.lead_ms(is_local=is_local)

    def at_ms(self, time_ms: int) -> int:
        """When the job of a fire time is due, epoch milliseconds."""
        definition = self.definition
        return time_ms + definition.policies.late_ms(definition.name, time_ms)

    def after(self, time_ms: int) -> Fire | None:
        """The first fire time after a time.

        Raises:
            TriggerError: If a user's trigger fails.
        """
        policies = self.definition.policies
        return self.definition.trigger.after(time_ms, twice=policies.twice, gap=policies.gap)

    def times_between(self, from_ms: int, until_ms: int) -> int:
        """How many fire times there are from one time to another, exclusive."""
        twice, gap = self.definition.policies.of_hours
        return self.definition.trigger.count(from_ms - 1, until_ms - 1, twice=twice, gap=gap)

    def aimed(self, after_ms: int) -> StoredSchedule:
        """The record whose next fire time is the first unfired one after a time."""
        found = None if self.is_spent else self.after(after_ms)
        spent = self.spent
        if spent is not None and found is not None:
            if spent[0] <= found.at_ms <= spent[1]:
                found = self.after(spent[1])
            if found is not None and found.at_ms > spent[1]:
                spent = None
        return self._replace(next_ms=None if found is None else found.at_ms, spent=spent)

    def changed(self, definition: ScheduleDefinition, now_ms: int) -> StoredSchedule:
        """The record under another definition; the next fire time stays if the trigger stays.

        A record that was fired by a clock which was ahead follows the clock from now on; its past
        firings do not fire again.
        """
        was, made = self.definition, self.anew(definition)
        if definition.paused:
            return made._replace(next_ms=None)
        if (last_ms := self.previous_ms) is not None and last_ms > now_ms + AHEAD_MS:
            is_same = definition.trigger == was.trigger
            spent = (self.since_ms or 0, last_ms) if is_same else None
            return made._replace(previous_ms=None, since_ms=None, spent=spent).aimed(now_ms)
        is_kept = definition.trigger == was.trigger and not (was.paused or made.is_spent)
        if is_kept and definition.policies.of_hours == was.policies.of_hours:
            # A command that is made again must not fire anew what is written already.
            return self if definition == was and self.error is None else made
        return made.aimed(max(now_ms, last_ms or 0))

    # Firing ---------------------------------------------------------------------------------------

    def is_missed(self, now_ms: int) -> bool:
        """True if its next fire time was missed by a minute, and `aim_ms` is not set yet."""
        next_ms = self.next_ms
        return (
            next_ms is not None and self.aim_ms is None and self.at_ms(next_ms) < now_ms - MISSED_MS
        )

    def aimed_at(self, now_ms: int) -> StoredSchedule:
        """The record with `aim_ms` set to now, so that missed fire times are fired."""
        return self._replace(aim_ms=now_ms, since_ms=None)

    def moved_to(self, now_ms: int) -> StoredSchedule:
        """The record by which late jobs of the next firing are moved to now."""
        return self._replace(late_ms=(*self.late_ms, now_ms))

    def is_moved_late(self, layout: Layout, now_ms: int) -> bool:
        """True if a job cannot be moved to the last of `late_ms`, because it would be late too."""
        return not self.late_ms or layout.is_late(layout.minute_of(self.late_ms[-1]), now_ms)

    def fires_as(self, other: StoredSchedule) -> bool:
        """True if both are the same record, apart from the times to which late jobs are moved."""
        return self == other._replace(late_ms=self.late_ms, stored=self.stored)

    def fire(self) -> tuple[list[PlannedFiring], StoredSchedule]:
        """The jobs of the next firing, and the record after it.

        Returns:
            The fire times of the jobs to put, first ones first. At most `FIRES_MAX`; only one if
            its job depends on existing messages, because each such decision is stored.

        Raises:
            TriggerError: If a user's trigger fails.
        """
        firings: list[PlannedFiring] = []
        count = FIRES_MAX if self.is_plain else 1
        made, aim_ms = self._replace(error=None, aim_ms=None, late_ms=()), self.aim_ms
        until_ms = None
        if aim_ms is not None:
            made = made.make_up(firings, aim_ms - MISSED_MS, aim_ms, count)
            until_ms = aim_ms + TOGETHER_MS
        while (time_ms := made.next_ms) is not None and len(firings) < count:
            at_ms = made.at_ms(time_ms)
            if until_ms is None:
                until_ms = at_ms + TOGETHER_MS
            if at_ms >= until_ms:
                break
            if aim_ms is not None:
                # Give each job another due, so that a group has them in order.
                at_ms = max(at_ms, aim_ms + len(firings))
            made = made.put_next(firings, at_ms)
        if aim_ms is None:
            return firings, made
        if made.since_ms is None:
            made = made._replace(since_ms=firings[0].time_ms if firings else made.next_ms)
        if made.next_ms is not None and made.at_ms(made.next_ms) < aim_ms:
            made = made._replace(aim_ms=aim_ms + len(firings))
        return firings, made

    def put_next(
        self, firings: list[PlannedFiring], at_ms: int, *, is_missed: bool = False
    ) -> StoredSchedule:
        """Add the next fire time to those of the jobs to put, due at a time."""
        time_ms = self.next_ms
        if time_ms is None:
            return self
        firings.append(PlannedFiring(time_ms, self.previous_ms, at_ms, is_missed))
        return self._replace(previous_ms=time_ms, fired=self.fired + 1).aimed(time_ms)

    def without(self, firing: PlannedFiring, after: StoredSchedule) -> StoredSchedule:
        """The record after its next firing, if this firing is skipped.

        Args:
            firing: The firing.
            after: The record after the firing, if its job is put.
        """
        after = after._replace(
            fired=self.fired, skipped=after.skipped + 1, previous_ms=self.previous_ms
        )
        # No next fire time: this job would have reached the schedule's count. The job is skipped
        # and does not count, so the schedule goes on.
        is_last = after.next_ms is None and not after.is_spent
        return after.aimed(firing.time_ms) if is_last else after

    def make_up(
        self, firings: list[PlannedFiring], missed_ms: int, aim_ms: int, count: int
    ) -> StoredSchedule:
        """Skip or fire missed fire times, by the policy `missed`."""
        policies = self.definition.policies
        window_ms, made = policies.window_ms, self
        first_ms = aim_ms - window_ms if window_ms is not None else None
        passed, last_ms, has_leapt = 0, 0, False
        while (time_ms := made.next_ms) is not None and (at_ms := made.at_ms(time_ms)) < missed_ms:
            is_of_use = first_ms is None or at_ms >= first_ms
            if policies.missed == "all" and is_of_use:
                if len(firings) >= count:
                    break
                made = made.put_next(firings, aim_ms + len(firings), is_missed=True)
                continue
            if passed == _MISSED_MAX and not has_leapt:
                made, has_leapt = made.leap(missed_ms, first_ms), True
                passed += made.times_between(time_ms, made.next_ms or missed_ms)
                continue
            passed, last_ms = passed + 1, time_ms
            made = made.aimed(time_ms)
        if policies.missed != "once" or not passed:
            return made._replace(skipped=made.skipped + passed)
        if first_ms is not None and made.at_ms(last_ms) < first_ms:
            return made._replace(skipped=made.skipped + passed)
        made = made._replace(skipped=made.skipped + passed - 1, next_ms=last_ms)
        return made.put_next(firings, aim_ms + len(firings), is_missed=True)

    def leap(self, missed_ms: int, first_ms: int | None) -> StoredSchedule:
        """Skip to shortly before fire times that are not missed, or that the window covers."""
        policies = self.definition.policies
        from_ms = self.next_ms or 0
        if policies.missed == "all" and first_ms is not None:
            return self.aimed(max(first_ms - policies.latest_ms, from_ms) - 1)
        latest_ms, back_ms = missed_ms - policies.latest_ms, _BACK_MS
        while latest_ms - back_ms > from_ms:
            made = self.aimed(latest_ms - back_ms)
            if made.next_ms is not None and made.at_ms(made.next_ms) < missed_ms:
                return made
            back_ms *= 2
        return self

    def job(self, firing: PlannedFiring, layout: Layout, headers: str) -> Row:
        """The row of a firing's job.

        Args:
            firing: The firing.
            layout: The queue's layout.
            headers: The job's headers, as they are stored.
        """
        definition = self.definition
        job, name = definition.job, id_of(definition.name, firing.time_ms)
        if job.group is None:
            lane = replace(layout, lanes_written=self.lanes).named_lane(name, job.priority)
        else:
            lane = layout.group_lane(job.group)
        since_ms = self.at_ms(firing.time_ms)
        is_late = since_ms != firing.at_ms and not firing.is_missed
        return Row(
            layout.shard(firing.at_ms, lane),
            firing.at_ms,
            # The id's time is the due, so that a purge deletes the jobs that were due by then.
            ids.named(firing.at_ms * 1_000, f"{layout.queue}/{self.generation}/{name}"),
            job.body,
            headers,
            name=name,
            group=job.group,
            since_ms=since_ms if is_late else None,
            priority=0 if job.group is None else job.priority,
        )


def _definition(text: str, whose: str) -> ScheduleDefinition:
    """A definition from its JSON, cached: it is read with each firing and seldom changes."""
    return (
        _cached(text, whose)
        if len(text) <= _CACHED_CHARS_MAX
        else ScheduleDefinition.read(text, whose)
    )


@lru_cache(maxsize=16_384)
def _cached(text: str, whose: str) -> ScheduleDefinition:
    return ScheduleDefinition.read(text, whose)


def headers_of(record: StoredSchedule, firing: PlannedFiring) -> dict[str, str]:
    """The headers of a firing's job: the schedule's own, and the firing."""
    definition = record.definition
    headers = {
        **definition.job.headers,
        NAME_HEADER: definition.name,
        TIME_HEADER: iso(firing.time_ms),
    }
    if firing.previous_ms is not None:
        headers[PREVIOUS_HEADER] = iso(firing.previous_ms)
    return headers


def id_of(name: str, time_ms: int) -> str:
    """The id of the job of a fire time.

    >>> id_of("nightly", 0)
    'nightly@1970-01-01T00:00:00.000Z'
    """
    return f"{name}@{iso(time_ms)}"
