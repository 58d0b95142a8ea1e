"""What happened in a run, as an observer who sees everything writes it down.

Times are true time, epoch microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shardq.model.ids import birth_us
from shardq.model.key import NEVER
from shardq.model.message import key_of
from shardq.records.ledger import CLOCK_AHEAD_MS

if TYPE_CHECKING:
    from shardq.inspection.audit import Audit
    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from simulation.named import ByKey
    from simulation.parts import Letter
    from simulation.plan import Plan
    from simulation.runs import Run
    from simulation.strangers import Stranger
    from simulation.timeline import Asked


LATE_WRITER = "late"
"""The process of what is applied long after it was sent."""


@dataclass(slots=True)
class Put:
    """A call that put a message, with its repeats."""

    letter: Letter
    process: str
    begun_us: int
    asked_us: int
    ended_us: int | None = None
    outcome: str = "unknown"
    message_id: str = ""
    row: Row | None = None
    body: bytes = b""


class Refusal(NamedTuple):
    """A receipt that was refused: when, and of which row."""

    us: int
    row_id: bytes


@dataclass(slots=True)
class Delivery:
    """A message that was handed out, and what came of it.

    Attributes:
        seen_us: Of a claim: when its process was last shown it before; 0: never.

        refusals: Of its receipts those that were said to be stale.
        asked: When its handler asked whether it is to stop, and whether it is.
        unsure_us: Whenever its caller was not told whether the row was moved or settled.
    """

    token: int
    row: Row
    message_id: str
    attempt: int
    body: bytes
    headers: dict[str, str]
    process: str
    kind: str
    begun_us: int
    fenced: bool
    ended_us: int | None = None
    outcome: str = "running"
    delay_ms: int | None = None
    until_us: int = 0
    settled_us: int = 0
    seen_us: int = 0

    unsure_us: list[int] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    asked: list[tuple[int, bool]] = field(default_factory=list)


@dataclass(slots=True)
class Written:
    """A row that became visible.

    Attributes:
        process: Who wrote it; `LATE_WRITER` where it took effect long after it was sent.
        sender: Who sent it, however late it was; empty for what no process sent.

        is_edit: True if it stands for an edit in place.
    """

    row: Row
    at_us: int
    process: str
    deleted_us: int | None = None
    deleted_by: str = ""
    sender: str = ""
    is_edit: bool = False

    def is_there(self, us: int) -> bool:
        """True if it was there at a time."""
        return self.at_us <= us and (self.deleted_us is None or self.deleted_us > us)


@dataclass(slots=True)
class Recorded:
    """An attempt that was recorded in place, before its delivery was to begin."""

    at_us: int
    process: str
    row_id: bytes
    attempt: int


class Heard(NamedTuple):
    """What a queue's record said at a time: whether it is paused, and what is purged."""

    us: int
    paused: bool
    purged_before_us: int


class Fork(NamedTuple):
    """A lease that was released by a fork of its holder, which is not told of it.

    Attributes:
        process: The holder.
        noticed_us: When its renewal was refused; 0: never.
    """

    us: int
    process: str
    shard: Shard
    noticed_us: int = 0


@dataclass(slots=True)
class Cancel:
    token: int
    begun_us: int
    ended_us: int | None = None
    outcome: str = "unknown"


@dataclass(slots=True)
class Look:
    """An audit, and between when and when it was made."""

    begun_us: int
    ended_us: int
    audit: Audit


@dataclass(slots=True)
class Purge:
    begun_us: int
    before_us: int
    ended_us: int | None = None


