"""How each message ended, and after how many attempts: a pure function of processes' files.

```
 body ── its course ──┬─► deliveries: their attempts, one after another, no sooner than asked
                      └─► acked, or in the dead-letter queue: one of them, and the right one
```

In a trouble, a message that was due may have used up an attempt that nobody recorded: the attempts
of suspects and of claims are counted before they are handed out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from proofs import repeats
from proofs.courses import ATTEMPTS, Course, Outcome, course_of
from proofs.repeats import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from proofs.judge import HandOut, Put
    from proofs.repeats import Trouble
    from shardq.inspection.audit import Balance

LAPSE_US = 8_000_000
"""In a long trouble, one attempt may go unrecorded in each such time, after which a lease
lapses."""


class Letter(NamedTuple):
    """A message of the dead-letter queue.

    Attributes:
        body: Its body.
        attempts: Deliveries before it died, as the dead message records them.
        reason: Why it died.
    """

    body: str
    attempts: int
    reason: str


@dataclass(slots=True)
class Endings:
    """The ends of all messages.

    Attributes:
        acked: Bodies that a handler or caller has acked.
        dead: Bodies in the dead-letter queue.
        unended: Bodies that were put, and are neither acked nor dead.
        wrong: Bodies that did not end as their course asks, that ended twice, or in both ways; with
            the reason.
        miscounted: Deliveries with a wrong number of the attempt; with the right numbers.
        hasty: Deliveries that came sooner than the delivery before had asked for; with the delivery
            before.
        courses: How many delivered messages had each course.
    """

    acked: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    unended: list[str] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    miscounted: list[tuple[HandOut, str]] = field(default_factory=list)
    hasty: list[tuple[HandOut, HandOut]] = field(default_factory=list)
    courses: dict[Course, int] = field(default_factory=lambda: defaultdict(int))


def plain(_body: str) -> Course:
    """The course of messages in a queue whose handlers only ack."""
    return Course.PLAIN


def judge(
    puts: Iterable[Put],
    hand_outs: Iterable[HandOut],
    letters: Iterable[Letter],
    settled: Mapping[tuple[str, str], list[int]],
    troubles: Sequence[Trouble],
    course: Callable[[str], Course] = course_of,
) -> Endings:
    """Judge how each message ended.

    Args:
        puts: All puts that are known to be stored.
        hand_outs: The hand-outs of all consumers and callers, of a queue that is empty now.
        letters: All messages of the dead-letter queue.
        settled: When the store had each outcome, as `repeats.read_times` returns it.
        troubles: All troubles that were caused on purpose.
        course: Returns the course of a body.
    """
    known = {put.body: put for put in puts}
    of_body: dict[str, list[HandOut]] = defaultdict(list)
    for one in hand_outs:
        of_body[one.body].append(one)
    died: dict[str, list[Letter]] = defaultdict(list)
    for letter in letters:
        died[letter.body].append(letter)
    found = Endings(dead=set(died))
    for body, deliveries in of_body.items():
        deliveries.sort(key=lambda one: (one.began_us, one.number))
        found.courses[course(body)] += 1
        if any(one.outcome == Outcome.ACKED for one in deliveries):
            found.acked.add(body)
        # The due of a message that a killed producer put is not known.
        due_us = known[body].due_ms * 1_000 if body in known else 0
        _judge_attempts(deliveries, due_us, settled, troubles, found)
        unseen = _unseen(due_us, _over_us(deliveries[-1], settled), troubles)
        wrongs = _wrongs(course(body), deliveries, died.pop(body, []), unseen)
        found.wrong += [(body, why) for why in wrongs]
    found.wrong += [(body, "is dead, and was never delivered") for body in died]
    ended = found.acked | found.dead
    found.unended = [body for body in known if body not in ended]
    return found


def _over_us(last: HandOut, settled: Mapping[tuple[str, str], list[int]]) -> int | None:
    """When a message's last delivery was settled; None if that is not known."""
    is_last = not last.asks or last.attempt >= ATTEMPTS
    return repeats.settled_us(last, settled) if is_last else None


