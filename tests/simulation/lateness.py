"""Whether each message was handed out soon after it could be, where nothing kept it up."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from shardq.engine.lane import RUNGS
from simulation.case import LEASE_US, QUEUE, STEWARD, Breach, Case, clock_of, story
from simulation.plan import machine_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulation.history import Delivery, Put, Written
    from simulation.plan import Plan

_SOON_US = 2_000_000
"""How soon what is due and stored begins: a poll comes every 0.1 s, and one of them may be slow."""
_PULLED_US = 4_000_000
"""How soon a group goes on after its head: what comes due within 3 s anyhow is not pulled."""
_STORED_US = 300_000
"""How long after its due a row may be stored, and be found by the sweep of 0.5 s."""
_LONG_US = 300_000
"""A handler of more than this has its thread for itself, as far as others are concerned."""
_ROWS_MIN = 20
"""Room for so many rows of each lane is enough that none holds up another."""
_HEALERS, _HEALER_THREADS = 2, 3
"""Readers that come in the end, and the threads of each."""
_SETTLED_US = 4_000_000
"""How long it is open who reads which lane, after a process has come: all learn of it by 3 s."""
_GONE_US = 13_000_000
"""And after one has died, or stood still for longer: its lease and its membership last 10 s."""
_LET_GO_US = 5_000_000
"""How long a handler keeps a lane that is another's by now, where `hold` is not shorter."""
_PARKED_US = 500_000
"""And how long it may take to park its row, and to release its shard, with nothing slow."""
_BACK_US = 1_000_000
"""How long after its deadline whoever leaves comes back."""
_NAP_US = 2_000_000
_SET_US = 5_000_000
"""How much later a message may begin that is due when the machine's clock is set, or soon after."""
_UNSTUCK_US = 2 * LEASE_US + 2_000_000
"""How long a message may be found by nobody once nothing goes wrong any more."""
_BACKED_OFF_US = 5_500_000
"""And after the store has failed a process: it goes on after 5 s, where many steps have failed."""


def late(case: Case) -> Iterator[Breach]:
    """What is due and stored begins within moments, but where something may keep it up."""
    history = case.history
    plan = history.plan
    if not history.healed_us or any(m.isolated or m.role == "caller" for m in plan.machines):
        # Who reads ended minutes is late by the offset; a caller comes when it likes.
        return
    readers = [machine for machine in plan.machines if machine.role != "producer"]
    if any(machine.prefetch < _lanes(plan, plan.active_s) * _ROWS_MIN for machine in readers):
        return
    calm = _Calm(case)
    groups: dict[tuple[str, int], list[Delivery]] = defaultdict(list)
    for one in history.deliveries:
        put = history.puts.get(one.token)
        if put is not None and put.letter.group is not None:
            groups[put.letter.group, put.letter.priority].append(one)
    for token, put in history.puts.items():
        ones = case.by_token[token]
        if put.outcome != "acked" or put.ended_us is None or not ones:
            continue
        ready_us, bound_us = max(put.asked_us, put.ended_us), _SOON_US
        if put.letter.group is not None:
            before = [
                one
                for one in groups[put.letter.group, put.letter.priority]
                if one.begun_us < ones[0].begun_us
            ]
            after_us = _ended_us(case, before)
            if after_us is None:
                continue
            ready_us, bound_us = max(ready_us, after_us), _PULLED_US
        late_us = ones[0].begun_us - ready_us
        if any(ready_us - _SET_US < us < ready_us + bound_us for us, _ in history.sets):
            bound_us += _SET_US
        if late_us <= bound_us or not _was_in_time(put):
            continue
        # Who has it first may have had to wait for another's handler.
        bound_us += max(_let_go_us(case, ones[0], ready_us) - ready_us, 0)
        if late_us > bound_us and calm.is_calm(ready_us, bound_us, put, ones[0].process):
            yield Breach(
                "late",
                f"m{token} by {late_us / 1e6:.3f} s from {clock_of(case, ready_us)}: "
                f"{story(case, token)}",
                token,
            )


