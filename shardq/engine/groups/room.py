"""Runs the group lanes of one member: hands heads to `ready`, and keeps groups in order.

```
 page ─► kept? ─► group ─► head ──┬─ due ──────────► ready ─► handler ─► ended ─► the next is head
    │                             └─ not before ───► waits ─► reread when its time has come
    ├─ note ─► the row that it names is reread                   retry, snooze, park, claim: edited
    └─ left ─► reread when the group is hungry                   in place, then the head waits
 minute ended ─► listed, so that the seal passes it ─► erased when it has no rows left
```

Differences from the design:
- `receive` rereads a head before it claims it: the message may have been cancelled by receipt.
- A note is due 20 ms from now: a poll may have passed now by the time the note is stored.
- No note is written if the owner is a receiver of this process.
- A message edited by key keeps its due, even if that is past.
- A heartbeat names the new owner of a lane; then the lease is released, and not passed on.

A lane has one owner, the holder of its lease. Rows are ordered by place, (due, row id), and lanes
are read in this order, so the first row of a group that a read finds is its head. `ready` treats a
head like any other row. Any thread may call `ended` and `look_at`; only the thread that steps the
engine calls the rest.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.groups.edits import Edits
from shardq.engine.groups.heads import WaitingHeads
from shardq.engine.groups.lane import GROUP_ROWS_MIN, GroupLane, place_of
from shardq.engine.groups.left import Left
from shardq.engine.groups.slow import SlowRates
from shardq.engine.groups.waiting import WaitingList
from shardq.engine.members.part import Part
from shardq.engine.reading.pages import BYTES_MAX, TURN_US
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.ids import order_key
from shardq.model.limits import limits_of
from shardq.stores.store import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from shardq.engine.groups.lane import Group, Place
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.leases.lease import Lease
    from shardq.engine.members.member import Member
    from shardq.engine.reading.lane import Lane
    from shardq.model.message import Row
    from shardq.model.shard import Position

ROWS_MAX = 20_000
HEADS_MAX = 20_000
"""The most rows behind heads, and the most heads, in memory, over all group lanes."""
_AGAIN_MS = 100
"""Pause before a head that could not be handed out is tried again."""
_TIDY_MS = 1_000


class GroupLanes(Part):
    """The group lanes of one member."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self._list = WaitingList(member)
        self._left = Left(member)
        self._slow = SlowRates(member)
        self.edits = Edits(member)
        self._lock = locks.new()
        self._lanes: dict[int, GroupLane] = {}
        self._begun: dict[Delivery, None] = {}
        """Heads at handlers whose lanes were released meanwhile."""
        self._heads = WaitingHeads(self._clock)
        self._is_hungry = False
        self._notes: dict[Position, Row] = {}
        self._looks: dict[Position, bool] = {}
        """Place of a row to reread -> True if the row is known to be gone."""
        self._tidied_ms = 0
        self._wished: set[int] = set()
        self.uncounted: set[int] = set()
        """The lanes whose claims may not all have been read since this member took them over."""
        self._ahead_ms: set[int] = set()
        """Dues of rows that were read before they were due, and are reread then; 2,000 at most."""
        self._polled_to_ms = 0
        self._limits = limits_of(self._register.settings.group_limits)

    @property
    def is_idle(self) -> bool:
        """True if no row waits to be reread, and no edit or note waits to be stored."""
        return not (self._notes or self._looks) and self.edits.is_empty

    @property
    def is_owner(self) -> bool:
        """True if this member owns a group lane."""
        return bool(self._lanes)

    @property
    def has_room(self) -> bool:
        """True if more heads may be read."""
        return self._free() > 0

    @property
    def is_at_work(self) -> bool:
        """True if a head is in `ready`, at a handler, or being stored."""
        with self._lock:
            return any(mine.is_at_work for mine in self._lanes.values())

    def with_due_heads(self) -> list[int]:
        """The numbers of the lanes with a head that is due and that no handler has."""
        with self._lock:
            return [number for number, mine in self._lanes.items() if mine.has_due_head]

    def pass_on(self, lane: int) -> None:
        """Ask for a lane to be given to another member, which is to get one of its rows."""
        self._wished.add(lane)

    def take_wished(self) -> set[int]:
        """Return the lanes that `pass_on` asked for, each once."""
        wished, self._wished = self._wished, set()
        return wished

    def next_ms(self) -> int:
        """When the next waiting head, or row read ahead, comes due, epoch milliseconds."""
        with self._lock:
            first_ms = self._heads.next_ms()
        return min(first_ms, self._slow.next_ms, min(self._ahead_ms, default=NEVER))

    def begin_poll(self, until_ms: int) -> None:
        """Forget which rows were read ahead up to `until_ms`; a poll will now read these rows."""
        self._polled_to_ms = until_ms
        self._ahead_ms = {due_ms for due_ms in self._ahead_ms if due_ms > until_ms}

    def is_listed(self, lane: int, minute: int) -> bool:
        """True if this member owns a lane, and a minute is in the lane's list."""
        mine = self._lanes.get(lane)
        return mine is not None and minute in mine.listed

    def is_needed(self, lane: int) -> bool:
        """True if a lane's lease is to be kept even while no row of it is in memory."""
        mine = self._lanes.get(lane)
        return mine is not None and bool(mine.listed or mine.groups or lane in self.uncounted)

    # Lanes ----------------------------------------------------------------------------------------

    def look_for_listed(self, lanes: Sequence[Lane]) -> None:
        """Let group lanes that are new to this member be read from their first listed row on."""
        if wanted := {lane.number: lane for lane in lanes if lane.of_groups}:
            found = self._store.waiting(self._register.layout.queue, sorted(wanted))
            for number, listed in found.items():
                if listed:
                    wanted[number].reread_listed(listed, self._register.layout)

    def holds(self, lane: int) -> bool:
        """True if this member has the lease of a lane."""
        mine = self._lanes.get(lane)
        return mine is not None and self._leases.is_valid(mine.lease)

    def owns(self, lane: int, lease: Lease) -> bool:
        """True if this member owns a lane under this very lease."""
        mine = self._lanes.get(lane)
        return mine is not None and mine.lease is lease

    def take_over(self, leases: Mapping[int, Lease]) -> dict[int, int]:
        """Begin to own lanes; their lists of minutes are read.

        Returns:
            Lane -> the due from which it must be reread. Lanes with listed minutes are in it, and
            lanes that this member owned before and that have rows not yet begun.
        """
        found = self._store.waiting(self._register.layout.queue, sorted(leases)) if leases else {}
        former = {n: mine for n in leases if (mine := self._lanes.get(n)) is not None}
        with self._lock:
            left_ms = {n: mine.left_ms() for n, mine in former.items()}
        if former:
            # This step lost the former lease, and the rows read under it are still in memory.
            for one in self.give_up(lambda one: one.row.shard.lane in former):
                self._memory.leave(one)
        self.drop(leases)
        first_ms: dict[int, int] = {}
        with self._lock:
            for number, lease in leases.items():
                mine = self._lanes[number] = GroupLane(
                    number, lease, self._limits, self._clock.boot_us()
                )
                mine.listed = dict(found.get(number, {}))
                if (read := self._memory.lanes.get(number)) is not None:
                    read.seen_ms = self._clock.now_ms()
                until_ms = self._begun_until_ms()
                mine.claimed_ms = self._claimed_ms(mine.listed, until_ms)
                # An owner that releases a lane lists where its claims are, if it leaves any.
                is_listed = not (lease.is_after_lapse or number in former)
                mine.uncount(mine.claimed_ms if is_listed else until_ms)
                self.uncounted.add(number)
                mine.touched = set(mine.listed)
                for one in [one for one in self._begun if one.row.shard.lane == number]:
                    name = one.row.group or ""
                    mine.keep(one.row, place_of(one.row), ROWS_MAX, 0)
                    mine.groups[name].heads[one] = 0
                    mine.groups[name].coming = 0
                    del self._begun[one]
                if mine.listed and read is not None:
                    read.reread_listed(mine.listed, self._register.layout)
                    first_ms[number] = min(mine.listed.values())
                if read is not None and (due_ms := left_ms.get(number)) is not None:
                    read.rewind(due_ms)
                    first_ms[number] = min(due_ms, first_ms.get(number, due_ms))
        return first_ms

    def _begun_until_ms(self) -> int:
        """The due up to which a former owner may have handed out rows."""
        until_ms = self._clock.now_ms()
        if self._isolated:
            layout = self._register.layout
            until_ms = layout.end_ms(layout.newest_sealable(until_ms)) - 1
        return until_ms

    def _count(self, now_ms: int) -> None:
        """Let groups begin whose claims have all been read."""
        heads: list[Delivery] = []
        with self._lock:
            for number in list(self.uncounted):
                mine, lane = self._lanes.get(number), self._memory.lanes.get(number)
                if mine is None or lane is None:
                    self.uncounted.discard(number)
                    continue
                # If the clock was set back, the lane is not read so far for long.
                is_read = lane.read_ms >= now_ms
                heads += self._offer(mine, mine.count(NEVER if is_read else lane.read_ms))
                if mine.uncounted_ms is None:
                    self.uncounted.discard(number)
                    self._go_back_to_skipped(mine, lane)
        self._ready.add(heads)

    def _go_back_to_skipped(self, mine: GroupLane, lane: Lane) -> None:
        """Reread the rows that were skipped while only claims were kept."""
        if mine.skipped_ms is None:
            return
        self._memory.go_back_to(lane, mine.skipped_ms)
        mine.skipped_ms = None
        if mine.listed:
            lane.reread_listed(mine.listed, self._register.layout)

    def reread_lost(self, leases: Collection[Lease]) -> None:
        """Reread lanes whose leases were lost, though all their rows may be left in the store."""
        for number, mine in self._lanes.items():
            lane = self._memory.lanes.get(number)
            if lane is not None and mine.lease in leases:
                with self._lock:
                    due_ms = mine.left_ms()
                if due_ms is not None:
                    self._memory.go_back_to(lane, due_ms)

    def drop(self, lanes: Iterable[int]) -> None:
        """Stop owning lanes whose rows that have not begun were released by the caller."""
        with self._lock:
            for number in lanes:
                self.uncounted.discard(number)
                mine = self._lanes.pop(number, None)
                lost = sorted(at for at in self._looks if at.shard.lane == number)
                self.edits.tell_of(lost)
                for at in lost:
                    del self._looks[at]
                # The next owner reads the notes of these lanes.
                self._notes = {at: n for at, n in self._notes.items() if at.shard.lane != number}
                if mine is not None and mine.uncounted_ms is not None:
                    self._note_claim(number, mine.uncounted_ms)
                for group in () if mine is None else mine.groups.values():
                    self.note_claims(one.row for one in (*group.heads, *group.rows))
                    group.left = 0
                    group.heads = dict.fromkeys(group.heads, 0)
                    self._begun.update((one, None) for one in group.heads if one.begun_us)

    def _claimed_ms(self, listed: Mapping[int, int], until_ms: int) -> int | None:
        """The due, at most `until_ms`, up to which a former owner left claims; None: none."""
        layout = self._register.layout
        claimed = [minute for minute, due_ms in listed.items() if due_ms < layout.start_ms(minute)]
        if not claimed:
            return None
        return min(layout.end_ms(max(claimed)) - 1, until_ms)

    def note_claims(self, rows: Iterable[Row]) -> None:
        """Let the next owner of a lane read up to these rows before it begins, if they are claims.

        A claim takes a place of its group. A row stored late may precede it and would be read
        first.
        """
        now_ms = self._clock.now_ms()
        for row in rows:
            if row.claim is not None and row.ready_ms > now_ms:
                self._note_claim(row.shard.lane, row.due_ms)

    def _note_claim(self, lane: int, due_ms: int) -> None:
        layout = self._register.layout
        lease = self._leases.get(layout.lane_lease(lane))
        if lease is not None:
            minute = layout.minute_of(due_ms)
            # No row of the minute is due before it begins: such a due marks the minute.
            lease.claimed[minute] = layout.start_ms(minute) - 1

    # Rows -----------------------------------------------------------------------------------------

    def place(self, lane: Lane, rows: Iterable[Row]) -> list[Delivery]:
        """Add rows of a shard, in order, to their groups; rows without room stay in the store.

        Returns:
            The new heads, for the caller to add to `ready`.
        """
        now_ms = self._clock.now_ms()
        # A row may have come due since it was read ahead, but rows before it may have been stored
        # since: the poll that reads up to its due places it.
        until_ms = min(now_ms, self._polled_to_ms)
        kept: list[Row] = []
        places: list[Place] = []
        with self._lock:
            mine, lane.seen_ms = self._lanes[lane.number], now_ms
            room, keep = self._room(), mine.keep
            free = self._free()
            for row in rows:
                due_ms = row.due_ms
                if due_ms > until_ms:
                    # The row is reread when due: a row that is put until then may precede it.
                    self._ahead_ms.add(due_ms)
                    continue
                if row.is_note:
                    self._notes[row.position] = row
                    continue
                minute = row.shard.minute
                if minute <= lane.sealed and due_ms < mine.listed.get(minute, NEVER):
                    mine.touched.add(minute)
                place = due_ms, order_key(row.id)
                if len(kept) >= free and mine.skipped_ms is None and mine.uncounted_ms is not None:
                    mine.skipped_ms = due_ms
                if keep(row, place, room - len(kept), now_ms):
                    kept.append(row)
                    places.append(place)
            return self._take_in(mine, kept, places)

    def without_left(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Drop rows behind rows that their groups left in the store: these are reread first.

        Rows of sealed minutes stay: a minute may have to be listed.
        """
        lanes = self._memory.lanes
        with self._lock:
            if not any(mine.has_left for mine in self._lanes.values()):
                return rows
            return [
                row
                for row in rows
                if row.is_note
                or (mine := self._lanes.get(row.shard.lane)) is None
                or row.shard.minute <= lanes[row.shard.lane].sealed
                or not mine.is_left(row)
            ]

    def _take_in(
        self, mine: GroupLane, rows: Sequence[Row], places: Iterable[Place]
    ) -> list[Delivery]:
        taken, groups, now_ms = (
            self._memory.take_in(rows, mine.lease),
            mine.groups,
            self._clock.now_ms(),
        )
        for place, one in zip(places, taken, strict=True):
            group = groups[one.row.group or ""]
            if group.add(place, one, now_ms):
                self._wait(group, one, one.row.ready_ms)
        return self._offer(mine, dict.fromkeys(row.group or "" for row in rows))

    def _offer(self, mine: GroupLane, names: Iterable[str]) -> list[Delivery]:
        """Choose new heads of groups; returns heads that are due, and lets the other heads wait."""
        heads: list[Delivery] = []
        now_ms, window = self._clock.now_ms(), mine.lease.window
        for name in names:
            group = mine.groups.get(name)
            if group is None:
                continue
            if (passed := group.passed(now_ms)) is not None and self._take_out(group, passed):
                mine.take_back(group, passed)
            if group.holds:
                self._hold_back(group)
            while (one := group.next(now_ms)) is not None:
                if one.is_stale or one.row.ready_ms > now_ms:
                    self._wait(group, one, one.row.ready_ms)
                    continue
                if window or one.careful:
                    one.lead(careful=mine.needs_care(one.row))
                one.line_up(group.line, group.ended_ms)
                heads.append(one)
            mine.forget(name)
            if group.after is not None and group.is_hungry:
                self._is_hungry = True
        return heads

    def _wait(self, group: Group, head: Delivery, until_ms: int) -> None:
        """Let a head wait for its time; it holds its group back, unless it is a claim."""
        self._heads.wait(group, head, until_ms)
        self._note_hold(group, head)

    def _note_hold(self, group: Group, head: Delivery) -> None:
        holds = head.row.holds_group(self._clock.now_ms())
        if holds or group.holds:
            group.holds[head] = head.row.ready_ms if holds else 0
            self._hold_back(group)

    def _hold_back(self, group: Group) -> None:
        """Hand out no head of a group for as long as any of its heads holds it back."""
        held_ms = group.held_ms(self._clock.now_ms())
        if group.line is not None:
            self._ready.hold(group.line, held_ms)

    def hold(self, one: Delivery, delay_ms: int) -> None:
        """Hand out no more of a delivery's group for `delay_ms`, at once, before it is stored."""
        with self._lock:
            _, group = self._group_of(one.row)
            if group is not None:
                group.holds[one] = self._clock.now_ms() + delay_ms
                self._hold_back(group)

    def _take_out(self, group: Group, head: Delivery) -> bool:
        """Take a head out of `ready`; True if no handler has it."""
        if head.begun_us:
            return False
        return bool(group.heads[head] or self._ready.remove(lambda one: one is head))

    def ended(self, one: Delivery, *, is_last: bool = False) -> None:
        """Unblock the next row of a group, when a delivery ended and before its row is deleted.

        From any thread.

        Args:
            one: The delivery that ended.
            is_last: True if the calling thread takes another row from `ready` at once.
        """
        row = one.row
        with self._lock:
            mine = self._lanes.get(row.shard.lane)
            group = None if mine is None else mine.groups.get(row.group or "")
            if mine is None or group is None or one not in group.heads:
                self._begun.pop(one, None)
                return
            heads, rows = group.heads, group.rows
            del heads[one]
            group.ended_ms = self._clock.now_ms()
            if group.holds:
                self._hold_back(group)
            head = rows[0] if rows and not group.claims and group.has_place else None
            if head is not None and not (head.is_stale or head.row.not_before_ms):
                # Every message of a backlog takes this path, so it is short.
                rows.popleft()
                heads[head] = 0
                if mine.lease.window:
                    head.lead(careful=mine.needs_care(head.row))
                head.line_up(group.line, group.ended_ms)
                self._ready.offer(head, is_taken=is_last)
                is_awaited = False
            else:
                if rows:
                    self._ready.add(self._offer(mine, (row.group or "",)))
                else:
                    mine.forget(row.group or "")
                is_awaited = (not heads and group.after is not None) or group.waits
            if group.after is not None and len(rows) < GROUP_ROWS_MIN:
                is_awaited = is_awaited or len(rows) == GROUP_ROWS_MIN - 1
                self._is_hungry = True
        if is_awaited:
            self._news.wake()

    def all_stored(self, ones: Iterable[Delivery]) -> None:
        """Record that the rows of deliveries are gone, as `stored` does."""
        lanes, begun = self._lanes, self._begun
        for one in ones:
            if not one.grouped:
                continue
            row = one.row
            mine = lanes.get(row.shard.lane)
            group = None if mine is None else mine.groups.get(row.group or "")
            # Most deliveries that were acked have ended already.
            is_over = group is None or one not in group.heads
            if begun or one.careful or not is_over or (mine is not None and mine.listed):
                self.stored(one)

    def stored(self, one: Delivery) -> None:
        """Record that the row of a delivery is gone from its lane."""
        row = one.row
        mine = self._lanes.get(row.shard.lane)
        group = None
        if mine is not None:
            if row.shard.minute in mine.listed:
                mine.touched.add(row.shard.minute)
            if not one.thread_id:
                # It was not handed out: the next head is handed out with care.
                mine.give_back_care(row)
            group = mine.groups.get(row.group or "")
        if group is not None and one in group.heads:
            self.ended(one)
        elif group is None and self._begun:
            with self._lock:
                self._begun.pop(one, None)

    def _touch(self, row: Row | Position) -> None:
        """Note that a row is gone: its minute, if it is listed, may have no rows left."""
        mine = self._lanes.get(row.shard.lane)
        if mine is not None and row.shard.minute in mine.listed:
            mine.touched.add(row.shard.minute)

    def again(self, one: Delivery, row: Row, after_ms: int = 0) -> None:
        """Let a head whose row stays in the store wait for its time; then the row is reread.

        Args:
            one: The head's delivery, which has ended.
            row: The row as it is now.
            after_ms: The earliest time of the row's next delivery, epoch milliseconds.
        """
        self._memory.forget(one)
        with self._lock:
            mine, group = self._group_of(row)
            if mine is None or group is None or one not in group.heads:
                self._begun.pop(one, None)
                self.note_claims([row])
                return
            (head,) = self._memory.take_in([row], mine.lease)
            if one.is_edited and one.lease is mine.lease:
                head.note_edit()
            del group.heads[one]
            group.ended_ms = self._clock.now_ms()
            self._wait(group, head, max(row.ready_ms, after_ms))

    def release(self, one: Delivery) -> None:
        """Try a head again soon, because it could not be handed out."""
        self.again(one, one.row, self._clock.now_ms() + _AGAIN_MS)

    def give_up(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return the rows that have not begun and that `unwanted` accepts.

        The caller forgets the rows, and rereads their lanes from the first of them.
        """
        removed: list[Delivery] = []
        with self._lock:
            heads = {
                head
                for mine in self._lanes.values()
                for group in mine.groups.values()
                for head in group.heads
                if not head.begun_us and unwanted(head)
            }
            out = set(self._ready.remove(heads.__contains__)) if heads else set()
            touched: list[tuple[GroupLane, str]] = []
            for mine in self._lanes.values():
                claimed_ms: list[int] = []
                for name, group in mine.groups.items():
                    taken = group.remove(unwanted)
                    for head in heads.intersection(group.heads):
                        if group.heads[head] or head in out:
                            taken.append(head)
                            del group.heads[head]
                            mine.give_back_care(head.row)
                    if taken:
                        claimed_ms += [o.row.due_ms for o in taken if o.row.claim is not None]
                        self.note_claims(one.row for one in taken)
                        removed += taken
                        group.after = None
                        group.last = max(
                            (place_of(head.row) for head in group.heads), default=(-1, b"")
                        )
                        touched.append((mine, name))
                if claimed_ms:
                    mine.claimed_ms = max(mine.claimed_ms or 0, *claimed_ms)
                    mine.uncount(max(mine.uncounted_ms or 0, *claimed_ms))
                    self.uncounted.add(mine.number)
            offered = [one for mine, name in touched for one in self._offer(mine, (name,))]
        self._ready.add(offered)
        return removed

    @property
    def has_new_limits(self) -> bool:
        """True if the limits in the queue's settings are not those that hold here."""
        return self._register.settings.group_limits != self._limits.to_json()

    def held_back(self) -> dict[str, int]:
        """Count the rows in memory that limits of groups hold back: `Heartbeat.limited`."""
        counts: Counter[str] = Counter()
        with self._lock:
            for mine in self._lanes.values():
                for group in mine.groups.values():
                    reason, count = group.held_back
                    counts[reason] += count
        return {reason: count for reason, count in counts.items() if reason and count}

    def limit_anew(self) -> None:
        """Let the limits in the queue's settings hold from now on.

        Heads that no handler has are chosen anew from the rows in memory. Groups whose heads wait
        in the store are reread.
        """
        self._limits = limits_of(self._register.settings.group_limits)
        offered: list[Delivery] = []
        with self._lock:
            out = set(self._ready.remove(lambda one: one.grouped))
            for mine in self._lanes.values():
                mine.limit(self._limits, self._clock.boot_us())
                for group in mine.groups.values():
                    for head in out.intersection(group.heads):
                        mine.take_back(group, head)
                offered += self._offer(mine, list(mine.groups))
        self._ready.add(offered)
        self.wake()
        self._is_hungry = True

    def keeps_order(self, row: Row) -> bool:
        """True if the messages of a row's group are delivered in order."""
        _, group = self._group_of(row)
        if group is None:
            return self._limits.of(row.group or "").places == 1
        return group.is_ordered

    def _group_of(self, row: Row) -> tuple[GroupLane | None, Group | None]:
        mine = self._lanes.get(row.shard.lane)
        return mine, None if mine is None else mine.groups.get(row.group or "")

    def _rows(self) -> int:
        """How many rows are in memory, not counting heads that wait long."""
        return self._memory.group_rows - self._heads.far

    def _free(self) -> int:
        """How many more rows fit into memory, heads among them."""
        return HEADS_MAX + ROWS_MAX - self._rows()

    def _room(self) -> int:
        """How many more rows behind heads fit into memory."""
        return 0 if self._memory.body_bytes > BYTES_MAX else ROWS_MAX - self._rows()

    # Step -----------------------------------------------------------------------------------------

    def serve(self, accept: Callable[[Sequence[Row]], object]) -> None:
        """Hand out heads whose time has come; reread rows that notes name or that did not fit.

        Args:
            accept: Called with rows that notes name and that are not in memory; takes them in.
        """
        now_ms = self._clock.now_ms()
        if self.uncounted:
            self._count(now_ms)
        self._leave_far()
        while due := self._due(now_ms):
            self._reread_heads(due)
        self.look(accept)
        if self._is_hungry:
            self._is_hungry = False
            until_us = self._clock.boot_us() + TURN_US
            try:
                for mine in list(self._lanes.values()):
                    self._feed(mine, until_us)
            except (StoreUnavailable, StoreTimeout):
                self._is_hungry = True
                raise
        with self._lock:
            waiting = self._slow.waiting(self._lanes.values())
        self._slow.grant(waiting)
        if now_ms - self._tidied_ms >= _TIDY_MS:
            self._tidied_ms = now_ms
            with self._lock:
                self._heads.tidy()
            for mine in list(self._lanes.values()):
                if mine.number in self._memory.lanes and self._leases.is_valid(mine.lease):
                    self._list.tidy(mine)
                mine.forget_full(self._clock.boot_us())

    def _due(self, now_ms: int) -> list[tuple[GroupLane, Group, Delivery]]:
        due: list[tuple[GroupLane, Group, Delivery]] = []
        with self._lock:
            for group, head in self._heads.due(now_ms):
                if head is None:
                    group.left, self._is_hungry = 0, True
                else:
                    due.append((self._lanes[head.row.shard.lane], group, head))
        return due

    def _reread_heads(self, due: Sequence[tuple[GroupLane, Group, Delivery]]) -> None:
        """Reread heads whose time has come: other members may have settled or edited them."""
        try:
            there = {row.id: row for row in self._store.find([o.row.position for _, _, o in due])}
        except (StoreUnavailable, StoreTimeout):
            with self._lock:
                for _, group, one in due:
                    self._heads.wait(group, one, self._clock.now_ms() + _AGAIN_MS)
            raise
        for mine, group, one in due:
            # Another head, renewed just now, may have put it back behind itself.
            renew = self._renew if one in group.heads else self._renew_behind
            renew(mine, group, one, there.get(one.row.id))

    def _renew(self, mine: GroupLane, group: Group, one: Delivery, row: Row | None) -> None:
        """Hand out a waiting head, or let it wait on, by its reread row; None: the row is gone."""
        name = one.row.group or ""
        if row is not None and row.entered_us < self._register.settings.purged_before_us:
            self._discards.purge([row])
            row = None
        if row is None:
            self._memory.forget(one)
            self.stored(one)
            return
        self._memory.replace(one, row)
        now_ms = self._clock.now_ms()
        with self._lock:
            if row.ready_ms > now_ms or not self._leases.is_valid(mine.lease):
                # Another process may have settled it so that its group waits.
                self._wait(group, one, max(row.ready_ms, now_ms + _AGAIN_MS))
                return
            group.heads[one] = 0
            self._note_hold(group, one)
            # Its group may have fewer places by now, or be paused.
            is_back = group.passed(now_ms) is one or len(group.heads) > group.places
            one.lead(careful=not is_back and mine.needs_care(row))
            one.line_up(group.line, group.ended_ms)
            heads = [one]
            if is_back:
                mine.take_back(group, one)
                heads = self._offer(mine, (name,))
            self._is_hungry = self._is_hungry or group.is_hungry
        self._ready.add(heads)

    def wake(self, positions: Collection[Position] | None = None) -> None:
        """Let the next step reread groups whose heads wait in the store.

        Args:
            positions: Places of heads that were settled or edited; None to reread all such groups.
        """
        dues_ms = None if positions is None else {at.due_ms for at in positions}
        lanes = set(self._lanes) if positions is None else {at.shard.lane for at in positions}
        with self._lock:
            for number in lanes.intersection(self._lanes):
                self._is_hungry = self._lanes[number].wake(dues_ms) or self._is_hungry

    def _leave_far(self) -> None:
        """Free memory: bodies of heads that wait long, rows behind them, some of the heads."""
        left: list[Delivery] = []
        with self._lock:
            for group, head, number in self._heads.long(is_short=self._room() <= 0):
                if number:
                    rows = group.leave_all(number)
                    self.note_claims(one.row for one in rows)
                    left += rows
                    continue
                if group.waits:
                    left += group.leave()
                self._memory.replace(head, head.row._replace(body=b"", headers=None))
        self._memory.forget_all(left)

    def _feed(self, mine: GroupLane, until_us: int) -> None:
        """Reread rows for the hungry groups of a lane."""
        while self.has_room:
            if not (hungry := self._hungry(mine)):
                return
            after = min(group.after for group in hungry.values() if group.after is not None)
            rows, until = self._left.page_after(mine, after)
            with self._lock:
                known = self._memory.known
                new = [row for row in rows if row.id not in known and not row.is_note]
                chosen = mine.reread(new, after, until, room=self._room())
            try:
                there = (
                    chosen if mine.is_dense else self._store.find([row.position for row in chosen])
                )
            except (StoreUnavailable, StoreTimeout):
                with self._lock:
                    mine.leave_chosen(chosen, after)
                raise
            found = {row.id: row for row in there}
            mine.is_dense = 2 * len(chosen) > len(rows)
            before_us = self._register.settings.purged_before_us
            purged = [row for row in found.values() if row.entered_us < before_us]
            if purged:
                self._discards.purge(purged)
            kept = [
                found[row.id] for row in chosen if row.id in found and row.entered_us >= before_us
            ]
            with self._lock:
                ids = {row.id for row in kept}
                for row in chosen:
                    if row.id not in ids:
                        mine.skip(row)
                heads = self._take_in(mine, kept, map(place_of, kept))
                for name in hungry:
                    mine.forget(name)
            self._ready.add(heads)
            if self._clock.boot_us() > until_us or not self._leases.is_valid(mine.lease):
                break
        self._is_hungry = True

    def _hungry(self, mine: GroupLane) -> dict[str, Group]:
        with self._lock:
            return mine.hungry(self._room())

    # Edits ----------------------------------------------------------------------------------------

    def behind(
        self, head: Delivery, count: int, is_wanted: Callable[[Row], bool]
    ) -> list[Delivery]:
        """Return the first rows behind a head, up to an unwanted row; they remain in the group."""
        with self._lock:
            _, group = self._group_of(head.row)
            is_head = group is not None and head in group.heads
            return group.behind(count, is_wanted) if group is not None and is_head else []

    def flush(self) -> None:
        """Write notes for other owners, and undo claims that reached no caller."""
        for row in self.edits.flush():
            one = self._memory.known.get(row.id)
            if one is not None and not one.begun_us:
                self.follow(one, row)

    # Notes ----------------------------------------------------------------------------------------

    def look_at(self, position: Position, *, is_gone: bool) -> bool:
        """Let the next step reread a row that another part of this process has changed.

        From any thread. The engine is not woken.

        Args:
            position: Where the row is.
            is_gone: True if the row was deleted, and need not be read.

        Returns:
            True if this member owns the row's lane.
        """
        with self._lock:
            if not self.holds(position.shard.lane):
                return False
            self._looks[position] = is_gone or self._looks.get(position, False)
        return True

    def look(self, accept: Callable[[Sequence[Row]], object]) -> None:
        """Reread the rows that other members or parts have settled or edited; notes name them."""
        if self._notes or self._looks:
            self._look_at_noted(accept)

    def _look_at_noted(self, accept: Callable[[Sequence[Row]], object]) -> None:
        """Reread the rows that notes or `look_at` name, and delete the notes."""
        with self._lock:
            looks, self._looks = self._looks, {}
        unread = {at for at in looks if self._is_unread(at)}
        unread.update(note.noted for note in self._notes.values() if self._is_unread(note.noted))
        # A poll will read rows that are not in memory. If a cursor may skip such a row, reread the
        # row once the cursor has passed.
        lanes = self._memory.lanes
        later = {at for at in unread if not lanes[at.shard.lane].comes_to(at)}
        notes = [note for note in self._notes.values() if note.noted not in later]
        # Follow the order of the lanes: a row that is gone is then its group's head when its turn
        # comes.
        noted = sorted(
            {*looks, *(note.noted for note in notes)} - unread,
            key=lambda at: (at.shard, at.due_ms, order_key(at.id)),
        )
        try:
            asked = [at for at in noted if not looks.get(at)]
            there = {row.position: row for row in self._store.find(asked)} if asked else {}
        except (StoreUnavailable, StoreTimeout):
            with self._lock:
                self._looks |= looks
            raise
        self.wake([at for at in noted if at.id not in self._memory.known])
        fresh: list[Row] = []
        for at in noted:
            row, one = there.get(at), self._memory.known.get(at.id)
            if row is None:
                self._touch(at)
            if one is None:
                is_here = row is not None and at.shard.lane in self._lanes
                fresh += [row] if is_here and row is not None else []
            elif not one.begun_us:
                self.follow(one, row)
        if fresh:
            # These rows were stored late, mostly in minutes that are sealed: `accept` lets the
            # minutes be listed.
            accept(sorted(fresh, key=lambda row: (row.shard, *place_of(row))))
        with self._lock:
            self._looks |= {at: looks[at] for at in later if at in looks}
        if notes:
            self._settler.delete(note.position for note in notes)
        for note in notes:
            self._notes.pop(note.position, None)
            self._touch(note)

    def _is_unread(self, at: Position) -> bool:
        """True if a row is not in memory, and its lane's cursor is still before the row."""
        lane = self._memory.lanes.get(at.shard.lane)
        return lane is not None and at.id not in self._memory.known and lane.is_before(at)

    def follow(self, one: Delivery, row: Row | None) -> None:
        """Update a row in memory that has not begun to its newest form; None: the row is gone."""
        with self._lock:
            mine, group = self._group_of(one.row)
            if mine is None or group is None:
                return
            is_head = one in group.heads
            if is_head:
                if not self._take_out(group, one):
                    return
                self._heads.hold(group, one)
        renew = self._renew if is_head else self._renew_behind
        renew(mine, group, one, row)

    def _renew_behind(self, _mine: GroupLane, group: Group, one: Delivery, row: Row | None) -> None:
        """Update a row behind the heads; None: the row is gone."""
        if row is not None:
            self._memory.replace(one, row)
            with self._lock:
                group.note_claim(one)
            return
        with self._lock:
            group.remove(lambda other: other is one)
        self._memory.forget(one)

    # Lists of minutes with rows -------------------------------------------------------------------

    def pass_by(self, lane: int, minute: int) -> bool:
        """List a minute if it has rows, so the seal may pass it; False: the lane is not ours."""
        return self.holds(lane) and self._list.pass_by(self._lanes[lane], minute)
