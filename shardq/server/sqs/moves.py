"""Tasks that move the messages of a dead-letter queue into another queue, or back to their sources.

```
 start ──► a record ──► moved in batches, at a rate; the record is renewed every second
                ├── its server is silent for 10 s ──► the next server that reads it continues it
                └── the store stops ──► its server tries again, after 0.5 s to 8 s
```

A batch is moved before the record counts it. So a crash, or an outage within the batch, may leave
the count too low, but never a message in two queues.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from shardq.clock import pause
from shardq.errors import KeyTaken, ShardqError
from shardq.records.actions import What
from shardq.server.endpoints import TASKS_MAX, Endpoint, EndpointAddress, MoveTask
from shardq.server.grants import Level
from shardq.server.jobs import STOPPED, Patience
from shardq.server.sqs import shapes
from shardq.server.sqs.actions import action
from shardq.server.sqs.errors import SqsRefusal, invalid, wrong
from shardq.server.sqs.queues import sources_of
from shardq.server.sqs.shapes import MovedCount, MoveProgress, Moves, TaskHandle

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.server.sqs.call import ActionCall
    from shardq.server.sqs.names import Directory, SqsQueue

log = logging.getLogger(__name__)

_RATE_MAX = 500
_BATCH_MAX = 500
_RENEW_MS = 1_000
SILENT_MS = 10_000
"""A task whose record was not renewed for this long has lost its server."""
_LISTED_MAX = 10
_NO_TASK: Final = "The task handle does not exist."


class _Handle(msgspec.Struct):
    """The content of a task handle."""

    task: str
    source: str


@action("StartMessageMoveTask", Level.MANAGE, shapes.StartMove, What.FORWARD)
async def start_move(call: ActionCall, given: shapes.StartMove) -> TaskHandle:
    """Begin a task."""
    source = await call.queue_of_arn(given.source_arn, "SourceArn")
    rate = given.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= _RATE_MAX:
        raise wrong(
            rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {_RATE_MAX}, if provided."
        )
    if given.destination_arn is not None:
        target = await call.queue_of_arn(given.destination_arn, "DestinationArn")
        if target.address == source.address:
            raise wrong(
                given.destination_arn, "DestinationArn", "Source and destination are the same."
            )
        if target.is_fifo != source.is_fifo:
            raise wrong(
                given.destination_arn,
                "DestinationArn",
                "Source and destination queues must be of the same type.",
            )
    sources = await sources_of(call, source.address)
    if not sources:
        raise invalid("Source queue must be configured as a Dead Letter Queue.")
    targets = [target] if given.destination_arn is not None else []
    if not targets:
        for name in sources:
            target = await call.directory.find(source.address._replace(name=name))
            call.check_also(target, "SendMessage", Level.PUT)
            targets.append(target)
    # A new count, because no more messages are moved. It includes those in flight, which may be
    # visible again before the task ends.
    depth = await source.served.queue.depth()
    # The share of each of several targets is unknown, so none of them may be full.
    count = depth.total if len(targets) == 1 else 1
    for target in targets:
        await call.site.check_depth(call.caller, target.served, count)
    now_ms = call.site.clock.now_ms()
    task = MoveTask(
        id=secrets.token_hex(8),
        target=given.destination_arn or "",
        rate=rate or 0,
        begun_ms=now_ms,
        at_ms=now_ms,
        total=depth.total,
    )

    def begin(before: Endpoint) -> Endpoint:
        if any(one.is_open for one in before.tasks):
            raise SqsRefusal(
                "UnsupportedOperation",
                "There is already a task running. Only one active task is allowed for a source "
                "queue arn at a given time.",
            )
        return replace(before, tasks=(task, *before.tasks)[:TASKS_MAX])

    await call.directory.change(source, begin)
    _begin(call.directory, source, task)
    return TaskHandle(task_handle=_handle_of(task, source.address))


@action("ListMessageMoveTasks", Level.GET, shapes.ListMoves)
async def list_moves(call: ActionCall, given: shapes.ListMoves) -> Moves:
    """List the tasks of a queue."""
    most = 1 if given.max_results is None else given.max_results
    if not 1 <= most <= _LISTED_MAX:
        raise wrong(most, "MaxResults", f"Must be between 1 and {_LISTED_MAX}, if provided.")
    source = await call.queue_of_arn(given.source_arn, "SourceArn")
    # The record is reread, because another server may carry the task out.
    endpoint = await call.directory.change(source, lambda _: None)
    resume(call.directory, source)
    return Moves(results=[_shown(one, source.address) for one in endpoint.tasks[:most]])


@action("CancelMessageMoveTask", Level.MANAGE, shapes.TaskHandle, What.FORWARD)
async def cancel_move(call: ActionCall, given: shapes.TaskHandle) -> MovedCount:
    """Cancel a task."""
    handle = _handle_from(given.task_handle)
    source = await call.queue_of_arn(handle.source, "SourceArn")

    def cancel(before: Endpoint) -> Endpoint:
        task = _task(before, handle.task)
        if task is None:
            raise SqsRefusal("ResourceNotFoundException", _NO_TASK)
        if task.status != "RUNNING":
            raise SqsRefusal(
                "UnsupportedOperation",
                "Only active tasks can be cancelled.",
            )
        return _with(before, replace(task, status="CANCELLING"))

    changed = await call.directory.change(source, cancel)
    resume(call.directory, source)
    task = _task(changed, handle.task)
    return MovedCount(moved=0 if task is None else task.moved)


def resume(directory: Directory, source: SqsQueue) -> None:
    """Continue a task of a queue whose server is silent."""
    for task in source.endpoint.tasks:
        is_silent = task.at_ms + SILENT_MS <= directory.site.clock.now_ms()
        if task.is_open and is_silent:
            _begin(directory, source, task)


def _shown(task: MoveTask, source: EndpointAddress) -> MoveProgress:
    is_open = task.is_open
    return MoveProgress(
        task_handle=_handle_of(task, source) if task.status == "RUNNING" else None,
        status=task.status,
        source_arn=source.arn,
        destination_arn=task.target or None,
        max_number_of_messages_per_second=task.rate or None,
        moved=task.moved,
        to_move=task.total if is_open or task.total else None,
        failure_reason=task.reason or None,
        started_timestamp=task.begun_ms,
    )


def _handle_of(task: MoveTask, source: EndpointAddress) -> str:
    return base64.b64encode(msgspec.json.encode(_Handle(task.id, source.arn))).decode()


def _handle_from(text: str) -> _Handle:
    try:
        return msgspec.json.decode(base64.b64decode(text, validate=True), type=_Handle)
    except (binascii.Error, ValueError, RecursionError) as error:
        raise wrong(text[:200], "TaskHandle", "The task handle is damaged.") from error


def _task(endpoint: Endpoint, task_id: str) -> MoveTask | None:
    return next((one for one in endpoint.tasks if one.id == task_id), None)


def _with(endpoint: Endpoint, task: MoveTask) -> Endpoint:
    tasks = tuple(task if one.id == task.id else one for one in endpoint.tasks)
    return replace(endpoint, tasks=tasks)


# Moving -------------------------------------------------------------------------------------------


def _begin(directory: Directory, source: SqsQueue, task: MoveTask) -> None:
    if task.id not in directory.movers:
        mover = _Mover(directory, source, task)
        directory.movers[task.id] = asyncio.create_task(mover.run())


class _Mover:
    """Carries out a task in this server, until it is done or another server takes it over.

    Args:
        directory: Finds queues.
        source: The queue whose messages are moved.
        task: The task, as it is stored.
    """

    def __init__(self, directory: Directory, source: SqsQueue, task: MoveTask) -> None:
        self._directory = directory
        self._site = directory.site
        self._source = source
        self._task = task
        self._moved = 0
        """Messages moved and not in the record yet."""
        self._written = {task.at_ms: 0}
        """`at_ms` of each record of this mover that may be stored -> its part of `_moved`.

        There are two while it is unknown whether the last write was applied.
        """
        self._patience = Patience()

    async def run(self) -> None:
        """Move messages until the task has ended, or the server leaves."""
        try:
            await self._site.unless_leaving(self._persist())
        finally:
            self._directory.movers.pop(self._task.id, None)

    async def _persist(self) -> None:
        """Carry the task out, and try again after each outage of the store."""
        while not await self._try():
            await self._patience.wait()

    async def _try(self) -> bool:
        """Carry the task out; False if the store has stopped."""
        name = self._source.address.name
        try:
            if await self._renew():
                await self._move()
        except STOPPED as error:
            log.warning(
                "the task that moves messages out of queue %r waits %.1f s for the store: %s",
                name,
                self._patience.pause_s,
                error,
            )
            return False
        except (ShardqError, SqsRefusal) as error:
            # The queue was deleted, or its record cannot be written.
            log.warning("the task that moves messages out of queue %r ends: %s", name, error)
        return True

    async def _move(self) -> None:
        try:
            target = await self._target()
            while await self._batch(target):
                self._patience = Patience()
        except KeyTaken:
            await self._end("FAILED", "The destination has messages with the keys of some.")
        except STOPPED:
            raise
        except (ShardqError, SqsRefusal) as error:
            await self._end("FAILED", str(error))

    async def _target(self) -> SqsQueue | None:
        address = EndpointAddress.of_arn(self._task.target)
        return None if address is None else await self._directory.find(address)

    async def _batch(self, target: SqsQueue | None) -> bool:
        """Move some messages; False once the task has ended."""
        begun_us = self._site.clock.boot_us()
        # Two tasks that move to each other would never end if they moved later arrivals.
        left = self._task.total - self._task.moved - self._moved
        if left <= 0:
            await self._end("COMPLETED")
            return False
        limit = min(left, self._task.rate or _BATCH_MAX)
        to = None if target is None else target.served.name
        count = await self._source.served.queue.forward(to=to, limit=limit)
        self._source.changed()
        if target is not None:
            target.changed()
        self._moved += count
        if not count:
            await self._end("COMPLETED")
            return False
        now_ms = self._site.clock.now_ms()
        is_due = now_ms - self._task.at_ms >= _RENEW_MS or self._task.rate > 0
        if is_due and not await self._renew():
            return False
        if self._task.rate:
            # This second's messages were moved: wait for its end.
            spent_s = (self._site.clock.boot_us() - begun_us) / 1_000_000
            await pause(max(0.0, 1 - spent_s))
        return True

    async def _renew(self) -> bool:
        """Store the progress of the task; False if it was cancelled, or another server has it."""
        task = await self._store(lambda task: task)
        return task is not None and task.status == "RUNNING"

    async def _end(self, status: str, reason: str = "") -> None:
        await self._store(lambda task: replace(task, status=status, reason=reason))

    async def _store(self, change: Callable[[MoveTask], MoveTask]) -> MoveTask | None:
        """Change the stored task; returns it, or None if another server has it by now."""
        moved = self._moved
        now_ms = max(self._site.clock.now_ms(), max(self._written) + 1)

        def step(before: Endpoint) -> Endpoint | None:
            task = _task(before, self._task.id)
            if task is None or not task.is_open or task.at_ms not in self._written:
                return None
            counted = self._written[task.at_ms]
            self._written = {task.at_ms: counted, now_ms: moved}
            renewed = replace(task, at_ms=now_ms, moved=task.moved + moved - counted)
            if renewed.status == "CANCELLING":
                return _with(before, replace(renewed, status="CANCELLED"))
            return _with(before, change(renewed))

        changed = await self._directory.change(self._source, step)
        task = _task(changed, self._task.id)
        if task is None or task.at_ms != now_ms:
            return None
        self._task, self._moved, self._written = task, 0, {now_ms: 0}
        return task