def _wrongs(
    course: Course, deliveries: Sequence[HandOut], letters: Sequence[Letter], unseen: int
) -> list[str]:
    """The ways in which a message did not end as it should have."""
    wrongs = []
    if course.is_deadly and any(one.outcome == Outcome.ACKED for one in deliveries):
        wrongs.append(f"was acked, though its course {course.name} is deadly")
    if not letters:
        return wrongs
    if not course.is_deadly:
        wrongs.append(f"is dead, though its course {course.name} is not: {letters[0].reason}")
    buried = {one.attempt for one in deliveries if one.outcome == Outcome.BURIED}
    seen = {one.attempt for one in deliveries}
    killers = sum(one.outcome == Outcome.BURIED or one.attempt == ATTEMPTS for one in deliveries)
    if len(letters) > max(killers + unseen, 1):
        wrongs.append(f"is dead {len(letters)} times")
    for letter in letters:
        if course is Course.BURIED and letter.attempts not in buried:
            wrongs.append(f"died after {letter.attempts} attempts, was buried at {sorted(buried)}")
        if course is Course.POISON and letter.attempts != ATTEMPTS:
            wrongs.append(f"died after {letter.attempts} attempts, not after {ATTEMPTS}")
    if course is Course.POISON and ATTEMPTS - len(seen) > unseen:
        wrongs.append(f"died after the attempts {sorted(seen)} alone")
    return wrongs


def _judge_attempts(
    deliveries: Sequence[HandOut],
    since_us: int,
    settled: Mapping[tuple[str, str], list[int]],
    troubles: Sequence[Trouble],
    found: Endings,
) -> None:
    """Judge numbers: the first is 1; an asked-for one is the next, or the same after a snooze."""
    before: list[HandOut] = []
    due_us = since_us
    for one in deliveries:
        asked = repeats.asking(before, one, settled)
        is_once = not _may_be_twice(due_us, one.began_us, troubles)
        if asked:
            numbers = [ask.next_attempt for ask in asked]
            least, most = min(numbers), max(numbers)
            last = max(asked, key=lambda ask: ask.ended_us)
            since_us = last.ended_us
            if is_once and one.began_us < last.next_due_us - repeats.CLOCKS_US:
                found.hasty.append((last, one))
        else:
            # A delivery before that asked for no other may have been counted or not.
            least, most = 1, max((other.attempt for other in before), default=0) + 1
        least = least if is_once else 1
        most += _unseen(since_us, one.began_us, troubles)
        if not least <= one.attempt <= most:
            shown = str(least) if least == most else f"{least} to {most}"
            found.miscounted.append((one, shown))
        before = [other for other in before if other not in asked]
        before.append(one)


def _may_be_twice(due_us: int, at_us: int, troubles: Sequence[Trouble]) -> bool:
    """True if a message met a store in trouble, and may have two rows with attempts of their own.

    Two moves of the message, neither known to be stored, may leave two rows.
    """
    return any(
        one.kind is Kind.STORE and due_us <= one.reach_us and one.from_us <= at_us
        for one in troubles
    )


def _unseen(from_us: int, until_us: int | None, troubles: Sequence[Trouble]) -> int:
    """The most attempts of a waiting message that troubles may have used up, unrecorded.

    Args:
        from_us: The time at which the message was due.
        until_us: The time of its delivery or its end; None: unknown.
    """
    count = 0
    for one in troubles:
        is_later = until_us is not None and until_us < one.from_us
        if is_later or from_us > one.until_us or one.kind is Kind.ZOMBIES:
            continue
        count += 1 + (one.until_us - one.from_us) // LAPSE_US
    return count


def uneven(found: Endings, *, put: int, recovered: int, left: int) -> list[str]:
    """The differences between puts and ends, by the files alone, without the queue's own counts.

    Args:
        found: How the messages ended.
        put: Messages that the store has acknowledged.
        recovered: Messages that were delivered though their put never returned.
        left: Rows in the queue, counted.
    """
    acked, dead = len(found.acked), len(found.dead - found.acked)
    if put + recovered == acked + dead + left:
        return []
    return [f"{put} put + {recovered} recovered, but {acked} acked + {dead} dead + {left} left"]


def misbooked(found: Endings, balance: Balance, *, put: int, recovered: int) -> list[str]:
    """The differences between the counts of an empty queue and the files.

    Args:
        found: How the messages ended.
        balance: The queue's own counts.
        put: Messages that the store has acknowledged.
        recovered: Messages that were delivered though their put never returned. Some of them are
            not in the queue's counts.
    """
    acked, dead = len(found.acked), len(found.dead - found.acked)
    wrongs = []
    if balance.put + balance.unrecorded != put + recovered:
        wrongs.append(f"put: {balance.put} + {balance.unrecorded} booked, {put + recovered} put")
    if balance.unrecorded > recovered:
        wrongs.append(f"unrecorded: {balance.unrecorded}, but {recovered} recovered")
    for name, mine in (("acked", acked), ("dead", dead)):
        booked = getattr(balance, name)
        if not mine - balance.unrecorded <= booked <= mine:
            wrongs.append(f"{name}: {booked} booked, {mine} by the files")
    if balance.acked + balance.dead != balance.put:
        wrongs.append(f"{balance.put} booked as put, {balance.acked} + {balance.dead} as ended")
    return wrongs
