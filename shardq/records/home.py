"""What the package's own rooms share of a connection and of a queue, and their users do not.

Both carry theirs as `_home`, and what `Queue.schedules` gives carries its book so; with
`Consumer._engine`, `Message._row` and `Message._delivery` these are the only private names that
another module reads (`pyproject.toml`, flake8-self).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from shardq.records.folded import fold
from shardq.records.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.records.keeper import Keeper
    from shardq.records.register import Register
    from shardq.records.stats import StatsLog
    from shardq.stores.store import Store

_FOLD_AFTER_S = 1.0
_FOLDS_ONE_IN = 32


@dataclass(frozen=True, slots=True)
class Home:
    """Of a connection.

    Attributes:
        store: The open store.
        clock: The clock, measured against the store.
        keeper: Stores in time what is counted; None where no threads may run.
        chores: Does what takes longer, and may not hold that up; None likewise.
    """

    store: Store
    clock: Clock
    keeper: Keeper | None = field(default=None, kw_only=True)
    chores: Keeper | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class QueueHome(Home):
    """Of a queue.

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

    def fold_soon(self) -> None:
        """Fold what ended processes have counted, in a thread; nothing where none may run."""
        if self.chores is not None:
            self.chores.within(_FOLD_AFTER_S, self._fold, self._about)

    def _fold(self) -> None:
        fold(self.store, self.clock, self.register)

    def _about(self) -> str:
        return f"totals of ended processes of queue {self.register.name}"

    def on_put(self, due_ms: int) -> None:
        """Tell the listeners the earliest due of what was put."""
        for listener in self.listeners:
            listener(due_ms)
