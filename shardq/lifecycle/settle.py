"""Settling: carries out planned changes of rows once, for consumers and for receipts.

```
 planner ─► moves ─► old row exists? ─┬─ yes ─► the moves ─► too late? repaired
                                      └─ no ──► settled by another: nothing is written
            ends ──► recorded, if the queue keeps a history ─► pointers ─► rows deleted
 placings ─► names taken ─► rows written ─► slow? confirmed ─► old rows deleted
```

A consumer deletes the rows of its own acks under a valid lease without a look. A move into another
queue is an end in this queue and an entry in the other.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shardq.errors import StoreError, StoreRefused, StoreTimeout, StoreUnavailable, begun
from shardq.lifecycle.moves import BegunMoves, Trail
from shardq.lifecycle.planner import Planner
from shardq.lifecycle.pointers import KeyPointers, noted, write_notes
from shardq.model.message import SERIALS_OF_OTHERS, died_after, shards_of
from shardq.records.keyrow import own_key
from shardq.records.keys import MessageKeys
from shardq.records.ledger import End, Ledger
from shardq.stores.store import NO_TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.records.keychanges import Placing
    from shardq.records.register import Register
    from shardq.stores.store import Mark, RowMove, Store

log = logging.getLogger(__name__)
T = TypeVar("T")
_key_of = attrgetter("key")

CLAIM_MARGIN_MS = 1_000
"""A claim's holder may settle it only until this long before its due, when others may hand it
out."""
_REPAIRS = 5
_REPEATS = 5
_REPEAT_S = 0.5


class Taken(NamedTuple):
    """The names that placements failed to take.

    Attributes:
        refused: Names that had changed since they were read; nothing was written.
        displaced: Names that were taken so slowly that other messages have taken them over
            meanwhile. The new rows are written, and the old rows still exist.
    """

    refused: set[str]
    displaced: set[str]


class Settler:
    """Moves and removes rows of one queue.

    Args:
        member: The member that settles, for the ledger.
        on_far: Called with each due of a move that is more than `NEAR_MS` ahead.
        lookers: Let a receiver of this process reread a row, or forget a row that was deleted;
            return False if the receiver does not own the row's group lane.

    Attributes:
        planner: Plans the changes of rows.
        ledger: Records ends.
        keys: The names of the queue's messages.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        member: str = "",
        on_far: Callable[[int], object] | None = None,
        *,
        lookers: Sequence[Callable[[Position, bool], bool]] = (),
    ) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._lookers = lookers
        self.planner: Planner = Planner(clock, register, on_far)
        self.ledger: Ledger = Ledger(store, clock, register, member)
        self.keys: MessageKeys = MessageKeys(store, clock, register)
        self._pointers = KeyPointers(self.keys, register)
        self._begun = BegunMoves()

    def carry_out(self, moves: Sequence[RowMove]) -> tuple[set[Position], dict[bytes, Row]]:
        """Do the moves whose old rows still exist; safe to repeat with the same moves.

        A repeat after an unknown outcome does only what is left. Other processes may do the same
        moves, with the same new rows: each message is still moved once.

        Returns:
            The old positions of messages that others have settled, for which no new row exists; and
            the result of `repair` for the new rows.
        """
        if not moves:
            return set(), {}
        there = {row.position: row for row in self._store.find([move.old for move in moves])}
        in_steps: list[RowMove] = []
        at_once: list[RowMove] = []
        marks: dict[Position, list[Mark]] = {}
        gone: set[Position] = set()
        for move in moves:
            row = there.get(move.old)
            if row is None:
                gone.add(move.old)
            elif _leaves(move) and row.key is not None and move.new.key is None:
                in_steps.append(move)
            else:
                at_once.append(move)
                if crossing := self.ledger.crossing(row, move.new):
                    marks[move.old] = crossing
        if in_steps:
            self._transfer(noted(in_steps, there), [there[move.old] for move in in_steps])
        kept_ms = self.ledger.kept_ms(move.new for move in at_once) if marks else NO_TIMES
        taken = self._store.move(noted(at_once, there), marks, kept_ms)
        gone |= taken
        # A row that another has moved meanwhile has notes that its new place needs.
        left = (move.old for move in at_once if _leaves(move) and move.old not in taken)
        self._pointers.after_end([there[old] for old in left])
        repaired = self.repair([move.new for move in moves])
        if gone:
            # An earlier try whose answer was lost may have done some of these moves: then their new
            # rows exist.
            made = {
                move.old: repaired.get(move.new.id, move.new).position
                for move in moves
                if move.old in gone
            }
            stand = self.still_there(made.values())
            gone = {old for old, new in made.items() if new not in stand}
        return gone, repaired

    def carry_out_all(self, moves: Iterable[Sequence[RowMove]]) -> None:
        """Move each message that still has a row at one of several places; safe to repeat.

        The moves of a message have the same new row, which is not repaired. All its old rows are
        deleted, even those not found: a process that stalls may write them later, and on Cassandra
        a deleted row stays deleted.
        """
        asked = list(moves)
        there = self.still_there(move.old for some in asked for move in some)
        self._store.move(
            [move for some in asked if any(one.old in there for one in some) for move in some]
        )

    def carry_out_surely(self, moves: Sequence[RowMove]) -> set[Position]:
        """Do the moves as `carry_out` does, and repeat them if the store fails.

        A caller that repeated a half done move itself would plan a new move, and leave a copy.

        Returns:
            The old positions whose rows were gone before any move was done.
        """
        # Read this only once: before a repeat, another member may have settled the new row, so that
        # both rows are gone.
        there = self.repeated(lambda: self.still_there(move.old for move in moves))
        self.repeated(self.carry_out, moves)
        return {move.old for move in moves} - there

    def repeated(self, work: Callable[..., T], *given: Any) -> T:
        """Call `work`, and repeat the call if the store fails."""
        for _ in range(_REPEATS):
            try:
                return work(*given)
            except (StoreTimeout, StoreUnavailable) as error:
                log.info("done again, since the store failed: %s", error)
                self._clock.sleep(_REPEAT_S)
        return work(*given)

    def _transfer(self, moves: Sequence[RowMove], rows: Sequence[Row]) -> None:
        """Move rows to another queue, where they have no keys, step by step.

        If the end were recorded before the other queue has the row, a crash in between would lose
        the message: its only row would be dropped. A crash between these steps leaves a copy.
        """
        entering = [move.new for move in moves]
        self._store.insert(entering)
        with begun("moved to the other queue"):
            write_notes(self._store, moves)
            self._leave(entering, rows)

    def _leave(self, entering: Sequence[Row], rows: Sequence[Row]) -> None:
        """End rows in this queue that another queue has by now."""
        self.ledger.enter(entering)
        fate = self.ledger.fate_of(entering[0])
        self.finish(rows, fate, list(map(died_after, entering, rows)))

    def take_along(
        self, moves: Sequence[RowMove], names_there: MessageKeys
    ) -> tuple[set[Position], list[RowMove]]:
        """Move messages with a key, as `carry_out_surely` does, to a queue where they have keys.

        Args:
            moves: The moves, all into one other queue.
            names_there: The keys of that queue.

        Returns:
            The old positions whose rows were gone before any move was done, and the moves that are
            not done because other messages have their names.
        """
        found = self.repeated(lambda: self._store.find([move.old for move in moves]))
        there = {row.position: row for row in found}
        gone = {move.old for move in moves if move.old not in there}
        left = self.repeated(
            self._revive, [move for move in moves if move.old in there], names_there
        )
        # Another redrive may have put the messages back meanwhile.
        still = self.repeated(lambda: self.still_there(move.old for move in left))
        gone |= {move.old for move in left} - still
        kept = {move.old for move in left}
        done = [move for move in moves if move.old in there and move.old not in kept]
        if done:
            entering = [move.new for move in done]
            old = [there[move.old] for move in done]
            self.repeated(self._leave, entering, old)
            self.repeated(self.repair, entering)
        return gone, [move for move in left if move.old in still]

    def _revive(self, moves: Sequence[RowMove], names_there: MessageKeys) -> list[RowMove]:
        """Put messages with a key into another queue, where they take their names.

        Returns:
            The moves of messages whose names other messages have in that queue; none is carried
            out.
        """
        of: dict[str, list[RowMove]] = {}
        for move in moves:
            of.setdefault(own_key(move.new).name, []).append(move)
        found = names_there.seek(of)
        chosen: dict[str, RowMove] = {}
        placings: list[Placing] = []
        for name, wanted in of.items():
            standing = found[name]
            own = [move for move in wanted if standing.key.is_of(move.new)]
            if own:
                # An earlier try has taken the name.
                chosen[name] = own[0]
                if again := names_there.again(standing, own[0].new):
                    placings.append(again)
            elif standing.state.is_absent:
                # If several messages died under one name, the last one gets the name.
                last = [move for move in wanted if move.old in standing.key.places]
                chosen[name] = (last or wanted)[0]
                placings.append(names_there.placing(chosen[name].new, standing))
        refused, displaced = self.place(placings, names_there)
        self.repeated(self._store.delete, [chosen[name].new.position for name in displaced])
        done = {one.old for name, one in chosen.items() if name not in refused | displaced}
        return [move for move in moves if move.old not in done]

    def place(self, placings: Sequence[Placing], keys: MessageKeys | None = None) -> Taken:
        """Place rows under different names, each in steps; a repeat finishes half done placements.

        The name is taken, the row is written, the name is confirmed if the write took long, and the
        old row is deleted.

        Args:
            placings: The rows and their names.
            keys: The names of another queue into which the rows move; None for those of this queue.

        Raises:
            StoreTimeout: Some rows may be placed.
            StoreRefused: The store refuses a row for good; names without their rows are given back.
        """
        if not placings:
            return Taken(set(), set())
        keys = keys or self.keys
        try:
            refused = set(keys.write([one.change for one in placings]))
        except StoreRefused:
            self._undo(keys, [one for one in placings if one.old is None])
            raise
        done = [one for one in placings if one.name not in refused] if refused else placings
        with begun("some of the keys are taken"):
            displaced = set(keys.displaced([one.change for one in done]))
            done = [one for one in done if one.name not in displaced] if displaced else done
            # Delete the old rows last: a command that has displaced another may still use the old
            # row.
            replaced = [one for one in done if not one.change.delete]
            if old := [place for one in replaced for place in (one.old, one.left) if place]:
                self._store.delete(old)
            for one in done:
                if one.over is not None:
                    keys.forget(one.over)
        return Taken(refused, displaced)

    def _undo(self, keys: MessageKeys, puts: Sequence[Placing]) -> None:
        """Give back names that were taken for rows that the store refuses for good."""
        with suppress(StoreError):
            there = {row.id for row in self._store.find([one.row.position for one in puts])}
            keys.write([keys.undo(one.change) for one in puts if one.row.id not in there])

    def still_there(self, positions: Iterable[Position]) -> set[Position]:
        """The positions at which rows still exist."""
        return {row.position for row in self._store.find(positions)}

    def repair(self, rows: Iterable[Row]) -> dict[bytes, Row]:
        """Move rows just written to now if they were stored too late for their minutes' readers.

        Returns:
            Row id as written -> the present row, for rows that this call or an earlier try moved.

        Raises:
            StoreTimeout: The rows are written, and some that should have been moved may not be.
        """
        trail = Trail(self._begun, rows)
        for _ in range(_REPAIRS):
            now_ms = self._clock.now_ms()
            shards = {
                shard
                for shard in shards_of(trail.rows)
                if self._register.layout_of(shard.queue).is_late(shard.minute, now_ms)
            }
            late = {row.id for row in trail.rows if row.shard in shards} if shards else set()
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
                    # Repeat it here: a caller that tries again would find no late row to repair.
                    self.repeated(self._store.move, with_notes)
            except StoreUnavailable as error:
                # No row was moved, but the rows were written.
                raise StoreTimeout(f"written late, and not yet moved to now: {error}") from error
            trail.go_on(moves)
        trail.end()
        return trail.repaired

    def finish(self, rows: Sequence[Row], fate: End, attempts: Sequence[int] = ()) -> None:
        """End messages: record the ends if the queue keeps a history, then remove the rows.

        Args:
            rows: The rows, which may be gone.
            attempts: How many deliveries each message has had; by default as the rows say.

        Raises:
            StoreTimeout: The ends may be applied. A message whose end is recorded has ended: if its
                row still exists, it is never delivered.
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
        """End messages as `finish` does, and `tell` readers that may have their rows in memory."""
        self.finish(rows, fate, attempts)
        self.tell(rows, are_gone=True)

    def tell(self, rows: Sequence[Row], *, are_gone: bool = False) -> None:
        """Let the owners of group lanes reread rows that were settled, moved or edited.

        An error of the store is only logged, because the rows are settled. The group of such a row
        is then unblocked when the time of its head would have been up.
        """
        try:
            self.point_to(rows, are_gone=are_gone)
        except (StoreTimeout, StoreUnavailable) as error:
            log.warning("what waits behind %s goes on later: %s", rows[0].message_id, error)

    def point_to(self, rows: Sequence[Row], *, are_gone: bool = False) -> None:
        """Let the owners of group lanes reread rows.

        A far row is left out: no owner has read it, however far the owner's clock is ahead.

        Raises:
            StoreTimeout, StoreUnavailable: Some owners may not reread; repeating is safe.
        """
        layout = self._register.layout
        far_ms = self._clock.now_ms() + layout.offset_ms
        notes = [
            self.planner.note(row.position)
            for row in rows
            if row.shard.queue == layout.queue
            and row.due_ms <= far_ms
            and layout.is_of_groups(row.shard.lane)
            and not any(look(row.position, are_gone) for look in self._lookers)
        ]
        if notes:
            self._store.insert(notes)

    def edit(self, edits: Sequence[tuple[Row, Row]]) -> None:
        """Edit rows of group lanes in place, for a member or caller that does not own the lanes.

        Args:
            edits: Pairs of the row as the caller has just read it, and as it should become; this
                method sets the serials.
        """
        if edits:
            self._store.edit(
                [new._replace(serial=row.serial + SERIALS_OF_OTHERS) for row, new in edits]
            )
            self.tell([row for row, _ in edits])

    def drop(self, rows: Sequence[Row]) -> None:
        """Remove rows of one queue whose messages have ended; the rows may be gone.

        The process that recorded the ends crashed before the delete, or a replica missed the
        delete.
        """
        self._remove(rows, None)

    def without_ended(self, rows: list[Row]) -> list[Row]:
        """The rows of one queue whose messages have not ended by its ledger; drops the others."""
        if not rows or not self.ledger.covers(rows[0].shard.queue):
            return rows
        ended = self.ledger.finished(rows)
        if ended:
            log.warning("%d rows dropped, whose messages had ended", len(ended))
            self.drop([row for row in rows if row.id in ended])
        return [row for row in rows if row.id not in ended]

    def delete(self, positions: Iterable[Position]) -> None:
        """Remove rows that were moved and still exist beside their new rows."""
        self._store.delete(positions)

    def _remove(self, rows: Sequence[Row], fate: End | None) -> None:
        self._pointers.before_end(rows, fate)
        # The names are freed first: a message that has lost its name never begins, even if its row
        # stays.
        is_begun = fate is not End.DEAD and any(map(_key_of, rows))
        with begun("the names are free") if is_begun else nullcontext():
            self._store.delete([row.position for row in rows])
        with begun("the rows are deleted"):
            self._pointers.after_end(rows)


def _leaves(move: RowMove) -> bool:
    """True if a move leads into another queue."""
    return move.old.shard.queue != move.new.shard.queue
