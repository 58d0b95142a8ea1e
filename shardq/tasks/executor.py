"""The threads for blocking calls of coroutines: by `asyncio.to_thread`, or the loop's executor.

```
 coroutine ──► call ──► a thread ──┬─ returns ─► result ──► the thread takes the next call
                                   └─ its job ends first ──► lost: another thread takes its place
```

These threads end with the process, unlike the threads of asyncio's own executor, which block its
exit.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from shardq import locks
from shardq.engine.handing.call import end_child
from shardq.engine.handing.hanging import place_of

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_THREADS_MAX = min(32, (os.cpu_count() or 1) + 4)
"""Most threads of one loop: the number that asyncio uses."""
_LOST_MAX = 100
"""At most this many lost threads are replaced."""


class ExecutorCall:
    """A call that waits for a thread, or runs in one.

    Attributes:
        calls: The calls of its job, including this one while it runs.
        future: Its result.
        is_lost: True if its job has ended and the call still runs.
        thread_id: The thread that runs the call; 0 before the call and after it.
    """

    __slots__ = ("_work", "calls", "future", "is_lost", "thread_id")

    def __init__(self, work: Callable[[], Any], calls: set[ExecutorCall]) -> None:
        self.future: Future[Any] = Future()
        self.calls = calls
        self.is_lost = False
        self.thread_id = 0
        self._work = work

    def run(self, is_parents: Callable[[], bool]) -> None:
        """Make the call, in this thread, unless it was cancelled.

        Args:
            is_parents: Returns True in a child that was forked during the call; the child ends
                here.
        """
        if not self.future.set_running_or_notify_cancel():
            return
        value, error = None, None
        try:
            value = self._work()
        # Catch every error, as concurrent.futures does, because the coroutine that awaits the call
        # gets it.
        except BaseException as raised:  # noqa: BLE001 - the user's function may raise anything
            error = raised
        if is_parents():
            end_child(error)
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)
            # The error's traceback refers to this frame: break the cycle.
            error = None


calls_of: ContextVar[set[ExecutorCall] | None] = ContextVar("shardq_calls", default=None)
"""The unfinished calls that the job of this context has made in threads."""


class Executor(ThreadPoolExecutor):
    """A loop's default executor. Safe from any thread.

    Derives from ThreadPoolExecutor only because asyncio requires the type.
    """

    def __init__(self) -> None:
        self._lock = locks.new()
        self._came = locks.condition(self._lock)
        self._waiting: deque[ExecutorCall] = deque()
        self._count = self._idle = self._lost = 0
        self._is_closed = self._is_parents = False
        locks.in_child(self, Executor._begin_child)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Let a thread call a function.

        Raises:
            RuntimeError: If the loop is closed, or this process may start no thread.
        """
        calls = calls_of.get()
        # Each call has a context of its own, so that the thread's next call does not see its
        # variables.
        work = partial(Context().run, fn, *args, **kwargs)
        call = ExecutorCall(work, set() if calls is None else calls)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the worker's event loop has ended")
            self._let_serve()
            self._waiting.append(call)
        return call.future

    def lose(self, calls: set[ExecutorCall]) -> bool:
        """Replace the threads that make these calls, whose job has ended.

        Returns:
            True if one of the calls still runs.
        """
        with self._lock:
            for call in calls:
                if not call.is_lost and self._lost < _LOST_MAX:
                    call.is_lost = True
                    self._lost += 1
                    self._count -= 1
                    if self._waiting:
                        self._replace()
            return bool(calls)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - its base's signature
        """Let idle threads end; does not wait for them."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            self._came.notify_all()

    def _replace(self) -> None:
        """Let another thread take the next call; fail all calls if no thread is left or starts."""
        try:
            self._let_serve()
        except RuntimeError as error:
            while self._waiting and not self._count:
                future = self._waiting.popleft().future
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)

    def _let_serve(self) -> None:
        """Let an idle or a new thread take the next call; the caller holds the lock."""
        if self._idle:
            self._idle -= 1
            self._came.notify()
        elif self._count < _THREADS_MAX:
            thread = threading.Thread(target=self._serve, name="shardq-to-thread", daemon=True)
            thread.start()
            self._count += 1

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call.run(self._is_forked)
            with self._lock:
                call.calls.discard(call)
                call.thread_id = 0
                if call.is_lost:
                    self._lost -= 1
                    return

    def _next(self) -> ExecutorCall | None:
        with self._lock:
            while not self._waiting:
                if self._is_closed:
                    return None
                self._idle += 1
                self._came.wait()
            call = self._waiting.popleft()
            call.thread_id = threading.get_ident()
            call.calls.add(call)
            return call

    def _is_forked(self) -> bool:
        return self._is_parents

    def _begin_child(self) -> None:
        self._is_parents = True


def place_of_calls(calls: set[ExecutorCall]) -> str:
    """The stack of the first running call, as Python prints it; empty if none runs."""
    return next((place for call in calls.copy() if (place := place_of(call.thread_id))), "")
