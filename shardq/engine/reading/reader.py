"""Reads a queue's lanes: polls from the cursors, looks ahead, and catches up.

```
 current lanes ── one read for all of them: (cursor, now] ───┐
 lagging lanes ── minute by minute, oldest first ────────────┼──► intake
 ahead ────────── (now, now + 2 s], every second ────────────┘
```

`lanes.py` decides which lanes are read. `sweeper.py` rereads rows behind the cursors.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shardq.engine.members.part import Part
from shardq.engine.reading.lane import (
    MISSED_MS,
    MISSED_MS_MAX,
    READ_AHEAD_MS,
    RUNGS,
    SLICES,
    SPAN_MS_MIN,
)
from shardq.engine.reading.pages import (
    BYTES_MAX,
    PAGE_BYTES,
    PROBE_MINUTES,
    QUICK_US,
    ROW_BYTES,
    TURN_US,
)
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.ids import order_key
from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.engine.groups.room import GroupLanes
    from shardq.engine.members.member import Member
    from shardq.engine.reading.intake import Intake
    from shardq.engine.reading.lane import Lane
    from shardq.engine.reading.pages import Pages
    from shardq.engine.storing.outbox import Outbox
    from shardq.model.message import Row
    from shardq.model.shard import Shard

log = logging.getLogger(__name__)
_Found: TypeAlias = "Mapping[int, list[Row]]"
"""Rows by lane."""

_MISSED_ROWS_MAX = 5_000
_PAGES_AT_ONCE = 5
"""The most pages to read for each lane: its open minutes, and one more."""
_GROUP_ROWS_MIN = 500
"""Rows of a page of a group lane, where many such lanes are read side by side."""
_UNHELD_ROWS = 32
"""Rows of the first page of a group lane: the rows are reread once the lane's lease is taken."""
_UNKNOWN_ROWS = 4
"""The same number until the size of a body is known: a first call reads 25 group lanes at once."""
_DOZE_MS = 60_000
_DOZE_US = 250_000
_DOZE_BUSY_US = 100_000
"""A group lane in which no row was seen for `_DOZE_MS` is read only every `_DOZE_US`; while rows of
other group lanes are in memory, every `_DOZE_BUSY_US`."""


class _Page(NamedTuple):
    """The next read of a lagging lane; `is_last` if the read reaches the end of its minute."""

    lane: Lane
    wanted: Slice
    span_ms: int
    is_last: bool


