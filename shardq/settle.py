"""Settling deliveries: everything that ends one, as moves and deletes of rows.

```
 ack ─────────────► delete
 retry, snooze ───► move to now + x          each looks first whether the row is still there:
 park, claim ─────► move to now + visibility  gone means that somebody else settled it, and
 bury ────────────► move to <queue>.dead      nothing is written
```

A consumer's own acks under a valid lease are blind deletes. Where the queue keeps a history, an end
is recorded before its row is deleted (`ledger.py`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from shardq import names
from shardq.blocks import NO_BLOCK, PULLED_TTL_MS, read_blocks, read_lane_blocks
from shardq.errors import StaleReceipt, StoreTimeout, StoreUnavailable, UsageError, begun
from shardq.ids import birth_us, bound, from_text, row_ids
from shardq.ledger import End, Ledger
from shardq.message import Message, Receipt, Row, dead_headers, died_after, moved
from shardq.moves import BEGUN_MAX, Begun, Trail
from shardq.ready import groups_of
from shardq.store import Move, Slice
from shardq.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from shardq.blocks import Block
    from shardq.clock import Clock
    from shardq.ready import GroupKey
    from shardq.register import Register
    from shardq.shard import Position
    from shardq.store import Store

log = logging.getLogger(__name__)
T = TypeVar("T")

OUT_OF_ATTEMPTS = "out of attempts"
CLAIM_MARGIN_MS = 1_000
"""A claim's holder may settle it until so long before its due, when others may hand it out."""
_REPAIRS = 5
_REPEATS = 5
_REPEAT_S = 0.5
_SLACK_MS = 86_400_000
"""How long all readers may stand still and find the head that a group waited for the first."""
_GROUP_PAGE = 1_000
_SHIFTS = 5
_SHIFTED_US = 200_000
"""A group's rows that take longer to move may have been joined by others meanwhile."""
_PLANNED_US = 10_000_000
"""How long before it is stored a move may have been planned: while its planner's lease lasts."""
_PLANNED_IN_MS = 20
"""Moves that are planned in a millisecond, at the least."""
_AGAIN_US = 500_000
"""A move that is repeated later goes to a past where no reader looks soon."""
_AHEAD_MS = 3_000
"""Rows due this soon may be in a reader's hands, who looks 2 s ahead."""


