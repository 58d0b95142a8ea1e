"""When nothing was going on that may keep a message up."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from simulation.case import STEWARD
from simulation.plan import bands_of, machine_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from simulation.case import Case
    from simulation.history import History, Put
    from simulation.plan import Plan

LANES_AUTO = 8
"""So many there are at the least where the queue sees to them itself."""
_LONG_US, _FLEET_LONG_US = 300_000, 20_000
"""A handler of more than this has its thread for itself, as far as others are concerned; and of
one of those of a fleet, whose threads are few."""
_HEALERS, _HEALER_THREADS = 2, 3
"""Readers that come in the end, and the threads of each."""
_SETTLED_US = 4_000_000
"""How long it is open who reads which lane, after a process has come: all learn of it by 3 s."""
MEMBER_US = 10_000_000
"""How long a heartbeat counts."""
_MARGIN_US = 3_000_000
"""How long it may take until it is noticed that a member's lease and heartbeat are over."""
STRANGER_US = MEMBER_US + 1_000_000
PARTED_US = 4_000_000
"""Who may take so long for its end waits until the others know that it leaves."""
_BACK_US = 1_000_000
"""How long after its deadline whoever leaves comes back."""
_NAP_US = 2_000_000
_BACKED_OFF_US = 5_500_000
"""And after the store has failed a process: it goes on after 5 s, where many steps have failed."""


def lanes_read(plan: Plan, at_s: float) -> int:
    """How many lanes are read at a time; they never get fewer."""
    return bands_of(plan.settings) * max(_indices(plan, at_s))


def indices_filled(plan: Plan) -> int:
    """Of how many lanes of a priority producers fill at least one each, whenever that is."""
    return min(_indices(plan, plan.active_s))


def _indices(plan: Plan, at_s: float) -> list[int]:
    made = plan.settings["lanes"]
    altered = (int(one.value) for one in plan.events if one.kind == "lanes" and one.at_s <= at_s)
    return [LANES_AUTO if made == "auto" else made, *(count or LANES_AUTO for count in altered)]


