"""True if each message was handed out soon after it could be, where nothing kept it up."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from shardq.engine.reading.lane import RUNGS
from simulation.calm import Calm, indices_filled, lanes_read
from simulation.case import QUEUE, Breach, Case
from simulation.stories import clock_of, story

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulation.history import Delivery, Put, Written

_SOON_US = 2_000_000
"""How soon what is due and stored begins: a poll comes every 0.1 s, and one of them may be slow."""
_HANDED_US = 1_000_000
"""How soon while members restart one after another, and nothing else is wrong."""
_PULLED_US = 4_000_000
"""How soon a group goes on after its head: what comes due within 3 s anyhow is not pulled."""
_STORED_US = 300_000
"""How long after its due a row may be stored, and be found by the sweep of 0.5 s."""
_ROWS_MIN = 20
"""Room for so many rows of each lane is enough that none holds up another."""
_LET_GO_US = 250_000
"""How long a handler keeps a lane that is another's by now, where `hold` is not shorter."""
_PARKED_US = 500_000
"""And how long it may take to park its row, and to release its shard, with nothing slow."""
_SET_US = 5_000_000
"""How much later a message may begin that is due when the machine's clock is set, or soon after."""
_UNSTUCK_US = 2_000_000
"""How long a message may be found by nobody once nothing goes wrong any more, beside two leases."""


def late(case: Case) -> Iterator[Breach]:
    """What is due and stored begins within moments, but where something may keep it up."""
    history = case.history
    plan = history.plan
    if not history.healed_us or any(m.isolated or m.role == "caller" for m in plan.machines):
        # Who reads ended minutes is late by the offset; a caller comes when it likes.
        return
    readers = [machine for machine in plan.machines if machine.role != "producer"]
    if any(machine.prefetch < lanes_read(plan, plan.active_s) * _ROWS_MIN for machine in readers):
        return
    # Who leaves in good order has nothing wait, and who comes: it is handed over in between. Where
    # members outnumber lanes, these go round besides, and it is open for a while to whom.
    is_rolling = "rolling" in plan.kinds and indices_filled(plan) > len(readers)
    calm = Calm(case, comings=not is_rolling)
    groups: dict[str, list[Delivery]] = defaultdict(list)
    for one in history.deliveries:
        put = history.puts.get(one.token)
        if put is not None and put.letter.group is not None:
            groups[put.letter.group].append(one)
    for token, put in history.puts.items():
        ones = case.by_token[token]
        if put.outcome != "acked" or put.ended_us is None or not ones or put.letter.key:
            # What has a name is let begin by calls of its own, and is moved by key.
            continue
        ready_us, bound_us = max(put.asked_us, put.ended_us), _HANDED_US if is_rolling else _SOON_US
        if put.letter.group is not None:
            before = [one for one in groups[put.letter.group] if one.begun_us < ones[0].begun_us]
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
    bound_us = (
        2 * case.lease_us
        + _UNSTUCK_US
        + sum(
            max((one.ended_us or history.ended_us) - max(one.begun_us, calm_us), 0)
            for one in history.deliveries
            if one.kind == "handler" and not case.crashed(one.process, one.begun_us, calm_us)
        )
    )
    groups: dict[str, int] = {}
    for one in sorted(history.deliveries, key=lambda one: one.begun_us):
        put, written = history.puts.get(one.token), history.written[one.row.id]
        ready_us = history.attended_us(max(one.row.due_ms * 1_000, written.at_us, calm_us))
        if put is not None and put.letter.group is not None:
            key = put.letter.group
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
            ends_us = [*(us for us, _, _ in events[1:]), events[-1][0] + case.lease_us]
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
        return every_us if late_us <= RUNGS[-1].depth_ms * 1_000 else None
    return every_us if late_us <= every_us and written.at_us < sealed_us else None


def _was_in_time(put: Put) -> bool:
    """True if a message was stored while its due was still being polled for."""
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
