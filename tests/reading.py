"""What tests of reading begin with: a consumer that records, and rows that appear in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq import Consumer, Retry
from shardq.model.ids import row_ids
from shardq.model.message import Row
from shardq.testing import Recorder

if TYPE_CHECKING:
    from shardq import Message, Queue
    from shardq.testing import Stage


def reading(stage: Stage, queue: Queue, **options: Any) -> tuple[Consumer, Recorder]:
    """A consumer, and what it has handed out."""
    recorder = Recorder(stage.clock)
    return Consumer(queue, recorder, **options), recorder


def retrying(stage: Stage, queue: Queue) -> Consumer:
    """A consumer whose five messages, each of its own group, come again after 5 s."""

    def fail_once(message: Message) -> None:
        if message.attempt == 1:
            raise Retry("5s")

    for number in range(5):
        queue.put("x", group=f"order-{number}")
    return Consumer(queue, Recorder(stage.clock, fail_once))


def write(
    stage: Stage,
    queue: Queue,
    due_ms: int,
    body: bytes,
    lane: int | None = None,
    group: str | None = None,
) -> Row:
    """Write a row with exactly this due; a put would raise a past due to now."""
    register = queue._home.register
    if group is not None:
        register.use_groups()
    if lane is None:
        lane = 0 if group is None else register.layout.group_lane(group)
    shard = register.layout.shard(due_ms, lane)
    row = Row(shard, due_ms, row_ids.next(stage.clock.now_us()), body, group=group)
    stage._store.insert([row])
    return row
