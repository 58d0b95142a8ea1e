"""Cancels of coroutines: a cancel by key reaches the coroutine as `asyncio.CancelledError`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shardq.tasks.context import Context

_ASK_EVERY_S = 1.0
"""How often a job's key is read."""


async def cancelled_by_key(work: Awaitable[Any], context: Context) -> Any:
    """Await a job's work, and cancel it once the job is cancelled.

    Args:
        work: The user's coroutine.
        context: The context of its job.

    Raises:
        BaseException: Any error of the work.
    """
    task = asyncio.current_task()
    asking = asyncio.create_task(_cancel(task, context))
    try:
        return await work
    finally:
        asking.cancel()


async def _cancel(task: asyncio.Task[Any] | None, context: Context) -> None:
    """Wait until a job is cancelled by its key; then cancel its task."""
    # Ask in a thread, because the question reads the store.
    while not await asyncio.to_thread(context.is_asked_to_stop):
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=_ASK_EVERY_S)
    if task is not None:
        # Set this only if the coroutine still runs: one that has returned did not see the cancel,
        # and its result is kept.
        context.is_stopped = True
        task.cancel("the job was cancelled by its key")
