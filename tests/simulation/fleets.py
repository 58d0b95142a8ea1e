"""Worlds of many members with few threads and long jobs: free members take others' jobs.

```
 jobs:      a burst of equal ones ; of 5 ms to 5 s ; as they arrive at 70 % load ; quick ones, while
            members restart one after another
 members:   come, leave, crash ; some tell lies, or lack fields, callers beside
 moves:     of surplus are lost, unknown, or take effect late
```
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.parts import Act, Event, Letter, Machine

SHARE = 0.25
"""The share of worlds that are fleets."""
BANDS = 3
"""The priorities of a queue that is made without the setting `bands`."""
_CALM = 0.45
_LOSSY = 0.35
"""The share of fleets in which the outcomes of some moves are unknown."""
_SHAPES = ("burst", "burst", "spread", "arrivals", "rolling")
_SECONDS = (0.05, 0.3, 0.5, 1.0)
_SPREAD_S = (0.005, 5.0)
_LOAD = 0.7
_LENGTHS = ((2_000, 10_000), (5_000, 20_000), (60_000, 120_000))
_JOBS_MAX = 220
_GROUPS = 3
_SLEEPS = 0.6
_SLEEPS_S = (10.5, 12.0)
_FAILS_S = 0.4
_LASTS_S = (3.0, 14.0)
"""How long a heartbeat of no real member is repeated, shortest and longest."""
_ROLLING_EVERY_S = 0.05
_RESTART_EVERY_S = (3.0, 5.0)
_RESTART_S = 0.3
_DEADLINE_S = 6.0
"""The deadline of members that restart: long enough for others to learn of it."""
_PLAIN = {"groups", "retries", "history", "callers", "join", "leave", "lanes"}
"""Kinds of world without faults."""
_KEPT_OUT = {"crowded", "isolated", "clocks", "steps", "latecomers", "poison", "long", "cancel",
             "large", "redrive", "purge", "pause"}  # fmt: skip
"""Kinds that a fleet never has, because they delay jobs in ways of their own."""


@dataclass(frozen=True)
class _Job:
    at_s: float
    seconds: float
    batch: int = 0


class Fleet:
    """Draws the parts of one fleet's world.

    Attributes:
        shape: The pattern of its jobs, one of `_SHAPES`.
        active_s: How long faults and puts go on.
    """

    def __init__(self, seed: int) -> None:
        self._chance = chance = random.Random(f"fleet/{seed}/plan")
        self.is_calm = chance.random() < _CALM
        self.shape = chance.choice(_SHAPES)
        self.active_s = chance.uniform(12, 20)
        self._count = chance.randint(2, 7)
        self._threads = chance.choice((1, 1, 1, 2))
        self._busy_s = [self.active_s / 4]
        self._has_unused_bands = chance.random() < 0.5
        if self.shape == "rolling":
            self.is_calm = True

    @staticmethod
    def is_drawn(seed: int) -> bool:
        """True if the world of a seed is a fleet."""
        return random.Random(f"fleet/{seed}").random() < SHARE

    def kinds(self, on: set[str]) -> set[str]:
        """The kinds of the world, of those that were drawn for it."""
        on = on - _KEPT_OUT
        if self.is_calm:
            on &= _PLAIN
        if self.shape == "rolling":
            on = on - {"lanes", "retries", "groups", "callers", "join"}
            return on | {"fleet", "rolling"}
        return on | {"fleet"} | ({"unused"} if self._has_unused_bands else set())

    def settings(self, settings: dict[str, Any], on: set[str]) -> dict[str, Any]:
        """The queue's settings, for jobs that last."""
        chance = self._chance
        minute_ms, offset_ms = chance.choice(_LENGTHS)
        changed = {
            "minute": f"{minute_ms}ms",
            "offset": f"{offset_ms}ms",
            "attempts": chance.randint(3, 6),
            "hold": f"{chance.choice((500, 1_500, 4_000, 10_000))}ms",
            "lanes": chance.randint(1, 4) if chance.random() < 0.3 else "auto",
        }
        settings = settings | changed
        if "unused" in on:
            del settings["bands"]
        return settings

    def machines(self, machine: Machine) -> Iterator[Machine]:
        """Consumers of few threads, some of which start later.

        Args:
            machine: The template of a consumer.
        """
        chance = self._chance
        is_rolling = self.shape == "rolling"
        plain = replace(
            machine,
            role="consumer",
            isolated=False,
            prefetch=300,
            threads=2 if is_rolling else self._threads,
            deadline_s=_DEADLINE_S if self.is_calm else chance.choice((0.2, 1.0, _DEADLINE_S)),
        )
        for n in range(max(self._count, 3) if is_rolling else self._count):
            yield replace(plain, name=f"c{n}")
        for n in range(0 if is_rolling else chance.randint(0, 3)):
            at_s = chance.uniform(2, self.active_s - 5)
            yield replace(plain, name=f"j{n}", start_s=round(at_s, 3))

    def letters(
        self, letter: Letter, act: Act, producers: list[str], on: set[str]
    ) -> Iterator[Letter]:
        """The jobs, as messages.

        Args:
            letter: The template of a message.
            act: The template of a handler's act: an ack at once.
        """
        chance = self._chance
        grouped = chance.choice((0.0, 0.3, 0.5)) if "groups" in on else 0.0
        # Later priorities come into use in the middle.
        used_s = chance.uniform(3, self.active_s) if "unused" in on else math.inf
        for number, job in enumerate(self._jobs()):
            acts = [replace(act, seconds=round(job.seconds, 4))]
            if "retries" in on and chance.random() < 0.1:
                delay_ms = chance.choice((0, 300, 2_000))
                acts.insert(0, replace(acts[0], kind="retry", delay_ms=delay_ms))
            is_grouped = chance.random() < grouped
            is_late = job.at_s >= used_s or not job.batch
            yield replace(
                letter,
                number=number,
                producer=producers[0] if job.batch else chance.choice(producers),
                at_s=round(job.at_s, 3),
                batch=job.batch,
                group=f"g{chance.randrange(_GROUPS)}" if is_grouped else None,
                priority=chance.randrange(BANDS) if job.at_s >= used_s and is_late else 0,
                acts=tuple(acts),
            )

    def _jobs(self) -> Iterator[_Job]:
        chance, active_s = self._chance, self.active_s
        slots = self._count * self._threads
        seconds = chance.choice(_SECONDS)
        if self.shape == "rolling":
            for n in range(round((active_s - 3) / _ROLLING_EVERY_S)):
                yield _Job(1.0 + n * _ROLLING_EVERY_S, chance.choice((0.0, 0.0, 0.002)))
        elif self.shape == "burst":
            bursts = chance.randint(1, 3)
            most = round(0.8 * slots * active_s / seconds / bursts)
            for _ in range(bursts):
                at_s = chance.uniform(2, active_s - 4)
                self._busy_s.append(at_s)
                count = min(chance.randint(10, 80), most, _JOBS_MAX // bursts)
                is_batch = chance.random() < 0.5
                for place in range(count):
                    # Single puts, unlike a batch, take some milliseconds each.
                    after_s = 0 if is_batch else 0.01 * place
                    yield _Job(at_s + after_s, seconds, count if is_batch else 0)
        elif self.shape == "spread":
            least, most_s = map(math.log, _SPREAD_S)
            mean_s = (_SPREAD_S[1] - _SPREAD_S[0]) / (most_s - least)
            for _ in range(min(round(0.7 * slots * active_s / mean_s), _JOBS_MAX)):
                yield _Job(chance.uniform(1, active_s / 2), math.exp(chance.uniform(least, most_s)))
        else:
            at_s = 1.0
            rate = min(_LOAD * slots / seconds, _JOBS_MAX / active_s)
            while (at_s := at_s + chance.expovariate(rate)) < active_s - 2:
                yield _Job(at_s, seconds)

    def events(self, event: Event, members: list[str]) -> Iterator[Event]:
        """Restarts, false heartbeats, and moves with unknown outcomes.

        Args:
            event: The template of an event.
            members: The consumers.
        """
        chance = self._chance
        if self.shape == "rolling":
            at_s = chance.uniform(4, 6)
            for member in members:
                if at_s < self.active_s - 4:
                    yield replace(event, at_s=at_s, kind="leave", target=member, seconds=_RESTART_S)
                at_s += chance.uniform(*_RESTART_EVERY_S)
            return
        for kind in ("liar", "terse", "garbled"):
            if chance.random() < (0.1 if self.is_calm else 0.3):
                yield replace(
                    event,
                    at_s=chance.uniform(0, self.active_s),
                    kind=kind,
                    seconds=chance.uniform(*_LASTS_S),
                    value=float(chance.randint(1, 8)),
                )
        if chance.random() < _LOSSY:
            # The next moves of a member after some time: mostly of surplus.
            for member in members * chance.randint(1, 3):
                at_s = chance.uniform(2, self.active_s)
                yield replace(event, at_s=at_s, kind="lose", target=member, verb="move")
        if not self.is_calm:
            yield from self._faults(event, members)

    def _faults(self, event: Event, members: list[str]) -> Iterator[Event]:
        """Pauses, and calls that fail, have unknown outcomes, or stop their process."""
        chance = self._chance
        if chance.random() < _SLEEPS:
            # Half of the members sleep while there is surplus; the others take their lanes over.
            at_s, seconds = chance.choice(self._busy_s) + 0.5, chance.uniform(*_SLEEPS_S)
            is_amid = chance.random() < 0.5
            for member in members[: max(len(members) // 2, 1)]:
                if is_amid:
                    # The pause is between a look at its leases and the move of surplus.
                    yield replace(event, at_s=at_s, kind="stall", target=member, verb="read",
                                  seconds=seconds)  # fmt: skip
                else:
                    yield from self._sleep(event, member, at_s, seconds)
        for kind, verbs in (
            ("lose", ("move", "note members", "notes members", "renew")),
            ("fail", ("move", "note members", "notes members")),
            ("cut", ("move", "note members")),
            ("stall", ("move", "note members", "notes members")),
        ):
            for _ in range(chance.randint(1, 6) if chance.random() < 0.5 else 0):
                yield replace(
                    event,
                    at_s=chance.uniform(2, self.active_s),
                    kind=kind,
                    target=chance.choice(members),
                    verb=chance.choice(verbs),
                    seconds=chance.uniform(1, 14),
                    value=float(chance.randint(1, 4)),
                )

    @staticmethod
    def _sleep(event: Event, member: str, at_s: float, seconds: float) -> Iterator[Event]:
        """A member cannot move its surplus, sleeps past its lease, and then can move it."""
        for kind, after_s, more in (
            ("fail", -_FAILS_S, {"verb": "move", "value": 100.0}),
            ("freeze", 0.0, {"seconds": seconds}),
            ("mend", seconds / 2, {"verb": "move"}),
        ):
            one = replace(event, at_s=at_s + after_s, kind=kind, target=member)
            yield replace(one, **more)
