"""What a name stands for, and why a row may not begin: judged by its row and what is there. Pure.

```
 nobody's ────────────────────────────────► FREE
 held, until a time ──────────────────────► HELD, then FREE
 former, purged ──────────────────────────► ENDED
 a row at a place: in the dead queue ─────► DEAD
                   it began there, or a claim ─► RUNNING
                   else ──────────────────► WAITING; cancelled as it ran: ENDED
 none:   it began, or it has moved ───────► ENDED
         waiting: being written ──────────► PENDING
                  too long ───────────────► WAITING as the row that it was to replace, else ENDED
```
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shardq.model import ids
from shardq.records.keyrow import Does, KeyRow, is_dead, own_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardq.model.message import Row
    from shardq.model.shard import Position


class Is(Enum):
    """What a name stands for."""

    FREE = "free"
    """Nothing."""
    HELD = "held"
    """Nothing any more, and it is held for a while."""
    PENDING = "pending"
    """A message whose row is about to be written, as far as can be told."""
    WAITING = "waiting"
    """A message whose delivery has not begun, or that waits for the next one."""
    RUNNING = "running"
    """A message whose delivery has begun, as far as can be told."""
    DEAD = "dead"
    """A message in the dead-letter queue."""
    ENDED = "ended"
    """A message that is not there any more."""

    @property
    def is_absent(self) -> bool:
        """Whether a put may take the name."""
        return self in {Is.FREE, Is.DEAD, Is.ENDED}


Found: TypeAlias = "Mapping[Position, Row]"
"""Rows that are there, of those that were looked for."""


class View(NamedTuple):
    """By what keys are judged.

    Attributes:
        now_us: The corrected clock.
        purged_before_us: What entered the queue before that counts as absent.
        former_until_us: What entered before that is of a dropped queue of this name.
        dead_purged_before_us: As `purged_before_us`, of the dead-letter queue.
        patience_ms: After so long a row that should be there is not written any more; 0: at once.
        watched_ms: For how long the caller has seen that it is not there.
    """

    now_us: int
    purged_before_us: int = 0
    former_until_us: int = 0
    dead_purged_before_us: int = 0
    patience_ms: int = 0
    watched_ms: int = 0

    def is_over(self, place: Position) -> bool:
        """Whether nobody is any more about to write a row.

        By its birth, or by the caller's own watch: the clock of who made the id may be ahead.
        """
        age_us = self.now_us - ids.birth_us(place.id)
        return max(age_us, self.watched_ms * 1_000) >= self.patience_ms * 1_000 or (
            self.patience_ms == 0
        )

    def is_half_over(self, place: Position) -> bool:
        """Whether a row may have been written so late that others have given it up."""
        return self._replace(patience_ms=self.patience_ms // 2).is_over(place)


class Standing(NamedTuple):
    """What a name stands for, as it was read.

    Attributes:
        key: Its row of the table.
        row: The message's; None where there is none.
        state: What it stands for.
    """

    key: KeyRow
    row: Row | None
    state: Is


def judge(key: KeyRow, found: Found, view: View) -> Standing:
    """What a name stands for.

    Args:
        key: As it was read after `found` was looked for, where nothing was there.
        found: The rows that are there, of `places` and `places_before`.
        view: By what it is judged.
    """
    if key.first is None:
        is_held = (
            key.until_ms is not None
            and key.until_ms * 1_000 > view.now_us
            and key.since_us >= view.former_until_us
        )
        return Standing(key, None, Is.HELD if is_held else Is.FREE)
    entered_us = ids.birth_us(key.first)
    row = _last(key.places, found)
    if entered_us < view.former_until_us:
        state = Is.ENDED
    elif key.at is not None and is_dead(key.at):
        # A copy that its burial has left is not the message.
        is_there = row is not None and is_dead(row.position)
        is_there = is_there and row.entered_us >= view.dead_purged_before_us  # type: ignore[union-attr]
        state = Is.DEAD if is_there else Is.ENDED
    elif entered_us < view.purged_before_us:
        state = Is.ENDED
    elif row is not None:
        state = _doing(key, row, view)
    elif key.does is Does.BEGUN or key.at is not None:
        # Its row was there.
        state = Is.ENDED
    else:
        row = _last(key.places_before, found)
        if key.place is not None and not view.is_over(key.place):
            state = Is.PENDING
        else:
            state = Is.ENDED if row is None else Is.WAITING
    return Standing(key, None if state is Is.ENDED else row, state)


def _doing(key: KeyRow, row: Row, view: View) -> Is:
    # A row of a group stays where it is: retried or snoozed it was edited since it began.
    is_again = row.serial > key.serial and row.claim is None and row.not_before_ms is not None
    has_begun = key.does is Does.BEGUN and row.position == key.place and not is_again
    is_claimed = row.claim is not None and row.ready_ms * 1_000 > view.now_us
    if has_begun or is_claimed:
        return Is.RUNNING
    # Cancelled as it ran, it only waits to be dropped.
    return Is.ENDED if key.is_doomed else Is.WAITING


def _last(places: Collection[Position], found: Found) -> Row | None:
    rows = (found[place] for place in places if place in found)
    return max(rows, key=lambda row: ids.order_key(row.id), default=None)


class Refusal(Enum):
    """Why a row may not begin, and so what becomes of it."""

    OVER = "over"
    """Its name is nobody's or another message's: it is dropped, as cancelled."""
    CANCELLED = "cancelled"
    """It was cancelled as it ran: it is dropped, and its name is freed."""
    COPY = "copy"
    """A command by key has replaced it: it is deleted, and its message goes on elsewhere."""
    LATER = "later"
    """A command by key is about to replace it: it is left, and read again in a while."""
    REPLACED = "replaced"
    """A copy, if its key's row is still as it was read: a command that has not found the row which
    replaces this one may be about to go by it."""
    STRANDED = "stranded"
    """A command by key was to replace it and crashed: it is placed anew."""
    AGAIN = "again"
    """It may begin by now."""


def refusal_of(row: Row, key: KeyRow, found: Found, view: View) -> Refusal:
    """Why a row was refused to begin.

    Args:
        row: It, with a key.
        key: Its key's row, as it was read after that.
        found: Those of `key.places` at which there are rows.
        view: By what it is judged.
    """
    generation = own_key(row).generation
    if not key.is_of(row):
        return Refusal.OVER
    if generation > key.generation:
        # The key is written first: a replica is behind, or was restored from a copy.
        return Refusal.LATER
    if generation == key.generation:
        return Refusal.CANCELLED if key.is_doomed else Refusal.AGAIN
    before, place = key.before, key.place
    is_begun = key.does is Does.BEGUN
    if before is None or before.generation != generation or is_begun or place is None:
        return Refusal.COPY
    if place in found or key.at is not None:
        return Refusal.REPLACED if view.is_half_over(place) else Refusal.COPY
    return Refusal.STRANDED if view.is_over(place) else Refusal.LATER
