"""Reads a member's lanes page by page, and finds the minutes that have rows."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from shardq.engine.members.part import Part
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardq.engine.leases.lease import Lease
    from shardq.engine.members.member import Member
    from shardq.engine.reading.lane import Lane
    from shardq.model.message import Row
    from shardq.model.shard import Shard

log = logging.getLogger(__name__)

PAGE_BYTES = 4 << 20
ROW_BYTES = 100
"""About how many bytes one read returns at most, and how many bytes a row has beside its body."""
TURN_US = 250_000
"""How long a step works on minutes that ended long ago. Meanwhile acks wait to be stored, and
claims wait to be postponed."""
PROBE_MINUTES = 1_440
QUICK_US = 15_000
BYTES_MAX = 64 << 20
"""The most bytes of bodies in memory, over all lanes; above this only heads of groups are taken
in."""
_PAGE_ROWS_MIN = 100
_PAGE_ROWS_MAX = 5_000


class Pages(Part):
    """Reads rows of one member's lanes, page by page.

    Attributes:
        page_rows: The most rows of a shard to read at once, adapted so that a page has about 4 MiB.
        body_bytes: The estimated size of a body.
        knows_bodies: True if any body was read.
        lost: Leases that were lost; the next step clears the list.
    """

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self.body_bytes = 1_000.0
        self.knows_bodies = False
        self.page_rows = _PAGE_ROWS_MIN
        self.lost: list[Lease] = []

    def whole(
        self, lanes: Sequence[Lane], after_ms: int, until_ms: int, purpose: str
    ) -> Iterator[list[Row]]:
        """Read all rows of lanes with after < due <= until, however many a shard has.

        The first page covers all shards; then each shard that was cut short is read to its end.
        """
        limit = self.page_rows
        page = self.read(self.slice(lanes, after_ms, until_ms, purpose, limit=limit))
        counts = Counter(row.shard for row in page)
        last = {row.shard: row for row in page}
        yield page
        for shard in [shard for shard, count in counts.items() if count >= limit]:
            stop_ms = min(until_ms, self._layout.end_ms(shard.minute) - 1)
            of_shard = [lane for lane in lanes if lane.number == shard.lane]
            end, is_cut = last[shard], True
            while is_cut:
                limit = self.page_rows
                rest = self.slice(
                    of_shard, end.due_ms, stop_ms, purpose, limit=limit, after_id=end.id
                )
                page = self.read(rest)
                is_cut = len(page) >= limit
                end = page[-1] if page else end
                yield page

    def slice(
        self,
        lanes: Sequence[Lane],
        after_ms: int,
        until_ms: int,
        purpose: str,
        *,
        limit: int,
        after_id: bytes | None = None,
    ) -> Slice:
        """Describe the rows of lanes with after < due <= until, for `read`."""
        layout = self._layout
        first = layout.minute_of(after_ms + (after_id is None))
        return Slice(
            layout.queue,
            range(max(first, 0), layout.minute_of(until_ms) + 1),
            [lane.number for lane in lanes],
            after_ms,
            until_ms,
            limit,
            after_id,
            purpose,
        )

    def read(self, *wanted: Slice) -> list[Row]:
        """Read several slices at once; if that fails, later pages are smaller."""
        # Renew before each read: a step of many slow reads outlasts a lease.
        self.renew()
        try:
            rows = self._store.read(*wanted)
        except (StoreUnavailable, StoreTimeout):
            self.page_rows = max(self.page_rows // 2, 1)
            raise
        if rows:
            self._adapt(rows, sum(one.limit * len(one.lanes) for one in wanted))
        return rows

    def _adapt(self, rows: Sequence[Row], limit: int) -> None:
        seen = sum(row.size_bytes for row in rows) / len(rows)
        self.body_bytes += (seen - self.body_bytes) * (1.0 if seen > self.body_bytes else 0.2)
        self.knows_bodies = True
        fits = int(PAGE_BYTES / (self.body_bytes + ROW_BYTES))
        grown = self.page_rows
        if len(rows) >= min(limit, self.page_rows):
            # A read of several lanes may have brought more.
            grown = max(2 * self.page_rows, len(rows))
        self.page_rows = max(1, min(grown, fits, _PAGE_ROWS_MAX))

    def next_minute(self, minute: int) -> int | None:
        """The first minute with rows from this one on; None if the store has no such index."""
        return self._store.next_minute(self._layout.queue, minute)

    def first_minute(self, minute: int) -> int:
        """The first minute, from this one on, in which any lane may have rows."""
        found = self.next_minute(minute)
        return minute if found is None else found

    def occupied(self, minutes: Sequence[int], lanes: Sequence[int]) -> list[Shard]:
        """Return the shards that have rows, or all shards if the store fails to find out."""
        if not minutes:
            return []
        layout = self._layout
        try:
            return self._store.occupied(layout.queue, minutes, lanes)
        except (StoreUnavailable, StoreTimeout) as error:
            log.info("queue %s: minutes read one by one, for %s", layout.queue, error)
            return [
                layout.shard(layout.start_ms(minute), lane) for minute in minutes for lane in lanes
            ]

    def renew(self) -> None:
        """Renew the leases that are due; the next step releases the rows of lost leases."""
        self.lost += self._leases.renew()
