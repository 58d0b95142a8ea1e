"""Reading again what lies behind the cursors: late and skewed writes, and what nothing else finds.

The ladder says when (`lane.py`). A shard is sealed only when a sweep of it, made after its offset,
finds no row. Where the store tells at once where rows are, a seal is looked behind at every step:
it is as right as the clock was by which it was set.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq.engine.groups.room import GroupLanes
    from shardq.engine.members.member import Member
    from shardq.engine.reading.intake import Intake
    from shardq.engine.reading.lane import Lane, Rung
    from shardq.engine.reading.pages import Pages
    from shardq.engine.reading.reader import Reader
    from shardq.model.shard import Layout

log = logging.getLogger(__name__)

_SLICE_ROWS = 5_000
NEWS_BACK_MS = 50
_SEALED_EVERY_MS = 1_000
_AGAIN_MS = 1_000
_BEHIND_US = 250_000
"""How soon after rows of other lanes hid what may lie behind a seal it is looked behind again."""
_BACK_MS_MAX = 3_600_000
"""How far back a late rung reaches at most, or to all that cannot be sealed yet: a machine may have
slept for a year, and a step has to end. What is older is found as its minute is sealed by now."""
_AHEAD_MS = 1_000
_MANY_MINUTES = 200
"""How many minutes make a sweep ask first which of them have rows: that costs a read as well."""
_SLICES_MAX = 64
"""Failures make slices no shorter than this many a sweep, for a step waits until it is through."""


class _Swept(NamedTuple):
    """What a sweep came upon: how many rows, known or not; lanes of which some were left there."""

    rows: int
    left: set[int]


class Sweeper:
    """Sweeps the lanes of one member.

    Args:
        groups: Lists minutes of group lanes, so that their seals may pass.
    """

    def __init__(
        self, member: Member, intake: Intake, reader: Reader, groups: GroupLanes, pages: Pages
    ) -> None:
        self._clock = member.clock
        self._register = member.register
        self._memory = member.memory
        self._intake = intake
        self._reader = reader
        self._pages = pages
        self._groups = groups
        self._isolated = member.isolated
        self.begin_in_time()

    def begin_in_time(self) -> None:
        """Make anew what remembers times of the wall clock."""
        self._sealed_next_ms = self._again_ms = 0
        self._refused_ms: dict[tuple[int, int], int] = {}
        self._narrow_ms: dict[str, int] = {}
        self._behind_from = self._behind_us = 0
        self._behind_of: frozenset[int] = frozenset()
        self._ladder = Ladder(self._layout, self._clock.now_ms())

    @property
    def _layout(self) -> Layout:
        return self._register.layout

    def rung_due(self) -> Rung | None:
        """The rung of the ladder that is due, until it has been swept."""
        now_ms = self._clock.now_ms()
        return None if self._isolated or now_ms < self._again_ms else self._ladder.due(now_ms)

    def sweep(self, rung: Rung | None) -> None:
        """Read again what lies behind the cursors, as far as a rung says, and sealed minutes."""
        now_ms = self._clock.now_ms()
        if rung is not None:
            # A lane that lags is passed over: it must not keep the others from being swept.
            after_ms = now_ms - rung.depth_ms
            # One without its lease is swept as far back as it would have been, once it has it.
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
                # Cursors are ahead of now where the clock was set back: this step, or by a little.
                end_ms = min(now_ms + _AHEAD_MS, *(lane.cursor_ms for lane in lanes))
                self._sweep_slices(lanes, max(since_ms, oldest - 1), end_ms, rung.purpose)
                for lane in lanes:
                    lane.unswept_ms = SWEPT
                    # Another's cursor that is further back has ended the sweep before this one's.
                    if end_ms >= lane.cursor_ms:
                        lane.look_again(max(since_ms, oldest - 1), now_ms)
            self._ladder.swept(rung, now_ms)
        self._sweep_sealed(now_ms)

    def was_swept(self, rung: Rung, at_ms: int) -> None:
        """A poll that began then has reached as far back as a rung does."""
        self._ladder.swept(rung, at_ms)

    def look_behind_seals(self) -> None:
        """Reread lanes from rows that lie behind their seals, where the store tells of them.

        It costs one look-up: nearly always the first row of the queue comes after all seals.
        """
        lanes = self._memory.lanes
        now_us = until_us = self._clock.boot_us()
        if lanes.keys() != self._behind_of:
            # Of a lane that is new here all must be known: its groups wait for what is first.
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
            # One at a time: listed minutes of group lanes have rows, and may be days apart.
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

    def look_back(self) -> None:
        """Read what a put whose news has just come may have written behind the cursor."""
        now_ms = self._clock.now_ms()
        after_ms = now_ms - NEWS_BACK_MS
        lanes = [lane for lane in self._sweepable(now_ms) if lane.cursor_ms > after_ms]
        if lanes and not self._isolated:
            end_ms = min(now_ms, *(lane.cursor_ms for lane in lanes))
            known = self._memory.known
            for page in self._pages.whole(lanes, after_ms, end_ms, "look back"):
                new = [row for row in page if row.id not in known]
                # What comes before these in their groups may have been passed a little earlier.
                whole = self._reader.with_missed(new, after_ms, end_ms)
                # A lease taken for the page before may have moved the cursor back.
                self._intake.accept(self._reader.without_unread(whole))

    def _sweep_sealed(self, now_ms: int) -> None:
        if now_ms < self._sealed_next_ms:
            return
        self._sealed_next_ms = now_ms + _SEALED_EVERY_MS
        if self._pages.next_minute(0) is not None:
            # What comes there late is found by a look behind the seals.
            for lane in self._memory.lanes.values():
                lane.swept = dict.fromkeys(SEALED_RUNGS, lane.sealed)
            return
        together: dict[tuple[int, int], list[Lane]] = {}
        # Those that lag as well: what holds up a lane may do so for long.
        for lane in self._memory.lanes.values():
            if lane.band >= self._layout.bands_used and not lane.of_groups:
                # Nobody has written what could come late.
                lane.swept = dict.fromkeys(SEALED_RUNGS, lane.sealed)
                continue
            for place in self._ladder.sealed_due(lane, now_ms):
                together.setdefault(place, []).append(lane)
        until_us = self._clock.boot_us() + TURN_US
        for (rung, minute), wanted in sorted(together.items(), key=lambda item: sum(item[0])):
            if self._clock.boot_us() > until_us:
                self._sealed_next_ms = now_ms
                break
            lanes = [
                lane for lane in wanted if self._refused_ms.get((rung, lane.number), 0) <= now_ms
            ]
            if not lanes:
                continue
            slices = min(SLICES, -(-self._layout.minute_ms // SLICE_MS_MIN))
            swept = self._sweep_minute(lanes, minute, f"sweep sealed {rung} min", slices)
            for lane in lanes:
                if lane.number in swept.left:
                    # Looked at again when its holder may have died. Later minutes of this rung wait
                    # until then, of which `swept` knows the last alone, and so does the seal.
                    self._refused_ms[rung, lane.number] = now_ms + self._register.settings.lease_ms
                else:
                    lane.swept[rung] = minute

    def next_sweep_ms(self) -> int:
        """When the next rung is due, epoch milliseconds."""
        if self._isolated:
            return self._clock.now_ms() + self._layout.minute_ms
        return self._ladder.next_ms()

    def sealable(self) -> dict[int, int]:
        """Sweep the shards that may be sealed; returns lane -> minute of those that are empty."""
        now_ms = self._clock.now_ms()
        newest = self._layout.newest_sealable(now_ms)
        sealed: dict[int, int] = {}
        until_us = self._clock.boot_us() + TURN_US
        wanted: dict[int, range] = {}
        # Of so many shards one read tells where rows are, while leases wait to be renewed.
        most = max(4 * PROBE_MINUTES // (len(self._memory.lanes) or 1), 1)
        most = min(most, PROBE_MINUTES)
        for lane in self._memory.lanes.values():
            first = self._pages.first_minute(lane.sealed + 1)
            last = min(newest, first + most - 1)
            # A quiet one is not read, but looked through just below.
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
                    # It has nothing up to there that is to be read, once it is polled.
                    lane.advance(self._layout.end_ms(minute) - 1)
                sealed[number] = minute
        return sealed

    def _look_for_unseen(self, wanted: Mapping[int, range]) -> None:
        """Note in which of their minutes lanes have rows though none was seen there.

        Lanes are nearly always sealed together: one look does for all of them.
        """
        lanes = self._memory.lanes
        together: dict[range, list[int]] = {}
        for number, minutes in wanted.items():
            # They may be millions, of which an index tells that most are empty.
            first = min(self._pages.first_minute(minutes.start), minutes.stop)
            unseen = [m for m in range(first, minutes.stop) if m not in lanes[number].used]
            if unseen:
                together.setdefault(range(unseen[0], unseen[-1] + 1), []).append(number)
        for minutes, numbers in together.items():
            for shard in self._pages.occupied(minutes, numbers):
                # Somebody wrote into a minute that was read already, and no sweep has seen it yet.
                lanes[shard.lane].used.setdefault(shard.minute, 1)

    def _read_to(self, lane: Lane) -> int:
        """The last minute that was read to its end."""
        return self._layout.minute_of(lane.cursor_ms + 1) - 1

    def _empty_until(self, lane: Lane, minutes: range, until_us: int) -> int:
        """The last of these minutes up to which the lane's shards have no rows.

        It looks at one of them at least, and at others until that time since boot.
        """
        for minute in sorted(minute for minute in lane.used if minute in minutes):
            is_over = minute > minutes.start and self._clock.boot_us() > until_us
            if is_over or not self._is_drained(lane, minute):
                return minute - 1
        return minutes[-1]

    def _is_drained(self, lane: Lane, minute: int) -> bool:
        """True if a minute has no rows, or, of a group lane, is listed."""
        if not lane.of_groups and any(
            s.minute == minute and s.lane == lane.number for s in self._memory.leased_rows
        ):
            return False
        slices = -(-lane.used[minute] // _SLICE_ROWS)
        rows = self._sweep_minute([lane], minute, "sweep seal", slices).rows
        return not rows or (lane.of_groups and self._groups.pass_by(lane.number, minute))

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
        """Read (after, end] again in slices."""
        length = max(self._layout.minute_ms // SLICES, SPAN_MS_MIN)
        if slices:
            length = -(-(end_ms - after_ms) // slices)
        # What was too much before may have been a part of what is to be swept by now.
        least_ms = max((end_ms - after_ms) // _SLICES_MAX, SPAN_MS_MIN)
        length = min(length, max(self._narrow_ms.get(purpose, length), least_ms))
        before = len(self._memory.known)
        rows, left = 0, set[int]()
        while after_ms < end_ms:
            if end_ms - after_ms > _MANY_MINUTES * self._layout.minute_ms:
                # A clock that was set ahead, or slept, leaves many minutes in which nothing is.
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
                    left.update(self._intake.accept(met))
            except (StoreUnavailable, StoreTimeout):
                # What else a step has to do is done before the next try, which asks for less.
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
