"""The rules of lateness: messages begin soon after they can, unless something delays them."""

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
"""A due, stored message begins within this: polls come every 0.1 s, and one may be slow."""
_HANDED_US = 1_000_000
"""The same while members restart one by one and nothing else goes wrong."""
_PULLED_US = 4_000_000
"""A group goes on within this of its head's end: rows due within 3 s are not brought forward."""
_STORED_US = 300_000
"""The sweep of 0.5 s finds rows stored up to this long after their due."""
_ROWS_MIN = 20
"""With room in memory for this many rows of each lane, no lane delays another."""
_LET_GO_US = 250_000
"""A handler keeps a lane that passed to another member this long, or for `hold` if shorter."""
_PARKED_US = 500_000
"""The time to park a handler's row and release its shard if nothing is slow."""
_SET_US = 5_000_000
"""The extra lateness of a message that is due about when the machine's clock is set."""
_UNSTUCK_US = 2_000_000
"""Once all faults have ended, each message is found within two leases plus this."""


def late(case: Case) -> Iterator[Breach]:
    """A due, stored message begins within moments, unless something may delay it."""
    history = case.history
    plan = history.plan
    comes_late = any(m.isolated or m.role == "caller" for m in plan.machines)
    if not history.healed_us or comes_late or plan.ending:
        # An isolated reader waits for the end of a minute and its offset, a caller receives
        # when it likes, and a limit delays messages.
        return
    readers = [machine for machine in plan.machines if machine.role != "producer"]
    if any(machine.prefetch < lanes_read(plan, plan.active_s) * _ROWS_MIN for machine in readers):
        return
    # A clean stop or start delays no message: lanes pass to other members in between. But if
    # members outnumber lanes, they take turns, and it is open for a while whose turn it is.
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
            # A message with a key needs more calls to begin, and may be moved by key.
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
        # The first reader may have waited until another member's handler let its lane go.
        bound_us += max(_let_go_us(case, ones[0], ready_us) - ready_us, 0)
        if late_us > bound_us and calm.is_calm(ready_us, bound_us, put, ones[0].process):
            yield Breach(
                "late",
                f"m{token} by {late_us / 1e6:.3f} s from {clock_of(case, ready_us)}: "
                f"{story(case, token)}",
                token,
            )


def stuck(case: Case) -> Iterator[Breach]:
    """Once all faults have ended, each due message begins within two leases.

    Time that handlers ran is added, and rows behind a seal wait for its sweeps.
    """
    history = case.history
    plan = history.plan
    if not history.healed_us or plan.ending or any(one.isolated for one in plan.machines):
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
    """How long callers had leases of a lane's shards: they fetch the messages when they like."""
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
    """How soon a sweep of the ladder finds a row behind the cursors; None: no sweep does."""
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
    """True if a message was stored so soon after its due that polls still read it."""
    return (put.ended_us or 0) <= max(put.asked_us, put.begun_us) + _STORED_US


def _ended_us(case: Case, before: Sequence[Delivery]) -> int | None:
    """When all earlier messages of a group had ended; None if one of them was to be retried."""
    last = {one.token: one for one in before}
    if any(one.outcome not in ("ack", "bury") or one.ended_us is None for one in last.values()):
        return None
    return max((one.ended_us or 0 for one in before), default=0)


def _let_go_us(case: Case, one: Delivery, ready_us: int) -> int:
    """When another process released the shard that its running handler had kept; 0: none had.

    A lane passes to another member only after its running messages are parked.
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
