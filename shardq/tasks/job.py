"""A job, as the caller that put it sees it: its state, and its result.

```
 result() ── every 20 ms, .. 0.5 s ────► its row of results: an end ──► its value, or its error
      └───── every 2 s, then less often ──► its message: dead, or gone ──► why there is none
```

The worker writes the row. No row records the end of a job that was cancelled, purged, or died with
its worker. So `result` looks for the message too; the longer a look takes, the less often.
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
"""A single look may miss a message that moves; a second look this much later does not."""
_EARLY_MS = 1_000
"""A result may expire this early, because Cassandra counts in whole seconds."""
_IDLE_PER_LOOK = 20
"""The pause between two looks for the message is this many times the duration of the last look."""


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
    | unknown | is gone, and no record tells how: see `Job.state` |
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
"""The state of a job by the place of its message; at any other place the job waits, for its first
attempt or another."""


class Progress(NamedTuple):
    """How far a job is.

    Attributes:
        fraction: From 0 to 1; None if the job has not reported any.
        note: The job's note.
    """

    fraction: float | None
    note: str


class Decoder(Protocol):
    """Reads the value of a result from its JSON, as the signature of a task does."""

    def decode_result(self, data: bytes) -> Any:
        """The value that was encoded."""


class Job(Generic[R]):
    """A job that was put. Made by its task, and by `App.job` of an id.

    Each of its properties but `id`, `queue`, `task`, `key` and `due` asks the store. It cannot be
    pickled: send its id and the name of its queue, and call `app.job(id, queue=..)` there.

    Args:
        queue: Its queue.
        message: The message as it was put; or its id.
        signature: The signature of its task, whose hints read its result; None: plain JSON.
        keep_ms: How long its result is kept, milliseconds; None if no result is kept, or if only
            the id is known.
        task: The name of its task; empty if it is not known.
        key: Its key, if the message does not hold it.
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
        """The due that it was put with, UTC; None if only the id is known."""
        return None if isinstance(self._message, str) else self._message.due

    @property
    def message(self) -> Message | None:
        """The message as it was put, with the receipt that cancels it; None for an id alone."""
        return None if isinstance(self._message, str) else self._message

    # State ----------------------------------------------------------------------------------------

    @property
    def state(self) -> JobState:
        """Its state: by its result if it has ended, else by where its message is.

        Takes one read, and the reads of `Queue.state_of`. If the message is not found and no end is
        recorded, the whole queue is searched once more. If that finds nothing, the job is cancelled
        if its result would still be kept, else unknown: it was cancelled or has ended, and only the
        `history` of its queue may tell. A job that died and was put back is failed until its next
        attempt is recorded.
        """
        found = self._read()
        if found is None or not found.is_end:
            where = self._where(False)
            if where is None:
                self._clock.sleep(_SECOND_LOOK_S)
                where = self._where(True)
            if where is not None and not where.has_ended:
                return self._live(where, found)
            # A job stores its result before it ends, so one that ended just now has a result.
            found = self._read()
            if found is None or not found.is_end:
                return _PLACES[where.where] if where is not None else self._gone(found)
        return _ENDS[found.state]

    @property
    def progress(self) -> Progress | None:
        """The last reported progress; None if there is none, or no result is kept. One read."""
        found = self._read()
        if found is None or (found.progress is None and not found.note):
            return None
        return Progress(found.progress, found.note)

    @property
    def error(self) -> str | None:
        """The error of its last failed attempt, up to 8,000 characters; None if none failed.

        Takes one read, and the reads of `Queue.state_of` if the result does not hold the error.
        """
        found = self._read()
        if found is not None and (found.error or found.is_end):
            return found.error or None
        where = self._where(False)
        return None if where is None else where.error

    @property
    def traceback(self) -> str | None:
        """The end of the traceback of `error`; None if there is none, or no result is kept."""
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
        """Wait for its result.

        Reads the result 2 to 50 times a second. Looks for the message every 2 s and then less
        often, so that this ends even if no worker runs the job any more. A message that is not
        found is searched again before this raises: after as long as a write may be under way, on
        Cassandra 20 s.

        Args:
            timeout: How long to wait; `0s` looks once, None waits until the job ends. A search for
                a missing message may take longer.

        Raises:
            JobFailed: It has died; the exception holds error and traceback.
            JobCancelled: It was cancelled, or purged.
            JobExpired: It expired before it could run.
            JobTimeout: It has not ended yet; the text says where it is.
            NoResult: Its task keeps no result; or it has ended, and its result is no longer kept;
                or nothing is known of it.
            StoreUnavailable, StoreTimeout: The store has not answered; call it again.
        """
        pauses = self._pauses(timeout)
        while True:
            try:
                self._clock.sleep(next(pauses))
            except StopIteration as end:
                return cast("R", end.value)

    def _pauses(self, timeout: Duration | None) -> Generator[float, None, R]:
        """Look for the result repeatedly; yields the seconds until the next look.

        Used by `result`, and by callers that wait in another way. Returns and raises like `result`.
        """
        if not self._keeps:
            raise NoResult(
                f"{self._named} keeps no result; put it by a task, or using(..), with keep='1d'."
            )
        limit_us = None if timeout is None else duration_ms(timeout, name="timeout") * 1_000
        clock, patience_ms = self._clock, self._queue._home.results.patience_ms
        looks = _JobLooks(self._where, clock, patience_ms)
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
                    # A job stores its result before it ends, so one that ended just now has a
                    # result.
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
        """Cancel the job, unless it has ended.

        With a key this is exact: after True the job never runs, whatever crashes; a running job is
        asked to stop, and does not run again. Without a key it is best effort: a job that a worker
        has already read may still run. If the message has moved, it is searched for, in the whole
        queue if needed.

        Returns:
            True if the job was found, and with a key also that it does not run.
        """
        put = None if isinstance(self._message, str) else self._message
        if put is not None and self._queue.cancel(put):
            return True
        if self.key is not None:
            found = self._queue.find(key=self.key) if put is None else None
        elif put is not None and self._is_done():
            # Only `done` is final: a failed job may have been put back, so it is searched below.
            return False
        else:
            found = self._queue.find(self._message)
        if found is None or found.id != self.id:
            return False
        if put is not None and first_of(found._row) != first_of(put._row):
            # The found message is of another job with the same id.
            return False
        return bool(self._queue.cancel(found))

    def move(self, *, due: Due | None = None, delay: Duration | None = None) -> Answer:
        """Give the job another due, if it waits.

        Args:
            due: The new due, as for `Queue.put`.
            delay: Instead of `due`: how long from now.

        Returns:
            The outcome. After `done` it does not run at its old due.

        Raises:
            UsageError: If it was put without a key.
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
        """True if its result may be kept."""
        return self._keep_ms is not None or isinstance(self._message, str)

    def _read(self) -> Result | None:
        """Its result; None if there is none, or only one of an earlier put under its id."""
        found = self._queue._home.results.read(self.id) if self._keeps else None
        put = None if isinstance(self._message, str) else self._message
        if found is not None and put is not None and found.entered_us < put._row.entered_us:
            return None
        return found

    def _is_done(self) -> bool:
        found = self._read()
        return found is not None and found.state == results.DONE

    def _where(self, is_whole: bool) -> State | None:
        """The state of its message; None if it is not found."""
        if self.key is not None and isinstance(self._message, str):
            found = self._queue.state_of(key=self.key)
            if found is not None and found.id == self.id:
                return found
        return self._queue.state_of(self._message, near=not is_whole)

    def _live(self, where: State, found: Result | None) -> JobState:
        if where.where in _PLACES:
            return _PLACES[where.where]
        if where.where is Where.HELD and found is not None and found.state == results.RUNNING:
            # `where` comes from the worker's report, which may be older than this result.
            return JobState.RUNNING
        return JobState.RETRYING if where.attempts and where.error else JobState.WAITING

    def _gone(self, found: Result | None) -> JobState:
        """The state of a job whose message is gone and whose end is not recorded."""
        if found is not None:
            return JobState.CANCELLED
        if isinstance(self._message, str) or self._keep_ms is None:
            return JobState.UNKNOWN
        row = self._message._row
        # The job ended after its due. With a key its due may have been moved, so only its put is
        # sure.
        ended_ms = row.entered_us // 1_000 if self.key is not None else row.wanted_ms
        is_kept = self._clock.now_ms() < ended_ms + self._keep_ms - _EARLY_MS
        return JobState.CANCELLED if is_kept else JobState.UNKNOWN

    def _told(self, found: Result) -> R:
        """The value of a final result; raises the error of a job that did not succeed."""
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
        """Raise the error of a job that has ended without a result."""
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


class _JobLooks:
    """Looks for a job's message now and then; the longer a look takes, the less often.

    Args:
        look: Looks once; in the whole queue if its argument is True.
        patience_ms: How long a message that moves may be missed.

    Attributes:
        where: Where the message was last; None if it was not found.
        told: That place as text.
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
        """True if only a search of the whole queue finds the message, because it has moved and
        waits for long."""
        self.where: State | None = None
        self.told = ""

    def next_s(self) -> float:
        """Seconds until the next look; 0 if it is due."""
        return max(0.0, (self._next_us - self._clock.boot_us()) / 1e6)

    def is_over(self, *, is_last: bool) -> bool:
        """Look. True if the job has ended, or two looks did not find it.

        Args:
            is_last: True if there is no time for later looks: look twice now.
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
