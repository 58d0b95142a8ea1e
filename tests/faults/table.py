"""The table at the end: a line for each fault, of what was judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proofs import judge, repeats
from proofs.endings import Endings

from faults import waits

if TYPE_CHECKING:
    from collections import Counter

    from faults.waits import Wait
    from shardq.inspection.audit import Audit


@dataclass(slots=True)
class Line:
    """One line of the table.

    Attributes:
        fault: What was done.
        messages: Messages that the store has acknowledged.
        received: Deliveries that callers received.
        lost: Bodies of those that were never delivered.
        early: Deliveries before the due that was asked for.
        repeats: Second deliveries and their causes.
        recovered: Delivered though their put never returned, for its producer was killed.
        foreign: Delivered and never put.
        groups: What of groups did not come in order, or not one at a time.
        excused: Of what was of groups, how much was in no order, or not one at a time, for a cause.
        endings: How the messages ended, and after how many attempts.
        uneven: Where what was put is not what has ended.
        waits: How long each message waited, due and stored; the longest first.
        troubled: Those of what came due in the trouble, and was delivered by consumers.
        resumed_s: Seconds until nothing that was handed out had waited for 2 s any more, for half a
            minute: from the end of a trouble that stops the queue, or the beginning of one that
            must not.
        back_s: The same for waits of 5 s, and ever after; by this it is judged.
        left: Rows in the queue at the end.
        late: Rows that a node wrote only when the queue was empty, and all consumers had gone.
        dropped: Rows of messages that had ended, which a check found.
        audit: What the queue's own books say; None where it kept none.
        took_s: How long the play took.
        note: What else was seen.
    """

    fault: str
    messages: int = 0
    received: int = 0
    lost: list[str] = field(default_factory=list)
    early: int = 0
    repeats: repeats.Repeats = field(default_factory=repeats.Repeats)
    recovered: int = 0
    foreign: list[str] = field(default_factory=list)
    groups: judge.GroupFaults = field(default_factory=judge.GroupFaults)
    excused: int = 0
    endings: Endings = field(default_factory=Endings)
    uneven: list[str] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    troubled: list[Wait] = field(default_factory=list)
    resumed_s: float = 0.0
    back_s: float = 0.0
    left: int = 0
    late: int = 0
    dropped: int = 0
    audit: Audit | None = None
    took_s: float = 0.0
    note: str = ""

    @property
    def causes(self) -> Counter[str]:
        """Second deliveries, by their cause."""
        return self.repeats.excused

    @property
    def worst_s(self) -> float:
        """The longest that a message waited, due and stored."""
        return self.waits[0].us / 1e6 if self.waits else 0.0

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        in_flight = self.repeats.in_flight
        causes = [
            f"{self.causes[cause]} of {in_flight[cause]} {cause}"
            if cause in in_flight
            else f"{self.causes[cause]} {cause}"
            for cause in sorted({*in_flight, *self.causes})
        ]
        if self.repeats.unexplained:
            causes.append(f"{len(self.repeats.unexplained)} UNEXPLAINED")
        late = f"{self.late} written late" if self.late else ""
        groups = f"{len(self.groups.disordered)} of {self.groups.messages:,}"
        return (
            self.fault,
            f"{self.messages:,}",
            f"{self.received:,}",
            str(len(self.lost)),
            str(self.early),
            ", ".join(causes) or "0",
            f"{groups}, {self.excused} excused" if self.excused else groups,
            "-" if self.audit is None else "even" if self.audit.is_even else "UNEVEN",
            f"{waits.held_up(self.troubled):.0%}" if self.troubled else "-",
            f"{self.worst_s:.1f}",
            f"{self.resumed_s:.1f}",
            f"{self.took_s:.0f}",
            "; ".join(filter(None, [self.note, late])),
        )


TITLES = (
    "fault",
    "messages",
    "received",
    "lost",
    "early",
    "twice, of how many in flight, for what",
    "groups out of order",
    "audit",
    "held up",
    "worst s",
    "resumed s",
    "took s",
    "note",
)
