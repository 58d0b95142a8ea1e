"""Judges what a name stands for and why a row may not begin, by the rows found. No I/O.

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
from shardq.model.key import NEVER
from shardq.records.keyrow import Does, KeyRow, is_dead, own_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardq.model.message import Row
    from shardq.model.shard import Position


class Is(Enum):
    """What a name can stand for."""

    FREE = "free"
    """No message."""
    HELD = "held"
    """No message; the name is held for a while after the end of the last message."""
    PENDING = "pending"
    """A message whose row is probably about to be written."""
    WAITING = "waiting"
    """A message that waits for its first or next delivery."""
    RUNNING = "running"
    """A message whose delivery has probably begun."""
    DEAD = "dead"
    """A message in the dead-letter queue."""
    ENDED = "ended"
    """A message that no longer exists."""

    @property
    def is_absent(self) -> bool:
        """True if a put may take the name."""
        return self in {Is.FREE, Is.DEAD, Is.ENDED}


Found: TypeAlias = "Mapping[Position, Row]"
"""The rows found at the places that were read."""


class View(NamedTuple):
    """The times by which keys are judged.

    Attributes:
        now_us: The corrected clock.
        purged_before_us: Messages that entered the queue before this time count as absent.
        former_until_us: Messages that entered before this time are of a dropped queue of this name.
        dead_purged_before_us: Like `purged_before_us`, for the dead-letter queue.
        patience_ms: A row still missing after this time is never written; 0 on SQLite.
        watched_ms: How long the caller has seen that the row is missing.
    """

    now_us: int
    purged_before_us: int = 0
    former_until_us: int = 0
    dead_purged_before_us: int = 0
    patience_ms: int = 0
    watched_ms: int = 0

    def is_over(self, place: Position) -> bool:
        """True if nobody can still be about to write the row at a place.

        The age of the row id decides or, as the clock of the id's maker may be ahead, the time that
        the caller has watched.
        """
        age_us = self.now_us - ids.birth_us(place.id)
        return max(age_us, self.watched_ms * 1_000) >= self.patience_ms * 1_000 or (
            self.patience_ms == 0
        )

    def is_half_over(self, place: Position) -> bool:
        """True if the row may be written so late that other callers took it for missing."""
        return self._replace(patience_ms=self.patience_ms // 2).is_over(place)


class Standing(NamedTuple):
    """The meaning of a name, at the time of the read.

    Attributes:
        key: The key's row.
        row: The message's row; None without a row.
        state: What the name stands for.
        behind: The standing of the message that this message follows; None if it follows no
            message.
        left: The row that the last command has replaced, and that still exists beside `row`.
    """

    key: KeyRow
    row: Row | None
    state: Is
    behind: Standing | None = None
    left: Row | None = None

    @property
    def running(self) -> KeyRow | None:
        """The key's row of the running message, followed or not; None if no message runs."""
        if self.state is Is.RUNNING:
            return self.key
        return None if self.behind is None else self.behind.running


def judge(key: KeyRow, found: Found, view: View) -> Standing:
    """Judge what a name stands for.

    Args:
        key: The key's row. If no row of its message was found, the key's row must be read after
            that.
        found: The rows found at the key's `places` and `places_before`.
        view: The times by which to judge.
    """
    standing = _judge(key, found, view)
    if key.behind is None:
        return standing
    behind = judge(key.behind, found, view)
    if standing.state is Is.ENDED and key.at is None and key.before is None:
        # The put of this message, which was to follow another, crashed before its row was written:
        # the key stands for the other message alone.
        return behind
    return standing._replace(behind=behind)


def _judge(key: KeyRow, found: Found, view: View) -> Standing:
    if key.first is None:
        is_held = (
            key.until_ms is not None
            and key.until_ms * 1_000 > view.now_us
            and key.since_us >= view.former_until_us
        )
        return Standing(key, None, Is.HELD if is_held else Is.FREE)
    entered_us = ids.birth_us(key.first)
    row, left = _last(key.places, found), _last(key.places_before, found)
    if entered_us < view.former_until_us:
        state = Is.ENDED
    elif key.at is not None and is_dead(key.at):
        # A row outside the dead-letter queue is a copy, which the burial has left.
        is_there = row is not None and is_dead(row.position)
        is_there = is_there and row.entered_us >= view.dead_purged_before_us  # type: ignore[union-attr]
        state = Is.DEAD if is_there else Is.ENDED
    elif entered_us < view.purged_before_us:
        state = Is.ENDED
    elif row is not None:
        state = _doing(key, row, view)
    elif key.does is Does.BEGUN or key.at is not None:
        # The message's row existed, and is gone.
        state = Is.ENDED
    else:
        row, left = left, None
        if key.place is not None and not view.is_over(key.place):
            state = Is.PENDING
        else:
            state = Is.ENDED if row is None else Is.WAITING
    return Standing(key, None if state is Is.ENDED else row, state, left=left)


