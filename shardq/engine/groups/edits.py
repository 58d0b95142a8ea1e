"""Edits of rows that stay in their group lanes, and notes for the owners of lanes of others."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from shardq.engine.handing.delivery import Delivery
from shardq.model.message import SERIALS_AFTER_TAKEOVER, SERIALS_OF_OTHERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardq.engine.members.member import Member
    from shardq.model.message import Row
    from shardq.model.shard import Position

_edit_of = attrgetter("serial", "attempt", "not_before_ms", "claim")


class Edits:
    """Edits rows of group lanes for one member. From the thread that steps its engine."""

    def __init__(self, member: Member) -> None:
        self._store = member.store
        self._leases = member.leases
        self._planner = member.settler.planner
        self._untold: list[Row] = []
        """Notes that are still to be written."""
        self._unclaimed: list[tuple[Delivery, Row]] = []
        """Rows claimed for callers that do not get them, as they are to be edited back."""

    @property
    def is_empty(self) -> bool:
        """True if nothing waits to be stored."""
        return not (self._untold or self._unclaimed)

    def numbered(self, one: Delivery, row: Row) -> Row:
        """An edit of a delivery's row, with its serial.

        The first edit after a take-over skips the serials of what the former owner may have under
        way, and an edit by another than the owner that of the owner's next one.
        """
        if not self._leases.is_valid(one.lease):
            by = SERIALS_OF_OTHERS
        elif one.lease.is_after_lapse and not one.is_edited:
            by = SERIALS_AFTER_TAKEOVER
        else:
            by = 1
        return row._replace(serial=one.row.serial + by)

    def changed(self, edits: Sequence[tuple[Delivery, Row]]) -> dict[bytes, Row | None]:
        """Read rows that are to be edited, and find those that somebody else has changed.

        Args:
            edits: Deliveries, and their rows as they are to be.

        Returns:
            Row id -> the row as somebody else has edited it; None: it is gone.
        """
        there = {row.id: row for row in self._store.find([row.position for _, row in edits])}
        return {
            row.id: now
            for one, row in edits
            if (now := there.get(row.id)) is None
            # Edits of two members may have the same serial.
            or _edit_of(now) not in (_edit_of(one.row), _edit_of(row))
        }

    def edit(self, edits: Sequence[tuple[Delivery, Row]]) -> dict[bytes, Row | None]:
        """Edit rows in place; a repeat with the same rows is safe.

        Rows whose lease is over are read first.

        Args:
            edits: Deliveries, and their rows as they are to be.

        Returns:
            The rows that were not edited, as `changed` returns them.
        """
        others = [(one, row) for one, row in edits if not self._leases.is_valid(one.lease)]
        changed = self.changed(others) if others else {}
        self._store.edit([row for _, row in edits if row.id not in changed])
        lapsed = {one for one, _ in others}
        for one, _ in edits:
            if one not in lapsed:
                one.note_edit()
        self.tell(one for one, row in others if row.id not in changed)
        return changed

    def tell(self, ended: Iterable[Delivery]) -> None:
        """Rows were settled or edited: let the owners of lanes that are not ours look at them."""
        self.tell_of(
            one.row.position
            for one in ended
            if one.grouped and not self._leases.is_valid(one.lease)
        )

    def tell_of(self, positions: Iterable[Position]) -> None:
        """Let the owners of lanes look at rows."""
        self._untold += map(self._planner.note, positions)

    def unclaim(self, claims: Iterable[tuple[Delivery, Row]]) -> None:
        """Rows may be claimed for callers that do not get them: they are edited back.

        Args:
            claims: Deliveries, and the claims that may have been made of their rows.
        """
        for one, row in claims:
            back = row._replace(
                claim=None, not_before_ms=None, attempt=row.attempt - 1, serial=row.serial + 1
            )
            # Once the lease is over, only what is still that claim is edited back.
            claim = Delivery(row, one.band, one.lease, grouped=True)
            self._unclaimed.append((claim, back))

    def flush(self) -> list[Row]:
        """Write the notes, and edit back what no caller got; gives the rows that were."""
        if self._untold:
            self._store.insert(self._untold)
            self._untold = []
        if not self._unclaimed:
            return []
        changed = self.edit(self._unclaimed)
        unclaimed, self._unclaimed = self._unclaimed, []
        return [row for _, row in unclaimed if row.id not in changed]
