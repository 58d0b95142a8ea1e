"""What waits in groups: behind which head, until when, and what its end brings forward.

```
 head moves ────► block: until when, for whom ─► what waited for it before is moved along
 rows put off ──► cover: to when they come     ─► who reads from further back waits for that
 head settled ──► unblock ─────────────────────► what waits is pulled to now, and the block says so
 came too late ─► free ────────────────────────► moved to where its block says by now
 block failed ──► make_up ─────────────────────► what it has left goes along after all
```

Which rows of a consumer wait, and for what in its hands, `heads.py` knows; callers elsewhere come
here directly. What blocks say is read in `blocks.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.lifecycle.moves import BEGUN_MAX, Begun
from shardq.model.ids import birth_us, bound, from_text
from shardq.model.message import groups_of
from shardq.records.blocks import HELD_AHEAD_MS, NO_BLOCK, PULLED_TTL_MS, Blocks, read_lane_blocks
from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from shardq.clock import Clock
    from shardq.lifecycle.settle import Settler
    from shardq.model.message import GroupKey, Row
    from shardq.records.ledger import End
    from shardq.records.register import Register
    from shardq.stores.store import Store

log = logging.getLogger(__name__)

_PAGE = 1_000
_SHIFTS = 5
_SHIFTED_US = 200_000
"""A group's rows that take longer to move may have been joined by others meanwhile."""
_PLANNED_US = 10_000_000
"""How long before it is stored a move may have been planned: while its planner's lease lasts."""
_PLANNED_IN_MS = 20
"""Moves that are planned in a millisecond, at the least."""
_AGAIN_US = 500_000
"""A move that is repeated later goes to a past where no reader looks soon."""


class Pulled(NamedTuple):
    """What the end of a group's head has brought forward.

    Attributes:
        until_ms: Until when the block says by now that they wait; 0 where it is another head's.
        rows: Those that were moved, as they are now.
    """

    until_ms: int
    rows: list[Row]


