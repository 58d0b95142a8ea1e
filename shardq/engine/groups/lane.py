"""One group lane in memory: its groups, their heads, and its rows left in the store. No I/O.

```
 read in order ─► kept ──────► rows of a group, by place ─► head ─► handed out, or waits
             └─► no room ────► left in the store: reread after the last row in memory
 head ended ─► the next row is the head; a group with few rows in memory is hungry
```

The place of a row, (due, row id), never changes. All rows of a group up to the place `after` are in
memory or settled, so the first of them is the group's head.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from shardq.model.ids import order_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.leases.lease import Lease
    from shardq.model.message import Row

Place: TypeAlias = tuple[int, bytes]
"""Due and order of the row id: a row's place in its lane."""
_GROUP_PART = 2
"""One group takes at most 1 / `_GROUP_PART` of the free room, so that other groups find some."""
LAST = b"\xff" * 16
"""Sorts after every row id in a place. No row has this id: Cassandra would refuse it."""
GROUP_ROWS_MIN = 250
"""A group is hungry if it has fewer rows in memory than this, and more in the store."""


def place_of(row: Row) -> Place:
    """Return a row's place in its lane."""
    return row.due_ms, order_key(row.id)


class Group:
    """The rows of one group that are in memory.

    Attributes:
        head: The first row: in `ready`, at a handler, being stored, or waiting for its time; None
            if the head waits in the store, or the group has no row.
        waits: The number of the head's wait for its time, after which the head is reread; 0 if the
            head does not wait.
        rows: A heap of the rows behind the head.
        coming: How many rows `keep` accepted that `add` has not added yet.
        last: The place of the last row that was kept.
        after: Rows after this place were left in the store; None if no row was left.
        claimed: Every claim behind the head is at this place or earlier.
    """

    __slots__ = ("after", "claimed", "coming", "head", "last", "rows", "waits")

    def __init__(self) -> None:
        self.head: Delivery | None = None
        self.waits = 0
        self.rows: list[tuple[Place, Delivery]] = []
        self.coming = 0
        self.last: Place = (-1, b"")
        self.after: Place | None = None
        self.claimed: Place = (-1, b"")

    @property
    def is_hungry(self) -> bool:
        """True if few rows are in memory, more in the store, and the head does not wait."""
        return self.after is not None and not self.waits and len(self.rows) < GROUP_ROWS_MIN

    def has_room(self, room: int) -> bool:
        """True if one more row may be kept: a group's first row always, others if memory has room.

        While the head waits, no row may be kept.
        """
        if self.waits:
            return False
        count = len(self.rows) + self.coming
        return (self.head is None and not count) or count < room // _GROUP_PART

    def keep(self, place: Place, room: int) -> bool:
        """Decide whether a row that was read is kept in memory; True if it is.

        Args:
            place: The row's place.
            room: How many more rows behind heads fit into memory.
        """
        if self.after is not None and place > self.after:
            return False
        if place > self.last:
            if not self.has_room(room):
                self.after = self.last
                return False
            self.last = place
        self.coming += 1
        return True

    def add(self, place: Place, one: Delivery) -> None:
        """Add a row that `keep` accepted, at its place."""
        self.coming = max(self.coming - 1, 0)
        heapq.heappush(self.rows, (place, one))
        self.note_claim(one.row)

    def note_claim(self, row: Row) -> None:
        """Update `claimed` by a row behind the head, if the row is a claim."""
        if row.claim is not None:
            self.claimed = max(self.claimed, place_of(row))

    def next(self, now_ms: int) -> Delivery | None:
        """Make the first row in memory the head, unless the group has a head; returns the head.

        A row that was stored in front of a claimed one waits until that claim ends.
        """
        if self.head is None and self.rows:
            is_plain = self.rows[0][0] > self.claimed
            first = None if is_plain else self._take_claimed(now_ms)
            self.head = first or heapq.heappop(self.rows)[1]
            self.waits = 0
        return self.head

    def _take_claimed(self, now_ms: int) -> Delivery | None:
        """Take out the first claim that still runs, if the first row was never handed out."""
        first = self.rows[0][1]
        # If the first row was handed out before, its retry may come while the caller still has rows
        # of the same call.
        if first.row.attempt or first.row.not_before_ms:
            return None
        claims = [
            entry
            for entry in self.rows
            if entry[1].row.claim is not None and entry[1].row.ready_ms > now_ms
        ]
        if not claims:
            return None
        claimed = min(claims)
        self.rows.remove(claimed)
        heapq.heapify(self.rows)
        return claimed[1]

    def behind(self, count: int, is_wanted: Callable[[Row], bool]) -> list[Delivery]:
        """Return the first rows behind the head, up to an unwanted row; they are not taken out."""
        rows = self.rows
        taken: list[tuple[Place, Delivery]] = []
        while rows and len(taken) < count and is_wanted(rows[0][1].row):
            taken.append(heapq.heappop(rows))
        for entry in taken:
            heapq.heappush(rows, entry)
        return [one for _, one in taken]

    def is_passed(self) -> bool:
        """True if a row in memory comes before the head."""
        head = self.head
        return head is not None and bool(self.rows) and self.rows[0][0] < place_of(head.row)

    def take_back(self) -> None:
        """Put the head back among the other rows, in order; no handler has it."""
        if self.head is not None:
            self.add(place_of(self.head.row), self.head)
            self.head, self.waits = None, 0

    def leave(self) -> list[Delivery]:
        """Release the rows after the head and after the last claim to the store; returns them."""
        if self.head is None:
            return []
        claimed = (place for place, one in self.rows if one.row.claim is not None)
        last = max(place_of(self.head.row), max(claimed, default=(-1, b"")))
        left = [one for place, one in self.rows if place > last]
        if left:
            self.rows = sorted(entry for entry in self.rows if entry[0] <= last)
            self.after = self.last = last
        return left

    def leave_all(self) -> list[Delivery]:
        """Release the head, which waits, and the rows behind it to the store; returns them."""
        left = [one for _, one in self.rows]
        if self.head is not None:
            left.append(self.head)
            self.after = self.last = min(one.row.due_ms for one in left) - 1, LAST
            self.head, self.rows = None, []
        return left

    def remove(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return the rows behind the head that `unwanted` accepts."""
        removed = [one for _, one in self.rows if unwanted(one)]
        if removed:
            self.rows = [entry for entry in self.rows if not unwanted(entry[1])]
            heapq.heapify(self.rows)
        return removed


@dataclass(slots=True, eq=False)
class GroupLane:
    """One group lane in memory.

    Attributes:
        number: The number of the lane.
        lease: The lease under which its rows were read.
        groups: Name -> group that has rows in memory or in the store.
        listed: Minute in the lane's list -> due of the minute's first row.
        touched: Minutes whose entry in the list may be outdated: `WaitingList.tidy` checks them.
        is_dense: True if most rows of the last reread were kept: the next reread reads bodies too.
        looked_ms: When the dues in the list were last renewed, epoch milliseconds.
        cared: Groups that have had a head handed out with care since the lane was taken over.
    """

    number: int
    lease: Lease
    groups: dict[str, Group] = field(default_factory=dict)
    listed: dict[int, int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    is_dense: bool = True
    looked_ms: int = 0
    cared: set[str] = field(default_factory=set)

    @property
    def is_at_work(self) -> bool:
        """True if a head is in `ready`, at a handler, or being stored."""
        return any(one.head is not None and not one.waits for one in self.groups.values())

    @property
    def has_due_head(self) -> bool:
        """True if a head is due and no handler has it."""
        return any(
            group.head is not None and not (group.waits or group.head.begun_us)
            for group in self.groups.values()
        )

    def keep(self, name: str, place: Place, room: int) -> bool:
        """Decide whether a row of a group is kept in memory; the first row of a group always is."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group()
        return group.keep(place, room)

    def needs_care(self, row: Row) -> bool:
        """True if the former owner may have died of this head; at most once for each group."""
        lease, name = self.lease, row.group or ""
        if not lease.window or row.due_ms > lease.taken_ms or name in self.cared:
            return False
        self.cared.add(name)
        return True

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
        dues_ms: list[int] = []
        for group in self.groups.values():
            if group.after is not None:
                dues_ms.append(group.after[0])
            if group.head is not None and not group.head.begun_us:
                dues_ms.append(group.head.row.due_ms)
            if group.rows:
                dues_ms.append(group.rows[0][0][0])
        return min(dues_ms, default=None)

    def wake(self, dues_ms: Collection[int] | None = None) -> bool:
        """Make groups hungry whose heads wait in the store; returns True if any was made hungry.

        Args:
            dues_ms: Only groups with heads at these dues; None for all groups.
        """
        is_any = False
        for group in self.groups.values():
            if group.after is None or group.head is not None or not group.waits:
                continue
            if dues_ms is None or group.after[0] + 1 in dues_ms:
                group.waits, is_any = 0, True
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
            group.after = group.last = max([after, *(entry[0] for entry in group.rows)])
            group.coming = 0

    def skip(self, row: Row) -> None:
        """Take back the choice of a row that is gone from the store."""
        self.groups[row.group or ""].coming -= 1

    def forget(self, name: str) -> None:
        """Forget a group that has no rows in memory, and none left in the store."""
        group = self.groups.get(name)
        if group is None or group.head is not None or group.rows or group.coming:
            return
        if group.after is None:
            del self.groups[name]

    def rows(self) -> list[Delivery]:
        """All rows in memory behind heads."""
        return [one for group in self.groups.values() for _, one in group.rows]
