"""What limits a world's queue and its groups have, and when they are changed.

```
 groups g0 .. g3: some always of one place, others of up to 4 ; rates, tiers, pauses
 queue:           a rate, a number of handlers that run ; changed, taken away, set again
 messages:        floods of a group, all due at once
```
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardq.model.limits import read_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulation.parts import Act, Event, Letter
    from simulation.plan import Plan

SHARE = 0.08
"""The share of worlds in which a queue has limits."""
_SALT = 9963
"""With this salt no seed that was recorded before there were limits has a limit."""
_GROUPS = ("g0", "g1", "g2", "g3")
_PLACES = (1, 2, 2, 3, 4)
_RATES = ("2/s", "3/s", "5/s", "10/s", "4/2s", ["5/s", "20/10s"])
_QUICK = ("10/s", "20/s", ["20/s", "100/10s"])
_QUEUE_RATES = ("6/s", "10/s", "20/s", ["20/s", "100/10s"])
_BURSTS = (1, 1, 2, 5)
_CHANGES = (0, 4)
_FLOODS = (2, 5)
_FLOOD = (5, 50)
_SLOW_RATES = ("6/min", "3/30s", "2/min", ["5/s", "2/20s"])
_CATCH_UPS = ("5/s", "10/s", "30/s")
_TASKS = ("shop.mail", "shop.bill", "ship")
_PAUSED = {"group": "g*", "task": "shop.*"}
_SECONDS = (0.0, 0.0, 0.05, 0.3, 1.0)


class Allowances:
    """Draws the limits of one world.

    Args:
        active_s: How long it goes on.

    Attributes:
        settings: The limits with which the queue is made.
        ending: The limits that hold once all is healed: quick ones.
    """

    def __init__(self, seed: int, active_s: float) -> None:
        self._chance = chance = random.Random(f"limits/{_SALT}/{seed}/plan")
        # From a source of its own, so that the rest of a world does not depend on it.
        self._apart = random.Random(f"limits/{seed}/apart")
        self._active_s = active_s
        self._ordered = {name for name in _GROUPS if chance.random() < 0.3}
        self._has_queue_limits = chance.random() < 0.5
        self.settings: dict[str, Any] = {"groups": self._groups()}
        if self._has_queue_limits and chance.random() < 0.7:
            self.settings["limits"] = self._limits()
        self.ending = {"groups": self._groups(rates=_QUICK), "limits": "off"}
        if self._has_queue_limits and chance.random() < 0.5:
            self.ending["limits"] = {"rate": "50/s", "burst": 4, "running": chance.randint(3, 6)}

    @staticmethod
    def is_drawn(seed: int) -> bool:
        """True if limits are played in the world of a seed."""
        return random.Random(f"limits/{_SALT}/{seed}").random() < SHARE

    def _groups(self, rates: Sequence[Any] = _RATES) -> dict[str, Any]:
        chance = self._chance
        rules: dict[str, Any] = {}
        for name in _GROUPS:
            rule: dict[str, Any] = {}
            if name not in self._ordered:
                rule["places"] = chance.choice(_PLACES)
            if chance.random() < 0.5:
                rule["rate"] = chance.choice(rates)
                rule["burst"] = chance.choice(_BURSTS)
                if rates is _RATES and self._apart.random() < 0.3:
                    rule["rate"] = self._apart.choice(_SLOW_RATES)
            if chance.random() < 0.3:
                rule["tier"] = chance.randint(2, 4)
            rules[name] = rule
        return rules

    def _limits(self) -> dict[str, Any]:
        chance = self._chance
        limits: dict[str, Any] = {}
        if chance.random() < 0.7:
            limits |= {"rate": chance.choice(_QUEUE_RATES), "burst": chance.choice(_BURSTS)}
        if chance.random() < 0.6 or not limits:
            limits["running"] = chance.randint(1, 5)
        if self._apart.random() < 0.5:
            limits["catch_up"] = self._apart.choice(_CATCH_UPS)
        return limits

    def events(self, event: Event) -> Iterator[Event]:
        """When limits are changed, and groups are paused.

        Args:
            event: An event, of which they differ.
        """
        chance = self._chance
        for _ in range(chance.randint(*_CHANGES)):
            at_s = round(chance.uniform(2, self._active_s), 3)
            yield replace(event, at_s=at_s, kind="groups", verb=json.dumps(self._groups()))
        for _ in range(chance.randint(*_CHANGES) if self._has_queue_limits else 0):
            at_s = round(chance.uniform(2, self._active_s), 3)
            limits = "off" if chance.random() < 0.25 else self._limits()
            yield replace(event, at_s=at_s, kind="limits", verb=json.dumps(limits))
        for _ in range(chance.randint(0, 2)):
            at_s, name = round(chance.uniform(2, self._active_s), 3), chance.choice(_GROUPS)
            seconds = chance.uniform(2, 12)
            yield replace(event, at_s=at_s, kind="hold", target=name, seconds=seconds, verb="group")
        chance = self._apart
        for _ in range(chance.randint(0, 3)):
            part = chance.choice(("group", "task", "task"))
            name = chance.choice((_PAUSED[part], *(_TASKS if part == "task" else _GROUPS)))
            at_s = round(chance.uniform(2, self._active_s), 3)
            seconds = chance.uniform(2, 12)
            yield replace(event, at_s=at_s, kind="hold", target=name, seconds=seconds, verb=part)

    def letters(
        self, letter: Letter, act: Act, producers: Sequence[str], number: int
    ) -> Iterator[Letter]:
        """Floods of single groups.

        Args:
            letter: A message, of which they differ.
            act: An ack at once, likewise.
            producers: Who puts them.
            number: The first number.
        """
        chance = self._chance
        for _ in range(chance.randint(*_FLOODS)):
            at_s = round(chance.uniform(1, self._active_s - 4), 3)
            delay_ms, group = chance.choice((0, 0, 800, 2_500)), chance.choice(_GROUPS)
            producer, seconds = chance.choice(producers), chance.choice(_SECONDS)
            for _ in range(chance.randint(*_FLOOD)):
                yield replace(
                    letter,
                    number=number,
                    producer=producer,
                    at_s=at_s,
                    delay_ms=delay_ms,
                    group=group,
                    batch=10,
                    acts=self._acts(act, seconds),
                )
                number += 1

    def named(self, letter: Letter) -> Letter:
        """A message, which may be of a task."""
        chance = self._apart
        return replace(letter, task=chance.choice(_TASKS)) if chance.random() < 0.4 else letter

    def _acts(self, act: Act, seconds: float) -> tuple[Act, ...]:
        chance = self._chance
        acts: list[Act] = []
        while chance.random() < 0.15 and len(acts) < 2:
            kind = chance.choice(("retry", "raise", "snooze", "ignore"))
            delay_ms = chance.choice((0, 300, 1_500)) if kind in ("retry", "snooze") else None
            acts.append(replace(act, kind=kind, seconds=seconds, delay_ms=delay_ms))
        return (*acts, replace(act, seconds=round(seconds * chance.random(), 4)))


def of_several_places(plan: Plan) -> set[str]:
    """The groups that have more than one place at any time of a world: they have no order."""
    given = [plan.settings.get("groups", {}), plan.ending.get("groups", {})]
    given += [json.loads(event.verb) for event in plan.events if event.kind == "groups"]
    read = list(map(read_groups, given))
    return {name for name in _GROUPS if any(limits.of(name).places > 1 for limits in read)}
