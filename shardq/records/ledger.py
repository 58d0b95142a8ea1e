"""The ledger of a queue that keeps a history: how each message entered, failed and ended.

```
 put ───────────► row stored ──► put recorded ──► reported
 retry ─────────► failure recorded ──► row stored at its new due
 ack, cancel ───► end recorded ──► row deleted
 bury, redrive ─► new row stored ──► put and end recorded ──► old row deleted
```

A crash after the row is stored leaves a row without a record. A crash after the end is recorded
leaves a row that is looked up in the ledger when it is found, and dropped. A queue without a ledger
pays only for the check that it is off. `audit.py` adds up the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import chain, repeat
from typing import TYPE_CHECKING

from shardq import locks
from shardq.errors import BadTime, HistoryOff, shown
from shardq.model import ids, names
from shardq.model.ids import birth_us
from shardq.model.message import died_after, task_of
from shardq.model.names import served_queue
from shardq.model.shard import spans
from shardq.model.times import iso, moment_of, moment_or_ago_ms
from shardq.records.membership import name_in_child
from shardq.stores.store import MINUTE_US, Entry, Mark, Try

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.model.settings import Settings
    from shardq.model.times import Due, Duration
    from shardq.records.register import Register
    from shardq.stores.store import Logs

CLOCK_AHEAD_MS = 3_000
"""How far ahead entries are read if no end is given: producers' clocks differ, and a run of a
schedule, which is put up to 2.75 s before it is due, enters when it is due."""

_MS = timedelta(milliseconds=1)
SPAN_MINUTES = 30
"""How many minutes of the ledger are read at once."""


class End(StrEnum):
    """How a message ended in a queue."""

    ACKED = "acked"
    """The message was finished."""
    DEAD = "dead"
    """The message was moved to the dead-letter queue, or removed if there is none."""
    FORWARDED = "forwarded"
    """The message was moved to another queue, or put back from a dead-letter queue."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """The message was kept for longer than its own `expires` or the queue's `retention`."""
    PURGED = "purged"


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt of a message that failed, by the history.

    Attributes:
        attempt: The number of the delivery, from 1.
        began: When the handler was called, UTC; None if that is not known, as for a delivery that
            was settled by its receipt.
        ended: When the attempt failed, UTC.
        error: Why the attempt failed, cut after 1,000 characters.
    """

    attempt: int
    began: datetime | None
    ended: datetime
    error: str

    @property
    def run_ms(self) -> int | None:
        """How long the attempt ran, milliseconds; None if that is not known."""
        return None if self.began is None else (self.ended - self.began) // _MS


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one message in the history.

    Attributes:
        id: The message's id.
        entered: When it entered the queue, UTC.
        due: The due first asked for; None if no put is recorded, as after a producer's crash.
        fate: `acked`, `dead`, `forwarded`, `cancelled`, `expired`, `purged`, or a fate recorded by
            a newer shardq; None if the message has not ended.
        ended: When the message ended; None if it has not. A purged message ends when its row comes
            due and is deleted.
        attempt: How many deliveries the message had until it ended.
        member: The member that recorded the end; empty if the message has not ended.
        task: The task whose job the message is; None for other messages, and if no put is recorded.
        failed: The message's failed attempts, the last 100, in the order of their ends.
    """

    id: str
    entered: datetime
    due: datetime | None
    fate: str | None
    ended: datetime | None
    attempt: int
    member: str
    task: str | None
    failed: tuple[FailedAttempt, ...] = ()


