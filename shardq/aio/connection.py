"""An open store and its queues, from asyncio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Unpack

import shardq.connection as sync
from shardq.aio.queue import Queue
from shardq.aio.threaded import Face, declared, threaded
from shardq.aio.threads import THREADS, Threads
from shardq.errors import UsageError
from shardq.model import names

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from shardq.clock import Clock
    from shardq.model.settings import QueueOptions
    from shardq.tracing import Traces


def connect(
    store: str | sync.Connection | None = None,
    *,
    threads: int = THREADS,
    clock: Clock | None = None,
    traces: Traces | None = None,
) -> Connection:
    """Open a store for an event loop.

    Use it as `async with aio.connect(url) as db:`, which also closes it, or as
    `db = await aio.connect(url)`.

    Args:
        store: A url as `shardq.connect` takes it, or a connection of `shardq.connect`, which stays
            open; None: the environment variable `SHARDQ_STORE`.
        threads: How many threads run calls, 1 to 1,000. Long calls run in half as many further
            threads.
        clock: For tests, as for `shardq.connect`.
        traces: As for `shardq.connect`; a connection of `shardq.connect` has its own.

    Returns:
        The connection. As a context manager, it opens and closes itself.

    Raises:
        BadSetting: If `threads` is out of bounds.
        BadUrl, SchemaMissing, StoreUnavailable: As `shardq.connect`, when the connection is opened.
    """
    if isinstance(store, sync.Connection):
        return Connection(lambda: store, Threads(threads), store)
    opening = partial(sync.connect, store, clock=clock, traces=traces)
    return Connection(opening, Threads(threads), None)


class Connection(Face[sync.Connection]):
    """An open store and its queues, from asyncio. Made by `connect`."""

    def __init__(
        self,
        opening: Callable[[], sync.Connection],
        threads: Threads,
        given: sync.Connection | None,
    ) -> None:
        """Made by `connect`.

        Args:
            opening: Opens the store; called in a thread.
            threads: The threads of its calls.
            given: An open connection, which stays open; None: `opening` opens one.
        """
        super().__init__(opening, threads)
        self._own = self._given = given

    def __await__(self) -> Generator[None, None, Connection]:
        return self._open().__await__()

    async def __aenter__(self) -> Connection:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def url_shown(self) -> str:
        """The store's url for people, without passwords."""
        return self._opened().url_shown

    def queue(self, name: str, *, create: bool = True, **settings: Unpack[QueueOptions]) -> Queue:
        """A queue; the first call of a method makes the queue if it does not exist.

        Args:
            name: 1 to 100 of `A-Z a-z 0-9 . _ -`.
            create: False to make no queue: if it does not exist, the first call of a method fails.
            settings: As for `shardq.Connection.queue`.

        Raises:
            BadName: If the name cannot be used.
            BadSetting, SchemaNewer, UnknownQueue, ClockError: As `shardq.Connection.queue`, but
                raised by the first call of a method.
        """
        return Queue(
            names.queue_name(name),
            self._threads,
            lambda: self._opened().queue(name, create=create, **settings),
        )

    @declared(threaded(sync.Connection.queues))
    def queues(self) -> None:
        """The names of all queues, as `shardq.Connection.queues`."""

    async def close(self) -> None:
        """Wait for the calls, release received messages, and disconnect. Idempotent."""
        await self._threads.close(self._end)

    async def _open(self) -> Connection:
        await self._threads.call(super()._opened)
        return self

    def _opened(self) -> sync.Connection:
        if self._own is None:
            raise UsageError("this connection is not open; `async with` it, or await it, first.")
        return self._own

    def _end(self) -> None:
        if self._own is not None and self._given is None:
            self._own.close()
