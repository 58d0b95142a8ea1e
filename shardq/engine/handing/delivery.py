"""A delivery: a row in memory, until this member has settled it or another member has taken it.

```
 waiting ─claim─► claimed ─run─► running ─────────── end ──────────► ended ─forget─► gone
                     │              ├─park─► parked ─────── end ──────► │               ▲
                     │              │          └─lose─► lost ── end ──► │               │
                     │              └─save─► saving ── end ──► ended    │               │
                     │                         └─keep─► stored ─────── forget ─────────►┤
                     ├─ end: it may not begin ────────────────────────► │               │
                     └─ withdraw, at a close ──────────────────────────────────────────►┘
```

Handler threads and the engine race for a delivery. Each changes the delivery's stage by a step, and
the first step wins. The table below says which steps exist, and at which stages a step comes too
late.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from shardq import locks

if TYPE_CHECKING:
    from shardq.engine.handing.gate import Gate
    from shardq.engine.leases.lease import Lease
    from shardq.model.limits import Bucket
    from shardq.model.message import Row


class DeliveryStage(IntEnum):
    """How far a delivery has come. Until `ENDED` the engine waits for its thread or caller."""

    WAITING = 0
    """Nobody has taken the delivery: it is in `ready`, behind a head of its group, or being moved
    to another lane."""
    CLAIMED = 1
    """A thread or a caller of `receive` has taken the delivery, and may still have to ask if it may
    begin."""
    RUNNING = 2
    """The handler has been called."""
    PARKED = 3
    """The delivery has run for longer than `hold`: the engine keeps its row as a claim, and only
    the engine stores its outcome."""
    LOST = 4
    """Another member has settled the delivery's row, and the handler still runs."""
    SAVING = 5
    """The delivery's thread stores its ack, so the row must not be moved."""
    ENDED = 6
    """The outcome is decided, and the engine stores it."""
    STORED = 7
    """The delivery's thread has stored its ack."""
    GONE = 8
    """The engine has forgotten the delivery: its row is settled, or another member's."""


WAITING, CLAIMED, RUNNING, PARKED, LOST, SAVING, ENDED, STORED, GONE = DeliveryStage


@dataclass(frozen=True, slots=True)
class Step:
    """A step in the life of a delivery.

    Attributes:
        before: The stages from which the step leads.
        after: The stage to which the step leads.
        refused: The stages at which another step was first, or this step comes too early. From all
            other stages the step is an error.
    """

    before: tuple[DeliveryStage, ...]
    after: DeliveryStage
    refused: tuple[DeliveryStage, ...] = ()


CLAIM: Final = Step((WAITING,), CLAIMED)
RUN: Final = Step((CLAIMED,), RUNNING, (GONE,))
WITHDRAW: Final = Step((CLAIMED,), GONE, (RUNNING, PARKED, SAVING, ENDED, STORED))
"""Taken at a close: a delivery that its thread has claimed and not begun never begins."""
PARK: Final = Step((RUNNING, PARKED), PARKED, (CLAIMED, SAVING, ENDED, STORED))
LOSE: Final = Step((PARKED,), LOST, (ENDED,))
SAVE: Final = Step((RUNNING,), SAVING, (PARKED, LOST))
KEEP: Final = Step((SAVING,), STORED)
END: Final = Step((RUNNING, CLAIMED, PARKED, LOST, SAVING, WAITING), ENDED, (GONE,))
FORGET: Final = Step((ENDED, STORED, WAITING, CLAIMED, GONE), GONE)

_lock = locks.new()


