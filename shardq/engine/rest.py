"""The rest of an engine whose steps are called when there is something to do, and not before.

```
 step ─► until_ms ── None, or later ──► begin ─► time passes ─► step: reads on where it has left off
               └──── now ─────────────────────────────────────► step
```

Nothing is missed by it, however long it takes: that is a process that stands still, but for leases
that run out, and need not. Where whoever steps it vouches that nobody else is there, most steps are
brief: what heartbeats, sweeps and seals are for happens among several processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.engine.reading.lane import RUNGS
from shardq.engine.reading.sweeper import NEWS_BACK_MS
from shardq.stores.store import NEVER, Slice

_BRIEF_MAX = 1_000
"""Brief steps between two others, at most."""

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.engine.groups.room import GroupLanes
    from shardq.engine.handing.starts import Starts
    from shardq.engine.members.member import Member
    from shardq.engine.reading.intake import Intake
    from shardq.engine.reading.sweeper import Sweeper
    from shardq.engine.storing.outbox import Outbox


class Rest:
    """Tells until when an engine may rest, and readies it. From the thread that steps it.

    Args:
        along: Gives the rest of an engine that is stepped along with this one, if one is.

    Attributes:
        along: Likewise.
        was_brief: Whether the last step was.
        is_alone: Whether who steps the engine vouches that no other process uses the store, and
            tells it by `note` of each row that is placed, and by `hurry` of changed settings.
        clock: By which time is told.
        register: The queue's record.
    """

    def __init__(
        self,
        member: Member,
        intake: Intake,
        starts: Starts,
        outbox: Outbox,
        groups: GroupLanes,
        sweeper: Sweeper,
        along: Callable[[], Rest | None],
    ) -> None:
        self.along = along
        self._memory = member.memory
        self._intake = intake
        self.is_alone = self.was_brief = self._is_behind = False
        self._brief = _BRIEF_MAX
        self._next_ms = 0
        """Before that nothing is to be done, as far as was told since that was looked up."""
        self._membership = member.membership
        self._groups = groups
        self.clock = member.clock
        self.register = member.register
        self._store = member.store
        self._starts = starts
        self._outbox = outbox
        self._leases = member.leases
        self._news = member.news
        self._sweeper = sweeper

    def is_brief(self) -> bool:
        """Whether the step that begins may leave out all but reading and settling."""
        memory, used = self._memory, self.register.layout.bands_used
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
        """Whether something is to be done, of an engine that is told of all that is placed."""
        return self._next_ms <= self.clock.now_ms()

    def hurry(self) -> None:
        """Let the next step be a whole one."""
        self._brief, self._next_ms = _BRIEF_MAX, 0
        if (along := self.along()) is not None:
            along.hurry()

    def note(self, due_ms: int) -> None:
        """A row has been placed in the queue, due then, epoch milliseconds."""
        self._next_ms = min(self._next_ms, due_ms)
        if due_ms <= self.clock.now_ms():
            self._is_behind = True
            self._news.on_put(due_ms)

    def take_behind(self) -> bool:
        """Whether a row has been placed where lanes may have been read; once."""
        is_behind, self._is_behind = self._is_behind, False
        return is_behind

    def until_ms(self) -> int | None:
        """Until when nothing is to be done, if nobody puts anything. Two reads at most.

        Returns:
            Epoch milliseconds, not before now. Now: there is something to do, or it waits for
            another member; the last step has said for how long. None: for ever, as far as an index
            tells where rows are.
        """
        now_ms = self.clock.now_ms()
        if not self.is_alone or self._next_ms <= now_ms:
            self._next_ms = self._look_ms(now_ms)
        own_ms = None if self._next_ms == NEVER else self._next_ms
        if (along := self.along()) is None:
            return own_ms
        along.is_alone = self.is_alone
        other_ms = along.until_ms()
        return min((ms for ms in (own_ms, other_ms) if ms is not None), default=None)

    def _look_ms(self, now_ms: int) -> int:
        if self.register.settings.paused:
            return NEVER
        if self._is_at_work(now_ms):
            return now_ms
        # A lane whose rows were given up is to be read again from there.
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
        """The due of the first row of the queue after a due; None where an index tells of none."""
        layout = self.register.layout
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
        """Whether something that is in memory is due, or is to be stored."""
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
        """Release what would run out until then, and with it what has not begun.

        Raises:
            StoreUnavailable, StoreTimeout: It runs out, then.
        """
        self._release(until_ms)
        if (along := self.along()) is not None:
            along.begin(until_ms)

    def _release(self, until_ms: int) -> None:
        if not (held := self._leases.held()):
            return
        after_us = self.clock.boot_us() + until_ms * 1_000 - self.clock.now_us()
        if any(lease.deadline_us <= after_us for lease in held):
            self._intake.give_up(lambda _: True)
            self._leases.release([lease.shard for lease in held])

    def pass_to(self, until_ms: int) -> None:
        """Let time pass until then, as `begin` does; nobody does anything meanwhile.

        What is known to hold nothing that is due before counts as read.
        """
        polled = self._memory.polled
        cursors_ms = [lane.cursor_ms for lane in polled]
        self._release(until_ms)
        if self.is_alone and self._next_ms >= until_ms and not self._membership.beats:
            for lane, cursor_ms in zip(polled, cursors_ms, strict=True):
                # A cursor that went back is before rows of groups, which wait where they are.
                if lane.behind is None and not lane.full and lane.cursor_ms >= cursor_ms:
                    lane.advance(until_ms - 1)
            self._sweeper.was_swept(RUNGS[-1], until_ms)
        if (along := self.along()) is not None:
            along.pass_to(until_ms)

    @property
    def begun(self) -> int:
        """How many deliveries have begun here, and along."""
        along = self.along()
        return self._outbox.begun + (0 if along is None else along.begun)
