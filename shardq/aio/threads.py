"""The threads in which the calls of a connection or an app run, so that no loop waits for them."""

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

    A long call may take minutes: it puts many messages, or visits all. Threads begin when they are
    first needed. From any thread and any loop.

    Attributes:
        is_closed: Whether they take no calls any more.

    Args:
        count: How many there are for quick calls; for long ones, half as many.

    Raises:
        BadSetting: If that is no number from 1 to 1,000.
    """

    def __init__(self, count: int) -> None:
        if type(count) is not int or not 1 <= count <= _THREADS_MAX:
            raise BadSetting(f"threads must be 1 to {_THREADS_MAX:,}, not {shown(count)}.")
        self._count = count
        self.is_closed: bool = False
        self._begin()
        locks.in_child(self, Threads._begin)

    def _begin(self) -> None:
        # Also in a forked child, which has none of its parent's threads.
        half = max(1, self._count // 2)
        self._quick = ThreadPoolExecutor(self._count, "shardq-aio-quick")
        self._long = ThreadPoolExecutor(half, "shardq-aio-long")

    def check(self) -> None:
        """Raise `UsageError` if they are closed."""
        if self.is_closed:
            raise UsageError("this connection is closed; open another.")

    def begin(self, call: Callable[[], R], *, is_long: bool = False) -> Future[R]:
        """Let a thread make a call, in the caller's context.

        Raises:
            UsageError: If they are closed.
        """
        self.check()
        pool = self._long if is_long else self._quick
        return pool.submit(contextvars.copy_context().run, call)

    async def call(self, call: Callable[[], R], *, is_long: bool = False) -> R:
        """What a call returns that a thread makes."""
        return await asyncio.wrap_future(self.begin(call, is_long=is_long))

    async def close(self, last: Callable[[], object]) -> None:
        """Let all that has begun end, and then make a last call. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True

        def end() -> None:
            # The quick ones last: what another has taken may have to be released by one of them.
            self._long.shutdown()
            self._quick.shutdown()
            last()

        await asyncio.to_thread(end)