class Delivery:
    """A row in memory, and how far its delivery has come.

    Only the methods of `Delivery` set its attributes.

    Attributes:
        row: The row at its present position; a park changes the position.
        band: The row's priority.
        lease: The lease under which the row was read.
        grouped: True if the row lives in a group lane, where rows stay in place.
        careful: True if the attempt is recorded before the handler is called, and the ack is stored
            before the next row is handed out.
        stage: How far the delivery has come.
        attempt: The number of the delivery, from 1; 0 before it is claimed.
        begun_us: Time since boot of the hand-out, then of the handler's call; 0 before the
            hand-out.
        thread_id: The thread that the handler runs in; 0 before.
        is_claim: True if the row is a claim of this member, which needs no lease any more.
        settled: Set once a careful delivery's outcome is stored; None before the handler is called.
        there_until_us: For a doubtful delivery: time since boot until which its row is taken to
            exist.
        is_stale: For the head of a group: True if its row must be reread before the hand-out.
        is_edited: For a row of a group: True if the row was edited under its lease.
        line: For a row of a group with a rate, a tier or several places: its group's line. For
            another job of a task with limits: its task's line, once it waits for a handler.
        turn_ms: For the head of a group: when a delivery of the group last ended, epoch
            milliseconds; 0: none has. Its turn begins no sooner.
        gate: For a job of a task with limits that waits for a handler, or has begun: the limits.
    """

    __slots__ = (
        "attempt",
        "band",
        "begun_us",
        "careful",
        "gate",
        "grouped",
        "is_claim",
        "is_edited",
        "is_stale",
        "lease",
        "line",
        "row",
        "settled",
        "stage",
        "there_until_us",
        "thread_id",
        "turn_ms",
    )

    def __init__(
        self,
        row: Row,
        band: int,
        lease: Lease,
        *,
        careful: bool = False,
        grouped: bool = False,
    ) -> None:
        self.row = row
        self.band = band
        self.lease = lease
        self.grouped = grouped
        self.careful = careful
        self.stage = WAITING
        self.attempt = self.begun_us = self.thread_id = self.there_until_us = self.turn_ms = 0
        self.is_claim = self.is_stale = self.is_edited = False
        self.settled: threading.Event | None = None
        self.line: HeadLine | None = None
        self.gate: Gate | None = None

    @property
    def has_ended(self) -> bool:
        """True if the outcome is decided, or the row is another member's: nobody waits on it."""
        return self.stage >= ENDED

    @property
    def doubtful(self) -> bool:
        """True if another member may settle the row: it is reread before the hand-out."""
        return self.careful or self.row.claim is not None

    # Steps ----------------------------------------------------------------------------------------

    def take(self, step: Step) -> bool:
        """Take a step, unless another was first. From any thread.

        Returns:
            True if the step was taken.

        Raises:
            RuntimeError: If there is no such step from the present stage.
        """
        with _lock:
            if self.stage in step.before:
                self.stage = step.after
                return True
            if self.stage in step.refused:
                return False
        raise self._illegal(step)

    def claim(self, now_us: int) -> None:
        """Record that the delivery was taken out of `ready`.

        The caller holds the lock of `ready`.

        Raises:
            RuntimeError: As for `take`.
        """
        if self.stage is not WAITING:
            raise self._illegal(CLAIM)
        self.stage = CLAIMED
        self.begun_us = now_us
        self.attempt = self.row.attempt + 1

    def run(self, now_us: int) -> bool:
        """Begin to run in the calling thread; False if the delivery must not begin any more."""
        if not self.take(RUN):
            return False
        self.begun_us = now_us
        self.thread_id = threading.get_ident()
        if self.careful:
            self.settled = threading.Event()
        return True

    def forget(self) -> None:
        """Forget the delivery, as its row is settled or another member's. A lost one must end.

        Only the thread that steps the engine forgets deliveries.

        Raises:
            RuntimeError: As for `take`.
        """
        if self.stage is LOST:
            return
        if self.stage not in FORGET.before:
            raise self._illegal(FORGET)
        self.stage = GONE
        if self.settled is not None:
            self.settled.set()

    def _illegal(self, step: Step) -> RuntimeError:
        return RuntimeError(
            f"the delivery of message {self.row.message_id} is {self.stage.name}, from where no "
            f"step leads to {step.after.name}."
        )

    # Facts ----------------------------------------------------------------------------------------

    def uncount(self) -> None:
        """Take back the count of this delivery as an attempt, because its row is buried instead."""
        self.attempt -= 1

    def replace(self, row: Row) -> None:
        """Replace the row by its form after an edit in place, or by itself without its body."""
        self.row = row

    def note_edit(self) -> None:
        """Record that the row, of a group, was edited under the delivery's lease."""
        self.is_edited = True

    def note_look(self, until_us: int, *, is_stale: bool) -> None:
        """Record that the row existed just now, and is taken to exist until `until_us`."""
        self.there_until_us, self.is_stale = until_us, is_stale

    def wait(self) -> None:
        """Record that the delivery is the head of its group, and waits for its time."""
        self.is_stale = True

    def lead(self, *, careful: bool) -> None:
        """Record that it is a head of its group, and is handed out next."""
        self.careful, self.is_stale = careful, False

    def line_up(self, line: HeadLine | None, turn_ms: int) -> None:
        """Record in which line of its group it waits for a handler, and since when.

        Args:
            line: The line; None: its group has none.
            turn_ms: When a delivery of its group last ended, epoch milliseconds; 0: none has.
        """
        # The head may have waited at a gate that no longer exists.
        self.gate, self.line, self.turn_ms = None, line, turn_ms

    def limit(self, gate: Gate | None, line: HeadLine | None) -> None:
        """Record the limits of its task, and the line in which it waits for a handler."""
        self.gate, self.line = gate, line

    def become_claim(self, claim: Row) -> None:
        """Record that the row was parked: from now on the delivery's row is this claim."""
        self.row, self.is_claim = claim, True


class HeadLine:
    """The heads of one group, or the jobs of one task. The caller holds the lock of `ready`.

    Attributes:
        tier: How many heads are taken in one turn.
        bucket: The tokens of the group's rates; None: it has no rate.
        heads: A heap of (band, due, order of the row id, head).
        turn: The head that takes part in the turns; None: none does, or the line is held.
        held: The number of the line's wait for a token or a place; 0: it does not wait.
        at: The gate for which it waits, and the band of its first head; None: it waits for no gate.
        left: How many more heads are taken in the present turn.
        begin_ms: When the present turn began, epoch milliseconds.
        number: The number of the turn, which decides among turns of one millisecond.
        until_us: No head is taken before this time since boot.
    """

    __slots__ = (
        "at",
        "begin_ms",
        "bucket",
        "heads",
        "held",
        "left",
        "number",
        "tier",
        "turn",
        "until_us",
    )

    def __init__(self, tier: int, bucket: Bucket | None) -> None:
        self.tier = self.left = tier
        self.bucket = bucket
        self.heads: list[tuple[int, int, bytes, Delivery]] = []
        self.turn: Delivery | None = None
        self.at: tuple[Gate, int] | None = None
        self.held = self.begin_ms = self.number = self.until_us = 0

    def next_us(self) -> float:
        """When the group allows its next head, time since boot; infinite: once a token is granted.

        The gate of the head may still be closed then.
        """
        return max(self.until_us, 0 if self.bucket is None else self.bucket.opens_us())
