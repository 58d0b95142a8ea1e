"""Messages with keys, put, begun and moved step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.model.message import moved
from shardq.records.keys import MessageKeys, note_of
from shardq.stores.store import RowMove

if TYPE_CHECKING:
    from shardq import Queue
    from shardq.model.message import Row
    from shardq.records.standing import StartRefusal


def keys_of(queue: Queue) -> MessageKeys:
    home = queue._home
    return MessageKeys(home.store, home.clock, home.register)


def row_of(queue: Queue, key: str) -> Row:
    row = keys_of(queue).seek([key])[key].row
    assert row is not None
    return row


def begin(queue: Queue, key: str) -> Row:
    row = row_of(queue, key)
    assert not keys_of(queue).write([keys_of(queue).begin(row)])
    return row


def may_begin(queue: Queue, row: Row) -> bool:
    return not keys_of(queue).write([keys_of(queue).begin(row)])


def step(queue: Queue, row: Row, delay_ms: int, *, claim: str | None = None) -> Row:
    """Move a row as a retry, a share or a claim does."""
    home = queue._home
    due_ms = home.clock.now_ms() + delay_ms
    lane = row.shard.lane
    new = moved(
        row,
        home.register.layout.shard(due_ms, lane),
        due_ms,
        queue._settler.planner.kept(row).id,
        attempt=row.attempt + 1,
        claim=claim,
    )
    home.store.move([RowMove(row.position, new, note_of(new))])
    return new


def left(queue: Queue) -> list[Row]:
    """All rows of a queue that are there."""
    return [row for page in queue._rows() for row in page]


def refusal(queue: Queue, row: Row) -> StartRefusal:
    assert not may_begin(queue, row)
    [refused] = keys_of(queue).refusals([row]).values()
    return refused.why
