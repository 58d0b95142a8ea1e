"""The threads that run the calls of a connection or an app, so that no event loop blocks."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from shardq import locks
from shardq.errors import BadSetting, UsageError, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

R = TypeVar("R")

THREADS = 8
_THREADS_MAX = 1_000


class Threads:
    """A pool for quick calls, and one for long ones, so that no quick call waits for a long one.

    A long call may take minutes, because it puts many messages, or visits all. Threads start when
    they are first needed. Safe from any thread and any loop.

    Args:
        count: How many threads run quick calls; half as many run long calls.

    Attributes:
        is_closed: True if the pools accept no more calls.

    Raises:
        BadSetting: If `count` is no number from 1 to 1,000.
    """

    def __init__(self, count: int) -> None:
        if type(count) is not int or not 1 <= count <= _THREADS_MAX:
            raise BadSetting(f"threads must be 1 to {_THREADS_MAX:,}, not {shown(count)}.")
        self._count = count
        self.is_closed: bool = False
        self._begin()
        locks.in_child(self, Threads._begin)

    def _begin(self) -> None:
        # A forked child calls this too, because it has none of its parent's threads.
        half = max(1, self._count // 2)
        self._quick = ThreadPoolExecutor(self._count, "shardq-aio-quick")
        self._long = ThreadPoolExecutor(half, "shardq-aio-long")

    def check(self) -> None:
        """Raise `UsageError` if the pools are closed."""
        if self.is_closed:
            raise UsageError("this connection is closed; open another.")

    def begin(self, call: Callable[[], R], *, is_long: bool = False) -> Future[R]:
        """Start a call in a thread, in the caller's context.

        Raises:
            UsageError: If the pools are closed.
        """
        self.check()
        pool = self._long if is_long else self._quick
        return pool.submit(contextvars.copy_context().run, call)

    async def call(self, call: Callable[[], R], *, is_long: bool = False) -> R:
        """Run a call in a thread; returns its result."""
        return await asyncio.wrap_future(self.begin(call, is_long=is_long))

    async def close(self, last: Callable[[], object]) -> None:
        """Wait until all calls have ended, then make the call `last`. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True

        def end() -> None:
            # Close the quick pool last: its calls may have to release messages that a long call
            # took.
            self._long.shutdown()
            self._quick.shutdown()
            last()

        await asyncio.to_thread(end)
