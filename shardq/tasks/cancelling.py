"""Cancels of coroutines: one by its job's key reaches a coroutine as `asyncio.CancelledError`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shardq.tasks.context import Context

_ASK_EVERY_S = 1.0
"""How often a job's key is read."""


async def cancelled_by_key(work: Awaitable[Any], context: Context) -> Any:
    """Await a job's work, which is cancelled once the job is.

    Args:
        work: The user's coroutine.
        context: Of its job.

    Raises:
        BaseException: What it raises.
    """
    task = asyncio.current_task()
    asking = asyncio.create_task(_cancel(task, context))
    try:
        return await work
    finally:
        asking.cancel()


async def _cancel(task: asyncio.Task[Any] | None, context: Context) -> None:
    """Wait until a job is cancelled by its key; then cancel its task."""
    # In a thread: it reads from the store.
    while not await asyncio.to_thread(context.is_asked_to_stop):
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=_ASK_EVERY_S)
    if task is not None:
        # Not before: one that returns meanwhile was told of nothing, and its result is kept.
        context.is_stopped = True
        task.cancel("the job was cancelled by its key")