@dataclass(slots=True)
class History:
    """A run.

    Attributes:
        sets: When the one machine's clock was set, and how far it was ahead of true time then.
        failed: Process -> when a call of it was not done at once and told so.
        gone: (when, message, process) of each delete after which no row of a message was there.
        found: (when, process, row) of what a sweep of a sealed shard came upon.
        sealed_us: (lane, minute) -> when it was sealed.
        came_from: Row -> the row in whose place it was to be, of each move that was asked for.
        moved_late: (when, process, row id) of each row of which a process knew only after its
            minute's end and half the offset that it had been moved there.

        entered: Queue and first row id of each message whose put is in the ledger -> since when.
        ended: Those whose end is -> when it came there, and as what; then, where one came late that
            was sooner, when that took its place.
        recording: Process and row -> when it began to record an attempt.
        waits: Process -> from when until when a call of it was refused, lost or slow.
        said: What the queue's record said, from when it was stored.
        heard: Process -> what it was told of that.
        audits: What the queue's own audits said in the end, and its dead-letter queue's.
        left_us: When all began to leave in the end; 0: they did not.
        came_us: When another came then.
        looks: All audits, those that were made while all went on as well.
        dropped: Row id -> when it was lost behind the queue's back.
        strangers: Heartbeats of none that works.
        relaned: When the queue's record said of other lanes than before.

        errands: Errand -> the call that it came to.
        commands: Command -> likewise.
        runs: What schedules have put, by the messages' numbers.
        inserted: Row -> when, and by whom, it was asked to be inserted.
        is_cut: True if the run was ended as one that would never end.
    """

    plan: Plan
    puts: dict[int, Put] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    written: dict[bytes, Written] = field(default_factory=dict)
    unknown: list[tuple[int, str, str, list[bytes]]] = field(default_factory=list)
    crashes: list[tuple[int, str]] = field(default_factory=list)
    freezes: list[tuple[int, int, str]] = field(default_factory=list)
    troubles: dict[str, list[int]] = field(default_factory=dict)
    waits: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    sets: list[tuple[int, int]] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    stops: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    leases: list[tuple[int, str, str, Shard, str]] = field(default_factory=list)
    recorded: list[Recorded] = field(default_factory=list)
    recording: dict[tuple[str, bytes], list[int]] = field(default_factory=dict)
    cancels: dict[int, Cancel] = field(default_factory=dict)
    purges: list[Purge] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    left: list[Row] = field(default_factory=list)
    risen: list[Row] = field(default_factory=list)
    survivors: list[Row] = field(default_factory=list)
    failed: dict[str, list[int]] = field(default_factory=dict)
    gone: list[tuple[int, int, str]] = field(default_factory=list)
    found: list[tuple[int, str, Row]] = field(default_factory=list)
    sealed_us: dict[tuple[int, int], int] = field(default_factory=dict)
    came_from: dict[bytes, bytes] = field(default_factory=dict)
    moved_late: list[tuple[int, str, bytes]] = field(default_factory=list)

    entered: dict[tuple[str, bytes], int] = field(default_factory=dict)
    ended: dict[tuple[str, bytes], list[tuple[int, str]]] = field(default_factory=dict)
    said: list[Heard] = field(default_factory=list)
    heard: dict[str, list[Heard]] = field(default_factory=dict)
    audits: list[Audit] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    dropped: dict[bytes, int] = field(default_factory=dict)
    strangers: list[Stranger] = field(default_factory=list)
    relaned: list[int] = field(default_factory=list)

    errands: dict[int, ByKey] = field(default_factory=dict)
    commands: dict[int, Asked] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    inserted: dict[bytes, list[tuple[int, str]]] = field(default_factory=dict)
    healed_us: int = 0
    left_us: int = 0
    came_us: int = 0
    ended_us: int = 0
    drained: bool = False
    is_cut: bool = False
    calls: int = 0
    trace: str = ""
    reached: set[str] = field(default_factory=set)
    slack_us: dict[str, int] = field(default_factory=dict)

    def wall_us(self, us: int) -> int:
        """What the clock of the one machine showed at a time."""
        return us + self._ahead_us(us)

    def due_us(self, wall_us: int, since_us: int) -> int:
        """When the clock showed so much, from a time on: by the first of the clocks that did.

        What was over by then, has been so by the clock of that time.
        """
        at_us = wall_us - self._ahead_us(since_us)
        for us, ahead_us in self.sets:
            if us > since_us and at_us >= us:
                at_us = max(us, wall_us - ahead_us)
        return at_us

    def shown_us(self, wall_us: int, until_us: int) -> int:
        """When the clock last showed so much until a time; that time where it never did."""
        end_us = until_us
        for us, ahead_us in [*reversed(self.sets), (0, 0)]:
            if us <= until_us and us <= wall_us - ahead_us <= end_us:
                return wall_us - ahead_us
            end_us = min(end_us, us)
        return until_us

    def planned_us(self, written: Written) -> int:
        """When a row was planned, by the clock that showed its birth; else when it was written."""
        if self.is_ahead(written):
            return written.at_us
        return self.shown_us(birth_us(written.row.id), written.at_us)

    def is_ahead(self, written: Written) -> bool:
        """True if a row of a name is born just after the one that it replaces, and no sooner.

        The clock had been set back since that one, and so it tells nothing of when it was planned.
        """
        source = self.written.get(self.came_from.get(written.row.id, b""))
        if source is None or written.row.key is None:
            return False
        return birth_us(written.row.id) == birth_us(source.row.id) + 1

    def _ahead_us(self, us: int) -> int:
        return next((ahead_us for at_us, ahead_us in reversed(self.sets) if at_us <= us), 0)

    def is_audited(self, audit: Audit, row_id: bytes) -> bool:
        """True if a message entered in the time that an audit is of, where the clock was set.

        What entered while it was set back may have done so before the queue was made.
        """
        since_us, until_us = (
            round(moment.timestamp() * 1e6) for moment in (audit.since, audit.until)
        )
        until_us += CLOCK_AHEAD_MS * 1_000
        return not self.sets or since_us <= birth_us(row_id) < until_us

    def attended_us(self, us: int) -> int:
        """When somebody was there, from a moment on: in the end all may leave, and one comes."""
        return max(us, self.came_us) if self.left_us and us >= self.left_us else us


def is_tried(row: Row) -> bool:
    """True if a row is there to see whether it was before: it never begins, and is no message."""
    key = key_of(row)
    return key is not None and key.generation == NEVER
