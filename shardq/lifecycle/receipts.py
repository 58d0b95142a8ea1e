"""Settling by receipt, from any process: the caller need not have read the row.

```
 receipt ──► read its row ──► gone, or a claim whose time is up: stale, nothing is written
                         └──► planned and carried out as a consumer's; its group follows
 redelivered: gone ──► a note of its place? read its row there ──► gone: it has ended, as asked
 acks of many threads are stored in batches (`hub.py`)
```
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shardq.errors import BadReceipt, ReceiptError, StaleReceipt, UsageError, begun
from shardq.lifecycle.fate import FAILED, NO_REASON, Fate, Outcome
from shardq.lifecycle.forwarding import Forwarder
from shardq.lifecycle.hub import Hub, HubCall, Hubs
from shardq.lifecycle.planner import counted
from shardq.lifecycle.settle import CLAIM_MARGIN_MS
from shardq.model import names
from shardq.model.message import Message, Row, key_of, receipt_of, short_error
from shardq.model.receipt import Receipt
from shardq.model.times import moment_of
from shardq.records.ledger import End
from shardq.stores.store import RowMove, Try

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from shardq.errors import KeyTaken
    from shardq.lifecycle.home import QueueHome
    from shardq.lifecycle.keyed import KeyedCommands
    from shardq.lifecycle.planner import Settlement
    from shardq.model.shard import Position


def _by_position(receipts: Iterable[Receipt]) -> dict[Position, Receipt]:
    """Position -> its latest receipt: deliveries of a row that stays in place share a position."""
    return {
        one.position: one for one in sorted(receipts, key=lambda one: (one.serial, one.attempt))
    }


class _EndCall(HubCall):
    """One caller's ack.

    Args:
        receipts: The receipts of the deliveries to end.
        is_partial: True if a stale receipt fails alone; False if it fails the whole call.
        is_followed: True to end messages that were delivered again, too.

    Attributes:
        receipts: Position -> the receipt; a message that was given twice has one entry.
        found: The rows of the receipts that are not stale; None until they are read.
        stale: Position -> the error of a stale receipt.
    """

    __slots__ = ("found", "is_followed", "is_partial", "receipts", "stale")

    def __init__(
        self, receipts: Iterable[Receipt], *, is_partial: bool = False, is_followed: bool = False
    ) -> None:
        self.receipts = _by_position(receipts)
        super().__init__(len(self.receipts))
        self.is_partial = is_partial
        self.is_followed = is_followed
        self.found: list[Row] | None = None
        self.stale: dict[Position, StaleReceipt] = {}

    def attempt_of(self, row: Row) -> int:
        """The number of the delivery that ends; 0 if the row has moved since the receipt."""
        receipt = self.receipts.get(row.position)
        return 0 if receipt is None else receipt.attempt

    def judge(self, found: list[Row], stale: dict[Position, StaleReceipt]) -> bool:
        """Keep the found rows and the errors; False if a stale receipt has failed the call."""
        if stale and not self.is_partial:
            self.fail(next(iter(stale.values())))
            return False
        self.found, self.stale = found, stale
        return True


class Receipts:
    """Settles deliveries of one queue by their receipts, and counts them.

    Args:
        home: The queue's home.
        keyed: Cancels messages that have keys.
    """

    def __init__(self, home: QueueHome, keyed: KeyedCommands) -> None:
        self._home = home
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self._settler = home.settler
        self._planner = home.settler.planner
        self._keyed = keyed
        self._ends: Hubs[_EndCall] = Hubs(partial(Hub, self._end_all))

    def ack(self, deliveries: Iterable[Message | str], *, is_followed: bool = False) -> None:
        """End deliveries as done.

        Args:
            deliveries: The deliveries, or their receipts.
            is_followed: True to end messages that were delivered again, too.

        Raises:
            BadReceipt: If a receipt is damaged or of another queue. Nothing was written.
            StaleReceipt: If a delivery was settled before, or its time is up; nothing was written.
                Where `is_followed`, only if a receipt does not last and its row is gone.
        """
        self._do(_EndCall(map(self.receipt_of, deliveries), is_followed=is_followed))

    def ack_each(
        self, deliveries: Iterable[Message | str], *, is_followed: bool = False
    ) -> list[ReceiptError | None]:
        """End deliveries as done, each by itself; returns for each its error, None if it ended."""
        given = [self._read(delivery, is_partial=True) for delivery in deliveries]
        call = _EndCall(
            (one for one in given if isinstance(one, Receipt)),
            is_partial=True,
            is_followed=is_followed,
        )
        self._do(call)
        return [call.stale.get(one.position) if isinstance(one, Receipt) else one for one in given]

    def _do(self, call: _EndCall) -> None:
        if call.receipts:
            shards = {position.shard for position in call.receipts}
            is_apart = len(shards) == 1 and not self._store.is_local
            self._ends.of(shards.pop() if is_apart else None).do(call)

    def _end_all(self, calls: Sequence[_EndCall]) -> None:
        """End the deliveries of several callers. A delivery of two callers is ended by the first.

        A repeat ends the rows that the first try found, because the store may not have them any
        more.
        """
        asked = [call for call in calls if call.found is None]
        if asked:
            there = self._store.find([place for call in asked for place in call.receipts])
            rows = {row.position: row for row in there}
            taken: set[Position] = set()
            for call in asked:
                if call.is_followed:
                    found, stale = self._anywhere(rows, call.receipts, taken)
                else:
                    # An end needs no margin: when the time is up, its delete wins over any write.
                    found, stale = self._sorted(rows, call.receipts.values(), margin_ms=0)
                if call.judge(found, stale):
                    for row in found:
                        rows.pop(row.position, None)
                        taken.add(row.position)
        ended = [(call, row) for call in calls for row in call.found or ()]
        if ended:
            attempts = [counted(row, call.attempt_of(row)) for call, row in ended]
            self._settler.end([row for _, row in ended], End.ACKED, attempts)
            self._home.stats.add(acked=len(ended))

    def _anywhere(
        self,
        rows: Mapping[Position, Row],
        receipts: Mapping[Position, Receipt],
        taken: Collection[Position],
    ) -> tuple[list[Row], dict[Position, StaleReceipt]]:
        """The rows of messages that live, once each, wherever they are; and stale receipts.

        Args:
            rows: The rows at the positions of receipts.
            receipts: Position -> the receipt for it.
            taken: The positions of rows that another call ends.
        """
        gone = [one for at, one in receipts.items() if at not in rows and at not in taken]
        there = {at: rows[at] for at in receipts if at in rows}
        there |= {row.position: row for row in self._settler.keys.followed(gone).values()}
        found = [
            row
            for at, row in there.items()
            if at not in taken and not self._register.is_former(row)
        ]
        stale = {
            one.position: StaleReceipt(
                f"no message is at the place of a receipt in queue {self._register.name!r}: it has "
                f"ended, or was delivered again. Only receipts of receive(.., lasting=True) find "
                f"it then."
            )
            for one in gone
            if one.first is None
        }
        return found, stale

    def settle(
        self,
        deliveries: Iterable[Message | str],
        outcome: Outcome,
        *,
        is_partial: bool = False,
        margin_ms: int = CLAIM_MARGIN_MS,
    ) -> list[ReceiptError | None]:
        """Settle deliveries by an outcome that is no ack; returns for each its error, or None.

        Args:
            deliveries: The deliveries, or their receipts.
            outcome: The outcome of each.
            is_partial: True if a delivery that fails does not fail the others.
            margin_ms: How long before its time is up a delivery is refused.

        Raises:
            BadReceipt: If a receipt is damaged or of another queue. Not where `is_partial`.
            StaleReceipt: If a delivery was settled before, or its time is up. Not where
                `is_partial`.
            UsageError: If messages of a dead-letter queue are to be buried.
        """
        if outcome.fate is Fate.BURY and names.is_dead_queue(self._register.name):
            raise UsageError(
                f"queue {self._register.name!r} keeps dead messages; ack or redrive them instead."
            )
        plans: dict[Position, Settlement] = {}
        failures: list[tuple[Row, Try]] = []
        is_failure = outcome.fate in FAILED and self._settler.ledger.is_on
        error = short_error(outcome.reason or NO_REASON)

        def plan(row: Row, attempt: int) -> RowMove | Row | None:
            planned = plans[row.position] = self._planner.settle(row, outcome, attempt)
            if is_failure and attempt:
                failures.append((row, Try(attempt, self._clock.now_ms(), None, error)))
            return planned.move or planned.edit

        answers, ended = self._change(
            deliveries, plan, is_partial=is_partial, margin_ms=margin_ms, failures=failures
        )
        died = [row for row in ended if plans[row.position].fate is Fate.BURY]
        # The edits of rows that stay in their places have been told.
        self._settler.tell([row for row in ended if plans[row.position].edit is None])
        retried = sum(plans[row.position].fate is Fate.RETRY for row in ended)
        if len(died) < len(ended):
            self._home.stats.add(retried=retried, snoozed=len(ended) - len(died) - retried)
        self._home.count_deaths([dead for row in died if (dead := plans[row.position].dead)])
        return [answer if isinstance(answer, ReceiptError) else None for answer in answers]

    def forward(
        self, deliveries: Iterable[Message | str], target: QueueHome, *, is_partial: bool = False
    ) -> list[ReceiptError | KeyTaken | None]:
        """Move deliveries to another queue; returns for each its error, None if it was moved.

        Raises:
            BadReceipt: If a receipt is damaged or of another queue. Not where `is_partial`.
            StaleReceipt: If a delivery was settled before, or its time is up. Not where
                `is_partial`.
            KeyTaken: If another message has a delivery's key in the other queue. Not where
                `is_partial`.
        """
        given = [self._read(delivery, is_partial=is_partial) for delivery in deliveries]
        receipts = _by_position(one for one in given if isinstance(one, Receipt))
        found, stale = self._find(receipts, CLAIM_MARGIN_MS, is_partial=is_partial)
        forwarder = Forwarder(self._home)
        moved = forwarder.move(found, target)
        failed: dict[Position, ReceiptError | KeyTaken] = dict(stale)
        failed |= {place: self._stale() for place in moved.gone}
        failed |= {place: forwarder.key_taken([row], target) for place, row in moved.taken.items()}
        if failed and not is_partial:
            raise next(iter(failed.values()))
        return [failed.get(one.position) if isinstance(one, Receipt) else one for one in given]

    def move(self, message: Message, wanted_ms: int) -> None:
        """Let a waiting message without a key be due at another time.

        This is best effort: the row may move before it is changed.

        Args:
            message: As it was found.
            wanted_ms: When it is to be due, epoch milliseconds.

        Raises:
            StaleReceipt: If its row is gone.
        """
        [row] = self.present([self.receipt_of(message)])
        # Round down, as the planner does with the time to which it adds the delay: so the message
        # is never early.
        now_ms = self._clock.now_ms()
        wanted_ms = max(wanted_ms, now_ms)
        if not self._register.layout.is_of_groups(row.shard.lane) or wanted_ms >= row.due_ms:
            self.settle([message], Outcome(Fate.SNOOZE, wanted_ms - now_ms))
            return
        # Replace the row: one that is edited in place would be read no earlier than at its present
        # due.
        new = self._planner.asked(row, wanted_ms)._replace(first=row.first or row.id)
        if self._carry_out([RowMove(row.position, new)])[0]:
            raise self._stale()
        self._settler.tell([row, new])
        self._home.stats.add(snoozed=1)

    def extend(
        self,
        deliveries: Iterable[Message | str],
        visibility_ms: int,
        *,
        is_partial: bool = False,
        is_followed: bool = False,
    ) -> list[str | ReceiptError]:
        """Extend deliveries to `visibility_ms` from now.

        Args:
            deliveries: The deliveries, or their receipts.
            visibility_ms: How long from now the messages stay the caller's.
            is_partial: True if a delivery that fails does not fail the others.
            is_followed: True to extend the present delivery of a message whose row has moved.

        Returns:
            Each delivery's new receipt, in place of the old, or its error.

        Raises:
            BadReceipt: If a receipt is damaged or of another queue. Not where `is_partial`.
            StaleReceipt: If a delivery was settled before, or its time is up. Not where
                `is_partial`.
        """

        def plan(row: Row, attempt: int) -> RowMove | Row:
            holder = row.holder or "receipt"
            if self._register.layout.is_of_groups(row.shard.lane):
                holder = row.claim_of(holder)
            return self._planner.claim(row, visibility_ms, attempt, holder=holder)

        answers, _ = self._change(deliveries, plan, is_partial=is_partial, is_followed=is_followed)
        return [
            answer if isinstance(answer, ReceiptError) else self._signed(answer)
            for answer in answers
        ]

    def cancel(self, delivery: Message | str) -> bool:
        """Remove a message; returns True if it existed.

        A message with a key is cancelled by its key, wherever its row has moved. Any other message
        is found only at its receipt's position.

        Raises:
            BadReceipt: If the receipt is damaged or of another queue.
        """
        receipt = self.receipt_of(delivery)
        found = self._store.find([receipt.position])
        row = next(iter(found), delivery._row if isinstance(delivery, Message) else None)
        # The caller has the delivery, so a cancel ends the delivery like any other outcome.
        is_own = bool(found and receipt.attempt and not self.is_over(found[0]))
        is_own = is_own or names.is_dead_queue(self._register.name)
        if row is not None and (key := key_of(row)) is not None and not is_own:
            return bool(self._keyed.cancel(key.name, row))
        if not found or self._register.is_former(found[0]):
            return False
        self._settler.end(found, End.CANCELLED)
        self._home.stats.add(cancelled=1)
        return True

    def receipt_of(self, given: Message | str) -> Receipt:
        """The receipt of a message or token.

        Raises:
            BadReceipt: If the receipt is damaged or of another queue.
        """
        if not isinstance(given, Message):
            return self._register.signer.read(given)
        if given.queue != self._register.name:
            raise BadReceipt(
                f"message {given.id} is one of queue {given.queue!r}, not of "
                f"{self._register.name!r}; pass it to that queue."
            )
        # Use the delivery's number, not the row's attempt: a message that was only read has no
        # delivery.
        return receipt_of(given._row, given._delivery)

    def present(self, receipts: Sequence[Receipt]) -> list[Row]:
        """The rows of receipts, in their order.

        Raises:
            StaleReceipt: If a row is gone, or is a claim whose time is up.
        """
        asked = {receipt.position: receipt for receipt in receipts}
        return self._find(asked, CLAIM_MARGIN_MS, is_partial=False)[0]

    def unsettled(self, receipts: Iterable[str]) -> list[str]:
        """The receipts whose deliveries have not ended. Costs one read.

        Raises:
            BadReceipt: If a receipt is damaged or of another queue.
        """
        given = {one: self.receipt_of(one) for one in receipts}
        _, stale = self._find(_by_position(given.values()), 0, is_partial=True)
        return [one for one, receipt in given.items() if receipt.position not in stale]

    def _find(
        self, receipts: Mapping[Position, Receipt], margin_ms: int, *, is_partial: bool
    ) -> tuple[list[Row], dict[Position, StaleReceipt]]:
        """Read the rows of receipts; returns the same as `_sorted`.

        Raises:
            StaleReceipt: If a receipt is stale, unless `is_partial`.
        """
        there = {row.position: row for row in self._store.find(receipts)}
        found, stale = self._sorted(there, receipts.values(), margin_ms=margin_ms)
        if stale and not is_partial:
            raise next(iter(stale.values()))
        return found, stale

    def _sorted(
        self, rows: Mapping[Position, Row], receipts: Iterable[Receipt], *, margin_ms: int
    ) -> tuple[list[Row], dict[Position, StaleReceipt]]:
        """The rows of receipts, in their order; and position -> the error, for stale receipts."""
        found: list[Row] = []
        stale: dict[Position, StaleReceipt] = {}
        for receipt in receipts:
            place = receipt.position
            row = rows.get(place)
            if (
                row is None
                or self.is_over(row, margin_ms)
                or self._is_another(row, receipt)
                or self._register.is_former(row)
            ):
                stale[place] = StaleReceipt(
                    f"the receipt of a message due {moment_of(place.due_ms).isoformat()} in queue "
                    f"{self._register.name!r} is stale: it was settled, or its time is up."
                )
            else:
                found.append(row)
        return found, stale

    def is_over(self, row: Row, margin_ms: int = CLAIM_MARGIN_MS) -> bool:
        """True if a row is a claim whose time is up, so that another member may have it by now.

        Args:
            margin_ms: How long before the claim's due its time counts as up.
        """
        return row.claim is not None and row.ready_ms < self._clock.now_ms() + margin_ms

    def _is_another(self, row: Row, receipt: Receipt) -> bool:
        """True if a row of a group lane has another delivery by now, or waits for one."""
        if not receipt.attempt or not self._register.layout.is_of_groups(row.shard.lane):
            return False
        # Compare serials: two deliveries have the same number if the first was given back.
        if row.begun_serial != receipt.serial:
            return True
        if row.claim is not None:
            return row.attempt != receipt.attempt
        # A consumer in this process runs the message, and writes no claim.
        return row.ready_ms > self._clock.now_ms()

    def _change(
        self,
        deliveries: Iterable[Message | str],
        plan: Callable[[Row, int], RowMove | Row | None],
        *,
        is_partial: bool,
        is_followed: bool = False,
        margin_ms: int = CLAIM_MARGIN_MS,
        failures: Sequence[tuple[Row, Try]] = (),
    ) -> tuple[list[Row | ReceiptError], list[Row]]:
        """Move, edit or end the rows of deliveries.

        Args:
            deliveries: Messages or their receipts.
            plan: Takes a row and the number of its delivery; returns its move, or the edited row;
                None for a message that dies and is not kept.
            is_partial: True if a delivery that fails does not fail the others.
            is_followed: True to change the claims of messages whose rows have moved, too.
            margin_ms: How long before its time is up a delivery is refused.
            failures: Filled by `plan`: attempts that have failed, for the history.

        Returns:
            For each delivery its row after the change, or its error; and the rows that were
            changed, as they were before.
        """
        given = [self._read(delivery, is_partial=is_partial) for delivery in deliveries]
        if is_followed:
            given = self._following(given)
        receipts = _by_position(one for one in given if isinstance(one, Receipt))
        found, stale = self._find(receipts, margin_ms, is_partial=is_partial)
        planned = [(row, plan(row, receipts[row.position].attempt)) for row in found]
        self._settler.ledger.fail(failures)
        # Check the time again, because the steps before may have taken long.
        live = [(row, new) for row, new in planned if not self.is_over(row, margin_ms)]
        edits = [(row, new) for row, new in live if isinstance(new, Row)]
        self._settler.edit(edits)
        moves = [new for _, new in live if isinstance(new, RowMove)]
        dying = [row for row, new in live if new is None]
        with begun("some of them are done") if edits else nullcontext():
            gone, repaired = self._carry_out(moves)
            attempts = [counted(row, receipts[row.position].attempt) for row in dying]
            self._settler.finish(dying, End.DEAD, attempts)
        changed: dict[Position, Row | ReceiptError] = {}
        for row, new in live:
            if row.position not in gone:
                now = new.new if isinstance(new, RowMove) else new or row
                changed[row.position] = repaired.get(now.id, now)
        for row in found:
            if row.position not in changed:
                stale[row.position] = self._stale()
        if stale and not is_partial:
            raise next(iter(stale.values()))
        answers = changed | stale
        return (
            [answers[one.position] if isinstance(one, Receipt) else one for one in given],
            [row for row in found if row.position in changed],
        )

    def _following(self, given: Sequence[Receipt | BadReceipt]) -> list[Receipt | BadReceipt]:
        """Receipts with the present positions of their messages, if the rows there are claims."""
        lasting = [one for one in given if isinstance(one, Receipt) and one.first is not None]
        there = self._settler.still_there(one.position for one in lasting)
        moved = self._settler.keys.followed(one for one in lasting if one.position not in there)
        at = {old: row.position for old, row in moved.items() if row.claim is not None}
        return [
            replace(one, position=at[one.position])
            if isinstance(one, Receipt) and one.position in at
            else one
            for one in given
        ]

    def _signed(self, row: Row) -> str:
        return self._register.signer.sign(receipt_of(row, row.attempt))

    def _read(self, delivery: Message | str, *, is_partial: bool) -> Receipt | BadReceipt:
        try:
            return self.receipt_of(delivery)
        except BadReceipt as error:
            if not is_partial:
                raise
            return error

    def _carry_out(self, moves: Sequence[RowMove]) -> tuple[set[Position], dict[bytes, Row]]:
        gone, repaired = self._settler.carry_out(moves)
        for move in moves:
            if move.old not in gone:
                self._home.on_put(move.new.due_ms)
        return gone, repaired

    def _stale(self) -> StaleReceipt:
        return StaleReceipt(
            f"the message was settled by somebody else just now, or its time is up, in queue "
            f"{self._register.name!r}."
        )
