"""The keys of a queue at the level of rows, changed as by those who put, hand out and settle."""

from __future__ import annotations

from shardq.lifecycle.settle import Settler
from shardq.model import ids
from shardq.model.ids import row_ids
from shardq.model.key import MessageKey
from shardq.model.message import Row, moved
from shardq.records.keychanges import Placing
from shardq.records.keys import note_of
from shardq.records.register import Register
from shardq.records.standing import Standing, StartRefusal
from shardq.stores.store import Store
from shardq.stores.tables import Change
from shardq.testing.clock import ManualClock

HOUR_MS = 3_600_000
MOMENT_S = 0.01
"""Ids are ahead of a clock that stands still."""


class Names:
    """The keys of a queue, and how its rows change by those who put, hand out and settle."""

    def __init__(self, store: Store, clock: ManualClock, register: Register) -> None:
        self.store = store
        self.clock = clock
        self.register = register
        self.settler = Settler(store, clock, register)
        self.keys = self.settler.keys

    def row(self, name: str = "order-7", *, delay_ms: int = HOUR_MS,
            body: bytes = b"first") -> Row:  # fmt: skip
        due_ms = self.clock.now_ms() + delay_ms
        return Row(
            self.register.layout.shard(due_ms, 0),
            due_ms,
            row_ids.next(self.clock.now_us()),
            body,
            key=MessageKey(name).text(),
        )

    def wait(self, timeouts: float) -> None:
        """Let this number of write timeouts pass."""
        self.clock.advance(timeouts * self.store.write_timeout_ms / 1e3 + MOMENT_S)

    def put(self, row: Row) -> Change:
        change = self.keys.put(row)
        assert self.keys.write([change]) == {}
        return change

    def of(self, name: str = "order-7") -> Standing:
        return self.keys.seek([name])[name]

    def begins(self, row: Row) -> bool:
        return not self.keys.write([self.keys.begin(row)])

    def refusal(self, row: Row) -> StartRefusal:
        [refused] = self.keys.refusals([row]).values()
        return refused.why

    def is_there(self, row: Row) -> bool:
        return self.store.find([row.position]) == [row]

    def moves_to(self, row: Row, delay_ms: int) -> Row:
        """A retry or a share: as a row moves, whose name stays as it is."""
        now_us = self.clock.now_us()
        due_ms = now_us // 1_000 + delay_ms
        return moved(
            row,
            self.register.layout.shard(due_ms, row.shard.lane),
            due_ms,
            ids.after(row.id, now_us),
            attempt=row.attempt + 1,
            claim=None,
        )

    def move(self, row: Row, delay_ms: int) -> Row:
        new = self.moves_to(row, delay_ms)
        self.store.insert([new])
        self.note(new)
        self.store.delete([row.position])
        return new

    def note(self, new: Row) -> None:
        note = note_of(new)
        self.store.note(note.table, note.partition, {note.key: note.values})

    def command(self, row: Row, *, body: bytes = b"second", delay_ms: int = 2 * HOUR_MS) -> Placing:
        """A move, an edit or a replace, that is to be carried out."""
        due_ms = self.clock.now_ms() + delay_ms
        new = row._replace(
            shard=self.register.layout.shard(due_ms, 0),
            due_ms=due_ms,
            id=ids.after(row.id, self.clock.now_us()),
            body=body,
        )
        return self.keys.command(self.of().key, row, new)

    def crashed(self, change: Change) -> Row:
        """A put or command of which only the name was written; gives the row that was not."""
        assert self.keys.write([change._replace(insert=(), delete=())]) == {}
        return change.insert[0]
