"""What the package's own rooms share of a connection and of a queue, and their users do not.

Both carry theirs as `_home`, and what `Queue.schedules` gives carries its book so; with
`Consumer._engine`, `Queue._receiver`, `Message._row` and `Message._delivery` these are the only
private names that another module reads (`pyproject.toml`, flake8-self).
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
"""Queues that are looked at at a time: then one core of this process is busy."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Home:
    """The store, clock and keeper of a connection, shared by all its queues.

    Attributes:
        store: The open store.
        clock: The clock, measured against the store.
        keeper: Stores in time what is counted; None where no threads may run.
        chores: Does what takes longer, and may not hold that up; None likewise.
        owner: The connection. It closes itself when nobody has it any more, so whatever a user has
            of it has this, and what a keeper calls must not.
        open_all: Opens all queues of the store by one read of their records: name -> the queue, or
            the error of one whose record cannot be read.
        logs: What this process has done in each queue, to be stored when the connection is closed.
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
        """What a look gives for each item, in their order.

        Several at a time, where the store is on other machines and threads may run.

        Args:
            work: Looks at one item; called from several threads.
            items: Taken as they are needed.
        """
        if self.keeper is None or self.store.is_local:
            yield from map(work, items)
            return
        # Only here: most processes look at one queue.
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
        """That of a queue of the connection."""
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
        stats: What this process has done in the queue.
        listeners: Called with the earliest due, epoch milliseconds, of whatever the queue's object
            puts.
    """

    register: Register
    stats: StatsLog
    listeners: list[Callable[[int], None]] = field(default_factory=list)

    @property
    def results(self) -> Results:
        """What came of those of its messages whose results are kept."""
        return Results(self.store, self.clock, self.register.name)

    def close(self) -> None:
        """Store what is counted, and now and then fold what ended processes have counted.

        Raises:
            StoreUnavailable, StoreTimeout: It is lost with this process.
        """
        self.stats.close()
        # Where processes live for one put, none of them sees an hour end. A process that has only
        # looked writes nothing here either.
        is_one_of_them = crc32(self.stats.row_name.encode()) % _FOLDS_ONE_IN == 0
        if self.keeper is not None and self.stats.has_rows and is_one_of_them:
            fold(self.store, self.clock, self.register)

    def fold_hourly(self) -> None:
        """Fold what ended processes have counted whenever an hour ends, where threads may run."""
        store, clock, register = self.store, self.clock, self.register

        def fold_all() -> None:
            fold(store, clock, register)

        def about() -> str:
            return f"totals of ended processes of queue {register.name}"

        if self.chores is not None:
            self.stats.on_hour = partial(self.chores.within, _FOLD_AFTER_S, fold_all, about)

    def on_put(self, due_ms: int) -> None:
        """Tell the listeners the earliest due of what was put."""
        for listener in self.listeners:
            listener(due_ms)
