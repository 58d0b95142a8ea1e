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

from shardq.errors import (
    BadReceipt,
    StaleReceipt,
    StoreTimeout,
    StoreUnavailable,
    UsageError,
    begun,
)
from shardq.lifecycle.moves import Begun, Trail
from shardq.model import names
from shardq.model.ids import row_ids
from shardq.model.message import Message, Row, dead_headers, died_after, failed, moved
from shardq.model.receipt import Receipt
from shardq.model.times import ceil_ms, moment_of
from shardq.records.blocks import Blocks
from shardq.records.ledger import End, Ledger
from shardq.records.stats import NEAR_MS
from shardq.stores.store import Move

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.clock import Clock
    from shardq.model.shard import Layout, Position
    from shardq.records.register import Register
    from shardq.stores.store import Store

log = logging.getLogger(__name__)
T = TypeVar("T")

OUT_OF_ATTEMPTS = "out of attempts"
LOST = f"{OUT_OF_ATTEMPTS}: its consumer died, or its time ran out"
"""Why a message dies of which no attempt is left, and the last one ended without an outcome."""
CLAIM_MARGIN_MS = 1_000
"""A claim's holder may settle it until so long before its due, when others may hand it out."""
_REPAIRS = 5
_REPEATS = 5
_REPEAT_S = 0.5


def lane_after(layout: Layout, row: Row) -> int:
    """The lane that a row moves to: one of a group stays, others leave what nobody fills."""
    lane = row.shard.lane
    return lane if row.group is not None else layout.written_lane(lane)


class Settler:
    """Moves and removes rows of one queue.

    Args:
        member: Who does, for the ledger.
        on_far: Told dues of moves that are more than `NEAR_MS` ahead.

    Attributes:
        ledger: Where ends are recorded.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        member: str = "",
        on_far: Callable[[int], object] | None = None,
    ) -> None:
        self._store = store
        self._on_far = on_far
        self._clock = clock
        self._register = register
        self.ledger = Ledger(store, clock, register, member)
        self._blocks = Blocks(store, clock, register.name)
        self._begun = Begun()

    # By receipt -----------------------------------------------------------------------------------

    def receipt_of(self, given: Message | str) -> Receipt:
        """The receipt of a message or token.

        Raises:
            BadReceipt: If it is damaged or of another queue.
        """
        if not isinstance(given, Message):
            return self._register.signer.read(given)
        if given.queue != self._register.name:
            raise BadReceipt(
                f"message {given.id} is one of queue {given.queue!r}, not of "
                f"{self._register.name!r}; pass it to that queue."
            )
        # Not its attempt: who only looked at it has no delivery.
        return Receipt(given._row.position, given._delivery)

    def present(self, receipts: Sequence[Receipt]) -> list[Row]:
        """The rows that receipts stand for, in their order.

        Raises:
            StaleReceipt: If one of them is not there any more, or is a claim whose time is up.
        """
        found = {row.position: row for row in self._store.find([r.position for r in receipts])}
        rows = []
        for receipt in receipts:
            row = found.get(receipt.position)
            if row is None or self.is_over(row) or self._register.is_former(row):
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

    def plan_move(
        self,
        row: Row,
        due_ms: int,
        *,
        attempt: int,
        claim: str | None = None,
        error: str | None = None,
    ) -> Move:
        """The move of a row to a later due; never into the past.

        Args:
            row: Where it is.
            due_ms: When it is to be due, epoch milliseconds.
            attempt: Deliveries begun and recorded.
            claim: The member that holds the delivery under way.
            error: Why its attempt has just failed; None keeps the error of one before.
        """
        now_us = self._clock.now_us()
        if error is not None:
            row = failed(row, error, now_us // 1_000)
        due_ms = max(due_ms, ceil_ms(now_us))
        if self._on_far is not None and due_ms * 1_000 > now_us + NEAR_MS * 1_000:
            self._on_far(due_ms)
        layout = self._register.layout
        shard = layout.shard(due_ms, lane_after(layout, row))
        new = moved(row, shard, due_ms, row_ids.next(now_us), attempt=attempt, claim=claim)
        return Move(row.position, new)

    def plan_share(self, row: Row, lane: int, *, after_ms: int) -> Move:
        """The move of a row to a lane that another member reads, due `after_ms` from now.

        Where it is due later already, it stays so. It is as late as before: what its lateness
        counts from stays.
        """
        now_us = self._clock.now_us()
        due_ms = max(ceil_ms(now_us) + after_ms, row.due_ms)
        new = moved(
            row,
            self._register.layout.shard(due_ms, lane),
            due_ms,
            row_ids.next(now_us),
            attempt=row.attempt,
            claim=None,
            since_ms=row.wanted_ms,
        )
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
        dead = self._register.dead()
        layout = dead.layout
        now_us = self._clock.now_us()
        band = self._register.layout.band_of(row.shard.lane)
        headers = dead_headers(row, band, reason, attempt, now_us // 1_000, traceback)
        due_ms = ceil_ms(now_us)
        new = row._replace(
            shard=layout.shard(due_ms, layout.lane(0, 0)),
            due_ms=due_ms,
            id=row_ids.next(max(now_us, dead.settings.purged_before_us)),
            headers=headers,
            attempt=0,
            first=None,
            name=row.message_id,
            origin_ms=row.order[0],
            claim=None,
            since_ms=None,
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
                self._blocks.cover(
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

    def _to_now(self, row: Row) -> Move:
        now_us = self._clock.now_us()
        due_ms = ceil_ms(now_us)
        layout = self._register.layout_of(row.shard.queue)
        new = moved(
            row,
            layout.shard(due_ms, lane_after(layout, row)),
            due_ms,
            row_ids.next(now_us),
            attempt=row.attempt,
            claim=row.claim,
            since_ms=row.since_ms,
        )
        return Move(row.position, new)
