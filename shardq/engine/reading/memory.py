"""The rows that one member has in memory: read and not settled. No I/O.

```
 read ─► take_in ─► known ─┬─ handed out ─► running ─► settled ─► forget
                           └─ released ──► leave: its lane is reread from there
```
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardq.engine.handing.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardq.engine.leases.lease import Lease
    from shardq.engine.reading.lane import Lane
    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.shard import Shard


class Memory:
    """The lanes and rows of a queue that one member has in memory.

    Attributes:
        lanes: The lanes that are read, by number.
        polled: The lanes that were not quiet when `Quiet` last looked.
        known: Row id -> delivery of a row that was read and is not settled.
        running: Row id -> delivery that was handed out and is not settled.
        begun: How many deliveries were handed out; if the number stays the same, none has begun.
        leased_rows: Shard of a lease -> how many rows were read under it, without claims.
        group_rows: How many rows of group lanes were read, without claims.
        body_bytes: The size of all bodies and headers in memory.
        left: Lane -> the due from which it is reread, noted since `left` was last cleared.
        stranded: Deliveries released behind the seal of their lane, whose rows will be moved to
            now.
    """

    def __init__(self, home: QueueHome) -> None:
        self._clock = home.clock
        self._register = home.register
        self.lanes: dict[int, Lane] = {}
        self.polled: list[Lane] = []
        self.known: dict[bytes, Delivery] = {}
        self.running: dict[bytes, Delivery] = {}
        self.begun = 0
        self.leased_rows: Counter[Shard] = Counter()
        self.group_rows = 0
        self.body_bytes = 0
        self.left: dict[int, int] = {}
        self.stranded: list[Delivery] = []

    def take_in(self, rows: Sequence[Row], lease: Lease) -> list[Delivery]:
        """Add rows of one shard, read under a lease; returns their deliveries."""
        if not rows:
            return []
        known, lane = self.known, self.lanes[rows[0].shard.lane]
        minute, is_grouped = rows[0].shard.minute, lane.of_groups
        taken: list[Delivery] = []
        self.leased_rows[lease.shard] += len(rows)
        lane.rows += len(rows)
        self.group_rows += len(rows) if is_grouped else 0
        lane.used[minute] = lane.used.get(minute, 0) + len(rows)
        lane.stirred = lane.stirred or lane.quiet
        may_need_care = lease.careful > 0 and not is_grouped
        band, body_bytes = lane.band, 0
        for row in rows:
            if is_grouped:
                band = row.priority
            careful = may_need_care and row.due_ms <= lease.taken_ms and lease.needs_care()
            known[row.id] = one = Delivery(row, band, lease, careful=careful, grouped=is_grouped)
            body_bytes += row.size_bytes
            taken.append(one)
        self.body_bytes += body_bytes
        return taken

    def leave(self, one: Delivery) -> None:
        """Forget a row that was released, and reread it if this member still reads its lane."""
        self.forget(one)
        if one.careful and not one.grouped:
            one.lease.give_back()
        lane = self.lanes.get(one.row.shard.lane)
        if lane is not None:
            self.go_back_to(lane, one.row.due_ms)

    def go_back_to(self, lane: Lane, due_ms: int) -> None:
        """Reread a lane from a due on, if its cursor has passed that due or is about to."""
        lane.rewind(due_ms)
        self.left[lane.number] = min(due_ms, self.left.get(lane.number, due_ms))

    def forget(self, one: Delivery) -> None:
        """Forget a delivery: its row is settled, or another member's."""
        self.forget_all([one])

    def forget_all(self, ended: Iterable[Delivery]) -> None:
        """Forget deliveries, as `forget` does."""
        known = self.known
        gone: dict[Lease, int] = {}
        for one in ended:
            one.forget()
            row = one.row
            if known.pop(row.id, None) is not None:
                self.body_bytes -= row.size_bytes
                if not one.is_claim:
                    gone[one.lease] = gone.get(one.lease, 0) + 1
        for lease, count in gone.items():
            self._uncount(lease.shard, count)

    def replace(self, one: Delivery, row: Row) -> None:
        """Replace a row in memory by its edited form, or by the same row without its body."""
        self.body_bytes += row.size_bytes - one.row.size_bytes
        one.replace(row)

    def begin(self, one: Delivery) -> None:
        """Record a hand-out. The caller holds the lock of `ready`, so `begun` is exact."""
        one.claim(self._clock.boot_us())
        self.running[one.row.id] = one
        self.begun += 1

    def park(self, one: Delivery, claim: Row) -> None:
        """Record that a delivery was parked: its row is this claim now, and needs no lease."""
        if self.known.pop(one.row.id, None) is not None and not one.is_claim:
            self._uncount(one.lease.shard, 1)
        one.become_claim(claim)
        self.known[claim.id] = one

    def _uncount(self, shard: Shard, count: int) -> None:
        left = self.leased_rows[shard] - count
        if left:
            self.leased_rows[shard] = left
        else:
            del self.leased_rows[shard]
        if self._register.layout.is_of_groups(shard.lane):
            self.group_rows -= count
        lane = self.lanes.get(shard.lane)
        if lane is not None:
            lane.rows -= count

    def read_again(self, rows: Iterable[Row]) -> None:
        """Move cursors back to rows of groups that precede the rows which polls read next."""
        for row in rows:
            lane = self.lanes.get(row.shard.lane)
            if (
                lane is not None
                and lane.of_groups
                and row.id not in self.known
                and row.shard.queue == self._register.layout.queue
            ):
                lane.rewind(row.due_ms)

    def reread(self, rows: Iterable[Row]) -> None:
        """Move cursors back to rows that exist only if nobody has settled them yet."""
        for row in rows:
            lane = self.lanes.get(row.shard.lane)
            if lane is not None and row.shard.queue == self._register.layout.queue:
                lane.rewind(row.due_ms)

    def is_eager(self) -> bool:
        """True if another member still holds a lane that is new to this member."""
        now_ms = self._clock.now_ms()
        return any(lane.retry_ms and now_ms < lane.eager_until_ms for lane in self.lanes.values())

    def is_ending(self, lane: Lane) -> bool:
        """True if a lane has a row whose delivery has ended, and that will be settled soon."""
        return any(
            one.has_ended and one.row.shard.lane == lane.number for one in self.known.values()
        )