class Calm:
    """When nothing was going on that may keep a message up.

    Args:
        case: The run.
        comings: True if those who come, and who leave in good order, may.
    """

    def __init__(self, case: Case, *, comings: bool = True) -> None:
        self._case = case
        self._spans = merged(disturbances(case, comings=comings))
        self._starts = [begun_us for begun_us, _ in self._spans]
        self._long: dict[str, list[tuple[int, int]]] = defaultdict(list)
        long_us = _FLEET_LONG_US if "fleet" in case.history.plan.kinds else _LONG_US
        for one in case.history.deliveries:
            ended_us = one.ended_us or 1 << 62
            if one.kind == "handler" and ended_us - one.begun_us > long_us:
                self._long[one.process].append((one.begun_us, ended_us))
        plan = case.history.plan
        self._threads = {
            machine.name: 1 if machine.role == "stepper" else machine.threads
            for machine in plan.machines
            if machine.role != "producer"
        }
        self._start_us = case.history.healed_us - round(plan.active_s * 1e6)
        self._behind_us = self._caught_up()

    def _is_disturbed(self, us: int, bound_us: int = 0) -> bool:
        place = bisect_right(self._starts, us + bound_us)
        return bool(place) and self._spans[place - 1][1] >= us

    def _caught_up(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Of each process and priority, how long it was behind with what a disturbance had left.

        What comes due meanwhile only puts off itself: it counts for no other.
        """
        behind: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for token, put in self._case.history.puts.items():
            ones = self._case.by_token[token]
            ready_us = max(put.asked_us, put.ended_us or 0)
            if put.outcome == "acked" and ones and self._is_disturbed(ready_us):
                place = ones[0].process, put.letter.priority
                behind[place].append((ready_us, ones[0].begun_us))
        return behind

    def is_calm(self, us: int, bound_us: int, put: Put, process: str) -> bool:
        """True if it was for so long from a time on, for what a process had then.

        Later priorities wait while it catches up minute by minute; a group waits for its own.
        """
        if self._is_disturbed(us, bound_us):
            return False
        if put.letter.group is None and any(
            ready_us <= us and begun_us > us + bound_us
            for priority in range(put.letter.priority + 1)
            for ready_us, begun_us in self._behind_us.get((process, priority), ())
        ):
            return False
        busy = {
            process: sum(begun_us <= us + bound_us and end_us >= us for begun_us, end_us in spans)
            for process, spans in self._long.items()
        }
        if self._is_passed_on(us):
            # A lane whose turn is over at one member stays with it while a handler has a row of it.
            return not any(busy.values())
        return all(
            count < self._threads.get(machine_of(process), _HEALER_THREADS)
            for process, count in busy.items()
        )

    def _is_passed_on(self, us: int) -> bool:
        """True if members outnumber lanes, so that these go round."""
        history = self._case.history
        members = len(self._threads) + (_HEALERS if us >= history.healed_us else 0)
        return members > lanes_read(history.plan, (us - self._start_us) / 1e6)


def disturbances(case: Case, *, comings: bool = True) -> Iterator[tuple[int, int]]:
    """Stretches of time in which a lane may have no reader, or one that the store keeps up.

    Args:
        case: The run.
        comings: True if those who come, and who leave in good order, count as well.

    """
    yield from _commotions(case)
    yield from _waits(case)
    yield from _changes(case, comings=comings)
    for stranger in case.history.strangers:
        if stranger.kind in ("terse", "liar"):
            yield stranger.begun_us, stranger.until_us + STRANGER_US


def _changes(case: Case, *, comings: bool) -> Iterator[tuple[int, int]]:
    """While it is open who reads what, for all learn of it by and by."""
    history, plan = case.history, case.history.plan
    start_us = history.healed_us - round(plan.active_s * 1e6)
    yield 0, start_us + _SETTLED_US
    yield history.healed_us, history.healed_us + _SETTLED_US
    if plan.absent_s:
        yield history.left_us, history.came_us + _SETTLED_US
    for name, (begun_us, until) in history.stops.items():
        deadline_us = case.deadline_us(name)
        if comings or deadline_us < PARTED_US:
            back_us = begun_us + deadline_us + _BACK_US
            yield begun_us, max(until or 0, back_us) + _SETTLED_US
    if comings:
        for machine in plan.machines:
            came_us = start_us + round(machine.start_s * 1e6)
            yield came_us, came_us + _SETTLED_US
    for us in history.relaned:
        yield us, us + _SETTLED_US
    for event in plan.events:
        if event.kind in ("lanes", "purge", "pause", "redrive"):
            at_us = start_us + round(event.at_s * 1e6)
            yield at_us, at_us + round(event.seconds * 1e6) + _SETTLED_US
    for us in _first_puts(history):
        yield us, us + _SETTLED_US


def _first_puts(history: History) -> Iterable[int]:
    """When each priority was first used, from when on it is read."""
    first: dict[int, int] = {}
    if "bands" not in history.plan.settings:
        for put in sorted(history.puts.values(), key=lambda put: put.begun_us):
            first.setdefault(put.letter.priority, put.begun_us)
    return first.values()


def _commotions(case: Case) -> Iterator[tuple[int, int]]:
    """Crashes, pauses, and leases that a fork released."""
    history = case.history
    gone_us = max(case.lease_us, MEMBER_US) + _MARGIN_US
    for us, _ in history.crashes:
        yield us, us + gone_us
    for begun_us, until_us, _ in history.freezes:
        yield begun_us, until_us + (gone_us if until_us > begun_us + _NAP_US else _SETTLED_US)
    for fork in history.forks:
        yield fork.us, fork.us + gone_us


def _waits(case: Case) -> Iterator[tuple[int, int]]:
    """Calls that failed or were slow, and pauses after them."""
    history, plan = case.history, case.history.plan
    slow_us = plan.weather["slow_us"] if {"slow", "slow_lwt"} & plan.weather.keys() else 0
    strangers = {stranger.name for stranger in history.strangers}
    for name in {*history.troubles, *history.failed} - {STEWARD, *case.putters, *strangers}:
        troubles = [*history.troubles.get(name, ()), *history.failed.get(name, ())]
        # A crash ends a slow call as well.
        troubles += [us for us, crashed in history.crashes if crashed == name]
        for us, next_us in pairwise([*sorted(troubles), 1 << 62]):
            # Of a slow call both ends are known, and not that they are of one.
            is_one = next_us - us <= slow_us
            yield us, next_us if is_one else us + plan.weather["timeout_us"] + _BACKED_OFF_US


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches of time, in order and apart."""
    apart: list[tuple[int, int]] = []
    for begun_us, until_us in sorted(spans):
        if apart and begun_us <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], until_us)
        else:
            apart.append((begun_us, until_us))
    return apart
