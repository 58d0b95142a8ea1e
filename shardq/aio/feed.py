"""Passes items to a thread that puts many, also from an async iterable, until a cancel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from shardq.aio.threads import Threads
    from shardq.clock import Clock

T = TypeVar("T")
R = TypeVar("R")

AnyIterable: TypeAlias = Iterable[T] | AsyncIterable[T]

_CHUNK = 1_000
_CHUNK_US = 50_000
_AHEAD = 2
"""How many chunks may wait for the thread."""


class Feed(Generic[T]):
    """Passes the items of an async iterable to a thread, which iterates over this.

    The asyncio task that calls `fill` reads the iterable, so the iterable may use objects of that
    task.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._chunks: SimpleQueue[list[T] | BaseException | None] = SimpleQueue()
        self._room = asyncio.Semaphore(_AHEAD)

    def __iter__(self) -> Iterator[T]:
        while (chunk := self._chunks.get()) is not None:
            if isinstance(chunk, BaseException):
                raise chunk
            yield from chunk
            self._make_room()

    async def fill(self, items: AsyncIterable[T], taker: Future[Any]) -> None:
        """Read all items, or until the thread has failed.

        An error of the iterable is raised in the thread, after the items before it.

        Args:
            items: The iterable.
            taker: A future that is done once the thread takes no more items.
        """
        taker.add_done_callback(self._make_room)
        error: BaseException | None = None
        chunk: list[T] = []
        until_us = self._clock.boot_us() + _CHUNK_US
        try:
            async for item in items:
                chunk.append(item)
                if len(chunk) < _CHUNK and self._clock.boot_us() < until_us:
                    continue
                await self._room.acquire()
                if taker.done():
                    return
                self._chunks.put(chunk)
                chunk = []
                until_us = self._clock.boot_us() + _CHUNK_US
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        except BaseException as own:  # noqa: BLE001 - the thread raises it
            error = own
        finally:
            self._chunks.put(chunk)
            self._chunks.put(error)

    def _make_room(self, _: object = None) -> None:
        # Ignore the error: the loop may have ended before the thread.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._room.release)


async def fed(
    items: AnyIterable[T], put: Callable[[Iterable[T]], R], threads: Threads, clock: Clock
) -> R:
    """Let a thread put many items; returns the result of `put`.

    Args:
        items: The items.
        put: Puts the items of an iterable; called in the thread.
        threads: The pools.
        clock: Measures how long items wait for the rest of their chunk.
    """
    if isinstance(items, AsyncIterable):
        feed: Feed[T] = Feed(clock)
        taker = threads.begin(lambda: put(feed), is_long=True)
        await feed.fill(items, taker)
        return await asyncio.wrap_future(taker)
    if not isinstance(items, Iterable) or isinstance(items, (bytes, str, Mapping)):
        # Let `put` raise its error for what is not iterable.
        return await threads.call(lambda: put(items))
    is_stopped = threading.Event()

    def until_stopped() -> Iterator[T]:
        for item in items:
            if is_stopped.is_set():
                raise asyncio.CancelledError
            yield item

    try:
        return await threads.call(lambda: put(until_stopped()), is_long=True)
    finally:
        is_stopped.set()