def record_of(mark: Mark, purged_before_us: int) -> Record:
    """The record of a message, for people, from its mark.

    Args:
        purged_before_us: Messages that entered before this epoch microsecond are purged.

    Raises:
        StoreCorrupt: If the mark is damaged.
    """
    mark.checked()
    entered_us = birth_us(mark.entry.id)
    return Record(
        mark.name or ids.text(mark.entry.id),
        moment_of(entered_us // 1_000),
        None if mark.due_ms is None else moment_of(mark.due_ms),
        mark.fate or (End.PURGED.value if entered_us < purged_before_us else None),
        moment_of(mark.ended_ms) if mark.fate else None,
        mark.attempt,
        mark.member,
        mark.task,
        _failed_of(mark),
    )


def _failed_of(mark: Mark) -> tuple[FailedAttempt, ...]:
    """The failed attempts in a mark that was checked."""
    tries = sorted((one for one in map(Try.read, mark.tries) if one), key=_by_end)
    return tuple(
        FailedAttempt(
            one.attempt,
            None if one.run_ms is None else moment_of(one.ended_ms - one.run_ms),
            moment_of(one.ended_ms),
            one.error,
        )
        for one in tries
    )


class Ledger:
    """Records puts and ends of one queue's messages, if its settings ask for a history.

    Args:
        member: The member that records.
    """

    def __init__(self, store: Logs, clock: Clock, register: Register, member: str) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._member = member
        locks.in_child(self, Ledger._begin_child)

    def _begin_child(self) -> None:
        self._member = name_in_child(self._member)

    @property
    def is_on(self) -> bool:
        """True if the queue keeps a history."""
        return self._register.settings.history_ms > 0

    def covers(self, queue: str) -> bool:
        """True if a queue, this one or its dead-letter queue, keeps a history."""
        return self._register.settings_of(queue).history_ms > 0

    def enter(self, rows: Sequence[Row]) -> None:
        """Record puts, once their rows are stored. Idempotent."""
        ttl_ms = self._register.settings_of(rows[0].shard.queue).history_ms if rows else 0
        if ttl_ms:
            self._store.record(map(put_of, rows), ttl_ms)

    def make_up(self, rows: Sequence[Row]) -> None:
        """Record puts of replaced rows that a crash of their producers left unrecorded.

        Recorded puts are not recorded again, because the replacing row may have another due.
        """
        if rows and self.covers(rows[0].shard.queue):
            marks = self._store.recorded({entry_of(row) for row in rows})
            known = {mark.entry for mark in marks if mark.due_ms is not None}
            self.enter([row for row in rows if entry_of(row) not in known])

    def end(self, rows: Sequence[Row], fate: End, attempts: Sequence[int]) -> None:
        """Record ends, before the rows are deleted. Of several ends of a message the first counts.

        The put of a message with a given id is recorded too: if its producer died before recording
        it, the id would not be found. For a message with a key it is not, as its row may have
        another due.

        Args:
            rows: The rows, at any place.
            attempts: How many deliveries each message has had.
        """
        ttl_ms = self._register.settings_of(rows[0].shard.queue).history_ms if rows else 0
        if ttl_ms:
            ends = map(self._end_marks, rows, repeat(fate), attempts)
            self._store.record(chain.from_iterable(ends), ttl_ms)

    def _end_marks(self, row: Row, fate: End, attempt: int) -> list[Mark]:
        now_ms, member = self._clock.now_ms(), self._member
        end = Mark(entry_of(row), None, None, fate.value, now_ms, attempt, member)
        return [end] if row.name is None or row.key is not None else [put_of(row), end]

    def crossing(self, row: Row, new: Row) -> list[Mark]:
        """The marks of a move into another queue: the end in this queue, and the put in the other.

        Args:
            row: The row of this queue.
            new: The row after the move.
        """
        marks = []
        if new.shard.queue != row.shard.queue:
            if self.covers(row.shard.queue):
                marks += self._end_marks(row, self.fate_of(new), died_after(new, row))
            if self.covers(new.shard.queue):
                marks.append(put_of(new))
        return marks

    def fate_of(self, new: Row) -> End:
        """How a message ends in this queue when it gets a row in another queue."""
        return End.DEAD if new.shard.queue == self._register.dead_name else End.FORWARDED

    def kept_ms(self, rows: Iterable[Row]) -> dict[str, int]:
        """This queue and those of some rows -> how long each keeps its marks, milliseconds."""
        queues = {self._register.name, *(row.shard.queue for row in rows)}
        return {queue: self._register.settings_of(queue).history_ms for queue in queues}

    def fail(self, failures: Iterable[tuple[Row, Try]]) -> None:
        """Record attempts that failed, before the rows move. Idempotent.

        Args:
            failures: The rows, at any place, of one queue that keeps a history.
        """
        marks = [Mark(entry_of(row), tries=(one.text(),)) for row, one in failures]
        if marks:
            self._store.record(marks, self._register.settings_of(marks[0].entry.queue).history_ms)

    def first_ms(self) -> int:
        """The earliest time of entry that this queue's history may have, epoch milliseconds.

        Raises:
            HistoryOff: If the queue keeps no history.
        """
        settings = self._register.settings
        # Earlier records are of a dropped queue of the same name.
        former_ms = settings.former_until_us // 1_000
        return max(self._clock.now_ms() - kept_for(settings, self._register.name), former_ms)

    def asked(
        self, message_id: str | None, since: Due | Duration | None, until: Due | Duration | None
    ) -> Iterator[Record]:
        """The records that `Queue.history` asks for.

        Raises:
            HistoryOff: If the queue keeps no history.
            BadName: If the id cannot be a message's id.
            BadTime: If nothing lies between `since` and `until`.
        """
        first_ms, now_ms = self.first_ms(), self._clock.now_ms()
        if message_id is not None:
            names.label(message_id, what="message id")
        since_ms, until_ms = span_of(since, until, first_ms=first_ms, now_ms=now_ms)
        ahead_ms = CLOCK_AHEAD_MS if until is None else 0
        return self.records(message_id, since_ms, until_ms + ahead_ms)

    def records(self, message_id: str | None, since_ms: int, until_ms: int) -> Iterator[Record]:
        """The records of a message, or of all messages that entered in a span, minute by minute.

        Args:
            message_id: The message's id; None for all messages. An id that `put` made is found at
                once. Any other id is searched in the span: a given id, and that of a message from
                another queue or back from the dead.
            since_ms: Begin of the span, epoch milliseconds.
            until_ms: End of the span, exclusive.
        """
        queue, settings = self._register.name, self._register.settings
        purged_before_us, former_us = settings.purged_before_us, settings.former_until_us
        row_id = ids.from_text(message_id) if message_id is not None else None
        if row_id is not None and birth_us(row_id) < former_us:
            # The id is of a dropped queue of the same name.
            row_id = None
        since_us, until_us = since_ms * 1_000, until_ms * 1_000
        found: list[Mark] = []
        if row_id is not None:
            found = self._store.recorded([Entry(queue, row_id)])
            yield from (record_of(mark, purged_before_us) for mark in found)
            if any(mark.fate != End.DEAD.value for mark in found):
                return
            if found:
                # The message may have been put back since, which makes another entry.
                since_us = birth_us(row_id)
        minutes = range(since_us // MINUTE_US, -(-until_us // MINUTE_US))
        for part in spans(minutes, SPAN_MINUTES):
            marks = self._store.history(queue, part)
            made = (
                record_of(mark, purged_before_us)
                for mark in marks
                if since_us <= birth_us(mark.entry.id) < until_us and mark not in found
            )
            chosen = [one for one in made if message_id in (None, one.id)]
            yield from sorted(chosen, key=_by_entry)

    def finished(self, rows: Iterable[Row]) -> set[bytes]:
        """The ids of those rows whose messages have ended."""
        # A message that exists twice has two rows with one entry.
        asked = {row.id: entry_of(row) for row in rows}
        marks = self._store.recorded(set(asked.values()))
        ended = {mark.entry for mark in marks if mark.fate is not None}
        return {row_id for row_id, entry in asked.items() if entry in ended}


def kept_for(settings: Settings, queue: str) -> int:
    """How long a queue keeps its history, milliseconds.

    Raises:
        HistoryOff: If the queue keeps no history.
    """
    if not settings.history_ms:
        raise HistoryOff(
            f"queue {queue!r} keeps no history of what became of its messages; turn it on with "
            f"alter(history='7d'), at a shell with "
            f"`shardq queues alter {served_queue(queue)} --history 7d`."
        )
    return settings.history_ms


def span_of(
    since: Due | Duration | None,
    until: Due | Duration | None,
    *,
    first_ms: int,
    now_ms: int,
) -> tuple[int, int]:
    """The part of a span of time that has passed and that the history covers.

    Args:
        since: Begin of the span; None for `first_ms`.
        until: End of the span; None for now.
        first_ms: Begin of the history, epoch milliseconds.
        now_ms: Now, epoch milliseconds: later minutes are not searched.

    Returns:
        Begin and end, epoch milliseconds. Both are now if the history begins later, as just after
        it was turned on.

    Raises:
        BadTime: If a time cannot be read, or nothing lies between the two.
    """
    asked_ms = first_ms if since is None else moment_or_ago_ms(since, now_ms, name="since")
    until_ms = now_ms if until is None else moment_or_ago_ms(until, now_ms, name="until")
    since_ms, until_ms = max(asked_ms, first_ms), min(until_ms, now_ms)
    if asked_ms > now_ms and since is not None:
        raise BadTime(f"since {shown(since)} is ahead of now, {iso(now_ms)}.")
    if until is not None and until_ms <= since_ms:
        begin = "since" if since_ms == asked_ms and since is not None else "the history's begin"
        raise BadTime(f"nothing lies between {begin}, {iso(since_ms)}, and until, {iso(until_ms)}.")
    return min(since_ms, now_ms), until_ms


def _by_entry(record: Record) -> datetime:
    return record.entered


def _by_end(one: Try) -> tuple[int, int]:
    return one.ended_ms, one.attempt


def put_of(row: Row) -> Mark:
    """The mark of the put of a row."""
    return Mark(entry_of(row), row.order[0], row.name, task=task_of(row))


def entry_of(row: Row) -> Entry:
    """The entry of a row's message: the id of its first row, wherever it has moved."""
    return Entry(row.shard.queue, row.first or row.id)
