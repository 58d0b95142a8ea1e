"""How each message ended, and after how many attempts: a pure function of what processes wrote.

```
 body ── its course ──┬─► deliveries: their attempts, one after another, no sooner than asked
                      └─► acked, or in the dead-letter queue: one of them, and the right one
```

An attempt that nobody wrote down may have been spent in a trouble, of a message that was there:
what is about to be handed out with care, or is claimed for a caller, is counted before that.
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
"""In a trouble that lasts, an attempt may go unseen so often: as often as a lease lapses."""


class Letter(NamedTuple):
    """A message of the dead-letter queue.

    Attributes:
        body: Its body.
        attempts: Deliveries before it died, as it says itself.
        reason: Why it died.
    """

    body: str
    attempts: int
    reason: str


@dataclass(slots=True)
class Endings:
    """What the messages have come to.

    Attributes:
        acked: Bodies that a handler or caller has acked.
        dead: Bodies in the dead-letter queue.
        unended: Bodies that were put, and are neither.
        wrong: Bodies that ended otherwise than their course does, in both ways, or twice; and why.
        miscounted: Deliveries whose attempt is not what it has to be; and what that is.
        hasty: Deliveries that came sooner than the one before had asked for; and that one.
        courses: How many of those that were delivered went each course.
    """

    acked: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    unended: list[str] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    miscounted: list[tuple[HandOut, str]] = field(default_factory=list)
    hasty: list[tuple[HandOut, HandOut]] = field(default_factory=list)
    courses: dict[Course, int] = field(default_factory=lambda: defaultdict(int))


def plain(_body: str) -> Course:
    """The course of all messages of a queue whose handlers only ack."""
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
        puts: All that was put, and is known to be.
        hand_outs: Of all consumers and callers, of a queue that is empty now.
        letters: All of its dead-letter queue.
        settled: When the store had each outcome, as `repeats.read_times` tells.
        troubles: All that was done on purpose.
        course: What course a body goes.
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
        # What a killed producer put, nobody knows the due of.
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
    """When a message was over with its last delivery, as far as that is known."""
    is_last = not last.asks or last.attempt >= ATTEMPTS
    return repeats.settled_us(last, settled) if is_last else None


def _wrongs(
    course: Course, deliveries: Sequence[HandOut], letters: Sequence[Letter], unseen: int
) -> list[str]:
    """In which ways a message ended otherwise than it had to."""
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
    """The first is number 1, one that was asked for the next, or the same after a snooze."""
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
            # What comes again without being asked for may have been counted or not.
            least, most = 1, max((other.attempt for other in before), default=0) + 1
        least = least if is_once else 1
        most += _unseen(since_us, one.began_us, troubles)
        if not least <= one.attempt <= most:
            shown = str(least) if least == most else f"{least} to {most}"
            found.miscounted.append((one, shown))
        before = [other for other in before if other not in asked]
        before.append(one)


def _may_be_twice(due_us: int, at_us: int, troubles: Sequence[Trouble]) -> bool:
    """Whether a message met a store in trouble, and may have two rows, each with its attempts.

    Two moves of it, of which neither was known to be stored, leave that.
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
    """Where what was put is not what has ended and what is left: by the files, without a ledger.

    Args:
        found: How the messages ended.
        put: Messages that the store has acknowledged.
        recovered: Those that were delivered though their put never returned.
        left: Rows in the queue, counted.
    """
    acked, dead = len(found.acked), len(found.dead - found.acked)
    if put + recovered == acked + dead + left:
        return []
    return [f"{put} put + {recovered} recovered, but {acked} acked + {dead} dead + {left} left"]


def misbooked(found: Endings, balance: Balance, *, put: int, recovered: int) -> list[str]:
    """Where a queue's own books, when it is empty, say otherwise than the files.

    Args:
        found: How the messages ended.
        balance: By the books.
        put: Messages that the store has acknowledged.
        recovered: Those that were delivered though their put never returned: some of them are not
            recorded either.
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
