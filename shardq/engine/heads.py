"""Heads of groups that wait, and what waits behind them.

```
 head put off, parked ──► block ──► what is due before it is back: put off to when it is
   half done, as the store failed ► made up for by the next flush
 head of a crowded lane ► block ──► the last of its group: put off, by delays that double
 head settled, purged ──► unblock ─► what was put off is pulled forward, and the block says to when
 head settled elsewhere ► its block is another's: what is in hand of its group is read again
```

What always holds: a row of a group is handed out only when its lane has been read up to where all
that comes before it may be, and its block after that. That is its own due, the whole of it where
rows were put off to there, and what the block says, if later. So whoever moves a row of a group to
a later due says so in the block first, or before any other can go by it, and a block is never taken
back: once its head is over it says now, for a while, and what is in hand of the group waits too.
Rows of groups take up no room of `prefetch`, so that a lane can always be read that far; only where
it is crowded with thousands of them, this is given up.

Where a row waits, `groups.py` decides; what is to be moved there goes through the outbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq.model.message import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from shardq.clock import Clock
    from shardq.engine.delivery import Delivery
    from shardq.engine.intake import Intake
    from shardq.engine.lane import Lane
    from shardq.engine.lease import Leases
    from shardq.engine.ready import Ready
    from shardq.lifecycle.groups import Groups
    from shardq.lifecycle.settle import Settler
    from shardq.model.message import GroupKey, Row
    from shardq.model.shard import Position

_RELIEF_MS_MIN = 1_000
_RELIEF_MS_MAX = 3_600_000
_FREE_AGAIN_US = (50_000, 250_000, 1_000_000)
"""So long after rows were put off, who was settling their head by then has said that it is over.

