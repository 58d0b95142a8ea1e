"""Puts and commands by key at the level of rows: as another process makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq import Message
from shardq.model.ids import row_ids
from shardq.model.key import MessageKey
from shardq.model.message import Row
from shardq.model.times import ceil_ms
from shardq.records.keys import MessageKeys, note_of
from shardq.records.standing import Is

if TYPE_CHECKING:
    from shardq import Queue
    from shardq.records.keychanges import Placing
    from shardq.records.standing import Standing


class Names:
    """Puts and commands by key, at the level of rows: as another process makes them."""

    def __init__(self, queue: Queue) -> None:
        home = queue._home
        self._clock = home.clock
        self._layout = home.register.layout
        self._queue = queue
        self.store = home.store
        self.keys = MessageKeys(home.store, home.clock, home.register)

    def row(
        self,
        name: str,
        *,
        delay_ms: int = 0,
        body: bytes = b"",
        group: str | None = None,
        lane: int = 0,
        key: MessageKey | None = None,
    ) -> Row:
        now_us = self._clock.now_us()
        due_ms = ceil_ms(now_us) + delay_ms
        if group is not None:
            lane = self._layout.group_lane(group)
        return Row(
            self._layout.shard(due_ms, lane),
            due_ms,
            row_ids.next(now_us),
            body or name.encode(),
            group=group,
            key=(key or MessageKey(name)).text(),
        )

    def put(self, name: str, **given: object) -> Row:
        row = self.row(name, **given)  # type: ignore[arg-type]
        assert self.keys.write([self.keys.put(row)]) == {}
        return row

    def put_many(self, count: int) -> list[str]:
        rows = [self.row(f"order-{n}") for n in range(count)]
        for start in range(0, count, 500):
            assert self.keys.write([self.keys.put(r) for r in rows[start : start + 500]]) == {}
        return [row.body.decode() for row in rows]

    def of(self, name: str) -> Standing:
        return self.keys.seek([name])[name]

    def cancel(self, name: str, *, deletes: bool = True) -> Is:
        """Cancel by key; returns what it was found to do. `deletes`: the row is ended as well."""
        found = self.of(name)
        if deletes:
            self._queue.cancel(key=name)
            return found.state
        runs = found.state is Is.RUNNING
        change = self.keys.doom(found.key) if runs else self.keys.cancel(found)
        assert self.keys.write([change]) == {}
        return found.state

    def move(self, name: str, *, delay_ms: int, body: bytes = b"") -> Placing:
        """Make a command, of which nothing is written yet."""
        found = self.of(name)
        assert found.row is not None
        new = self.row(name, delay_ms=delay_ms, body=body or found.row.body)
        return self.keys.command(found.key, found.row, new._replace(group=found.row.group))

    def note(self, messages: list[Message]) -> None:
        """Note where messages have moved to, as their moves do."""
        for message in messages:
            if note := note_of(message._row):
                self.store.note(note.table, note.partition, {note.key: note.values})

    def take(self, command: Placing) -> None:
        """The first step of a command alone: its process has died after it."""
        change = command.change._replace(insert=(), delete=())
        assert self.keys.write([change]) == {}
