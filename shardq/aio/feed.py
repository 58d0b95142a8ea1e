"""Items for a thread that puts many: also of an async iterable, and until that is cancelled."""

from __future__ import annotations

import asyncio
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
"""Chunks that wait for the thread, at most."""


class Stoppable(Generic[T]):
    """Items of an iterable, until they are stopped; then the error of what was cancelled."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self.is_stopped = False

    def __iter__(self) -> Iterator[T]:
        for item in self._items:
            if self.is_stopped:
                raise asyncio.CancelledError
            yield item


class Feed(Generic[T]):
    """Iterated by a thread, it yields what the loop reads from an async iterable.

    The iterable is read by the task that calls `fill`: what it awaits may be that one's alone.
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
        """Read all items, or until their taker has failed.

        What they raise is raised in the thread, after those before it.

        Args:
            items: What to read.
            taker: Done when the thread takes no more.
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
        except BaseException as own:  # noqa: BLE001 - it is raised by who takes the items
            error = own
        finally:
            self._chunks.put(chunk)
            self._chunks.put(error)

    def _make_room(self, _: object = None) -> None:
        # The loop may have ended before the thread has.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._room.release)


async def fed(
    items: AnyIterable[T],
    put: Callable[[Iterable[T]], R],
    threads: Threads,
    clock: Clock,
) -> R:
    """What a call returns that puts many, and is made by a thread.

    Args:
        items: What to put.
        put: Puts what it iterates.
        threads: Whose thread it is.
        clock: Tells how long items may wait for others.
    """
    if isinstance(items, AsyncIterable):
        feed: Feed[T] = Feed(clock)
        taker = threads.begin(lambda: put(feed), is_long=True)
        await feed.fill(items, taker)
        return await asyncio.wrap_future(taker)
    if not isinstance(items, Iterable) or isinstance(items, (bytes, str, Mapping)):
        # It is refused.
        return await threads.call(lambda: put(items))
    stoppable = Stoppable(items)
    try:
        return await threads.call(lambda: put(stoppable), is_long=True)
    finally:
        stoppable.is_stopped = True