class Reader(Part):
    """Reads rows of a member's lanes as they come due.

    Args:
        outbox: Reports whether a batch of outcomes waits to be stored.
        groups: Reports whether memory has room for more rows of groups.
    """

    def __init__(
        self, member: Member, intake: Intake, outbox: Outbox, groups: GroupLanes, pages: Pages
    ) -> None:
        super().__init__(member)
        self._intake = intake
        self._outbox = outbox
        self._pages = pages
        self._groups = groups
        self._ahead_next_us = 0
        self._open_span_ms = self._polled_to_ms = 0
        self._polled = 1
        self._dozed_us = 0
        self.wakes_all = False

    @property
    def read_ms(self) -> int:
        """The highest due up to which any polled lane was read, epoch milliseconds."""
        return max((lane.cursor_ms for lane in self._memory.polled), default=0)

    @property
    def since_ms(self) -> int:
        """The due up to which all polled lanes were read, epoch milliseconds."""
        return min((lane.cursor_ms for lane in self._memory.polled), default=0)

    def poll(self, back_ms: int = 0, *, ahead_ms: int = 0) -> int:
        """Read what has come due since the last poll.

        Args:
            back_ms: How far before now the poll also rereads.
            ahead_ms: How far after now the poll also reads, if a look ahead is due.

        Returns:
            How many rows were new.
        """
        now_ms = self._clock.now_ms()
        until_ms = self._polled_to_ms = self._until_ms(now_ms)
        self._groups.begin_poll(until_ms)
        current: list[Lane] = []
        lagging: list[Lane] = []
        dozing: list[Lane] = []
        layout = self._layout
        polled = self._memory.polled
        self._polled = sum(not lane.of_groups for lane in polled) or 1
        for lane in polled:
            is_current = lane.is_current(until_ms, layout)
            room = self._room(lane) if is_current else self._room_behind(lane)
            lane.stalled = room <= 0 or lane.retry_ms > now_ms
            if lane.stalled:
                continue
            if not is_current:
                lagging.append(lane)
            elif not (lane.of_groups and now_ms - lane.seen_ms > _DOZE_MS):
                current.append(lane)
            else:
                dozing.append(lane)
        has_current = bool(current or dozing)
        if not (ahead_ms and has_current and self._is_ahead_due(ahead_ms)):
            ahead_ms = 0
        if not (self._wakes() or ahead_ms):
            dozing.clear()
        before = len(self._memory.known)
        if current:
            self._read_current(current, until_ms, back_ms, ahead_ms)
        if dozing:
            # Read these apart, or the current lanes would be reread from the cursors of these on,
            # through their tombstones.
            self._read_current(dozing, until_ms, back_ms, ahead_ms)
        if lagging:
            self._go_back(lagging, until_ms)
            self._set_horizon(until_ms)
            self._probe(lagging, until_ms)
            self._read_lagging(lagging, until_ms)
        self._set_horizon(until_ms)
        return len(self._memory.known) - before

    def _wakes(self) -> bool:
        """True if this poll also reads group lanes in which no row was seen for a minute."""
        now_us = self._clock.boot_us()
        pause_us = _DOZE_BUSY_US if self._memory.group_rows else _DOZE_US
        if now_us - self._dozed_us < pause_us and not self.wakes_all:
            return False
        self._dozed_us, self.wakes_all = now_us, False
        return True

    def is_current(self, lane: Lane) -> bool:
        """True if one more poll brings a lane up to now."""
        return lane.is_current(self._until_ms(self._clock.now_ms()), self._layout)

    def is_lagging(self) -> bool:
        """True if a lane has more rows to read, and can be read right now."""
        now_ms = self._clock.now_ms()
        until_ms, uncounted = self._until_ms(now_ms), self._groups.uncounted
        return any(
            (not lane.is_current(until_ms, self._layout) or lane.number in uncounted)
            and self._room_behind(lane) > 0
            and lane.retry_ms <= now_ms
            for lane in self._memory.polled
        )

    def is_caught_up(self) -> bool:
        """True if all rows due up to now were read and settled."""
        until_ms = self._until_ms(self._clock.now_ms())
        return not self._memory.known and all(
            lane.is_current(until_ms, self._layout) for lane in self._memory.polled
        )

    def awaited(self, back_ms: int) -> Slice | None:
        """The rows that a poll at rest would read; None if lanes need other reads.

        Other reads are needed if another member holds a lane, which is retried often, or for a
        group lane, which is read more rarely.

        Args:
            back_ms: How far before the last poll the rows begin, because rows may be stored late.
        """
        now_ms, polled = self._clock.now_ms(), self._memory.polled
        if self._isolated or not polled or any(one.of_groups or one.retry_ms for one in polled):
            return None
        after_ms = min(self.since_ms, now_ms) - back_ms
        return self._pages.slice(polled, after_ms, now_ms + READ_AHEAD_MS, "news", limit=1)

    def look_ahead(self, *, at_once: bool = False) -> None:
        """Read rows due in the next 2 s, every second, to hand them out on their millisecond."""
        if not self._is_ahead_due(READ_AHEAD_MS, at_once=at_once):
            return
        now_ms = self._clock.now_ms()
        until_ms = now_ms + READ_AHEAD_MS
        lanes = [
            lane
            for lane in self._memory.polled
            # Skip a lane that this step did not poll: rows of it may precede those read ahead.
            if not lane.stalled
            and lane.retry_ms <= now_ms
            and self._room_ahead(lane) > 0
            and lane.is_current(now_ms, self._layout)
            # Skip a group lane whose cursor moved back since, to before the rows reread below.
            and not (lane.of_groups and lane.read_ms < self._missed_since_ms(lane, now_ms))
        ]
        if lanes:
            after_ms = min(lane.cursor_ms for lane in lanes)
            limit = min(self._room_ahead(lane) for lane in lanes)
            # Begin at the last poll: a row may have come due since.
            after_ms = max(after_ms, min(self._polled_to_ms, now_ms - 1))
            wanted = self._pages.slice(lanes, after_ms, until_ms, "ahead", limit=limit)
            rows = self._pages.read(wanted)
            counts = Counter(row.shard for row in rows)
            self._look_again_where_cut(counts, limit)
            rows = self._without_cut_off(rows, counts, limit)
            # Leave out claims: their holders may still postpone them, so they are read when due,
            # never before.
            rows = [row for row in rows if row.claim is None]
            self._intake.accept(self.with_missed(rows, now_ms, now_ms))

    @property
    def ahead_s(self) -> float:
        """Seconds until the next look ahead; infinite if there will be none."""
        if self._isolated:
            return math.inf
        return max(self._ahead_next_us - self._clock.boot_us(), 0) / 1e6

    def with_missed(self, rows: list[Row], after_ms: int, until_ms: int) -> list[Row]:
        """Add to rows of groups in order earlier rows, stored after the poll that passed their due.

        A sweep would find the earlier rows too, but perhaps only after a later row has been handed
        out. The read goes back beyond the lane's last reread, not only beyond its last poll: polls
        find no late rows, and there may have been many slow polls since.
        """
        grouped: dict[int, Lane] = {}
        unordered: set[str | None] = set()
        known, held = self._memory.known, self._memory.lanes
        for row in rows:
            number = row.shard.lane
            if number in grouped or row.group in unordered or row.id in known:
                continue
            # The lane may have been released while the rows were read.
            if (lane := held.get(number)) is None or not lane.of_groups:
                continue
            if self._groups.keeps_order(row):
                grouped[number] = lane
            else:
                unordered.add(row.group)
        if not grouped:
            return rows
        lanes = [grouped[number] for number in sorted(grouped)]
        since_ms = min(self._missed_since_ms(lane, after_ms) for lane in lanes)
        again: list[Row] = []
        asked_ms = self._clock.now_ms()
        try:
            for page in self._pages.whole(lanes, since_ms, until_ms, "groups"):
                is_much = len(again) >= _MISSED_ROWS_MAX
                again += page
                if is_much:
                    break
            else:
                again_ms = min(until_ms + MISSED_MS, asked_ms)
                for lane in lanes:
                    lane.again_ms = max(lane.again_ms, again_ms)
        except (StoreUnavailable, StoreTimeout):
            # Move cursors back: no poll would read the rows behind them that a sweep has found.
            self._memory.read_again([*rows, *again])
            raise
        seen = {row.id for row in rows}
        missed = [row for row in again if row.id not in seen]
        # Sort by shard and due: the first rows need care, if another member may have died of them.
        return sorted([*rows, *missed], key=_place_of) if missed else rows

    def without_unread(self, rows: list[Row]) -> list[Row]:
        """Drop rows of lanes not read by this member, or that polls of group lanes will read."""
        lanes = self._memory.lanes
        return [
            row
            for row in rows
            if (lane := lanes.get(row.shard.lane)) is not None
            and (not lane.of_groups or row.due_ms <= lane.read_ms)
        ]

    def _without_cut_off(
        self, rows: list[Row], counts: Mapping[Shard, int], limit: int
    ) -> list[Row]:
        """Drop rows of group lanes in minutes after a minute of which a full page left rows out.

        Args:
            rows: The page, in order.
            counts: How many of the rows each shard has.
            limit: How many rows of a shard make a full page.
        """
        lanes = self._memory.lanes
        cut: dict[int, int] = {}
        for shard, count in counts.items():
            lane = lanes.get(shard.lane)
            if count >= limit and lane is not None and lane.of_groups:
                cut[shard.lane] = min(shard.minute, cut.get(shard.lane, shard.minute))
        if not cut:
            return rows
        return [
            row for row in rows if row.shard.minute <= cut.get(row.shard.lane, row.shard.minute)
        ]

    def _look_again_where_cut(self, counts: Mapping[Shard, int], limit: int) -> None:
        """Let the next step look ahead if a full page left out rows of the next 2 s."""
        if max(counts.values(), default=0) >= limit:
            self._ahead_next_us = 0

    def _is_ahead_due(self, ahead_ms: int, *, at_once: bool = False) -> bool:
        """True if a look so far ahead is due, and counts as done; the next is due at its half."""
        boot_us = self._clock.boot_us()
        if self._isolated or (boot_us < self._ahead_next_us and not at_once):
            return False
        self._ahead_next_us = boot_us + ahead_ms * 500
        return True

    def _without_far(self, rows: list[Row], near_ms: int) -> list[Row]:
        """Drop rows due after `near_ms`, and look again when the first of them is due in 2 s.

        They can still be cancelled without a key.

        Args:
            rows: Rows that a poll has read.
            near_ms: The time of the poll plus `READ_AHEAD_MS`.
        """
        far_ms = min((row.due_ms for row in rows if row.due_ms > near_ms), default=None)
        if far_ms is None:
            return rows
        near_us = self._clock.boot_us() + (far_ms - near_ms) * 1_000
        self._ahead_next_us = min(self._ahead_next_us, near_us)
        return [row for row in rows if row.due_ms <= near_ms]

    def _until_ms(self, now_ms: int) -> int:
        if not self._isolated:
            return now_ms
        return self._layout.end_ms(self._layout.newest_sealable(now_ms)) - 1

    def _share(self) -> int:
        return self._prefetch // self._polled or 1

    def _room(self, lane: Lane) -> int:
        """How many rows of a lane to read at most.

        The prefetch does not bound rows of groups, which wait for each other, not for a handler.
        """
        if lane.of_groups:
            groups = self._groups
            is_read = groups.has_room or lane.number in groups.uncounted
            return self._pages.page_rows if is_read else 0
        room = 0 if self._memory.body_bytes > BYTES_MAX else self._share() - lane.rows
        return min(self._pages.page_rows, room)

    def _room_ahead(self, lane: Lane) -> int:
        """How many rows to read ahead: half of the share is kept for rows that come due sooner."""
        if lane.of_groups:
            return self._room(lane)
        return min(self._room(lane), self._share() // 2 - lane.rows)

    def _room_behind(self, lane: Lane) -> int:
        """How many rows of a lagging lane to read: none until a quarter of its share is free.

        The pause pays, as a read of ten rows takes as long as a read of five hundred.
        """
        is_wide = lane.of_groups or lane.rows <= self._share() * 3 // 4
        return self._room(lane) if is_wide else 0

    def _read_current(
        self, lanes: Sequence[Lane], until_ms: int, back_ms: int, ahead_ms: int
    ) -> None:
        after_ms = min(lane.cursor_ms for lane in lanes)
        purpose, again_ms = "poll", 0
        if back_ms:
            oldest = self._layout.start_ms(min(lane.sealed for lane in lanes) + 1)
            after_ms = min(after_ms, max(until_ms - back_ms, oldest - 1))
            purpose, again_ms = RUNGS[0].purpose, until_ms
        if after_ms >= until_ms:
            return
        limit = min(self._room(lane) for lane in lanes)
        wanted = self._pages.slice(lanes, after_ms, until_ms + ahead_ms, purpose, limit=limit)
        rows = self._pages.read(wanted)
        counts = Counter(row.shard for row in rows) if rows else {}
        near_ms = until_ms + READ_AHEAD_MS
        if ahead_ms:
            self._look_again_where_cut(
                Counter(row.shard for row in rows if row.due_ms <= near_ms), limit
            )
        rows = self._without_cut_off(rows, counts, limit)
        # Leave out claims that are not due: their holders may still postpone them.
        rows = [row for row in rows if row.due_ms <= until_ms or row.claim is None]
        beyond = {row.shard for row in rows if row.due_ms > until_ms}
        rows = self._within_room_ahead(lanes, self._without_far(rows, near_ms), until_ms)
        last: dict[int, Row] = {}
        for row in rows:
            # Rows are in order of minutes, so the first shard that was cut short stops the lane's
            # cursor.
            if counts[row.shard] >= limit and row.shard not in beyond:
                held = last.get(row.shard.lane)
                if held is None or held.shard == row.shard:
                    last[row.shard.lane] = row
        for lane in lanes:
            lane.full = lane.number in last
        if last:
            # Set the horizon before handlers can take the rows: rows that were cut off are due
            # before some of them.
            self._set_horizon(until_ms)
        # The next poll reads the rows that were cut off: in memory now, they would take up that
        # poll's room.
        missed_ms = min([until_ms, *(row.due_ms - 1 for row in last.values())])
        refused = self._intake.accept(self.with_missed(rows, after_ms, missed_ms))
        for lane in lanes:
            cut = last.get(lane.number)
            stop_ms = refused.get(lane.number)
            if stop_ms is not None:
                lane.full = False
                lane.advance(min(stop_ms - 1, until_ms if cut is None else cut.due_ms - 1))
            elif cut is not None:
                lane.stop(cut.due_ms, cut.id)
            else:
                lane.advance(until_ms)
                lane.look_again(after_ms, again_ms)

    def _within_room_ahead(
        self, lanes: Sequence[Lane], rows: list[Row], until_ms: int
    ) -> list[Row]:
        """Drop rows read ahead that have no room; the next look ahead finds them."""
        room = {lane.number: self._room_ahead(lane) for lane in lanes}
        kept = []
        for row in rows:
            if row.due_ms > until_ms:
                number = row.shard.lane
                if room[number] <= 0:
                    continue
                room[number] -= 1
            kept.append(row)
        return kept

    def _go_back(self, lanes: Sequence[Lane], until_ms: int) -> None:
        """Move lanes not read for long back to rows that their last polls may have missed.

        Otherwise those rows might come too late: the rows due since then are read page by page, and
        the first pages may have none of a group.
        """
        for lane in lanes:
            if not lane.full and lane.behind is None:
                since_ms = self._missed_since_ms(lane, lane.cursor_ms)
                lane.again_ms = until_ms
                lane.rewind(max(since_ms + 1, self._layout.start_ms(lane.sealed + 1)))

    def _missed_since_ms(self, lane: Lane, after_ms: int) -> int:
        """The due after which rows may have been stored too late for the poll that passed them."""
        return max(min(after_ms, lane.again_ms) - MISSED_MS, after_ms - MISSED_MS_MAX)

    def _probe(self, lanes: Sequence[Lane], until_ms: int) -> None:
        """Find the minutes with rows between cursors and now, before any of them is leased."""
        wanted = [lane for lane in lanes if lane.behind is None]
        if not wanted:
            return
        layout = self._layout
        first = layout.minute_of(min(lane.cursor_ms for lane in wanted) + 1)
        newest = layout.minute_of(until_ms)
        # A machine without a clock battery boots in 1970, 30 million minutes ago.
        first = max(first, min(self._pages.first_minute(first), newest))
        last = min(newest, first + PROBE_MINUTES - 1)
        # Open minutes are read anyway: a probe would read past all rows settled there.
        open_from = max(layout.newest_sealable(self._clock.now_ms()) + 1, first)
        numbers = [lane.number for lane in wanted]
        found = self._pages.occupied(range(first, min(open_from, last + 1)), numbers)
        for lane in wanted:
            start = layout.minute_of(lane.cursor_ms + (lane.cursor_id is None))
            lane.behind = deque(
                shard.minute
                for shard in found
                if shard.lane == lane.number and shard.minute >= start
            )
            lane.behind.extend(range(max(open_from, start), last + 1))
            lane.behind_until_ms = min(layout.end_ms(last) - 1, until_ms)

    def _read_lagging(self, lanes: Sequence[Lane], until_ms: int) -> None:
        """Read lagging lanes, many at once, until they have no room or have caught up."""
        left, until_us = list(lanes), self._clock.boot_us() + TURN_US
        for _ in range(_PAGES_AT_ONCE * len(lanes)):
            pages = self._next_pages(left, until_ms)
            if not pages:
                break
            refused = self._read_pages(pages)
            left = [lane for lane in left if lane.number not in refused]
            self._set_horizon(until_ms)
            if self._clock.boot_us() > until_us or self._outbox.has_batch:
                # The next step reads on, once this one has stored outcomes.
                break
        for lane in left:
            if not lane.behind:
                lane.advance(lane.behind_until_ms)
                lane.behind, lane.full = None, False

    def _next_pages(self, lanes: Iterable[Lane], until_ms: int) -> list[_Page]:
        """The next pages of the lanes furthest behind, as many as fit into 4 MiB together."""
        # Group lanes come last: their heads are held back until due rows of other lanes are read.
        lagging = sorted(
            (lane for lane in lanes if lane.behind),
            key=lambda lane: (lane.of_groups, self._begin_ms(lane)),
        )
        knows_bodies, rows_max = self._pages.knows_bodies, self._pages.page_rows
        if knows_bodies:
            rows_max = round(PAGE_BYTES / (self._pages.body_bytes + ROW_BYTES))
        # Many group lanes are read side by side: one after the other they would take as many round
        # trips.
        each = max(rows_max // max(sum(lane.of_groups for lane in lagging), 1), _GROUP_ROWS_MIN)
        pages: list[_Page] = []
        for lane in lagging:
            room = self._room_behind(lane)
            limit = room
            if lane.of_groups:
                unheld = _UNHELD_ROWS if knows_bodies else _UNKNOWN_ROWS
                limit = min(room, each if self._groups.holds(lane.number) else unheld)
            if limit <= 0:
                continue
            rows_max -= limit
            if pages and rows_max < 0:
                break
            pages.append(self._page_of(lane, until_ms, limit))
        return pages

    def _begin_ms(self, lane: Lane) -> int:
        """The due after which the next read of a lagging lane begins."""
        minute = (lane.behind or [0])[0]
        return max(lane.cursor_ms, self._layout.start_ms(minute) - 1)

    def _page_of(self, lane: Lane, until_ms: int, limit: int) -> _Page:
        """The next read of the first minute that a lagging lane has to catch up with."""
        layout, minute = self._layout, (lane.behind or [0])[0]
        after_ms = self._begin_ms(lane)
        after_id = lane.cursor_id if after_ms == lane.cursor_ms else None
        last_ms = min(layout.end_ms(minute) - 1, until_ms, lane.behind_until_ms)
        span_ms = lane.span_ms
        if not layout.may_seal(minute, self._clock.now_ms()):
            # An open minute may be full of tombstones, of rows that its former reader settled.
            least_ms = max(layout.minute_ms // SLICES, SPAN_MS_MIN)
            span_ms = min(span_ms, max(self._open_span_ms, least_ms))
        end_ms = min(last_ms, after_ms + span_ms)
        return _Page(
            lane,
            self._pages.slice([lane], after_ms, end_ms, "catch-up", limit=limit, after_id=after_id),
            span_ms,
            is_last=end_ms >= last_ms,
        )

    def _read_pages(self, pages: Sequence[_Page]) -> set[int]:
        """Read pages; returns the lanes of which a shard was refused."""
        sent_us, asked_ms = self._clock.boot_us(), self._clock.now_ms()
        try:
            rows = self._pages.read(*_joined(page.wanted for page in pages))
        except (StoreUnavailable, StoreTimeout):
            for lane, *_ in pages:
                lane.span_ms = max(lane.span_ms // 2, SPAN_MS_MIN)
            raise
        # A quick read met few tombstones: the read of a minute full of them takes 100 ms.
        quick = self._clock.boot_us() - sent_us < QUICK_US * len(pages)
        widest_ms = max(page.span_ms for page in pages)
        self._open_span_ms = min(widest_ms * 4, self._layout.minute_ms) if quick else 0
        found: dict[int, list[Row]] = {page.lane.number: [] for page in pages}
        for row in rows:
            found[row.shard.lane].append(row)
        cut = {p.lane.number for p in pages if len(found[p.lane.number]) >= p.wanted.limit}
        ends_ms = {
            p.lane.number: found[p.lane.number][-1].due_ms - 1
            if p.lane.number in cut
            else p.wanted.until_ms
            for p in pages
        }
        refused = self._intake.accept(self._with_older(pages, found, ends_ms, asked_ms))
        for lane, wanted, _, is_last in pages:
            number = lane.number
            lane.span_ms = min(lane.span_ms * 2, self._layout.minute_ms)
            if number in refused:
                lane.advance(min(refused[number] - 1, ends_ms[number]))
            elif number in cut:
                lane.advance(found[number][-1].due_ms, found[number][-1].id)
            else:
                lane.advance(wanted.until_ms)
                if is_last and lane.behind:
                    lane.behind.popleft()
        return set(refused)

    def _with_older(
        self, pages: Sequence[_Page], rows: _Found, ends_ms: Mapping[int, int], asked_ms: int
    ) -> list[Row]:
        """Add to rows of pages earlier rows that former polls of the lanes may have missed.

        Polls miss no rows that were due long before, so a lane is reread only once, near now.
        """
        whole: list[Row] = []
        for lane, wanted, *_ in pages:
            of_lane, until_ms = rows[lane.number], ends_ms[lane.number]
            if lane.again_ms < wanted.after_ms + MISSED_MS:
                # Reread the rows of the page too: the poll may have asked each replica at another
                # time, and have missed an earlier row.
                of_lane = self.with_missed(of_lane, wanted.after_ms, until_ms)
            else:
                lane.again_ms = max(lane.again_ms, min(until_ms + MISSED_MS, asked_ms))
            whole += of_lane
        return whole

    def _set_horizon(self, until_ms: int) -> None:
        layout = self._layout
        # Take the bands of `ready`, not of the layout: a queue made anew under this name may have
        # others.
        horizon: list[int | None] = [None] * self._ready.bands
        # A lane holds no other back if it was read up to now, or if another member seems to hold
        # it.
        behind = [
            lane
            for lane in self._memory.polled
            if not (lane.of_groups or lane.retry_ms or lane.is_current(until_ms, layout))
        ]
        full = {lane.number: lane.cursor_ms for lane in behind if lane.stalled}
        moving = self._ready.waiting(full) if full else set()
        for lane in behind:
            # A stalled lane holds back later bands, and rows due after its cursor, only in two
            # cases: handlers can take rows of the lane due before, or one of its rows is about to
            # be settled. Otherwise all its rows run, wait for their groups or were read ahead, and
            # the lane would block itself.
            if lane.stalled and not (lane.number in moving or self._memory.is_ending(lane)):
                continue
            seen = horizon[lane.band]
            horizon[lane.band] = lane.cursor_ms if seen is None else min(seen, lane.cursor_ms)
        self._ready.set_horizon(horizon)


def _joined(slices: Iterable[Slice]) -> list[Slice]:
    """Join slices that differ in their lanes only: a store may read them by one request."""
    lanes: dict[Slice, list[int]] = {}
    for one in slices:
        lanes.setdefault(one._replace(lanes=()), []).extend(one.lanes)
    return [one._replace(lanes=numbers) for one, numbers in lanes.items()]


def _place_of(row: Row) -> tuple[Shard, int, bytes]:
    """Return the place of a row in the order of a read."""
    return row.shard, row.due_ms, order_key(row.id)
