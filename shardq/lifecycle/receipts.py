"""Settling by receipt, from any process: whoever settles need not have read the row.

```
 receipt ──► its row, as it is now ──► gone, or a claim whose time is up: stale, nothing is written
                                  └──► planned and carried out as a consumer's is; its group follows
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.errors import BadReceipt, StaleReceipt, UsageError
from shardq.lifecycle.fate import Fate, Outcome
from shardq.lifecycle.planner import counted
from shardq.lifecycle.settle import CLAIM_MARGIN_MS
from shardq.model import names
from shardq.model.message import Message, key_of
from shardq.model.receipt import Receipt
from shardq.model.times import moment_of
from shardq.records.ledger import End

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardq.lifecycle.keyed import Keyed
    from shardq.lifecycle.settle import Settler
    from shardq.model.message import Row
    from shardq.records.home import QueueHome
    from shardq.stores.store import Move


class Receipts:
    """Settles deliveries of one queue by their receipts, and counts that.

    Args:
        home: The queue's.
        settler: Carries it out.
        keyed: Cancels messages that have keys.
    """

    def __init__(self, home: QueueHome, settler: Settler, keyed: Keyed) -> None:
        self._home = home
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self._settler = settler
        self._planner = settler.planner
        self._keyed = keyed

    def ack(self, deliveries: Iterable[Message | str]) -> None:
        """End deliveries as done.

        Raises:
            BadReceipt: If one is damaged or of another queue; nothing was written.
            StaleReceipt: If one was settled before, or its time is up; nothing was written.
        """
        # Each once: one message that is given twice is one message less.
        receipts = list(dict.fromkeys(map(self.receipt_of, deliveries)))
        rows = self.present(receipts)
        attempts = [
            counted(row, receipt.attempt) for receipt, row in zip(receipts, rows, strict=True)
        ]
        self._settler.end(rows, End.ACKED, attempts)
        self._home.stats.add(acked=len(receipts))

    def settle(self, delivery: Message | str, outcome: Outcome) -> None:
        """End a delivery that is not acked.

        Raises:
            BadReceipt: If its receipt is damaged or of another queue.
            StaleReceipt: If it was settled before, or its time is up.
            UsageError: If it is to be buried, and is in a dead-letter queue.
        """
        receipt, row = self._present(delivery)
        if outcome.fate is Fate.BURY and names.is_dead_queue(self._register.name):
            raise UsageError(
                f"queue {self._register.name!r} keeps dead messages; ack or redrive them instead."
            )
        fate, move, edit = self._planner.settle(row, outcome, receipt.attempt)
        if edit is not None:
            self._edit(row, edit)
        elif move is not None:
            self._carry_out(row, move)
        if fate is Fate.BURY:
            self._settler.tell([row])
            self._home.stats.add(buried=1)
        elif fate is Fate.RETRY:
            self._home.stats.add(retried=1)
        else:
            self._home.stats.add(snoozed=1)

    def extend(self, delivery: Message | str, visibility_ms: int) -> str:
        """Keep a delivery for so long from now; returns its new receipt, the old one is stale.

        Raises:
            BadReceipt: If its receipt is damaged or of another queue.
            StaleReceipt: If it was settled before, or its time is up.
        """
        receipt, row = self._present(delivery)
        holder = row.claim or "receipt"
        if self._register.layout.is_of_groups(row.shard.lane):
            claim = self._planner.claimed(row, visibility_ms, receipt.attempt, holder=holder)
            self._edit(row, claim)
        else:
            move = self._planner.claim(row, visibility_ms, receipt.attempt, holder=holder)
            self._carry_out(row, move)
            claim = move.new
        return self._register.signer.sign(claim.position, claim.attempt)

    def cancel(self, delivery: Message | str) -> bool:
        """Remove a message; returns whether it was there.

        One with a key is cancelled by it, wherever it has moved: exactly. Of a receipt its row has
        to be where that says.

        Raises:
            BadReceipt: If its receipt is damaged or of another queue.
        """
        receipt = self.receipt_of(delivery)
        found = self._store.find([receipt.position])
        row = next(iter(found), delivery._row if isinstance(delivery, Message) else None)
        # Whoever has it, by the receipt of that delivery, ends it as by any other outcome.
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
            if (
                row is None
                or self.is_over(row)
                or self._is_another(row, receipt)
                or self._register.is_former(row)
            ):
                raise StaleReceipt(
                    f"the receipt of a message due "
                    f"{moment_of(receipt.position.due_ms).isoformat()} in queue "
                    f"{self._register.name!r} is stale: it was settled, or its time is up."
                )
            rows.append(row)
        return rows

    def is_over(self, row: Row) -> bool:
        """Whether a row is a claim whose time is up: another may have it by now."""
        return row.claim is not None and row.ready_ms < self._clock.now_ms() + CLAIM_MARGIN_MS

    def _is_another(self, row: Row, receipt: Receipt) -> bool:
        """True if a row that stays where it is has another delivery by now, or waits for one."""
        if not receipt.attempt or not self._register.layout.is_of_groups(row.shard.lane):
            return False
        if row.claim is not None:
            return row.attempt != receipt.attempt
        # A consumer in this process runs it, and writes nothing to claim it.
        return row.attempt + 1 != receipt.attempt or row.ready_ms > self._clock.now_ms()

    def _present(self, delivery: Message | str) -> tuple[Receipt, Row]:
        receipt = self.receipt_of(delivery)
        return receipt, self.present([receipt])[0]

    def _edit(self, row: Row, edited: Row) -> None:
        if self.is_over(row):
            raise self._stale()
        self._settler.edit(row, edited)

    def _carry_out(self, row: Row, move: Move) -> None:
        # What had to be asked and said before may have taken long.
        if self.is_over(row) or self._settler.carry_out([move])[0]:
            raise self._stale()
        self._home.on_put(move.new.due_ms)

    def _stale(self) -> StaleReceipt:
        return StaleReceipt(
            f"the message was settled by somebody else just now, or its time is up, in queue "
            f"{self._register.name!r}."
        )
