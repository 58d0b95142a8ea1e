"""Second deliveries, each of which needs a cause: a pure function of what processes wrote down.

```
 first delivery ── begun ───── in flight ─────► settled: the store has its ack
      │                           │
      │   trouble ────────────────┴─► its lease runs out ─► delivered again: excused by this trouble
      │                                                     settled before: by none, but as a zombie
      └─ asked to come again, and the store has it ───────► delivered again: needs no cause
```

What was settled before its row was read again, or comes again sooner than a lease can run out, no
trouble of the store or of a consumer explains. In a backlog what has been read may wait for its
hand-out longer than for its ack: its reading counts, which consumers write down. That the store has
what was asked for, its asker writes down, or the due shows with which the message comes again,
before the asker knows.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from proofs.courses import HOLD_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from proofs.judge import HandOut

READ_US = 3_000_000
"""A row is read so long before it is taken in, at most: its ack may be stored meanwhile."""
LEASE_US = 10_000_000
"""A lease lasts for so long."""
LEASE_GAP_US = 1_000_000
"""A lease ends for its holder so long before it ends for the others."""
LEASE_LEFT_US = 4_000_000
"""Renewed every 3 s, it lasts for longer when its holder dies or is stopped."""
THAW_US = 500_000
"""Rows that a frozen consumer's threads had in hand come so soon after it goes on."""
IN_THE_AIR_US = 2_000_000
"""A delete that two nodes have may be under way to the third for so long, until it is dropped."""
SLOW_US = 1_000_000
"""An ack is stored sooner, where nothing is wrong."""
TAIL_US = 10_000_000
"""So long after the store takes writes again, some connections of some processes do not yet."""
CLOCKS_US = 20_000
"""The store's clock, which says what is due, and that of the files differ by less.

A process's clock is behind the store's by what an answer takes, and may catch up in between.
"""


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

    @property
    def reach_us(self) -> int:
        """Until when a process may meet it."""
        return self.until_us + (TAIL_US if self.kind is Kind.STORE else 0)

    def met(self, one: HandOut, at_us: int | None) -> bool:
        """Whether a delivery began in it, or before; or soon after, and its outcome hung.

        Args:
            one: The delivery.
            at_us: When the store had its outcome; None: not known.
        """
        if self.consumer not in {None, one.consumer} or one.began_us > self.reach_us:
            return False
        hung = at_us is None or at_us - one.began_us > SLOW_US
        return one.began_us <= self.until_us or hung


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


Times = dict[tuple[str, str], list[int]]
"""When a thing was done to rows: consumer and message id -> epoch microseconds, sorted.

A consumer may have had a message more than once.
"""


def read_times(paths: Iterable[Path]) -> Times:
    """What consumers wrote of rows taken in, or of outcomes that the store has, in a file each.

    A line torn by a kill is none.
    """
    times: Times = {}
    for path in paths:
        data = path.read_bytes() if path.exists() else b""
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            at_us, ids = json.loads(line)
            for one in ids:
                times.setdefault((path.stem, one), []).append(at_us)
    return times


def known_share(
    hand_outs: Iterable[HandOut],
    settled: Mapping[tuple[str, str], list[int]],
    troubles: Iterable[Trouble],
) -> float:
    """Of how many messages an outcome is known to be stored, as a part of all.

    What one that was killed had in hand in its last lease it may not have written down.
    """
    died_us = {one.consumer: one.from_us for one in troubles if one.kind is Kind.KILLED}
    wanted = {
        one.id for one in hand_outs if one.began_us < died_us.get(one.consumer, math.inf) - LEASE_US
    }
    known = {message_id for _, message_id in settled}
    return len(wanted & known) / max(len(wanted), 1)


def settled_us(one: HandOut, settled: Mapping[tuple[str, str], list[int]]) -> int | None:
    """When the store had a delivery's outcome; None where nobody wrote that down."""
    times = settled.get((one.consumer, one.id), [])
    place = bisect_left(times, one.began_us)
    return times[place] if place < len(times) else None


def read_us(first: HandOut, again: HandOut, taken: Mapping[tuple[str, str], list[int]]) -> int:
    """When the row of a second delivery was taken in; when it began, where nobody wrote that."""
    times = taken.get((again.consumer, again.id), [])
    place = bisect_right(times, again.began_us)
    at_us = times[place - 1] if place else again.began_us
    # One consumer has to read a row anew that it has handed out.
    is_read = first.consumer != again.consumer or at_us > first.began_us
    return at_us if is_read else again.began_us


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


def _fits(again: HandOut, ask: HandOut) -> bool:
    """Whether what came again can be what a delivery had asked for.

    It may count attempts that nobody saw. With an earlier due it was read before it was stored.
    """
    came_us = again.began_us if again.is_claim else again.due_ms * 1_000
    return again.attempt >= ask.next_attempt and came_us >= ask.next_due_us - CLOCKS_US


