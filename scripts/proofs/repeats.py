"""Second deliveries, each of which needs a cause: a pure function of what processes wrote down.

```
 first delivery ── begun ───── in flight ─────► settled: the store has its ack
      │                           │
      │   trouble ────────────────┴─► its lease runs out ─► delivered again: excused by this trouble
      │                                                     settled before: by none, but as a zombie
      └─ asked to come again, and the store has it ───────► delivered again: needs no cause
```

What was settled and comes again, or comes again sooner than a lease can run out, no trouble of the
store or of a consumer explains. That the store has what was asked for, its asker writes down, or
the due shows with which the message comes again, before the asker knows.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from proofs.courses import HOLD_MS, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from proofs.judge import HandOut

READ_AHEAD_US = 3_000_000
"""A row is read so long before it is handed out, at most: its ack may be stored meanwhile."""
LEASE_GAP_US = 1_000_000
"""A lease ends for its holder so long before it ends for the others."""
THAW_US = 500_000
"""Rows that a frozen consumer's threads had in hand come so soon after it goes on."""
IN_THE_AIR_US = 2_000_000
"""A delete that two nodes have may be under way to the third for so long, until it is dropped."""
SLOW_US = 1_000_000
"""An ack is stored sooner, where nothing is wrong."""
CLOCKS_US = 20_000
"""The store's clock, which says what is due, and that of the files differ by less."""


class Kind(Enum):
    """What a trouble is one of."""

    STORE = auto()
    """The store, or some of it, does not take what it is told."""
    KILLED = auto()
    """A consumer died."""
    FROZEN = auto()
    """A consumer stood still."""
    ZOMBIES = auto()
    """A node misses deletes, and will not be told of them."""


class Trouble(NamedTuple):
    """What may make deliveries come twice.

    Attributes:
        cause: In words.
        kind: What may come twice for it, and what not.
        from_us: When it began, by the machine's clock, epoch microseconds.
        until_us: When it was over.
        consumer: Whose it is: the file's name; None: everybody's.
        threads: How many handlers that consumer has.
        grace_us: For zombies: how long tombstones are kept.
    """

    cause: str
    kind: Kind
    from_us: int
    until_us: int
    consumer: str | None = None
    threads: int = 0
    grace_us: int = 0


@dataclass(slots=True)
class Repeats:
    """Second deliveries, by their cause.

    Attributes:
        excused: How many, by cause.
        in_flight: How many could have come again, by cause: begun and not settled.
        again: Those of them that another than a dead one had at the same time. Each of the two puts
            it off by itself, and what one stores the other does not see: so it may come once more,
            between those behind it in its group.
        unexplained: Those without a cause, each with why the nearest one does not do.
    """

    excused: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[str] = field(default_factory=Counter)
    again: list[HandOut] = field(default_factory=list)
    unexplained: list[tuple[HandOut, str]] = field(default_factory=list)


Settled = dict[tuple[str, str], list[int]]
"""When the store had deliveries' outcomes: consumer and message id -> epoch microseconds, sorted.

A consumer may have had a message more than once.
"""


def read_settled(paths: Iterable[Path]) -> Settled:
    """What consumers wrote of outcomes that the store has; a line torn by a kill is none."""
    settled: Settled = {}
    for path in paths:
        data = path.read_bytes() if path.exists() else b""
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            at_us, ids = json.loads(line)
            for one in ids:
                settled.setdefault((path.stem, one), []).append(at_us)
    return settled


def settled_us(one: HandOut, settled: Mapping[tuple[str, str], list[int]]) -> int | None:
    """When the store had a delivery's outcome; None where nobody wrote that down."""
    times = settled.get((one.consumer, one.id), [])
    place = bisect_left(times, one.began_us)
    return times[place] if place < len(times) else None


def asking(
    before: Iterable[HandOut], again: HandOut, settled: Mapping[tuple[str, str], list[int]]
) -> list[HandOut]:
    """Those deliveries of a message that asked for the one that came then, and were stored."""
    found = []
    for one in before:
        at_us = settled_us(one, settled) if one.asks else None
        is_known = at_us is not None and at_us <= again.began_us
        if is_known or (one.asks and _shows(again, one)):
            found.append(one)
    return found


def _shows(again: HandOut, ask: HandOut) -> bool:
    """Whether what came again can only be what a delivery had asked for, whoever knew it by then.

    As long as that has not been stored, the row comes when it was due before, or its claim is over.
    """
    due_us = ask.ended_us + ask.delay_ms * 1_000 - CLOCKS_US
    is_next = again.attempt == ask.attempt + (ask.outcome == Outcome.RETRIED)
    if not is_next or again.began_us < due_us:
        return False
    if ask.is_claim:
        return again.began_us < ask.due_ms * 1_000
    # What was parked meanwhile came due anew, and of a claim nobody knows what it was due before.
    was_parked = ask.ended_us - ask.began_us >= HOLD_MS * 1_000
    return not (was_parked or again.is_claim) and again.due_ms * 1_000 >= due_us


