"""Takes in rows that were read: leases the shards of new rows, and makes these rows ready.

```
 rows ──► in memory already? ── skipped            rows stay in memory until settled
      ──► entered before a purge? ── deleted
      ──► leased? ── no: refused, for now          one LWT for a shard or group lane, not for a row
      ──► ended, by the ledger? ── dropped         asked only for rows that may be left over
      ──► of a group? ── placed by its lane (`groups/room.py`)
      ──► ready
```

`reader.py` and `sweeper.py` find the rows.
"""

from __future__ import annotations

import logging
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from shardq.engine.members.part import Part
from shardq.engine.reading.lane import SOON_MS, Lane
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.message import shards_of
from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardq.engine.groups.room import GroupLanes
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.leases.lease import Lease
    from shardq.engine.members.member import Member
    from shardq.model.message import Row
    from shardq.model.shard import Shard

log = logging.getLogger(__name__)
_shard_of = itemgetter(0)
_FIND_ROWS = 500
_RETRY_MS = 250
_EAGER_RETRY_MS = 50
_EAGER_MS = 4_000
"""How long a lane that is new to this member is retried so often: its reader releases the lane by
then."""
_FRESH_US = 2_000_000
"""A message put this recently can hardly have ended while its row is still stored."""


class Intake(Part):
    """Chooses the lanes that one member reads, and takes their rows into memory.

    Args:
        groups: Places rows of group lanes.
    """

    def __init__(self, member: Member, groups: GroupLanes) -> None:
        super().__init__(member)
        self._ledger = self._settler.ledger
        self._groups = groups

    def _lease_key(self, shard: Shard) -> Shard:
        """The shard whose lease covers a shard: itself, or the lease shard of its group lane."""
        layout = self._layout
        return layout.lane_lease(shard.lane) if layout.is_of_groups(shard.lane) else shard

    def _lease_of(self, shard: Shard) -> Lease | None:
        return self._leases.get(self._lease_key(shard))

    # Lanes ----------------------------------------------------------------------------------------

    def keep(self, lanes: Iterable[int], sealed: Callable[[], dict[int, int]]) -> list[int]:
        """Read these lanes from now on and no others.

        Args:
            lanes: The lanes' numbers.
            sealed: Returns the sealed minutes of the queue; called only if lanes are new.

        Returns:
            The lanes that were released; their rows that have not begun are forgotten.
        """
        wanted, held = set(lanes), self._memory.lanes
        dropped = [lane for lane in held if lane not in wanted]
        new = [lane for lane in wanted if lane not in held]
        # Read the sealed minutes first: if that fails, nothing has changed.
        registered = sealed() if new else {}
        if dropped:
            self.give_up(lambda one: one.row.shard.lane in dropped)
            self._groups.drop(dropped)
            for number in dropped:
                del held[number]
        if new:
            newest = self._layout.newest_sealable(self._clock.now_ms())
            for number in new:
                made = self._register.made_minute(number) - 1
                # A seal from a clock that ran ahead must not hide open minutes.
                start = min(self._register.unsealed_minute(number, registered) - 1, newest)
                lane = Lane.fresh(number, self._layout, start, made)
                lane.eager_until_ms = self._clock.now_ms() + _EAGER_MS
                held[number] = lane
                for one in self._memory.known.values():
                    if one.row.shard.lane == number and not one.is_claim:
                        lane.rows += 1
        self._groups.look_for_listed([held[number] for number in new])
        self._memory.polled = [lane for lane in held.values() if not lane.quiet]
        return dropped

    def give_up(self, unwanted: Callable[[Delivery], bool]) -> None:
        """Forget rows that were not handed out; reread them if this member keeps their lane."""
        for one in self._groups.give_up(unwanted):
            self._memory.leave(one)
        for one in self._ready.remove(lambda one: not one.grouped and unwanted(one)):
            if self._lies_behind_seal(one):
                # Move it: the lane's next reader begins after the seal, and sweeps behind the seal
                # minutes later.
                self._memory.stranded.append(one)
            else:
                self._memory.leave(one)

    def _lies_behind_seal(self, one: Delivery) -> bool:
        """True if a due row that waits only for a handler lies in a sealed minute.

        A row that is not due lies in one only if the clock was set back; then its minute comes
        again.
        """
        lane = self._memory.lanes.get(one.row.shard.lane)
        is_behind = lane is not None and one.row.shard.minute <= lane.sealed
        return is_behind and one.row.due_ms <= self._clock.now_ms() and not one.careful

    # Rows -----------------------------------------------------------------------------------------

    def accept(self, rows: Sequence[Row]) -> dict[int, int]:
        """Lease the shards of new rows, and make these rows ready.

        Args:
            rows: The rows, by shard.

        Returns:
            Lane -> the due from which it must be reread. That is the due of its first row that was
            refused, because another member holds or may hold the row's shard; or, in a group lane
            that was just taken over, the due of the first row to read.
        """
        if not rows:
            return {}
        try:
            return self._accept(rows)
        except (StoreUnavailable, StoreTimeout):
            # Move cursors back where order counts, as no poll reads rows behind a cursor.
            self._memory.read_again(rows)
            raise

    def accept_moved(self, rows: Iterable[Row]) -> None:
        """Take in rows, without a read, that this process has just placed and that are due soon.

        Rows of groups are left to a poll, which reads the rows in front of them first.
        """
        soon_ms = self._clock.now_ms() + SOON_MS
        # Two copies of a message may have been moved to the same row.
        mine = {
            row.id: row
            for row in rows
            if row.due_ms <= soon_ms
            and (lane := self._memory.lanes.get(row.shard.lane)) is not None
            and not (lane.quiet or lane.retry_ms or lane.of_groups)
        }
        self.accept(sorted(mine.values()))

    def _accept(self, rows: Sequence[Row]) -> dict[int, int]:
        self._memory.left.clear()
        known = self._memory.known
        fresh = [row for row in rows if row.id not in known]
        if fresh and self._register.settings.purged_before_us:
            fresh = self._without_purged(fresh)
        if not fresh:
            return {}
        # Do all I/O before the rows enter memory: a row in memory that is not in `ready` would
        # never be delivered.
        unheld = {shard for shard in shards_of(fresh) if self._lease_of(shard) is None}
        refused = self._lease(fresh, unheld)
        if unheld:
            fresh = self._without_settled(fresh, unheld)
        if self._ledger.is_on:
            fresh = self._without_ended(fresh)
        taken: list[Delivery] = []
        for shard, rows_of_shard in groupby(fresh, key=_shard_of):
            lease, lane = self._lease_of(shard), self._memory.lanes.get(shard.lane)
            if lease is None or lane is None:
                continue
            if not lane.of_groups:
                taken += self._memory.take_in(list(rows_of_shard), lease)
            elif lane.number not in refused:
                taken += self._groups.place(lane, rows_of_shard)
        self._ready.add(taken)
        # Leases may have expired meanwhile: no cursor may pass the rows that were released then.
        return _earliest(refused, self._memory.left)

    def _lease(self, rows: Sequence[Row], unheld: set[Shard]) -> dict[int, int]:
        keys = {shard: self._lease_key(shard) for shard in sorted(shards_of(rows))}
        if unheld:
            free = self._free([row for row in rows if row.shard in unheld])
            self._leases.take({keys[shard] for shard in free})
        new = {
            shard.lane: lease
            for shard, key in keys.items()
            if key is not shard
            and (lease := self._leases.get(key)) is not None
            and not self._groups.owns(shard.lane, lease)
        }
        refused = self._groups.take_over(new)
        for shard, rows_of_shard in groupby(rows, key=_shard_of):
            lane = self._memory.lanes.get(shard.lane)
            if lane is None:
                # The lane was released meanwhile.
                continue
            lacks_lease = shard in unheld and self._leases.get(keys[shard]) is None
            if lacks_lease:
                now_ms = self._clock.now_ms()
                after_ms = _EAGER_RETRY_MS if now_ms < lane.eager_until_ms else _RETRY_MS
                lane.retry_ms = now_ms + after_ms
            if lacks_lease or shard.lane in refused:
                # Reread from the first refused row, not from the shard's start: each try would read
                # past the tombstones of the shard.
                first_ms = min(row.due_ms for row in rows_of_shard)
                refused[shard.lane] = min(first_ms, refused.get(shard.lane, first_ms))
                if lane.of_groups:
                    # A row that a sweep has found precedes the rows that a poll reads next, and
                    # rows may precede the claims that the former owner of the lane has left.
                    self._memory.go_back_to(lane, first_ms)
        return refused

    def _free(self, rows: Sequence[Row]) -> set[Shard]:
        """Return the shards worth an LWT; if a shard was refused before, a plain read decides."""
        shards = {row.shard: row.position for row in rows}
        mine = {
            shard: lane
            for shard in shards
            if (lane := self._memory.lanes.get(shard.lane)) is not None
        }
        doubtful = [shard for shard, lane in mine.items() if lane.retry_ms]
        locks = {}
        if plain := [shards[shard] for shard in doubtful if not mine[shard].of_groups]:
            locks = {shard: state.lock for shard, state in self._store.locks(plain).items()}
        if lanes := {shard.lane for shard in doubtful if mine[shard].of_groups}:
            states = self._store.lane_locks(self._layout.queue, sorted(lanes))
            locks.update(
                (shard, states[shard.lane].lock) for shard in doubtful if shard.lane in states
            )
        free = {shard for shard in mine if self._leases.is_free(locks.get(shard))}
        for shard in free:
            mine[shard].retry_ms = 0
        return free

    def _without_settled(self, rows: list[Row], unheld: set[Shard]) -> list[Row]:
        """Reread rows of shards leased just now: their last holder may have settled some."""
        new = {shard for shard in unheld if self._lease_of(shard) is not None}
        asked = [row for row in rows if row.shard in new]
        there = {row.id: row for row in self._find(asked, new)} if asked else {}
        return [there.get(row.id, row) for row in rows if row.shard not in new or row.id in there]

    def _find(self, rows: Sequence[Row], shards: Iterable[Shard]) -> list[Row]:
        """Return the rows that still exist; many are read by ranges, at a third of the cost."""
        if len(rows) < _FIND_ROWS:
            return self._store.find(row.position for row in rows)
        wanted = {row.id for row in rows}
        dues_ms: dict[Shard, list[int]] = {shard: [] for shard in sorted(shards)}
        for row in rows:
            dues_ms[row.shard].append(row.due_ms)
        ranges = []
        for (queue, minute, lane), dues in dues_ms.items():
            place = min(dues) - 1, max(dues), 2 * len(dues)
            ranges.append(Slice(queue, [minute], [lane], *place, purpose="leased"))
        found = {row.id: row for row in self._store.read(*ranges) if row.id in wanted}
        # Rows that were put into a range meanwhile may have filled its limit.
        left = [row.position for row in rows if row.id not in found]
        return [*found.values(), *(self._store.find(left) if left else ())]

    def _without_purged(self, rows: list[Row]) -> list[Row]:
        before_us = self._register.settings.purged_before_us
        purged = {row.id for row in rows if row.entered_us < before_us and not row.is_note}
        if not purged:
            return rows
        self._discards.purge([row for row in rows if row.id in purged])
        return [row for row in rows if row.id not in purged]

    def _without_ended(self, rows: list[Row]) -> list[Row]:
        """Drop rows of messages that ended according to the ledger: their deletes are missing.

        Either the process that recorded the end crashed, or a replica missed the delete and its
        hint. New messages can hardly have ended and are not looked up; in a queue without timers
        most messages are new.
        """
        fresh_us = self._clock.now_us() - _FRESH_US
        asked: list[Row] = []
        for shard, of_shard in groupby(rows, key=_shard_of):
            lease, lane = self._lease_of(shard), self._memory.lanes.get(shard.lane)
            if lease is None or lane is None:
                continue
            asked += [
                row
                for row in of_shard
                if not row.is_note
                and (
                    lease.unclean
                    or row.first is not None
                    or row.entered_us < fresh_us
                    or row.due_ms <= lane.cursor_ms
                )
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
        self._discards.drop(left_over)
        return [row for row in rows if row.id not in ended]


def _earliest(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {lane: min(ms[lane] for ms in (one, other) if lane in ms) for lane in {*one, *other}}
