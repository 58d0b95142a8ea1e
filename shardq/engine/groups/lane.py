"""One group lane in memory: its groups, their heads, and its rows left in the store. No I/O.

```
 read in order ─► kept ──────► rows of a group, by place ─► head ─► handed out, or waits
             └─► no room ────► left in the store: reread after the last row in memory
 head ended ─► the next row is the head; a group with few rows in memory is hungry
```

The place of a row, (due, row id), never changes. All rows of a group up to its `after` are in
memory or settled, so its head is the group's first row. A group of several places has as many
heads, which have no order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TYPE_CHECKING, TypeAlias

from shardq.engine.handing.delivery import HeadLine
from shardq.model.ids import order_key
from shardq.model.limits import ORDERED, PLACES_MAX, SlowBucket, bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.leases.lease import Lease
    from shardq.model.limits import Bucket, GroupLimits
    from shardq.model.message import Row

Place: TypeAlias = tuple[int, bytes]
"""Due and order of the row id: a row's place in its lane."""
_GROUP_PART = 2
"""One group takes at most 1 / `_GROUP_PART` of the free room, so that other groups find some."""
LAST = b"\xff" * 16
"""Sorts after every row id in a place. No row has this id: Cassandra would refuse it."""
GROUP_ROWS_MIN = 250
"""A group is hungry if it has fewer rows in memory than this, and more in the store."""
_COUNTED_ROWS = 2 * PLACES_MAX
"""No claim of a group is behind more of its rows than this: its first rows took its places, and
rows that have ended since may not be deleted yet."""
_BUCKETS_LOOKED_AT = 200
"""The most groups of a lane whose tokens a step looks at: there may be a million."""


def place_of(row: Row) -> Place:
    """Return a row's place in its lane."""
    return row.due_ms, order_key(row.id)


def _place_in(one: Delivery) -> Place:
    return place_of(one.row)


