"""The lanes of a queue that one member reads: its own lanes, and lanes that it adopts for a while.

`membership.py` ranks the members for each lane; the lease decides which of them reads the lane.
`quiet.py` decides which lanes are polled, and `auto.py` how many lanes a queue has.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardq.engine.leases.guard import Guard
from shardq.engine.members.auto import AutoLanes
from shardq.engine.members.part import Part
from shardq.engine.reading.quiet import Quiet
from shardq.records.membership import PASS_ON_MS
from shardq.stores.tables import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardq.engine.groups.room import GroupLanes
    from shardq.engine.members.member import Member
    from shardq.engine.reading.intake import Intake
    from shardq.engine.reading.pages import Pages
    from shardq.engine.reading.reader import Reader

log = logging.getLogger(__name__)

_ADOPTED_MS = 10_000
_SETTLING_US = 1_500_000
"""How long a member may take to read the group lanes that have become its own by rank."""
_SETTLED_MS = 500
"""An adopted lane is given away no sooner than this: its first head takes a moment to begin."""


class Lanes(Part):
    """Decides which lanes one member reads; `memory.lanes` holds the state of each.

    Args:
        groups: The group lanes.
        put_rate: Returns how many messages are put a second.

    Attributes:
        only_keeps: True if the member takes no lanes beside the lanes that it reads already.
        is_leaving: True if the member ends soon, and keeps its lanes until then.
        quiet: Decides which lanes are polled, and in which no rows are expected.
        auto: Decides how many lanes the queue has, if its consumers are to decide.
    """

    def __init__(
        self,
        member: Member,
        intake: Intake,
        groups: GroupLanes,
        reader: Reader,
        pages: Pages,
        put_rate: Callable[[], float],
    ) -> None:
        super().__init__(member)
        self._intake = intake
        self._groups = groups
        self._reader = reader
        self._pages = pages
        self._is_reading = False
        self.only_keeps = False
        self.is_leaving = False
        self._released_us = -_SETTLING_US
        """When group lanes last became another member's by rank, time since boot."""
        self.auto = AutoLanes(self._home, put_rate)
        self._given: dict[int, tuple[str, int]] = {}
        """Group lane -> the member that it was given to, and until when that member keeps it."""
        self.begin_in_time()

    def begin_in_time(self) -> None:
        """Make the parts that remember wall-clock times; called again after the clock was set."""
        self._assigned_turn: int | None = None
        self._looks_after = Guard(self._home)
        self.quiet = Quiet(self._home, self._memory, self._reader, self._pages)

    @property
    def is_settling(self) -> bool:
        """True if group lanes became another member's lately: it may not have read them yet."""
        return self._clock.boot_us() - self._released_us < _SETTLING_US

    @property
    def told(self) -> tuple[int, ...]:
        """The lanes in which others may give rows to this member: those that it polls."""
        polled = self._memory.polled
        return tuple(sorted(lane.number for lane in polled if not lane.of_groups))

    def assign_anew(self) -> None:
        """Let the next step assign lanes, even if no member has joined or left."""
        self._assigned_turn = None

    def turn_has_changed(self) -> bool:
        """True if lanes must be assigned anew, though no member has joined or left."""
        now_ms = self._clock.now_ms()
        if len(self._membership.others) < self._register.settings.lanes_written:
            return self._assigned_turn is None
        return self._assigned_turn != now_ms // PASS_ON_MS

    def assign(self, *, is_reading: bool) -> None:
        """Read the lanes that are this member's by rank, and release all others.

        Args:
            is_reading: True if the member reads any lanes; False if it has no demand, and so
                releases them to other members.
        """
        if self.is_leaving:
            return
        self._is_reading = is_reading
        now_ms = self._clock.now_ms()
        # If the store fails below, the next step assigns lanes again.
        self._assigned_turn = None
        ranks = self._ranks(now_ms) if is_reading else {}
        self._forget_gifts(now_ms)
        mine = {lane for lane, rank in ranks.items() if rank == 0 and lane not in self._given}
        if self.only_keeps:
            mine &= self._memory.lanes.keys()
        adopted = {
            lane.number
            for lane in self._memory.lanes.values()
            if lane.adopted_until_ms > now_ms and is_reading
        }
        left = self._memory.lanes.keys() - (mine | adopted)
        if any(map(self._register.layout.is_of_groups, left)):
            self._released_us = self._clock.boot_us()
        self._keep(mine | adopted)
        if not self.only_keeps:
            # Otherwise leave it unset, so that the next caller's first step takes the lanes not
            # taken now.
            self._assigned_turn = now_ms // PASS_ON_MS
        for number in mine:
            self._memory.lanes[number].adopted_until_ms = 0
        if self._register.layout.first_lane in mine and not self.only_keeps:
            self.auto.decide(len(self._membership.others) + 1)

    def _ranks(self, now_ms: int) -> dict[int, int]:
        """This member's rank for each lane; the member with rank 0 should read it."""
        layout, filled = self._register.layout, self._register.settings.lanes_written
        lanes = layout.lanes()
        ranks = self._membership.ranks(lanes, now_ms, bands=layout.bands, filled=filled)
        if layout.groups_used:
            # Rank at a fixed time: a group lane that was passed on each second would make no
            # progress.
            ranks |= self._membership.ranks(layout.lanes_of_groups(), 0)
        return ranks

    def _keep(self, lanes: set[int]) -> None:
        if lanes != set(self._memory.lanes):
            name = self._register.name
            self._intake.keep(lanes, lambda: self._store.notes(LANES, (name,)))
            log.info("queue %s: reading lanes %s", name, sorted(lanes))

    def _forget_gifts(self, now_ms: int) -> None:
        """Forget lanes given away long ago, or to members that have left or died."""
        beats = self._membership.beats
        self._given = {
            lane: (to, until_ms)
            for lane, (to, until_ms) in self._given.items()
            if until_ms > now_ms and to in beats
        }

    def guard(self) -> None:
        """Adopt lanes whose reader by rank has left due rows unread for a second."""
        now_ms = self._clock.now_ms()
        # A lane that was given away is not taken back before the other member had time to adopt it.
        self._forget_gifts(now_ms)
        taken = self._memory.lanes.keys() | self._given.keys()
        others = [lane for lane in self._register.layout.all_lanes() if lane not in taken]
        has_no_use = self._isolated or self.only_keeps or self.is_leaving or not self._is_reading
        if has_no_use or not others or self.is_settling or not self._looks_after.is_due():
            return
        ranks = self._ranks(now_ms)
        watched = self.quiet.of_others(others, now_ms)
        adopted = self._looks_after.left_alone({lane: ranks[lane] for lane in watched})
        if adopted:
            self.adopt(adopted)
            log.info("queue %s: adopted lanes %s", self._register.name, sorted(adopted))

    def adopt(self, lanes: set[int]) -> None:
        """Read lanes for a while that are another member's by rank."""
        new = lanes - self._memory.lanes.keys()
        if not new or self.is_leaving or self.only_keeps or not self._is_reading:
            return
        self._keep(set(self._memory.lanes) | new)
        for number in new:
            self._memory.lanes[number].adopted_until_ms = self._clock.now_ms() + _ADOPTED_MS

    @property
    def given(self) -> tuple[tuple[int, str], ...]:
        """The group lanes given away lately, each with the member that got it."""
        return tuple((lane, name) for lane, (name, _) in sorted(self._given.items()))

    def may_give(self, lane: int) -> bool:
        """True if this member reads a lane, and did not adopt it within the last half second."""
        mine = self._memory.lanes.get(lane)
        since_ms = self._clock.now_ms() + _ADOPTED_MS - _SETTLED_MS
        return mine is not None and mine.adopted_until_ms <= since_ms

    def give(self, lanes: Mapping[int, str]) -> None:
        """Release group lanes to the members that they are given to."""
        until_ms = self._clock.now_ms() + _ADOPTED_MS
        self._given |= {lane: (name, until_ms) for lane, name in lanes.items()}
        self._keep(set(self._memory.lanes) - lanes.keys())
        self._membership.hurry()
