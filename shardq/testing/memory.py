"""SQLite in memory that reports each row placed in it, and connections to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shardq.clock import BootTime
from shardq.connection import Connection
from shardq.model.names import is_dead_queue
from shardq.stores.sqlite import SqliteStore
from shardq.stores.store import NEVER, NO_MARKS, NO_TIMES, Slice
from shardq.stores.tables import QUEUES, SCHEDULES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    from shardq.consumer import Consumer
    from shardq.model.message import Row
    from shardq.model.settings import QueueOptions
    from shardq.model.shard import Position, Shard
    from shardq.queue import Queue
    from shardq.stores.store import Mark, RowMove, WriteOnce
    from shardq.stores.tables import Change, QueueRecord, Refused, Table
    from shardq.testing.clock import ManualClock

_PAGE_ROWS = 1_000


class OnRows(Protocol):
    """Called with rows that have been written."""

    def __call__(self, store: MemoryStore, rows: Sequence[Row], *, is_move: bool) -> object:
        """Note rows that were written to a store; True for `is_move` if they replace others."""


class MemoryStore(SqliteStore):
    """A store in memory, on a clock.

    Args:
        clock: The machine's clock.
        on_rows: Called with written rows.
        on_settings: Called when settings of a queue, or its schedules, may have changed.
    """

    def __init__(
        self,
        clock: ManualClock,
        *,
        on_rows: OnRows,
        on_settings: Callable[[], object],
    ) -> None:
        super().__init__(
            machine_us=clock.true_us, boot_time=lambda: BootTime(clock.boot_us(), "sandbox")
        )
        self._on_rows = on_rows
        self._on_settings = on_settings

    def insert(self, rows: Iterable[Row], once: WriteOnce | None = None) -> Mark | None:
        """See `SqliteStore.insert`."""
        written = tuple(rows)
        before = super().insert(written, once)
        if before is None:
            self._on_rows(self, written, is_move=False)
        return before

    def move(
        self,
        moves: Iterable[RowMove],
        marks: Mapping[Position, Sequence[Mark]] = NO_MARKS,
        kept_ms: Mapping[str, int] = NO_TIMES,
    ) -> set[Position]:
        """See `SqliteStore.move`."""
        asked = tuple(moves)
        gone = super().move(asked, marks, kept_ms)
        self._on_rows(self, [move.new for move in asked if move.old not in gone], is_move=True)
        return gone

    def write_records(self, table: Table[Any, Any], changes: Sequence[Change]) -> Refused:
        """See `SqliteStore.write_records`."""
        refused = super().write_records(table, changes)
        if table in (QUEUES, SCHEDULES):
            self._on_settings()
        return refused

    def is_empty(self, queue: str) -> bool:
        """True if a queue has no row."""
        return self.next_minute(queue, 0) == NEVER

    def rows_waiting(self) -> Iterator[Row]:
        """All rows of all queues except dead-letter queues."""
        for queue in self.notes(QUEUES, ()):
            if not is_dead_queue(queue):
                for shard in self.shards(queue):
                    yield from self._rows_of(shard)

    def _rows_of(self, shard: Shard) -> Iterator[Row]:
        after_ms, after_id, page = -1, None, None
        while page is None or len(page) == _PAGE_ROWS:
            queue, minute, lane = shard
            page = self.read(Slice(queue, [minute], [lane], after_ms, NEVER, _PAGE_ROWS, after_id))
            yield from page
            if page:
                after_ms, after_id = page[-1].due_ms, page[-1].id

    def _follow(self, connection: sqlite3.Connection, done: Sequence[Change]) -> None:
        super()._follow(connection, done)
        for change in done:
            if change.insert:
                # An inserted row replaces the deleted one: the message was moved, changed by its
                # key, or has died.
                self._on_rows(self, change.insert, is_move=bool(change.delete))


class MemoryConnection(Connection):
    """A connection whose queues report each finished put.

    Attributes:
        memory: The store.
        on_use: Called before a queue is returned.
        on_put: Called after each put.
    """

    memory: MemoryStore
    on_use: Callable[[], None]
    on_put: Callable[[], None]

    def has(self, consumer: Consumer) -> bool:
        """True if a consumer belongs to one of the connection's queues."""
        register = consumer._engine.home.register
        return any(queue._home.register is register for queue in self._queues.values())

    def end_receiving(self) -> None:
        """Release messages read for the next call of `receive`: no thread does so here."""
        for queue in list(self._queues.values()):
            # Where no thread may run, the receiver is closed to release its messages.
            queue._receiver.close()

    def queue(self, name: str, *, create: bool = True, **settings: Unpack[QueueOptions]) -> Queue:
        """See `Connection.queue`."""
        self.on_use()
        queue = super().queue(name, create=create, **settings)
        listeners = queue._home.listeners
        if self._note_put not in listeners:
            listeners.append(self._note_put)
        return queue

    def _records(self) -> dict[str, QueueRecord]:
        self.on_use()
        return super()._records()

    def _note_put(self, _due_ms: int) -> None:
        self.on_put()
