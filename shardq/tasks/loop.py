"""One event loop in a thread of its own, in which coroutines of all threads run.

```
 any thread ── submit, waits while all slots are taken ──► inbox ──► task ──┬─ ends ─► done
                                                            over its limit ─┤ cancelled
       swallows that, or a call in a thread of `executor.py` does not end, for 1 s ─┴─► reported
 guard, a thread ── does the loop turn? ── not for 1 s ──► logged, where it stands
                                           limits are exceeded ──► reported
```

If a caller steps the worker there is no thread: each coroutine runs to its end in `submit`, on the
clock.

`runner.py` knows the job of a coroutine, and decides about it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from shardq import locks
from shardq.clock import SystemClock
from shardq.engine.handing.call import end_child
from shardq.engine.handing.hanging import span_text, stack_text
from shardq.engine.handing.outcome import Snooze, is_own
from shardq.model.times import duration_text
from shardq.tasks.clockloop import ClockLoop
from shardq.tasks.executor import Executor, ExecutorCall, calls_of, place_of_calls
from shardq.tasks.limits import TimeLimit

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Coroutine, Iterator
    from types import FrameType

    from shardq.clock import Clock

log = logging.getLogger(__name__)

_SWALLOW_S = 1.0
"""A coroutine that was cancelled may take this long to end."""
_LOOK_S = 0.5
_LATE_US = 1_500_000
"""If the guard looks this late, the whole machine may have stood still, and the look proves
nothing."""
_BLOCKED_US = 1_000_000
"""A loop that has not turned for this long is blocked, and the log reports it."""
_STUCK_US = 30_000_000
"""A loop that is blocked for this long will hardly turn again."""
_AGAIN = "1s"
"""The delay of a job that a blocked loop had not begun; other workers may take it."""
_END_S = 2.0
"""How long a stop waits for coroutines that were cancelled."""
_ASYNCIO = os.path.join(os.path.dirname(asyncio.__file__), "")


@dataclass(slots=True, eq=False)
class _Job:
    """A coroutine that waits to run, or runs.

    Attributes:
        calls: The unfinished calls that it has made in threads of the loop's executor.
        chance: One item, which the first caller that reports the end takes out, in one atomic step.
        over_us: Time since boot at which its limit is exceeded; None without a limit.
        has_begun: True if any of it has run.
        is_over: True if it was cancelled because its limit was exceeded.
        task: Its asyncio task; None before it runs.
        timer: The timer of its limit, or of its cancellation.
    """

    make: Callable[[], Coroutine[Any, Any, Any]]
    done: Callable[[Any, BaseException | None], object]
    context: contextvars.Context
    limit_s: float | None
    name: str
    calls: set[ExecutorCall] = field(default_factory=set)
    chance: list[None] = field(default_factory=lambda: [None])
    over_us: int | None = None
    has_begun: bool = False
    is_over: bool = False
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    def where(self) -> str:
        """The stack of its coroutine, as Python prints it; empty if it does not run."""
        task = self.task
        return "" if task is None else _text_of(_frames_of(task.get_coro()))

    def error(self) -> TimeLimit:
        """The error of its exceeded limit."""
        return TimeLimit(f"took longer than {duration_text(round((self.limit_s or 0) * 1_000))}")


class Loop:
    """Runs coroutines. Safe from any thread, except from its own coroutines.

    Args:
        at_once: How many run at once, 1 or more.
        on_overrun: Called with a sentence when a coroutine runs on after its limit, or blocks the
            loop while limits of others are exceeded, or for 30 s. Coroutines that have not begun
            are snoozed then, and do not begin here. Called in any thread; must be quick.
        clock: A clock; the machine's unless given.

    Attributes:
        is_threaded: True if coroutines run in a thread of the loop; else in the thread that submits
            them.
    """

    def __init__(
        self, at_once: int, *, on_overrun: Callable[[str], object], clock: Clock | None = None
    ) -> None:
        self._at_once = at_once
        self._on_overrun = on_overrun
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock = locks.new()
        self._freed = locks.condition(self._lock)
        self._look = locks.condition(self._lock)
        self._is_stopped = self._is_parents = False
        self.is_threaded = True
        self._begin()
        locks.in_child(self, Loop._begin_child)

    def _begin(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._executor = Executor()
        self._inbox: deque[_Job] = deque()
        self._is_woken = False
        self._in_flight = 0
        self._jobs: set[_Job] = set()
        """Coroutines that run, or are about to; changed in the loop's thread."""
        self._ended = 0
        """How many coroutines have ended whose slots are not free yet."""
        self._asked_us: int | None = None
        """The time at which the guard asked the loop to answer; None once it has."""
        self._tell_us = _BLOCKED_US
        self._is_told = False

    # From any thread ------------------------------------------------------------------------------

    def submit(
        self,
        make: Callable[[], Coroutine[Any, Any, Any]],
        done: Callable[[Any, BaseException | None], object],
        *,
        context: contextvars.Context,
        limit_s: float | None,
        name: str,
        is_stopping: Callable[[], bool] | None = None,
        has_slot: bool = True,
    ) -> Callable[[], str] | None:
        """Run a coroutine; waits while the allowed number runs.

        Args:
            make: Makes the coroutine, in the loop's thread and in `context`.
            done: Called once, with the result and None, or with None and the error. The error of an
                exceeded limit is a `TimeLimit`, unless the coroutine returns all the same. Called
                in the loop's thread, or in another if the loop is blocked; must be quick. Not
                called once the loop is stopped.
            context: The coroutine's context variables.
            limit_s: How many seconds it may take from now; None: no limit.
            name: The task's, for the log.
            is_stopping: True once nothing is to begin any more.
            has_slot: False to begin at once, however many run.

        Returns:
            A function for `Ending.where`; None if the coroutine does not run because `is_stopping`
            became True.

        Raises:
            RuntimeError: If this process may start no thread.
        """
        job = _Job(make, done, context, limit_s, name)
        if not self.is_threaded:
            self._run_here(job)
            return job.where
        with self._lock:
            has_waited = False
            while has_slot and self._in_flight >= self._at_once and not self._is_stopped:
                self._clock.wait(self._freed, None)
                has_waited = True
            if self._is_stopped:
                return job.where
            if has_waited and is_stopping is not None and is_stopping():
                # This waiter does not use the slot, so wake the next one, of another queue.
                self._freed.notify()
                return None
            if self._loop is None:
                self._start()
            self._in_flight += 1
            if limit_s is not None:
                job.over_us = self._clock.boot_us() + round(limit_s * 1e6)
            self._inbox.append(job)
            is_to_wake, self._is_woken = not self._is_woken, True
            loop = self._loop
        if is_to_wake and loop is not None:
            # A wake-up costs as much as all the rest, so a single one serves all coroutines that
            # are submitted until the loop turns.
            self._call(loop, self._take)
        return job.where

    @property
    def hung_us(self) -> int:
        """For how long the loop has not turned, microseconds, to within a second; 0: it turns."""
        with self._lock:
            asked_us = self._asked_us
        return 0 if asked_us is None else self._clock.boot_us() - asked_us

    def stop(self) -> None:
        """Cancel the coroutines, and end the thread; waits 2 s at most. `done` is not called."""
        with self._lock:
            self._is_stopped = True
            self._freed.notify_all()
            self._look.notify_all()
            loop, thread = self._loop, self._thread
        if loop is None or self._is_parents or loop.is_closed():
            return
        if thread is None:
            _in_no_loop(partial(self._end_here, loop))
            return
        self._call(loop, self._end)
        if thread is not threading.current_thread():
            thread.join(_END_S)

    @staticmethod
    def _call(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
        # A stopped loop is closed, and raises.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(work)

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        loop.set_default_executor(self._executor)
        thread = threading.Thread(target=self._run, args=(loop,), name="shardq-loop", daemon=True)
        guard = threading.Thread(target=self._guard, args=(loop,), name="shardq-guard", daemon=True)
        try:
            guard.start()
            thread.start()
        except RuntimeError:
            # Close this loop: the next one may be allowed to start threads. This loop's guard ends
            # by itself.
            loop.close()
            raise
        self._loop, self._thread = loop, thread

    # Without a thread -----------------------------------------------------------------------------

    def _run_here(self, job: _Job) -> None:
        """Run a coroutine to its end, or until it ignores the cancel after its limit."""
        if self._is_stopped:
            return
        if self._loop is None:
            self._loop = ClockLoop(self._clock)
        loop, done = self._loop, job.done
        told = loop.create_future()

        def tell(value: Any, error: BaseException | None) -> None:
            try:
                done(value, error)
            finally:
                told.set_result(None)

        job.done = tell
        if job.limit_s is not None:
            job.over_us = self._clock.boot_us() + round(job.limit_s * 1e6)
        self._in_flight += 1
        self._inbox.append(job)
        loop.call_soon(self._take)
        _in_no_loop(partial(loop.run_until_complete, told))

    def _end_here(self, loop: asyncio.AbstractEventLoop) -> None:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel("the worker ends")
        loop.run_until_complete(self._wait_for(left))
        loop.close()

    # In the loop's thread -------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        is_over = False
        while not is_over:
            # asyncio raises these errors of tasks here too, after it has passed them to the tasks'
            # waiters.
            with suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
                is_over = True
        loop.close()

    def _take(self) -> None:
        """Begin the submitted coroutines."""
        loop, inbox = self._loop, self._inbox
        # Reset this before the inbox is read, so that a coroutine that arrives from now on wakes
        # the loop.
        self._is_woken = False
        if loop is None:
            return
        while inbox:
            job = inbox.popleft()
            self._jobs.add(job)
            if job.over_us is not None:
                left_us = max(job.over_us - self._clock.boot_us(), 0)
                job.timer = loop.call_later(left_us / 1e6, self._cancel, job)
            work = self._work(job)
            job.task = loop.create_task(work, name=job.name, context=job.context)

    async def _work(self, job: _Job) -> None:
        value, error = None, None
        if not job.chance:
            # The job was released while the loop was blocked, and may run elsewhere by now.
            self._forget(job)
            return
        job.has_begun = True
        calls_of.set(job.calls)
        try:
            value = await job.make()
        # Catch every error: SystemExit would end the loop, and the other coroutines would be held
        # for ever.
        except BaseException as raised:  # noqa: BLE001 - the user's function may raise anything
            error = raised
        try:
            if self._is_parents:
                end_child(error)
            if error is not None and job.is_over:
                cause = None if isinstance(error, asyncio.CancelledError) else error
                error = job.error()
                error.__cause__ = cause
            self._tell_end(job, value, error)
            self._forget(job)
        finally:
            # The error's traceback refers to this frame: break the cycle.
            value = error = None

    def _forget(self, job: _Job) -> None:
        """Free the slot of a coroutine that has ended."""
        if job.timer is not None:
            job.timer.cancel()
        # The job, its task and its timer refer to each other: break the cycle.
        job.task = job.timer = None
        self._lose_threads(job)
        self._jobs.discard(job)
        if self._is_stopped or self._loop is None:
            return
        self._ended += 1
        if self._ended == 1:
            # One call frees the slots of all coroutines that end in this turn.
            self._loop.call_soon(self._free)

    def _free(self) -> None:
        with self._lock:
            self._in_flight -= self._ended
            self._freed.notify(self._ended)
            self._ended = 0

    def _cancel(self, job: _Job) -> None:
        """Cancel a coroutine whose limit is exceeded."""
        if job.task is None or self._loop is None:
            return
        job.is_over = True
        job.timer = self._loop.call_later(_SWALLOW_S, self._abandon, job)
        job.task.cancel(str(job.error()))

    def _abandon(self, job: _Job) -> None:
        """Report the end of a coroutine that ignored its cancel, and runs on in its slot."""
        if self._tell_end(job, None, job.error()):
            place = job.where()
            stands = f"; it stands at:\n{place}" if place else ""
            self._say(f"task {job.name} {job.error()}, and goes on though cancelled{stands}")

    def _lose_threads(self, job: _Job) -> None:
        """Replace the threads in which an ended coroutine has made calls."""
        if job.calls and self._executor.lose(job.calls) and job.is_over and self._loop is not None:
            self._loop.call_later(_SWALLOW_S, self._look_at_threads, job)

    def _look_at_threads(self, job: _Job) -> None:
        """Report a call in a thread that outlives its cancelled coroutine."""
        if job.calls:
            place = place_of_calls(job.calls)
            stands = f"; it stands at:\n{place}" if place else ""
            self._say(
                f"task {job.name} {job.error()}, and what it calls in a thread cannot be "
                f"stopped{stands}"
            )

    def _tell_end(self, job: _Job, value: Any, error: BaseException | None) -> bool:
        """Report the end of a coroutine once; in any thread."""
        if self._is_stopped:
            return False
        try:
            job.chance.pop()
        except IndexError:
            return False
        try:
            job.done(value, error)
        except BaseException:
            # Log the error, because the ends of other coroutines are still to be reported.
            log.exception("the end of task %s could not be told", job.name)
        return True

    def _say(self, said: str) -> None:
        try:
            self._on_overrun(said)
        except Exception:
            # Log the error, because the guard must survive.
            log.exception("could not be told: %s", said)

    def _end(self) -> None:
        loop = self._loop
        if loop is None:
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel("the worker ends")
        ending = loop.create_task(self._wait_for(left))
        ending.add_done_callback(lambda _: loop.stop())

    @staticmethod
    async def _wait_for(left: set[asyncio.Task[Any]]) -> None:
        if left:
            await asyncio.wait(left, timeout=_SWALLOW_S)
        await asyncio.get_running_loop().shutdown_asyncgens()

    # In the guard's thread ------------------------------------------------------------------------

    def _guard(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check repeatedly that the loop turns."""
        clock = self._clock
        looked_us = clock.boot_us()
        while True:
            with self._lock:
                clock.wait(self._look, _LOOK_S)
                if self._is_stopped or loop.is_closed():
                    return
                now_us, before_us = clock.boot_us(), looked_us
                looked_us = now_us
                asked_us = self._asked_us
                if asked_us is None and not self._in_flight:
                    continue
                if asked_us is None or now_us - before_us > _LATE_US:
                    # This thread stood still too, so the whole process did: begin anew.
                    self._asked_us = now_us
            if asked_us is None:
                self._call(loop, self._answer)
            else:
                self._look_at_block(loop, now_us)

    def _answer(self) -> None:
        """Note that the loop turns."""
        with self._lock:
            asked_us, self._asked_us = self._asked_us, None
            was_blocked, self._tell_us = self._tell_us > _BLOCKED_US, _BLOCKED_US
            self._is_told = False
        if was_blocked and asked_us is not None:
            span = span_text(self._clock.boot_us() - asked_us)
            log.warning("the event loop turns again, after %s", span)

    def _look_at_block(self, loop: asyncio.AbstractEventLoop, now_us: int) -> None:
        asked_us = self._asked_us
        if asked_us is None or now_us - asked_us < _BLOCKED_US:
            return
        blocked_us = now_us - asked_us
        task = asyncio.current_task(loop)
        said = f"the event loop is blocked for {span_text(blocked_us)}"
        said += f" by task {task.get_name()}" if task is not None else ""
        place = _place_of(self._thread)
        stands = f"; it stands at:\n{place}" if place else ""
        # Copy each set in one step, because a loop that just turns again changes it.
        jobs = [*self._jobs.copy(), *self._inbox.copy()]
        over = [job for job in jobs if job.over_us is not None and job.over_us <= now_us]
        is_lost = bool(over) or blocked_us >= _STUCK_US
        if blocked_us >= self._tell_us:
            self._tell_us = 2 * blocked_us
            # A loop that was just found lost is logged by `on_overrun`.
            if self._is_told or not is_lost:
                log.warning("%s%s", said, stands)
        if not is_lost:
            return
        # Report all ends before `on_overrun` is called.
        for job in over:
            if job.has_begun:
                self._tell_end(job, None, job.error())
        for job in jobs:
            # A job that has not begun has done nothing wrong, and may run elsewhere.
            if not job.has_begun:
                self._tell_end(job, None, Snooze(_AGAIN, said))
        if not self._is_told:
            self._is_told = True
            self._say(f"{said}{stands}")

    # Forks ----------------------------------------------------------------------------------------

    def _begin_child(self) -> None:
        """A forked child has no loop: coroutines and files are its parent's.

        A coroutine that forks continues in the child up to its first await, or its end.
        """
        loop, thread = self._loop, self._thread
        if loop is None:
            return
        if threading.current_thread() is thread:
            self._is_parents = True
            ready: deque[Any] | None = getattr(loop, "_ready", None)
            if ready is not None:
                ready.clear()
                loop.call_soon(end_child, None)
            return
        # Keep the parent's loop, because its destructor would close the parent's files and warn.
        self._left = loop
        self._begin()


def _in_no_loop(run: Callable[[], object]) -> None:
    """Run a loop in this thread; if one runs here already, in another while this waits."""
    if asyncio._get_running_loop() is None:  # noqa: SLF001 - it is public
        run()
        return
    thread = threading.Thread(target=run, name="shardq-loop", daemon=True)
    thread.start()
    thread.join()


def _frames_of(awaited: Any) -> Iterator[FrameType]:
    """The frames of a waiting coroutine, the outermost first."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _place_of(thread: threading.Thread | None) -> str:
    """The place of a loop's thread in the user's code; empty if it is not known."""
    innermost = None
    if thread is not None and thread.ident is not None:
        innermost = sys._current_frames().get(thread.ident)  # noqa: SLF001 - it is public
    if innermost is None:
        return ""
    frames = [frame for frame, _ in traceback.walk_stack(innermost)]
    while frames and not is_own(frames[-1]):
        frames.pop()
    return _text_of(reversed(frames))


def _text_of(frames: Iterator[FrameType]) -> str:
    """The user's part of a stack, without the frames of asyncio and shardq that lead to it."""
    shown = list(frames)
    while shown and (is_own(shown[0]) or shown[0].f_code.co_filename.startswith(_ASYNCIO)):
        del shown[0]
    stack = ((frame, frame.f_lineno) for frame in shown)
    return stack_text(traceback.StackSummary.extract(stack))
