"""Outcomes of deliveries, on their way to the store in batches.

```
 handlers ── finish ──► done ──┬─ acks, lease valid ─────────► one multi-row delete a shard, blind
                               ├─ acks, claimed or lapsed ───► look first, then delete
                               ├─ retry, snooze, bury, park ─► look first, then move
                               └─ the same of a group ───────► edited in place; buried by a move
```

An outcome that the store does not take stays here and is repeated unchanged: same rows, same ids.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from shardq.engine.handing.delivery import (
    END,
    KEEP,
    LOSE,
    PARK,
    PARKED,
    RUNNING,
    SAVE,
    STORED,
    WITHDRAW,
)
from shardq.engine.handing.outcome import EXPIRED
from shardq.engine.members.part import Part
from shardq.engine.reading.lane import SOON_MS
from shardq.engine.storing.courier import Errand
from shardq.engine.storing.ending import Endings
from shardq.errors import ShardqError, StoreUnavailable
from shardq.lifecycle.fate import FAILED, LOST, NO_REASON, Fate, Outcome
from shardq.model.message import Row, end_of_use_ms, short_error, spent_reason, task_of
from shardq.records.ledger import End
from shardq.stores.store import Try

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shardq.engine.groups.room import GroupLanes
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.handing.gate import Gate
    from shardq.engine.members.member import Member
    from shardq.stores.store import RowMove

log = logging.getLogger(__name__)

_ERRAND_ROWS_MIN = 100
"""Fewer acks than this are stored at once by the engine: an errand would wake it once more."""
_SHARE_MS = 20
_SHARE_LOCAL_MS = 5
"""How far ahead a shared row is due: longer than its move takes, so that a poll still finds the
row."""
_LET_GO_MS = 250
_UNREAD_MS = 1_000
"""How long after a row's due its ack waits for a poll, at most: a lane that lags is polled much
later."""
_NOT_BEGUN = (Fate.GIVE_UP, Fate.LEAVE, Fate.CANCEL, Fate.EXPIRE, Fate.DROP)
"""Fates of deliveries that did not begin, and of those that their handlers ended as useless. It is
a tuple, because a set would hash the fate of each delivery, in Python."""


class _Pending(NamedTuple):
    one: Delivery
    move: RowMove
    fate: Fate


class _Edit(NamedTuple):
    one: Delivery
    row: Row
    fate: Fate


@dataclass(slots=True)
class Happened:
    """Stored outcomes on which an engine has to act.

    Attributes:
        moved: The new rows of deliveries that had begun and are due again.
        dead: The rows of messages that died, in the dead-letter queue if they are kept.
        has_parked: True if a delivery was parked.
    """

    moved: list[Row] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    has_parked: bool = False


class Outbox(Part):
    """Settles deliveries of one consumer.

    Args:
        groups: The group lanes, which edit rows in place, and unblock the next row when a row ends.
    """

    def __init__(self, member: Member, groups: GroupLanes) -> None:
        super().__init__(member)
        self._planner = self._settler.planner
        self._groups = groups
        self._courier = member.courier
        self._failures = member.failures
        self._member = self._home.member
        self._batch = max(member.prefetch // 8, 1)
        self._on_batch = member.on_outcomes
        self._share_ms = _SHARE_LOCAL_MS if self._store.is_local else _SHARE_MS
        self._errand_rows = max(self._batch, _ERRAND_ROWS_MIN)
        self._done: deque[tuple[Delivery, Outcome]] = deque()
        self._acks: list[Delivery] = []
        self._unread: list[Delivery] = []
        """Acks of rows that no poll has passed yet."""
        self._sent: deque[tuple[Errand, list[Delivery]]] = deque()
        self._has_failed = False
        self._checked: list[Delivery] = []
        self._moves: list[_Pending] = []
        self._is_half_moved = False
        """True if the last try of `_moves` failed, and may have written some of the new rows."""
        self._edits: list[_Edit] = []
        self._failed: list[tuple[Row, Try]] = []
        """Failed attempts to record, if the queue keeps a history."""
        self._left_behind: list[Delivery] = []
        self._parking: dict[bytes, RowMove | Row] = {}
        self._running = member.memory.running
        self._astray: list[Delivery] = []
        """Deliveries whose rows other members settled while their handlers still ran."""
        self._happened = Happened()
        self.hold_task: Callable[[str, int], None] | None = None
        """Hands out no job of a task for so many milliseconds; the limits of tasks set it."""
        self.endings = Endings()

    # From handlers --------------------------------------------------------------------------------

    def finish(self, one: Delivery, outcome: Outcome) -> None:
        """End a delivery; the next flush stores its outcome."""
        is_stored = one.stage is STORED
        if not (is_stored or one.take(END)):
            return
        is_first = not (self._done or self._unread)
        if outcome.fate in FAILED and one.thread_id and self._settler.ledger.is_on:
            outcome = outcome._replace(ran_ms=self._ran_ms(one))
        self._done.append((one, outcome))
        # Wake the engine once a batch: handlers that end while it stores other outcomes need not
        # wake it again.
        is_awaited = one.careful and not is_stored
        delay_ms = outcome.delay_ms
        is_soon = delay_ms is not None and delay_ms < SOON_MS
        if is_awaited or is_soon:
            self._news.wake()
        elif len(self._done) % self._batch == 0:
            self._on_batch()
        elif is_first:
            self._news.on_first()
        if self._ready.gate is not None or one.gate is not None:
            self._ready.reopen()
        if outcome.is_limit:
            self._hold(one, outcome.delay_ms or 0)
        if one.grouped and outcome.fate is Fate.ACK and not is_awaited:
            self._groups.ended(one, is_last=threading.get_ident() == one.thread_id)

    def _hold(self, one: Delivery, delay_ms: int) -> None:
        """Hand out nothing of the group of a delivery for a while; of its task if it has none."""
        if one.grouped:
            self._groups.hold(one, delay_ms)
        elif self.hold_task is not None and (task := task_of(one.row)) is not None:
            self.hold_task(task, delay_ms)

    def is_over(self, row: Row) -> bool:
        """True if a row must not be handed out: it is too old, or has had all its attempts."""
        end_ms = end_of_use_ms(row, self._register.settings.retention_ms)
        is_old = end_ms is not None and end_ms < self._clock.now_ms()
        return is_old or self._register.is_spent(row.attempt)

    def end(self, one: Delivery) -> None:
        """End a row that is over instead of handing it out: bury it, or end it as expired."""
        one.uncount()
        if not self._register.is_spent(one.row.attempt):
            self.finish(one, EXPIRED)
            return
        outcome = Outcome(Fate.BURY, reason=spent_reason(one.row, LOST))
        self._failures.note(one, outcome, kind=LOST)
        self.finish(one, outcome)

    def store_ack(self, one: Delivery) -> bool:
        """Store an ack in the handler's thread, which can then take the next row.

        Returns:
            True if the ack is stored; False if the engine must store it. Call `finish` either way.
        """
        # A shutdown waits for an ack that is being saved: if the shard were released first, another
        # member would read the row.
        if self._clock.boot_us() >= one.lease.deadline_us or not one.take(SAVE):
            return False
        try:
            self._finish([one.row], [one])
        except ShardqError as error:
            log.info("the ack of message %s is tried again: %s", one.row.message_id, error)
            return False
        return one.take(KEEP)

    @property
    def begun(self) -> int:
        """How many deliveries were handed out so far."""
        return self._memory.begun

    @property
    def running(self) -> int:
        """How many deliveries were handed out and are not settled."""
        return len(self._running)

    def handed_out(self) -> list[Delivery]:
        """The deliveries that were handed out and are not settled."""
        return list(self._running.values())

    def at_work(self) -> list[Delivery]:
        """Deliveries whose handlers run, even if other members have settled their rows."""
        if self._astray:
            self._astray = [one for one in self._astray if not one.has_ended]
        running = (*self._running.values(), *self._astray)
        return [one for one in running if one.thread_id and not one.has_ended]

    @property
    def slots_taken(self) -> int:
        """How many slots are taken: by deliveries not settled, and handlers that run after the end.

        A handler that has returned takes no slot, though its delivery's work may continue
        elsewhere.
        """
        astray = sum(not one.has_ended for one in self._astray)
        return len(self._running) + astray - self.endings.freed

    def count_at_handlers(self, gate: Gate | None = None) -> int:
        """How many deliveries were handed out and have not ended, also if others settled them.

        Args:
            gate: The limits of a task, whose jobs are counted; None: all are.
        """
        with self._ready.waiters.lock:
            # Not while a thread is about to begin one: it would be missing.
            begun = [*self._running.values(), *self._astray]
        return sum(not one.has_ended and (gate is None or one.gate is gate) for one in begun)

    @property
    def unended(self) -> int:
        """How many deliveries were handed out and have not ended; those that save acks count."""
        return sum(not one.has_ended for one in list(self._running.values()))

    @property
    def has_batch(self) -> bool:
        """True if a batch of outcomes waits to be stored."""
        return len(self._done) >= self._batch

    @property
    def is_empty(self) -> bool:
        """True if no outcome, edit or delete waits to be stored."""
        return not (
            self._done
            or self._acks
            or self._unread
            or self._sent
            or self._checked
            or self._moves
            or self._edits
            or self._left_behind
            or self._memory.stranded
            or not (self._discards.is_empty and self._groups.is_idle)
        )

    # Rows that are not handed out -----------------------------------------------------------------

    def share(self, one: Delivery, lane: int) -> bool:
        """Move a row, which no slot of this member begins soon, to a lane of another member.

        The caller has taken the row out of `ready`. The row stays in memory until the move is
        stored, so that no read brings it back. If the store's answer is lost, the same move is
        repeated.

        Returns:
            True if the row moves; False if its lease is over, as another member may hold the row by
            now.
        """
        if not self._leases.is_valid(one.lease):
            self._memory.leave(one)
            return False
        move = self._planner.share(one.row, lane, after_ms=self._share_ms)
        self._moves.append(_Pending(one, move, Fate.SNOOZE))
        return True

    def postpone(self, one: Delivery, due_ms: int) -> None:
        """Move a row that waits for the limits of its task, as `share` does, to a later due."""
        if not self._leases.is_valid(one.lease):
            self._memory.leave(one)
            return
        self._moves.append(_Pending(one, self._planner.postpone(one.row, due_ms), Fate.SNOOZE))

    def give_up(self, one: Delivery, *, is_settled: bool = False) -> None:
        """Release a row that cannot be handed out; the next reader of its shard rereads it.

        Args:
            one: The row's delivery.
            is_settled: True if another member has settled or postponed the row.
        """
        self._running.pop(one.row.id, None)
        # A command by key may have replaced a row of a group by a row that precedes the group's
        # next one: the group waits, until a note lets the lane's owner read the new row.
        if is_settled and not (one.grouped and one.row.key is not None):
            self._over(one)
        elif not one.grouped:
            self._memory.leave(one)
        else:
            self._groups.release(one)

    def _over(self, one: Delivery) -> None:
        self._memory.forget(one)
        if one.grouped:
            self._groups.stored(one)

    # Called by the engine -------------------------------------------------------------------------

    def flush(self, *, everything: bool = False) -> Happened:
        """Store all outcomes.

        Args:
            everything: True to store also the acks of rows that no poll has passed yet. Normally
                these acks wait, at most 1 s: a row deleted before the poll is a tombstone that the
                poll reads.

        Returns:
            What has happened since the last return, also in flushes that failed. Rows that failed
            flushes have moved, or begun to move, are left out: reads since then may have found
            them, and this member or others may have settled them.
        """
        self._happened.moved.clear()
        if self._memory.stranded:
            self._move_stranded()
        self._take_back(wait=everything)
        self._sort()
        if self._unread:
            self._choose_acks(everything=everything)
        if self._acks:
            self._send_acks()
            self._take_back(wait=everything)
        if self._checked:
            self._flush_checked()
        if self._failed:
            self._settler.ledger.fail(self._failed)
            self._failed.clear()
        if self._edits:
            self._flush_edits()
        if self._moves:
            self._flush_moves()
        if not self._discards.is_empty:
            doomed, dead = self._discards.flush()
            self._note_deaths(dead)
            self._groups.edits.tell(doomed)
            self._conclude(doomed)
        if self._left_behind:
            self._settler.delete(one.row.position for one in self._left_behind)
            while self._left_behind:
                self.hand_over(self._left_behind.pop())
        self._groups.flush()
        happened, self._happened = self._happened, Happened()
        return happened

    def _move_stranded(self) -> None:
        """Move to now the rows that no member would read at their present places."""
        while self._memory.stranded:
            one = self._memory.stranded.pop()
            if self._leases.is_valid(one.lease):
                move = self._planner.place(one.row, self._clock.now_ms())
                self._moves.append(_Pending(one, move, Fate.SNOOZE))
            else:
                # Another member may have handed the row out: if moved, it would run twice and use
                # an attempt.
                self._memory.leave(one)

    def park_overdue(self) -> None:
        """Park deliveries that outlast `hold`; postpone the claims of parked ones that run on."""
        now_us = self._clock.boot_us()
        for one in list(self._running.values()):
            if one.stage is not RUNNING and one.stage is not PARKED:
                continue
            if one.is_claim:
                is_over = self._is_half_over(one.row.ready_ms)
            else:
                is_over = now_us - one.begun_us >= 1_000 * self._hold_ms(one)
            if is_over and one.take(PARK):
                self._park(one)

    def park_all(self, *, counted: bool) -> None:
        """Park all deliveries that run; at a shutdown without counting their attempts."""
        for one in list(self._running.values()):
            if one.take(PARK):
                self._park(one, is_counted=counted)

    def withdraw(self) -> None:
        """Release deliveries that were handed out and have not begun; their threads skip them."""
        for one in list(self._running.values()):
            if one.take(WITHDRAW):
                self.give_up(one)

    def hand_over(self, one: Delivery, now: Row | None = None) -> None:
        """Forget a delivery that continues elsewhere, or was settled.

        Args:
            one: The delivery.
            now: The present row, if it stays in its group lane and its group waits for it.
        """
        if now is None:
            self.hand_over_all([one])
        else:
            self._running.pop(one.row.id, None)
            self._groups.again(one, now)

    def hand_over_all(self, ones: Collection[Delivery]) -> None:
        """Forget deliveries, as `hand_over` does."""
        for one in ones:
            self._running.pop(one.row.id, None)
        self._memory.forget_all(ones)
        self._groups.all_stored(ones)

    def leave_behind(self, one: Delivery) -> None:
        """Let the next flush delete a delivery's row, as its claim exists beside the row."""
        one.take(END)
        self._left_behind.append(one)

    def _hold_ms(self, one: Delivery) -> int:
        hold_ms = self._register.settings.hold_ms
        # The lane has a new reader, which waits for the rows that still run in this member: park
        # them soon.
        return hold_ms if one.row.shard.lane in self._memory.lanes else min(hold_ms, _LET_GO_MS)

    def _sort(self) -> None:
        """Sort the new outcomes, and plan each move once."""
        done = self._done
        if not done:
            # Count nothing either: each change of the totals causes a write of its own.
            return
        late_us: list[int] = []
        since_boot_us = self._clock.now_us() - self._clock.boot_us()
        stored: list[Delivery] = []
        try:
            for _ in range(len(done)):
                one, outcome = done[0]
                self._park_first(one)
                if one.stage is STORED:
                    stored.append(one)
                elif outcome.fate is Fate.ACK:
                    if one.is_claim and not one.grouped:
                        self._checked.append(one)
                    else:
                        self._unread.append(one)
                elif outcome.fate in _NOT_BEGUN:
                    self._not_begun(one, outcome.fate)
                else:
                    self._plan(one, outcome)
                # Remove it after planning, which may do I/O: an outcome that failed must still be
                # here next time.
                done.popleft()
                if one.thread_id:
                    # `Row.wanted_ms`, written out to save a call for each delivery. A parked row
                    # of a group counts from its due: its `ready_ms` is the end of its claim.
                    row = one.row
                    wanted_ms = row.due_ms if row.since_ms is None else row.since_ms
                    if row.not_before_ms is not None and not one.is_claim:
                        wanted_ms = row.ready_ms
                    late_us.append(one.begun_us + since_boot_us - wanted_ms * 1_000)
        finally:
            # Skip this if both are empty: each change of the totals causes a write.
            if late_us or stored:
                self._stats.count_late(late_us)
                self._stats.add(delivered=len(late_us), acked=len(stored))
            self._conclude(stored)

    def _choose_acks(self, *, everything: bool) -> None:
        """Choose the acks to store now: those of rows whose tombstones no poll will read."""
        unread, self._unread = self._unread, []
        if everything:
            self._acks += unread
            return
        now_ms = self._clock.now_ms()
        lanes = self._memory.lanes.items()
        passed_ms = {number: lane.passed_ms(now_ms, now_ms - _UNREAD_MS) for number, lane in lanes}
        for one in unread:
            row = one.row
            if (
                row.due_ms <= passed_ms.get(row.shard.lane, now_ms)
                # The clock was set back while the handler ran: polls reach this due only much
                # later.
                or row.due_ms > now_ms
                or one.careful
                or one.grouped
            ):
                self._acks.append(one)
            else:
                self._unread.append(one)

    def _park_first(self, one: Delivery) -> None:
        """Repeat a park whose answer was lost, to learn where the row is."""
        if one.row.id in self._parking:
            self._park(one)

    def _not_begun(self, one: Delivery, fate: Fate) -> None:
        if fate is Fate.EXPIRE:
            self._discards.expire(one)
        elif fate is Fate.CANCEL or fate is Fate.DROP:
            self._discards.cancel(one, is_counted=fate is Fate.CANCEL)
        else:
            self.give_up(one, is_settled=fate is Fate.LEAVE)

    def _ran_ms(self, one: Delivery) -> tuple[int, int]:
        """The end of a run that ends now, epoch milliseconds, and its length, milliseconds."""
        ending = self.endings.held.get(one)
        begun_us = (ending and ending.begun_us) or one.begun_us
        return self._clock.now_ms(), (self._clock.boot_us() - begun_us) // 1_000

    def _plan(self, one: Delivery, outcome: Outcome) -> None:
        fate, move, edit, dead = self._planner.settle(one.row, outcome, one.attempt)
        if outcome.ran_ms is not None:
            error = short_error(outcome.reason or NO_REASON)
            self._failed.append((one.row, Try(one.attempt, *outcome.ran_ms, error)))
        if edit is not None:
            self._edits.append(_Edit(one, self._groups.edits.numbered(one, edit), fate))
            if outcome.is_for_others:
                self._groups.pass_on(one.row.shard.lane)
        elif move is not None:
            self._moves.append(_Pending(one, move, fate))
        elif dead is not None:
            self._discards.bury(one, dead)

    def _note_deaths(self, dead: list[Row]) -> None:
        self._home.count_deaths(dead)
        self._happened.dead += dead

    def _park(self, one: Delivery, *, is_counted: bool = True) -> None:
        was = one.row.id
        plan = self._parking.get(was)
        again = plan is not None
        if plan is None:
            if one.is_claim and not one.grouped and self._may_have_come(one):
                # Another member may have handed it out: if postponed, the message would be
                # delivered once more.
                return
            plan = self._planner.claim(
                one.row,
                self._register.settings.visibility_ms,
                one.attempt,
                holder=one.row.claim_of(self._member) if one.grouped else self._member,
                is_counted=is_counted,
            )
            if isinstance(plan, Row):
                plan = self._groups.edits.numbered(one, plan)
        # Keep the plan from here on, as the store is asked next. An error before this lets the next
        # try plan anew.
        self._parking[was] = plan
        if isinstance(plan, Row):
            # A repeat after an unknown outcome is the same edit: at most one is unanswered.
            changed = self._groups.edits.edit([(one, plan)])
            del self._parking[was]
            self._note_parked(one, plan, is_lost=bool(changed), now=changed.get(was))
            return
        try:
            gone, repaired = self._settler.carry_out([plan])
        except StoreUnavailable:
            if not again:
                # Nothing was written: a delivery that ends before the next try is settled in place.
                del self._parking[was]
            raise
        # A claim that was too late for its minute was moved to now: the ack must find it at its new
        # place.
        claim = repaired.get(plan.new.id, plan.new)
        del self._parking[was]
        self._note_parked(one, claim, is_lost=bool(gone))
        if self._running.pop(was, None) is not None:
            self._running[one.row.id] = one

    def _may_have_come(self, one: Delivery) -> bool:
        """True if a claim came due in a shard that is not ours, where another may have read it."""
        return one.row.ready_ms <= self._clock.now_ms() and not self._leases.holds(one.row.shard)

    def _note_parked(
        self, one: Delivery, claim: Row, *, is_lost: bool, now: Row | None = None
    ) -> None:
        again = self._memory.known.get(claim.id)
        if again is not None and again is not one:
            # The claim was read again when its time was up.
            if self._ready.remove(lambda other: other is again):
                self._memory.forget(again)
            else:
                is_lost = True
        if is_lost:
            log.warning("message %s was settled by somebody else while it ran", one.row.message_id)
            one.take(LOSE)
            self.hand_over(one, now)
            self._astray.append(one)
            return
        was_claim = one.is_claim
        self._memory.park(one, claim)
        if one.grouped and not self._groups.holds(claim.shard.lane):
            self._groups.note_claims([claim])
        if not was_claim:
            log.info("delivery of message %s parked: it still runs", one.row.message_id)
            self._stats.add(parked=1)
            self._happened.has_parked = True

    def _is_half_over(self, due_ms: int) -> bool:
        """True if a claim of ours with this due must be postponed."""
        return due_ms - self._clock.now_ms() < self._register.settings.visibility_ms // 2

    def _send_acks(self) -> None:
        # An ack whose lease lapsed while it waited must first look for its row.
        now_us = self._clock.boot_us()
        self._checked += [one for one in self._acks if one.lease.deadline_us <= now_us]
        acks = [one for one in self._acks if one.lease.deadline_us > now_us]
        self._acks = []
        if not acks:
            return
        # After a failure this thread stores all acks at once, so that the engine backs off while
        # the store fails.
        size = len(acks) if self._has_failed else self._errand_rows
        for start in range(0, len(acks), size):
            part = acks[start : start + size]
            work = partial(self._finish, [one.row for one in part], part)
            if len(part) >= _ERRAND_ROWS_MIN and not self._has_failed:
                errand = self._courier.send(work)
            else:
                errand = Errand(work)
                errand.run()
            self._sent.append((errand, part))

    def _finish(self, rows: list[Row], acked: list[Delivery]) -> None:
        ledger = self._settler.ledger
        attempts = [one.attempt for one in acked] if ledger.is_on else ()
        self._settler.finish(rows, End.ACKED, attempts)

    def _take_back(self, *, wait: bool) -> None:
        """Conclude the acks that were stored; keep those that failed, for the next send."""
        failure: ShardqError | None = None
        for _ in range(len(self._sent)):
            errand, acks = self._sent.popleft()
            if wait and failure is None:
                errand.over.wait()
            if not errand.over.is_set():
                self._sent.append((errand, acks))
            elif errand.failure is not None:
                failure = errand.failure
                self._acks += acks
            else:
                self._has_failed = False
                self._stats.add(acked=len(acks))
                self._conclude(acks)
        if failure is not None:
            self._has_failed = True
            raise failure

    def _flush_checked(self) -> None:
        there = self._settler.still_there([one.row.position for one in self._checked])
        live = [one for one in self._checked if one.row.position in there]
        self._finish([one.row for one in live], live)
        lost = {one.row.id for one in self._checked if one.row.position not in there}
        checked, self._checked = self._checked, []
        self._stats.add(acked=len(live))
        self._groups.edits.tell(live)
        self._conclude(checked)
        if lost:
            log.warning(
                "%d messages were settled by somebody else while they ran here, %s the first: "
                "their leases had lapsed",
                len(lost),
                next(one.row.message_id for one in checked if one.row.id in lost),
            )

    def _leave_lapsed(self) -> None:
        """Drop moves of rows that other members may have handed out meanwhile.

        These are rows not begun whose leases are over, and claims whose time is up. A move is kept
        if its new row exists, written by a try whose answer was lost: without the move the old row
        would stay too, and the message would be delivered twice.
        """
        lapsed = [pending for pending in self._moves if self._has_lapsed(pending.one)]
        if not lapsed:
            return
        written = self._settler.still_there([pending.move.new.position for pending in lapsed])
        left = {p.one.row.id for p in lapsed if p.move.new.position not in written}
        self._moves = [pending for pending in self._moves if pending.one.row.id not in left]
        mine = [pending.one for pending in lapsed if pending.one.row.id in left]
        for one in mine:
            if not one.is_claim:
                self._memory.leave(one)
        self._conclude([one for one in mine if one.is_claim])

    def _has_lapsed(self, one: Delivery) -> bool:
        if one.is_claim:
            return self._may_have_come(one)
        return not (one.begun_us or self._leases.is_valid(one.lease))

    def _flush_edits(self) -> None:
        changed = self._groups.edits.edit([(one, row) for one, row, _ in self._edits])
        edits, self._edits = self._edits, []
        for one, row, fate in edits:
            if fate is Fate.RETRY:
                self._stats.add(retried=1)
            else:
                self._stats.add(snoozed=1)
            if row.id in changed:
                log.info("message %s was settled already", row.message_id)
            self.hand_over(one, changed.get(row.id, row))

    def _flush_moves(self) -> None:
        self._leave_lapsed()
        is_again, self._is_half_moved = self._is_half_moved, True
        gone, repaired = self._settler.carry_out([pending.move for pending in self._moves])
        self._is_half_moved = False
        moves, self._moves = self._moves, []
        self._memory.read_again(p.move.new for p in moves)
        for pending in moves:
            self._count(pending)
            if pending.move.old in gone:
                log.info("message %s was settled already", pending.one.row.message_id)
        ended = [pending.one for pending in moves]
        self._groups.edits.tell(ended)
        self._conclude(ended)
        done = [p for p in moves if p.move.old not in gone]
        now = [repaired.get(p.move.new.id, p.move.new) for p in done]
        self._note_deaths([row for p, row in zip(done, now, strict=True) if p.fate is Fate.BURY])
        waiting = [
            row
            for p, row in zip(done, now, strict=True)
            if p.fate is not Fate.BURY and p.one.begun_us
        ]
        if is_again:
            self._memory.reread(waiting)
        else:
            self._happened.moved += waiting

    def _count(self, pending: _Pending) -> None:
        one, fate = pending.one, pending.fate
        if not one.begun_us or fate is Fate.BURY:
            return
        if fate is Fate.RETRY:
            self._stats.add(retried=1)
        else:
            self._stats.add(snoozed=1)

    def _conclude(self, ended: list[Delivery]) -> None:
        """Forget deliveries whose outcomes are stored, and unblock the groups of their rows."""
        running = self._running
        for one in ended:
            running.pop(one.row.id, None)
        self._groups.all_stored(ended)
        self._memory.forget_all(ended)
