"""Reads a queue row by row: peek, find, and a visit to every partition."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from shardq.inspection import scan
from shardq.inspection.depth import Inventory
from shardq.inspection.orphans import Orphans
from shardq.model.message import end_of_use_ms
from shardq.records.ledger import End
from shardq.stores.store import NEVER, RowMove
from shardq.stores.tables import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.shard import Shard

_PART = 1_000
_FAR_MS = 1 << 52


@dataclass(frozen=True, slots=True)
class Check:
    """The findings of a visit to every partition of a queue.

    Attributes:
        shards: Partitions with rows.
        rows: Rows in them.
        moved: Rows behind a seal, which no poll would have read again, and that were moved to now.
            A message with a group stays, and its minute is listed for the owner of its lane.
        purged: Deleted rows of messages that a purge had reached before their due.
        expired: Deleted rows of messages that were too old to be delivered.
        dropped: Deleted rows of messages that had already ended by the ledger.
        mended: The number of messages by which the totals were too low, or, below 0, too high. The
            totals are corrected by this.
        is_proven: True if no process put or settled messages meanwhile. Else the totals may still
            be off by a few, until a consumer counts again at rest.
        damaged: A sentence for each unreadable row of totals, which was deleted; `mended` makes up
            for its counts.
        freed: Freed keys of messages that are gone because a process crashed as they ended.
    """

    shards: int
    rows: int
    moved: int
    purged: int
    dropped: int
    mended: int = 0
    is_proven: bool = True
    damaged: tuple[str, ...] = ()
    freed: int = 0
    expired: int = 0


class Census:
    """Counts the rows of one queue."""

    def __init__(self, home: QueueHome) -> None:
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self._settler = home.settler
        self._stats = home.stats

    def first(self, limit: int) -> list[Row]:
        """The rows with the first dues, including those in flight."""
        self._register.refresh()
        rows: list[Row] = []
        shards = scan.every_shard(self._store, self._register, self._clock.now_ms())
        for _, some in groupby(scan.with_rows(self._store, shards), key=attrgetter("minute")):
            rows += self._first_of(list(some), limit)
            if len(rows) >= limit:
                break
        return heapq.nsmallest(limit, rows, key=_by_due)

    def visit(self, on_progress: Callable[[int], None] | None = None) -> tuple[Check, Inventory]:
        """Visit every partition, and settle rows that no reader would reach for long."""
        self._register.refresh(force=True)
        sealed = self._store.notes(LANES, (self._register.name,))
        # Read after the seals, because a minute is listed before its lane's seal passes it.
        listed = scan.waiting_minutes(self._store, self._register)
        shards = rows = moved = purged = dropped = expired = 0
        present = ended = farthest_ms = 0
        own: set[bytes] = set()

        def told() -> Iterator[Shard]:
            nonlocal shards
            found = self._store.shards(self._register.name)
            while some := list(islice(found, _PART)):
                # All shards: whatever the index lacked, it is complete from now on.
                self._store.mend_index(there=some)
                for shard in some:
                    yield shard
                    shards += 1
                    if on_progress is not None:
                        on_progress(shards)

        for page in scan.pages(self._store, self._register.layout, told(), purpose="check"):
            rows += len(page)
            over = [row for row in page if self._register.is_purged(row)]
            purged += len(over)
            of_former = self._end_purged(over)
            ended += len(over) - of_former
            kept = [row for row in page if not self._register.is_purged(row)]
            live = self._settler.without_ended(kept)
            dropped += len(kept) - len(live)
            self._stats.add(dropped=len(kept) - len(live))
            old = [row for row in live if self._is_expired(row)]
            self._settler.end(old, End.EXPIRED)
            self._stats.add(expired=len(old))
            expired += len(old)
            ended += len(old)
            present += len(old)
            live = [row for row in live if not self._is_expired(row)] if old else live
            late = [
                row
                for row in live
                if self._is_astray(row)
                or (
                    row.shard.minute <= sealed.get(row.shard.lane, -1)
                    and row.shard.minute not in listed.get(row.shard.lane, ())
                )
            ]
            moves = [self._moved_to_now(row) for row in late if not self._stays(row)]
            # The owner of the lane lists the minute, and delivers the message from its place.
            staying = [row for row in late if self._stays(row)]
            self._settler.tell(staying)
            # A row of a dropped queue may bring the first group into this queue.
            self._register.use_lanes_of(move.new.shard for move in moves)
            gone, _ = self._settler.carry_out(moves)
            moved += len(moves) - len(gone) + len(staying)
            # A row that this visit has moved is met again at its new place, and counted once.
            present += len(over) - of_former + sum(row.id not in own for row in live)
            own.update(move.new.id for move in moves)
            farthest_ms = max(farthest_ms, *(row.due_ms for row in page))
        freed = Orphans(self._store, self._register, self._settler.keys).remove()
        check = Check(shards, rows, moved, purged, dropped, freed=freed, expired=expired)
        return check, Inventory(present, farthest_ms=farthest_ms, ended=ended)

    def remove_purged(self) -> None:
        """Delete the rows that a purge has reached; reads the whole queue."""
        for page in self.pages(bodies=False):
            self._end_purged(list(filter(self._register.is_purged, page)))
        scan.forget_empty(self._store, self._register, self._clock.now_ms())

    def _end_purged(self, rows: Sequence[Row]) -> int:
        """Delete rows, and count them as purged; returns how many belong to a dropped queue."""
        self._settler.end(rows, End.PURGED)
        of_former = sum(map(self._register.is_former, rows))
        self._stats.add(purged=len(rows) - of_former)
        return of_former

    def _is_expired(self, row: Row) -> bool:
        """True for a message that is too old, and that no member or caller holds as a claim."""
        now_ms = self._clock.now_ms()
        if row.is_note or (row.claim is not None and row.ready_ms > now_ms):
            return False
        end_ms = end_of_use_ms(row, self._register.settings.retention_ms)
        return end_ms is not None and end_ms < now_ms

    def pages(self, *, bodies: bool = True) -> Iterator[list[Row]]:
        """All rows, oldest minute first; without `bodies` their bodies are empty."""
        layout = self._register.layout
        shards = scan.with_rows(self._store, self._store.indexed(layout.queue, range(NEVER)))
        return scan.pages(
            self._store, layout, shards, purpose="read", together_max=1, bodies=bodies
        )

    def _is_astray(self, row: Row) -> bool:
        """True if a row is in a partition of a dropped queue of this name, which no reader visits.

        Its producer had not read of the drop yet.
        """
        return not self._register.layout.has_lane(row.shard.lane)

    def _stays(self, row: Row) -> bool:
        """True if a row keeps its place: it has a group, and lies in the lane that orders it."""
        return row.group is not None and not self._is_astray(row)

    def _moved_to_now(self, row: Row) -> RowMove:
        move = self._settler.planner.place(row, 0)
        if row.group is not None or not self._is_astray(row):
            return move
        layout, due_ms = self._register.layout, move.new.due_ms
        return move._replace(new=move.new._replace(shard=layout.shard(due_ms, layout.lane(0, 0))))

    def _first_of(self, shards: Sequence[Shard], limit: int) -> list[Row]:
        """The first rows of each shard that no purge has reached."""
        layout = self._register.layout
        slices = [scan.whole(layout, shard, limit, "peek") for shard in shards]
        return scan.first_kept(self._store, slices, lambda row: not self._register.is_purged(row))


def _by_due(row: Row) -> tuple[int, int]:
    return row.wanted_ms, row.entered_us
