"""Plans the change of a row that is not acked, for consumers and for receipts.

```
 settle ─┬─ retry, snooze ──► due later; buried if all attempts are spent
         └─ bury ───────────► in the dead-letter queue
 forward ── into another queue, or back from the dead letters
 claim ──── parked, received, extended: due when the delivery's time is up, the attempt counted
 edit ───── in place, of a row in a group lane: claimed; retried, snoozed if its group is ordered
 place ──── waits elsewhere                                share ────► in the lane of a free member
 repair ─── came too late for its minute: due now
 by key ──┬─ asked ─────────► due at another time
          └─ kept ──────────► due as before, and changed otherwise
```

It writes nothing; `settle.py` carries the plans out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq.lifecycle.fate import Fate, Outcome, decided
from shardq.model import ids, names
from shardq.model.ids import row_ids
from shardq.model.key import MessageKey
from shardq.model.limits import limits_of
from shardq.model.message import (
    dead_headers,
    died_in,
    entered,
    failed,
    moved,
    note_of,
    placed,
    priority_of,
    received_at,
    revived,
)
from shardq.model.times import ceil_ms
from shardq.records.stats import NEAR_MS
from shardq.stores.store import RowMove

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.model.shard import Layout, Position
    from shardq.records.register import Register

_NOTE_MS = 20
"""How much later than now a note is due, so that no poll passes its due before the note is
stored."""


class Settlement(NamedTuple):
    """The plan for a delivery that was not acked.

    Attributes:
        fate: The fate as decided; a retry may have become a burial.
        move: The row's move; None if the row stays.
        edit: The row after its edit in place, with its old serial; None if the row moves.
        dead: The row of the dead message, if the message is buried; only the move stores this row.
    """

    fate: Fate
    move: RowMove | None
    edit: Row | None = None
    dead: Row | None = None


def lane_after(layout: Layout, row: Row) -> int:
    """The lane a row moves to: its group's, or its own if producers still fill that lane."""
    if row.group is not None:
        return layout.group_lane(row.group)
    return layout.written_lane(row.shard.lane)


def counted(row: Row, delivery: int) -> int:
    """How many deliveries a message has had, including this one.

    Args:
        row: The message's row.
        delivery: The number of the delivery; 0 for a message that was only read.
    """
    return max(delivery, row.attempt)


def uncounted(row: Row, delivery: int) -> int:
    """How many deliveries a message has had, without this one, which uses no attempt.

    Args:
        row: The message's row.
        delivery: The number of the delivery; 0 for a message that was only read.
    """
    return delivery - 1 if delivery else row.attempt


