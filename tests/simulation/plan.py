"""The plan of a seed: the queue, the processes, the messages, and which faults come when.

A plan is data. Each part has a name, so that a run can leave it out: to make a failing seed
smaller, or to repeat a smaller one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from simulated.network import Weather

from simulation.allowances import Allowances
from simulation.errands import Errand, Errands
from simulation.fleets import BANDS, Fleet
from simulation.parts import Act, Event, Letter, Machine
from simulation.timetables import Command, Timetable

GROUPS = 4
_CRASHES = 40
"""The crash acts of a poison message: more than it may cause, so that only shardq ends them."""
_READ_AHEAD_MS = 500
_NAPS = 3
_NAP_S = (5.5, 7.5)
_NAP_LETTERS = 8
_NO_WAKINGS = {"crowded", "isolated", "callers", "crash", "poison", "slow",
               "slow_lwt", "outage"}  # fmt: skip
"""Kinds of world in which a reader seldom holds the rows of sleepers when they wake."""
_WAKING_S = (11.0, 12.5)
_WAKING_LETTERS = 100
_WAKING_SPREAD_S = 0.015
_WAKING_WORK_S = (1.0, 2.5)
_DRAGGED_S_MAX = 4.0
"""The longest delay of an answer: a consumer must have part of its lease of 10 s left."""
_DRAGS = 2
_DRAG_LETTERS = 3
_PARKED_LATE_S_MAX = 6.5
_PARKED_LETTERS = 4
_PARKED_SPREAD_S = 0.1
_LINGERS_US = 300_000_000
_LOCAL = 0.1
"""The share of worlds that are one machine with SQLite; all others have Cassandra."""
_NOT_LOCAL = {"lost", "unanswered", "late", "twice", "parted", "slow_lwt", "clocks", "steps",
              "drift", "lose", "large"}  # fmt: skip
"""Kinds that a world of one machine lacks: it has no late or unknown write, and one clock."""
_SET_S = (1, 5, 60, 600, 3_600, 3 * 86_400)
_SETS_MAX = 4
_EPOCH_S = 1_799_900_000.0
"""How far back the clock of a machine without a battery starts, until the network sets it."""
_SET_EVERY_S = (3.0, 14.0)
_LEASES = 0.2
"""The share of worlds whose leases last for other than 10 s."""
_LEASE_MS = (5_000, 6_000, 8_000, 20_000)
_FORKS = 0.12
"""The share of worlds in which forks release leases that their parents hold."""
_TIES = 6
_TIED = (3, 8)
"""How many messages of a group are put at once with the same due."""
LIMIT_BYTES = 1_500
"""A larger move is an insert, then a delete; the bound on Cassandra is 40 KiB."""


@dataclass(frozen=True)
class Plan:
    """Everything that the seed decides before a run."""

    seed: int
    settings: dict[str, Any]
    weather: dict[str, Any]
    machines: tuple[Machine, ...]
    letters: tuple[Letter, ...]
    events: tuple[Event, ...]
    active_s: float
    kinds: frozenset[str] = frozenset()
    is_local: bool = False
    errands: tuple[Errand, ...] = ()
    commands: tuple[Command, ...] = ()
    absent_s: float = 0.0
    rest_s: float = 0.0
    ending: dict[str, Any] = field(default_factory=dict)

    def without(self, dropped: set[str]) -> Plan:
        """The plan without some of its parts: machines, messages, events, shares of the weather."""
        return replace(
            self,
            weather={k: v for k, v in self.weather.items() if k not in dropped},
            machines=tuple(m for m in self.machines if m.name not in dropped),
            letters=tuple(m for m in self.letters if m.title not in dropped),
            events=tuple(e for e in self.events if e.title not in dropped),
            errands=tuple(e for e in self.errands if e.title not in dropped),
            commands=tuple(c for c in self.commands if c.title not in dropped),
        )

    def parts(self) -> list[str]:
        """The names of all parts that a run can do without."""
        consumers = [m.name for m in self.machines if m.role != "producer"]
        return [
            *(key for key, value in self.weather.items() if value and key in _SHARES),
            *(event.title for event in self.events),
            *(errand.title for errand in self.errands),
            *(command.title for command in self.commands),
            *consumers[1:],
            *(letter.title for letter in self.letters),
        ]


_LENGTHS = (
    (500, 500), (500, 3_000), (1_000, 1_000), (1_000, 10_000), (2_000, 1_000), (2_000, 10_000),
    (5_000, 3_000), (5_000, 20_000), (60_000, 120_000),
)  # fmt: skip
"""Choices of (length of a minute, offset), milliseconds."""
ISOLATED_MS_MAX = 6_000
_SHARES = {
    "slow", "slow_lwt", "refused", "lost", "unanswered", "late", "twice", "parted",
}  # fmt: skip

KINDS = (
    "slow", "slow_lwt", "refused", "lost", "unanswered", "late", "twice", "parted", "crash",
    "freeze", "clocks", "steps", "drift", "leave", "join", "lanes", "purge", "pause", "outage",
    "poison", "long", "cancel", "callers", "groups", "retries", "large", "bands", "crowded",
    "stall", "cut", "fail", "lose", "isolated", "history", "redrive", "latecomers",
)  # fmt: skip
WITHIN = {
    "clocks", "drift", "poison", "long", "callers", "groups", "retries", "large", "bands",
    "crowded", "isolated", "latecomers", "fleet", "rolling", "unused", "keys", "schedules",
    "limits",
}  # fmt: skip
"""Kinds that hold from the start: properties of processes and messages, not faults."""
STRUCK = {
    "stall": ("renew", "renew", "take", "move", "delete", "read", "note members"),
    "cut": (
        "move",
        "delete",
        "insert",
        "renew",
        "list_minutes",
        "waiting",
        "edit",
        "release",
    ),
    "fail": ("delete", "move", "renew", "insert", "list_minutes", "waiting", "read"),
    "lose": ("delete", "move", "renew", "insert", "take", "edit"),
}  # fmt: skip
"""Faults of the next call of one of these verbs: its process pauses or dies within it, the call
fails several times, or its outcome is unknown."""


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    return _Planner(seed).plan()


def machine_of(process: str) -> str:
    """The machine of a process: "c0" for "c0.3", which is its third life."""
    return process.split(".", maxsplit=1)[0]


def bands_of(settings: dict[str, Any]) -> int:
    """How many priorities a queue has."""
    return int(settings.get("bands", BANDS))


def lease_ms(plan: Plan) -> tuple[int, int]:
    """The shortest and the longest lease that the queue has in a run."""
    asked = [int(plan.settings.get("lease", "10000ms")[:-2])]
    asked += [int(one.value) for one in plan.events if one.kind == "lease"]
    return min(asked), max(asked)


def length_ms(settings: dict[str, Any]) -> int:
    """The longest wait of a message until its minute and the offset are over, milliseconds."""
    return int(settings["minute"][:-2]) + int(settings["offset"][:-2])


class _Planner:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(f"plan/{seed}")
        chance = self.chance
        # Swarm testing: a world with all faults at once hides bugs that only a few together show.
        share = chance.choice((0.0, 0.15, 0.3, 0.5, 0.8))
        plain = {"callers", "groups", "retries", "large", "bands", "long", "cancel", "lanes",
                 "leave", "join", "purge", "pause", "crowded", "isolated", "history",
                 "redrive", "latecomers"}  # fmt: skip
        self.on = {kind for kind in KINDS if chance.random() < (0.5 if kind in plain else share)}
        if chance.random() < 0.7:
            self.on -= {"purge", "pause"}
        # From a random source of its own, so that other worlds stay as they are.
        self.is_local = random.Random(f"local/{seed}").random() < _LOCAL
        self.on -= _NOT_LOCAL if self.is_local else set()
        self.has_battery = random.Random(f"battery/{seed}").random() < 0.85
        if self.is_local and not self.has_battery:
            # Without a battery the clock begins in 1970. A history recorded then has expired once
            # the clock is right.
            self.on -= {"history"}
        # Likewise drawn by itself.
        self.fleet = Fleet(seed) if Fleet.is_drawn(seed) else None
        if self.fleet is not None:
            self.on = self.fleet.kinds(self.on)
        self.has_limits = Allowances.is_drawn(seed)
        if self.has_limits:
            self.on |= {"groups", "limits"}
        self.events: list[Event] = []

    def plan(self) -> Plan:
        chance = self.chance
        active_s = chance.uniform(17, 45)
        if self.fleet is not None:
            active_s = self.fleet.active_s
        settings = self._settings()
        limits = Allowances(self.seed, active_s) if self.has_limits else None
        if limits is not None:
            settings |= limits.settings
        machines = self._machines(active_s, settings)
        letters = self._letters(machines, active_s, settings)
        if self.fleet is None or self.fleet.shape != "rolling":
            self._events(machines, active_s)
        if self.fleet is None:
            letters += self._naps(machines, len(letters), active_s)
            letters += self._wakings(machines, len(letters), active_s)
            letters += self._ties(machines, len(letters), active_s)
            letters += self._drags(machines, len(letters), active_s, settings)
            letters += self._late_parks(machines, len(letters), active_s, settings)
        else:
            members = [m.name for m in machines if m.role == "consumer"]
            for event in self.fleet.events(Event(0, 0.0, ""), members):
                self.events.append(replace(event, number=len(self.events)))
        if limits is not None:
            letters += self._limited(limits, machines, len(letters))
            letters = list(map(limits.named, letters))
        self._audits(active_s)
        self._leases(active_s)
        weather, errands, timetable = self._weather(), tuple[Errand, ...](), None
        if self.fleet is None or not self.fleet.is_calm:
            self._forks(machines, active_s)
            self._sets(active_s)
            if Errands.is_drawn(self.seed) and limits is None:
                weather, errands = self._errands(machines, active_s, weather)
            if Timetable.is_drawn(self.seed) and limits is None:
                timetable = self._timetable(machines, active_s)
                weather = timetable.weather(weather)
        return Plan(
            self.seed,
            settings,
            weather,
            tuple(machines),
            tuple(letters),
            tuple(sorted(self.events, key=lambda event: event.at_s)),
            active_s,
            frozenset(self.on),
            self.is_local,
            errands,
            timetable.commands if timetable is not None else (),
            timetable.absent_s if timetable is not None else 0.0,
            timetable.rest_s if timetable is not None else 0.0,
            limits.ending if limits is not None else {},
        )

    def _settings(self) -> dict[str, Any]:
        chance = self.chance
        minute_ms, offset_ms = chance.choice(_LENGTHS)
        if self.on & {"clocks", "steps"}:
            minute_ms, offset_ms = chance.choice(((10_000, 150_000), (60_000, 150_000)))
        history = {"history": "30d" if self.is_local else "1h"} if "history" in self.on else {}
        settings = {
            **history,
            "minute": f"{minute_ms}ms",
            "offset": f"{offset_ms}ms",
            "lanes": chance.randint(1, 4),
            "bands": chance.randint(2, 3) if "bands" in self.on else 1,
            "attempts": chance.randint(1, 4),
            "backoff": f"{chance.choice((50, 300, 1_000))}ms",
            "backoff_max": "4s",
            "hold": f"{chance.choice((500, 1_500, 4_000))}ms",
            "visibility": f"{chance.choice((2_000, 4_000, 8_000))}ms",
        }
        # From a random source of its own, as forks are.
        lease = random.Random(f"lease/{self.seed}")
        if lease.random() < _LEASES:
            settings["lease"] = f"{lease.choice(_LEASE_MS)}ms"
        return settings if self.fleet is None else self.fleet.settings(settings, self.on)

    def _weather(self) -> dict[str, Any]:
        chance = self.chance
        weather: dict[str, Any] = {
            "spread_us": chance.choice((1_000, 4_000, 30_000)),
            "move_bytes": LIMIT_BYTES if "large" in self.on else 1 << 20,
            "late_us": chance.choice((3_000_000, 15_000_000, 60_000_000)),
            "slow_us": chance.choice((500_000, 4_000_000, 15_000_000)),
            "timeout_us": chance.choice((300_000, 2_000_000)),
        }
        for kind, most in (
            ("slow", 0.03), ("refused", 0.05), ("lost", 0.03), ("unanswered", 0.03),
            ("late", 0.03), ("twice", 0.1), ("parted", 0.6), ("slow_lwt", 0.3),
        ):  # fmt: skip
            if kind in self.on:
                weather[kind] = round(chance.uniform(0.1, 1.0) * most, 4)
        # From a random source of its own: no other part of any plan depends on it.
        lingers = random.Random(f"lingers/{self.seed}").random() < 0.25
        if lingers and self.on & {"late", "twice", "lose"}:
            weather |= {"late_us": _LINGERS_US, "lingers": True}
        # How long a call may take is no fault of its own.
        assert set(weather) <= set(Weather.__slots__)
        return weather

    def _machines(self, active_s: float, settings: dict[str, Any]) -> list[Machine]:
        chance = self.chance
        # An isolated reader waits for the end of a minute and its offset: longer than the run.
        self.on -= {"isolated"} if length_ms(settings) > ISOLATED_MS_MAX else set()
        machines = [self._machine(f"p{n}", "producer") for n in range(chance.randint(1, 2))]
        if self.fleet is not None:
            machines += self.fleet.machines(self._machine("c", "consumer"))
        for n in range(chance.randint(1, 3) if self.fleet is None else 0):
            role = "consumer" if chance.random() < 0.75 else "stepper"
            machines.append(self._machine(f"c{n}", role))
        if "callers" in self.on:
            machines += [self._machine(f"r{n}", "caller") for n in range(chance.randint(1, 2))]
        if "join" in self.on and self.fleet is None:
            late = [self._machine(f"j{n}", "consumer") for n in range(chance.randint(1, 2))]
            machines += [replace(m, start_s=chance.uniform(2, active_s)) for m in late]
        return machines

    def _machine(self, name: str, role: str) -> Machine:
        chance = self.chance
        shift_s = (
            chance.uniform(-140, 140) if "clocks" in self.on and chance.random() < 0.6 else 0.0
        )
        drift = chance.uniform(-2e-4, 2e-4) if "drift" in self.on else 0.0
        return Machine(
            name,
            role,
            rate=1.0 + drift,
            shift_s=shift_s,
            threads=chance.randint(1, 4),
            prefetch=chance.choice((4, 20, 100, 1_000) if "crowded" in self.on else (300, 1_000)),
            isolated="isolated" in self.on and chance.random() < 0.5,
            deadline_s=chance.choice((0.2, 1.0, 5.0)),
            visibility_s=chance.choice((2.0, 3.0, 6.0)),
            count=chance.choice((1, 3, 10)),
        )

    def _letters(
        self, machines: list[Machine], active_s: float, settings: dict[str, Any]
    ) -> list[Letter]:
        chance = self.chance
        producers = [m.name for m in machines if m.role == "producer"]
        if self.fleet is not None:
            return list(self.fleet.letters(Letter(0, "", 0.0), Act("ack"), producers, self.on))
        count = chance.choice((40, 120, 200, 320))
        grouped = chance.choice((0.2, 0.7)) if "groups" in self.on else 0.0
        far_ms = chance.choice((200, 3_000, 12_000))
        letters: list[Letter] = []
        poisons = chance.randint(1, 2) if "poison" in self.on else 0
        for number in range(count):
            group = f"g{chance.randrange(GROUPS)}" if chance.random() < grouped else None
            delay_ms = chance.randrange(far_ms) if chance.random() < 0.6 else 0
            cancel_s = None
            if "cancel" in self.on and chance.random() < 0.1:
                delay_ms, cancel_s = chance.randrange(2_500, 12_000), chance.uniform(0.0, 6.0)
            poisoned = number < poisons
            letters.append(
                Letter(
                    number,
                    chance.choice(producers),
                    round(chance.uniform(0.5, active_s - 2), 3),
                    delay_ms,
                    exact=chance.random() < 0.3,
                    group=None if poisoned else group,
                    priority=chance.randrange(bands_of(settings)),
                    size=2_500 if "large" in self.on and chance.random() < 0.3 else 10,
                    name=f"order-{number}" if chance.random() < 0.2 else None,
                    batch=chance.randint(1, 5) if chance.random() < 0.2 else 0,
                    cancel_s=cancel_s,
                    acts=(Act("crash"),) * _CRASHES if poisoned else self._acts(),
                )
            )
        if "latecomers" in self.on:
            letters += [
                self._latecomer(letter, number, producers)
                for number, letter in enumerate(
                    (one for one in list(letters) if one.group and one.delay_ms > _READ_AHEAD_MS),
                    count,
                )
            ]
        return letters

    def _latecomer(self, before: Letter, number: int, producers: list[str]) -> Letter:
        """A message put while one of its group is read ahead, and due just before that one."""
        chance = self.chance
        ahead_ms, earlier_ms = chance.randrange(20, 150), chance.randrange(1, 20)
        return replace(
            before,
            number=number,
            producer=chance.choice(producers),
            at_s=round(before.at_s + (before.delay_ms - ahead_ms) / 1e3, 3),
            delay_ms=max(ahead_ms - earlier_ms, 0),
            name=None,
            batch=0,
            cancel_s=None,
            acts=(),
        )

    def _naps(self, machines: list[Machine], number: int, active_s: float) -> list[Letter]:
        """Freezes of readers for longer than most leases, with a group's messages due meanwhile."""
        # A random source of its own: no other part of a plan depends on these draws.
        chance = random.Random(f"naps/{self.seed}")
        if not self.on >= {"groups", "freeze"} or chance.random() >= 0.5:
            return []
        producers, readers = (
            [m.name for m in machines if (m.role == "producer") == puts] for puts in (True, False)
        )
        letters: list[Letter] = []
        for _ in range(_NAPS):
            at_s, seconds = chance.uniform(2, active_s - 2), chance.uniform(*_NAP_S)
            group = f"g{chance.randrange(GROUPS)}"
            for reader in readers:
                # All readers at once, because one of them reads the group's lane.
                self.events.append(Event(len(self.events), at_s, "freeze", reader, seconds))
            for place in range(_NAP_LETTERS):
                due_s = at_s + 0.1 + 0.15 * place
                letters.append(
                    Letter(
                        number + len(letters),
                        chance.choice(producers),
                        round(at_s - 1.0, 3),
                        delay_ms=round((due_s - at_s + 1.0) * 1e3),
                        group=group,
                    )
                )
        return letters

    def _wakings(self, machines: list[Machine], number: int, active_s: float) -> list[Letter]:
        """A pause of all readers but one, past their leases, before their acks are stored.

        When they wake and store the acks, that reader holds their messages, to deliver with care.
        """
        # A random source of its own: no other part of a plan depends on these draws.
        chance = random.Random(f"sleep/{self.seed}")
        staying = [m.name for m in machines if m.role in ("consumer", "stepper") and not m.start_s]
        if chance.random() >= 0.5 or len(staying) < 2 or self.on & _NO_WAKINGS:
            return []
        at_s = chance.uniform(3.5, max(active_s - _WAKING_S[1], 3.6))
        seconds = chance.uniform(*_WAKING_S)
        stays = chance.choice(staying)
        verb = "record" if "history" in self.on else "delete"
        for machine in machines:
            if machine.role != "producer" and machine.name != stays:
                for kind, after_s, more in (
                    ("fail", -1.0, {"verb": verb, "value": 100}),
                    ("freeze", 0.0, {"seconds": seconds}),
                    ("mend", seconds / 2, {"verb": verb}),
                    ("leave", seconds - 0.1, {}),
                ):
                    one = Event(len(self.events), at_s + after_s, kind, machine.name, **more)
                    self.events.append(one)
        producers = [m.name for m in machines if m.role == "producer"]
        return [
            Letter(
                number + place,
                chance.choice(producers),
                round(at_s - 2.5 + place * _WAKING_SPREAD_S, 3),
                delay_ms=round((2.5 - place * _WAKING_SPREAD_S) * 1e3) - chance.randrange(400, 900),
                acts=(Act("ack"), Act("ack", chance.uniform(*_WAKING_WORK_S))),
            )
            for place in range(_WAKING_LETTERS)
        ]

    def _drags(
        self, machines: list[Machine], number: int, active_s: float, settings: dict[str, Any]
    ) -> list[Letter]:
        """Writes that arrive, and are answered, too late for the readers of their minute."""
        # A random source of its own: no other part of a plan depends on these draws.
        chance = random.Random(f"drags/{self.seed}")
        minute_ms, offset_ms = int(settings["minute"][:-2]), int(settings["offset"][:-2])
        late_s = (minute_ms + offset_ms / 2) / 1e3
        if chance.random() >= 0.35 or late_s > _DRAGGED_S_MAX:
            return []
        letters: list[Letter] = []
        for machine in machines:
            is_producer = machine.role == "producer"
            verb = "insert" if is_producer else "move"
            for _ in range(_DRAGS):
                at_s = chance.uniform(2, active_s - 4)
                seconds = late_s + chance.uniform(0.3, 3.0)
                self.events.append(
                    Event(len(self.events), at_s, "drag", machine.name, seconds, verb=verb)
                )
                for place in range(_DRAG_LETTERS):
                    # The messages are one batch, and each of them is moved at least once.
                    letters.append(
                        Letter(
                            number + len(letters),
                            machine.name if is_producer else machines[0].name,
                            round(at_s + 0.002, 4),
                            delay_ms=chance.choice((0, 100, 700)),
                            batch=_DRAG_LETTERS,
                            acts=(Act("ack") if is_producer else Act("retry", 0.0, place * 100),),
                        )
                    )
        return letters

    def _late_parks(
        self, machines: list[Machine], number: int, active_s: float, settings: dict[str, Any]
    ) -> list[Letter]:
        """Long handlers whose claims are parked too late for the minute of the claim.

        Some handlers end before the claim arrives.
        """
        # A random source of its own: no other part of a plan depends on these draws.
        chance = random.Random(f"parks/{self.seed}")
        visibility_s, hold_s = (int(settings[name][:-2]) / 1e3 for name in ("visibility", "hold"))
        late_s = visibility_s + length_ms(settings) / 1e3
        if chance.random() >= 0.7 or late_s > _PARKED_LATE_S_MAX:
            return []
        letters: list[Letter] = []
        for machine in machines:
            if machine.role in ("consumer", "stepper"):
                at_s, seconds = chance.uniform(5, active_s - 4), late_s + chance.uniform(0.2, 1.0)
                self.events.append(
                    Event(len(self.events), at_s, "drag", machine.name, seconds, verb="move")
                )
                # The handler ends with its claim, a second before the claim arrives, or later.
                ends_s = (visibility_s + 0.1, seconds + 1.0)
                for place in range(_PARKED_LETTERS):
                    letters.append(
                        Letter(
                            number + len(letters),
                            machines[0].name,
                            round(at_s - hold_s + place * _PARKED_SPREAD_S, 4),
                            acts=(Act("ack", hold_s + chance.choice(ends_s)),),
                        )
                    )
        return letters

    def _audits(self, active_s: float) -> None:
        """Audits during the run, and a row that is lost before, which they must name."""
        # A random source of its own: no other part of a plan depends on these draws.
        chance = random.Random(f"audits/{self.seed}")
        if "history" not in self.on or chance.random() >= 0.5:
            return
        kinds = ["audit"] * chance.randint(1, 2) + ["drop"] * chance.randint(0, 1)
        for kind in kinds:
            at_s = chance.uniform(1, 4) if kind == "drop" else chance.uniform(5, active_s)
            self.events.append(Event(len(self.events), at_s, kind))

    def _forks(self, machines: list[Machine], active_s: float) -> None:
        """Moments at which a fork of a reader ends, and releases leases that its parent holds."""
        # A random source of its own: no other part of a plan depends on these draws.
        chance = random.Random(f"forks/{self.seed}")
        readers = [m.name for m in machines if m.role != "producer" and m.start_s < active_s - 5]
        if chance.random() >= _FORKS:
            return
        for _ in range(chance.randint(1, 4)):
            at_s, share = chance.uniform(3, active_s), chance.choice((0.5, 1.0, 1.0))
            target = chance.choice(readers)
            self.events.append(Event(len(self.events), at_s, "fork", target, value=share))

    def _leases(self, active_s: float) -> None:
        """When leases that are taken or renewed become longer or shorter."""
        # A random source of its own: no other part of a plan depends on these draws.
        chance = random.Random(f"leases/{self.seed}")
        if chance.random() < _LEASES / 2:
            at_s, lease_ms = chance.uniform(1, active_s), chance.choice(_LEASE_MS)
            self.events.append(Event(len(self.events), at_s, "lease", value=float(lease_ms)))

    def _sets(self, active_s: float) -> None:
        """When the one machine's clock is set, and by how much."""
        # A random source of its own: no other part of a plan depends on these draws.
        chance = random.Random(f"sets/{self.seed}")
        at_s = chance.uniform(4, 12)
        if self.is_local and not self.has_battery:
            for begin_s, by_s in ((0.3, -_EPOCH_S), (at_s, _EPOCH_S)):
                self.events.append(Event(len(self.events), round(begin_s, 3), "set", value=by_s))
            at_s += chance.uniform(*_SET_EVERY_S)
        for _ in range(chance.randint(0, _SETS_MAX) if self.is_local else 0):
            seconds = round(chance.choice(_SET_S) * chance.uniform(0.8, 1.2), 3)
            if at_s < active_s - 2:
                by_s = seconds * chance.choice((1, -1))
                self.events.append(Event(len(self.events), round(at_s, 3), "set", value=by_s))
            at_s += chance.uniform(*_SET_EVERY_S)

    def _ties(self, machines: list[Machine], number: int, active_s: float) -> list[Letter]:
        """Messages of one group that are put together and come due in the same millisecond."""
        # A random source of its own, and not in every world: ties change other events.
        chance = random.Random(f"ties/{self.seed}")
        if "groups" not in self.on or chance.random() >= 0.25:
            return []
        producers = [m.name for m in machines if m.role == "producer"]
        letters: list[Letter] = []
        for _ in range(_TIES):
            producer, count = chance.choice(producers), chance.randint(*_TIED)
            at_s = round(chance.uniform(1, active_s - 2), 3)
            group = f"g{chance.randrange(GROUPS)}"
            delay_ms = chance.choice((0, 0, chance.randrange(3_000)))
            for _ in range(count):
                one = Letter(number + len(letters), producer, at_s, delay_ms, group=group)
                letters.append(replace(one, batch=count))
        return letters

    def _errands(
        self, machines: list[Machine], active_s: float, weather: dict[str, Any]
    ) -> tuple[dict[str, Any], tuple[Errand, ...]]:
        """The weather and the calls by key of the world; adds the faults of their callers."""
        self.on.add("keys")
        drawn = Errands(self.seed, machines, active_s, Letter(0, "", 0.0), Act("ack"))
        for event in drawn.events(Event(0, 0.0, ""), is_local=self.is_local):
            self.events.append(replace(event, number=len(self.events)))
        return drawn.weather(weather), drawn.errands

    def _timetable(self, machines: list[Machine], active_s: float) -> Timetable:
        """The calls about schedules of the world; adds the faults of the processes that fire."""
        self.on.add("schedules")
        drawn = Timetable(self.seed, machines, active_s, is_local=self.is_local)
        for event in drawn.events(Event(0, 0.0, "")):
            self.events.append(replace(event, number=len(self.events)))
        return drawn

    def _limited(self, limits: Allowances, machines: list[Machine], number: int) -> list[Letter]:
        """Floods of groups that have limits, and changes of these."""
        for event in limits.events(Event(0, 0.0, "")):
            self.events.append(replace(event, number=len(self.events)))
        producers = [m.name for m in machines if m.role == "producer"]
        return list(limits.letters(Letter(0, "", 0.0), Act("ack"), producers, number))

    def _acts(self) -> tuple[Act, ...]:
        chance = self.chance
        acts: list[Act] = []
        while "retries" in self.on and chance.random() < 0.3 and len(acts) < 6:
            kind = chance.choice(("retry", "raise", "snooze", "retry", "bury", "ignore"))
            delay_ms = chance.choice((0, 200, 1_500, 5_000))
            if kind in ("raise", "bury", "ignore"):
                acts.append(Act(kind, self._work_s()))
            else:
                acts.append(Act(kind, self._work_s(), delay_ms))
        if "long" in self.on and chance.random() < (0.15 if "leave" in self.on else 0.06):
            acts.append(Act("ack", chance.uniform(2.0, 14.0)))
        elif chance.random() < 0.3:
            acts.append(Act("ack", self._work_s()))
        return tuple(acts)

    def _work_s(self) -> float:
        chance = self.chance
        return 0.0 if chance.random() < 0.5 else round(chance.random() ** 3 * 0.3, 4)

    def _events(self, machines: list[Machine], active_s: float) -> None:
        chance = self.chance
        alive = [m.name for m in machines]
        readers = [m.name for m in machines if m.role != "producer"]

        def add(kind: str, targets: list[str], most: int, **more: Any) -> None:
            if kind in self.on:
                for _ in range(chance.randint(1, most)):
                    at_s = chance.uniform(1, active_s)
                    target = chance.choice(targets) if targets else ""
                    self.events.append(Event(len(self.events), at_s, kind, target, **more))

        add("crash", alive, 3)
        for seconds in (0.5, 3.0, 9.0, 14.0, 25.0):
            if chance.random() < 0.4:
                add("freeze", alive, 1, seconds=seconds)
        add("steps", alive, 3, value=chance.uniform(-140, 140))
        add("leave", readers, 5)
        for kind, verbs in STRUCK.items():
            for _ in range(4):
                add(kind, readers, 1, verb=chance.choice(verbs), seconds=chance.uniform(5, 14),
                    value=chance.randint(1, 6))  # fmt: skip
        add("lanes", [], 2)
        add("purge", [], 1)
        add("pause", [], 1, seconds=chance.uniform(1, 6))
        add("redrive", [], 3)
        add("outage", alive, 2, seconds=chance.choice((0.5, 4.0, 12.0)))
        self.events = [
            replace(e, value=float(chance.randint(1, 5))) if e.kind == "lanes" else e
            for e in self.events
        ]
