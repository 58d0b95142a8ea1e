"""Keeps the results and the progress of jobs whose tasks ask for it.

```
 end of a run ──► pending ──► one thread writes all that are pending ──► its delivery ends
 progress ──────► the last of each run ──► written five times a second at most
```

A job's result is stored before its delivery ends, so that every ended job has a result. Jobs that
outlive a stop run again elsewhere; nothing more is written for them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from shardq import locks
from shardq.errors import StoreError
from shardq.records import results
from shardq.records.results import Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.records.results import Results
    from shardq.tasks.run import JobRun

log = logging.getLogger(__name__)

_PROGRESS_EVERY_US = 200_000
_TOGETHER_MAX = 500
_BYTES_MAX = 8 << 20
_TRIES = 5
_TRY_AGAIN_S = 1.0


class _Write(NamedTuple):
    """A result to write, and the call to make afterwards."""

    run: JobRun
    keep_ms: int
    result: Result
    done: Callable[[Exception | None], object]

    @property
    def size(self) -> int:
        """The size in memory, roughly, in bytes."""
        result = self.result
        return len(result.value or b"") + len(result.error) + len(result.traceback)


class Keeping:
    """Results and progress of the jobs of one queue. Safe from any thread.

    Args:
        clock: The store's.
        kept: The rows of results.

    Attributes:
        is_threaded: True if a thread writes; else each caller writes at once.
    """

    def __init__(self, clock: Clock, kept: Results) -> None:
        self._clock = clock
        self._results = kept
        self._lock = locks.new()
        self._told = locks.condition(self._lock)
        self._room = locks.condition(self._lock)
        self._pending: deque[_Write] = deque()
        self._bytes = 0
        self._moving: dict[JobRun, None] = {}
        """Runs whose progress has changed since it was last written."""
        self._progress_us = 0
        self._writer: threading.Thread | None = None
        self._is_closed = False
        self.is_threaded = True

    def write(
        self, run: JobRun, result: Result, done: Callable[[Exception | None], object]
    ) -> None:
        """Store the result of a run; does nothing once this is closed.

        Args:
            run: The run; its progress is stored with it.
            result: The result.
            done: Called once the result is stored, or with the error after several tries; in this
                object's thread, if there is one.
        """
        keep_ms = run.plan.policy.keep_ms or 0
        one = _Write(run, keep_ms, result, done)
        with self._lock:
            if self._is_closed:
                return
            self._bytes += one.size
            if self.is_threaded:
                self._pending.append(one)
                self._wake()
                return
        self._write([one], keep_ms)

    def wait_for_room(self) -> None:
        """Wait while the results to write fill the memory."""
        with self._lock:
            while self._bytes > _BYTES_MAX and not self._is_closed:
                self._clock.wait(self._room, None)

    def progress(self, run: JobRun, fraction: float, note: str) -> None:
        """Keep the progress of a run, a moment later."""
        run.progress = (fraction, note)
        if not self.is_threaded:
            self._write_progress([run])
            return
        with self._lock:
            if not self._is_closed:
                self._moving[run] = None
                self._wake()

    def close(self) -> None:
        """Write nothing more, and end the thread. Called once the deliveries have ended.

        Results that still wait belong to runs whose deliveries did not end: they are delivered
        again.
        """
        with self._lock:
            self._is_closed = True
            self._pending.clear()
            self._told.notify_all()
            self._room.notify_all()
            writer = self._writer
        if writer is not None:
            writer.join()

    def _wake(self) -> None:
        if self._writer is None:
            writer = threading.Thread(target=self._run, name="shardq-results", daemon=True)
            # Set the attribute after the start: if the thread may not start, the next write tries
            # again.
            writer.start()
            self._writer = writer
        self._told.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._pending and not self._is_closed:
                    left_us = self._progress_us - self._clock.boot_us()
                    if self._moving and left_us <= 0:
                        break
                    self._clock.wait(self._told, left_us / 1e6 if self._moving else None)
                if self._is_closed:
                    return
                together = [
                    self._pending.popleft() for _ in range(min(len(self._pending), _TOGETHER_MAX))
                ]
                is_time = self._clock.boot_us() >= self._progress_us
                moving = list(self._moving) if is_time else []
                if is_time:
                    self._moving = {}
            for keep_ms, some in groupby(together, attrgetter("keep_ms")):
                self._write(list(some), keep_ms)
            if moving:
                self._write_progress(moving)

    def _write(self, together: list[_Write], keep_ms: int) -> None:
        by_id = {one.run.message.id: one.result for one in together}
        error = self._stored(by_id, keep_ms)
        for _ in range(_TRIES - 1):
            if self._is_closed or not isinstance(error, StoreError):
                break
            self._clock.sleep(_TRY_AGAIN_S)
            error = self._stored(by_id, keep_ms)
        for one in together:
            try:
                one.done(error)
            except BaseException:
                log.exception("the end of message %s could not be told", one.run.message.id)
        with self._lock:
            self._bytes -= sum(one.size for one in together)
            self._room.notify_all()

    def _write_progress(self, moving: list[JobRun]) -> None:
        self._progress_us = self._clock.boot_us() + _PROGRESS_EVERY_US
        by_keep_ms: dict[int, dict[str, Result]] = {}
        for run in moving:
            # Skip ended runs: their final results are written separately, and hide any progress.
            if not run.is_over:
                told = by_keep_ms.setdefault(run.plan.policy.keep_ms or 0, {})
                told[run.message.id] = result_of(run, results.RUNNING)
        for keep_ms, told in by_keep_ms.items():
            if (error := self._stored(told, keep_ms)) is not None:
                log.info("how far %d messages are, is not kept: %s", len(told), error)

    def _stored(self, by_id: dict[str, Result], keep_ms: int) -> Exception | None:
        """Store some results; returns the error."""
        try:
            self._results.write_many(by_id, keep_ms)
        except StoreError as error:
            return error
        except Exception as fault:
            # Return the error: if it were raised, this thread would end, and no more jobs could
            # end.
            log.exception("what %d messages came to cannot be kept", len(by_id))
            return fault
        return None


def result_of(
    run: JobRun, state: str, *, value: bytes | None = None, error: str = "", traceback: str = ""
) -> Result:
    """The row to keep for a run, with its last progress."""
    fraction, note = run.progress
    return Result(
        state=state,
        attempt=run.message.attempt,
        value=value,
        error=error,
        traceback=traceback,
        progress=fraction,
        note=note,
        entered_us=run.message._row.entered_us,
    )
