"""Edits rows in place in group lanes, and writes notes to the owners of other lanes."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from shardq.engine.handing.delivery import Delivery
from shardq.engine.members.part import Part
from shardq.model.message import SERIALS_AFTER_TAKEOVER, SERIALS_OF_OTHERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardq.engine.members.member import Member
    from shardq.model.message import Row
    from shardq.model.shard import Position

_edit_of = attrgetter("serial", "attempt", "not_before_ms", "claim")


class Edits(Part):
    """Edits rows of group lanes for one member. From the thread that steps its engine."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self._planner = self._settler.planner
        self._untold: list[Row] = []
        """Notes still to be written."""
        self._unclaimed: list[tuple[Delivery, Row]] = []
        """Claims that reached no caller, each with the row to write back."""

    @property
    def is_empty(self) -> bool:
        """True if no note and no undone claim waits to be stored."""
        return not (self._untold or self._unclaimed)

    def numbered(self, one: Delivery, row: Row) -> Row:
        """Number an edit: returns the edited row with its serial set.

        The first edit after a take-over of the lane skips the serials that edits of the former
        owner, which may still arrive, can have. An edit by another member skips the serial of the
        owner's next edit.
        """
        if not self._leases.is_valid(one.lease):
            by = SERIALS_OF_OTHERS
        elif one.lease.is_after_lapse and not one.is_edited:
            by = SERIALS_AFTER_TAKEOVER
        else:
            by = 1
        return row._replace(serial=one.row.serial + by)

    def changed(self, edits: Sequence[tuple[Delivery, Row]]) -> dict[bytes, Row | None]:
        """Read rows that are to be edited, to find those that others have changed or deleted.

        Args:
            edits: Deliveries, each with its row after the edit.

        Returns:
            Row id -> the row as other members have edited it; None if the row is gone.
        """
        there = {row.id: row for row in self._store.find([row.position for _, row in edits])}
        return {
            row.id: now
            for one, row in edits
            if (now := there.get(row.id)) is None
            # Compare more than the serial: edits of two members may have the same one.
            or _edit_of(now) not in (_edit_of(one.row), _edit_of(row))
        }

    def edit(self, edits: Sequence[tuple[Delivery, Row]]) -> dict[bytes, Row | None]:
        """Edit rows in place; a repeat with the same rows is safe.

        Rows whose lease has ended are read first: other members may have changed them.

        Args:
            edits: Deliveries, each with its row after the edit.

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
        """Add notes on settled or edited rows in lanes of other members, for the lanes' owners."""
        self.tell_of(
            one.row.position
            for one in ended
            if one.grouped and not self._leases.is_valid(one.lease)
        )

    def tell_of(self, positions: Iterable[Position]) -> None:
        """Add notes on rows, for the owners of their lanes. The next flush writes them."""
        self._untold += map(self._planner.note, positions)

    def unclaim(self, claims: Iterable[tuple[Delivery, Row]]) -> None:
        """Let the next flush undo claims that reach no caller.

        Args:
            claims: Deliveries, each with the claim that the store may hold in place of its row.
        """
        for one, row in claims:
            back = row._replace(
                claim=None, not_before_ms=None, attempt=row.attempt - 1, serial=row.serial + 1
            )
            # If the lease has ended, the row is edited back only if it is still this claim.
            claim = Delivery(row, one.band, one.lease, grouped=True)
            self._unclaimed.append((claim, back))

    def flush(self) -> list[Row]:
        """Write notes, and undo claims that reached no caller; returns the rows edited back."""
        if self._untold:
            self._store.insert(self._untold)
            self._untold = []
        if not self._unclaimed:
            return []
        changed = self.edit(self._unclaimed)
        unclaimed, self._unclaimed = self._unclaimed, []
        return [row for _, row in unclaimed if row.id not in changed]
