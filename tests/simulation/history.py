"""The events of a run, as an observer records them who sees everything.

Times are true time, epoch microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shardq.model.ids import birth_us
from shardq.model.key import NEVER
from shardq.model.limits import QueueLimit, limits_of, queue_limit_of
from shardq.model.message import key_of
from shardq.records.ledger import CLOCK_AHEAD_MS

if TYPE_CHECKING:
    from shardq.inspection.audit import Audit
    from shardq.model.limits import BeginRate, GroupLimit
    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from simulation.named import ByKey
    from simulation.parts import Letter
    from simulation.plan import Plan
    from simulation.runs import Run
    from simulation.strangers import Stranger
    from simulation.timeline import Asked


LATE_WRITER = "late"
"""The name under which writes are recorded that take effect long after they were sent."""


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
    """A refusal of a receipt: its time, and the row that the receipt names."""

    us: int
    row_id: bytes


@dataclass(slots=True)
class Delivery:
    """A message that was handed out, and its outcome.

    Attributes:
        seen_us: When the process last read the claim before it delivered it; 0: never, or the row
            was no claim.
        refusals: The refusals of its receipts as stale.
        asked: (when, answer) of each time that its handler asked if it is to stop.
        unsure_us: The times at which a caller got no answer to a move or to a settle of the row.
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
        process: The writer; `LATE_WRITER` if the write took effect long after it was sent.
        sender: The process that sent the write, however late it arrived; empty: none did.

        is_edit: True if the row stands for an edit in place.
    """

    row: Row
    at_us: int
    process: str
    deleted_us: int | None = None
    deleted_by: str = ""
    sender: str = ""
    is_edit: bool = False

    def is_there(self, us: int) -> bool:
        """True if the row existed at a time."""
        return self.at_us <= us and (self.deleted_us is None or self.deleted_us > us)


@dataclass(slots=True)
class Recorded:
    """An attempt that was recorded in place, before its delivery was to begin."""

    at_us: int
    process: str
    row_id: bytes
    attempt: int


class Heard(NamedTuple):
    """What a queue's record said at a time: whether it is paused, what is purged, the limits."""

    us: int
    paused: bool
    purged_before_us: int
    group_limits: str = ""
    queue_limit: str = ""

    @property
    def of_queue(self) -> QueueLimit:
        """The limits of the whole queue."""
        return own_limit(queue_limit_of(self.queue_limit))

    def pauses(self, row: Row) -> bool:
        """True if a message was paused: by its queue, its group, its task or its key."""
        of_group = row.group is not None and limits_of(self.group_limits).pause_of(row.group)
        limit = queue_limit_of(self.queue_limit)
        return self.paused or bool(of_group) or bool(limit.pause_of(row, self.us // 1_000))


def own_limit(limit: QueueLimit) -> QueueLimit:
    """The limits of a whole queue, without those of a part of it."""
    return QueueLimit(limit.running, limit.rates)


class HandedOut(NamedTuple):
    """A message that left `ready`, and the limits by which it did.

    Attributes:
        of_late: The rate at which late messages begin, if it is one of these.
    """

    us: int
    process: str
    token: int
    limit: GroupLimit
    of_queue: QueueLimit
    of_late: tuple[tuple[BeginRate, int], ...]


class Fork(NamedTuple):
    """A lease that a fork of its holder released, without the holder's knowledge.

    Attributes:
        process: The holder.
        noticed_us: When a renewal by the holder was refused; 0: never.
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
    """An audit, with the times of its begin and end."""

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
    """All events of a run.

    Attributes:
        sets: (when, how far ahead of true time since) of each set of the one machine's clock.
        failed: Process -> when calls of it failed or had no answer in time.
        gone: (when, message, process) of each delete of the last row of a message.
        found: (when, process, row) of each row that a sweep of a sealed shard found.
        sealed_us: (lane, minute) -> when it was sealed.
        came_from: Row -> the row in whose place a move was to write it, for each move asked for.
        moved_late: (when, process, row id) of each move that its process learned of only after the
            end of the new row's minute plus half the offset.

        entered: (queue, first row id) of a message -> when its put reached the ledger.
        ended: (queue, first row id) -> (when, fate) of each end that reached the ledger. An earlier
            end that arrives later replaces the one before.
        recording: (process, row) -> when the process began to record an attempt.
        waits: Process -> (begin, end) of each call of it that was refused, lost or slow.
        said: The versions of the queue's record, in the order of their storing.
        heard: Process -> the versions of the record that it read.
        audits: The last audits of the queue and of its dead-letter queue.
        left_us: When all readers began to leave at the end; 0: they did not.
        came_us: When a reader started after that.
        looks: All audits, those during the run too.
        dropped: Row id -> when the row was lost without the queue's knowledge.
        strangers: The heartbeats of no real member.
        relaned: When the queue's record got another number of lanes.

        errands: Errand -> the call that it came to.
        commands: Command -> likewise.
        runs: What schedules have put, by the messages' numbers.
        inserted: Row -> when, and by whom, it was asked to be inserted.
        handed_out: What left `ready`, in order, where there are limits.
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
    handed_out: list[HandedOut] = field(default_factory=list)
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
        """When the machine's clock, from `since_us` on, first showed `wall_us`.

        A time before `since_us` is converted by the clock as it was set at `since_us`.
        """
        at_us = wall_us - self._ahead_us(since_us)
        for us, ahead_us in self.sets:
            if us > since_us and at_us >= us:
                at_us = max(us, wall_us - ahead_us)
        return at_us

    def shown_us(self, wall_us: int, until_us: int) -> int:
        """When the clock last showed `wall_us` until a time; that time if it never did."""
        end_us = until_us
        for us, ahead_us in [*reversed(self.sets), (0, 0)]:
            if us <= until_us and us <= wall_us - ahead_us <= end_us:
                return wall_us - ahead_us
            end_us = min(end_us, us)
        return until_us

    def planned_us(self, written: Written) -> int:
        """When the clock showed the birth in a row's id; when it was written if it never did.

        The history itself makes the id of an edit, by true time.
        """
        if written.is_edit or self.is_ahead(written):
            return written.at_us
        return self.shown_us(birth_us(written.row.id), written.at_us)

    def is_ahead(self, written: Written) -> bool:
        """True if the birth in a row's id is only one above that of the row which it replaces.

        The clock was set back in between, so the birth does not show when the row was planned.
        """
        source = self.written.get(self.came_from.get(written.row.id, b""))
        if source is None or written.row.key is None:
            return False
        return birth_us(written.row.id) == birth_us(source.row.id) + 1

    def _ahead_us(self, us: int) -> int:
        return next((ahead_us for at_us, ahead_us in reversed(self.sets) if at_us <= us), 0)

    def is_audited(self, audit: Audit, row_id: bytes) -> bool:
        """True if a message entered in the time that an audit covers, or no clock was set.

        A message that entered while the clock was set back may seem older than the queue.
        """
        since_us, until_us = (
            round(moment.timestamp() * 1e6) for moment in (audit.since, audit.until)
        )
        until_us += CLOCK_AHEAD_MS * 1_000
        return not self.sets or since_us <= birth_us(row_id) < until_us

    def attended_us(self, us: int) -> int:
        """The first time from `us` on with a reader: at the end all may leave before one starts."""
        return max(us, self.came_us) if self.left_us and us >= self.left_us else us


def is_tried(row: Row) -> bool:
    """True if a row only tests if it was written before: it never begins, and is no message."""
    key = key_of(row)
    return key is not None and key.generation == NEVER