def _doing(key: KeyRow, row: Row, view: View) -> Is:
    # A row of a group stays at its place: a retry or a snooze has edited the row since its delivery
    # began.
    is_again = row.serial > key.serial and row.claim is None and row.not_before_ms is not None
    has_begun = key.does is Does.BEGUN and row.position == key.place and not is_again
    is_claimed = row.claim is not None and row.ready_ms * 1_000 > view.now_us
    if has_begun or is_claimed:
        return Is.RUNNING
    # A message that was cancelled while it ran only waits to be dropped.
    return Is.ENDED if key.is_doomed else Is.WAITING


def _last(places: Collection[Position], found: Found) -> Row | None:
    rows = (found[place] for place in places if place in found)
    return max(rows, key=lambda row: ids.order_key(row.id), default=None)


class StartRefusal(Enum):
    """Why a row may not begin, and what to do with the row."""

    OVER = "over"
    """The row's name is nobody's or another message's: drop the row as cancelled."""
    CANCELLED = "cancelled"
    """The message was cancelled while it ran, or another message follows it: drop the row, and free
    the name."""
    COPY = "copy"
    """A command by key has replaced the row, or a put has only tried if the row stays: delete it,
    as its message has another row, or none."""
    LATER = "later"
    """A command by key is about to replace the row: reread it in a while."""
    REPLACED = "replaced"
    """The row is a copy if the key's row is unchanged since the read. If it has changed, a command
    that has not found the replacing row may be about to use this row."""
    STRANDED = "stranded"
    """A command by key was to replace the row and crashed: place the row anew."""
    BEHIND = "behind"
    """The row's message follows a message that runs: postpone it."""
    AGAIN = "again"
    """The row may begin by now."""


def refusal_of(row: Row, standing: Standing, view: View) -> StartRefusal:
    """Judge why a row was refused to begin.

    Args:
        row: The row, with a key.
        standing: What the key stands for, read after the refusal.
        view: The times by which to judge.
    """
    key, behind, generation = standing.key, standing.behind, own_key(row).generation
    if generation == NEVER:
        # A put tries if this row stays, unless it has crashed.
        is_over = view.now_us >= row.ready_ms * 1_000
        return StartRefusal.COPY if is_over else StartRefusal.LATER
    if not key.is_of(row):
        return _of_another(row, standing, view)
    if generation == key.generation:
        if key.is_doomed:
            return StartRefusal.CANCELLED
        # Without a standing of the followed message, assume that it runs: others keep changing the
        # key.
        is_alone = key.behind is None or (behind is not None and behind.running is None)
        return StartRefusal.AGAIN if is_alone else StartRefusal.BEHIND
    if generation > key.generation:
        # The key is written before the row: so a replica lags, or was restored from a copy.
        return StartRefusal.LATER
    return _of_older(generation, standing, view)


def _of_older(generation: int, standing: Standing, view: View) -> StartRefusal:
    """Judge a refused row of an older generation of its message."""
    key, row = standing.key, standing.row
    before, place = key.before, key.place
    is_begun = key.does is Does.BEGUN
    if before is None or before.generation != generation or is_begun or place is None:
        return StartRefusal.COPY
    if key.at is not None or (row is not None and row.position == place):
        return StartRefusal.REPLACED if view.is_half_over(place) else StartRefusal.COPY
    return StartRefusal.STRANDED if view.is_over(place) else StartRefusal.LATER


def _of_another(row: Row, standing: Standing, view: View) -> StartRefusal:
    """Judge a refused row whose name another message has; that may follow the row's message."""
    behind, place = standing.key.behind, standing.key.place
    if behind is None or place is None or not behind.is_of(row):
        return StartRefusal.OVER
    if own_key(row).generation < behind.generation:
        return StartRefusal.COPY
    if standing.state is Is.PENDING:
        return StartRefusal.LATER
    return StartRefusal.REPLACED if view.is_half_over(place) else StartRefusal.CANCELLED