@dataclass(slots=True, eq=False)
class Group:
    """The rows of one group that are in memory.

    Attributes:
        places: How many heads it may have; 0 while it is paused.
        is_ordered: True if its rows are delivered in order, one at a time.
        line: The line of its heads in `ready`; None: it has one place, and no rate or tier.
        heads: The first rows, each in `ready`, at a handler, being stored, or waiting for its time
            -> the number of its wait, after which it is reread; 0: it does not wait. A claim that
            was read while it runs is a head too, if need be beyond `places`.
        left: The number of the wait of a head that waits in the store; 0: there is none.
        rows: The rows behind the heads, in order.
        coming: How many rows `keep` accepted that `add` has not added yet.
        last: The place of the last row that was kept.
        after: Rows after this place were left in the store; None if no row was left.
        is_counted: True once all claims of the group have been read. Until then no head is chosen
            but claims.
        read: While it is not counted: how many of its rows were read.
        ended_ms: When a delivery of the group last ended, epoch milliseconds; 0: none has.
        claims: A heap of the claims that were added behind the heads: (place, `id`, claim). They
            were handed out along with a head. Some may have been taken out since.
        holds: Head that holds the whole group back -> until when, epoch milliseconds.
    """

    places: int = 1
    is_ordered: bool = True
    line: HeadLine | None = None
    heads: dict[Delivery, int] = field(default_factory=dict)
    left: int = 0
    rows: deque[Delivery] = field(default_factory=deque)
    coming: int = 0
    last: Place = (-1, b"")
    after: Place | None = None
    is_counted: bool = True
    read: int = 0
    ended_ms: int = 0
    claims: list[tuple[Place, int, Delivery]] = field(default_factory=list)
    holds: dict[Delivery, int] = field(default_factory=dict)
    _end: Place = (-1, b"")
    """Every row behind the heads is at this place or earlier."""

    @property
    def is_hungry(self) -> bool:
        """True if few rows are in memory, more in the store, and a head may be handed out."""
        return self.after is not None and not self.waits and len(self.rows) < GROUP_ROWS_MIN

    @property
    def waits(self) -> bool:
        """True if all its places are taken by heads that wait for their time."""
        heads = self.heads
        return bool(self.left or (len(heads) >= self.places and all(heads.values())))

    @property
    def has_place(self) -> bool:
        """True if it may have one more head."""
        return self.is_counted and len(self.heads) < self.places

    def has_room(self, room: int) -> bool:
        """True if one more row may be kept: a group's first row always, others if memory has room.

        While its heads wait, none may.
        """
        if (self.left or len(self.heads) >= self.places) and self.waits:
            return False
        count = len(self.rows) + self.coming
        return not (self.heads or count) or count < room // _GROUP_PART

    def keep(self, place: Place, room: int) -> bool:
        """Decide whether a row that was read is kept in memory; True if it is.

        Args:
            place: The row's place.
            room: How many more rows behind heads fit into memory.
        """
        self.read += 1
        if self.after is not None and place > self.after:
            return False
        if place > self.last:
            if not self.has_room(room):
                # No row of a paused group was kept: its first row is left in the store.
                if self.last[0] < 0:
                    self.last = place[0] - 1, LAST
                self.after = self.last
                return False
            self.last = place
        self.coming += 1
        return True

    def add(self, place: Place, one: Delivery, now_ms: int) -> bool:
        """Add a row that `keep` accepted, at its place.

        Returns:
            True if it is a claim that runs and takes a place: it is a head now, and has to wait.
        """
        if self.coming:
            self.coming -= 1
        row = one.row
        if row.claim is not None and row.ready_ms > now_ms and not row.is_along:
            self.heads[one], self.left = 0, 0
            return True
        self._put(place, one)
        self.note_claim(one)
        return False

    def _put(self, place: Place, one: Delivery) -> None:
        if place > self._end or not self.rows:
            self.rows.append(one)
            self._end = place
        else:
            self.rows.insert(self._find(place), one)

    def _find(self, place: Place) -> int:
        """How many rows behind the heads are before a place."""
        return bisect_left(self.rows, place, key=_place_in)

    def note_claim(self, one: Delivery) -> None:
        """Record a row behind the heads if it is a claim."""
        if one.row.claim is not None:
            # A claim that was released and reread is another delivery at the same place.
            heapq.heappush(self.claims, (place_of(one.row), id(one), one))

    def next(self, now_ms: int) -> Delivery | None:
        """Make the first row in memory a head; None if no place is free, or there is no row.

        A row that was stored in front of a claimed one waits until that claim ends.
        """
        if not (self.rows and self.has_place):
            return None
        claimed = self._take_claimed(now_ms) if self.claims else None
        head = self.rows.popleft() if claimed is None else claimed
        self.heads[head], self.left = 0, 0
        return head

    def _take_claimed(self, now_ms: int) -> Delivery | None:
        """Take out the first claim that still runs, if the first row was never handed out."""
        first = self.rows[0].row
        # A row handed out before may be retried while its caller still has rows of the same call.
        if self.is_ordered and (first.attempt or first.not_before_ms):
            return None
        while self.claims:
            place, _, one = heapq.heappop(self.claims)
            index = self._find(place)
            is_behind = index < len(self.rows) and self.rows[index] is one
            if is_behind and one.row.claim is not None and one.row.ready_ms > now_ms:
                del self.rows[index]
                return one
        return None

    @property
    def held_back(self) -> tuple[str, int]:
        """What limit holds its rows in memory back, and how many; an empty text: none does."""
        if self.line is not None and self.line.held:
            return "rate", len(self.rows) + len(self.line.heads)
        return "" if self.has_place else "place", len(self.rows)

    def held_ms(self, now_ms: int) -> int:
        """How long heads hold the group back from now on; 0: no head does."""
        self.holds = {
            head: until_ms
            for head, until_ms in self.holds.items()
            if until_ms > now_ms and head in self.heads
        }
        return max(self.holds.values(), default=now_ms) - now_ms

    def behind(self, count: int, is_wanted: Callable[[Row], bool]) -> list[Delivery]:
        """Return the first rows behind the head, up to an unwanted row; they are not taken out."""
        wanted = takewhile(lambda one: is_wanted(one.row), islice(self.rows, count))
        return list(wanted) if self.is_ordered else []

    def passed(self, now_ms: int) -> Delivery | None:
        """The head, if a row in memory comes before it; None in a group without order.

        A claim that still runs is passed by none.
        """
        if not (self.is_ordered and self.rows):
            return None
        first = place_of(self.rows[0].row)
        for one in self.heads:
            if first < place_of(one.row):
                return None if one.row.claim is not None and one.row.ready_ms > now_ms else one
        return None

    def take_back(self, head: Delivery) -> None:
        """Put a head, which no handler has, back among the other rows, in order."""
        del self.heads[head]
        self._put(place_of(head.row), head)

    def leave(self) -> list[Delivery]:
        """Release the rows after the heads and after the last claim to the store; returns them."""
        if not self.heads:
            return []
        claimed = [place_of(one.row) for one in self.rows if one.row.claim is not None]
        heads = [place_of(head.row) for head in self.heads]
        if self.after is not None:
            heads = [place for place in heads if place <= self.after]
        last = max((*heads, *claimed), default=None)
        if last is None:
            return []
        kept = bisect_right(self.rows, last, key=_place_in)
        left = list(islice(self.rows, kept, None))
        if left:
            self.rows = deque(islice(self.rows, kept))
            self.after = self.last = self._end = last
        return left

    def leave_all(self, number: int) -> list[Delivery]:
        """Release all rows, of which the heads wait, to the store; returns them.

        Args:
            number: The number of the wait that goes on for the group.
        """
        left = [*self.rows, *self.heads]
        if self.heads:
            self.after = self.last = min(one.row.due_ms for one in left) - 1, LAST
            self.heads, self.rows, self.left = {}, deque(), number
        return left

    def remove(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return the rows behind the head that `unwanted` accepts."""
        removed = [one for one in self.rows if unwanted(one)]
        if removed:
            self.rows = deque(one for one in self.rows if not unwanted(one))
        return removed


@dataclass(slots=True, eq=False)
class GroupLane:
    """One group lane in memory.

    Attributes:
        number: The number of the lane.
        lease: The lease under which its rows were read.
        limits: The limits of its groups.
        groups: Name -> group that has rows in memory or in the store.
        listed: Minute in the lane's list -> due of the minute's first row.
        touched: Minutes whose entry in the list may be outdated: `WaitingList.tidy` checks them.
        is_dense: True if most rows of the last reread were kept: the next reread reads bodies too.
        looked_ms: When the dues in the list were last renewed, epoch milliseconds.
        cared: Group -> ids of its rows that are handed out with care; at most one a place.
        buckets: Group with a rate -> its tokens.
        slow: The buckets of groups with slow rates that have rows in memory or in the store, and
            whose next token may be there.
        later: A heap of the other such groups: (when the next token is there, time since boot;
            name). Some may have been forgotten since.
        empty_us: When the tokens of all groups were none, time since boot.
        uncounted_ms: Claims of rows due up to this may not have been read yet, epoch milliseconds;
            None: all have been.
        claimed_ms: Claims of groups in order that a former owner left may be due up to this, epoch
            milliseconds, and may not have been read yet; None: all have been.
        skipped_ms: The due of the first row skipped since memory is full: until all claims have
            been read, only claims are kept. None: no row was skipped.
    """

    number: int
    lease: Lease
    limits: GroupLimits
    empty_us: int
    groups: dict[str, Group] = field(default_factory=dict)
    listed: dict[int, int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    is_dense: bool = True
    looked_ms: int = 0
    cared: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    buckets: dict[str, Bucket] = field(default_factory=dict)
    slow: dict[str, SlowBucket] = field(default_factory=dict)
    later: list[tuple[float, str]] = field(default_factory=list)
    uncounted_ms: int | None = None
    claimed_ms: int | None = None
    skipped_ms: int | None = None

    @property
    def is_at_work(self) -> bool:
        """True if a head is in `ready`, at a handler, or being stored."""
        return any(not all(group.heads.values()) for group in self.groups.values())

    @property
    def has_due_head(self) -> bool:
        """True if a head is due and no handler has it."""
        return any(
            not (waits or head.begun_us)
            for group in self.groups.values()
            for head, waits in group.heads.items()
        )

    @property
    def has_left(self) -> bool:
        """True if rows of any group were left in the store."""
        return any(group.after is not None for group in self.groups.values())

    def is_left(self, row: Row) -> bool:
        """True if a row comes after the first row that its group left in the store."""
        group = self.groups.get(row.group or "")
        return group is not None and group.after is not None and place_of(row) > group.after

    def keep(self, row: Row, place: Place, room: int, now_ms: int) -> bool:
        """Decide whether a row is kept in memory; a group's first row is, and claims that run."""
        is_claim = row.claim is not None and row.ready_ms > now_ms and not row.is_along
        if self.skipped_ms is not None and not is_claim:
            self.skipped_ms = min(self.skipped_ms, row.due_ms)
            return False
        group = self.group(row.group or "")
        if self.skipped_ms is None and group.keep(place, room):
            return True
        group.coming += is_claim
        return is_claim

    def group(self, name: str) -> Group:
        """Return a group, made if it has no rows yet."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group()
            self._limit(name, group)
        return group

    def limit(self, limits: GroupLimits, now_us: int) -> None:
        """Let other limits hold from now on.

        A changed rate begins without tokens; beside one over a shorter time it begins with all.
        """
        self.limits, self.slow, self.later = limits, {}, []
        for name, bucket in list(self.buckets.items()):
            if bucket.rates != (rates := limits.of(name).rates):
                self.buckets[name] = changed = bucket_of(rates, now_us)
                if isinstance(changed, SlowBucket):
                    changed.inherit(bucket, now_us)
        for name, group in self.groups.items():
            self._limit(name, group)

    def _limit(self, name: str, group: Group) -> None:
        limit = self.limits.of(name)
        group.is_ordered = limit.places == 1
        group.is_counted = self._is_counted(group)
        if self.limits.pause_of(name) is not None:
            group.places, group.line = 0, None
            return
        if limit == ORDERED:
            group.places, group.line = 1, None
            return
        bucket = None
        if limit.rates:
            bucket = self.buckets.get(name)
            if bucket is None:
                bucket = self.buckets[name] = bucket_of(limit.rates, self.empty_us)
            if isinstance(bucket, SlowBucket):
                self.slow[name] = bucket
        group.places, group.line = limit.places, HeadLine(limit.tier, bucket)

    def _is_counted(self, group: Group) -> bool:
        """True if a group may begin: all its claims were read.

        A claim of a group in order is behind its other rows only if these were stored late.
        """
        until_ms = self.claimed_ms if group.is_ordered else self.uncounted_ms
        return until_ms is None or group.read >= _COUNTED_ROWS

    def uncount(self, until_ms: int | None) -> None:
        """Let no group with several places begin until the lane has been read up to a due.

        Args:
            until_ms: The due; None: all claims have been read.
        """
        self.uncounted_ms = until_ms
        for group in self.groups.values():
            group.read = 0
            group.is_counted = self._is_counted(group)

    def count(self, read_ms: int) -> list[str]:
        """Let groups begin whose claims have all been read; returns their names.

        Args:
            read_ms: The due up to which the lane was read.
        """
        if self.uncounted_ms is not None and read_ms >= self.uncounted_ms:
            self.uncounted_ms = None
        if self.claimed_ms is not None and read_ms >= self.claimed_ms:
            self.claimed_ms = None
        counted = [
            name
            for name, group in self.groups.items()
            if not group.is_counted and self._is_counted(group)
        ]
        for name in counted:
            self.groups[name].is_counted = True
        return counted

    def forget_full(self, now_us: int) -> None:
        """Forget the tokens of groups that have no rows and that took none lately.

        Each call looks at the groups that the former calls have looked at the longest ago.
        """
        for name in list(islice(self.buckets, _BUCKETS_LOOKED_AT)):
            bucket = self.buckets.pop(name)
            if name in self.groups or not bucket.is_full(now_us):
                self.buckets[name] = bucket

    def with_tokens(self, now_us: int) -> dict[str, SlowBucket]:
        """Return the buckets of groups with slow rates whose next token may be there, by name."""
        later, slow = self.later, self.slow
        while later and later[0][0] <= now_us:
            _, name = heapq.heappop(later)
            bucket = self.buckets.get(name)
            if name in self.groups and isinstance(bucket, SlowBucket):
                slow[name] = bucket
        for name, bucket in list(slow.items()):
            if bucket.is_read and (next_us := bucket.next_us()) > now_us:
                del slow[name]
                heapq.heappush(later, (next_us, name))
        return slow

    def needs_care(self, row: Row) -> bool:
        """True if the former owner may have died of this head.

        At most as many rows of a group need care as it has places. A row that needed care
        needs it again each time that it becomes the head.
        """
        lease, name = self.lease, row.group or ""
        if not lease.window or row.due_ms > lease.taken_ms:
            return False
        cared = self.cared[name]
        if row.id not in cared and len(cared) >= self.group(name).places:
            return False
        cared.add(row.id)
        return True

    def give_back_care(self, row: Row) -> None:
        """Called when a head was not handed out after all: the next one needs care as well."""
        if (cared := self.cared.get(row.group or "")) is not None:
            cared.discard(row.id)

    def take_back(self, group: Group, head: Delivery) -> None:
        """Put a head, which no handler has, back among the other rows of its group, in order."""
        self.give_back_care(head.row)
        group.take_back(head)

    def hungry(self, room: int) -> dict[str, Group]:
        """Return the hungry groups that may keep one more row, by name.

        Args:
            room: How many more rows behind heads fit into memory.
        """
        return {
            name: group
            for name, group in self.groups.items()
            if group.is_hungry and group.has_room(room)
        }

    def left_ms(self) -> int | None:
        """A due not after that of the first row not yet begun; None if there is no such row."""
        dues_ms = [] if self.skipped_ms is None else [self.skipped_ms]
        for group in self.groups.values():
            if group.after is not None:
                dues_ms.append(group.after[0])
            dues_ms += [head.row.due_ms for head in group.heads if not head.begun_us]
            if group.rows:
                dues_ms.append(group.rows[0].row.due_ms)
        return min(dues_ms, default=None)

    def wake(self, dues_ms: Collection[int] | None = None) -> bool:
        """Make groups hungry whose heads wait in the store; returns True if any was made hungry.

        Args:
            dues_ms: Only groups with heads at these dues; None for all groups.
        """
        is_any = False
        for group in self.groups.values():
            if group.after is None or not group.left:
                continue
            if dues_ms is None or group.after[0] + 1 in dues_ms:
                group.left, is_any = 0, True
        return is_any

    def reread(
        self, rows: Iterable[Row], after: Place, until: Place | None, *, room: int
    ) -> list[Row]:
        """Choose which of the rows read after a place are kept in memory.

        A group that left earlier rows in the store keeps none: those must be reread first.

        Args:
            rows: The rows that were read, in order.
            after: The place after which all rows were read.
            until: The place up to which all rows were read; None: up to the lane's cursor.
            room: How many more rows fit into memory; a group without rows keeps one row in any
                case.
        """
        opened = {
            name
            for name, group in self.groups.items()
            if group.after is not None and group.after >= after
        }
        chosen: list[Row] = []
        for row in rows:
            name, place = row.group or "", place_of(row)
            if name not in opened:
                continue
            group = self.groups[name]
            if group.after is not None and place <= group.after:
                continue
            if not group.has_room(room):
                group.after = group.last
                opened.discard(name)
                continue
            group.coming += 1
            group.last = group.after = place
            room -= 1
            chosen.append(row)
        for name in opened:
            group = self.groups[name]
            if until is None:
                group.after = None
            elif group.after is not None and group.after < until:
                group.after = group.last = max(until, group.last)
        return chosen

    def leave_chosen(self, chosen: Iterable[Row], after: Place) -> None:
        """Let the groups of chosen rows be reread once more, because the rows could not be read."""
        for row in chosen:
            group = self.groups[row.group or ""]
            group.after = group.last = max([after, *(place_of(one.row) for one in group.rows)])
            group.coming = 0

    def skip(self, row: Row) -> None:
        """Take back the choice of a row that is gone from the store."""
        self.groups[row.group or ""].coming -= 1

    def forget(self, name: str) -> None:
        """Forget a group that has no rows in memory, and none left in the store."""
        group = self.groups.get(name)
        if group is None or group.heads or group.rows or group.coming or group.left:
            return
        if group.after is None:
            del self.groups[name]
            self.slow.pop(name, None)
            self.cared.pop(name, None)

    def rows(self) -> list[Delivery]:
        """All rows in memory behind heads."""
        return [one for group in self.groups.values() for one in group.rows]
