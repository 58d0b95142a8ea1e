"""Rows that are deleted without an ack: purged, cancelled, useless, not kept, or ended before.

A message that dies is not kept if its queue has no dead-letter queue. The delete of a row is
repeated until the store has carried it out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from shardq.records.ledger import End

if TYPE_CHECKING:
    from shardq.engine.handing.delivery import Delivery
    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.shard import Position


class _Doom(NamedTuple):
    """How the message of a deleted row ends.

    Attributes:
        fate: The end that the ledger records.
        is_counted: True if the end counts by its fate; False if it counts as dropped.
        dead: The row as it would be among dead messages, if the message died; else None.
    """

    fate: End
    is_counted: bool
    dead: Row | None = None


class Discards:
    """The rows that one consumer must delete."""

    def __init__(self, home: QueueHome) -> None:
        self._register = home.register
        self._settler = home.settler
        self._stats = home.stats
        self._purged: dict[Position, Row] = {}
        self._left_over: dict[Position, Row] = {}
        self._doomed: dict[Delivery, _Doom] = {}
        self._ending: dict[Delivery, _Doom] = {}
        """Doomed deliveries whose rows existed. They count as ended, even if a repeat finds no
        row."""

    @property
    def is_empty(self) -> bool:
        """True if no row must be deleted."""
        return not (self._purged or self._left_over or self._doomed or self._ending)

    def purge(self, rows: list[Row]) -> None:
        """Let the next flush delete these rows, because they entered before a purge."""
        self._purged.update({row.position: row for row in rows})

    def drop(self, rows: list[Row]) -> None:
        """Let the next flush delete these rows, because their messages have ended."""
        self._left_over.update({row.position: row for row in rows})

    def cancel(self, one: Delivery, *, is_counted: bool) -> None:
        """Let the next flush delete a row: its message was cancelled, or is useless.

        Args:
            one: The row's delivery.
            is_counted: True to count the message as cancelled, if its row exists. False if the
                canceller counts the message; the row then counts as dropped.
        """
        self._doomed[one] = _Doom(End.CANCELLED, is_counted)

    def expire(self, one: Delivery) -> None:
        """Let the next flush delete a row, because its message is too old."""
        self._doomed[one] = _Doom(End.EXPIRED, is_counted=True)

    def bury(self, one: Delivery, dead: Row) -> None:
        """Let the next flush delete a row, because its message died and is not kept.

        Args:
            one: The row's delivery.
            dead: The row as it would be among dead messages.
        """
        self._doomed[one] = _Doom(End.DEAD, is_counted=True, dead=dead)

    def flush(self) -> tuple[list[Delivery], list[Row]]:
        """Delete all rows that wait for it.

        Returns:
            The cancelled and dead deliveries, for the caller to conclude; and the rows of the dead,
            for the caller to count.
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
        if self._doomed or self._ending:
            return self._flush_doomed()
        return [], []

    def _flush_doomed(self) -> tuple[list[Delivery], list[Row]]:
        asked = self._doomed
        there = self._settler.still_there([one.row.position for one in asked])
        self._ending |= {one: doom for one, doom in asked.items() if one.row.position in there}
        self._doomed = {one: doom for one, doom in asked.items() if one.row.position not in there}
        for fate in End.CANCELLED, End.EXPIRED, End.DEAD:
            ending = [one for one, doom in self._ending.items() if doom.fate is fate]
            # A delivery whose handler was called counts as an attempt.
            attempts = [one.attempt if one.thread_id else one.row.attempt for one in ending]
            self._settler.finish([one.row for one in ending], fate, attempts)
        ended, gone, self._ending, self._doomed = self._ending, self._doomed, {}, {}
        dead = [doom.dead for doom in ended.values() if doom.dead is not None]
        counted = Counter(doom.fate for doom in ended.values() if doom.is_counted)
        self._stats.add(
            cancelled=counted[End.CANCELLED],
            expired=counted[End.EXPIRED],
            dropped=len(ended) - counted.total(),
        )
        return [*ended, *gone], dead
