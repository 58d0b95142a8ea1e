"""What the package's own rooms share of a connection and of a queue, and their users do not.

Both carry theirs as `_home`; with `Consumer._engine`, `Message._row` and `Message._delivery` these
are the only private names that another module reads (`pyproject.toml`, flake8-self).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.records.keeper import Keeper
    from shardq.records.register import Register
    from shardq.records.stats import StatsLog
    from shardq.stores.store import Store


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

    def on_put(self, due_ms: int) -> None:
        """Tell the listeners the earliest due of what was put."""
        for listener in self.listeners:
            listener(due_ms)
