"""The rule of free hands: what is due does not wait where somebody could begin it.

```
 due ├───────────────────── waits ─────────────────────┤ begun
           ├────── a slot elsewhere is free ──────┤
                     undisturbed, and longer than 1.5 s: a breach
```
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from simulation.calm import disturbances, indices_filled, merged
from simulation.case import Breach, Case
from simulation.plan import machine_of
from simulation.stories import clock_of, story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.history import Delivery, Written

_BOUND_US = 1_500_000
"""How long, at the most: to notice that it has surplus, that a slot is free, to move it there."""
_LIED_TO_US = 8_000_000
"""And where somebody tells of free slots that has none: what it was given, and its lanes, others
take over, and it is given nothing more."""
_STORED_US = 300_000
"""What is stored later than so long after its due is for the sweeps to find."""
_KNOWN_US = 500_000
"""How long after its first heartbeat a member is known to those who have surplus."""
_PREFETCH_MIN = 100
_NEVER_US = 1 << 62


def idle(case: Case) -> Iterator[Breach]:
    """A due row without a group begins soon where a thread is free, here or elsewhere."""
    history = case.history
    plan = history.plan
    readers = [machine for machine in plan.machines if machine.role != "producer"]
    if any(m.isolated or m.prefetch < _PREFETCH_MIN for m in readers):
        # Nothing is shared by who reads ended minutes; and without room not all is read.
        return
    if len(readers) > indices_filled(plan):
        # Who has no lane can be given nothing, until it is that one's turn to have one.
        return
    waits = [wait for one in history.deliveries if (wait := _wait_of(case, one)) is not None]
    if not waits:
        return
    for bound_us, lies in ((_BOUND_US, True), (_LIED_TO_US, False)):
        calm = _gaps(merged(disturbances(case, comings=False, lies=lies)), 0, history.ended_us)
        yield from _left_waiting(case, waits, calm, bound_us)


def _left_waiting(
    case: Case,
    waits: list[tuple[int, Delivery]],
    calm: list[tuple[int, int]],
    bound_us: int,
) -> Iterator[Breach]:
    free = _free(case)
    for since_us, one in waits:
        for begun_us, until_us in calm:
            from_us, to_us = max(since_us, begun_us), min(one.begun_us, until_us)
            if to_us - from_us <= bound_us:
                continue
            name = next(
                (n for n, spans in free.items() if _is_free(spans, from_us, to_us, bound_us)), None
            )
            if name is not None:
                yield Breach(
                    "idle",
                    f"m{one.token} waited from {clock_of(case, since_us)} to "
                    f"{clock_of(case, one.begun_us)} while {name} had a free thread: "
                    f"{story(case, one.token)}",
                    one.token,
                )
                break


def _wait_of(case: Case, one: Delivery) -> tuple[int, Delivery] | None:
    """Since when a delivery's row could have begun; None where it waited for no thread."""
    if one.kind != "handler" or one.row.group is not None or one.row.claim is not None:
        return None
    first: Written = case.history.written[one.row.id]
    while first.row.id in case.shares and (source := case.source_of(first)) is not None:
        first = source
    due_us = first.row.due_ms * 1_000
    if first.at_us > due_us + _STORED_US or first.row.claim is not None:
        return None
    since_us = max(due_us, first.at_us)
    return (since_us, one) if one.begun_us - since_us > _BOUND_US else None


def _is_free(spans: list[tuple[int, int]], from_us: int, to_us: int, bound_us: int) -> bool:
    return any(min(end, to_us) - max(begin, from_us) > bound_us for begin, end in spans)


def _free(case: Case) -> dict[str, list[tuple[int, int]]]:
    """Of each consumer when it had a thread that ran nothing, again and again for as long."""
    history = case.history
    threads = {m.name: m.threads for m in history.plan.machines if m.role == "consumer"}
    ran: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one in history.deliveries:
        if one.kind == "handler":
            ran[one.process].append((one.begun_us, one.ended_us or _NEVER_US))
    free = {}
    for name, beat_us in history.beat_us.items():
        slots = threads.get(machine_of(name))
        if slots is not None:
            until_us = min(
                history.stops.get(name, (history.ended_us, None))[0],
                case.crash_us.get(name, history.ended_us),
                history.healed_us,
            )
            free[name] = _gaps(_full(ran[name], slots), beat_us + _KNOWN_US, until_us)
    return free


def _full(spans: list[tuple[int, int]], slots: int) -> list[tuple[int, int]]:
    """When so many ran at once."""
    edges = sorted([(us, 1) for us, _ in spans] + [(us, -1) for _, us in spans])
    full: list[tuple[int, int]] = []
    count = since_us = 0
    for us, step in edges:
        was_full = count >= slots
        count += step
        if not was_full and count >= slots:
            since_us = us
        elif was_full and count < slots:
            full.append((since_us, us))
    return full


def _gaps(spans: list[tuple[int, int]], begin_us: int, end_us: int) -> list[tuple[int, int]]:
    """What is left of a stretch of time between others."""
    gaps = []
    at_us = begin_us
    for since_us, until_us in spans:
        if since_us > at_us:
            gaps.append((at_us, min(since_us, end_us)))
        at_us = max(at_us, until_us)
    if at_us < end_us:
        gaps.append((at_us, end_us))
    return [(since_us, until_us) for since_us, until_us in gaps if until_us > since_us]
