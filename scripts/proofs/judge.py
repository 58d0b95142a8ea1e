"""Judges the files of producers and consumers: pure functions, without store or clock.

`verdict` judges losses, repeats and early deliveries. Order, groups, priorities and purges are
judged here.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heapify, heappop
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from proofs.courses import Outcome
from proofs.verdict import compare
from shardq.cli.trace import Timed, TraceLine
from shardq.model.times import ceil_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from proofs.verdict import Interruption, Verdict

SLACK_MS = 500
"""How far back a consumer rereads before it delivers a message of a group, and at each short
sweep."""
LAGGED_US = 2_000_000
"""A consumer whose delivery waited for longer than this is seconds behind, and stays so for as
long."""


class Put(NamedTuple):
    """A line of a producer's file: a message that the store has acknowledged.

    Attributes:
        body: Its body, which no other message has.
        due_ms: The due that was asked for, epoch milliseconds.
        began_us: When the call that put it began, by the machine's clock, epoch microseconds.
        acked_us: When that call returned.
        group: Its group, or None. Each group has one producer, and a call puts at most one of its
            messages.
        priority: 0 is first.
    """

    body: str
    due_ms: int
    began_us: int
    acked_us: int
    group: str | None = None
    priority: int = 0

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: bytes) -> Put:
        """A put from its line."""
        return cls(*json.loads(line))


class HandOut(NamedTuple):
    """A line of a consumer's file, written when the handler had ended.

    Attributes:
        number: How many hand-outs its process had before; the order in which handlers began.
        id: The message's id.
        body: Its body.
        due_ms: When this delivery was due, epoch milliseconds.
        began_us: When its handler began, by the machine's clock, epoch microseconds.
        ended_us: When its handler ended.
        attempt: The number of this delivery, from 1.
        outcome: The outcome that its handler asked for; one of `courses.Outcome`.
        delay_ms: The least time until the next delivery, if there was to be one.
        consumer: The consumer that recorded it: the file's name.
    """

    number: int
    id: str
    body: str
    due_ms: int
    began_us: int
    ended_us: int
    attempt: int
    outcome: str = Outcome.ACKED.value
    delay_ms: int = 0
    consumer: str = ""

    @property
    def is_claim(self) -> bool:
        """True if a caller had the message; a caller knows only the due of its claim."""
        return self.consumer.startswith("caller")

    @property
    def asks(self) -> bool:
        """True if the message was to be delivered again."""
        return Outcome(self.outcome).asks

    @property
    def next_attempt(self) -> int:
        """The number of the delivery that this one asked for."""
        return self.attempt + (self.outcome == Outcome.RETRIED)

    @property
    def next_due_us(self) -> int:
        """The earliest time of the delivery that this one asked for, epoch microseconds."""
        return self.ended_us + self.delay_ms * 1_000

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps(self[:-1], separators=(",", ":"))

    @classmethod
    def from_json(cls, line: bytes, consumer: str) -> HandOut:
        """A hand-out from its line.

        Raises:
            ValueError: If the line is incomplete.
        """
        fields = json.loads(line)
        if not isinstance(fields, list) or len(fields) != len(cls._fields) - 1:
            raise ValueError(f"not a hand-out: {line!r}")
        return cls._make([*fields, consumer])


def read_puts(paths: Iterable[Path]) -> list[Put]:
    """The puts, in the order of each producer; a line that a kill has cut off is left out."""
    return [Put.from_json(line) for path in paths for line in _whole_lines(path)]


def read_hand_outs(paths: Iterable[Path]) -> list[HandOut]:
    """The hand-outs; a line that a kill has cut off is left out, for its delivery was not acked."""
    return [HandOut.from_json(line, path.name) for path in paths for line in _whole_lines(path)]


def _whole_lines(path: Path) -> list[bytes]:
    # A process that has written no line yet has no file.
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1].splitlines()


def whole(
    puts: Iterable[Put],
    hand_outs: Iterable[HandOut],
    interruptions: Sequence[Interruption] = (),
) -> Verdict:
    """The verdict: which messages were lost, repeated, early, or never put."""
    return compare(
        [Timed(put.body.encode(), put.due_ms) for put in puts],
        [
            TraceLine(
                id=one.id,
                body=one.body.encode(),
                due_ms=one.due_ms,
                delivered_ms=one.began_us // 1_000,
                at_us=one.began_us,
                attempt=one.attempt,
                consumer=one.consumer,
            )
            for one in hand_outs
        ],
        interruptions,
    )


@dataclass(slots=True)
class Disorder:
    """Hand-outs of one process that followed a hand-out with a later due.

    Attributes:
        count: How many.
        worst_ms: The largest difference of dues among them, milliseconds.
    """

    count: int = 0
    worst_ms: int = 0


def disorder(hand_outs: Iterable[HandOut]) -> Disorder:
    """Hand-outs out of due order, in the order in which one process made them."""
    found = Disorder()
    latest_ms: int | None = None
    for one in sorted(hand_outs):
        if latest_ms is not None and one.due_ms < latest_ms:
            found.count += 1
            found.worst_ms = max(found.worst_ms, latest_ms - one.due_ms)
        latest_ms = one.due_ms if latest_ms is None else max(latest_ms, one.due_ms)
    return found


@dataclass(slots=True)
class GroupFaults:
    """Faults in the order of groups, as pairs of hand-outs, by the order of their begins.

    Attributes:
        groups: How many groups were judged.
        messages: How many of their messages were handed out.
        disordered: Pairs of a message that overtook another of its group, and the overtaken one.
        stored_late: Such pairs whose overtaken message was stored so long after its due that no
            consumer read there any more.
        lagged: Such pairs, and pairs as in `passed`, where the first was not postponed, the second
            was, and the first or its consumer was seconds behind. No order holds then.
        together: Pairs of deliveries whose second began before the first had ended.
        passed: Pairs of a delivery that asked for another one, and a delivery of its group that
            began before the asked-for one, where neither the second nor its consumer was seconds
            behind.
    """

    groups: int = 0
    messages: int = 0
    disordered: list[tuple[HandOut, HandOut]] = field(default_factory=list)
    stored_late: list[tuple[HandOut, HandOut]] = field(default_factory=list)
    lagged: list[tuple[HandOut, HandOut]] = field(default_factory=list)
    together: list[tuple[HandOut, HandOut]] = field(default_factory=list)
    passed: list[tuple[HandOut, HandOut]] = field(default_factory=list)


def group_faults(
    puts: Sequence[Put], hand_outs: Iterable[HandOut], *, late_us: int = 1 << 62
) -> GroupFaults:
    """Judge every group's deliveries by due, then by put, and that no two ran at a time.

    Args:
        puts: The puts in the order of each producer; puts without a group are skipped.
        hand_outs: The hand-outs of all consumers.
        late_us: How long after its due a message may have been stored to keep its place.
    """
    members: dict[str, list[Put]] = defaultdict(list)
    for put in puts:
        if put.group is not None:
            members[put.group].append(put)
    of_body = _by_body(hand_outs)
    lags = _Lags((of_body[put.body][0], put) for put in puts if put.body in of_body)
    found = GroupFaults(groups=len(members))
    for group in members.values():
        # The sort is stable, so equal dues keep the order of their puts.
        ordered = sorted(group, key=lambda put: put.due_ms)
        first = [(of_body[put.body][0], put) for put in ordered if put.body in of_body]
        found.messages += len(first)
        earliest: tuple[HandOut, Put] | None = None
        free_us = 0
        for place, (one, put) in reversed(list(enumerate(first))):
            if earliest is not None and one.began_us > earliest[0].began_us:
                if put.acked_us - put.due_ms * 1_000 > late_us:
                    pairs = found.stored_late
                elif (
                    one.due_ms > _placed_ms(put)
                    and _is_in_place(*earliest)
                    and (_has_lagged(*earliest, free_us) or lags.lagged(earliest[0]))
                ):
                    pairs = found.lagged
                else:
                    pairs = found.disordered
                pairs.append((earliest[0], one))
            if earliest is None or one.began_us < earliest[0].began_us:
                earliest = one, put
                free_us = max(
                    (
                        before.ended_us
                        for _, ahead in first[:place]
                        for before in of_body[ahead.body]
                        if before.ended_us <= one.began_us
                    ),
                    default=0,
                )
        found.together += _together([one for put in group for one in of_body.get(put.body, ())])
        of_put = {put.body: put for _, put in first}
        for one, other in _passed([of_body[put.body] for _, put in first]):
            free_us = one.next_due_us
            is_behind = lags.lagged(other) or _has_lagged(other, of_put[other.body], free_us)
            (found.lagged if is_behind else found.passed).append((one, other))
    return found


class _Lags:
    """When each consumer was seconds behind, by messages without a group, which wait for no other.

    Lanes are not recorded, so one late message excuses all lanes of its consumer. The faults' table
    counts the excused ones, and bounds their number.

    Args:
        firsts: First deliveries, with their puts.
    """

    def __init__(self, firsts: Iterable[tuple[HandOut, Put]]) -> None:
        self._began_us: dict[str, list[int]] = defaultdict(list)
        for one, put in sorted(firsts, key=lambda first: first[0].began_us):
            if put.group is None and _has_lagged(one, put):
                self._began_us[one.consumer].append(one.began_us)

    def lagged(self, one: HandOut) -> bool:
        """True if the consumer of a delivery was seconds behind when the delivery began."""
        began_us = self._began_us.get(one.consumer, [])
        place = bisect_right(began_us, one.began_us)
        return place > 0 and one.began_us - began_us[place - 1] <= LAGGED_US


def _has_lagged(one: HandOut, put: Put, free_us: int = 0) -> bool:
    """True if a delivery was seconds late at its first due, and not postponed meanwhile.

    Args:
        one: The delivery.
        put: The put of its message.
        free_us: When no other message of its group held it up any more.
    """
    return _is_in_place(one, put) and one.began_us - max(_there_us(put), free_us) > LAGGED_US


def _is_in_place(one: HandOut, put: Put) -> bool:
    """True if a message was delivered at its first due, and not postponed meanwhile."""
    return one.is_claim or one.due_ms <= _placed_ms(put)


def _placed_ms(put: Put) -> int:
    """The latest due that a put may have got: a due in the past becomes the present."""
    return max(put.due_ms, ceil_ms(put.acked_us))


def _passed(ordered: Sequence[Sequence[HandOut]]) -> list[tuple[HandOut, HandOut]]:
    """Pairs of a postponed delivery and a later message that began before the postponed one.

    Args:
        ordered: Each message's deliveries, in the order of the group.
    """
    pairs = []
    for place, deliveries in enumerate(ordered):
        for one, again in pairwise(deliveries):
            if not one.asks:
                continue
            for behind in ordered[place + 1 :]:
                between = [o for o in behind if one.ended_us <= o.began_us < again.began_us]
                pairs += [(one, other) for other in between[:1]]
    return pairs


def _together(hand_outs: list[HandOut]) -> list[tuple[HandOut, HandOut]]:
    pairs = []
    running: HandOut | None = None
    for one in sorted(hand_outs, key=_began):
        if running is not None and one.began_us < running.ended_us:
            pairs.append((running, one))
        if running is None or one.ended_us > running.ended_us:
            running = one
    return pairs


@dataclass(slots=True)
class Overtaking:
    """Hand-outs that came while a message of a higher priority waited for the same process.

    Attributes:
        hand_outs: How many hand-outs were judged.
        waits_ms: For each hand-out that overtook: how long the overtaken message had been due and
            stored, milliseconds.
    """

    hand_outs: int = 0
    waits_ms: list[float] = field(default_factory=list)

    def beyond(self, wait_ms: float) -> int:
        """The number of hand-outs that overtook a message which had waited for longer than this."""
        return sum(wait > wait_ms for wait in self.waits_ms)


def overtaking(puts: Mapping[str, Put], hand_outs: Iterable[HandOut]) -> Overtaking:
    """Hand-outs during which a message of higher priority waited that the same process got later.

    Messages of groups are skipped, because they wait for each other, whatever their priority.

    Args:
        puts: Body -> its put.
        hand_outs: First deliveries, of any number of processes.
    """
    found = Overtaking()
    of_consumer: dict[str, list[tuple[HandOut, Put]]] = defaultdict(list)
    for one in hand_outs:
        put = puts.get(one.body)
        if put is not None and put.group is None:
            of_consumer[one.consumer].append((one, put))
    for mine in of_consumer.values():
        mine.sort()
        found.hand_outs += len(mine)
        bands = sorted({put.priority for _, put in mine})
        for band in bands[1:]:
            _overtake(
                [one for one, put in mine if put.priority == band],
                [(_there_us(put), one) for one, put in mine if put.priority < band],
                found,
            )
    return found


def _there_us(put: Put) -> int:
    return max(put.due_ms * 1_000, put.acked_us)


def _overtake(lower: list[HandOut], higher: list[tuple[int, HandOut]], found: Overtaking) -> None:
    """Compare one band's hand-outs, in order, with those of the bands before it."""
    heapify(higher)
    for one in lower:
        # Drop messages that were handed out before; the remaining ones were handed out later.
        while higher and higher[0][1].number < one.number:
            heappop(higher)
        if higher and higher[0][0] < one.began_us:
            found.waits_ms.append((one.began_us - higher[0][0]) / 1_000)