class Groups:
    """Blocks the groups of one queue, and lets them go on.

    Args:
        settler: Moves their rows.

    Attributes:
        blocks: What is said of them.
    """

    def __init__(self, store: Store, clock: Clock, register: Register, settler: Settler) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._settler = settler
        self.blocks: Blocks = Blocks(store, clock, register.name)
        self._begun = Begun()
        self._owed: dict[GroupKey, dict[int, None]] = {}

    def is_head(self, row: Row) -> bool:
        """Whether a row is under way elsewhere, or put off: then its group waits for it."""
        if row.claim is not None:
            return True
        return self.blocks.block_of(row.shard.lane, row.group or "")[1] == row.message_id

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
        before_ms, head = self.blocks.block_of(lane, group)
        if head not in ("", message_id) or self.blocks.is_near(min(before_ms, until_ms)):
            until_ms = max(until_ms, before_ms)
        is_sooner = before_ms > until_ms
        if before_ms not in (0, until_ms):
            # Also where this is not known to be said: who pulls them must know where they are.
            self._owed.setdefault((lane, group), {})[before_ms] = None
        if not is_sooner:
            self.blocks.say(lane, group, until_ms, message_id)
        if before_ms and (lane, group) in self._owed:
            self._shift(lane, group, {head, message_id}, before_ms, until_ms)
            # A reader may put one there yet, by what it has just read of the block.
            self._owed[lane, group] = dict.fromkeys([before_ms, until_ms])
        if is_sooner:
            self.blocks.say(lane, group, until_ms, message_id)
        return until_ms

    def make_up(self, lane: int, group: str, message_id: str) -> list[Row]:
        """Move along what a block that failed half-way has left where it had waited before.

        To where the group waits by now, or forward where it does not any more. Gives what was
        moved, as it is now.
        """
        moved: list[Row] = []
        block = self.blocks.block_of(lane, group)
        from_ms = block[0]
        for _ in range(_SHIFTS):
            until_ms, head = block
            waits = until_ms > self._clock.now_ms()
            heads = {head, message_id}
            moved += self._shift(lane, group, heads, from_ms, until_ms if waits else None)
            from_ms, block = until_ms, self.blocks.block_of(lane, group)
            # Who has ended the head meanwhile pulled what was there by then.
            if block == (until_ms, head):
                break
        self.blocks.cover(_put_off(moved))
        return moved

    def unblock(self, lane: int, group: str, message_id: str, said_ms: int | None = None) -> Pulled:
        """The head of a group is settled: pull forward what was moved behind it.

        Where that comes back soon anyhow, it stays, and so does the block. Where some of it does,
        the rest comes with it: pulled to now, it would go first. What was pulled is due later than
        what has come due since and comes after it: so the block is not taken back, but says for a
        while up to where a lane is to be read before either goes.

        Args:
            said_ms: Until when the block has to say that they wait. Where it says otherwise,
                another has put this head off since, and pulls them. None: whatever it says.
        """
        until_ms, head = self.blocks.block_of(lane, group)
        if head != message_id or said_ms not in (None, until_ms):
            return Pulled(0, [])
        if self.blocks.is_near(until_ms):
            # What waits comes back by itself; who lags may have to know up to where, for a while.
            self.blocks.say(lane, group, until_ms, head, slack_ms=PULLED_TTL_MS)
            return Pulled(until_ms, [])
        now_ms = self._clock.now_ms()
        staying = [
            row.due_ms
            for row in self._behind(lane, group, {head}, now_ms, now_ms + HELD_AHEAD_MS)
            if row.order[0] < row.due_ms
        ]
        rows = self._shift(lane, group, {head}, until_ms, max(staying, default=None))
        waits_ms = max(_put_off(rows).values(), default=0)
        if self.blocks.is_near(until_ms):
            # It has come too near meanwhile: so what was put there since comes back by itself.
            waits_ms = max(waits_ms, until_ms)
        # Some may have come due elsewhere, or been pulled by a try before; and what was pulled too
        # slowly is due later than it was to be.
        waits_ms = max([waits_ms, *staying, self._clock.now_ms()])
        if self.blocks.block_of(lane, group) != (until_ms, head):
            # The first of what was pulled may have run by now, and have been put off: that stands.
            self.blocks.cover({(lane, group): waits_ms})
            return Pulled(0, rows)
        self.blocks.say(lane, group, waits_ms, head, slack_ms=PULLED_TTL_MS)
        return Pulled(waits_ms, rows)

    def unblock_purged(self, lane: int, known: Iterable[str] = ()) -> list[Row]:
        """Pull forward what waits behind heads that a purge has reached.

        These are deleted when they come due, and nobody settles them before. Where the lane's
        blocks cannot all be read, of `known` groups alone. Gives what was moved, as it is now.
        """
        moved: list[Row] = []
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
                moved += self.unblock(lane, group, message_id).rows
        return moved

    def end(self, rows: Sequence[Row], fate: End, attempts: Sequence[int] = ()) -> None:
        """End messages as `Settler.finish` does, by who has nothing of their groups in memory."""
        self._settler.finish(rows, fate, attempts)
        for row in rows:
            self.try_to_unblock(row)

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

    def free(self, rows: Sequence[Row], raised_ms: Mapping[GroupKey, int]) -> list[Row]:
        """Move along those of some rows just put behind a head that is settled or due elsewhere.

        Who settled it, or put it elsewhere, has moved along what it saw there before these came.
        What has come due since, or near, stays: it may run by now, and moved, it would run twice.
        So does what waits for longer, but by our own word (`raised_ms`): who says so may move it
        as well.

        Returns:
            Those that were moved, as they are now.
        """
        began_ms = self._clock.now_ms()
        blocked = self.blocks.read(groups_of(rows))
        now_ms = self._clock.now_ms()
        elsewhere: dict[int, list[Row]] = {}
        near: list[Row] = []
        for row in rows:
            lane, group = row.shard.lane, row.group or ""
            until_ms, _ = blocked.get((lane, group), NO_BLOCK)
            is_later = now_ms < row.due_ms < until_ms == raised_ms.get((lane, group))
            is_beyond = max(until_ms, now_ms) < row.due_ms
            if began_ms + HELD_AHEAD_MS < row.due_ms <= now_ms + HELD_AHEAD_MS:
                # Its caller, who leaves what is near, saw it far off; a reader may have it by now.
                near.append(row)
            elif row.order[0] < row.due_ms and (is_later or is_beyond):
                elsewhere.setdefault(until_ms, []).append(row)
        moved: list[Row] = []
        for until_ms, behind in elsewhere.items():
            moved += self._move_in_order(behind, until_ms)
        # What was put since, and is due before that, comes after them.
        self.blocks.cover(_put_off([*moved, *near]))
        return moved

    def _shift(
        self, lane: int, group: str, heads: AbstractSet[str], from_ms: int, until_ms: int | None
    ) -> list[Row]:
        """Move a group's rows that are due at `from_ms`, its heads' not, elsewhere or to their own.

        So are those that a try which failed may have left, where they were and where they were to
        go: the next try finds the block changed, and asks for another due.
        """
        owed = self._owed.setdefault((lane, group), {})
        # In this order: what is repeated is the very same move, and goes where it was to go first.
        dues = dict.fromkeys([*owed, from_ms])
        owed.update(dict.fromkeys([from_ms] if until_ms is None else [from_ms, until_ms]))
        came: list[Row] = []
        for due_ms in dues:
            if due_ms != until_ms:
                came += self._shift_from(lane, group, heads, due_ms, until_ms)
        self._owed.pop((lane, group), None)
        for key in list(self._owed)[:-BEGUN_MAX]:
            # Nobody has tried again for long: what is left comes back when it is due.
            self._owed.pop(key, None)
        return came

    def _shift_from(
        self, lane: int, group: str, heads: AbstractSet[str], from_ms: int, until_ms: int | None
    ) -> list[Row]:
        """Move what is due then; where that is near, it stays.

        Until the block says otherwise, readers put more of a group there: what came while the store
        was slow goes along, or it would be passed. Only what can be new is looked for again: of the
        rest there are tombstones now.
        """
        came: list[Row] = []
        after_ms, after_id = from_ms - 1, None
        for _ in range(_SHIFTS):
            if self.blocks.is_near(from_ms):
                break
            asked_us = self._clock.boot_us()
            behind = self._behind(lane, group, heads, after_ms, from_ms, after_id)
            after_ms, after_id = from_ms, bound(self._clock.now_us() - _PLANNED_US)
            if until_ms is None:
                behind = [row for row in behind if row.order[0] < row.due_ms]
            came += self._move_in_order(behind, until_ms or 0)
            if self._clock.boot_us() - asked_us < _SHIFTED_US:
                break
        return came

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
                place = after_ms, until_ms, _PAGE, after_id, "group"
                page = self._store.read(Slice(layout.queue, [minute], [lane], *place))
                due += [row for row in page if row.group == group]
                if len(page) < _PAGE:
                    break
                after_ms, after_id = page[-1].due_ms, page[-1].id
        return due

    def _move_in_order(self, rows: list[Row], until_ms: int) -> list[Row]:
        """Move rows that waited behind a head to another due; none to before its own first.

        Returns:
            Those that we have moved: what others have moved they say themselves, and said again it
            may stand where more was said since.
        """
        # Row ids are made in order, so that equal dues keep it. All that come now are due together.
        rows.sort(key=lambda row: row.order)
        soon_ms = self._clock.now_ms() + len(rows) // _PLANNED_IN_MS
        moves = self._begun.plan(
            rows,
            lambda row: self._settler.planner.place(row, max(until_ms, soon_ms, row.order[0])),
        )
        gone, _ = self._settler.carry_out(moves)
        # A try whose answer was lost may have moved them.
        there = (
            self._settler.still_there(move.new.position for move in moves if move.old in gone)
            if gone
            else ()
        )
        self._begun.end(move.old for move in moves)
        return [move.new for move in moves if move.old not in gone or move.new.position in there]


def _put_off(rows: Iterable[Row]) -> dict[GroupKey, int]:
    """The last due of each group, of rows at one that is not their own."""
    put_off = sorted((row for row in rows if row.due_ms > row.order[0]), key=lambda row: row.due_ms)
    return {(row.shard.lane, row.group or ""): row.due_ms for row in put_off}
