"""Rows that are deleted without an ack: purged, ended before, cancelled, or useless by now.

A row stays here, and its delete is repeated, until the store has taken it.
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
    """The rows that one consumer is to delete."""

    def __init__(self, home: QueueHome) -> None:
        self._register = home.register
        self._settler = home.settler
        self._stats = home.stats
        self._purged: dict[Position, Row] = {}
        self._left_over: dict[Position, Row] = {}
        self._cancelled: dict[Delivery, bool] = {}
        """Delivery -> True if it counts as cancelled here."""
        self._ending: dict[Delivery, bool] = {}
        """Cancelled deliveries whose rows existed. They count, even if a repeat finds no row."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is to be deleted."""
        return not (self._purged or self._left_over or self._cancelled or self._ending)

    def purge(self, rows: list[Row]) -> None:
        """Delete these rows by the next flush: they entered before a purge."""
        self._purged.update({row.position: row for row in rows})

    def drop(self, rows: list[Row]) -> None:
        """Delete these rows by the next flush: their messages have ended."""
        self._left_over.update({row.position: row for row in rows})

    def cancel(self, one: Delivery, *, is_counted: bool) -> None:
        """Delete this row by the next flush: its message was cancelled, or is useless.

        Args:
            one: The row's delivery.
            is_counted: True to count the message as cancelled here, if its row exists. False if
                the canceller counts it; the row then counts as left over.
        """
        self._cancelled[one] = is_counted

    def flush(self) -> list[Delivery]:
        """Delete all these rows.

        Returns:
            The cancelled deliveries, which the caller is to conclude.
        """
        if self._purged:
            self._settler.finish(list(self._purged.values()), End.PURGED)
            # Rows of a dropped queue of this name are not in these totals.
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
        # A delivery whose handler was called counts as an attempt.
        attempts = [one.attempt if one.thread_id else one.row.attempt for one in self._ending]
        self._settler.finish([one.row for one in self._ending], End.CANCELLED, attempts)
        ended, gone, self._ending, self._cancelled = self._ending, self._cancelled, {}, {}
        counted = sum(ended.values())
        self._stats.add(cancelled=counted, dropped=len(ended) - counted)
        return [*ended, *gone]
