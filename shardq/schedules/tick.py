"""A tick: the message that stands for a schedule, and what its firing comes to. Pure.

```
 tick ─ due LEAD before its fire time ─► jobs of all fire times up to then, each due at its own
        └─ moves on ─► due LEAD before the next one; without one it comes once more, and ends
```

All that a firing writes follows from the tick's row: whoever repeats it writes the very same.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.errors import StoreCorrupt, shown
from shardq.model.times import iso
from shardq.schedules.definition import Definition
from shardq.schedules.firing import NAME_HEADER, PREVIOUS_HEADER, TIME_HEADER
from shardq.schedules.policy import MISSED_MS

if TYPE_CHECKING:
    from shardq.schedules.triggers.trigger import Fire

_PAUSED_MS = 5 * 365 * 86_400_000
"""The tick of a paused schedule waits this far ahead; then it is put there again."""
FIRES_MAX = 100
"""Fire times that one firing puts jobs of; the others follow at once, in the next."""
_MISSED_MAX = 1_000
"""Missed fire times that are looked at; further ones are only counted."""
_BACK_MS = 1_000
_CACHED_CHARS_MAX = 2_000
_encoded = json.JSONEncoder().encode


class Lead(NamedTuple):
    """How long before its fire time a tick is due.

    Attributes:
        ms: At least so long, milliseconds.
        grid_ms: It is due at a multiple of this: those of about the same time are fired together.
    """

    ms: int
    grid_ms: int


_EXACT = Lead(0, 1)
_LOCAL = Lead(100, 50)
"""On SQLite consumers notice what others write within 13 ms."""
_ELSEWHERE = Lead(1_500, 250)
"""Longer than a consumer elsewhere takes to look ahead: so it delivers on the millisecond."""


class PlannedFiring(NamedTuple):
    """A fire time for which a job is put.

    Attributes:
        time_ms: The fire time, epoch milliseconds: as the trigger says, without jitter.
        previous_ms: The fire time before for which a job was put; None for the first.
        at_ms: When its job is due.
        is_missed: Whether nobody was there for it within a minute.
    """

    time_ms: int
    previous_ms: int | None
    at_ms: int
    is_missed: bool = False


class Tick(NamedTuple):
    """The state of a schedule, as its tick carries it.

    Attributes:
        definition: What the schedule is.
        next_ms: Its next fire time, epoch milliseconds; None: it never fires again.
        previous_ms: The last one for which a job was put; None before the first.
        fired: For how many fire times jobs were put.
        skipped: How many were not, by its policies.
        last_key: The key of the last job, where its end matters to the next.
        aim_ms: As of when it is to fire, epoch milliseconds: when its row was to be due. The row
            may have been moved since, of which another copy is there. None of none that is stored.
        is_again: Whether it was put again for one that was lost, by a list that may be old.
        text: The definition as it was read; empty where that was not.
    """

    definition: Definition
    next_ms: int | None
    previous_ms: int | None = None
    fired: int = 0
    skipped: int = 0
    last_key: str | None = None
    aim_ms: int | None = None
    is_again: bool = False
    text: str = ""

    # As it is stored ------------------------------------------------------------------------------

    def body(self) -> bytes:
        """The body of its message: its state and, in a line of its own, its definition."""
        told: dict[str, Any] = {
            "next": self.next_ms,
            "previous": self.previous_ms,
            "fired": self.fired,
            "skipped": self.skipped,
            "aim": self.aim_ms,
        }
        if self.last_key is not None:
            told["last"] = self.last_key
        if self.is_again:
            told["again"] = True
        text = self.text or self.definition.text()
        return f"{_encoded(told)}\n{text}".encode()

    @classmethod
    def read(cls, body: bytes, whose: str) -> Tick:
        """A tick from the body of its message.

        Args:
            body: It.
            whose: For the error.

        Raises:
            StoreCorrupt: If it is none.
        """
        try:
            state, _, text = body.decode().partition("\n")
            told = json.loads(state)
            return cls(
                _definition(text, whose),
                told["next"],
                told["previous"],
                told["fired"],
                told["skipped"],
                told.get("last"),
                told["aim"],
                told.get("again", False),
                text,
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreCorrupt(
                f"{whose} is damaged: {shown(body)}; remove the schedule, and make it again."
            ) from error

    def due_at(self, due_ms: int) -> Tick:
        """The same, as it is stored in a row that is due then."""
        return self._replace(aim_ms=due_ms)

    def of(self, definition: Definition) -> Tick:
        """The same state under another definition."""
        return self._replace(definition=definition, text="")

    # When it fires --------------------------------------------------------------------------------

    @property
    def is_spent(self) -> bool:
        """Whether it has fired as often as it may."""
        count = self.definition.count
        return count is not None and self.fired >= count

    def at_ms(self, time_ms: int) -> int:
        """When the job of a fire time is due, epoch milliseconds."""
        definition = self.definition
        return time_ms + definition.policies.late_ms(definition.name, time_ms)

    def after(self, time_ms: int) -> Fire | None:
        """The first fire time after a time.

        Raises:
            TriggerError: If a user's trigger does not say.
        """
        policies = self.definition.policies
        return self.definition.trigger.after(time_ms, twice=policies.twice, gap=policies.gap)

    def times_between(self, from_ms: int, until_ms: int) -> int:
        """How many fire times there are from one time to another, which is excluded."""
        twice, gap = self.definition.policies.of_hours
        return self.definition.trigger.count(from_ms - 1, until_ms - 1, twice=twice, gap=gap)

    def aimed(self, after_ms: int) -> Tick:
        """The same, with the first fire time after a time as its next."""
        found = None if self.is_spent else self.after(after_ms)
        return self._replace(next_ms=None if found is None else found.at_ms)

    def fire(self, aim_ms: int, lead: Lead) -> tuple[list[PlannedFiring], Tick]:
        """What a firing puts, and what the tick is after it.

        Args:
            aim_ms: As of when, epoch milliseconds: when the tick was due.
            lead: How long before its fire time a tick is due.

        Returns:
            The fire times of which jobs are to be put, first ones first, `FIRES_MAX` at most.

        Raises:
            TriggerError: If a user's trigger does not say.
        """
        firings: list[PlannedFiring] = []
        tick = self
        missed_ms = aim_ms - MISSED_MS
        if tick.next_ms is not None and tick.at_ms(tick.next_ms) < missed_ms:
            tick = tick.make_up(firings, missed_ms, aim_ms)
        while (
            tick.next_ms is not None
            and len(firings) < FIRES_MAX
            and missed_ms <= (at_ms := tick.at_ms(tick.next_ms)) < aim_ms + lead.ms + lead.grid_ms
        ):
            tick = tick.put_next(firings, max(at_ms, aim_ms + len(firings)))
        return firings, tick

    def due_ms(self, aim_ms: int, lead: Lead) -> int:
        """When the tick is to be due, after a firing as of `aim_ms`, or made at that time."""
        if self.next_ms is None:
            # It ends, also where it was paused meanwhile.
            return aim_ms
        if self.definition.paused:
            return aim_ms + _PAUSED_MS
        before_ms = self.at_ms(self.next_ms) - lead.ms
        return max(before_ms - before_ms % lead.grid_ms, aim_ms)

    def put_next(
        self, firings: list[PlannedFiring], at_ms: int, *, is_missed: bool = False
    ) -> Tick:
        """Add its next fire time to those of which jobs are put, due at a time.

        No two are due at the same one: so a group has them in order.
        """
        time_ms = self.next_ms
        if time_ms is None:
            return self
        firings.append(PlannedFiring(time_ms, self.previous_ms, at_ms, is_missed))
        return self._replace(previous_ms=time_ms, fired=self.fired + 1).aimed(time_ms)

    def make_up(self, firings: list[PlannedFiring], missed_ms: int, aim_ms: int) -> Tick:
        """Pass by what was missed, or fire it, as the policy says."""
        policies = self.definition.policies
        window_ms, tick = policies.window_ms, self
        first_ms = aim_ms - window_ms if window_ms is not None else None
        passed, last_ms, has_leapt = 0, 0, False
        while (time_ms := tick.next_ms) is not None and (at_ms := tick.at_ms(time_ms)) < missed_ms:
            is_of_use = first_ms is None or at_ms >= first_ms
            if policies.missed == "all" and is_of_use:
                if len(firings) >= FIRES_MAX:
                    break
                tick = tick.put_next(firings, aim_ms + len(firings), is_missed=True)
                continue
            if passed == _MISSED_MAX and not has_leapt:
                tick, has_leapt = tick.leap(missed_ms, first_ms), True
                passed += tick.times_between(time_ms, tick.next_ms or missed_ms)
                continue
            passed, last_ms = passed + 1, time_ms
            tick = tick.aimed(time_ms)
        if policies.missed != "once" or not passed:
            return tick._replace(skipped=tick.skipped + passed)
        if first_ms is not None and tick.at_ms(last_ms) < first_ms:
            return tick._replace(skipped=tick.skipped + passed)
        tick = tick._replace(skipped=tick.skipped + passed - 1, next_ms=last_ms)
        return tick.put_next(firings, aim_ms + len(firings), is_missed=True)

    def leap(self, missed_ms: int, first_ms: int | None) -> Tick:
        """Go on from shortly before what is not missed, or from where it is of use again."""
        policies = self.definition.policies
        from_ms = self.next_ms or 0
        if policies.missed == "all" and first_ms is not None:
            return self.aimed(max(first_ms - policies.latest_ms, from_ms) - 1)
        latest_ms, back_ms = missed_ms - policies.latest_ms, _BACK_MS
        while latest_ms - back_ms > from_ms:
            tick = self.aimed(latest_ms - back_ms)
            if tick.next_ms is not None and tick.at_ms(tick.next_ms) < missed_ms:
                return tick
            back_ms *= 2
        return self

    @classmethod
    def resumed(cls, definition: Definition, place_ms: int | None, now_ms: int, lead: Lead) -> Tick:
        """The tick of a schedule whose row is lost: it goes on where that was.

        Args:
            definition: The schedule's.
            place_ms: When the row was due; None where that is not known.
            now_ms: Now, epoch milliseconds.
            lead: How long before its fire time a tick is due.
        """
        tick = cls(definition, None)
        from_ms = now_ms if place_ms is None else min(place_ms + lead.ms, now_ms)
        # Of what was changed since, no fire time is before the change.
        tick = tick.aimed(max(from_ms - definition.policies.latest_ms, definition.made_ms) - 1)
        while tick.next_ms is not None and tick.at_ms(tick.next_ms) < from_ms:
            tick = tick.aimed(tick.next_ms)
        if definition.count is not None and tick.next_ms is not None:
            tick = tick._replace(fired=tick.times_between(definition.made_ms, tick.next_ms))
            tick = tick._replace(next_ms=None) if tick.is_spent else tick
        return tick


def _definition(text: str, whose: str) -> Definition:
    """A definition that is read with each firing, and seldom changes."""
    return _cached(text, whose) if len(text) <= _CACHED_CHARS_MAX else Definition.read(text, whose)


@lru_cache(maxsize=16_384)
def _cached(text: str, whose: str) -> Definition:
    return Definition.read(text, whose)


def is_plain(definition: Definition) -> bool:
    """Whether a firing's job is put whatever else is there."""
    return definition.job.key is None and definition.policies.overlap in ("allow", "queue")


def lead_of(definition: Definition, *, is_local: bool) -> Lead:
    """How long before its fire time the tick of a schedule is due.

    Not at all where it matters what is still there at the fire time.
    """
    if not is_plain(definition):
        return _EXACT
    return _LOCAL if is_local else _ELSEWHERE


def headers_of(tick: Tick, firing: PlannedFiring) -> dict[str, str]:
    """The headers of a firing's job: its schedule's own, and which firing it is."""
    definition = tick.definition
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
