"""The parts of a connection and of a queue that the package shares, hidden from users.

Connection and queue have theirs as `_home`, and the object of `Queue.schedules` has its book so.
With `Consumer._engine`, `Queue._receiver`, `Message._row` and `Message._delivery` these are the
only private names that another module reads (`pyproject.toml`, flake8-self).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from shardq.records.folded import fold
from shardq.records.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardq.clock import Clock
    from shardq.records.keeper import Keeper
    from shardq.records.register import Register
    from shardq.records.stats import StatsLog
    from shardq.stores.store import Store

_FOLD_AFTER_S = 1.0
_FOLDS_ONE_IN = 32
_TOGETHER = 8
"""Queues that are read at a time: enough to keep one core busy."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Home:
    """The store, clock and keeper of a connection, shared by all its queues.

    Attributes:
        store: The open store.
        clock: The clock, measured against the store.
        keeper: Stores counts in time; None if no threads may run.
        chores: Calls longer tasks, which must not delay the keeper's; None likewise.
        owner: The connection, which closes itself when nobody references it. Objects that users
            have reference it; tasks of a keeper must not.
        open_all: Opens all queues of the store by one read of their records: name -> the queue, or
            the error of a record that cannot be read.
        logs: This process's counts of each queue, stored when the connection is closed.
    """

    store: Store
    clock: Clock
    keeper: Keeper | None = field(default=None, kw_only=True)
    chores: Keeper | None = field(default=None, kw_only=True)
    owner: object = field(default=None, kw_only=True)
    open_all: Callable[[], dict[str, Any]] = field(default=dict, kw_only=True)
    logs: list[StatsLog] = field(default_factory=list, kw_only=True)

    def side_by_side(
        self, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """The results of reading each item, in the items' order.

        Reads several at a time if the store is on other machines and threads may run.

        Args:
            work: Reads one item; called from several threads.
            items: Taken as needed.
        """
        if self.keeper is None or self.store.is_local:
            yield from map(work, items)
            return
        # Imported here because most processes read one queue.
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(_TOGETHER, thread_name_prefix="shardq-look")
        flying: deque[Any] = deque()
        try:
            for item in items:
                flying.append(pool.submit(work, item))
                if len(flying) >= 2 * _TOGETHER:
                    yield flying.popleft().result()
            while flying:
                yield flying.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def of_queue(self, register: Register, stats: StatsLog) -> QueueHome:
        """The home of a queue of the connection."""
        self.logs.append(stats)
        return QueueHome(
            self.store,
            self.clock,
            register,
            stats,
            keeper=self.keeper,
            chores=self.chores,
            owner=self.owner,
            open_all=self.open_all,
            logs=self.logs,
        )


@dataclass(frozen=True, slots=True)
class QueueHome(Home):
    """The home of one queue.

    Attributes:
        register: The queue's record.
        stats: This process's counts of the queue.
        listeners: Called with the earliest due, epoch milliseconds, of each put of the queue's
            object.
    """

    register: Register
    stats: StatsLog
    listeners: list[Callable[[int], None]] = field(default_factory=list)

    @property
    def results(self) -> Results:
        """The results of the queue's messages."""
        return Results(self.store, self.clock, self.register.name)

    def close(self) -> None:
        """Store the counts, and now and then fold the totals of ended processes.

        Raises:
            StoreUnavailable, StoreTimeout: The counts are lost with this process.
        """
        self.stats.close()
        # A process that lives for one put never sees an hour end, so one in many folds here. A
        # process that has only read writes nothing.
        is_one_of_them = crc32(self.stats.row_name.encode()) % _FOLDS_ONE_IN == 0
        if self.keeper is not None and self.stats.has_rows and is_one_of_them:
            fold(self.store, self.clock, self.register)

    def fold_hourly(self) -> None:
        """Have the totals of ended processes folded whenever an hour ends, if threads may run."""
        store, clock, register = self.store, self.clock, self.register

        def fold_all() -> None:
            fold(store, clock, register)

        def about() -> str:
            return f"totals of ended processes of queue {register.name}"

        if self.chores is not None:
            self.stats.on_hour = partial(self.chores.within, _FOLD_AFTER_S, fold_all, about)

    def on_put(self, due_ms: int) -> None:
        """Call the listeners with the earliest due of a put."""
        for listener in self.listeners:
            listener(due_ms)