def stuck(case: Case) -> Iterator[Breach]:
    """Once all is healed, whatever is there and due begins as soon as two leases could be over.

    The handlers have to get to it, and what is behind a seal waits for its sweeps.
    """
    history = case.history
    if not history.healed_us or any(machine.isolated for machine in history.plan.machines):
        return
    left = (until or 0 for us, until in history.stops.values() if us <= history.healed_us)
    calm_us = max([history.healed_us, *left, *(us for us, _ in history.crashes)])
    bound_us = _UNSTUCK_US + sum(
        max((one.ended_us or history.ended_us) - max(one.begun_us, calm_us), 0)
        for one in history.deliveries
        if one.kind == "handler" and not case.crashed(one.process, one.begun_us, calm_us)
    )
    groups: dict[tuple[str, int], int] = {}
    for one in sorted(history.deliveries, key=lambda one: one.begun_us):
        put, written = history.puts.get(one.token), history.written[one.row.id]
        ready_us = history.attended_us(max(one.row.due_ms * 1_000, written.at_us, calm_us))
        if put is not None and put.letter.group is not None:
            key = put.letter.group, put.letter.priority
            ready_us = max(ready_us, groups.get(key, 0))
            groups[key] = max(one.ended_us or history.ended_us, groups.get(key, 0))
        found_us = _found_us(case, written)
        if found_us is None or one.begun_us <= ready_us + bound_us + found_us:
            continue
        called_us = _called_us(case, one.row.shard.lane, ready_us, one.begun_us)
        if one.begun_us > ready_us + bound_us + found_us + called_us:
            yield Breach(
                "stuck",
                f"m{one.token} from {clock_of(case, ready_us)} to {clock_of(case, one.begun_us)}: "
                f"{story(case, one.token)}",
                one.token,
            )


def _called_us(case: Case, lane: int, since_us: int, until_us: int) -> int:
    """How long callers had shards of a lane, who come for what is in them when they like."""
    spans: list[tuple[int, int]] = []
    for shard, events in case.leases_of.items():
        if shard.queue == QUEUE and shard.lane == lane:
            ends_us = [*(us for us, _, _ in events[1:]), events[-1][0] + LEASE_US]
            spans += [
                (max(us, since_us), min(end_us, until_us))
                for (us, process, what), end_us in zip(events, ends_us, strict=True)
                if what != "released" and case.is_caller(process)
            ]
    total_us = reached_us = 0
    for begin_us, end_us in sorted(spans):
        total_us += max(end_us - max(begin_us, reached_us), 0)
        reached_us = max(reached_us, end_us)
    return total_us


def _found_us(case: Case, written: Written) -> int | None:
    """How long a sweep of the ladder may take to find a row behind the cursors; None: none does."""
    shard, history = written.row.shard, case.history
    sealed_us = history.sealed_us.get((shard.lane, shard.minute), history.ended_us)
    every_us = RUNGS[-1].every_ms * 1_000
    late_us = written.at_us - written.row.due_ms * 1_000
    if late_us <= _STORED_US:
        return 0
    if history.plan.is_local:
        return every_us
    return every_us if late_us <= every_us and written.at_us < sealed_us else None


def _lanes(plan: Plan, at_s: float) -> int:
    """How many lanes are read at a time; they never get fewer."""
    altered = [int(one.value) for one in plan.events if one.kind == "lanes" and one.at_s <= at_s]
    lanes: int = plan.settings["bands"] * max([plan.settings["lanes"], *altered])
    return lanes


def _was_in_time(put: Put) -> bool:
    """Whether a message was stored while its due was still being polled for."""
    return (put.ended_us or 0) <= max(put.asked_us, put.begun_us) + _STORED_US


