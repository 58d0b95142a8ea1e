"""Results: how the last attempt of a message stands, and what it returned.

```
 running ──► running: further on ──► done: its value
    ▲                          ├───► retrying: its error ──► running ..
    └── put back, once it died ┴───► failed: its error
```

One row for a message whose result is kept, by queue and id, until its time to live is over. Whoever
runs the message writes it, whole each time; others read. What a task is, `tasks/` knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from shardq.errors import BadBody, BadTime, StoreCorrupt, shown
from shardq.model.ids import birth_us, row_ids
from shardq.model.message import BODY_BYTES_MAX, sound_text
from shardq.model.times import duration_text, is_epoch_ms
from shardq.stores.tables import RESULTS, ResultNote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardq.clock import Clock
    from shardq.stores.store import Store

RUNNING: Final = "running"
RETRYING: Final = "retrying"
"""An attempt has failed, and another one follows."""
DONE: Final = "done"
FAILED: Final = "failed"
EXPIRED: Final = "expired"
"""It was of no use any more when it was to run."""
CANCELLED: Final = "cancelled"
"""It was cancelled while it ran, and has stopped."""
ENDS: Final = frozenset({DONE, FAILED, EXPIRED, CANCELLED})
"""What no attempt follows, unless the message is put back."""
_STATES = frozenset({RUNNING, RETRYING}) | ENDS

VALUE_BYTES_MAX = BODY_BYTES_MAX
KEEP_MS_MAX = 5 * 365 * 86_400_000
"""The same as for a history: before release 5 Cassandra takes no TTL that ends after 2038."""
_TEXT_CHARS_MAX = 8_000
"""Characters of an error and of a traceback, as a dead message keeps of them."""
_NOTE_CHARS_MAX = 1_000
_MILLIONTHS = 1_000_000
_UNSAID = -1
_AHEAD_US = 1_000_000
"""An end is written this far ahead, as deletes are: it beats what its own attempt, or the one
before it, wrote by another clock."""


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt of a message stands.

    Attributes:
        state: `running`, `retrying`, `done`, `failed`, `expired` or `cancelled`.
        attempt: Its number, from 1; 0 where none was begun.
        value: What it returned, JSON, to 1 MiB; None while it has returned nothing.
        error: Why it failed, cut after 8,000 characters; empty where it has not.
        traceback: Of that, cut before its last 8,000 characters.
        progress: How far it is, 0 to 1; None where it does not say.
        note: What it says of its progress, cut after 1,000 characters.
        entered_us: When the message entered its queue, epoch microseconds: of two puts under one id
            it tells which one this is of.
        at_ms: When it was written, epoch milliseconds, as it is read; a writer need not give it.
    """

    state: str
    attempt: int = 0
    value: bytes | None = None
    error: str = ""
    traceback: str = ""
    progress: float | None = None
    note: str = ""
    entered_us: int = 0
    at_ms: int = 0

    @property
    def is_end(self) -> bool:
        """Whether no attempt follows, unless the message is put back."""
        return self.state in ENDS


