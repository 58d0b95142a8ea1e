"""Judges what happened to messages: lost, repeated, early, or never put.

Only files are judged, of puts and of consumers' deliveries, never shardq's own counters.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shardq.cli.trace import TraceLine
from shardq.model.times import span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from shardq.cli.trace import Timed


def read_deliveries(path: Path) -> tuple[list[TraceLine], int]:
    """The deliveries of an `--out` file, and the number of incomplete lines.

    A process that is killed while it writes leaves its last line incomplete; its delivery was not
    acked.
    """
    deliveries, torn = [], 0
    with path.open("rb") as file:
        for line in file:
            try:
                deliveries.append(TraceLine.from_json(line, path.name))
            except ValueError:
                torn += 1
    return deliveries, torn


class Interruption(NamedTuple):
    """A kill or freeze of a consumer; messages that it held may be delivered twice.

    Attributes:
        consumer: The name of its `--out` file.
        what: `killed` or `frozen`.
        from_us: When, by the machine's clock, epoch microseconds.
        until_us: When the consumer ran again; after a kill, when its process had ended.
    """

    consumer: str
    what: str
    from_us: int
    until_us: int


IN_FLIGHT_US = 5_000_000
"""A delivery that began no longer than this before an interruption may not have been acked."""


@dataclass(slots=True)
class Verdict:
    """The counts and faults of one run.

    Attributes:
        put: Messages put.
        delivered: Messages delivered at least once.
        lost: Bodies put and never delivered.
        duplicated: Bodies delivered more often than put, without an interruption that explains it.
        excused: Deliveries begun twice because their consumer was interrupted, by consumer.
        early: Deliveries that began before the asked due, by the machine's clock.
        foreign: Bodies delivered that were never put.
        late_us: Lateness of every message's first delivery, sorted.
    """

    put: int = 0
    delivered: int = 0
    lost: list[bytes] = field(default_factory=list)
    duplicated: list[bytes] = field(default_factory=list)
    excused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    early: list[TraceLine] = field(default_factory=list)
    foreign: list[bytes] = field(default_factory=list)
    late_us: list[int] = field(default_factory=list)

    @property
    def repeats(self) -> int:
        """The number of repeated deliveries, explained or not."""
        return len(self.duplicated) + sum(self.excused.values())

    def late_ms(self, fraction: float) -> float:
        """Milliseconds that this fraction of the messages was at most late; 0 without any."""
        if not self.late_us:
            return 0.0
        place = min(int(fraction * len(self.late_us)), len(self.late_us) - 1)
        return self.late_us[place] / 1_000

    def is_proved(self, *, with_wrong_clocks: bool = False) -> bool:
        """True if all promises were kept.

        Args:
            with_wrong_clocks: True if clocks were left wrong on purpose. Then messages may be early
                or late, and some repeated; but none may be lost.
        """
        if self.lost or self.foreign:
            return False
        return with_wrong_clocks or not (self.duplicated or self.early)

    def lines(self) -> list[str]:
        """The counts, a line each."""
        late = ", ".join(
            f"{name} {_shown_ms(self.late_ms(fraction))}"
            for name, fraction in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        )
        told = {
            "delivered": f"{self.delivered:,} of {self.put:,}",
            "lost": f"{len(self.lost):,}",
            "duplicated": f"{self.repeats:,}",
            "early": f"{len(self.early):,}",
            "lateness": late,
        }
        if self.foreign:
            told["never put"] = f"{len(self.foreign):,}"
        for name, count in sorted(self.excused.items()):
            what, _, consumer = name.partition(" ")
            told["duplicated"] += f"; {count:,} in flight when {consumer} was {what}"
        return [f"{name:12}{text}" for name, text in told.items()]

    def sentence(self, *, with_wrong_clocks: bool = False) -> str:
        """The verdict in words.

        Args:
            with_wrong_clocks: As for `is_proved`.
        """
        if not self.is_proved(with_wrong_clocks=with_wrong_clocks):
            wrong = {
                "lost": len(self.lost),
                "delivered twice without a reason": len(self.duplicated),
                "early": len(self.early),
                "delivered that nobody put": len(self.foreign),
            }
            told = ", ".join(f"{count:,} {what}" for what, count in wrong.items() if count)
            return f"NOT PROVED, of {self.put:,} messages: {told}."
        every = f"All {self.put:,} messages were delivered"
        if with_wrong_clocks:
            return (
                f"{every}; with clocks wrong on purpose, {len(self.early):,} came early and "
                f"{self.repeats:,} twice."
            )
        if self.repeats:
            return (
                f"{every}, none early; {self.repeats:,} came twice, for their consumer was killed "
                f"or frozen."
            )
        return f"{every} once, none early."


def compare(
    put: Iterable[Timed],
    deliveries: Iterable[TraceLine],
    interruptions: Sequence[Interruption] = (),
) -> Verdict:
    """Compare puts with deliveries, body by body.

    Of equal bodies only the number is compared. A body that was put three times must be delivered
    three times: first not before the earliest due, then not before the second, and so on.

    Args:
        put: Every message put, with the due that was asked for.
        deliveries: Every recorded delivery, of all consumers, in any order.
        interruptions: Consumers that were killed or frozen on purpose.
    """
    dues: dict[bytes, list[int]] = defaultdict(list)
    for message in put:
        dues[message.body].append(message.due_ms)
    seen: dict[bytes, list[TraceLine]] = defaultdict(list)
    for delivery in deliveries:
        seen[delivery.body].append(delivery)
    verdict = Verdict(put=sum(map(len, dues.values())))
    for body, asked in dues.items():
        _judge_body(body, sorted(asked), seen.pop(body, []), interruptions, verdict)
    for body, strays in seen.items():
        verdict.foreign.extend([body] * len(strays))
    verdict.late_us.sort()
    return verdict


def _judge_body(
    body: bytes,
    asked_ms: list[int],
    times: list[TraceLine],
    interruptions: Sequence[Interruption],
    verdict: Verdict,
) -> None:
    times.sort(key=lambda delivery: delivery.at_us)
    kept = min(len(asked_ms), len(times))
    verdict.delivered += kept
    verdict.lost.extend([body] * (len(asked_ms) - kept))
    for number, delivery in enumerate(times):
        # Compare repeats with the last due: a repeat is early if it began before even that.
        late_us = delivery.at_us - asked_ms[min(number, len(asked_ms) - 1)] * 1_000
        if late_us < 0:
            verdict.early.append(delivery)
        if number < kept:
            verdict.late_us.append(late_us)
    excuses = [name for delivery in times if (name := _excuse(delivery, interruptions))]
    for number in range(len(times) - kept):
        if number < len(excuses):
            verdict.excused[excuses[number]] += 1
        else:
            verdict.duplicated.append(body)


def _excuse(delivery: TraceLine, interruptions: Sequence[Interruption]) -> str | None:
    """The interruption under which this delivery was in flight, if any."""
    for cut in interruptions:
        began = cut.from_us - IN_FLIGHT_US <= delivery.at_us <= cut.until_us + IN_FLIGHT_US
        if cut.consumer == delivery.consumer and began:
            return f"{cut.what} {cut.consumer}"
    return None


def _shown_ms(value: float) -> str:
    return f"-{span(-value)}" if value < 0 else span(value)
