"""Keeps what jobs come to, and how far they are, where that is asked for."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from shardq.errors import StoreError
from shardq.lifecycle.fate import Fate
from shardq.records.results import Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.lifecycle.fate import Outcome
    from shardq.records.results import Results
    from shardq.tasks.run import Run

log = logging.getLogger(__name__)

_PROGRESS_EVERY_S = 0.2
_WRITERS = 4
_TRIES = 5
_TRY_AGAIN_S = 1.0
_STATES = {Fate.RETRY: "retrying", Fate.BURY: "failed", Fate.CANCEL: "expired"}


class Keeping:
    """Results and progress of the jobs of one queue. From any thread.

    Args:
        clock: The store's.
        results: Where they are.
    """

    def __init__(self, clock: Clock, results: Results) -> None:
        self._clock = clock
        self._results = results
        self._told = threading.Condition()
        self._progress: dict[Run, None] = {}
        self._teller: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    def done(self, run: Run, value: Any) -> None:
        """Keep what a job has returned.

        Raises:
            BadResult: If it cannot be JSON, or is too large.
            StoreError: It is not kept.
        """
        self._write(run, self._made(run, "done", value=run.plan.task.encode_result(value)))

    def failed(self, run: Run, outcome: Outcome) -> None:
        """Keep why a job has failed, where it has; that it is not known is logged."""
        state = _STATES.get(outcome.fate)
        if state is None:
            return
        made = self._made(run, state, error=outcome.reason, traceback=outcome.traceback)
        try:
            self._write(run, made)
        except StoreError as error:
            log.warning("why message %s failed is not kept: %s", run.message.id, error)

    def progress(self, run: Run, fraction: float, note: str) -> None:
        """Keep how far a job is, a moment later."""
        run.progress = (fraction, note)
        with self._told:
            if self._is_closed:
                return
            self._progress[run] = None
            if self._teller is None:
                self._teller = threading.Thread(
                    target=self._tell, name="shardq-progress", daemon=True
                )
                self._teller.start()
            self._told.notify()

    def later(self, call: Callable[[], object]) -> None:
        """Call what may wait for the store, in a thread of ours."""
        with self._told:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="shardq-results")
            pool = self._pool
        pool.submit(_logged, call)

    def close(self) -> None:
        """Write what is left, and end the threads."""
        with self._told:
            self._is_closed = True
            self._told.notify()
            pool, teller = self._pool, self._teller
        if pool is not None:
            pool.shutdown()
        if teller is not None:
            teller.join()

    def _tell(self) -> None:
        while True:
            with self._told:
                while not self._progress:
                    if self._is_closed:
                        return
                    self._told.wait()
                runs, self._progress = list(self._progress), {}
            for run in runs:
                # What it comes to is written after this, and never before.
                with run.lock:
                    if not run.is_over:
                        self._note(run)
            self._clock.sleep(_PROGRESS_EVERY_S)

    def _note(self, run: Run) -> None:
        try:
            self._results.write(
                run.message.id, self._made(run, "running"), run.plan.policy.keep_ms or 0
            )
        except StoreError as error:
            log.info("how far message %s is, is not kept: %s", run.message.id, error)

    def _made(
        self,
        run: Run,
        state: str,
        *,
        value: bytes | None = None,
        error: str = "",
        traceback: str = "",
    ) -> Result:
        fraction, note = run.progress
        return Result(
            state=state,
            attempt=run.message.attempt,
            value=value,
            error=error,
            traceback=traceback,
            progress=fraction,
            note=note,
            at_ms=self._clock.now_ms(),
        )

    def _write(self, run: Run, made: Result) -> None:
        for tries in range(1, _TRIES + 1):
            try:
                self._results.write(run.message.id, made, run.plan.policy.keep_ms or 0)
            except StoreError:
                if tries == _TRIES:
                    raise
                self._clock.sleep(_TRY_AGAIN_S)
            else:
                return


def _logged(call: Callable[[], object]) -> None:
    """Call it; what it raises would be lost in a pool."""
    try:
        call()
    except BaseException:
        log.exception("a result could not be kept")
        raise
