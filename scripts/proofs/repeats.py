"""Second deliveries, each of which needs a cause: a pure function of processes' files.

```
 first delivery ── begun ───── in flight ─────► settled: the store has its ack
      │                           │
      │   trouble ────────────────┴─► its lease runs out ─► delivered again: excused by this trouble
      │                                                     settled before: by none, but as a zombie
      └─ asked to come again, and the store has it ───────► delivered again: needs no cause
```

No trouble of the store or of a consumer explains a second delivery if the first was settled before
the row was reread, or if it comes sooner than a lease can run out. In a backlog a row may wait
longer for its hand-out than for its ack, so the time at which the row was read counts; consumers
record it. The asker records when the store had its outcome. The new due of the message may prove
that even before the asker knows.
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
"""A row is read at most this long before it is taken into memory; its ack may be stored
meanwhile."""
LEASE_US = 10_000_000
"""The length of a lease."""
LEASE_GAP_US = 1_000_000
"""A lease ends this much sooner for its holder than for the other members."""
LEASE_LEFT_US = 4_000_000
"""The least time that a lease, renewed every 3 s, has left when its holder dies or is stopped."""
THAW_US = 500_000
"""A frozen consumer delivers the rows that its threads held within this time after it continues."""
IN_THE_AIR_US = 2_000_000
"""A delete that two nodes have may be on its way to the third for this long; then it is dropped."""
SLOW_US = 1_000_000
"""Without trouble an ack is stored within this time."""
TAIL_US = 10_000_000
"""For this long after the store takes writes again, some connections of processes may still
fail."""
CLOCKS_US = 20_000
"""The most by which the store's clock, which decides what is due, and the files' clock differ.

A process's clock is behind the store's by the time that an answer takes.
"""


class Kind(Enum):
    """The kind of a trouble."""

    STORE = auto()
    """The store, or a part of it, refuses or loses requests."""
    KILLED = auto()
    """A consumer died."""
    FROZEN = auto()
    """A consumer was frozen."""
    ZOMBIES = auto()
    """A node misses deletes, and does not get them later."""


class Trouble(NamedTuple):
    """A disturbance that may cause second deliveries.

    Attributes:
        cause: The cause in words.
        kind: Its kind, which decides the deliveries that it may explain.
        from_us: When it began, by the machine's clock, epoch microseconds.
        until_us: When it had ended.
        consumer: The only affected consumer, by its file's name; None: all processes are affected.
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
        """The end of the time in which a process may meet the trouble."""
        return self.until_us + (TAIL_US if self.kind is Kind.STORE else 0)

    def met(self, one: HandOut, at_us: int | None) -> bool:
        """True if a delivery began by the trouble's end, or soon after and its outcome was slow.

        Args:
            one: The delivery.
            at_us: When the store had the delivery's outcome; None: not known.
        """
        if self.consumer not in {None, one.consumer} or one.began_us > self.reach_us:
            return False
        hung = at_us is None or at_us - one.began_us > SLOW_US
        return one.began_us <= self.until_us or hung


@dataclass(slots=True)
class Repeats:
    """Second deliveries, by their cause.

    Attributes:
        excused: How many have a cause, by cause.
        in_flight: How many deliveries were begun and not settled, by cause; each might have been
            repeated.
        again: Second deliveries that ran beside the first, whose consumer was alive. Each of the
            two postpones the message without seeing the other's row. So the message may be
            delivered once more, among later messages of its group.
        unexplained: Second deliveries without a cause, each with the reason why the nearest trouble
            does not explain it.
    """

    excused: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[str] = field(default_factory=Counter)
    again: list[HandOut] = field(default_factory=list)
    unexplained: list[tuple[HandOut, str]] = field(default_factory=list)


Times = dict[tuple[str, str], list[int]]
"""When a step was done for rows: consumer and message id -> epoch microseconds, sorted.

There are several times if a consumer had a message more than once.
"""


def read_times(paths: Iterable[Path]) -> Times:
    """The times at which rows were taken into memory, or outcomes stored, from consumers' files.

    A line that a kill has cut off is left out.
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
    """The share of messages for which an outcome is known to be stored.

    A killed consumer may not have recorded the outcomes of its last seconds, so its last lease does
    not count.
    """
    died_us = {one.consumer: one.from_us for one in troubles if one.kind is Kind.KILLED}
    wanted = {
        one.id for one in hand_outs if one.began_us < died_us.get(one.consumer, math.inf) - LEASE_US
    }
    known = {message_id for _, message_id in settled}
    return len(wanted & known) / max(len(wanted), 1)


def settled_us(one: HandOut, settled: Mapping[tuple[str, str], list[int]]) -> int | None:
    """When the store had a delivery's outcome; None if that was not recorded."""
    times = settled.get((one.consumer, one.id), [])
    place = bisect_left(times, one.began_us)
    return times[place] if place < len(times) else None


