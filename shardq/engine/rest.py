"""When an engine may rest, for a caller that steps the engine only if there is work.

```
 step ─► until_ms ── None, or later ──► begin ─► time passes ─► step: reads from where it stopped
               └──── now ─────────────────────────────────────► step
```

However long a rest is, no message is missed. A rest is like a pause of the process, but leases are
released before they run out. If the caller of the steps vouches that no other process uses the
store, most steps are brief. They leave out heartbeats, sweeps and seals, which serve a queue that
several processes use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shardq.engine.members.part import Part
from shardq.engine.reading.lane import RUNGS
from shardq.engine.reading.sweeper import NEWS_BACK_MS
from shardq.stores.store import NEVER, Slice

_BRIEF_MAX = 1_000
"""The most brief steps between two full ones."""

if TYPE_CHECKING:
    from shardq.engine.groups.room import GroupLanes
    from shardq.engine.handing.starts import Starts
    from shardq.engine.members.member import Member
    from shardq.engine.reading.intake import Intake
    from shardq.engine.reading.sweeper import Sweeper
    from shardq.engine.storing.outbox import Outbox


class Along(Protocol):
    """The firer of the queue's schedules, which is stepped along with its engine."""

    def next_ms(self) -> int | None:
        """When the firer has work next, epoch milliseconds; None if never."""

    def hurry(self) -> None:
        """Let the firer's next step read the changes of schedules."""


class Rest(Part):
    """Finds out until when an engine may rest, and prepares the rest. In the thread that steps it.

    Attributes:
        along: Fires the queue's schedules, and is stepped with the engine; None without schedules.
        was_brief: True if the last step was brief.
        is_alone: True if the caller of the steps vouches that no other process uses the store. The
            caller then calls `note` for each row that is placed, and `hurry` when settings have
            changed.
    """

    def __init__(
        self,
        member: Member,
        intake: Intake,
        starts: Starts,
        outbox: Outbox,
        groups: GroupLanes,
        sweeper: Sweeper,
        along: Along | None,
    ) -> None:
        super().__init__(member)
        self.along = along
        self._intake = intake
        self.is_alone = self.was_brief = self._is_behind = False
        self._brief = _BRIEF_MAX
        self._next_ms = 0
        """The time before which there is no work, by the last look and the calls of `note` since;
        epoch milliseconds."""
        self._groups = groups
        self._starts = starts
        self._outbox = outbox
        self._sweeper = sweeper

    def is_brief(self) -> bool:
        """True if the step that begins need only read due rows and settle."""
        memory, used = self._memory, self._register.layout.bands_used
        if (
            not self.is_alone
            or self._brief >= _BRIEF_MAX
            or self._membership.beats
            or any(one.retry_ms or (one.quiet and one.band < used) for one in memory.lanes.values())
        ):
            self._brief = 0
            self.was_brief = False
            return False
        self._brief += 1
        self.was_brief = True
        return True

    def is_over(self) -> bool:
        """True if there is work now, provided that `note` was called for each placed row."""
        return self._next_ms <= self._clock.now_ms()

    def hurry(self) -> None:
        """Make the next step a full one."""
        self._brief, self._next_ms = _BRIEF_MAX, 0
        if self.along is not None:
            self.along.hurry()

    def note(self, due_ms: int) -> None:
        """Note that a row was placed in the queue, due at `due_ms`, epoch milliseconds."""
        self._next_ms = min(self._next_ms, due_ms)
        if due_ms <= self._clock.now_ms():
            self._is_behind = True
            self._news.on_put(due_ms)

    def take_behind(self) -> bool:
        """True, once, if a row was placed where lanes may have been read already."""
        is_behind, self._is_behind = self._is_behind, False
        return is_behind

    def until_ms(self) -> int | None:
        """The time of the next work, if nobody puts a message. Costs four reads at most.

        Returns:
            Epoch milliseconds; now if there is work, or if a lane waits for another member. A lane
            that waits needs no step before the delay that the last step returned has passed. None
            if the store's index shows no row, or the queue is paused, and no schedule will fire.
        """
        now_ms = self._clock.now_ms()
        if not self.is_alone or self._next_ms <= now_ms:
            self._next_ms = self._look_ms(now_ms)
        own_ms = None if self._next_ms == NEVER else self._next_ms
        if self.along is None:
            return own_ms
        other_ms = self.along.next_ms()
        return min((ms for ms in (own_ms, other_ms) if ms is not None), default=None)

    def _look_ms(self, now_ms: int) -> int:
        if self._register.settings.paused:
            return NEVER
        if self._is_at_work(now_ms):
            return now_ms
        # Begin at the cursors: a lane whose rows were released is reread from its cursor.
        cursors_ms = (lane.cursor_ms for lane in self._memory.polled)
        first_ms = self._next_due_ms(min([now_ms - NEWS_BACK_MS, *cursors_ms]))
        heads_ms = self._groups.next_ms()
        if heads_ms <= now_ms:
            return now_ms
        if first_ms is not None and first_ms <= now_ms:
            self.note(first_ms)
            return now_ms
        return min(NEVER if first_ms is None else first_ms, heads_ms)

    def _next_due_ms(self, after_ms: int) -> int | None:
        """The due of the queue's first row after a due; None if an index shows no such row."""
        layout = self._register.layout
        minute = layout.minute_of(after_ms + 1)
        while (first := self._store.next_minute(layout.queue, minute)) not in (None, NEVER):
            wanted = Slice(
                layout.queue,
                range(first, first + 1),
                layout.all_lanes(),
                max(after_ms, layout.start_ms(first) - 1),
                layout.end_ms(first) - 1,
                limit=1,
                purpose="next due",
                bodies=False,
            )
            if rows := self._store.read(wanted):
                return min(row.due_ms for row in rows)
            minute = first + 1
        return None

    def _is_at_work(self, now_ms: int) -> bool:
        """True if a row in memory is due, an outcome is not stored, or a lane will be retried."""
        return (
            (self._is_behind if self.is_alone else self._news.is_near)
            or not self._outbox.is_empty
            or self._starts.has_late
            or any(lane.retry_ms > now_ms for lane in self._memory.polled)
            or self._groups.is_at_work
            or any(
                one.row.due_ms <= now_ms and not one.grouped for one in self._memory.known.values()
            )
        )

    def begin(self, until_ms: int) -> None:
        """If a lease would run out by `until_ms`, release all leases, and rows that have not begun.

        Raises:
            StoreUnavailable, StoreTimeout: The leases are not released, and run out.
        """
        if not (held := self._leases.held()):
            return
        after_us = self._clock.boot_us() + until_ms * 1_000 - self._clock.now_us()
        if any(lease.deadline_us <= after_us for lease in held):
            self._intake.give_up(lambda _: True)
            self._leases.release([lease.shard for lease in held])

    def pass_to(self, until_ms: int) -> None:
        """Begin a rest, like `begin`, in which no process does anything until `until_ms`.

        If no row is due before `until_ms`, the lanes count as read and swept up to then.
        """
        polled = self._memory.polled
        cursors_ms = [lane.cursor_ms for lane in polled]
        self.begin(until_ms)
        if self.is_alone and self._next_ms >= until_ms and not self._membership.beats:
            for lane, cursor_ms in zip(polled, cursors_ms, strict=True):
                # A cursor that moved back stays before its rows of groups, which wait in place.
                if lane.behind is None and not lane.full and lane.cursor_ms >= cursor_ms:
                    lane.advance(until_ms - 1)
            self._sweeper.ladder.swept(RUNGS[-1], until_ms)