At once, mostly, and the sooner they are pulled, the less that was put since has gone before them.
"""
_TIDY_US = 1_000_000
_RAISED_MAX = 100_000
"""Of more groups those blocked first are forgotten: what was to be put behind them is there."""


class _Unblock(NamedTuple):
    """A group that is to go on, if its block still names this head, and this time where one is."""

    lane: int
    group: str
    message_id: str
    until_ms: int | None = None


class _Freed(NamedTuple):
    """Rows that were put off, and how often it was looked since whether they have to wait."""

    since_us: int
    rows: list[Row]
    looks: int = 0

    def is_due(self, now_us: int) -> bool:
        return now_us - self.since_us >= _FREE_AGAIN_US[self.looks]


class Heads:
    """Lets groups wait for their heads, and go on, for one consumer.

    Args:
        defer: Puts a delivery off until a due, epoch milliseconds.
    """

    def __init__(
        self,
        clock: Clock,
        settler: Settler,
        groups: Groups,
        leases: Leases,
        ready: Ready,
        *,
        defer: Callable[[Delivery, int], None],
    ) -> None:
        self._clock = clock
        self._settler = settler
        self._groups = groups
        self._leases = leases
        self._ready = ready
        self._defer = defer
        self._unblocks: list[_Unblock] = []
        self._put_off: list[Row] = []
        self._freed: list[_Freed] = []
        self._raised_ms: dict[GroupKey, int] = {}
        self._half_blocked: dict[GroupKey, str] = {}
        self._tidied_us = 0
        self._relieved: dict[GroupKey, _Unblock] = {}
        self._doubted: set[int] = set()
        self.intake: Intake

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be stored."""
        return not (self._unblocks or self._put_off or self._doubted or self._half_blocked)

    def block_behind(self, one: Delivery, until_ms: int) -> None:
        """Before a group's head moves: say so, and take along what is due behind it."""
        row, key = one.row, one.group
        if row.group is None:
            return
        until_ms = self._block(row.shard.lane, row.group, until_ms, row.message_id)
        one.blocked_ms = until_ms
        # What waits is this head, which nothing but its own end pulls forward.
        self._relieved.pop((row.shard.lane, row.group), None)
        lane = self.intake.lanes.get(row.shard.lane)
        if lane is not None:
            lane.learn(row.group, (until_ms, row.message_id), self._clock.now_ms())
        # What is due later stays: moved to an earlier due, it would be handed out early. What has
        # come due goes along, were that due over by now: else it would pass the rest on its way.
        due_ms = max(until_ms, self._clock.now_ms())
        for behind in self._ready.remove(
            lambda other: other.group == key and other.row.due_ms <= due_ms and other is not one
        ):
            self._defer(behind, until_ms)

    def relieve(self, share: int) -> None:
        """Where rows that wait for their group's turn take up a lane, move the last of them on.

        They go as far ahead as they have waited, to an hour, so that their delays double; they are
        pulled forward when those that stay are settled.

        Args:
            share: The most rows of one group that may wait here.
        """
        for lane in [lane for lane in self.intake.lanes.values() if lane.crowded]:
            for head, rows in self._ready.surplus(lane.number, share):
                staying = {head, *rows[:share]}
                # What is still to be read may come before those that were to stay.
                if all(max(one.row.due_ms, one.after_ms) <= lane.read_ms for one in staying):
                    self._relieve(lane, head, staying, rows[share].row.order[0])

    def _relieve(
        self, lane: Lane, head: Delivery, staying: Collection[Delivery], since_ms: int
    ) -> None:
        """Move on a group's rows but for those that stay, of which the first waits since then."""
        now_ms = self._clock.now_ms()
        until_ms = now_ms + min(max(now_ms - since_ms, _RELIEF_MS_MIN), _RELIEF_MS_MAX)
        key, group = head.group, head.row.group or ""
        waits_ms, _ = self._groups.blocks.block_of(lane.number, group)
        if waits_ms > self._clock.now_ms():
            # They join those put off before: all come back at once, pulled by the same end.
            until_ms = waits_ms
        else:
            # Were another named as head, the first would wait behind it where it is read again.
            until_ms = self._block(lane.number, group, until_ms, head.row.message_id)
            relief = _Unblock(lane.number, group, head.row.message_id, until_ms)
            self._relieved[lane.number, group] = relief
        # Only now: a row that is known and not ready would never be delivered. What was read ahead
        # goes along: handed out in its time, it would pass those.
        for one in self._ready.remove(
            lambda other: (
                other.group == key and other.row.due_ms <= until_ms and other not in staying
            )
        ):
            self._defer(one, until_ms)

    def put_behind(self, lanes: Collection[int]) -> None:
        """Put off what waits for a lane to be read on, where one of these will not be so soon.

        A shard there is another's by now: then it goes to now. Or the lane has no room.
        """
        mine = self.intake.lanes
        self._leave_ahead({n: mine[n] for n in lanes if n in mine and mine[n].crowded})
        waits = {number for number, lane in mine.items() if lane.after_ms > lane.cursor_ms}
        if not any(number in waits or number not in mine for number in lanes):
            # Through all that is ready, whose lock handlers wait for, only where there is any.
            return
        held = self._ready.remove(
            lambda one: (
                (number := one.row.shard.lane) in lanes
                and one.after_ms > one.row.due_ms
                and (number not in mine or one.after_ms > mine[number].cursor_ms)
            )
        )
        for number in waits.intersection(lanes):
            mine[number].after_ms = mine[number].cursor_ms
        now_ms = self._clock.now_ms()
        for one in held:
            self._defer(one, max(one.after_ms, now_ms))

    def _leave_ahead(self, lanes: Mapping[int, Lane]) -> None:
        """Make room, in lanes crowded with groups, for what comes before rows of them read ahead.

        They have come due, and their lanes were not read so far; they are read again in their turn.
        """
        now_ms = self._clock.now_ms()
        ahead = {n: lane for n, lane in lanes.items() if lane.farthest_ms > lane.reach_ms}
        if not ahead:
            # Through all that is ready, which may be thousands, only where there is any.
            return
        farthest_ms = {number: lane.reach_ms for number, lane in ahead.items()}

        def is_due_beyond(one: Delivery) -> bool:
            number, due_ms = one.row.shard.lane, one.row.due_ms
            if one.row.group is None or number not in ahead or due_ms <= ahead[number].reach_ms:
                return False
            if due_ms > now_ms:
                farthest_ms[number] = max(farthest_ms[number], due_ms)
            return due_ms <= now_ms

        left = self._ready.remove(is_due_beyond)
        for number, due_ms in farthest_ms.items():
            ahead[number].farthest_ms = due_ms
        for one in left:
            self.intake.leave(one)

    def _block(self, lane: int, group: str, until_ms: int, message_id: str) -> int:
        """Say that a group waits; gives until when.

        What was put off while its head was being settled goes on first: once this says that the
        group waits for longer, it would be taken to wait for this, whose end does not find it.
        """
        self._free(row for row in self._lately_put_off() if group_of(row) == (lane, group))
        # Before it is said: what that fails to take along is, as what is still on its way to where
        # they waited before, looked for once it is there.
        self._raised_ms.pop((lane, group), None)
        self._raised_ms[lane, group] = until_ms
        self._half_blocked[lane, group] = message_id
        self._raised_ms[lane, group] = self._groups.block(lane, group, until_ms, message_id)
        del self._half_blocked[lane, group]
        return self._raised_ms[lane, group]

    def cover(self, until_ms: Mapping[GroupKey, int]) -> None:
        """Before rows are put off: say to when, where no block does.

        Where another reads their lane too, they are put to now, and what is due before that and
        was not read yet comes after them. In a lane without room they may change places: were all
        to wait for it to be read up to the last, that would go on for ever.

        Args:
            until_ms: Lane and group -> due, epoch milliseconds.
        """
        lanes = self.intake.lanes
        self._groups.blocks.cover(
            {
                key: due_ms
                for key, due_ms in until_ms.items()
                if (lane := lanes.get(key[0])) is None or not lane.crowded
            }
        )

    def put_off(self, rows: Iterable[Row]) -> None:
        """Rows were moved behind a head; who has settled it meanwhile has not seen them there."""
        self._put_off += rows

    def doubt(self, lanes: Iterable[int]) -> None:
        """A purge may have reached heads of these lanes, which nobody is going to settle."""
        self._doubted.update(lanes)

    def note_block(self, one: Delivery) -> None:
        """Before a delivery's end is sent: keep in mind what its group's block says of it by then.

        The answer may be lost, and the row be gone at the repeat, by this try or by another's.
        """
        if one.row.group is None or one.said_ms is not None:
            return
        head = self._block_of(one)
        one.said_ms = one.blocked_ms if one.claimed or head is None else head

    def withdrawn(self, gone: Mapping[Position, Delivery]) -> set[bytes]:
        """Heads that were to be put off and are nowhere: cancelled while they ran.

        Args:
            gone: Of deliveries whose rows were gone, to where they were to be put.

        Returns:
            Their row ids; nothing is to wait for them.
        """
        heads = {at: one for at, one in gone.items() if one.begun_us and one.row.group is not None}
        # A try whose answer was lost may have put them off.
        there = self._settler.still_there(heads) if heads else set()
        withdrawn = [one for at, one in heads.items() if at not in there]
        for one in withdrawn:
            # Where its group's block says otherwise by now, that is another's.
            one.said_ms = one.said_ms or one.blocked_ms
        return {one.row.id for one in withdrawn}

    def _block_of(self, one: Delivery) -> int | None:
        """Until when a delivery's group waits for it, as last read here; None where not for it."""
        lane = self.intake.lanes.get(one.row.shard.lane)
        return None if lane is None else lane.waits_for(one.row)

    def go_on(self, one: Delivery, *, is_blocked: bool, is_lost: bool = False) -> None:
        """A delivery of a group is over: the next goes on.

        Args:
            one: The delivery.
            is_blocked: Whether it was put off, and what is behind it waits.
            is_lost: Whether its row was gone: settled elsewhere, or by a try whose answer was lost.
        """
        row, key = one.row, one.group
        at = row.shard.lane, row.group or ""
        if is_lost:
            # Who has put it off elsewhere has said until when its group waits: that stands.
            is_over = one.said_ms is not None
        else:
            is_over = one.claimed or one.blocked_ms > 0 or self._block_of(one) is not None
        if is_over and not is_blocked:
            # Of a block whose answer was lost nobody knows whether it says what it was to say.
            said_ms = {one.said_ms, self._raised_ms.get(at, one.said_ms)} if is_lost else {None}
            self._unblocks += [_Unblock(*at, row.message_id, ms) for ms in said_ms]
        if one.begun_us:
            self._ready.done(key)
        if key in self._relieved and self._ready.is_idle(key):
            self._unblocks.append(self._relieved.pop(key))

    def flush(self, *, everything: bool = False) -> None:
        """Pull forward what need not wait any longer.

        Args:
            everything: Also what is to be looked at again a little later.
        """
        for key in [key for key in self._relieved if key[0] not in self.intake.lanes]:
            # What stayed when its group was moved on is another's now, who knows of no relief.
            self._unblocks.append(self._relieved.pop(key))
        while self._doubted:
            number = min(self._doubted)
            lane = self.intake.lanes.get(number)
            known = lane.blocked if lane is not None else ()
            self.intake.read_again(self._groups.unblock_purged(number, known))
            self._doubted.discard(number)
        for (number, group), message_id in list(self._half_blocked.items()):
            # Whoever ends the head pulls what waits where the block says, and knows of no other.
            self.intake.read_again(self._groups.make_up(number, group, message_id))
            del self._half_blocked[number, group]
        while self._unblocks:
            one = self._unblocks[0]
            pulled = self._groups.unblock(*one)
            if pulled.until_ms and one.lane in self.intake.lanes:
                # Read anew, the group would seem to have been freed by another.
                block = pulled.until_ms, one.message_id
                self.intake.lanes[one.lane].learn(one.group, block, self._clock.now_ms())
            # A move that is repeated goes to where it was to go first, which polls have passed.
            self.intake.read_again(pulled.rows)
            del self._unblocks[0]
        self._free_put_off(everything=everything)
        self._forget_raised()

    def _free_put_off(self, *, everything: bool) -> None:
        """Move along what was put off behind a head that was just being settled, or put elsewhere.

        Who did that had looked for what waits before it was there, and maybe said only after it was
        that the head is over: so the block is looked at when it is there, and a few times more.
        """
        now_us = self._clock.boot_us()
        rows, left = list(self._put_off), []
        for freed in self._freed:
            is_due = everything or freed.is_due(now_us)
            if is_due:
                rows += freed.rows
            left.append(freed._replace(looks=freed.looks + is_due))
        if not rows:
            return
        # All in one look, which is a read for each lane.
        self._free(rows)
        if self._put_off:
            left.append(_Freed(now_us, self._put_off))
        self._freed = [] if everything else [f for f in left if f.looks < len(_FREE_AGAIN_US)]
        self._put_off = []

    def _forget_raised(self) -> None:
        """Forget blocks of ours whose time is over, and of too many those said longest ago.

        Nothing is put off behind a group which need not wait any more.
        """
        now_us = self._clock.boot_us()
        if now_us - self._tidied_us < _TIDY_US:
            return
        self._tidied_us = now_us
        now_ms = self._clock.now_ms()
        lasting = [(key, ms) for key, ms in self._raised_ms.items() if ms > now_ms]
        self._raised_ms = dict(lasting[-_RAISED_MAX:])

    def _lately_put_off(self) -> Iterator[Row]:
        yield from self._put_off
        for freed in self._freed:
            yield from freed.rows

    def _free(self, rows: Iterable[Row]) -> None:
        nobodys: list[Row] = []
        near: dict[GroupKey, int] = {}
        for row in rows:
            if self._leases.holds(row.shard):
                if row.id not in self.intake.known:
                    nobodys.append(row)
            elif not self._groups.blocks.is_near(row.due_ms):
                nobodys.append(row)
            elif (key := group_of(row)) is not None:
                # A reader may have it in hand: it stays, and whoever is further back has to wait.
                near[key] = max(row.due_ms, near.get(key, 0))
        if nobodys:
            self.intake.read_again(self._groups.free(nobodys, self._raised_ms))
        self._groups.blocks.cover(near)
