"""Keeps the list of a group lane's sealed minutes that still have rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.engine.members.part import Part
from shardq.stores.store import NEVER, Slice

if TYPE_CHECKING:
    from collections.abc import Collection

    from shardq.engine.groups.lane import GroupLane
    from shardq.engine.members.member import Member
    from shardq.model.message import Row

_HINT_MS = 60_000


class WaitingList(Part):
    """Keeps the lists of the group lanes that one member owns."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)

    def pass_by(self, mine: GroupLane, minute: int) -> bool:
        """List a minute if it has rows, so the seal may pass it; False: the lease is lost."""
        if minute in mine.listed:
            return True
        first = self._first_of(mine.number, minute)
        return first is None or self._write_list(mine, {minute: first.due_ms}, ())

    def tidy(self, mine: GroupLane) -> None:
        """Erase touched minutes without rows from the list, and renew first dues of the others."""
        listed: dict[int, int] = {}
        erased: list[int] = []
        now_ms = self._clock.now_ms()
        is_hint_due = now_ms - mine.looked_ms >= _HINT_MS
        for minute in sorted(mine.touched):
            first = self._first_of(mine.number, minute)
            if first is None:
                erased.append(minute)
            elif is_hint_due or first.due_ms < mine.listed.get(minute, NEVER):
                listed[minute] = first.due_ms
        if (listed or erased) and not self._write_list(mine, listed, erased):
            return
        mine.looked_ms = now_ms if is_hint_due else mine.looked_ms
        mine.touched = set() if is_hint_due else mine.touched.difference(erased, listed)

    def _first_of(self, lane: int, minute: int) -> Row | None:
        layout = self._register.layout
        ends = layout.start_ms(minute) - 1, layout.end_ms(minute) - 1
        wanted = Slice(layout.queue, [minute], [lane], *ends, 1, purpose="list", bodies=False)
        return next(iter(self._store.read(wanted)), None)

    def _write_list(self, mine: GroupLane, listed: dict[int, int], erased: Collection[int]) -> bool:
        lease = mine.lease
        if not self._store.list_minutes(lease.shard, lease.lock, listed, erased):
            return False
        mine.listed.update(listed)
        for minute in erased:
            mine.listed.pop(minute, None)
        return True