class Results:
    """The results of one queue's messages.

    Args:
        queue: The queue that is served, also of messages that have died.
    """

    def __init__(self, store: Store, clock: Clock, queue: str) -> None:
        self._store = store
        self._clock = clock
        self._queue = queue

    @property
    def patience_ms(self) -> int:
        """After so long a row that is not found is none that was being moved; 0 on SQLite."""
        return 2 * self._store.write_timeout_ms

    def write(self, message_id: str, result: Result, keep_ms: int) -> None:
        """Say how a message stands; `write_many` says what that is."""
        self.write_many({message_id: result}, keep_ms)

    def write_many(self, by_id: Mapping[str, Result], keep_ms: int) -> None:
        """Say how messages stand, in place of what was said before.

        SQLite: one transaction. Cassandra: a write each, side by side.

        Args:
            by_id: Message id -> how it stands.
            keep_ms: How long that is kept, 1 ms to 5 years. Cassandra keeps whole seconds.

        Raises:
            BadBody: If a value is larger than 1 MiB; nothing was written.
            BadTime: If it cannot be kept for so long; likewise.
            StoreTimeout: Maybe written, some of it; writing it again is safe.
            StoreUnavailable: Not written, or on Cassandra some of it.
        """
        for message_id, result in by_id.items():
            if result.value is not None and len(result.value) > VALUE_BYTES_MAX:
                raise BadBody(
                    f"message {message_id} of queue {self._queue!r}: a result of "
                    f"{len(result.value):,} bytes is larger than {VALUE_BYTES_MAX:,}; store it "
                    f"elsewhere and return its address."
                )
        if not 0 < keep_ms <= KEEP_MS_MAX:
            raise BadTime(
                f"a result is kept for 1 ms to {duration_text(KEEP_MS_MAX)}, not {keep_ms:,} ms."
            )
        written = self._written(by_id)
        notes = {
            (self._queue, message_id): self._note(result, written[message_id])
            for message_id, result in by_id.items()
        }
        self._store.note(RESULTS, (), notes, keep_ms)

    def read(self, message_id: str) -> Result | None:
        """How a message stands; None where nothing was written, or it is not kept any more.

        Raises:
            StoreCorrupt: If what stands there is none that shardq writes.
        """
        return self.read_many([message_id]).get(message_id)

    def read_many(self, message_ids: Iterable[str]) -> dict[str, Result]:
        """How messages stand, by id: those of which anything is kept. A read each, side by side.

        Raises:
            StoreCorrupt: If what stands there of one is none that shardq writes.
        """
        keys = [(self._queue, message_id) for message_id in dict.fromkeys(message_ids)]
        found = self._store.notes(RESULTS, (), keys) if keys else {}
        return {message_id: self._read(message_id, note) for (_, message_id), note in found.items()}

    def _note(self, result: Result, written_us: int) -> ResultNote:
        millionths = _UNSAID
        if result.progress is not None:
            millionths = round(min(max(result.progress, 0.0), 1.0) * _MILLIONTHS)
        return ResultNote(
            result.state,
            result.attempt,
            b"" if result.value is None else result.value,
            sound_text(result.error[:_TEXT_CHARS_MAX])[:_TEXT_CHARS_MAX],
            sound_text(result.traceback[-_TEXT_CHARS_MAX:])[-_TEXT_CHARS_MAX:],
            millionths,
            sound_text(result.note[:_NOTE_CHARS_MAX])[:_NOTE_CHARS_MAX],
            result.entered_us,
            written_us,
        )

    def _written(self, by_id: Mapping[str, Result]) -> dict[str, int]:
        """The times by which it is decided which of two notes stands, by message id."""
        at_us = birth_us(row_ids.next(self._clock.now_us()))
        if not self._store.is_local:
            return {one: at_us + _AHEAD_US * result.is_end for one, result in by_id.items()}
        # There calls follow each other, but the clock may have been set back since the last.
        keys = [(self._queue, message_id) for message_id in by_id]
        before = self._store.notes(RESULTS, (), keys)
        stood_us = {message_id: note.written for (_, message_id), note in before.items()}
        return {one: max(at_us, stood_us.get(one, 0) + 1) for one in by_id}

    def _read(self, message_id: str, note: ResultNote) -> Result:
        if (column := _damaged(note)) is not None:
            raise StoreCorrupt(
                f"the result of message {message_id} of queue {self._queue!r} is damaged: {column} "
                f"is {shown(getattr(note, column))}; delete its row of table results, or restore "
                f"the store from a copy."
            )
        result = Result(
            note.state,
            note.attempt,
            note.value or None,
            note.error,
            note.traceback,
            None if note.progress == _UNSAID else note.progress / _MILLIONTHS,
            note.note,
            note.entered,
        )
        ahead_us = _AHEAD_US * (result.is_end and not self._store.is_local)
        return replace(result, at_ms=(note.written - ahead_us) // 1_000)


def _damaged(note: ResultNote) -> str | None:
    """The first column that holds what shardq never writes; None where all is sound."""
    is_sound = {
        "state": note.state in _STATES,
        "attempt": type(note.attempt) is int and note.attempt >= 0,
        "value": type(note.value) is bytes,
        "error": type(note.error) is str,
        "traceback": type(note.traceback) is str,
        "progress": type(note.progress) is int and _UNSAID <= note.progress <= _MILLIONTHS,
        "note": type(note.note) is str,
        "entered": type(note.entered) is int and note.entered >= 0,
        "written": type(note.written) is int and is_epoch_ms(note.written // 1_000),
    }
    return next((column for column, is_so in is_sound.items() if not is_so), None)