class Planner:
    """Plans the changes of one queue's rows.

    Args:
        on_far: Called with each due of a move that is more than `NEAR_MS` ahead.
    """

    def __init__(
        self,
        clock: Clock,
        register: Register,
        on_far: Callable[[int], object] | None = None,
    ) -> None:
        self._clock = clock
        self._register = register
        self._on_far = on_far

    def settle(self, row: Row, outcome: Outcome, delivery: int) -> Settlement:
        """Plan the settlement of a delivery that was not acked.

        Args:
            row: The message's row.
            outcome: The outcome that was asked for.
            delivery: The delivery's number; 0 for a message that was only read.
        """
        attempt = counted(row, delivery)
        outcome = decided(outcome, attempt, self._register)
        if outcome.fate is Fate.BURY:
            move = self.burial(row, outcome.reason, attempt=attempt, traceback=outcome.traceback)
            kept = None if self._register.dead_name is None else move
            return Settlement(outcome.fate, kept, dead=move.new)
        is_failed = outcome.fate is Fate.RETRY
        until_ms = self._clock.now_ms() + (outcome.delay_ms or 0)
        left = attempt if is_failed else uncounted(row, delivery)
        if self._stays(row, outcome):
            if outcome.reason:
                now_ms = self._clock.now_ms()
                row = failed(row, outcome.reason, now_ms, is_snoozed=not is_failed)
            self._note_far(until_ms, self._clock.now_us())
            edit = row._replace(attempt=left, not_before_ms=until_ms, claim=None)
            return Settlement(outcome.fate, None, edit)
        if row.not_before_ms is not None:
            # The end of a claim or limit counts no more: its new due says when it is delivered.
            row = row._replace(not_before_ms=None)
        move = self.move(
            row,
            until_ms,
            attempt=left,
            error=outcome.reason or None,
            is_failed=is_failed,
            is_for_others=outcome.is_for_others,
        )
        return Settlement(outcome.fate, move)

    def receive(
        self, row: Row, visibility_ms: int, delivery: int, *, holder: str, is_lasting: bool
    ) -> RowMove | Row:
        """The claim of a row for a caller of `receive`. It also has the time of the first claim.

        Args:
            row: The message's row.
            visibility_ms: How long from now the claim lasts.
            delivery: The number of the delivery.
            holder: The caller's member.
            is_lasting: True if the message's receipts shall last.
        """
        received = received_at(row, self._clock.now_ms(), is_lasting=is_lasting)
        if row.is_lasting or not is_lasting:
            row = row if row.received else row._replace(received=received)
            return self.claim(row, visibility_ms, delivery, holder=holder)
        # The move sets the mark: a row that has it before it moves gets a note.
        return self.claim(row, visibility_ms, delivery, holder=holder, received=received)

    def claim(
        self,
        row: Row,
        visibility_ms: int,
        delivery: int,
        *,
        holder: str,
        is_counted: bool = True,
        received: str | None = None,
    ) -> RowMove | Row:
        """The claim of a row whose delivery is under way elsewhere, until the claim's time is up.

        Args:
            row: The message's row.
            visibility_ms: How long from now the claim lasts.
            delivery: The number of the delivery.
            holder: The member or caller that has the delivery.
            is_counted: True if the delivery uses an attempt even if it never ends.
            received: The new value of the column `received`; None leaves it as it is.

        Returns:
            The row's move; in a group lane the row as it is edited in place, with its old serial.
        """
        attempt = counted(row, delivery) if is_counted else uncounted(row, delivery)
        until_ms = self._clock.now_ms() + visibility_ms
        if self._register.layout.is_of_groups(row.shard.lane):
            received = row.received if received is None else received
            return row._replace(
                attempt=attempt, not_before_ms=until_ms, claim=holder, received=received
            )
        return self.move(row, until_ms, attempt=attempt, claim=holder, received=received)

    def note(self, position: Position) -> Row:
        """A note for the owner of a group lane: the row at this position was settled or edited."""
        now_us = self._clock.now_us()
        due_ms = ceil_ms(now_us) + _NOTE_MS
        shard = self._register.layout.shard(due_ms, position.shard.lane)
        return note_of(position, shard, due_ms, row_ids.next(now_us))

    def place(self, row: Row, due_ms: int) -> RowMove:
        """The move of a waiting row: only its place changes."""
        return self.move(row, due_ms, attempt=row.attempt)

    def asked(self, row: Row, due_ms: int) -> Row:
        """The new row of a waiting message that becomes due at another time, or now.

        The new due decides the message's place in its group.

        Args:
            row: The message's row.
            due_ms: The due that the user asks for, epoch milliseconds.
        """
        return self._anew(row, due_ms, origin_ms=due_ms, since_ms=None)

    def kept(self, row: Row) -> Row:
        """The new row of a waiting message that changes: due as before, or now if that is past.

        The message's lateness and its place in its group stay the same.
        """
        if self._register.layout.is_of_groups(row.shard.lane):
            # Keep the row's due, though it may be past: a note leads the lane's owner there.
            return placed(
                row, row.shard, row.due_ms, row_ids.next(self._clock.now_us()), claim=None
            )
        return self._anew(row, row.due_ms, origin_ms=row.order[0], since_ms=row.wanted_ms)

    def _anew(self, row: Row, due_ms: int, *, origin_ms: int, since_ms: int | None) -> Row:
        now_us = self._clock.now_us()
        due_ms = max(due_ms, ceil_ms(now_us))
        self._note_far(due_ms, now_us)
        layout = self._register.layout
        return placed(
            row,
            layout.shard(due_ms, lane_after(layout, row)),
            due_ms,
            row_ids.next(now_us),
            origin_ms=None if origin_ms == due_ms else origin_ms,
            claim=None,
            not_before_ms=None,
            since_ms=None if since_ms == due_ms else since_ms,
        )

    def share(self, row: Row, lane: int, *, after_ms: int) -> RowMove:
        """The move of a row to a lane that another member reads, due `after_ms` from now.

        A due that is later stays. Lateness still counts from the due before.
        """
        now_us = self._clock.now_us()
        return self._later(row, lane, max(ceil_ms(now_us) + after_ms, row.due_ms), now_us)

    def postpone(self, row: Row, due_ms: int) -> RowMove:
        """The move of a due row to a later due. Lateness still counts from the same due."""
        now_us = self._clock.now_us()
        self._note_far(due_ms, now_us)
        return self._later(
            row, lane_after(self._register.layout, row), max(due_ms, ceil_ms(now_us)), now_us
        )

    def _later(self, row: Row, lane: int, due_ms: int, now_us: int) -> RowMove:
        new = moved(
            row,
            self._register.layout.shard(due_ms, lane),
            due_ms,
            _id_after(row, now_us),
            attempt=row.attempt,
            claim=None,
            since_ms=row.wanted_ms,
        )
        return RowMove(row.position, new)

    def repair(self, row: Row) -> RowMove:
        """The move to now of a row stored too late, in this queue or its dead-letter queue."""
        now_us = self._clock.now_us()
        due_ms = ceil_ms(now_us)
        layout = self._register.layout_of(row.shard.queue)
        new = moved(
            row,
            layout.shard(due_ms, lane_after(layout, row)),
            due_ms,
            _id_after(row, now_us),
            attempt=row.attempt,
            claim=row.claim,
            since_ms=row.since_ms,
        )
        return RowMove(row.position, new)

    def burial(self, row: Row, reason: str, *, attempt: int, traceback: str = "") -> RowMove:
        """The move of a row to the dead-letter queue, where it enters anew under its old id.

        If the queue keeps no dead messages, the new row is stored nowhere.
        """
        # Open it before the time is read: if the dead-letter queue is made now, its history begins
        # now, and no audit would find an earlier entry.
        register = self._register
        dead = register if register.dead_name is None else register.dead()
        now_us = self._clock.now_us()
        priority = priority_of(row, register.layout)
        key = None if register.has_own_dead else row.key
        headers = dead_headers(row, priority, reason, attempt, now_us // 1_000, traceback, key)
        due_ms = ceil_ms(now_us)
        new = entered(
            row,
            dead.layout,
            due_ms,
            _id_after(row, max(now_us, dead.settings.purged_before_us)),
            headers=headers,
            priority=priority,
            index=due_ms % dead.layout.lanes_written,
            key=row.key if register.has_own_dead else None,
            origin_ms=row.order[0],
        )
        dead.use_lanes_of([new.shard])
        return RowMove(row.position, new)

    def forward(self, row: Row, target: Register) -> RowMove:
        """The move of a message into another queue, as a new entry with its old id.

        A message that died or is being delivered is due at once; any other keeps its due.
        """
        if target.name == self._register.dead_name:
            return self.burial(row, "forwarded", attempt=row.attempt)
        now_us = self._clock.now_us()
        due_ms = ceil_ms(now_us)
        if row.claim is None and died_in(row) is None:
            due_ms = max(due_ms, row.ready_ms)
        layout = target.layout
        new = revived(
            row,
            layout,
            due_ms,
            _id_after(row, max(now_us, target.settings.purged_before_us)),
            index=due_ms % layout.lanes_written,
            priority=priority_of(row, self._register.layout),
        )
        if names.is_dead_queue(target.name):
            new = new._replace(key=None)
        elif target.settings.keyed and new.key is None:
            new = new._replace(key=MessageKey(new.message_id).text())
        # A queue that was dropped and made anew may not use such lanes so far.
        target.use_lanes_of([new.shard])
        return RowMove(row.position, new)

    def move(
        self,
        row: Row,
        due_ms: int,
        *,
        attempt: int,
        claim: str | None = None,
        error: str | None = None,
        is_failed: bool = True,
        is_for_others: bool = False,
        received: str | None = None,
    ) -> RowMove:
        """The move of a row to another due, which is never in the past.

        Args:
            row: The message's row.
            due_ms: The new due, epoch milliseconds.
            attempt: How many deliveries were begun and recorded.
            claim: The member that holds the delivery under way.
            error: Why the attempt has just failed, or was snoozed; None keeps the earlier error.
            is_failed: True if the attempt has failed.
            is_for_others: True to pass the message to another member: it moves to the next lane,
                because a member reads a lane for long. A message with a group stays until its lane
                has another owner.
            received: As `claim` takes it.
        """
        now_us = self._clock.now_us()
        if error is not None:
            row = failed(row, error, now_us // 1_000, is_snoozed=not is_failed)
        due_ms = max(due_ms, ceil_ms(now_us))
        self._note_far(due_ms, now_us)
        layout = self._register.layout
        lane = lane_after(layout, row)
        if is_for_others and row.group is None:
            lane = layout.next_lane(lane)
        shard = layout.shard(due_ms, lane)
        row_id = _id_after(row, now_us)
        new = moved(row, shard, due_ms, row_id, attempt=attempt, claim=claim, received=received)
        return RowMove(row.position, new)

    def _stays(self, row: Row, outcome: Outcome) -> bool:
        """True if a row that is retried or snoozed stays in its place.

        A group in order waits for it there. A group without order waits only if it is limited.
        """
        register = self._register
        if not register.layout.is_of_groups(row.shard.lane):
            return False
        limit = limits_of(register.settings.group_limits).of(row.group or "")
        return limit.places == 1 or outcome.is_limit

    def _note_far(self, due_ms: int, now_us: int) -> None:
        if self._on_far is not None and due_ms * 1_000 > now_us + NEAR_MS * 1_000:
            self._on_far(due_ms)


def _id_after(row: Row, now_us: int) -> bytes:
    """A fresh id for a row that moves; with a key it is later than the message's earlier ids."""
    return row_ids.next(now_us) if row.key is None else ids.after(row.id, now_us)
