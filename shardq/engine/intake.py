"""Taking in rows that were read: which of them are new, may be handed out, and when.

```
 rows ──► known already? ── passed over            known: in hand until settled
      ──► entered before a purge? ── deleted
      ──► shard leased? ── no: refused, for now    one LWT a shard, not a row
      ──► ended, by the ledger? ── dropped         asked only of rows that may be left over
      ──► behind its group's head? ── moved
      ──► ready
```

How rows are found, `reader.py` and `sweeper.py` know.
"""

from __future__ import annotations

import logging
from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from shardq.engine.delivery import Delivery, place_of
from shardq.engine.lane import Lane, learn_blocks
from shardq.engine.older import find_older
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model import names
from shardq.model.message import groups_of, shards_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from shardq.clock import Clock
    from shardq.engine.lease import Lease, Leases
    from shardq.engine.ready import Ready
    from shardq.model.message import GroupKey, Row
    from shardq.model.shard import Layout, Shard
    from shardq.records.blocks import Block
    from shardq.records.ledger import Ledger
    from shardq.records.register import Register
    from shardq.stores.store import Store

log = logging.getLogger(__name__)
_shard_of = itemgetter(0)
READ_AHEAD_MS = 2_000
_RETRY_MS = 250
_EAGER_RETRY_MS = 50
_EAGER_MS = 4_000
"""How long a lane that is new here is tried so often: its former reader leaves it in that time."""
_CLOSED_MS = 500
_FRESH_US = 2_000_000
"""A message put so lately can hardly have ended and be there."""


