"""Rereads rows of group lanes that memory had no room for, once their groups are hungry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.engine.groups.lane import LAST, place_of
from shardq.engine.members.part import Part
from shardq.engine.reading.pages import PAGE_BYTES, PROBE_MINUTES, ROW_BYTES
from shardq.model.ids import from_order_key
from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.engine.groups.lane import GroupLane, Place
    from shardq.engine.members.member import Member
    from shardq.model.message import Row

_PAGE = 1_000


class Left(Part):
    """Rereads rows that one member left in the store, in its group lanes."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)

    def page_after(self, mine: GroupLane, after: Place) -> tuple[list[Row], Place | None]:
        """Read a page of rows after a place; returns the rows, and the place up to which it read.

        That place is None if the page reaches the lane's cursor. The next rows may be minutes
        later: sealed minutes that are not in the lane's list are empty.
        """
        layout, lane = self._register.layout, self._memory.lanes[mine.number]
        # Include all rows due at the cursor: an earlier read may have left some of them.
        until_ms = min(lane.cursor_ms, self._clock.now_ms())
        mean_bytes = self._memory.body_bytes // (len(self._memory.known) or 1) + ROW_BYTES
        limit = max(min(_PAGE, PAGE_BYTES // mean_bytes), 1)
        minutes = {m for m in mine.listed if m >= layout.minute_of(after[0])}
        first = max(lane.sealed + 1, layout.minute_of(after[0]))
        # The clock may have been set forward by years: take one minute more than the part below.
        minutes.update(range(first, layout.minute_of(until_ms) + 1)[: PROBE_MINUTES + 1])
        after_ms, last = after
        after_id = None if last == LAST or not last else from_order_key(last)
        part = sorted(minutes)[:PROBE_MINUTES]
        for minute in self._occupied(mine, part, layout.minute_of(after_ms)):
            if layout.start_ms(minute) > after_ms:
                after_ms, after_id = layout.start_ms(minute) - 1, None
            place = after_ms, until_ms, limit, after_id, "group", mine.is_dense
            rows = self._store.read(Slice(layout.queue, [minute], [mine.number], *place))
            if len(rows) >= limit:
                return rows, place_of(rows[-1])
            if rows:
                end_ms = layout.end_ms(minute) - 1
                return rows, None if end_ms >= until_ms else (end_ms, LAST)
        is_through = len(part) == len(minutes)
        return [], None if is_through else (layout.end_ms(part[-1]) - 1, LAST)

    def _occupied(self, mine: GroupLane, minutes: list[int], first: int) -> Iterator[int]:
        """The minutes, of the given ones, that have rows; and the first, without a probe.

        Rows of the first minute were settled before: a probe would read past all their tombstones.
        """
        if minutes[:1] == [first]:
            yield first
            minutes = minutes[1:]
        if minutes:
            for shard in self._store.occupied(self._register.layout.queue, minutes, [mine.number]):
                yield shard.minute