def _shows(again: HandOut, ask: HandOut) -> bool:
    """Whether what came again can only be what a delivery had asked for, whoever knew it by then.

    As long as that has not been stored, the row comes when it was due before, or its claim is over.
    """
    due_us = ask.next_due_us - CLOCKS_US
    if again.attempt != ask.next_attempt or again.began_us < due_us:
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
        settled: When the store had each outcome, as `read_times` tells.
    """
    at_us = settled_us(ask, settled)
    return at_us is None or at_us > max(ask.next_due_us, other.began_us)


def stood_still(pair: Iterable[HandOut], troubles: Iterable[Trouble]) -> bool:
    """Whether one of two deliveries was in hand of a consumer that was stopped, and ended later."""
    return any(
        one.consumer == trouble.consumer
        and one.began_us <= trouble.until_us + THAW_US
        and one.ended_us >= trouble.until_us
        for trouble in troubles
        if trouble.kind is Kind.FROZEN
        for one in pair
    )


def judge(
    hand_outs: Iterable[HandOut],
    settled: Mapping[tuple[str, str], list[int]],
    taken: Mapping[tuple[str, str], list[int]],
    troubles: Sequence[Trouble],
) -> Repeats:
    """Find a cause for each second delivery that no delivery before has asked for.

    Args:
        hand_outs: Of all consumers.
        settled: When the store had each outcome, as `read_times` tells.
        taken: When each row was taken in, the same.
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
        twins: dict[HandOut, int] = {}
        for again in deliveries[1:]:
            asked = [
                one
                for one in asking(before, again, settled)
                if _fits(again, one) and _is_of(again, one, twins)
            ]
            if asked:
                if len(asked) > 1 and (
                    twins.keys() >= set(asked) or _were_moved_at_once(asked, settled)
                ):
                    # Each has stored a row of its own: the others are still to come.
                    twins.update(dict.fromkeys(asked, again.due_ms))
                    asked = [max(asked, key=lambda one: one.next_due_us)]
                before = [one for one in before if one not in asked]
                if twins.keys() & set(asked):
                    twins[again] = 0
            else:
                _judge_one(before, again, settled, taken, troubles, excused, found)
            before.append(again)
    return found


def judge_plainly(
    hand_outs: Iterable[HandOut],
    settled: Mapping[tuple[str, str], list[int]],
    troubles: Sequence[Trouble],
) -> Repeats:
    """Find a cause for each second delivery of messages that are only acked; counts no seconds.

    A trouble is one where it had begun by then, and what was delivered before was not settled
    before it. That of a consumer is one where the consumer had the message.

    Args:
        hand_outs: Of all consumers.
        settled: When the store had each outcome, as `read_times` tells.
        troubles: All that was done on purpose, and what consumers say went wrong.
    """
    of_body: dict[str, list[HandOut]] = defaultdict(list)
    for one in sorted(hand_outs, key=lambda one: one.began_us):
        of_body[one.body].append(one)
    found = Repeats()
    for deliveries in of_body.values():
        for place, again in enumerate(deliveries[1:], 1):
            consumers = {one.consumer for one in deliveries[: place + 1]}
            times = [settled_us(one, settled) for one in deliveries[:place]]
            causes = [
                one.cause
                for one in troubles
                if one.from_us <= again.began_us
                and one.consumer in {None, *consumers}
                and not any(at_us is not None and at_us < one.from_us for at_us in times)
            ]
            if causes:
                found.excused[causes[0]] += 1
            else:
                found.unexplained.append((again, "nothing was wrong, or it was settled before"))
    return found


def _were_moved_at_once(
    asked: Sequence[HandOut], settled: Mapping[tuple[str, str], list[int]]
) -> bool:
    """Whether those in whose hands a message was may have put it off before they saw the others'.

    Each looks, once its handler has ended, whether the row is there, and then stores its own.
    """
    looked_us = max(one.ended_us for one in asked)
    times = [settled_us(one, settled) for one in asked]
    return all(at_us is not None and at_us >= looked_us for at_us in times)


def _is_of(again: HandOut, ask: HandOut, twins: Mapping[HandOut, int]) -> bool:
    """Whether a delivery is of the row that another has stored; of one twin's, not of the other's.

    Args:
        twins: Deliveries that have stored a row each, of one message -> with what due that of
            another has come, epoch milliseconds.
    """
    return ask not in twins or (again.attempt == ask.next_attempt and again.due_ms != twins[ask])


def _judge_one(
    before: Sequence[HandOut],
    again: HandOut,
    settled: Mapping[tuple[str, str], list[int]],
    taken: Mapping[tuple[str, str], list[int]],
    troubles: Sequence[Trouble],
    excused: list[int],
    found: Repeats,
) -> None:
    """Each of those before must have been in flight, for the same trouble."""
    why_not = "nothing was wrong"
    for place, trouble in enumerate(troubles):
        reasons = [
            _why_not(one, again, settled_us(one, settled), read_us(one, again, taken), trouble)
            for one in before
        ]
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


def _why_not(
    first: HandOut, again: HandOut, at_us: int | None, taken_us: int, trouble: Trouble
) -> str | None:
    """Why a trouble does not explain that a message came again; "" where it was another's."""
    if trouble.kind is Kind.ZOMBIES:
        if not _was_missed(at_us, trouble):
            return "it was not deleted then"
        is_kept = again.began_us < (at_us or 0) + trouble.grace_us
        return "its tombstone was still there" if is_kept else None
    if again.began_us < trouble.from_us or not trouble.met(first, at_us):
        return ""
    why_not = None
    gap_us = again.began_us - first.began_us
    if gap_us < (LEASE_GAP_US if trouble.kind is Kind.STORE else LEASE_LEFT_US):
        why_not = f"no lease runs out in {gap_us / 1e6:.2f} s"
    elif at_us is not None and at_us < trouble.from_us:
        why_not = "it was settled before"
    elif at_us is not None and at_us < taken_us - READ_US:
        why_not = f"it had been settled for {(taken_us - at_us) / 1e6:.1f} s when it was read"
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
            at_us = settled_us(one, settled)
            hung = at_us is None or (at_us >= trouble.from_us and at_us - one.began_us > SLOW_US)
            count += hung and trouble.met(one, at_us)
    return count