def was_stored_late(
    ask: HandOut, other: HandOut, settled: Mapping[tuple[str, str], list[int]]
) -> bool:
    """Whether what was to come again was stored only after its due, and after another had begun.

    Args:
        ask: The delivery that asked for it.
        other: Of its group, begun before that came.
        settled: As `read_settled` tells.
    """
    at_us = settled_us(ask, settled)
    due_us = ask.ended_us + ask.delay_ms * 1_000
    return at_us is None or (at_us > due_us and at_us > other.began_us)


def judge(
    hand_outs: Iterable[HandOut],
    settled: Mapping[tuple[str, str], list[int]],
    troubles: Sequence[Trouble],
) -> Repeats:
    """Find a cause for each second delivery that no delivery before has asked for.

    Args:
        hand_outs: Of all consumers.
        settled: As `read_settled` tells.
        troubles: All that was done on purpose.
    """
    of_body: dict[str, list[HandOut]] = defaultdict(list)
    for one in hand_outs:
        of_body[one.body].append(one)
    found = Repeats()
    for trouble in troubles:
        found.in_flight[trouble.cause] += _in_flight(of_body, settled, trouble)
    excused = [0] * len(troubles)
    for deliveries in of_body.values():
        deliveries.sort(key=lambda one: (one.began_us, one.number))
        before = deliveries[:1]
        for again in deliveries[1:]:
            asked = asking(before, again, settled)
            if asked:
                # Each asks for one.
                before = [one for one in before if one not in asked]
            else:
                _judge_one(before, again, settled, troubles, excused, found)
            before.append(again)
    return found


def _judge_one(
    before: Sequence[HandOut],
    again: HandOut,
    settled: Mapping[tuple[str, str], list[int]],
    troubles: Sequence[Trouble],
    excused: list[int],
    found: Repeats,
) -> None:
    """Each of those before must have been in flight, for the same trouble."""
    why_not = "nothing was wrong"
    for place, trouble in enumerate(troubles):
        reasons = [_why_not(one, again, settled_us(one, settled), trouble) for one in before]
        refusals = [reason for reason in reasons if reason is not None]
        if trouble.kind is Kind.FROZEN and refusals and _was_in_hand(again, trouble):
            # It was about to be handed out when its consumer was stopped.
            refusals = []
            excused[place] += 1
            if excused[place] > trouble.threads:
                refusals = [f"more than its {trouble.threads} threads had in hand"]
        if not refusals:
            found.excused[trouble.cause] += 1
            if trouble.kind in (Kind.STORE, Kind.FROZEN):
                found.again.append(again)
            return
        if refusals[0]:
            why_not = f"{trouble.cause}: {refusals[0]}"
    found.unexplained.append((again, why_not))


def _why_not(first: HandOut, again: HandOut, at_us: int | None, trouble: Trouble) -> str | None:
    """Why a trouble does not explain that a message came again; "" where it was another's."""
    if trouble.kind is Kind.ZOMBIES:
        if not _was_missed(at_us, trouble):
            return "it was not deleted then"
        is_kept = again.began_us < (at_us or 0) + trouble.grace_us
        return "its tombstone was still there" if is_kept else None
    is_elsewhere = trouble.consumer not in {None, first.consumer}
    if is_elsewhere or first.began_us > trouble.until_us or again.began_us < trouble.from_us:
        return ""
    why_not = None
    gap_us = again.began_us - first.began_us
    if gap_us < LEASE_GAP_US:
        why_not = f"no lease runs out in {gap_us / 1e6:.2f} s"
    elif at_us is not None and at_us < trouble.from_us:
        why_not = "it was settled before"
    elif at_us is not None and at_us < again.began_us - READ_AHEAD_US:
        why_not = f"it had been settled for {(again.began_us - at_us) / 1e6:.1f} s"
    elif trouble.kind is Kind.KILLED and first.consumer == again.consumer:
        why_not = "it came again to the one that died"
    return why_not


def _was_missed(at_us: int | None, trouble: Trouble) -> bool:
    """Whether a delete was acknowledged when a node missed deletes."""
    from_us = trouble.from_us - IN_THE_AIR_US
    return at_us is not None and from_us <= at_us <= trouble.until_us


def _was_in_hand(again: HandOut, trouble: Trouble) -> bool:
    ran_on_us = again.began_us - trouble.until_us
    return again.consumer == trouble.consumer and 0 <= ran_on_us <= THAW_US


def _in_flight(
    of_body: Mapping[str, Sequence[HandOut]],
    settled: Mapping[tuple[str, str], list[int]],
    trouble: Trouble,
) -> int:
    """How many deliveries were begun and not settled, for longer than usual, in a trouble."""
    if trouble.kind is Kind.ZOMBIES:
        return sum(
            _was_missed(settled_us(one, settled), trouble)
            for deliveries in of_body.values()
            for one in deliveries
        )
    count = trouble.threads if trouble.kind is Kind.FROZEN else 0
    for deliveries in of_body.values():
        for one in deliveries:
            if trouble.consumer not in {None, one.consumer} or one.began_us > trouble.until_us:
                continue
            at_us = settled_us(one, settled)
            count += at_us is None or (at_us >= trouble.from_us and at_us - one.began_us > SLOW_US)
    return count
