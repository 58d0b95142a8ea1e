"""Quiet lanes: lanes of bands without puts, and lanes that producers no longer fill.

```
 needed (its band has puts, and producers fill it, or did until lately) ── polled
 quiet ── searched for rows, one read for all of them: each minute just before it begins
   └─ has rows there, or gets some ── polled until these are gone and the minute has ended
```

So a queue pays only for the lanes that it uses. A producer that has not read the settings yet may
write to a quiet lane. The sweep before the seal finds the row; then the lane is polled for a while,
and its band from then on.
"""

from __future__ import annotations

import logging
import math
import operator
from typing import TYPE_CHECKING

from shardq.engine.reading.pages import PROBE_MINUTES, TURN_US
from shardq.model.settings import expected_lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.engine.reading.lane import Lane
    from shardq.engine.reading.memory import Memory
    from shardq.engine.reading.pages import Pages
    from shardq.engine.reading.reader import Reader
    from shardq.lifecycle.home import QueueHome
    from shardq.model.settings import Settings
    from shardq.model.shard import Layout, Shard

log = logging.getLogger(__name__)

_BEFORE_MS = 2_000
"""A minute is searched this long before it begins: polled lanes are read ahead as far."""
_BEFORE_AT_REST_MS = 12_000
"""The same time at rest, when the next look comes 10 s later, and not all queues should search at
once."""
_LOOK_US = 200_000
_SETTINGS_US = 100_000
"""Shortest time between rereads of the settings after news of writes of other processes."""


class Quiet:
    """Decides which lanes of a member are quiet, and searches quiet lanes for rows."""

    def __init__(self, home: QueueHome, memory: Memory, reader: Reader, pages: Pages) -> None:
        self._clock = home.clock
        self._register = home.register
        self._memory = memory
        self._reader = reader
        self._pages = pages
        self._read_us = self._look_us = 0
        self._rests = False
        self._seen: tuple[object, object] = (None, None)
        self._watched: dict[int, int] = {}
        """Quiet lane of another member in which rows were found -> until when this member guards
        it."""
        self._watched_to = -1

    @property
    def _layout(self) -> Layout:
        return self._register.layout

    def follow(self, *, has_news: bool) -> None:
        """Reread the settings if the news may be another process's first put to a band.

        Args:
            has_news: True if another process may have put a row.
        """
        now_us = self._clock.boot_us()
        if has_news and self._register.has_unused_lanes and now_us >= self._read_us:
            self._read_us = now_us + _SETTINGS_US
            self._register.refresh(force=True)

    def look(self, *, rests: bool) -> None:
        """Decide which lanes are quiet, and search them in minutes that are about to begin.

        Most steps skip this, because it takes long in a queue that once had 64 lanes of three
        bands.
        """
        now_us, settings, memory = self._clock.boot_us(), self._register.settings, self._memory
        seen = settings, memory.polled
        if now_us < self._look_us and all(map(operator.is_, seen, self._seen)):
            return
        self._look_us, self._rests = now_us + _LOOK_US, rests
        self._tell(settings)
        memory.polled = [lane for lane in memory.lanes.values() if not lane.quiet]
        self._seen = settings, memory.polled

    def _tell(self, settings: Settings) -> None:
        now_ms, layout = self._clock.now_ms(), self._layout
        filled = settings.lanes_polled(now_ms)
        quiet = []
        for lane in self._memory.lanes.values():
            # The same rule as in `expected_lanes`.
            is_used = lane.band < layout.bands_used
            if lane.of_groups or (is_used and layout.index_of(lane.number) < filled):
                lane.quiet = False
            elif lane.stirred or lane.rows:
                # The sweep of a seal, or the search before a minute began, has found rows.
                if not is_used:
                    self._register.use_band(lane.band)
                self._wake(lane, now_ms + layout.offset_ms)
                lane.stirred = False
            elif lane.quiet or self._falls_silent(lane, now_ms):
                lane.quiet = True
                quiet.append(lane)
        if quiet:
            self._look_through(quiet, now_ms)

    def of_others(self, lanes: Sequence[int], now_ms: int) -> list[int]:
        """Return the lanes of other members to guard: those with rows, found or expected.

        Quiet lanes of other members are searched for rows once a minute, as their reader may not do
        so.
        """
        layout = self._layout
        expected = expected_lanes(self._register.settings, layout, now_ms)
        quiet = set(lanes).difference(expected, layout.lanes_of_groups())
        self._watched = {lane: until for lane, until in self._watched.items() if until > now_ms}
        last = self._last_minute(now_ms)
        if quiet and last > self._watched_to:
            for shard in self._pages.occupied(range(last, last + 1), sorted(quiet)):
                self._watched[shard.lane] = layout.end_ms(last) + layout.offset_ms
            self._watched_to = last
        return [lane for lane in lanes if lane not in quiet or lane in self._watched]

    @property
    def search_s(self) -> float:
        """Seconds until quiet lanes must be searched again; infinite if no lane is quiet."""
        probed = [lane.probed for lane in self._memory.lanes.values() if lane.quiet]
        if not probed:
            return math.inf
        at_ms = self._layout.start_ms(min(probed) + 1) - self._before_ms()
        return max(at_ms - self._clock.now_ms(), 0) / 1e3

    def _before_ms(self, ms: int = _BEFORE_MS) -> int:
        return min(ms, self._layout.minute_ms // 2)

    def _last_minute(self, now_ms: int) -> int:
        """The minute up to which quiet lanes should have been searched by now."""
        before_ms = self._before_ms(_BEFORE_AT_REST_MS if self._rests else _BEFORE_MS)
        return self._layout.minute_of(now_ms + before_ms)

    def _falls_silent(self, lane: Lane, now_ms: int) -> bool:
        """True if a lane that was polled, or is new to this member, may be quiet from now on.

        Rows behind its cursor were read; minutes after the cursor are searched from now on.
        """
        layout = self._layout
        is_unread = lane.cursor_ms < layout.start_ms(lane.sealed + 1)
        if now_ms < lane.awake_ms or not (is_unread or self._reader.is_current(lane)):
            return False
        lane.probed = max(layout.minute_of(lane.cursor_ms + 1) - 1, lane.sealed)
        return True

    def _wake(self, lane: Lane, until_ms: int) -> None:
        lane.quiet = False
        lane.awake_ms = max(lane.awake_ms, until_ms)

    def _look_through(self, quiet: Sequence[Lane], now_ms: int) -> None:
        """Wake the lanes that have rows, up to the minute that is about to begin."""
        last, until_us = self._last_minute(now_ms), self._clock.boot_us() + TURN_US
        while lanes := [lane for lane in quiet if lane.quiet and lane.probed < last]:
            first = min(lane.probed for lane in lanes) + 1
            first = max(first, min(self._pages.first_minute(first), last))
            stop = min(first + max(PROBE_MINUTES // len(lanes), 1), last + 1)
            for shard in self._pages.occupied(range(first, stop), [one.number for one in lanes]):
                self._found(shard, now_ms)
            for lane in lanes:
                lane.probed = max(lane.probed, stop - 1)
            if self._clock.boot_us() > until_us:
                break

    def _found(self, shard: Shard, now_ms: int) -> None:
        lane, layout = self._memory.lanes[shard.lane], self._layout
        is_to_come = shard.minute > layout.minute_of(now_ms)
        # A producer that has not read the settings yet may write more rows.
        until_ms = layout.end_ms(shard.minute) if is_to_come else now_ms + layout.offset_ms
        self._wake(lane, until_ms)
        log.debug("lane %d has rows in minute %d, and is polled", shard.lane, shard.minute)
