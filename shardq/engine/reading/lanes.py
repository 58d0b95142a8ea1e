"""The lanes of a queue that one member reads: its own, and those that it adopts for a while.

Who should read which, `membership.py` says; the lease says who does. Which of them are polled,
`quiet.py` says, and how many there should be, `auto.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardq.engine.leases.guard import Guard
from shardq.engine.members.auto import AutoLanes
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


class Lanes:
    """The lanes of one member; `memory.lanes` holds each as it is read.

    Args:
        groups: The group lanes.
        put_rate: Gives how many messages are put a second.

    Attributes:
        only_keeps: Whether no lane is taken that is not held already.
        is_leaving: Whether none is taken or left any more: it ends soon, with all of them.
        auto: Decides how many lanes the queue has, where that is left to its consumers.
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
        self._home = member.home
        self._store = member.store
        self._clock = member.clock
        self._register = member.register
        self._memory = member.memory
        self._intake = intake
        self._membership = member.membership
        self._groups = groups
        self._isolated = member.isolated
        self._reader = reader
        self._pages = pages
        self._is_reading = False
        self.only_keeps = False
        self.is_leaving = False
        self.auto = AutoLanes(self._home, put_rate)
        self._given: dict[int, tuple[str, int]] = {}
        """Group lane -> whom it was given to, and until when that one keeps it."""
        self.begin_in_time()

    def begin_in_time(self) -> None:
        """Make anew what remembers times of the wall clock."""
        self._assigned_turn: int | None = None
        self._looks_after = Guard(self._home)
        self._quiet = Quiet(self._home, self._memory, self._reader, self._pages)

    @property
    def told(self) -> tuple[int, ...]:
        """The lanes that others may give this member messages in: those that it polls."""
        polled = self._memory.polled
        return tuple(sorted(lane.number for lane in polled if not lane.of_groups))

    def assign_anew(self) -> None:
        """Let the next step assign lanes, whether members have changed or not."""
        self._assigned_turn = None

    def turn_has_changed(self) -> bool:
        """Whether lanes are to be assigned anew, though no member has come or gone."""
        now_ms = self._clock.now_ms()
        if len(self._membership.others) < self._register.settings.lanes_written:
            return self._assigned_turn is None
        return self._assigned_turn != now_ms // PASS_ON_MS

    def assign(self, *, is_reading: bool) -> None:
        """Read the lanes that are this member's by rank, and leave the others.

        Args:
            is_reading: Whether it reads any: one without demand leaves them to the others.
        """
        if self.is_leaving:
            return
        self._is_reading = is_reading
        now_ms = self._clock.now_ms()
        # Where the store fails in between, the next step assigns them.
        self._assigned_turn = None
        ranks = self._ranks(now_ms) if is_reading else {}
        self._given = {n: (to, ms) for n, (to, ms) in self._given.items() if ms > now_ms}
        mine = {lane for lane, rank in ranks.items() if rank == 0 and lane not in self._given}
        if self.only_keeps:
            mine &= self._memory.lanes.keys()
        adopted = {
            lane.number
            for lane in self._memory.lanes.values()
            if lane.adopted_until_ms > now_ms and is_reading
        }
        self._keep(mine | adopted)
        if not self.only_keeps:
            # Else the next caller is to find taken by its first step what is not taken now.
            self._assigned_turn = now_ms // PASS_ON_MS
        for number in mine:
            self._memory.lanes[number].adopted_until_ms = 0
        if self._register.layout.first_lane in mine and not self.only_keeps:
            self.auto.decide(len(self._membership.others) + 1)

    def _ranks(self, now_ms: int) -> dict[int, int]:
        """This member's place in line for each lane; 0 is the one that should read it."""
        layout, filled = self._register.layout, self._register.settings.lanes_written
        lanes = layout.lanes()
        ranks = self._membership.ranks(lanes, now_ms, bands=layout.bands, filled=filled)
        if layout.groups_used:
            # At no time of the wall: a group lane passed on each second would not get on.
            ranks |= self._membership.ranks(layout.lanes_of_groups(), 0)
        return ranks

    def follow(self, *, has_news: bool) -> None:
        """Read the settings anew where news may be that a band was put to for the first time."""
        self._quiet.follow(has_news=has_news)

    def look(self) -> None:
        """Tell the lanes that are polled from those in which nothing is expected."""
        self._quiet.look()

    def _keep(self, lanes: set[int]) -> None:
        if lanes != set(self._memory.lanes):
            name = self._register.name
            self._intake.keep(lanes, lambda: self._store.notes(LANES, (name,)))
            log.info("queue %s: reading lanes %s", name, sorted(lanes))

    def guard(self) -> None:
        """Adopt lanes whose rightful reader leaves due rows alone for a second."""
        now_ms = self._clock.now_ms()
        # One that was given away is not taken back before that member had time to come for it.
        given = {lane for lane, (_, until_ms) in self._given.items() if until_ms > now_ms}
        lanes = self._register.layout.all_lanes()
        others = [lane for lane in lanes if lane not in self._memory.lanes and lane not in given]
        has_no_use = self._isolated or self.only_keeps or self.is_leaving or not self._is_reading
        if has_no_use or not others or not self._looks_after.is_due():
            return
        ranks = self._ranks(now_ms)
        watched = self._quiet.of_others(others, now_ms)
        adopted = self._looks_after.left_alone({lane: ranks[lane] for lane in watched})
        if adopted:
            self.adopt(adopted)
            log.info("queue %s: adopted lanes %s", self._register.name, sorted(adopted))

    def adopt(self, lanes: set[int]) -> None:
        """Read lanes for a while that are not this member's by rank."""
        new = lanes - self._memory.lanes.keys()
        if not new or self.is_leaving or self.only_keeps or not self._is_reading:
            return
        self._keep(set(self._memory.lanes) | new)
        for number in new:
            self._memory.lanes[number].adopted_until_ms = self._clock.now_ms() + _ADOPTED_MS

    @property
    def given(self) -> tuple[tuple[int, str], ...]:
        """The group lanes that were given to others lately, and to whom."""
        return tuple((lane, name) for lane, (name, _) in sorted(self._given.items()))

    def may_give(self, lane: int) -> bool:
        """True if a lane is read here, and was not given to this member just now."""
        mine = self._memory.lanes.get(lane)
        return mine is not None and mine.adopted_until_ms <= self._clock.now_ms()

    def give(self, lanes: Mapping[int, str]) -> None:
        """Leave group lanes to the members that they are given to."""
        until_ms = self._clock.now_ms() + _ADOPTED_MS
        self._given |= {lane: (name, until_ms) for lane, name in lanes.items()}
        self._keep(set(self._memory.lanes) - lanes.keys())
        self._membership.hurry()