def read_us(first: HandOut, again: HandOut, taken: Mapping[tuple[str, str], list[int]]) -> int:
    """When the row of a second delivery was taken into memory; if not recorded, when it began."""
    times = taken.get((again.consumer, again.id), [])
    place = bisect_right(times, again.began_us)
    at_us = times[place - 1] if place else again.began_us
    # A consumer that has handed out a row has to reread it for a second delivery.
    is_read = first.consumer != again.consumer or at_us > first.began_us
    return at_us if is_read else again.began_us


def asking(
    before: Iterable[HandOut], again: HandOut, settled: Mapping[tuple[str, str], list[int]]
) -> list[HandOut]:
    """The deliveries of a message that asked for a later one, and whose outcome was stored."""
    found = []
    for one in before:
        at_us = settled_us(one, settled) if one.asks else None
        is_known = at_us is not None and at_us <= again.began_us
        if is_known or (one.asks and _shows(again, one)):
            found.append(one)
    return found


def _fits(again: HandOut, ask: HandOut) -> bool:
    """True if a second delivery can be the one that an earlier delivery had asked for.

    Its number may include unrecorded attempts. A second delivery with an earlier due was read
    before the new due was stored.
    """
    came_us = again.began_us if again.is_claim else again.due_ms * 1_000
    return again.attempt >= ask.next_attempt and came_us >= ask.next_due_us - CLOCKS_US


def _shows(again: HandOut, ask: HandOut) -> bool:
    """True if a second delivery can only be the one that was asked for, recorded or not.

    Until the new due is stored, the row is delivered at its old due, or after its claim.
    """
    due_us = ask.next_due_us - CLOCKS_US
    if again.attempt != ask.next_attempt or again.began_us < due_us:
        return False
    if ask.is_claim:
        return again.began_us < ask.due_ms * 1_000
    # A parked delivery gets a new due, and the old due of a claim is not known.
    was_parked = ask.ended_us - ask.began_us >= HOLD_MS * 1_000
    return not (was_parked or again.is_claim) and again.due_ms * 1_000 >= due_us


def was_stored_late(
    ask: HandOut, other: HandOut, settled: Mapping[tuple[str, str], list[int]]
) -> bool:
    """True if an asked-for delivery was stored only after its due, and after another had begun.

    Args:
        ask: The delivery that asked.
        other: A delivery of its group that began before the asked-for one.
        settled: When the store had each outcome, as `read_times` returns it.
    """
    at_us = settled_us(ask, settled)
    return at_us is None or at_us > max(ask.next_due_us, other.began_us)


def stood_still(pair: Iterable[HandOut], troubles: Iterable[Trouble]) -> bool:
    """True if the consumer of one of two deliveries was frozen during it."""
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
    """Find a cause for each second delivery that no earlier delivery has asked for.

    Args:
        hand_outs: The hand-outs of all consumers.
        settled: When the store had each outcome, as `read_times` returns it.
        taken: When each row was taken into memory, likewise.
        troubles: All troubles that were caused on purpose.
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
                    # Each asker has stored a row of its own, so the other rows are still to be
                    # delivered.
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

    A trouble is a cause if it had begun by then, and the first delivery was not settled before the
    trouble. A consumer's trouble is a cause only if that consumer had the message.

    Args:
        hand_outs: The hand-outs of all consumers.
        settled: When the store had each outcome, as `read_times` returns it.
        troubles: All troubles that were caused on purpose, and those that consumers report.
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
    """True if all holders of a message may have postponed it before they saw each other's rows.

    When its handler ends, each holder checks that the row exists, and then stores its own row.
    """
    looked_us = max(one.ended_us for one in asked)
    times = [settled_us(one, settled) for one in asked]
    return all(at_us is not None and at_us >= looked_us for at_us in times)


def _is_of(again: HandOut, ask: HandOut, twins: Mapping[HandOut, int]) -> bool:
    """True if a delivery is of the row that another delivery has stored, not of its twin's row.

    Args:
        twins: Deliveries of one message that have stored a row each -> the due with which the row
            of another was delivered, epoch milliseconds.
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
    """Judge a repeat: all earlier deliveries must have been in flight in the same trouble."""
    why_not = "nothing was wrong"
    for place, trouble in enumerate(troubles):
        reasons = [
            _why_not(one, again, settled_us(one, settled), read_us(one, again, taken), trouble)
            for one in before
        ]
        refusals = [reason for reason in reasons if reason is not None]
        if trouble.kind is Kind.FROZEN and refusals and _was_in_hand(again, trouble):
            # The row was about to be handed out when its consumer was frozen.
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
    """Why a trouble does not explain a second delivery; "" if it was another consumer's trouble."""
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
    """True if a delete was acknowledged while a node missed deletes."""
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
    """The number of deliveries that a trouble met begun, and not settled for longer than usual."""
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