class Intake:
    """The lanes of one member, and the rows of them that it has in hand.

    Args:
        ledger: Knows which messages have ended.
        on_purged: Given rows that a purge has reached.
        on_ended: Given rows of messages that have ended already.
        on_put_off: Given deliveries that are to be moved: behind their group's head, or to now;
            and to when.
        put_behind: Given lanes that will not be read on soon; puts off what waits for that.
        put_off_until: Until when rows of a group are put off by moves that are not stored yet.

    Attributes:
        lanes: The lanes that are read, by number.
        polled: Those of them that were not quiet when that was last looked at.
        known: Row id -> delivery of what has been read and not settled.
        shard_rows: How many of them each shard has.
        body_bytes: The size of their bodies.
        has_held_groups: Whether grouped rows wait for another member to leave a lane.
        shared: The lanes of which another had a shard with rows when that was last looked up.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        leases: Leases,
        ready: Ready,
        ledger: Ledger,
        *,
        on_purged: Callable[[list[Row]], None],
        on_ended: Callable[[list[Row]], None],
        on_put_off: Callable[[Delivery, int], None],
        put_behind: Callable[[Collection[int]], None],
        put_off_until: Callable[[GroupKey], int],
    ) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._leases = leases
        self._ready = ready
        self._ledger = ledger
        self._on_purged = on_purged
        self._on_ended = on_ended
        self._on_put_off = on_put_off
        self.put_behind = put_behind
        self._put_off_until = put_off_until
        self._groups_asked_ms = 0
        self._missed: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self.lanes: dict[int, Lane] = {}
        self.polled: list[Lane] = []
        self.known: dict[bytes, Delivery] = {}
        self.shard_rows: Counter[Shard] = Counter()
        self.body_bytes = 0
        self.has_held_groups = False
        self.shared: set[int] = set()

    @property
    def _layout(self) -> Layout:
        return self._register.layout

    # Lanes ----------------------------------------------------------------------------------------

    def keep(self, lanes: Iterable[int], sealed: Callable[[], dict[int, int]]) -> list[int]:
        """Read these lanes from now on and no others.

        Args:
            lanes: Their numbers.
            sealed: Gives the sealed minutes of the queue; asked only for lanes that are new.

        Returns:
            The lanes that were given up; their rows that wait are forgotten.
        """
        wanted = set(lanes)
        dropped = [lane for lane in self.lanes if lane not in wanted]
        new = [lane for lane in wanted if lane not in self.lanes]
        # First: where it fails, all stays as it was.
        registered = sealed() if new else {}
        if dropped:
            self.give_up(lambda one: one.row.shard.lane in dropped)
            for number in dropped:
                del self.lanes[number]
        if new:
            # A lane may be passed on within a second: half of that would go by until it is asked.
            self._groups_asked_ms = 0
            newest = self._layout.newest_sealable(self._clock.now_ms())
            for number in new:
                made = self._register.made_minute(number) - 1
                # A register from a clock that ran ahead must not hide open minutes.
                start = min(self._register.unsealed_minute(number, registered) - 1, newest)
                lane = Lane.fresh(number, self._layout, start, made)
                lane.eager_until_ms = self._clock.now_ms() + _EAGER_MS
                self.lanes[number] = lane
                for one in self.known.values():
                    if one.row.shard.lane == number and not one.claimed:
                        lane.count([one.row], 1)
        self.polled = [lane for lane in self.lanes.values() if not lane.quiet]
        return dropped

    def give_up(self, unwanted: Callable[[Delivery], bool]) -> None:
        """Forget rows that were not handed out, and read them again where their lane stays ours.

        With them goes the rest of their groups, of which some would come before them.
        """
        groups = {
            one.group
            for one in list(self.known.values())
            if one.row.group is not None and not one.begun_us and unwanted(one)
        }
        for one in self._ready.remove(lambda one: one.group in groups or unwanted(one)):
            if self._lies_behind_seal(one):
                # Who reads the lane next begins after that, and looks back minutes later at best.
                self._on_put_off(one, self._clock.now_ms())
            else:
                self.leave(one)

    def _lies_behind_seal(self, one: Delivery) -> bool:
        """Whether a row that waits for nothing but a handler came when its minute was sealed.

        Of one that is not due the minute is still to come: the clock was set back meanwhile.
        """
        lane = self.lanes.get(one.row.shard.lane)
        is_behind = lane is not None and one.row.shard.minute <= lane.sealed
        is_over = is_behind and one.row.due_ms <= self._clock.now_ms()
        return is_over and one.row.group is None and not one.careful

    def leave(self, one: Delivery) -> None:
        """Forget a row that waits nowhere any more, and read it again where its shard is ours."""
        self.forget(one)
        if one.careful and one.row.group is None:
            one.lease.give_back()
        lane = self.lanes.get(one.row.shard.lane)
        if lane is not None:
            self._go_back_to(lane, one.row.due_ms)

    def _go_back_to(self, lane: Lane, due_ms: int) -> None:
        """Read a lane again from a due on, where its cursor is behind that or is about to be."""
        lane.rewind(due_ms)
        self._left[lane.number] = min(due_ms, self._left.get(lane.number, due_ms))

    def forget(self, one: Delivery) -> None:
        """A delivery is over: its row is settled, or somebody else's."""
        self.forget_all([one])

    def forget_all(self, ended: Iterable[Delivery]) -> None:
        """Deliveries are over."""
        gone: dict[Shard, list[Row]] = {}
        for one in ended:
            row = one.row
            if self.known.pop(row.id, None) is not None:
                self.body_bytes -= len(row.body)
                if not one.claimed:
                    gone.setdefault(row.shard, []).append(row)
        for shard, rows in gone.items():
            self._uncount(shard, rows)

    def park(self, one: Delivery, claim: Row) -> bool:
        """A delivery's row has become a claim elsewhere, which no shard of ours waits for.

        Returns:
            Whether it is; not where it was read again, as its time was over, and runs once more.
        """
        again = self.known.get(claim.id)
        if again is not None and again is not one:
            if not self._ready.remove(lambda other: other is again):
                return False
            self.forget(again)
        if self.known.pop(one.row.id, None) is not None and not one.claimed:
            self._uncount(one.row.shard, [one.row])
        one.row = claim
        one.claimed = one.counted = True
        self.known[claim.id] = one
        return True

    def _uncount(self, shard: Shard, rows: Sequence[Row]) -> None:
        left = self.shard_rows[shard] - len(rows)
        if left:
            self.shard_rows[shard] = left
        else:
            del self.shard_rows[shard]
        lane = self.lanes.get(shard.lane)
        if lane is not None:
            lane.count(rows, -1)

    def is_eager(self) -> bool:
        """Whether a lane is another's that is new here: what it has waits for us alone."""
        now_ms = self._clock.now_ms()
        return any(lane.retry_ms and now_ms < lane.eager_until_ms for lane in self.lanes.values())

    def is_ending(self, lane: Lane) -> bool:
        """Whether a lane has a row whose handler is through, and which is about to be settled."""
        return any(one.ended and one.row.shard.lane == lane.number for one in self.known.values())

    # Rows -----------------------------------------------------------------------------------------

    def accept(
        self, rows: Sequence[Row], reach_ms: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Lease the shards of rows that are new, and make them ready.

        Args:
            rows: The rows, by shard.
            reach_ms: Lane -> due up to which it has been read with these rows; else its cursor.

        Returns:
            Lane -> due of its first row that was refused: its shard is another's, or may be by now.
        """
        if not rows:
            return {}
        try:
            return self._accept(rows, reach_ms)
        except (StoreUnavailable, StoreTimeout):
            # What was found behind a cursor is looked for by no poll.
            self.read_again(rows)
            raise

    def accept_moved(self, rows: Iterable[Row]) -> None:
        """Take in rows that this process has just placed and that are due soon, without a read.

        But for those of groups: what comes before them is to be read first.
        """
        soon_ms = self._clock.now_ms() + READ_AHEAD_MS
        # Two copies of a message are moved to one and the same row.
        mine = {
            row.id: row
            for row in rows
            if row.group is None
            and row.due_ms <= soon_ms
            and (lane := self.lanes.get(row.shard.lane)) is not None
            and not (lane.quiet or lane.retry_ms)
        }
        self.accept(sorted(mine.values()))

    def _accept(self, rows: Sequence[Row], reach_ms: Mapping[int, int] | None) -> dict[int, int]:
        self._left.clear()
        fresh = [row for row in rows if row.id not in self.known]
        arriving = [row for row in rows if row.group is not None and self.arrives(row)]
        if fresh and self._register.settings.purged_before_us:
            fresh = self._without_purged(fresh)
        if not (fresh or arriving):
            return {}
        # All I/O comes first: a row that is known but not ready would never be delivered.
        held = {shard for shard in shards_of(fresh) if self._leases.get(shard) is not None}
        refused = self._lease(fresh)
        fresh = self._without_settled(fresh, held)
        if self._ledger.is_on:
            fresh = self._without_ended(fresh)
        grouped = groups_of([*fresh, *arriving])
        if refused:
            self.put_behind(refused)
        if grouped or refused:
            self._hold_groups()
        if grouped:
            before = self._learn_blocks(grouped)
            fresh = self._without_freed(self._without_waiting(fresh), arriving, before)
            # Were one of a group put off now, what of it is in hand from before would pass it.
            self._put_off_waiting(grouped)
        taken: list[Delivery] = []
        for shard, rows_of_shard in groupby(fresh, key=_shard_of):
            lease, lane = self._leases.get(shard), self.lanes.get(shard.lane)
            if lease is not None and lane is not None:
                self._take_in(list(rows_of_shard), lease, lane, taken)
        # What is another's has not been read, whatever came of it.
        to_ms = _earliest(refused, self._left)
        read_ms = {n: min(ms, to_ms.get(n, ms + 1) - 1) for n, ms in (reach_ms or {}).items()}
        if self._left:
            self.set_reach()
        self._ready.add(self._let_in(taken, read_ms) if grouped else taken)
        if grouped:
            # Only now: what is let go must find the rows that come before it.
            self.close_groups()
        # Leases may have run out meanwhile: a cursor that went on would pass what was left.
        return _earliest(refused, self._left)

    def _take_in(
        self, rows: Sequence[Row], lease: Lease, lane: Lane, taken: list[Delivery]
    ) -> None:
        """Count rows of a shard as in hand; their deliveries go into `taken`."""
        known, band, minute = self.known, lane.band, lease.shard.minute
        self.shard_rows[lease.shard] += len(rows)
        lane.count(rows, 1)
        lane.used[minute] = lane.used.get(minute, 0) + len(rows)
        lane.stirred = lane.stirred or lane.quiet
        for row in rows:
            one = Delivery(row, band if row.group is None else row.priority, lease)
            if row.due_ms <= lease.taken_ms:
                one.careful = lease.needs_care(is_grouped=row.group is not None)
            known[row.id] = one
            self.body_bytes += len(row.body)
            taken.append(one)

    def _let_in(self, taken: list[Delivery], reach_ms: Mapping[int, int]) -> list[Delivery]:
        """Put off those that wait behind their group's head; gives the others.

        In the order of their groups: what is put off to one due comes back in the order of that.
        """
        now_ms = self._clock.now_ms()
        added = [one for one in taken if one.row.group is None]
        for one in sorted((one for one in taken if one.row.group is not None), key=place_of):
            row, lane = one.row, self.lanes[one.row.shard.lane]
            read_ms = max(reach_ms.get(lane.number, 0), lane.read_ms)
            until_ms = lane.blocked_until(row, read_ms)
            head_ms = lane.waits_for(row)
            # Its lane may be another's when it ends: then nothing else here knows of those.
            one.blocked_ms = head_ms or 0
            # What is put off comes back when that is stored, be its time over by then: along with
            # this one, which would else be handed out first. That is right of their head alone.
            off_ms = self._put_off_until((lane.number, row.group or ""))
            off_ms = off_ms if head_ms is None and row.due_ms <= max(off_ms, now_ms) else 0
            # To now: who reads the lane next does not look behind the seal, and would run the next
            # of its group beside it. Not with care, nor where now comes after all still to be read.
            lags = now_ms - lane.cursor_ms > self._layout.minute_ms
            is_sealed = row.shard.minute <= lane.sealed and not (lags or one.careful)
            # Of a lane that another reads too, that one may have what waited until then.
            if off_ms or until_ms > now_ms or (until_ms and lane.retry_ms) or is_sealed:
                self._on_put_off(one, max(until_ms, off_ms, now_ms))
            else:
                lane.hold(one, until_ms)
                added.append(one)
        return added

    def _lease(self, rows: Sequence[Row]) -> dict[int, int]:
        unheld = {shard for shard in shards_of(rows) if self._leases.get(shard) is None}
        if unheld:
            self._leases.take(self._free([row for row in rows if row.shard in unheld]))
        refused: dict[int, int] = {}
        for shard, rows_of_shard in groupby(rows, key=_shard_of):
            lane = self.lanes[shard.lane]
            if shard not in unheld and shard.minute not in lane.refused:
                continue
            of_shard = list(rows_of_shard)
            first_ms = min(row.due_ms for row in of_shard)
            if self._leases.get(shard) is None:
                now_ms = self._clock.now_ms()
                after_ms = _EAGER_RETRY_MS if now_ms < lane.eager_until_ms else _RETRY_MS
                lane.refuse(shard.minute, of_shard, now_ms + after_ms)
                # Not from the shard's start: each try would go through what that one has settled.
                refused[shard.lane] = min(first_ms, refused.get(shard.lane, first_ms))
            elif (due_ms := lane.refused.pop(shard.minute, first_ms)) < first_ms:
                self._go_back_to(lane, due_ms)
        return refused

    def _free(self, rows: Sequence[Row]) -> set[Shard]:
        """Shards worth an LWT: what was refused before is looked at with a plain read first."""
        shards = {row.shard: row.position for row in rows}
        doubtful = [at for shard, at in shards.items() if self.lanes[shard.lane].retry_ms]
        locks = self._store.locks(doubtful) if doubtful else {}
        free = {
            shard
            for shard in shards
            if shard not in locks or self._leases.is_free(locks[shard].lock)
        }
        for shard in free:
            self.lanes[shard.lane].retry_ms = 0
        return free

    def _without_settled(self, rows: list[Row], held: set[Shard]) -> list[Row]:
        """Look again at rows of shards leased just now: their last holder may have settled some."""
        asked = {
            row.id: row.position
            for row in rows
            if row.shard not in held and self._leases.get(row.shard) is not None
        }
        if not asked:
            return rows
        there = {row.id: row for row in self._store.find(asked.values())}
        return [there.get(row.id, row) for row in rows if row.id not in asked or row.id in there]

    def _without_purged(self, rows: list[Row]) -> list[Row]:
        before_us = self._register.settings.purged_before_us
        kept = [row for row in rows if row.entered_us >= before_us]
        if len(kept) < len(rows):
            self._on_purged([row for row in rows if row.entered_us < before_us])
        return kept

    def _without_ended(self, rows: list[Row]) -> list[Row]:
        """Look up in the ledger what may be left over: its end was recorded, its delete was not.

        Whoever recorded the end crashed, or a replica missed the delete and its hint. What has just
        been put can hardly have ended, and is most of what is read in a queue without timers.
        """
        fresh_us = self._clock.now_us() - _FRESH_US
        asked: list[Row] = []
        for shard, of_shard in groupby(rows, key=_shard_of):
            lease, lane = self._leases.get(shard), self.lanes.get(shard.lane)
            if lease is None or lane is None:
                continue
            if lease.unclean:
                asked += of_shard
                continue
            asked += [
                row
                for row in of_shard
                if row.first is not None
                or row.entered_us < fresh_us
                or row.due_ms <= lane.cursor_ms
            ]
        ended = self._ledger.finished(asked) if asked else set()
        if not ended:
            return rows
        left_over = [row for row in asked if row.id in ended]
        log.warning(
            "queue %s: %d rows dropped, whose messages had ended: %s the first",
            self._layout.queue,
            len(left_over),
            left_over[0].message_id,
        )
        self._on_ended(left_over)
        return [row for row in rows if row.id not in ended]

    def arrives(self, row: Row) -> bool:
        """Whether a row of a group was read ahead, and has come due with what is read now."""
        one, lane = self.known.get(row.id), self.lanes.get(row.shard.lane)
        if one is None or one.begun_us or lane is None:
            return False
        return lane.read_ms < row.due_ms <= self._clock.now_ms()

    def _without_waiting(self, rows: list[Row]) -> list[Row]:
        """Leave out what was read ahead and whose group's head waits: it is read again when due.

        Until then the head's holder may put it off further, for a parked head's claim is moved on.
        """
        now_ms = self._clock.now_ms()
        return [row for row in rows if not (row.due_ms > now_ms and self._waits(row, now_ms))]

    def _learn_blocks(self, groups: set[GroupKey]) -> dict[GroupKey, Block]:
        now_ms, queue = self._clock.now_ms(), self._layout.queue
        return learn_blocks(self._store, queue, self.lanes, groups, now_ms)

    def _without_freed(
        self, rows: list[Row], arriving: list[Row], before: Mapping[GroupKey, Block]
    ) -> list[Row]:
        """Leave what may have been read before all that its block speaks of; in hand, it waits."""
        freed = self._freed(groups_of([*rows, *arriving]), before)
        for row in [*rows, *arriving] if freed else ():
            if (row.shard.lane, row.group) in freed:
                self._go_back_to(self.lanes[row.shard.lane], row.due_ms)
        self._hold_freed(freed)
        return [row for row in rows if (row.shard.lane, row.group) not in freed]

    def _freed(self, groups: set[GroupKey], before: Mapping[GroupKey, Block]) -> set[GroupKey]:
        mine, now_ms = self.lanes, self._clock.now_ms()
        return {key for key in groups if mine[key[0]].was_freed(key[1], before.get(key), now_ms)}

    def _hold_freed(self, freed: set[GroupKey]) -> None:
        """Read again from where groups were pulled to by now; in hand, they wait for that."""
        mine, now_ms = self.lanes, self._clock.now_ms()
        pulled_ms = {key: ms for key in freed if (ms := mine[key[0]].block_of(key[1])[0]) <= now_ms}
        for (number, _), due_ms in pulled_ms.items():
            self._go_back_to(mine[number], due_ms)
        for one in self.known.values() if pulled_ms else ():
            if one.group in pulled_ms and not one.begun_us:
                lane = mine[one.row.shard.lane]
                lane.hold(one, lane.blocked_until(one.row, lane.read_ms))

    def _waits(self, row: Row, now_ms: int) -> bool:
        """Whether the head of a row's group, which is another, waits."""
        lane = self.lanes.get(row.shard.lane)
        if lane is None or row.group is None:
            return False
        until_ms, message_id = lane.block_of(row.group)
        return until_ms > now_ms and message_id != row.message_id

    def close_groups(self) -> None:
        """Hold back grouped rows where another member may still have an older shard of the lane."""
        now_ms = self._clock.now_ms()
        closed = [lane for lane in self.lanes.values() if lane.groups_to is not None]
        if closed and now_ms - self._groups_asked_ms >= _CLOSED_MS:
            self._groups_asked_ms = now_ms
            bounds = self._groups_to(closed, now_ms)
            self._let_wait(
                {one.number for one in closed if bounds.get(one.number) != one.groups_to}
            )
            for lane in closed:
                lane.groups_to = bounds.get(lane.number)
            self.shared = {number for number, bound in bounds.items() if bound < 0}
        self._hold_groups()

    def _let_wait(self, opened: set[int]) -> None:
        """Before lanes open: who held their older shards may have parked a group's head since."""
        waiting = {
            key
            for one in self.known.values()
            if (key := one.group) is not None and key[0] in opened and not one.begun_us
        }
        before = self._learn_blocks(waiting)
        self._put_off_waiting(waiting)
        freed = self._freed(waiting, before)
        if freed:
            self._hold_freed(freed)
            self.set_reach()

    def _put_off_waiting(self, groups: set[GroupKey]) -> None:
        """Put off what is in hand of groups whose heads wait by now, and are not due here too."""
        now_ms, mine = self._clock.now_ms(), self.lanes
        groups = {
            key for key in groups if key[0] in mine and mine[key[0]].block_of(key[1])[0] > now_ms
        }
        if not groups:
            return
        in_hand = [one for one in self.known.values() if one.group in groups]
        here = {
            one.group
            for one in in_hand
            if one.row.due_ms <= now_ms and mine[one.row.shard.lane].waits_for(one.row) is not None
        }
        late = {
            one
            for one in in_hand
            if one.group not in here and not one.begun_us and self._waits(one.row, now_ms)
        }
        for one in self._ready.remove(late.__contains__):
            lane = mine[one.row.shard.lane]
            until_ms = lane.blocked_until(one.row, lane.read_ms)
            if until_ms:
                self._on_put_off(one, max(until_ms, now_ms))
            else:
                # Due later than now, and so read again.
                self.forget(one)

    def _hold_groups(self) -> None:
        held = {n: one.groups_to for n, one in self.lanes.items() if one.groups_to is not None}
        self.has_held_groups = bool(held)
        self._ready.open_groups(held)

    def _groups_to(self, lanes: Sequence[Lane], now_ms: int) -> dict[int, int]:
        """Lane -> the minute up to which its groups may go on, where not all of them may.

        Beside a shard of another member none may. One with rows that is nobody's has not been read
        here yet, and only newer ones wait for it. The cursor goes back for what was stored behind.
        """
        bounds: dict[int, int] = {}
        for row, is_free in find_older(self._store, self._leases, self._layout, lanes, now_ms):
            _, minute, number = row.shard
            # What is after the cursor is read in its turn: going back would lead here once more.
            if is_free and row.due_ms <= self.lanes[number].cursor_ms:
                self._missed[number] = min(row.due_ms, self._missed.get(number, row.due_ms))
            bound = minute if is_free else -1
            bounds[number] = min(bound, bounds.get(number, bound))
        return bounds

    def read_again(self, rows: Iterable[Row]) -> None:
        """Move cursors back to rows of groups behind them: they come before what is read next.

        And to ticks of schedules, which are due when they should be, however late they are written.
        """
        has_ticks = names.is_schedules_queue(self._layout.queue)
        behind = [
            row
            for row in rows
            if (has_ticks or row.group is not None)
            and row.id not in self.known
            and row.shard.queue == self._layout.queue
            and (lane := self.lanes.get(row.shard.lane)) is not None
            and row.due_ms <= lane.cursor_ms
        ]
        for row in behind:
            self.lanes[row.shard.lane].rewind(row.due_ms)
        if behind:
            self.set_reach()

    def set_reach(self) -> None:
        """Let grouped rows go up to where their lanes have been read."""
        self._ready.set_reach({lane.number: lane.reach_ms for lane in self.lanes.values()})

    def go_back(self) -> None:
        """Move cursors back to rows behind them that a group's newer rows have to wait for."""
        missed = {number: ms for number, ms in self._missed.items() if number in self.lanes}
        self._missed.clear()
        if not missed:
            return
        # They may have taken all the room that the older ones are to be read in. All of them go,
        # for what waited behind a head is due later than what comes after it.
        self.give_up(lambda one: one.row.group is not None and one.row.shard.lane in missed)
        for number, due_ms in missed.items():
            self.lanes[number].rewind(due_ms)
        self.set_reach()


def _earliest(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {lane: min(ms[lane] for ms in (one, other) if lane in ms) for lane in {*one, *other}}
