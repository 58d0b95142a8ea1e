"""Rows that are deleted and not acked: purged, ended before, cancelled, or of no use any more.

Whatever the store does not take stays here and is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.records.ledger import End

if TYPE_CHECKING:
    from shardq.engine.handing.delivery import Delivery
    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.shard import Position


class Discards:
    """What one consumer is to delete."""

    def __init__(self, home: QueueHome) -> None:
        self._register = home.register
        self._settler = home.settler
        self._stats = home.stats
        self._purged: dict[Position, Row] = {}
        self._left_over: dict[Position, Row] = {}
        self._cancelled: dict[Delivery, bool] = {}
        """Delivery -> whether it counts as cancelled here."""
        self._ending: dict[Delivery, bool] = {}
        """Those of them that were there: by a repeat they may be gone, and still count."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be deleted."""
        return not (self._purged or self._left_over or self._cancelled or self._ending)

    def purge(self, rows: list[Row]) -> None:
        """Rows that a purge has reached are to be deleted."""
        self._purged.update({row.position: row for row in rows})

    def drop(self, rows: list[Row]) -> None:
        """Rows of messages that have ended are to be deleted."""
        self._left_over.update({row.position: row for row in rows})

    def cancel(self, one: Delivery, *, is_counted: bool) -> None:
        """The row of a message that was cancelled, or is of no use, is to be deleted.

        Args:
            one: Its delivery.
            is_counted: Whether it is counted as cancelled here, where it is there. Else who has
                cancelled it does, and it counts as a row that was left over.
        """
        self._cancelled[one] = is_counted

    def flush(self) -> list[Delivery]:
        """Delete them.

        Returns:
            Deliveries that were cancelled, and are to be concluded.
        """
        if self._purged:
            self._settler.finish(list(self._purged.values()), End.PURGED)
            # Of a dropped queue of this name the totals are others.
            own = sum(not self._register.is_former(row) for row in self._purged.values())
            self._stats.add(purged=own)
            self._purged = {}
        if self._left_over:
            self._settler.drop(list(self._left_over.values()))
            self._stats.add(dropped=len(self._left_over))
            self._left_over = {}
        if self._cancelled or self._ending:
            return self._flush_cancelled()
        return []

    def _flush_cancelled(self) -> list[Delivery]:
        asked = self._cancelled
        there = self._settler.still_there([one.row.position for one in asked])
        self._ending |= {one: own for one, own in asked.items() if one.row.position in there}
        self._cancelled = {one: own for one, own in asked.items() if one.row.position not in there}
        # Those that had begun have had this delivery too.
        attempts = [one.attempt if one.thread_id else one.row.attempt for one in self._ending]
        self._settler.finish([one.row for one in self._ending], End.CANCELLED, attempts)
        ended, gone, self._ending, self._cancelled = self._ending, self._cancelled, {}, {}
        counted = sum(ended.values())
        self._stats.add(cancelled=counted, dropped=len(ended) - counted)
        return [*ended, *gone]