@dataclass(slots=True)
class PurgeFaults:
    """The effects of a purge, by the time at which each message entered.

    Attributes:
        before: Messages whose put had returned before the purge was called.
        after: Messages whose put began when the purge had returned.
        between: The other messages, which may be purged or delivered.
        purged: Messages of `before` that were never delivered.
        delivered: Deliveries of `before` that began after the time by which a purge must hold.
        lost: Messages of `after` that were never delivered.
        last_ms: When the last delivery of `before` began, milliseconds after the call.
    """

    before: int = 0
    after: int = 0
    between: int = 0
    purged: int = 0
    delivered: list[HandOut] = field(default_factory=list)
    lost: list[Put] = field(default_factory=list)
    last_ms: float = 0.0


def purge_faults(
    puts: Iterable[Put],
    hand_outs: Iterable[HandOut],
    *,
    called_us: int,
    returned_us: int,
    holds_us: int,
) -> PurgeFaults:
    """Judge a purge.

    Args:
        puts: All puts.
        hand_outs: All hand-outs.
        called_us: When the purge was called, by the machine's clock, epoch microseconds.
        returned_us: When it returned.
        holds_us: How long after the call the purge must hold.
    """
    of_body = _by_body(hand_outs)
    found = PurgeFaults()
    for put in puts:
        given = of_body.get(put.body, [])
        if put.acked_us < called_us:
            found.before += 1
            found.purged += not given
            for one in given:
                found.last_ms = max(found.last_ms, (one.began_us - called_us) / 1_000)
            found.delivered += [one for one in given if one.began_us > called_us + holds_us]
        elif put.began_us > returned_us:
            found.after += 1
            if not given:
                found.lost.append(put)
        else:
            found.between += 1
    return found


def _by_body(hand_outs: Iterable[HandOut]) -> dict[str, list[HandOut]]:
    """Every body's deliveries, the first one first."""
    found: dict[str, list[HandOut]] = defaultdict(list)
    for one in hand_outs:
        found[one.body].append(one)
    for given in found.values():
        given.sort(key=_began)
    return found


def _began(one: HandOut) -> tuple[int, int]:
    return one.began_us, one.number