def _ended_us(case: Case, before: Sequence[Delivery]) -> int | None:
    """When all of a group that came before had ended; None where one of them was to come again."""
    last = {one.token: one for one in before}
    if any(one.outcome not in ("ack", "bury") or one.ended_us is None for one in last.values()):
        return None
    return max((one.ended_us or 0 for one in before), default=0)


def _let_go_us(case: Case, one: Delivery, ready_us: int) -> int:
    """When another released its shard, whose handler had kept it by then; 0 where none had.

    A lane that has become another's stays where it was until what runs of it is parked.
    """
    settings = case.history.plan.settings
    hold_us = min(int(settings["hold"][:-2]) * 1_000, _LET_GO_US)
    for us, name, what, shard, _ in case.history.leases:
        if shard != one.row.shard or what != "released" or name == one.process:
            continue
        if ready_us < us <= one.begun_us and any(
            other.process == name
            and other.row.shard == shard
            and other.begun_us <= us <= other.begun_us + hold_us + _PARKED_US
            and (other.ended_us is None or other.ended_us + _PARKED_US >= us)
            for other in case.history.deliveries
        ):
            return us
    return 0


class _Calm:
    """When nothing was going on that may keep a message up."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._spans = _merged(_disturbances(case))
        self._starts = [begun_us for begun_us, _ in self._spans]
        self._long: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for one in case.history.deliveries:
            ended_us = one.ended_us or 1 << 62
            if one.kind == "handler" and ended_us - one.begun_us > _LONG_US:
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
        """Whether it was for so long from a time on, for what a process had then.

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
        """Whether members outnumber lanes, so that these go round."""
        history = self._case.history
        members = len(self._threads) + (_HEALERS if us >= history.healed_us else 0)
        return members > _lanes(history.plan, (us - self._start_us) / 1e6)


def _disturbances(case: Case) -> Iterator[tuple[int, int]]:
    """Stretches of time in which a lane may have no reader, or one that the store keeps up."""
    history, plan = case.history, case.history.plan
    start_us = history.healed_us - round(plan.active_s * 1e6)
    yield 0, start_us + _SETTLED_US
    yield history.healed_us, history.healed_us + _SETTLED_US
    for us, _ in history.crashes:
        yield us, us + _GONE_US
    for begun_us, until_us, _ in history.freezes:
        yield begun_us, until_us + (_GONE_US if until_us > begun_us + _NAP_US else _SETTLED_US)
    for fork in history.forks:
        yield fork.us, fork.us + _GONE_US
    for name, (begun_us, until) in history.stops.items():
        back_us = begun_us + case.deadline_us(name) + _BACK_US
        yield begun_us, max(until or 0, back_us) + _SETTLED_US
    for machine in plan.machines:
        came_us = start_us + round(machine.start_s * 1e6)
        yield came_us, came_us + _SETTLED_US
    for event in plan.events:
        if event.kind in ("lanes", "purge", "pause", "redrive"):
            at_us = start_us + round(event.at_s * 1e6)
            yield at_us, at_us + round(event.seconds * 1e6) + _SETTLED_US
    slow_us = plan.weather["slow_us"] if {"slow", "slow_lwt"} & plan.weather.keys() else 0
    for name in {*history.troubles, *history.failed} - {STEWARD, *case.putters}:
        troubles = [*history.troubles.get(name, ()), *history.failed.get(name, ())]
        # A crash ends a slow call as well.
        troubles += [us for us, crashed in history.crashes if crashed == name]
        for us, next_us in pairwise([*sorted(troubles), 1 << 62]):
            # Of a slow call both ends are known, and not that they are of one.
            is_one = next_us - us <= slow_us
            yield us, next_us if is_one else us + plan.weather["timeout_us"] + _BACKED_OFF_US


def _merged(spans: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begun_us, until_us in sorted(spans):
        if merged and begun_us <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], until_us)
        else:
            merged.append((begun_us, until_us))
    return merged
