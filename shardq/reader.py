"""Reading a queue's lanes: polls from the cursor, a look ahead, catch-up, and sweeps behind now.

```
 current lanes ── one read for all of them: (cursor, now] ───┐
 lagging lanes ── minute by minute, oldest first ────────────┤    known already? ── passed over
 ahead ────────── (now, now + 2 s], every second ────────────┼──► shard leased?  ── else refused
 sweeps ───────── the ladder of `lane.py` ───────────────────┘    ──► ready
```

Which lanes these are, `engine.py` decides; what becomes of the deliveries, `outbox.py`.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING

from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.ids import order_key
from shardq.lane import SLICES, Ladder, Lane
from shardq.ready import Delivery
from shardq.store import Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.clock import Clock
    from shardq.lease import Leases
    from shardq.message import Row
    from shardq.ready import Ready
    from shardq.register import Register
    from shardq.shard import Layout, Position, Shard
    from shardq.store import Store

log = logging.getLogger(__name__)

AHEAD_MS = 2_000
_PAGE_ROWS_MIN = 100
_PAGE_ROWS_MAX = 5_000
_PAGE_BYTES = 4 << 20
_PROBE_MINUTES = 1_440
_SPAN_MS_MIN = 10
_RETRY_MS = 250
_SLICE_ROWS = 5_000
_BLOCKED_FRESH_MS = 500


class Reader:
    """Reads rows of the lanes it is given into `ready`.

    Args:
        prefetch: The most rows that are known and not settled, over all lanes.
        isolated: Read only minutes that ended at least the offset ago.
        on_purged: Given the positions of rows that a purge has reached.
        on_blocked: Given deliveries that wait behind their group's head, and until when.

    Attributes:
        lanes: The lanes that are read, by number.
        known: Row id -> delivery of what has been read and not settled.
        shard_rows: How many of them each shard has.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        leases: Leases,
        ready: Ready,
        *,
        prefetch: int,
        isolated: bool,
        on_purged: Callable[[list[Position]], None],
        on_blocked: Callable[[Delivery, int], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._leases = leases
        self._ready = ready
        self._prefetch = prefetch
        self._isolated = isolated
        self._on_purged = on_purged
        self._on_blocked = on_blocked
        self._page = _PAGE_ROWS_MIN
        self._body_bytes = 1_000.0
        self._ladder = Ladder(register.layout, clock.now_ms())
        self._ahead_next_ms = 0
        self.lanes: dict[int, Lane] = {}
        self.known: dict[bytes, Delivery] = {}
        self.shard_rows: Counter[Shard] = Counter()

    @property
    def _layout(self) -> Layout:
        return self._register.layout

    # Lanes ----------------------------------------------------------------------------------------

    def keep(self, lanes: Iterable[int], sealed: Callable[[], dict[int, int]]) -> list[int]:
        """Read these lanes from now on and no others.

        Args:
            lanes: Their numbers.
            sealed: Gives the sealed minutes of the queue; asked only for lanes that are new.

        Returns:
            The lanes that were given up; their rows that wait are forgotten.
        """
        wanted = set(lanes)
        dropped = [lane for lane in self.lanes if lane not in wanted]
        if dropped:
            self.give_up(lambda one: one.row.shard.lane in dropped)
            for number in dropped:
                del self.lanes[number]
        new = [lane for lane in wanted if lane not in self.lanes]
        if new:
            registered = sealed()
            newest = self._layout.newest_sealable(self._clock.now_ms())
            for number in new:
                start = registered.get(number, self._unsealed_start(number))
                # A register from a clock that ran ahead must not hide open minutes.
                lane = Lane.fresh(number, self._layout, min(start, newest))
                self.lanes[number] = lane
                for one in self.known.values():
                    if one.row.shard.lane == number and not one.claimed:
                        lane.rows += 1
        return dropped

    def _unsealed_start(self, number: int) -> int:
        settings, layout = self._register.settings, self._layout
        made_ms = settings.lane_made_ms(layout.index_of(number))
        return layout.minute_of(max(made_ms - layout.offset_ms, 0)) - 1

    def give_up(self, unwanted: Callable[[Delivery], bool]) -> None:
        """Forget rows that were not handed out, and read them again where their lane stays ours."""
        for one in self._ready.remove(unwanted):
            self.forget(one)
            lane = self.lanes.get(one.row.shard.lane)
            if lane is not None:
                lane.rewind(one.row.due_ms)

    def forget(self, one: Delivery) -> None:
        """A delivery is over: its row is settled, or somebody else's."""
        if self.known.pop(one.row.id, None) is None or one.claimed:
            return
        self._uncount(one.row.shard)

    def park(self, one: Delivery, claim: Row) -> None:
        """A delivery's row has become a claim elsewhere, which no shard of ours waits for."""
        if self.known.pop(one.row.id, None) is not None and not one.claimed:
            self._uncount(one.row.shard)
        one.row = claim
        one.claimed = one.counted = True
        self.known[claim.id] = one

    def _uncount(self, shard: Shard) -> None:
        left = self.shard_rows[shard] - 1
        if left:
            self.shard_rows[shard] = left
        else:
            del self.shard_rows[shard]
        lane = self.lanes.get(shard.lane)
        if lane is not None:
            lane.rows -= 1

    # Reads ----------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Read what has come due since the last poll; returns how many rows were new."""
        now_ms = self._clock.now_ms()
        until_ms = self._until_ms(now_ms)
        lanes = [lane for lane in self.lanes.values() if self._may_read(lane, now_ms)]
        current = [lane for lane in lanes if lane.is_current(until_ms, self._layout)]
        lagging = [lane for lane in lanes if not lane.is_current(until_ms, self._layout)]
        before = len(self.known)
        if current:
            self._read_current(current, until_ms)
        if lagging:
            self._probe(lagging, until_ms)
            for lane in lagging:
                self._read_lagging(lane, until_ms)
        self._set_horizon(now_ms, until_ms)
        return len(self.known) - before

    def is_lagging(self) -> bool:
        """Whether a lane has more to read right now than was read."""
        now_ms = self._clock.now_ms()
        until_ms = self._until_ms(now_ms)
        return any(
            not lane.is_current(until_ms, self._layout)
            and self._room(lane) > 0
            and lane.retry_ms <= now_ms
            for lane in self.lanes.values()
        )

    def is_caught_up(self) -> bool:
        """Whether everything due up to now was read and settled."""
        until_ms = self._until_ms(self._clock.now_ms())
        return not self.known and all(
            lane.is_current(until_ms, self._layout) for lane in self.lanes.values()
        )

    def look_ahead(self, *, at_once: bool = False) -> None:
        """Read rows due in the next 2 s, every second, so that they fire on their millisecond."""
        now_ms = self._clock.now_ms()
        if self._isolated or (now_ms < self._ahead_next_ms and not at_once):
            return
        self._ahead_next_ms = now_ms + AHEAD_MS // 2
        until_ms = now_ms + AHEAD_MS
        lanes = [
            lane
            for lane in self.lanes.values()
            if self._may_read(lane, now_ms) and lane.is_current(now_ms, self._layout)
        ]
        if lanes:
            after_ms = min(lane.cursor_ms for lane in lanes)
            limit = min(self._room(lane) for lane in lanes)
            rows = self._read(lanes, max(after_ms, now_ms - 1), until_ms, "ahead", limit=limit)
            # A claim's holder may still move it on: it is read when due, never before.
            self._accept([row for row in rows if row.claim is None])

    def sweep(self) -> None:
        """Read again what lies behind the cursors, where a rung of the ladder is due."""
        now_ms = self._clock.now_ms()
        until_ms = self._until_ms(now_ms)
        rung = None if self._isolated else self._ladder.due(now_ms)
        if rung is not None:
            lanes = self._sweepable(now_ms, until_ms)
            if lanes:
                oldest = self._layout.start_ms(min(lane.sealed for lane in lanes) + 1)
                after_ms = max(now_ms - rung.depth_ms, oldest - 1)
                end_ms = min(lane.cursor_ms for lane in lanes)
                self._sweep_slices(lanes, after_ms, end_ms, rung.purpose)
        for back, minute in self._ladder.sealed_due(now_ms):
            lanes = [lane for lane in self._sweepable(now_ms, until_ms) if lane.sealed >= minute]
            if lanes and minute >= 0:
                start_ms, end_ms = self._layout.start_ms(minute), self._layout.end_ms(minute)
                self._sweep_slices(lanes, start_ms - 1, end_ms - 1, f"sweep sealed {back} min")

    def next_sweep_ms(self) -> int:
        """When the next rung is due, epoch milliseconds."""
        return self._ladder.next_ms()

    def sealable(self) -> dict[int, int]:
        """Sweep the shards that may be sealed; returns lane -> minute of those that are empty."""
        now_ms = self._clock.now_ms()
        newest = self._layout.newest_sealable(now_ms)
        sealed: dict[int, int] = {}
        for lane in self.lanes.values():
            last = min(newest, lane.sealed + _PROBE_MINUTES, self._read_to(lane))
            minutes = range(lane.sealed + 1, last + 1)
            minute = self._empty_until(lane, minutes) if minutes else lane.sealed
            if minute > lane.sealed:
                lane.sealed = sealed[lane.number] = minute
                lane.used = {m: count for m, count in lane.used.items() if m > minute}
        return sealed

    def _read_to(self, lane: Lane) -> int:
        """The last minute that was read to its end."""
        return self._layout.minute_of(lane.cursor_ms + 1) - 1

    def _empty_until(self, lane: Lane, minutes: range) -> int:
        """The last of these minutes up to which the lane's shards have no rows."""
        layout = self._layout
        quiet = [minute for minute in minutes if minute not in lane.used]
        occupied: set[int] = set()
        if quiet:
            span = range(quiet[0], quiet[-1] + 1)
            occupied = {shard.minute for shard in self._occupied(span, [lane])} - lane.used.keys()
        for minute in minutes:
            if minute in occupied:
                # Somebody wrote into a minute that was read already, and no sweep has seen it yet.
                lane.used[minute] = 1
            if minute in lane.used and not self._is_drained(lane, minute):
                return minute - 1
        return minutes[-1]

    def _is_drained(self, lane: Lane, minute: int) -> bool:
        layout = self._layout
        if any(s.minute == minute and s.lane == lane.number for s in self.shard_rows):
            return False
        return not self._sweep_slices(
            [lane],
            layout.start_ms(minute) - 1,
            layout.end_ms(minute) - 1,
            "sweep seal",
            slices=-(-lane.used[minute] // _SLICE_ROWS),
        )

    def _until_ms(self, now_ms: int) -> int:
        if not self._isolated:
            return now_ms
        return self._layout.end_ms(self._layout.newest_sealable(now_ms)) - 1

    def _may_read(self, lane: Lane, now_ms: int) -> bool:
        return lane.retry_ms <= now_ms and self._room(lane) > 0

    def _room(self, lane: Lane) -> int:
        share = max(self._prefetch // max(len(self.lanes), 1), 1)
        return min(share - lane.rows, self._page)

    def _sweepable(self, now_ms: int, until_ms: int) -> list[Lane]:
        return [
            lane
            for lane in self.lanes.values()
            if lane.retry_ms <= now_ms and lane.is_current(until_ms, self._layout)
        ]

    def _read_current(self, lanes: Sequence[Lane], until_ms: int) -> None:
        after_ms = min(lane.cursor_ms for lane in lanes)
        if after_ms >= until_ms:
            return
        limit = min(self._room(lane) for lane in lanes)
        rows = self._read(lanes, after_ms, until_ms, "poll", limit=limit)
        refused = self._accept(rows)
        counts = Counter(row.shard for row in rows)
        last: dict[int, Row] = {}
        for row in rows:
            # Rows come by minute, so the first shard that was cut short stops the lane's cursor.
            if counts[row.shard] >= limit:
                held = last.get(row.shard.lane)
                if held is None or held.shard == row.shard:
                    last[row.shard.lane] = row
        for lane in lanes:
            cut = last.get(lane.number)
            stop_ms = refused.get(lane.number)
            if stop_ms is not None:
                lane.advance(min(stop_ms - 1, until_ms if cut is None else cut.due_ms - 1))
            elif cut is not None:
                lane.advance(cut.due_ms, cut.id)
                lane.full = True
            else:
                lane.advance(until_ms)

    def _probe(self, lanes: Sequence[Lane], until_ms: int) -> None:
        """Find the minutes with rows between the cursors and now, before leasing any of them."""
        wanted = [lane for lane in lanes if lane.behind is None]
        if not wanted:
            return
        layout = self._layout
        first = layout.minute_of(min(lane.cursor_ms for lane in wanted) + 1)
        last = min(layout.minute_of(until_ms), first + _PROBE_MINUTES - 1)
        # Open minutes are read anyhow: a probe would go through all that was settled in them.
        open_from = max(layout.newest_sealable(self._clock.now_ms()) + 1, first)
        found = self._occupied(range(first, min(open_from, last + 1)), wanted)
        for lane in wanted:
            start = layout.minute_of(lane.cursor_ms + (lane.cursor_id is None))
            lane.behind = deque(
                shard.minute
                for shard in found
                if shard.lane == lane.number and shard.minute >= start
            )
            lane.behind.extend(range(max(open_from, start), last + 1))
            lane.behind_until_ms = min(layout.end_ms(last) - 1, until_ms)

    def _occupied(self, minutes: range, lanes: Sequence[Lane]) -> list[Shard]:
        """Those shards that have rows, or all of them where they hold too much to tell."""
        if not minutes:
            return []
        layout, numbers = self._layout, [lane.number for lane in lanes]
        try:
            return self._store.occupied(layout.queue, minutes, numbers)
        except (StoreUnavailable, StoreTimeout) as error:
            log.info("queue %s: minutes read one by one, for %s", layout.queue, error)
            return [
                layout.shard(layout.start_ms(minute), lane)
                for minute in minutes
                for lane in numbers
            ]

    def _read_lagging(self, lane: Lane, until_ms: int) -> None:
        while lane.behind and (room := self._room(lane)) > 0:
            if not self._read_minute(
                lane, lane.behind[0], min(until_ms, lane.behind_until_ms), room
            ):
                return
        if not lane.behind:
            lane.advance(lane.behind_until_ms)
            lane.behind, lane.full = None, False

    def _read_minute(self, lane: Lane, minute: int, until_ms: int, limit: int) -> bool:
        """Read on in a lagging lane's minute; False where its shard is another's."""
        layout = self._layout
        start_ms = layout.start_ms(minute) - 1
        after_ms = max(lane.cursor_ms, start_ms)
        after_id = lane.cursor_id if after_ms == lane.cursor_ms else None
        last_ms = min(layout.end_ms(minute) - 1, until_ms)
        span_ms = lane.span_ms
        if not layout.may_seal(minute, self._clock.now_ms()):
            # An open minute may be full of what its former reader has settled.
            span_ms = min(span_ms, max(layout.minute_ms // SLICES, _SPAN_MS_MIN))
        end_ms = min(last_ms, after_ms + span_ms)
        try:
            rows = self._read([lane], after_ms, end_ms, "poll", limit=limit, after_id=after_id)
        except (StoreUnavailable, StoreTimeout):
            lane.span_ms = max(lane.span_ms // 2, _SPAN_MS_MIN)
            raise
        lane.span_ms = min(lane.span_ms * 2, layout.minute_ms)
        refused = self._accept(rows)
        if lane.number in refused:
            lane.advance(refused[lane.number] - 1)
            return False
        if len(rows) >= limit:
            lane.advance(rows[-1].due_ms, rows[-1].id)
            return True
        lane.advance(end_ms)
        if end_ms >= last_ms and lane.behind:
            lane.behind.popleft()
        return True

    def _sweep_slices(
        self, lanes: Sequence[Lane], after_ms: int, end_ms: int, purpose: str, slices: int = 0
    ) -> int:
        """Read (after, end] again in slices; returns how many rows were found that nobody knew."""
        length = max(self._layout.minute_ms // SLICES, _SPAN_MS_MIN)
        if slices:
            length = -(-(end_ms - after_ms) // slices)
        before = len(self.known)
        while after_ms < end_ms:
            stop_ms = min(after_ms + length, end_ms)
            try:
                self._sweep_slice(lanes, after_ms, stop_ms, purpose)
            except (StoreUnavailable, StoreTimeout):
                if length <= _SPAN_MS_MIN:
                    raise
                length = max(length // 2, _SPAN_MS_MIN)
                continue
            after_ms = stop_ms
        found = len(self.known) - before
        if found:
            log.info("%s found %d rows behind the cursor", purpose, found)
        return found

    def _sweep_slice(
        self, lanes: Sequence[Lane], after_ms: int, until_ms: int, purpose: str
    ) -> None:
        """Read a slice to its end, whatever it holds: page by page where a shard has more rows."""
        limit = self._page
        rows = self._read(lanes, after_ms, until_ms, purpose, limit=limit)
        self._accept(rows)
        for shard, count in Counter(row.shard for row in rows).items():
            if count >= limit:
                last = max((row for row in rows if row.shard == shard), key=_place)
                self._sweep_on(last, min(until_ms, self._layout.end_ms(shard.minute) - 1), purpose)

    def _sweep_on(self, last: Row, until_ms: int, purpose: str) -> None:
        """Read on in a shard whose page was full."""
        lane = self.lanes[last.shard.lane]
        while True:
            limit = self._page
            page = self._read([lane], last.due_ms, until_ms, purpose, limit=limit, after_id=last.id)
            self._accept(page)
            if len(page) < limit:
                return
            last = page[-1]

    def _read(
        self,
        lanes: Sequence[Lane],
        after_ms: int,
        until_ms: int,
        purpose: str,
        *,
        limit: int = _PAGE_ROWS_MAX,
        after_id: bytes | None = None,
    ) -> list[Row]:
        layout = self._layout
        first = layout.minute_of(after_ms + (after_id is None))
        wanted = Slice(
            layout.queue,
            range(max(first, 0), layout.minute_of(until_ms) + 1),
            [lane.number for lane in lanes],
            after_ms,
            until_ms,
            limit,
            after_id,
            purpose,
        )
        try:
            rows = self._store.read(wanted)
        except (StoreUnavailable, StoreTimeout):
            self._page = max(self._page // 2, 1)
            raise
        if rows:
            self._adapt(rows, limit)
        return rows

    def _adapt(self, rows: Sequence[Row], limit: int) -> None:
        seen = sum(len(row.body) for row in rows) / len(rows)
        self._body_bytes += (seen - self._body_bytes) * (1.0 if seen > self._body_bytes else 0.2)
        fits = int(_PAGE_BYTES / (self._body_bytes + 100))
        grown = self._page * 2 if len(rows) >= min(limit, self._page) else self._page
        self._page = max(1, min(grown, fits, _PAGE_ROWS_MAX))

    # Rows -----------------------------------------------------------------------------------------

    def _accept(self, rows: Sequence[Row]) -> dict[int, int]:
        """Lease the shards of rows that are new, and make them ready.

        Returns:
            Lane -> due of its first row that was refused, because its shard is another's.
        """
        known = self.known
        fresh = [row for row in rows if row.id not in known]
        if fresh and self._register.settings.purged_before_us:
            fresh = self._without_purged(fresh)
        if not fresh:
            return {}
        # All I/O comes first: a row that is known but not ready would never be delivered.
        refused = self._lease({row.shard for row in fresh})
        grouped = {row.shard.lane for row in fresh if row.group is not None}
        if grouped:
            self._read_blocked(grouped)
            self.close_groups()
        added = []
        for row in fresh:
            shard = row.shard
            lease = self._leases.get(shard)
            lane = self.lanes.get(shard.lane)
            if lease is None or lane is None:
                continue
            one = Delivery(row, lane.band, lease)
            if lease.careful:
                lease.careful -= 1
                one.careful = True
            known[row.id] = one
            self.shard_rows[shard] += 1
            lane.rows += 1
            lane.used[shard.minute] = lane.used.get(shard.minute, 0) + 1
            until_ms = self._blocked_until(lane, row) if row.group is not None else 0
            if until_ms:
                self._on_blocked(one, until_ms)
            else:
                added.append(one)
        self._ready.add(added)
        return refused

    def _lease(self, shards: set[Shard]) -> dict[int, int]:
        missing = [shard for shard in shards if self._leases.get(shard) is None]
        if not missing:
            return {}
        now_ms = self._clock.now_ms()
        tried = self._untried(missing)
        held = self._leases.take(tried)
        refused: dict[int, int] = {}
        for shard in missing:
            if shard in held or shard not in tried:
                lane = self.lanes[shard.lane]
                lane.retry_ms = now_ms + _RETRY_MS
                start_ms = self._layout.start_ms(shard.minute)
                refused[shard.lane] = min(start_ms, refused.get(shard.lane, start_ms))
        return refused

    def _untried(self, shards: list[Shard]) -> set[Shard]:
        """Those worth an LWT: what was refused before is looked at with a plain read first."""
        doubtful = [shard for shard in shards if self.lanes[shard.lane].retry_ms]
        states = self._store.leases(doubtful) if doubtful else {}
        free = {shard for shard in shards if shard not in states or states[shard].lock is None}
        for shard in free:
            self.lanes[shard.lane].retry_ms = 0
        return free

    def _without_purged(self, rows: list[Row]) -> list[Row]:
        before_us = self._register.settings.purged_before_us
        kept = [row for row in rows if row.entered_us >= before_us]
        if len(kept) < len(rows):
            self._on_purged([row.position for row in rows if row.entered_us < before_us])
        return kept

    def _read_blocked(self, lanes: Iterable[int]) -> None:
        now_ms = self._clock.now_ms()
        for number in lanes:
            lane = self.lanes.get(number)
            if lane is not None and now_ms - lane.blocked_read_ms > _BLOCKED_FRESH_MS:
                lane.blocked = self._store.blocked(self._layout.queue, number)
                lane.blocked_read_ms = now_ms

    def _blocked_until(self, lane: Lane, row: Row) -> int:
        """Until when a row has to wait behind its group's head; 0 where it need not."""
        now_ms = self._clock.now_ms()
        until_ms, message_id = lane.blocked.get(row.group or "", (0, ""))
        if until_ms <= row.due_ms or until_ms <= now_ms or message_id == row.message_id:
            return 0
        return until_ms

    def close_groups(self) -> None:
        """Hold back grouped rows of lanes of which another member may still have an older shard."""
        closed = [lane for lane in self.lanes.values() if lane.groups_closed]
        if closed:
            layout = self._layout
            newest = layout.minute_of(self._clock.now_ms()) + 1
            shards = [
                layout.shard(layout.start_ms(minute), lane.number)
                for lane in closed
                for minute in range(max(lane.sealed + 1, newest - _PROBE_MINUTES), newest + 1)
            ]
            states = self._store.leases(shards)
            foreign = {
                shard.lane
                for shard, state in states.items()
                if state.lock is not None and self._leases.get(shard) is None
            }
            for lane in closed:
                lane.groups_closed = lane.number in foreign
        self._ready.open_groups({n for n, lane in self.lanes.items() if lane.groups_closed})

    def _set_horizon(self, now_ms: int, until_ms: int) -> None:
        horizon: list[int | None] = [None] * self._layout.bands
        for lane in self.lanes.values():
            if lane.is_current(until_ms, self._layout) or not self._may_read(lane, now_ms):
                continue
            seen = horizon[lane.band]
            horizon[lane.band] = lane.cursor_ms if seen is None else min(seen, lane.cursor_ms)
        self._ready.set_horizon(horizon)


def _place(row: Row) -> tuple[int, bytes]:
    return row.due_ms, order_key(row.id)
