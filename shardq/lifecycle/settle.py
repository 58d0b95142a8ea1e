"""Settling: what was planned for rows, carried out once, whoever asks: consumers or by receipt.

```
 planner ─► moves ─► still there? ─┬─ yes ─► the moves ─► too late? repaired
                                   └─ no ──► somebody else settled it: nothing is written
            ends ──► recorded, where the queue keeps a history ─► pointers ─► rows deleted
```

A consumer's own acks under a valid lease are blind deletes. A move into another queue is an end
here and an entry there.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from shardq.errors import StoreTimeout, StoreUnavailable, begun
from shardq.lifecycle.moves import Begun, Trail
from shardq.lifecycle.planner import Planner
from shardq.lifecycle.pointers import KeyPointers, noted, write_notes
from shardq.lifecycle.taker import Taken, Taker
from shardq.model import names
from shardq.model.message import SERIALS_OF_OTHERS, died_after
from shardq.records.keys import Keys
from shardq.records.ledger import End, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.records.keychanges import Command
    from shardq.records.register import Register
    from shardq.stores.store import Mark, Move, Store

log = logging.getLogger(__name__)
T = TypeVar("T")
_key_of = attrgetter("key")

CLAIM_MARGIN_MS = 1_000
"""A claim's holder may settle it until so long before its due, when others may hand it out."""
_REPAIRS = 5
_REPEATS = 5
_REPEAT_S = 0.5


