"""The calls about schedules in one world, and the faults of the processes that fire them.

```
 made ──► changed, paused, resumed, made again; near its fire times, or at any ──► removed, or not
          └ the process that fires it is cut off, stands still, or gets no answer
```
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulation.parts import Act, Event, Machine

SHARE = 0.13
"""The share of worlds in which a queue has schedules."""
LEAD_S, LEAD_LOCAL_S = 2.75, 0.35
"""The longest time before its fire time at which a message is put, on Cassandra and SQLite."""
_COUNT = (1, 4)
_EVERY_S = (1, 1, 2, 2, 3, 4, 5, 7, 10, 15, 20)
_CRON_S = (1, 2, 3, 5, 10, 15, 20)
"""Intervals that divide a minute, seconds."""
_WINDOWS_S = (5, 20, 40, 90)
_COUNTS = (1, 12)
_LASTS_S_MAX = 6.0
_LATE_US = (400_000, 1_500_000, 3_000_000)
"""Choices of how late a write may be. A process waits twice as long for a late write."""
_COMMANDS = ("change", "change", "change", "pause", "pause", "resume", "remove", "make")
_MORE = (0, 5)
_APART_S = (0.0, 0.004, 0.05, 0.6, 5.0)
_NEAR_S = 0.06
_EVENTS = (2, 10)
_FAULTS = ("cut", "cut", "stall", "fail", "drag", "freeze")
_STOPS_S = (0.4, 2.0, 7.0, 12.0, 33.0)
_DRAGS_S = (0.05, 0.4, 2.0, 6.0)
_FIRED_BY = ("insert", "insert", "records schedules", "write_records schedules",
             "write_records schedules", "write_records keys", "find", "record")  # fmt: skip
_FIRED_BY_LOCALLY = ("records schedules", "write_records schedules", "write_records keys", "find")
_ASKED_BY = ("write_records schedules", "write_records schedules", "records schedules",
             "note schedules", "insert")  # fmt: skip
_RESTS_S = (0.0, 15.0, 40.0, 95.0)
_LEAVES = 0.2
_ABSENT_S = (20.0, 110.0)


@dataclass(frozen=True)
class Spec:
    """A definition of a schedule.

    Attributes:
        number: The definition's unique number, which is in the bodies of its runs.
        every_s: The interval.
        first_s: The first fire time of an interval, from the world's begin on; None: one interval
            after the schedule is made.
        is_cron: True if it is a cron: it fires when the seconds are a multiple of the interval.
        lasts_s: The longest that the handler of a run works.
    """

    number: int
    every_s: int
    first_s: float | None
    is_cron: bool
    missed: str
    window_s: int | None
    overlap: str
    count: int | None
    jitter_ms: int
    group: str | None
    lasts_s: float

    @property
    def body(self) -> bytes:
        """The body of its runs."""
        return f"spec {self.number}".encode()

    def options(self) -> dict[str, Any]:
        """All options of `Queue.every`, so that a change replaces every one."""
        return {
            "missed": self.missed,
            "window": None if self.window_s is None else f"{self.window_s}s",
            "overlap": self.overlap,
            "count": self.count,
            "jitter": f"{self.jitter_ms}ms" if self.jitter_ms else None,
            "group": self.group,
        }


@dataclass(frozen=True)
class Command:
    """A call about a schedule.

    Attributes:
        does: make, change, pause, resume or remove.
        name: The schedule's name.
        spec: The definition that a make or a change gives.
    """

    number: int
    producer: str
    at_s: float
    does: str
    name: str
    spec: Spec | None = None

    @property
    def title(self) -> str:
        return f"s{self.number}"


class Timetable:
    """Draws the calls about schedules of one world.

    Args:
        machines: The machines of the world; its producers make the calls.
        active_s: The end of the calls, from the world's begin on.
        is_local: True if the world is one machine.

    Attributes:
        commands: The calls.
        absent_s: How long, after the faults, no process fires schedules.
        rest_s: How long schedules then go on until all are removed.
    """

    def __init__(
        self, seed: int, machines: Sequence[Machine], active_s: float, *, is_local: bool
    ) -> None:
        self._chance = chance = random.Random(f"schedules/{seed}/plan")
        self._producers = [one.name for one in machines if one.role == "producer"]
        self._readers = [one.name for one in machines if one.role != "producer"]
        self._seed = seed
        self._active_s = active_s
        self._is_local = is_local
        self._number = self._specs = 0
        count = chance.randint(*_COUNT)
        self.commands = tuple(one for place in range(count) for one in self._story(f"r{place}"))
        self.rest_s = chance.choice(_RESTS_S)
        self.absent_s = chance.uniform(*_ABSENT_S) if chance.random() < _LEAVES else 0.0

    @staticmethod
    def is_drawn(seed: int) -> bool:
        """True if the world of a seed has schedules."""
        return random.Random(f"plan/schedules/{seed}").random() < SHARE

    def weather(self, weather: dict[str, Any]) -> dict[str, Any]:
        """The same weather, with late writes that arrive sooner."""
        changed = {**weather, "late_us": self._chance.choice(_LATE_US)}
        changed.pop("lingers", None)
        return changed

    def _story(self, name: str) -> Iterator[Command]:
        chance = self._chance
        made_s = chance.uniform(0.5, self._active_s * 0.6)
        spec = self._spec()
        yield self._command("make", name, made_s, spec)
        if chance.random() < 0.3:
            # A program may make its schedule at each start, another one define it otherwise.
            other = spec if chance.random() < 0.7 else self._spec()
            yield self._command("make", name, made_s + chance.choice(_APART_S), other)
        at_s = made_s
        for _ in range(chance.randint(*_MORE)):
            at_s += chance.uniform(0.2, max((self._active_s - made_s) / 2, 0.3))
            if chance.random() < 0.5:
                at_s = max(self._near(spec, at_s), made_s)
            does = chance.choice(_COMMANDS)
            if does in ("change", "make") and chance.random() < 0.8:
                spec = self._spec()
            yield self._command(does, name, at_s, spec if does in ("change", "make") else None)
            if does in ("pause", "remove") and chance.random() < 0.7:
                at_s += chance.choice(_APART_S) + chance.random() * 4
                again = ("resume", None) if does == "pause" else ("make", spec)
                yield self._command(again[0], name, at_s, again[1])
            elif chance.random() < 0.2:
                # Two commands at once: either may take effect first.
                beside_s = at_s + chance.choice(_APART_S[:4])
                yield self._command(chance.choice(("pause", "resume", "remove")), name, beside_s)

    def _spec(self) -> Spec:
        chance = self._chance
        self._specs += 1
        is_cron = chance.random() < 0.2
        every_s = chance.choice(_CRON_S if is_cron else _EVERY_S)
        first_s = round(chance.uniform(-30, self._active_s), 3)
        missed = chance.choice(("skip", "once", "all"))
        window_s = chance.choice(_WINDOWS_S) if chance.random() < 0.5 else None
        if self._is_local and missed == "all":
            # The machine's clock may be set forward by days.
            window_s = chance.choice(_WINDOWS_S)
        overlap = chance.choice(("allow", "allow", "queue", "skip", "cancel"))
        is_busy = overlap != "allow" or chance.random() < 0.3
        is_grouped = overlap != "queue" and chance.random() < 0.1
        return Spec(
            self._specs,
            every_s,
            None if is_cron or chance.random() < 0.2 else first_s,
            is_cron,
            missed,
            window_s,
            overlap,
            chance.randint(*_COUNTS) if chance.random() < 0.2 else None,
            every_s * chance.choice((100, 500)) if chance.random() < 0.25 else 0,
            f"g{chance.randrange(4)}" if is_grouped else None,
            min(chance.uniform(0, 1.6 * every_s), _LASTS_S_MAX) if is_busy else 0.0,
        )

    def _near(self, spec: Spec, at_s: float) -> float:
        """A time near a fire time, or near the put of its message."""
        chance = self._chance
        first_s = spec.first_s or 0.0
        fires_s = first_s + round((at_s - first_s) / spec.every_s) * spec.every_s
        before_s = chance.choice((0.0, self._lead_s, self._lead_s))
        return max(fires_s - before_s + chance.gauss(0.0, _NEAR_S), 0.5)

    @property
    def _lead_s(self) -> float:
        return LEAD_LOCAL_S if self._is_local else LEAD_S

    def _command(self, does: str, name: str, at_s: float, spec: Spec | None = None) -> Command:
        self._number += 1
        at_s = round(min(at_s, self._active_s), 4)
        return Command(self._number, self._chance.choice(self._producers), at_s, does, name, spec)

    def events(self, event: Event) -> Iterator[Event]:
        """Faults of processes in the middle of firings and of commands.

        Args:
            event: The template of an event.
        """
        chance = self._chance
        # These faults hit the member that fires, between the put of runs and its record.
        breaks = random.Random(f"schedules/{self._seed}/breaks")
        for _ in range(breaks.randint(1, 5)):
            at_s = round(breaks.uniform(3, self._active_s), 4)
            kind, seconds = breaks.choice(("cut", "stop")), breaks.choice(_STOPS_S)
            yield replace(event, at_s=at_s, kind="break", verb=kind, seconds=seconds)
        if chance.random() < 0.2:
            return
        kinds = _FAULTS if self._is_local else (*_FAULTS, "lose", "lose")
        for _ in range(chance.randint(*_EVENTS)):
            is_reader = chance.random() < 0.7
            kind, command = chance.choice(kinds), chance.choice(self.commands)
            at_s = command.at_s
            verbs: tuple[str, ...] = _ASKED_BY
            if is_reader:
                at_s = self._before_a_firing(command)
                verbs = _FIRED_BY_LOCALLY if self._is_local else _FIRED_BY
            yield replace(
                event,
                at_s=round(max(at_s - 0.01, 0.5), 4),
                kind=kind,
                target=chance.choice(self._readers) if is_reader else command.producer,
                verb=chance.choice(verbs),
                seconds=chance.choice(_DRAGS_S if kind == "drag" else _STOPS_S)
                * chance.uniform(0.7, 1.3),
                value=float(chance.randint(1, 3)),
            )

    def _before_a_firing(self, command: Command) -> float:
        chance = self._chance
        at_s = chance.uniform(command.at_s, self._active_s)
        if command.spec is None:
            return at_s
        return self._near(command.spec, at_s) - _NEAR_S


def acts_of(spec: Spec, run: str, act: Act) -> tuple[Act, ...]:
    """The acts of a run's handlers.

    Args:
        spec: The definition of its schedule.
        run: A text that identifies the run.
        act: The template of an act: an ack at once.
    """
    chance = random.Random(run)
    acts: list[Act] = []
    while chance.random() < 0.1 and len(acts) < 3:
        kind = chance.choice(("retry", "raise", "snooze", "bury"))
        delay_ms = chance.choice((0, 300, 1_500)) if kind in ("retry", "snooze") else None
        acts.append(replace(act, kind=kind, delay_ms=delay_ms))
    acts.append(replace(act, seconds=round(chance.random() * spec.lasts_s, 3)))
    return tuple(acts)