class Settler:
    """Moves and removes rows of one queue.

    Args:
        member: Who does, for the ledger.

    Attributes:
        ledger: Where ends are recorded.
    """

    def __init__(self, store: Store, clock: Clock, register: Register, member: str = "") -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self.ledger = Ledger(store, clock, register, member)
        self._begun = Begun()
        self._owed: dict[GroupKey, dict[int, None]] = {}

    # By receipt -----------------------------------------------------------------------------------

    def receipt_of(self, given: Message | str) -> Receipt:
        """The receipt of a message or token.

        Raises:
            BadReceipt: If it is damaged or of another queue.
        """
        if isinstance(given, Message) and given.queue == self._register.name:
            return Receipt(given.row.position, given.attempt)
        token = given.receipt if isinstance(given, Message) else given
        return self._register.signer.read(token)

    def present(self, receipts: Sequence[Receipt]) -> list[Row]:
        """The rows that receipts stand for, in their order.

        Raises:
            StaleReceipt: If one of them is not there any more, or is a claim whose time is up.
        """
        found = {row.position: row for row in self._store.find([r.position for r in receipts])}
        rows = []
        for receipt in receipts:
            row = found.get(receipt.position)
            if row is None or self.is_over(row):
                raise StaleReceipt(
                    f"the receipt of a message due "
                    f"{moment_of(receipt.position.due_ms).isoformat()} in queue "
                    f"{self._register.name!r} is stale: it was settled, or its time is up."
                )
            rows.append(row)
        return rows

    def is_over(self, row: Row) -> bool:
        """Whether a row is a claim whose time is up: another may have it by now."""
        return row.claim is not None and row.due_ms < self._clock.now_ms() + CLAIM_MARGIN_MS

    # Planning -------------------------------------------------------------------------------------

    def plan_move(self, row: Row, due_ms: int, *, attempt: int, claim: str | None = None) -> Move:
        """The move of a row to a later due; never into the past."""
        now_us = self._clock.now_us()
        due_ms = max(due_ms, -(-now_us // 1_000))
        layout = self._register.layout
        shard = layout.shard(due_ms, row.shard.lane)
        new = moved(row, shard, due_ms, row_ids.next(now_us), attempt=attempt, claim=claim)
        return Move(row.position, new)

    def plan_burial(self, row: Row, reason: str, *, attempt: int, traceback: str = "") -> Move:
        """The move of a row to the dead-letter queue, where it enters anew under its old id.

        Raises:
            UsageError: If the row is in a dead-letter queue already.
        """
        if names.is_dead_queue(self._register.name):
            raise UsageError(
                f"queue {self._register.name!r} keeps dead messages; ack or redrive them instead."
            )
        # Before the time is taken: the history of a queue that is made now begins now, and what
        # enters before that is in no audit.
        layout = self._register.dead().layout
        now_us = self._clock.now_us()
        band = self._register.layout.band_of(row.shard.lane)
        headers = dead_headers(row, band, reason, attempt, now_us // 1_000, traceback)
        due_ms = -(-now_us // 1_000)
        new = row._replace(
            shard=layout.shard(due_ms, layout.lane(0, 0)),
            due_ms=due_ms,
            id=row_ids.next(now_us),
            headers=headers,
            attempt=0,
            first=None,
            name=row.message_id,
            origin_ms=row.order[0],
            claim=None,
        )
        return Move(row.position, new)

    # Doing ----------------------------------------------------------------------------------------

    def carry_out(self, moves: Sequence[Move]) -> tuple[set[Position], dict[bytes, Row]]:
        """Do those moves whose old row is still there; safe to repeat with the same moves.

        A repeat after an unknown outcome finds the old row gone and the new one there, and is done.

        Returns:
            The old positions that were gone: somebody else settled them, and nothing was written;
            and what `repair` tells of the new rows.
        """
        if not moves:
            return set(), {}
        there = {row.position: row for row in self._store.find([move.old for move in moves])}
        live = [move for move in moves if move.old in there]
        gone = {move.old for move in moves if move.old not in there}
        recorded = [move for move in live if self._is_recorded(move)]
        plain = [move for move in live if not self._is_recorded(move)]
        if recorded:
            self._transfer(recorded, [there[move.old] for move in recorded])
        self._store.move(plain)
        return gone, self.repair([move.new for move in moves])

    def carry_out_surely(self, moves: Sequence[Move]) -> set[Position]:
        """Do those moves as `carry_out` does, and again where the store fails.

        Half of a move may have been done, and whoever asks anew would plan another: a copy.

        Returns:
            The old positions that were gone before anything was done.
        """
        # Only once: what is moved may be settled before its repeat, and then it is nowhere either.
        there = self._repeated(lambda: self.still_there(move.old for move in moves))
        self._repeated(self.carry_out, moves)
        return {move.old for move in moves} - there

    def _repeated(self, work: Callable[..., T], *given: Any) -> T:
        """Do it, and again where the store fails."""
        for _ in range(_REPEATS):
            try:
                return work(*given)
            except (StoreTimeout, StoreUnavailable) as error:
                log.info("done again, since the store failed: %s", error)
                self._clock.sleep(_REPEAT_S)
        return work(*given)

    def _is_recorded(self, move: Move) -> bool:
        """Whether a move ends the message here and lets it enter another queue, by the ledger."""
        old, new = move.old.shard.queue, move.new.shard.queue
        return old != new and (self.ledger.covers(old) or self.ledger.covers(new))

    def _transfer(self, moves: Sequence[Move], rows: Sequence[Row]) -> None:
        """Move rows from one queue to another, step by step: an end that is recorded must be true.

        Were it recorded before the other queue has the row, a crash between would leave a row that
        is dropped as over, and no other. A crash between these steps leaves a copy.
        """
        entering = [move.new for move in moves]
        fate = End.DEAD if names.is_dead_queue(entering[0].shard.queue) else End.ACKED
        self._store.insert(entering)
        with begun("moved to the other queue"):
            self.ledger.enter(entering)
            self.finish(rows, fate, list(map(died_after, entering, rows)))

    def still_there(self, positions: Iterable[Position]) -> set[Position]:
        """Those positions whose rows have not been settled."""
        return {row.position for row in self._store.find(positions)}

    def repair(self, rows: Iterable[Row]) -> dict[bytes, Row]:
        """Move those just written rows to now that came too late for their minute's readers.

        Returns:
            Row id as written -> the row as it is now, of those that had to be moved, by a try
            before too.

        Raises:
            StoreTimeout: The rows are written, and some of them maybe not moved.
        """
        trail = Trail(self._begun, rows)
        for _ in range(_REPAIRS):
            now_ms = self._clock.now_ms()
            late = {
                row.id
                for row in trail.rows
                if self._register.layout_of(row.shard.queue).is_late(row.shard.minute, now_ms)
            }
            asked = trail.to_look_for(late)
            if not asked:
                break
            try:
                there = {row.id: row for row in self._store.find([row.position for row in asked])}
                found = [there[row.id] for row in asked if row.id in there]
                trail.find(found)
                still = [row for row in found if row.id in late]
                moves = self._begun.plan(still, self._to_now)
                # What was put off comes later than its block says.
                self.cover(
                    {
                        (row.shard.lane, row.group): move.new.due_ms
                        for row, move in zip(still, moves, strict=True)
                        if row.first is not None and row.group is not None
                    }
                )
                try:
                    self._store.move(moves)
                except StoreTimeout:
                    # Maybe done, and late itself: who asks anew finds nothing left to repair.
                    self._repeated(self._store.move, moves)
            except StoreUnavailable as error:
                # The repair was not applied, but what it is to repair was.
                raise StoreTimeout(f"written late, and not yet moved to now: {error}") from error
            trail.go_on(moves)
        trail.end()
        return trail.repaired

    def finish(self, rows: Sequence[Row], fate: End, attempts: Sequence[int] = ()) -> None:
        """End messages: record it where the queue keeps a history, then remove their rows.

        Args:
            rows: The rows, whether they are there or not.
            attempts: Deliveries of each; what the rows say where none are given.

        Raises:
            StoreTimeout: Maybe applied; so are ends that are recorded and whose rows are still
                there, for these are never delivered again.
        """
        if not rows:
            return
        positions = [row.position for row in rows]
        if not self.ledger.covers(rows[0].shard.queue):
            self._store.delete(positions)
            return
        self.ledger.end(rows, fate, attempts or [row.attempt for row in rows])
        with begun(f"{fate}, as the ledger says"):
            self._store.delete(positions)

    def without_ended(self, rows: list[Row]) -> list[Row]:
        """Those rows of one queue whose messages have not ended, by its ledger; deletes the others.

        Their ends were recorded by somebody who crashed before the delete, or a replica missed it.
        """
        if not rows or not self.ledger.covers(rows[0].shard.queue):
            return rows
        ended = self.ledger.finished(rows)
        if ended:
            log.warning("%d rows dropped, whose messages had ended", len(ended))
            self._store.delete([row.position for row in rows if row.id in ended])
        return [row for row in rows if row.id not in ended]

    def delete(self, positions: Iterable[Position]) -> None:
        """Remove rows whose messages have ended, whether they are there or not."""
        self._store.delete(positions)

    # Groups ---------------------------------------------------------------------------------------

    def is_head(self, row: Row) -> bool:
        """Whether a row is under way elsewhere, or put off: then its group waits for it."""
        if row.claim is not None:
            return True
        return self.block_of(row.shard.lane, row.group or "")[1] == row.message_id

    def block(self, lane: int, group: str, until_ms: int, message_id: str) -> int:
        """Say that a group's head waits, before it is moved.

        What was put off before goes along, whatever it waited for, so that all of the group comes
        back at once and in order. Its reader, who may have put a row there just now, leaves it
        alone until it comes due: moved by two, it would be there twice. Once the block says sooner,
        the reader moves what it finds left behind; so that is said when the rest has been moved.
        For a head that comes back soon the rest stays: there first, it would go first.

        Returns:
            Until when those behind it wait: later than asked where some of them wait longer
            already, behind another head or too near to be moved.
        """
        before_ms, head = self.block_of(lane, group)
        if head not in ("", message_id) or self.is_near(min(before_ms, until_ms)):
            until_ms = max(until_ms, before_ms)
        is_sooner = before_ms > until_ms
        if before_ms not in (0, until_ms):
            # Also where this is not known to be said: who pulls them must know where they are.
            self._owed.setdefault((lane, group), {})[before_ms] = None
        if not is_sooner:
            self._block(lane, group, until_ms, message_id)
        if before_ms and (lane, group) in self._owed:
            self._shift(lane, group, {head, message_id}, before_ms, until_ms)
            # A reader may put one there yet, by what it has just read of the block.
            self._owed[lane, group] = dict.fromkeys([before_ms, until_ms])
        if is_sooner:
            self._block(lane, group, until_ms, message_id)
        return until_ms

    def cover(self, until_ms: Mapping[GroupKey, int]) -> None:
        """Say for a while to when rows of groups are to come, where their blocks say sooner.

        Who reads the lane from further back then waits with what is due before. What is due later
        waits for a head, or for nobody any more.
        """
        near = {key: due_ms for key, due_ms in until_ms.items() if self.is_near(due_ms)}
        blocked = read_blocks(self._store, self._register.name, near)
        for (lane, group), due_ms in near.items():
            before_ms, head = blocked.get((lane, group), NO_BLOCK)
            if before_ms < due_ms:
                self._block(lane, group, due_ms, head, slack_ms=PULLED_TTL_MS)

    def unblock(self, lane: int, group: str, message_id: str, said_ms: int | None = None) -> int:
        """The head of a group is settled: pull forward what was moved behind it.

        Where that comes back soon anyhow, it stays, and so does the block. Where some of it does,
        the rest comes with it: pulled to now, it would go first. What was pulled is due later than
        what has come due since and comes after it: so the block is not taken back, but says for a
        while up to where a lane is to be read before either goes.

        Args:
            said_ms: Until when the block has to say that they wait. Where it says otherwise,
                another has put this head off since, and pulls them. None: whatever it says.

        Returns:
            Until when the block says by now that they wait; 0 where it may not be this head's end.
        """
        until_ms, head = self.block_of(lane, group)
        if head != message_id or said_ms not in (None, until_ms):
            return 0
        if self.is_near(until_ms):
            # What waits comes back by itself; who lags may have to know up to where, for a while.
            self._block(lane, group, until_ms, head, slack_ms=PULLED_TTL_MS)
            return 0
        now_ms = self._clock.now_ms()
        staying = [
            row.due_ms
            for row in self._behind(lane, group, {head}, now_ms, now_ms + _AHEAD_MS)
            if row.order[0] < row.due_ms
        ]
        waits_ms = self._shift(lane, group, {head}, until_ms, max(staying, default=None))
        if self.is_near(until_ms):
            # It has come too near meanwhile: so what was put there since comes back by itself.
            waits_ms = max(waits_ms, until_ms)
        # Some may have come due elsewhere, or been pulled by a try before; and what was pulled too
        # slowly is due later than it was to be.
        waits_ms = max([waits_ms, *staying, self._clock.now_ms()])
        if self.block_of(lane, group) != (until_ms, head):
            # The first of what was pulled may have run by now, and have been put off: that stands.
            self.cover({(lane, group): waits_ms})
            return 0
        self._block(lane, group, waits_ms, head, slack_ms=PULLED_TTL_MS)
        return waits_ms

    def unblock_purged(self, lane: int, known: Iterable[str] = ()) -> None:
        """Pull forward what waits behind heads that a purge has reached.

        These are deleted when they come due, and nobody settles them before. Where the lane's
        blocks cannot all be read, of `known` groups alone.
        """
        before_us, now_ms = self._register.settings.purged_before_us, self._clock.now_ms()
        blocked = read_lane_blocks(self._store, self._register.name, lane, known)
        for group, (until_ms, message_id) in blocked.items():
            # One whose id the user chose may be of any time.
            row_id = from_text(message_id)
            is_newer = row_id is not None and birth_us(row_id) >= before_us
            if until_ms <= now_ms or is_newer:
                continue
            # One that was put back since has the id that it had before. One that is claimed, or
            # gone, has somebody who settles it, and then pulls them: moved by two, they would be
            # there twice.
            heads = [
                row
                for row in self._due_at(lane, group, until_ms - 1, until_ms)
                if row.message_id == message_id
            ]
            if heads and all(row.claim is None and row.entered_us < before_us for row in heads):
                self.unblock(lane, group, message_id)

    def block_of(self, lane: int, group: str) -> Block:
        """(until, message id) of a group's head that waits, as it is now; (0, "") of none."""
        return self._store.blocked(self._register.name, lane, [group]).get(group, NO_BLOCK)

    def _block(
        self, lane: int, group: str, until_ms: int, message_id: str, *, slack_ms: int = _SLACK_MS
    ) -> None:
        ttl_ms = max(until_ms - self._clock.now_ms(), 0) + slack_ms
        self._store.block(
            self._register.name, lane, group, until_ms=until_ms, message=message_id, ttl_ms=ttl_ms
        )

    def is_near(self, due_ms: int) -> bool:
        """Whether rows of a due may be in a reader's hands: then they stay."""
        return due_ms <= self._clock.now_ms() + _AHEAD_MS

    def try_to_unblock(self, row: Row) -> None:
        """The head of a group was settled by receipt, which a store in trouble does not undo.

        What waits behind it then goes on when the head's time would have been up. Once more at
        once: rows that are pulled while the block does not say so yet, their reader puts back.
        """
        if row.group is None:
            return
        begun_us = self._clock.boot_us()
        for is_last in (False, True):
            try:
                self.unblock(row.shard.lane, row.group, row.message_id)
                break
            except (StoreTimeout, StoreUnavailable) as error:
                if is_last or self._clock.boot_us() - begun_us > _AGAIN_US:
                    log.warning("what waits behind %s is not pulled: %s", row.message_id, error)
                    break

    def free(self, rows: Sequence[Row], raised_ms: Mapping[GroupKey, int]) -> None:
        """Move along those of some rows just put behind a head that is settled or due elsewhere.

        Who settled it, or put it elsewhere, has moved along what it saw there before these came.
        What has come due since stays: it may run by now, and moved, it would run twice. So does
        what waits for longer, but by our own word (`raised_ms`): who says so may move it as well.
        """
        now_ms = self._clock.now_ms()
        blocked = read_blocks(self._store, self._register.name, groups_of(rows))
        elsewhere: dict[int, list[Row]] = {}
        for row in rows:
            lane, group = row.shard.lane, row.group or ""
            until_ms, _ = blocked.get((lane, group), NO_BLOCK)
            is_later = now_ms < row.due_ms < until_ms == raised_ms.get((lane, group))
            is_beyond = max(until_ms, now_ms) < row.due_ms
            if row.order[0] < row.due_ms and (is_later or is_beyond):
                elsewhere.setdefault(until_ms, []).append(row)
        came: dict[GroupKey, int] = {}
        for until_ms, behind in elsewhere.items():
            came |= self._move_in_order(behind, until_ms)
        # What was put since, and is due before that, comes after them.
        self.cover(came)

    def _shift(
        self, lane: int, group: str, heads: AbstractSet[str], from_ms: int, until_ms: int | None
    ) -> int:
        """Move a group's rows that are due at `from_ms`, its heads' not, elsewhere or to their own.

        So are those that a try which failed may have left, where they were and where they were to
        go: the next try finds the block changed, and asks for another due.

        Returns:
            The last due to which any came that is not its own; 0 where none did.
        """
        owed = self._owed.setdefault((lane, group), {})
        # In this order: what is repeated is the very same move, and goes where it was to go first.
        dues = dict.fromkeys([*owed, from_ms])
        owed.update(dict.fromkeys([from_ms] if until_ms is None else [from_ms, until_ms]))
        last_ms = 0
        for due_ms in dues:
            if due_ms != until_ms:
                last_ms = max(self._shift_from(lane, group, heads, due_ms, until_ms), last_ms)
        self._owed.pop((lane, group), None)
        for key in list(self._owed)[:-BEGUN_MAX]:
            # Nobody has tried again for long: what is left comes back when it is due.
            self._owed.pop(key, None)
        return last_ms

    def _shift_from(
        self, lane: int, group: str, heads: AbstractSet[str], from_ms: int, until_ms: int | None
    ) -> int:
        """Move what is due then; where that is near, it stays.

        Until the block says otherwise, readers put more of a group there: what came while the store
        was slow goes along, or it would be passed. Only what can be new is looked for again: of the
        rest there are tombstones now.
        """
        last_ms, after_ms, after_id = 0, from_ms - 1, None
        for _ in range(_SHIFTS):
            if self.is_near(from_ms):
                break
            asked_us = self._clock.boot_us()
            behind = self._behind(lane, group, heads, after_ms, from_ms, after_id)
            after_ms, after_id = from_ms, bound(self._clock.now_us() - _PLANNED_US)
            if until_ms is None:
                behind = [row for row in behind if row.order[0] < row.due_ms]
            last_ms = max([last_ms, *self._move_in_order(behind, until_ms or 0).values()])
            if self._clock.boot_us() - asked_us < _SHIFTED_US:
                break
        return last_ms

    def _behind(
        self,
        lane: int,
        group: str,
        heads: AbstractSet[str],
        after_ms: int,
        until_ms: int,
        after_id: bytes | None = None,
    ) -> list[Row]:
        """A group's rows of a lane with after < due <= until that wait for its head."""
        # A head that was put off waits there too, and is its caller's to move.
        due = self._due_at(lane, group, after_ms, until_ms, after_id)
        return [row for row in due if row.claim is None and row.message_id not in heads]

    def _due_at(
        self, lane: int, group: str, after_ms: int, until_ms: int, after_id: bytes | None = None
    ) -> list[Row]:
        """A group's rows of a lane with after < due <= until; `after_id` as in a `Slice`."""
        layout = self._register.layout
        due: list[Row] = []
        first = layout.minute_of(after_ms + (after_id is None))
        for minute in range(first, layout.minute_of(until_ms) + 1):
            while True:
                place = after_ms, until_ms, _GROUP_PAGE, after_id, "group"
                page = self._store.read(Slice(layout.queue, [minute], [lane], *place))
                due += [row for row in page if row.group == group]
                if len(page) < _GROUP_PAGE:
                    break
                after_ms, after_id = page[-1].due_ms, page[-1].id
        return due

    def _move_in_order(self, rows: list[Row], until_ms: int) -> dict[GroupKey, int]:
        """Move rows that waited behind a head to another due; none to before its own first.

        Returns:
            The last due of each group to which we have moved any that is not its own: what others
            have moved they say themselves, and said again it may stand where more was said since.
        """
        # Row ids are made in order, so that equal dues keep it. All that come now are due together.
        rows.sort(key=lambda row: row.order)
        soon_ms = self._clock.now_ms() + len(rows) // _PLANNED_IN_MS
        moves = self._begun.plan(
            rows,
            lambda row: self.plan_move(
                row, max(until_ms, soon_ms, row.order[0]), attempt=row.attempt
            ),
        )
        gone, _ = self.carry_out(moves)
        # A try whose answer was lost may have moved them.
        there = self.still_there(new.position for old, new in moves if old in gone) if gone else ()
        self._begun.end(move.old for move in moves)
        ours = (new for old, new in moves if old not in gone or new.position in there)
        put_off = [new for new in ours if new.due_ms > new.order[0]]
        put_off.sort(key=lambda new: new.due_ms)
        return {(new.shard.lane, new.group or ""): new.due_ms for new in put_off}

    def _to_now(self, row: Row) -> Move:
        now_us = self._clock.now_us()
        due_ms = -(-now_us // 1_000)
        shard = self._register.layout_of(row.shard.queue).shard(due_ms, row.shard.lane)
        new = moved(row, shard, due_ms, row_ids.next(now_us), attempt=row.attempt, claim=row.claim)
        return Move(row.position, new)