class Settler:
    """Moves and removes rows of one queue.

    Args:
        member: Who does, for the ledger.
        on_far: Told dues of moves that are more than `NEAR_MS` ahead.

    Attributes:
        planner: Plans what becomes of them.
        ledger: Where ends are recorded.
        keys: The names of its messages.
        is_looked_at: Lets a row be looked at by the owner of its group lane; False where that is in
            no receiver of this process.
        on_beside: Told the rows beside moves (`Move.beside`) once these are done.
        on_found_beside: Told those that were there already, by a try before.
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
        self._clock = clock
        self._register = register
        self.planner: Planner = Planner(clock, register, on_far)
        self.ledger: Ledger = Ledger(store, clock, register, member)
        self.keys: Keys = Keys(store, clock, register)
        self._pointers = KeyPointers(self.keys)
        self._begun = Begun()
        self.is_looked_at: Callable[[Position], bool] = _no
        self.on_beside: Callable[[list[Row]], object] = _nothing
        self.on_found_beside: Callable[[list[Row]], object] = _nothing

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
        in_steps = [move for move in live if self._goes_in_steps(move)]
        at_once = [move for move in live if not self._goes_in_steps(move)]
        if in_steps:
            self._transfer(noted(in_steps, there), [there[move.old] for move in in_steps])
        if left_out := self._store.move(noted(at_once, there)):
            gone |= left_out
            live = [move for move in live if move.old not in left_out]
        if beside := [row for move in live for row in move.beside]:
            self.on_beside(beside)
        if maybe := [row for move in moves if move.old in gone for row in move.beside]:
            found = self.still_there(row.position for row in maybe)
            if written := [row for row in maybe if row.position in found]:
                self.on_found_beside(written)
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

    def carry_out_once(
        self, moves: Sequence[Move], marks: Mapping[Position, Sequence[Mark]], kept_ms: int
    ) -> None:
        """Do moves whose new rows have fixed ids, each once, whoever repeats them and when.

        Args:
            moves: They; their old rows were there a moment ago.
            marks: What the ledgers say of each.
            kept_ms: How long.
        """
        gone = self._store.move_once(noted(moves), marks, kept_ms)
        self.repair([move.new for move in moves if move.old not in gone])

    def _repeated(self, work: Callable[..., T], *given: Any) -> T:
        """Do it, and again where the store fails."""
        for _ in range(_REPEATS):
            try:
                return work(*given)
            except (StoreTimeout, StoreUnavailable) as error:
                log.info("done again, since the store failed: %s", error)
                self._clock.sleep(_REPEAT_S)
        return work(*given)

    def _goes_in_steps(self, move: Move) -> bool:
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
            write_notes(self._store, moves)
            self._leave(entering, rows, fate)

    def _leave(self, entering: Sequence[Row], rows: Sequence[Row], fate: End) -> None:
        """End rows here that another queue has by now."""
        self.ledger.enter(entering)
        self.finish(rows, fate, list(map(died_after, entering, rows)))

    def revive(self, moves: Sequence[Move]) -> tuple[set[Position], list[Move]]:
        """Put back dead messages with a key, as `carry_out_surely` does, under their names.

        Returns:
            The old positions that were gone before anything was done, and the moves that are not
            done because others have their names.
        """
        taker = Taker(self._store, self.keys)
        found = self._repeated(lambda: self._store.find([move.old for move in moves]))
        there = {row.position: row for row in found}
        gone = {move.old for move in moves if move.old not in there}
        left, displaced = self._repeated(
            taker.revive, [move for move in moves if move.old in there]
        )
        self._repeated(self._store.delete, [move.new.position for move in displaced])
        # Another redrive may have been quicker.
        still = self._repeated(lambda: self.still_there(move.old for move in left))
        gone |= {move.old for move in left} - still
        kept = {move.old for move in left}
        done = [move for move in moves if move.old in there and move.old not in kept]
        if done:
            entering = [move.new for move in done]
            old = [there[move.old] for move in done]
            self._repeated(self._leave, entering, old, End.ACKED)
            self._repeated(self.repair, entering)
        return gone, [move for move in left if move.old in still]

    def replace(self, commands: Sequence[Command]) -> Taken:
        """Replace rows by key: take the key, write the row, see that it stands, delete the old one.

        Returns:
            The keys that were refused: somebody was quicker, and nothing of it is there. And those
            that were displaced: the new row is written, and the old one left. Read both again.

        Raises:
            StoreTimeout: Some of them may be done.
        """
        if not commands:
            return Taken(set(), set())
        refused = set(self.keys.write([one.change for one in commands]))
        done = [one for one in commands if one.key.name not in refused]
        with begun("some of the keys are taken"):
            displaced = set(self.keys.displaced([one.change for one in done]))
            done = [one for one in done if one.key.name not in displaced]
            # Not before: who was displaced may have been by one that goes by the old row.
            if old := [one.old for one in done if not one.change.delete]:
                self._store.delete(old)
            for one in done:
                self.keys.forget(one.key)
        return Taken(refused, displaced)

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
                moves = self._begun.plan(still, self.planner.repair)
                with_notes = noted(moves)
                try:
                    self._store.move(with_notes)
                except StoreTimeout:
                    # Maybe done, and late itself: who asks anew finds nothing left to repair.
                    self._repeated(self._store.move, with_notes)
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
        if not self.ledger.covers(rows[0].shard.queue):
            self._remove(rows, fate)
            return
        self.ledger.end(rows, fate, attempts or [row.attempt for row in rows])
        with begun(f"{fate}, as the ledger says"):
            self._remove(rows, fate)

    def end(self, rows: Sequence[Row], fate: End, attempts: Sequence[int] = ()) -> None:
        """End messages as `finish` does, where a reader may have their rows in memory."""
        self.finish(rows, fate, attempts)
        self.tell(rows)

    def tell(self, rows: Sequence[Row]) -> None:
        """Rows were settled, moved or edited: let the owners of their group lanes look at them.

        Far rows are left out: no owner has read them, however far its clock is ahead.
        A store in trouble does not undo what was done. Then a group goes on when the time of its
        head would have been up.
        """
        layout = self._register.layout
        far_ms = self._clock.now_ms() + layout.offset_ms
        notes = [
            self.planner.note(row.position)
            for row in rows
            if row.shard.queue == layout.queue
            and row.due_ms <= far_ms
            and layout.is_of_groups(row.shard.lane)
            and not self.is_looked_at(row.position)
        ]
        if not notes:
            return
        try:
            self._store.insert(notes)
        except (StoreTimeout, StoreUnavailable) as error:
            log.warning("what waits behind %s goes on later: %s", rows[0].message_id, error)

    def edit(self, row: Row, edited: Row) -> None:
        """Edit a row of a group lane in place, for one who is not the owner of the lane.

        Args:
            row: As it is, which its caller has read just now.
            edited: As it is to be; its serial is set here.
        """
        self._store.edit([edited._replace(serial=row.serial + SERIALS_OF_OTHERS)])
        self.tell([row])

    def drop(self, rows: Sequence[Row]) -> None:
        """Remove rows of one queue whose messages have ended, whether they are there or not.

        Their ends were recorded by somebody who crashed before the delete, or a replica missed it.
        """
        self._remove(rows, None)

    def without_ended(self, rows: list[Row]) -> list[Row]:
        """Those rows of one queue whose messages have not ended, by its ledger; drops others."""
        if not rows or not self.ledger.covers(rows[0].shard.queue):
            return rows
        ended = self.ledger.finished(rows)
        if ended:
            log.warning("%d rows dropped, whose messages had ended", len(ended))
            self.drop([row for row in rows if row.id in ended])
        return [row for row in rows if row.id not in ended]

    def delete(self, positions: Iterable[Position]) -> None:
        """Remove rows that were moved, and are there beside their new ones."""
        self._store.delete(positions)

    def _remove(self, rows: Sequence[Row], fate: End | None) -> None:
        self._pointers.before_end(rows, fate)
        # A message whose name is free does not begin any more, though its row may be there.
        is_begun = fate is not End.DEAD and any(map(_key_of, rows))
        with begun("the names are free") if is_begun else nullcontext():
            self._store.delete([row.position for row in rows])


def _nothing(_rows: list[Row]) -> None:
    pass


def _no(_position: Position) -> bool:
    return False
