"""When nothing happened in a run that may delay a message."""

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
"""The fewest lanes of a queue that chooses their number itself."""
_LONG_US, _FLEET_LONG_US = 300_000, 20_000
"""A handler that runs longer than this takes its thread from other messages. The second bound is
for fleets, whose members have few threads."""
_HEALERS, _HEALER_THREADS = 2, 3
"""The consumers that start at the end of a run to drain the queue, and the threads of each."""
_SETTLED_US = 4_000_000
"""How long after a change of members it is open who reads a lane: all learn of it within 3 s."""
MEMBER_US = 10_000_000
"""How long a member counts as present after its last heartbeat."""
_MARGIN_US = 3_000_000
"""How long other members may take to notice that a lease and a heartbeat have run out."""
STRANGER_US = MEMBER_US + 1_000_000
PARTED_US = 4_000_000
"""A member with a deadline this long stops only after the others know that it leaves."""
_BACK_US = 1_000_000
"""How long after its deadline a stopped process starts again."""
_NAP_US = 2_000_000
_BACKED_OFF_US = 5_500_000
"""The longest that a process pauses after failures of the store: 5 s, if many steps failed."""


def lanes_read(plan: Plan, at_s: float) -> int:
    """How many lanes are read at a time of the run; a lane once read is read to the end."""
    return bands_of(plan.settings) * max(_indices(plan, at_s))


def indices_filled(plan: Plan) -> int:
    """The fewest lanes of a priority that producers fill at any time of the run."""
    return min(_indices(plan, plan.active_s))


def _indices(plan: Plan, at_s: float) -> list[int]:
    made = plan.settings["lanes"]
    altered = (int(one.value) for one in plan.events if one.kind == "lanes" and one.at_s <= at_s)
    return [LANES_AUTO if made == "auto" else made, *(count or LANES_AUTO for count in altered)]


class Calm:
    """When nothing happened in a run that may delay a message.

    Args:
        case: The run.
        comings: True if starts and clean stops of processes also count as disturbances.
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
        """(process, priority) -> the stretches in which messages delayed by a disturbance waited.

        A message that came due after the disturbance delays no other, so it does not count.
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
        """True if nothing delayed a message of a process in the `bound_us` after a time.

        Lower priorities wait while the process catches up with higher ones; a group waits only for
        its own messages.
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
            # A member keeps a lane past its turn while one of its handlers has a row of the lane.
            return not any(busy.values())
        return all(
            count < self._threads.get(machine_of(process), _HEALER_THREADS)
            for process, count in busy.items()
        )

    def _is_passed_on(self, us: int) -> bool:
        """True if members outnumber lanes, so that members take turns at lanes."""
        history = self._case.history
        members = len(self._threads) + (_HEALERS if us >= history.healed_us else 0)
        return members > lanes_read(history.plan, (us - self._start_us) / 1e6)


def disturbances(case: Case, *, comings: bool = True) -> Iterator[tuple[int, int]]:
    """Stretches of time in which a lane may have no reader, or a reader that the store delays.

    Args:
        case: The run.
        comings: True if starts and clean stops of processes also count.
    """
    yield from _commotions(case)
    yield from _waits(case)
    yield from _changes(case, comings=comings)
    for stranger in case.history.strangers:
        if stranger.kind in ("terse", "liar"):
            yield stranger.begun_us, stranger.until_us + STRANGER_US


def _changes(case: Case, *, comings: bool) -> Iterator[tuple[int, int]]:
    """Stretches in which it is open who reads a lane: members learn of a change one by one."""
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
    """When each priority was first used; it is read from then on."""
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
            # The begin and the end of a slow call are two records, not known to be of one call.
            is_one = next_us - us <= slow_us
            yield us, next_us if is_one else us + plan.weather["timeout_us"] + _BACKED_OFF_US


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same stretches of time in order, overlapping ones as one."""
    apart: list[tuple[int, int]] = []
    for begun_us, until_us in sorted(spans):
        if apart and begun_us <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], until_us)
        else:
            apart.append((begun_us, until_us))
    return apart
