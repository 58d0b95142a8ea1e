"""Rereads rows behind the cursors: late and skewed writes, and rows that no other read finds.

The ladder in `lane.py` decides when. A shard is sealed only when a sweep of it, made after its
offset, finds no row. If the store has an index of rows, steps look behind the seals as well: a seal
is wrong if the clock by which it was set was.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from shardq.engine.members.part import Part
from shardq.engine.reading.lane import (
    SEALED_RUNGS,
    SLICE_MS_MIN,
    SLICES,
    SPAN_MS_MIN,
    SWEPT,
    Ladder,
)
from shardq.engine.reading.pages import PROBE_MINUTES, QUICK_US, TURN_US
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.shard import Shard
from shardq.stores.store import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq.engine.groups.room import GroupLanes
    from shardq.engine.members.member import Member
    from shardq.engine.news import Near
    from shardq.engine.reading.intake import Intake
    from shardq.engine.reading.lane import Lane, Rung
    from shardq.engine.reading.pages import Pages
    from shardq.engine.reading.reader import Reader
    from shardq.model.message import Row

log = logging.getLogger(__name__)

_SLICE_ROWS = 5_000
NEWS_BACK_MS = 50
_OWN_BACK_MS = 1_000
_SEALED_EVERY_MS = 1_000
_AGAIN_MS = 1_000
_BEHIND_US = 250_000
"""Pause before the next look behind the seals, if the last look found rows there."""
_BACK_MS_MAX = 3_600_000
"""How far back a late rung reaches at most, unless older minutes cannot be sealed yet. A machine
may have slept for a year, and a step must end. The sweep before a seal finds older rows."""
_AHEAD_MS = 1_000
_MANY_MINUTES = 200
"""A sweep of more minutes than this first finds out which of them have rows, by one more read."""
_POLL_ROWS = 5_000
"""After so many rows a sweep polls: what comes due during a long sweep is handed out in time."""
_SLICES_MAX = 64
"""Failures split a sweep into this many slices at most: one step reads all of them."""


class _Swept(NamedTuple):
    """The outcome of a sweep: how many rows it met, and in which lanes it left some unread."""

    rows: int
    left: set[int]


class Sweeper(Part):
    """Sweeps the lanes of one member.

    Args:
        groups: Lists minutes of group lanes, so that seals may pass them.

    Attributes:
        ladder: Decides which sweeps are due; a poll may take the place of a sweep.
    """

    def __init__(
        self, member: Member, intake: Intake, reader: Reader, groups: GroupLanes, pages: Pages
    ) -> None:
        super().__init__(member)
        self._intake = intake
        self._reader = reader
        self._pages = pages
        self._groups = groups
        self.begin_in_time()

    def begin_in_time(self) -> None:
        """Make the parts that remember wall-clock times; called again after the clock was set."""
        self._sealed_next_ms = self._again_ms = 0
        self._refused_ms: dict[tuple[int, int], int] = {}
        self._narrow_ms: dict[str, int] = {}
        self._behind_from = self._behind_us = 0
        self._behind_of: frozenset[int] = frozenset()
        self.ladder = Ladder(self._layout, self._clock.now_ms())

    def rung_due(self) -> Rung | None:
        """The rung of the ladder whose sweep is due; None if no sweep is due."""
        now_ms = self._clock.now_ms()
        return None if self._isolated or now_ms < self._again_ms else self.ladder.due(now_ms)

    def sweep(self, rung: Rung | None) -> None:
        """Reread rows behind the cursors, as far back as a rung reaches, and sealed minutes."""
        now_ms = self._clock.now_ms()
        if rung is not None:
            # Skip lagging lanes: they must not keep the other lanes from being swept.
            after_ms = now_ms - rung.depth_ms
            # A lane without its lease is swept from this due on, once the lane has its lease.
            ready = {lane.number for lane in self._sweepable(now_ms)}
            open_ms = self._layout.minute_ms + self._layout.offset_ms
            together: dict[int, list[Lane]] = {}
            for lane in self._memory.polled:
                if lane.cursor_ms > after_ms:
                    lane.unswept_ms = min(lane.unswept_ms, after_ms)
                    if lane.number in ready:
                        together.setdefault(lane.unswept_ms, []).append(lane)
            for unswept_ms, lanes in together.items():
                since_ms = max(unswept_ms, now_ms - max(_BACK_MS_MAX, open_ms))
                oldest = self._layout.start_ms(min(lane.sealed for lane in lanes) + 1)
                # The cursors are ahead of now if the clock was set back: in this step, or by a
                # little.
                end_ms = min(now_ms + _AHEAD_MS, *(lane.cursor_ms for lane in lanes))
                self._sweep_slices(lanes, max(since_ms, oldest - 1), end_ms, rung.purpose)
                for lane in lanes:
                    lane.unswept_ms = SWEPT
                    # The sweep may have ended before this lane's cursor, at that of another lane.
                    if end_ms >= lane.cursor_ms:
                        lane.look_again(max(since_ms, oldest - 1), now_ms)
            self.ladder.swept(rung, now_ms)
        self._sweep_sealed(now_ms)

    def look_behind_seals(self) -> None:
        """Reread lanes from rows behind their seals, if the store has an index that finds them.

        The cost is one look-up: the first row of the queue nearly always comes after all seals.
        """
        lanes = self._memory.lanes
        now_us = until_us = self._clock.boot_us()
        if lanes.keys() != self._behind_of:
            # If a lane is new to this member, find all such minutes: the lane's groups wait for
            # their first rows.
            self._behind_of = frozenset(lanes)
            self._behind_from = self._register.first_minute
            until_us = now_us + TURN_US
        elif now_us < self._behind_us:
            return
        newest = max((lane.sealed for lane in lanes.values()), default=-1)
        while (first := self._pages.next_minute(self._behind_from)) is not None:
            if first > newest:
                self._behind_from = self._register.first_minute
                break
            # Look at one minute at a time: listed minutes of group lanes have rows, and may be days
            # apart.
            self._reopen(first)
            self._behind_from = first + 1
            self._behind_us = now_us + _BEHIND_US
            if self._clock.boot_us() > until_us:
                break

    def _reopen(self, minute: int) -> None:
        lanes = self._memory.lanes
        for shard in self._pages.occupied(range(minute, minute + 1), list(lanes)):
            lane = lanes[shard.lane]
            is_listed = lane.of_groups and self._groups.is_listed(shard.lane, minute)
            if minute <= lane.sealed and not is_listed:
                log.info("minute %d of lane %d has rows, but was sealed", minute, shard.lane)
                lane.reopen(minute, self._layout)

    def look_back(self, near: Near | None = None) -> None:
        """Reread the last 50 ms: a put just reported may have written behind the cursor.

        Args:
            near: The dues of the rows that were put. A put of this process may have taken longer
                than 50 ms: the reread begins at its due, up to 1 s back.
        """
        now_ms = self._clock.now_ms()
        own_ms = NEVER if near is None else near.own_ms
        after_ms = min(now_ms - NEWS_BACK_MS, max(own_ms - 1, now_ms - _OWN_BACK_MS))
        lanes = [lane for lane in self._sweepable(now_ms) if lane.cursor_ms > after_ms]
        if lanes and not self._isolated:
            end_ms = min(now_ms, *(lane.cursor_ms for lane in lanes))
            known = self._memory.known
            for page in self._pages.whole(lanes, after_ms, end_ms, "look back"):
                new = [row for row in page if row.id not in known]
                # Polls may have passed earlier rows of these groups shortly before.
                whole = self._reader.with_missed(new, after_ms, end_ms)
                # A lease taken for the previous page may have moved the cursor back.
                self._intake.accept(self._reader.without_unread(whole))

    def _sweep_sealed(self, now_ms: int) -> None:
        if now_ms < self._sealed_next_ms:
            return
        self._sealed_next_ms = now_ms + _SEALED_EVERY_MS
        if self._pages.next_minute(0) is not None:
            # `look_behind_seals` finds rows that are stored late in sealed minutes.
            for lane in self._memory.lanes.values():
                lane.swept = dict.fromkeys(SEALED_RUNGS, lane.sealed)
            return
        due = self._sealed_due(now_ms)
        # Probe them first: nearly all are empty by now, and after a night without readers there are
        # thousands.
        numbers = sorted({lane.number for lanes in due.values() for lane in lanes})
        there = set(self._pages.occupied(sorted({minute for _, minute in due}), numbers))
        until_us = self._clock.boot_us() + TURN_US
        slices = min(SLICES, -(-self._layout.minute_ms // SLICE_MS_MIN))
        for (rung, minute), lanes in sorted(due.items(), key=lambda item: sum(item[0])):
            if self._clock.boot_us() > until_us:
                self._sealed_next_ms = now_ms
                break
            ready = [one for one in lanes if self._refused_ms.get((rung, one.number), 0) <= now_ms]
            full = [one for one in ready if Shard(self._layout.queue, minute, one.number) in there]
            left = set[int]()
            if full:
                left = self._sweep_minute(full, minute, f"sweep sealed {rung} min", slices).left
            for lane in ready:
                if lane.number in left:
                    # Sweep the minute again when the lane's holder may have died. Later minutes of
                    # this rung wait until then, because `swept` and the seal record only the last
                    # minute.
                    self._refused_ms[rung, lane.number] = now_ms + self._register.settings.lease_ms
                else:
                    lane.swept[rung] = minute

    def _sealed_due(self, now_ms: int) -> dict[tuple[int, int], list[Lane]]:
        """(rung, minute) -> the lanes whose sealed minute must be swept again."""
        due: dict[tuple[int, int], list[Lane]] = {}
        # Include lagging lanes, as they may lag for long.
        for lane in self._memory.lanes.values():
            if lane.band >= self._layout.bands_used and not lane.of_groups:
                # Nobody has put to this band, so no row can arrive late.
                lane.swept = dict.fromkeys(SEALED_RUNGS, lane.sealed)
                continue
            for place in self.ladder.sealed_due(lane, now_ms):
                due.setdefault(place, []).append(lane)
        return due

    def next_sweep_ms(self) -> int:
        """When the next rung is due, epoch milliseconds."""
        if self._isolated:
            return self._clock.now_ms() + self._layout.minute_ms
        return self.ladder.next_ms()

    def sealable(self) -> dict[int, int]:
        """Sweep shards that may be sealed; returns lane -> minute up to which all are drained."""
        now_ms = self._clock.now_ms()
        newest = self._layout.newest_sealable(now_ms)
        sealed: dict[int, int] = {}
        until_us = self._clock.boot_us() + TURN_US
        wanted: dict[int, range] = {}
        # Bound the shards of one read, because leases wait to be renewed meanwhile.
        most = max(4 * PROBE_MINUTES // (len(self._memory.lanes) or 1), 1)
        most = min(most, PROBE_MINUTES)
        # Lanes are nearly always sealed together: one look-up serves all lanes whose seals end at
        # the same minute.
        firsts: dict[int, int] = {}
        for lane in self._memory.lanes.values():
            if lane.sealed >= newest:
                continue
            first = firsts.get(lane.sealed)
            if first is None:
                first = firsts[lane.sealed] = self._pages.first_minute(lane.sealed + 1)
            last = min(newest, first + most - 1)
            # A quiet lane is not read; `_look_for_unseen` searches it below.
            last = last if lane.quiet else min(last, self._read_to(lane))
            swept_to = lane.sealable_to(self._layout, newest)
            last = last if swept_to is None else min(last, swept_to)
            if last > lane.sealed:
                wanted[lane.number] = range(lane.sealed + 1, last + 1)
        self._look_for_unseen(wanted)
        for number, minutes in wanted.items():
            lane = self._memory.lanes[number]
            minute = self._empty_until(lane, minutes, until_us)
            if minute > lane.sealed:
                lane.seal(minute, newest)
                if lane.quiet:
                    # The lane has no rows up to the new seal that would have to be read once it is
                    # polled again.
                    lane.advance(self._layout.end_ms(minute) - 1)
                sealed[number] = minute
        return sealed

    def _look_for_unseen(self, wanted: Mapping[int, range]) -> None:
        """Find minutes in which lanes have rows, although no row was seen in them.

        Lanes are nearly always sealed together, so that one read serves all of them.
        """
        lanes = self._memory.lanes
        together: dict[range, list[int]] = {}
        for number, minutes in wanted.items():
            # There may be millions of minutes, and an index skips empty ones.
            first = min(self._pages.first_minute(minutes.start), minutes.stop)
            unseen = [m for m in range(first, minutes.stop) if m not in lanes[number].used]
            if unseen:
                together.setdefault(range(unseen[0], unseen[-1] + 1), []).append(number)
        for minutes, numbers in together.items():
            for shard in self._pages.occupied(minutes, numbers):
                # A row was written into a minute after its read, and no sweep has met the row yet.
                lanes[shard.lane].used.setdefault(shard.minute, 1)

    def _read_to(self, lane: Lane) -> int:
        """The last minute of a lane that was read to its end."""
        return self._layout.minute_of(lane.cursor_ms + 1) - 1

    def _empty_until(self, lane: Lane, minutes: range, until_us: int) -> int:
        """The last of these minutes up to which the lane's shards are drained.

        One of them is swept at least, and others until `until_us`, time since boot.
        """
        for minute in sorted(minute for minute in lane.used if minute in minutes):
            is_over = minute > minutes.start and self._clock.boot_us() > until_us
            if is_over or not self._is_drained(lane, minute):
                return minute - 1
        return minutes[-1]

    def _is_drained(self, lane: Lane, minute: int) -> bool:
        """True if a minute of a lane has no rows or, in a group lane, is listed."""
        if not lane.of_groups and any(
            s.minute == minute and s.lane == lane.number for s in self._memory.leased_rows
        ):
            return False
        slices = -(-lane.used[minute] // _SLICE_ROWS)
        rows = self._sweep_minute([lane], minute, "sweep seal", slices).rows
        return not rows or (lane.of_groups and self._groups.pass_by(lane.number, minute))

    def _with_missed(self, rows: Sequence[Row], after_ms: int, until_ms: int) -> Sequence[Row]:
        """Add to new rows of groups the earlier rows that were stored with them."""
        known = self._memory.known
        if any(row.group is not None and row.id not in known for row in rows):
            return self._reader.with_missed(list(rows), after_ms, until_ms)
        return rows

    def _sweep_minute(
        self, lanes: Sequence[Lane], minute: int, purpose: str, slices: int = SLICES
    ) -> _Swept:
        layout = self._layout
        return self._sweep_slices(
            lanes, layout.start_ms(minute) - 1, layout.end_ms(minute) - 1, purpose, slices
        )

    def _sweepable(self, now_ms: int) -> list[Lane]:
        return [
            lane
            for lane in self._memory.polled
            if lane.retry_ms <= now_ms and self._reader.is_current(lane)
        ]

    def _sweep_slices(
        self, lanes: Sequence[Lane], after_ms: int, end_ms: int, purpose: str, slices: int = 0
    ) -> _Swept:
        """Reread the rows with after < due <= end, in slices."""
        length = max(self._layout.minute_ms // SLICES, SPAN_MS_MIN)
        if slices:
            length = -(-(end_ms - after_ms) // slices)
        # This sweep may cover a longer time than the sweep that failed: bound the number of slices.
        least_ms = max((end_ms - after_ms) // _SLICES_MAX, SPAN_MS_MIN)
        length = min(length, max(self._narrow_ms.get(purpose, length), least_ms))
        before = len(self._memory.known)
        rows, left = 0, set[int]()
        unpolled = 0
        while after_ms < end_ms:
            if end_ms - after_ms > _MANY_MINUTES * self._layout.minute_ms:
                # A clock that was set ahead, or a machine that slept, leaves many empty minutes:
                # skip these.
                first = self._pages.first_minute(self._layout.minute_of(after_ms + 1))
                after_ms = min(max(after_ms, self._layout.start_ms(first) - 1), end_ms - 1)
            stop_ms = min(after_ms + length, end_ms)
            sent_us = self._clock.boot_us()
            try:
                for page in self._pages.whole(lanes, after_ms, stop_ms, purpose):
                    rows += len(page)
                    met = self._reader.without_unread(page)
                    if len(met) < len(page):
                        read = {row.id for row in met}
                        left.update(row.shard.lane for row in page if row.id not in read)
                    new = self._with_missed(self._groups.without_left(met), after_ms, stop_ms)
                    left.update(self._intake.accept(new))
                    unpolled += len(page)
                    if unpolled >= _POLL_ROWS:
                        unpolled = 0
                        before += self._reader.poll()
            except (StoreUnavailable, StoreTimeout):
                # The step does its other work before the next try, which reads fewer rows at once.
                self._narrow_ms[purpose] = min(length, max(length // 2, least_ms))
                self._again_ms = self._clock.now_ms() + _AGAIN_MS
                raise
            after_ms = stop_ms
            is_quick = self._clock.boot_us() - sent_us < QUICK_US
            if is_quick and purpose not in self._narrow_ms:
                length = min(length * 4, self._layout.minute_ms)
        self._narrow_ms.pop(purpose, None)
        found = len(self._memory.known) - before
        if found:
            log.info("%s found %d rows behind the cursor", purpose, found)
        return _Swept(rows, left)
