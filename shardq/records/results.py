"""Results: the state of a message's last attempt, and the value that it returned.

```
 running ──► running: progress ──► done: its value
    ▲                        ├───► retrying: its error ──► running ..
    └── put back from dead ──┴───► failed: its error
```

A message whose result is kept has one row, by queue and id, with a time to live. The process that
runs the message writes it, whole each time; others read it. `tasks/` knows about tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from shardq.errors import BadBody, BadTime, StoreCorrupt, shown
from shardq.model.ids import birth_us, row_ids
from shardq.model.message import BODY_BYTES_MAX, sound_text
from shardq.model.times import KEPT_MS_MAX, duration_text, is_epoch_ms
from shardq.stores.tables import RESULTS, ResultNote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardq.clock import Clock
    from shardq.stores.store import Store

RUNNING: Final = "running"
RETRYING: Final = "retrying"
"""An attempt has failed, and another attempt follows."""
DONE: Final = "done"
FAILED: Final = "failed"
EXPIRED: Final = "expired"
"""The job expired before it could run."""
CANCELLED: Final = "cancelled"
"""The job was cancelled while it ran, and has stopped."""
ENDS: Final = frozenset({DONE, FAILED, EXPIRED, CANCELLED})
"""States after which no attempt follows, unless the message is put back."""
_STATES = frozenset({RUNNING, RETRYING}) | ENDS

VALUE_BYTES_MAX = BODY_BYTES_MAX
_TEXT_CHARS_MAX = 8_000
"""How many characters of an error and of a traceback are kept; a dead message keeps as many."""
_NOTE_CHARS_MAX = 1_000
_MILLIONTHS = 1_000_000
_UNSAID = -1
_AHEAD_US = 1_000_000
"""How far ahead an end is written, as deletes are: so it beats earlier results that this attempt,
or the one before, wrote by another clock."""


@dataclass(frozen=True, slots=True)
class Result:
    """The state of a message's attempt.

    Attributes:
        state: `running`, `retrying`, `done`, `failed`, `expired` or `cancelled`.
        attempt: The attempt's number, from 1; 0 if no attempt was begun.
        value: The value that the attempt returned, JSON, up to 1 MiB; None if it returned nothing.
        error: Why the attempt failed, cut after 8,000 characters; empty if it has not failed.
        traceback: The error's traceback, its last 8,000 characters.
        progress: Progress, 0 to 1; None if not reported.
        note: The job's note on its progress, cut after 1,000 characters.
        entered_us: When the message entered its queue, epoch microseconds; distinguishes two puts
            under one id.
        at_ms: When the result was written, epoch milliseconds; set by a read, ignored by a write.
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
        """True if no attempt follows, unless the message is put back."""
        return self.state in ENDS


class Results:
    """The results of one queue's messages.

    Args:
        queue: The served queue, also for messages that have died.
    """

    def __init__(self, store: Store, clock: Clock, queue: str) -> None:
        self._store = store
        self._clock = clock
        self._queue = queue

    @property
    def patience_ms(self) -> int:
        """For how long a missing row may be on the move; later it is gone. 0 on SQLite."""
        return 2 * self._store.write_timeout_ms

    def write(self, message_id: str, result: Result, keep_ms: int) -> None:
        """Write the result of a message; see `write_many`."""
        self.write_many({message_id: result}, keep_ms)

    def write_many(self, by_id: Mapping[str, Result], keep_ms: int) -> None:
        """Write the results of messages, in place of earlier ones.

        On SQLite one transaction. On Cassandra one write for each result, side by side.

        Args:
            by_id: Message id -> its result.
            keep_ms: How long results are kept, 1 ms to 5 years. Cassandra keeps whole seconds.

        Raises:
            BadBody: If a value is larger than 1 MiB; nothing was written.
            BadTime: If `keep_ms` is out of bounds; nothing was written.
            StoreTimeout: Some results may be written; writing again is safe.
            StoreUnavailable: No result is written; on Cassandra some may be.
        """
        for message_id, result in by_id.items():
            if result.value is not None and len(result.value) > VALUE_BYTES_MAX:
                raise BadBody(
                    f"message {message_id} of queue {self._queue!r}: a result of "
                    f"{len(result.value):,} bytes is larger than {VALUE_BYTES_MAX:,}; store it "
                    f"elsewhere and return its address."
                )
        if not 0 < keep_ms <= KEPT_MS_MAX:
            raise BadTime(
                f"a result is kept for 1ms to {duration_text(KEPT_MS_MAX)}, not {keep_ms:,}ms."
            )
        written = self._written(by_id)
        notes = {
            (self._queue, message_id): self._note(result, written[message_id])
            for message_id, result in by_id.items()
        }
        self._store.note(RESULTS, (), notes, keep_ms)

    def read(self, message_id: str) -> Result | None:
        """The result of a message; None if no result was written, or it has expired.

        Raises:
            StoreCorrupt: If shardq never writes such a result.
        """
        return self.read_many([message_id]).get(message_id)

    def read_many(self, message_ids: Iterable[str]) -> dict[str, Result]:
        """Message id -> the result, for messages that have one. One read for each, side by side.

        Raises:
            StoreCorrupt: If shardq never writes such a result.
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
        """Message id -> the time of its note; of two notes the one with the later time stands."""
        at_us = birth_us(row_ids.next(self._clock.now_us()))
        if not self._store.is_local:
            return {one: at_us + _AHEAD_US * result.is_end for one, result in by_id.items()}
        # On SQLite writes follow each other, but the clock may have been set back since the last
        # write.
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
    """The first column with a value that shardq never writes; None if all are sound."""
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
