"""The table at the end: a line for each fault, with the findings of the judge."""

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
        fault: The name of the fault.
        messages: Messages whose puts the store acknowledged.
        received: Deliveries that callers received.
        lost: The bodies of messages that were never delivered.
        early: Deliveries before the due that was asked for.
        repeats: Second deliveries and their causes.
        recovered: Messages delivered though their producer was killed before the put returned.
        foreign: Messages delivered but never put.
        groups: Messages of groups that were out of order, or not delivered one at a time.
        excused: How many of these have a cause.
        endings: How the messages ended, and after how many attempts.
        uneven: Differences between the messages put and those that ended.
        waits: How long each message waited once due and stored; the longest first.
        troubled: The waits of messages that came due in the trouble and that consumers delivered.
        resumed_s: Seconds until, for half a minute, no delivery had waited 2 s: from the end of a
            trouble that stops the queue, or from the begin of one that must not.
        back_s: Seconds until no later delivery had waited 5 s; the judge uses this.
        left: Rows in the queue at the end.
        late: Rows that a node wrote only after the queue was empty and all consumers had ended.
        dropped: Rows of ended messages that a check found.
        audit: The audit of the queue's ledger; None without a ledger.
        took_s: How long the play took.
        note: Other findings.
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
        """Cause -> the number of second deliveries."""
        return self.repeats.excused

    @property
    def worst_s(self) -> float:
        """The longest that a message waited once due and stored, seconds."""
        return self.waits[0].us / 1e6 if self.waits else 0.0

    def cells(self) -> tuple[str, ...]:
        """The cells of the line in the table."""
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
