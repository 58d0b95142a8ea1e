"""A job, as whoever put it holds it: how it stands, and what it came to.

```
 result() ── every 20 ms, .. 0.5 s ────► its row of results: an end ──► its value, or its error
      └───── every 2 s, then less often ──► its message: dead, or gone ──► why there is none
```

The row is written by who runs the job. A job that nobody runs any more has none that says so: it
was cancelled, purged, or died with its worker. So it is looked for as well, and what takes long is
looked for less often.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar, cast

from shardq.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    JobTimeout,
    NoResult,
    UsageError,
)
from shardq.inspection.state import Where
from shardq.lifecycle.keyed import Answer
from shardq.model.message import Message, first_line
from shardq.model.times import duration_ms
from shardq.records import results
from shardq.records.keyrow import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from datetime import datetime

    from shardq.clock import Clock
    from shardq.inspection.state import State
    from shardq.model.times import Due, Duration
    from shardq.queue import Queue
    from shardq.records.results import Result

R = TypeVar("R")

_POLL_S, _POLL_S_MAX = 0.02, 0.5
_PAUSE_S_MIN = 0.001
_FIRST_LOOK_S = 0.3
_LOOK_S, _LOOK_S_MAX = 2.0, 60.0
_SECOND_LOOK_S = 0.25
"""A message that moves may be missed by one look, but not by a second that is so much later."""
_EARLY_MS = 1_000
"""Cassandra counts whole seconds: a result may be gone by so much before its time is up."""
_IDLE_PER_LOOK = 20
"""Between two looks this many times the time that the last one took must pass."""


class JobState(StrEnum):
    """How a job stands.

    | state | it |
    |---|---|
    | waiting | waits for its due, a worker, its group or the end of a pause |
    | running | runs |
    | retrying | has failed, and waits for another attempt |
    | done | has returned |
    | failed | has died: it is in the dead-letter queue, or was |
    | cancelled | was cancelled, or its queue purged |
    | expired | was of no use any more when it was to run |
    | unknown | is gone, and nothing tells how: see `Job.state` |
    """

    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


_ENDS = {
    results.DONE: JobState.DONE,
    results.FAILED: JobState.FAILED,
    results.EXPIRED: JobState.EXPIRED,
    results.CANCELLED: JobState.CANCELLED,
}
_PLACES = {
    Where.RUNNING: JobState.RUNNING,
    Where.BACK_OFF: JobState.RETRYING,
    Where.SNOOZED: JobState.WAITING,
    Where.DEAD: JobState.FAILED,
    Where.ACKED: JobState.DONE,
    Where.CANCELLED: JobState.CANCELLED,
    Where.PURGED: JobState.CANCELLED,
    Where.ENDED: JobState.UNKNOWN,
}
"""By where its message is; at any other place it waits, for its first attempt or another one."""


class Progress(NamedTuple):
    """How far a job is.

    Attributes:
        fraction: From 0 to 1; None where it does not say.
        note: What it says of it.
    """

    fraction: float | None
    note: str


class Decoder(Protocol):
    """What makes the value of a result of its JSON, as the signature of a task does."""

    def decode_result(self, data: bytes) -> Any:
        """The value that was encoded."""


class Job(Generic[R]):
    """A job that was put. Made by its task, and by `App.job` of an id.

    Each of its properties but `id`, `queue`, `task`, `key` and `due` asks the store. It cannot be
    pickled: hand over its id and the name of its queue, and call `app.job(id, queue=..)` elsewhere.

    Args:
        queue: Its queue.
        message: As it was put; or its id.
        signature: Of its task, by whose hints its result is read; None: that is plain JSON.
        keep_ms: How long its result is kept, milliseconds; None where it is not. Of an id alone
            that is then not known.
        task: The name of its task; empty where that is not known.
        key: The name that it was put under, where the message does not say.
    """

    def __init__(
        self,
        queue: Queue,
        message: Message | str,
        *,
        signature: Decoder | None = None,
        keep_ms: int | None = None,
        task: str = "",
        key: str | None = None,
    ) -> None:
        self._queue = queue
        self._message = message
        self._signature = signature
        self._keep_ms = keep_ms
        self.id: str = message if isinstance(message, str) else message.id
        self.queue: str = queue.name
        self.task: str = task
        self.key: str | None = key if isinstance(message, str) else message.key

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"job {self.id} is this process's own and cannot be pickled; hand over its id, and "
            f"call app.job({self.id!r}, queue={self.queue!r}) in the other process."
        )

    def __repr__(self) -> str:
        task = f" of task {self.task}" if self.task else ""
        return f"<Job {self.id}{task} in queue {self.queue!r}>"

    @property
    def due(self) -> datetime | None:
        """When it was put to be due, UTC; None of an id alone."""
        return None if isinstance(self._message, str) else self._message.due

    @property
    def message(self) -> Message | None:
        """Its message as it was put, with the receipt that cancels it; None of an id alone."""
        return None if isinstance(self._message, str) else self._message

    # How it stands --------------------------------------------------------------------------------

    @property
    def state(self) -> JobState:
        """How it stands: by its result where it has ended, else by where its message is.

        That is a read, and as many as `Queue.state_of` takes. A job without an end that is found
        nowhere is searched once more, in the whole queue: it is cancelled where its result would
        still be kept, else unknown. Then it was cancelled, or has ended, and a `history` of its
        queue would tell. One that died and was put back has failed until its next attempt tells.
        """
        found = self._read()
        if found is None or not found.is_end:
            where = self._where(False)
            if where is None:
                self._clock.sleep(_SECOND_LOOK_S)
                where = self._where(True)
            if where is not None and not where.has_ended:
                return self._live(where, found)
            # What has ended just now had its result written before.
            found = self._read()
            if found is None or not found.is_end:
                return _PLACES[where.where] if where is not None else self._gone(found)
        return _ENDS[found.state]

    @property
    def progress(self) -> Progress | None:
        """How far it last said to be; None where it has not, or keeps no result. One read."""
        found = self._read()
        if found is None or (found.progress is None and not found.note):
            return None
        return Progress(found.progress, found.note)

    @property
    def error(self) -> str | None:
        """Why its last failed attempt failed, to 8,000 characters; None where none has.

        One read, and where its result does not tell, as many as `Queue.state_of` takes.
        """
        found = self._read()
        if found is not None and (found.error or found.is_end):
            return found.error or None
        where = self._where(False)
        return None if where is None else where.error

    @property
    def traceback(self) -> str | None:
        """The end of that one's traceback; None where there is none, or it keeps no result."""
        found = self._read()
        return (found.traceback or None) if found is not None else None

    @property
    def attempt(self) -> int:
        """The number of its last attempt; 0 before the first. Reads as `error` does."""
        found = self._read()
        if found is not None and found.is_end:
            return found.attempt
        where = self._where(False)
        return max(0 if found is None else found.attempt, 0 if where is None else where.attempts)

    def result(self, timeout: Duration | None = None) -> R:
        """What it returns, waited for.

        Its result is read 2 to 50 times a second. Where its message is, is looked up every 2 s and
        then less often, so that this ends too where nobody runs the job any more. One that is found
        nowhere is looked for again before that is said: for as long as a write may be under way, on
        Cassandra 20 s.

        Args:
            timeout: How long to wait; `0s` looks once, None waits until it ends. A search for a
                message that is gone may take longer.

        Raises:
            JobFailed: It has died; it carries error and traceback.
            JobCancelled: It was cancelled, or purged.
            JobExpired: It was of no use any more when it was to run.
            JobTimeout: It has not ended yet; the text says where it is.
            NoResult: Its task keeps no result; or it has ended, and its result is not kept any
                more; or nothing is known of it.
            StoreUnavailable, StoreTimeout: The store has not answered; ask again.
        """
        pauses = self._pauses(timeout)
        while True:
            try:
                self._clock.sleep(next(pauses))
            except StopIteration as end:
                return cast("R", end.value)

    def _pauses(self, timeout: Duration | None) -> Generator[float, None, R]:
        """Looks for the result again and again; yields after how many seconds to look next.

        For `result`, and for those that wait otherwise. Returns and raises what that does.
        """
        if not self._keeps:
            raise NoResult(
                f"{self._named} keeps no result; put it by a task, or using(..), with keep='1d'."
            )
        limit_us = None if timeout is None else duration_ms(timeout, name="timeout") * 1_000
        clock, patience_ms = self._clock, self._queue._home.results.patience_ms
        looks = _Looks(self._where, clock, patience_ms)
        begun_us, wait_s = clock.boot_us(), _POLL_S
        while True:
            found = self._read()
            if found is not None and found.is_end:
                return self._told(found)
            left_s = None
            if limit_us is not None:
                left_s = (begun_us + limit_us - clock.boot_us()) / 1e6
            is_last = left_s is not None and left_s <= 0
            if is_last or not looks.next_s():
                if looks.is_over(is_last=is_last):
                    # What has ended just now had its result written before.
                    last = self._read()
                    if last is not None and last.is_end:
                        return self._told(last)
                    self._raise_end(looks.where, last)
                if is_last:
                    raise JobTimeout(f"{self._named} has no result after {timeout}: {looks.told}.")
            pause_s = min(wait_s, looks.next_s(), wait_s if left_s is None else left_s)
            yield max(pause_s, _PAUSE_S_MIN)
            wait_s = min(2 * wait_s, _POLL_S_MAX)

    # Commands -------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Remove it, unless it has ended.

        With a key it is exact: where this is True nothing runs, whatever crashes; one that is
        running is asked to stop, and not run again. Without one it is best effort: what a worker
        has read may still run. It is searched for where it is not as it was put, in the whole queue
        if need be.

        Returns:
            Whether it was there, and with a key also that it does not run.
        """
        put = None if isinstance(self._message, str) else self._message
        if put is not None and self._queue.cancel(put):
            return True
        if self.key is not None:
            found = self._queue.find(key=self.key) if put is None else None
        elif put is not None and self._is_done():
            # One that has failed may have been put back.
            return False
        else:
            found = self._queue.find(self._message)
        if found is None or found.id != self.id:
            return False
        if put is not None and first_of(found._row) != first_of(put._row):
            # Another, of the same id.
            return False
        return bool(self._queue.cancel(found))

    def move(self, *, due: Due | None = None, delay: Duration | None = None) -> Answer:
        """Let it be due at another time, where it waits.

        Args:
            due: When, as for `Queue.put`.
            delay: Instead of `due`: how long from now.

        Returns:
            What it came to. Where it was `done`, it does not run at its old time.

        Raises:
            UsageError: If it was put without a key, by which alone a job can be moved.
        """
        if self.key is None:
            raise UsageError(f"{self._named} has no key; put it by using(key=..) to move it later.")
        found = self._queue.get(self.key)
        if found is None or found.id != self.id:
            return Answer.NOT_THERE
        return self._queue.move(self.key, due=due, delay=delay)

    # Details --------------------------------------------------------------------------------------

    @property
    def _named(self) -> str:
        return f"job {self.id}{f' of task {self.task}' if self.task else ''}"

    @property
    def _clock(self) -> Clock:
        return self._queue._home.clock

    @property
    def _keeps(self) -> bool:
        """Whether its result may be kept."""
        return self._keep_ms is not None or isinstance(self._message, str)

    def _read(self) -> Result | None:
        """Its result; None where there is none, or only that of an earlier put under its id."""
        found = self._queue._home.results.read(self.id) if self._keeps else None
        put = None if isinstance(self._message, str) else self._message
        if found is not None and put is not None and found.entered_us < put._row.entered_us:
            return None
        return found

    def _is_done(self) -> bool:
        found = self._read()
        return found is not None and found.state == results.DONE

    def _where(self, is_whole: bool) -> State | None:
        """Where its message is; None where it is not found, near or in the whole queue."""
        if self.key is not None and isinstance(self._message, str):
            found = self._queue.state_of(key=self.key)
            if found is not None and found.id == self.id:
                return found
        return self._queue.state_of(self._message, near=not is_whole)

    def _live(self, where: State, found: Result | None) -> JobState:
        if where.where in _PLACES:
            return _PLACES[where.where]
        if where.where is Where.HELD and found is not None and found.state == results.RUNNING:
            # What its worker says of itself is a moment old.
            return JobState.RUNNING
        return JobState.RETRYING if where.attempts and where.error else JobState.WAITING

    def _gone(self, found: Result | None) -> JobState:
        """What became of it where its message is gone, and no end is kept."""
        if found is not None:
            return JobState.CANCELLED
        if isinstance(self._message, str) or self._keep_ms is None:
            return JobState.UNKNOWN
        row = self._message._row
        # It has not ended before it was due; by its key it may have been moved to an earlier time.
        ended_ms = row.entered_us // 1_000 if self.key is not None else row.wanted_ms
        is_kept = self._clock.now_ms() < ended_ms + self._keep_ms - _EARLY_MS
        return JobState.CANCELLED if is_kept else JobState.UNKNOWN

    def _told(self, found: Result) -> R:
        """The value of a result that is an end, or its error."""
        if found.state == results.DONE:
            return cast("R", self._decoded(found.value))
        if found.state == results.CANCELLED:
            raise JobCancelled(f"{self._named} was cancelled while it ran.")
        if found.state == results.EXPIRED:
            why = f": {first_line(found.error)}" if found.error else ""
            raise JobExpired(f"{self._named} was of no use any more when it was to run{why}.")
        raise self._failed(found.error, found.traceback)

    def _decoded(self, value: bytes | None) -> Any:
        if value is None:
            return None
        if self._signature is not None:
            return self._signature.decode_result(value)
        return json.loads(value)

    def _raise_end(self, end: State | None, found: Result | None) -> NoReturn:
        """Raise what a job came to that has ended without a result."""
        state = self._gone(found) if end is None else _PLACES[end.where]
        if state is JobState.FAILED:
            told = end.error if end is not None else None
            raise self._failed(told or (found.error if found else ""), "")
        if state is JobState.CANCELLED:
            raise JobCancelled(f"{self._named} was cancelled or purged; it does not run any more.")
        if state is JobState.DONE:
            raise NoResult(f"{self._named} has ended, and its result is not kept any more.")
        raise NoResult(
            f"{self._named} is not in queue {self.queue!r} any more, and no result of it is kept: "
            f"it has ended, was cancelled, or never was there."
        )

    def _failed(self, error: str, traceback: str) -> JobFailed:
        why = first_line(error) or "nothing says why"
        failed = JobFailed(f"{self._named} failed: {why}", error, traceback)
        if traceback:
            failed.add_note(f"In its worker:\n{traceback}")
        return failed


class _Looks:
    """Looks where a job's message is, now and then: what takes long, less often.

    Args:
        look: Looks once; in the whole queue, if it is told so.
        patience_ms: How long what moves may not be found.

    Attributes:
        where: Where it was last; None where it was not found.
        told: The same in words.
    """

    def __init__(
        self, look: Callable[[bool], State | None], clock: Clock, patience_ms: int
    ) -> None:
        self._look = look
        self._clock = clock
        self._patience_s = max(_SECOND_LOOK_S, patience_ms / 1_000)
        self._every_s = _LOOK_S
        self._next_us = self._clock.boot_us() + round(_FIRST_LOOK_S * 1e6)
        self._missing_us: int | None = None
        self._is_far = False
        """Whether it is only found in the whole queue: what waits for long, once it has moved."""
        self.where: State | None = None
        self.told = ""

    def next_s(self) -> float:
        """In how many seconds it is time to look again; 0 where it is."""
        return max(0.0, (self._next_us - self._clock.boot_us()) / 1e6)

    def is_over(self, *, is_last: bool) -> bool:
        """Look: whether the job has ended, or is found nowhere, twice.

        Args:
            is_last: Whether there is no time for more than these two.
        """
        begun_us = self._clock.boot_us()
        is_second = self._missing_us is not None
        self.where = self._look(self._is_far or is_second)
        now_us = self._clock.boot_us()
        took_s = (now_us - begun_us) / 1e6
        if self.where is not None:
            self.told = str(self.where)
            self._is_far = self._is_far or is_second
            self._missing_us = None
            self._every_s = min(self._every_s * 1.5, _LOOK_S_MAX)
            pause_s = max(self._every_s, _IDLE_PER_LOOK * took_s)
            self._next_us = now_us + round(pause_s * 1e6)
            return self.where.has_ended
        self.told = "it was not found"
        if self._missing_us is None:
            self._missing_us = begun_us
            self._next_us = now_us + round(self._patience_s * 1e6)
            if not is_last:
                return False
            self._clock.sleep(_SECOND_LOOK_S)
            return self.is_over(is_last=True)
        return is_last or begun_us - self._missing_us >= self._patience_s * 1e6
