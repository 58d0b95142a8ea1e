"""Group lanes that change hands: a busy owner gives them to a member with free slots.

```
 all slots taken for 0.5 s, a head is due, a member has free slots ─► lane given, by heartbeat
 a heartbeat gives a lane to this member ─► adopted for 10 s, though the hash names another one
```

A delivery that runs in a given lane becomes a claim in place; then the lease is released.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardq.engine.members.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.engine.groups.room import GroupLanes
    from shardq.engine.members.member import Member
    from shardq.engine.reading.lanes import Lanes
    from shardq.engine.storing.outbox import Outbox

log = logging.getLogger(__name__)

_BUSY_US = 500_000


class Gifts(Part):
    """Gives group lanes of one member to others, and adopts lanes that others give."""

    def __init__(self, member: Member, groups: GroupLanes, lanes: Lanes, outbox: Outbox) -> None:
        super().__init__(member)
        self._groups = groups
        self._lanes = lanes
        self._outbox = outbox
        self._free_us = 0
        """When a slot was last seen free, or a member may not have read its lanes yet, time since
        boot."""
        self._offered: dict[str, int] = {}
        """Member -> the number of its heartbeat when lanes were last given to it."""

    def step(self) -> None:
        """Adopt lanes that others gave to this member, and give lanes with due heads to others."""
        beats = self._membership.beats
        if not beats:
            return
        me = self._membership.member
        taken = {lane for beat in beats.values() for lane, to in beat.gave if to == me}
        self._lanes.adopt(taken)
        now_us = self._clock.boot_us()
        is_busy = self._outbox.slots_taken >= self._threads and not self._lanes.is_settling
        if not (is_busy and self._threads):
            self._free_us = now_us
        wished = self._groups.take_wished()
        if now_us - self._free_us >= _BUSY_US:
            self._give(self._groups.with_due_heads())
        if wished:
            self._give(wished, is_to_any=True)

    def _give(self, lanes: Iterable[int], *, is_to_any: bool = False) -> None:
        """Give lanes to members with free slots, one a slot; with `is_to_any` to busy ones too."""
        left = [lane for lane in lanes if self._lanes.may_give(lane)]
        beats = self._membership.beats
        given: dict[int, str] = {}
        me = self._membership.member
        # Among equal members choose the next by name: two owners that give lanes at once then
        # seldom choose the same member.
        order = sorted(
            self._membership.others, key=lambda name: (-beats[name].free, name < me, name)
        )
        for name in order:
            beat = beats[name]
            slots = max(beat.free, int(is_to_any))
            if beat.isolated or self._offered.get(name) == beat.number or not slots:
                continue
            for lane in left[:slots]:
                given[lane] = name
            if left[:slots]:
                self._offered[name] = beat.number
            left = left[slots:]
        if given:
            log.info("group lanes given to members with free slots: %s", given)
            self._lanes.give(given)
