"""A queue, from asyncio: the methods of `shardq.Queue` as coroutines."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload

from shardq.aio.feed import fed
from shardq.aio.schedules import Schedule, Schedules
from shardq.aio.threads import Kind
from shardq.engine.handing.caller import Caller
from shardq.model.names import dead_queue
from shardq.queue import received

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
    from datetime import datetime, tzinfo

    from apscheduler.triggers.base import BaseTrigger

    from shardq.aio.threads import Threads
    from shardq.errors import KeyTaken, ReceiptError, ShardqError
    from shardq.inspection.audit import Audit
    from shardq.inspection.census import Check
    from shardq.inspection.depth import Depth
    from shardq.inspection.state import Found, State
    from shardq.lifecycle.batch import Item
    from shardq.lifecycle.keyed import Answer, Snapshot
    from shardq.model.message import Message
    from shardq.model.settings import QueueOptions, Settings
    from shardq.model.times import Due, Duration
    from shardq.queue import Queue as SyncQueue
    from shardq.queue import Several
    from shardq.records.ledger import Record
    from shardq.records.stats import Totals
    from shardq.schedules.options import ScheduleOptions
    from shardq.schedules.triggers.trigger import Trigger
    from shardq.stores.store import Progress

R = TypeVar("R")

_RECORDS_FIRST, _RECORDS = 10, 1_000
_PATIENT_MS = 2_000
"""A call of `receive` that waits for so long leaves the time of the next look to others."""


class Queue:
    """A queue, from asyncio. Made by `Connection.queue`; it is opened by its first call.

    Attributes:
        name: Its name.
    """

    def __init__(
        self,
        name: str,
        threads: Threads,
        opening: Callable[[], SyncQueue],
    ) -> None:
        """Made by `Connection.queue`.

        Args:
            name: Its name.
            threads: Where calls run.
            opening: Opens it; called in a thread.
        """
        self.name: str = name
        self._threads = threads
        self._opening = opening
        self._queue: SyncQueue | None = None

    def __repr__(self) -> str:
        return f"<aio.Queue {self.name!r}>"

    @property
    def dead(self) -> Queue:
        """The queue that keeps this one's dead messages, as `shardq.Queue.dead`."""
        register = self._queue and self._queue._home.register
        name = (register and register.dead_name) or dead_queue(self.name)
        return Queue(name, self._threads, lambda: self._opened().dead)

    async def settings(self) -> Settings:
        """The settings, as last read."""
        return await self._call(lambda queue: queue.settings)

    # Putting --------------------------------------------------------------------------------------

    async def put(
        self,
        body: bytes | str | Message,
        *,
        due: Due | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,  # noqa: A002 - the word that users expect
        expires: Duration | None = None,
        key: str | None = None,
        on_conflict: Literal["keep", "replace", "reject", "debounce"] = "keep",
        max_wait: Duration | None = None,
        unique_for: Duration | None = None,
    ) -> Message:
        """Put one message, as `shardq.Queue.put`; when this returns, the store has it."""
        return await self._call(
            lambda queue: queue.put(
                body,
                due=due,
                delay=delay,
                priority=priority,
                group=group,
                headers=headers,
                id=id,
                expires=expires,
                key=key,
                on_conflict=on_conflict,
                max_wait=max_wait,
                unique_for=unique_for,
            )
        )

    @overload
    async def put_many(
        self, items: Iterable[Item] | AsyncIterable[Item], *, ids: Literal[False] = False
    ) -> int: ...
    @overload
    async def put_many(
        self, items: Iterable[Item] | AsyncIterable[Item], *, ids: Literal[True]
    ) -> list[str]: ...
    @overload
    async def put_many(
        self, items: Iterable[Item] | AsyncIterable[Item], *, ids: bool
    ) -> int | list[str]: ...
    @overload
    async def put_many(
        self, items: Iterable[Item] | AsyncIterable[Item], *, partial: Literal[True]
    ) -> list[Message | ShardqError]: ...
    async def put_many(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        *,
        ids: bool = False,
        partial: bool = False,
    ) -> int | list[str] | list[Message | ShardqError]:
        """Put messages from an iterable, as `shardq.Queue.put_many`.

        An async one is read by the task that calls this, any other in a thread.
        """
        queue = await self._call(lambda queue: queue)
        clock = queue._home.clock

        def put(feed: Iterable[Item]) -> int | list[str] | list[Message | ShardqError]:
            return queue.put_many(feed, partial=True) if partial else queue.put_many(feed, ids=ids)

        return await fed(items, put, self._threads, clock)

    # Receiving ------------------------------------------------------------------------------------

    async def receive(
        self,
        max: int = 10,  # noqa: A002 - the word that users expect
        visibility: Duration = "30s",
        wait: Duration = "0s",
        *,
        per_group: int = 1,
        lasting: bool = False,
    ) -> list[Message]:
        """Take messages that are due, as `shardq.Queue.receive`.

        Any number of tasks may wait: none of them takes a thread. Cancelled, it ends at once; what
        it has taken is released, and costs no attempt.
        """
        count, visibility_ms, wait_ms, per_group = received(max, visibility, wait, per_group)
        queue = self._queue
        if queue is None:
            queue = await self._call(lambda opened: opened)
        receiver = queue._receiver
        if not receiver.has_stepper:
            return await self._call(
                lambda opened: opened.receive(
                    count, visibility, wait, per_group=per_group, lasting=lasting
                ),
                kind=Kind.LONG,
            )
        self._threads.check()
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        caller = Caller(
            count,
            visibility_ms,
            queue._home.clock.boot_us(),
            per_group=per_group,
            is_lasting=lasting,
            on_over=lambda: _tell(loop, over),
            is_brief=not wait_ms,
        )
        try:
            receiver.ask(caller, is_patient=wait_ms >= _PATIENT_MS)
            await asyncio.wait([over], timeout=wait_ms / 1_000 or None)
            # Looked for or not; out of line already, it is answered soon.
            if not (over.done() or receiver.leave(caller)):
                await over
        except BaseException:
            receiver.abandon(caller)
            raise
        return caller.answer()

    @overload
    async def ack(
        self,
        *deliveries: Message | str,
        partial: Literal[False] = False,
        redelivered: bool = False,
    ) -> None: ...
    @overload
    async def ack(
        self, *deliveries: Message | str, partial: Literal[True], redelivered: bool = False
    ) -> list[ReceiptError | None]: ...
    @overload
    async def ack(
        self, *deliveries: Message | str, partial: bool, redelivered: bool = False
    ) -> list[ReceiptError | None] | None: ...
    async def ack(
        self, *deliveries: Message | str, partial: bool = False, redelivered: bool = False
    ) -> list[ReceiptError | None] | None:
        """End deliveries as done, as `shardq.Queue.ack`."""
        return await self._call(
            lambda queue: queue.ack(*deliveries, partial=partial, redelivered=redelivered)
        )

    @overload
    async def retry(
        self, delivery: Message | str, delay: Duration | None = None, *, reason: str = ""
    ) -> None: ...
    @overload
    async def retry(
        self,
        delivery: Several,
        delay: Duration | None = None,
        *,
        reason: str = "",
        partial: Literal[True],
    ) -> list[ReceiptError | None]: ...
    async def retry(
        self,
        delivery: Several,
        delay: Duration | None = None,
        *,
        reason: str = "",
        partial: bool = False,
    ) -> list[ReceiptError | None] | None:
        """End a delivery as failed, as `shardq.Queue.retry`."""
        return await self._call(
            lambda queue: cast("Any", queue).retry(delivery, delay, reason=reason, partial=partial)
        )

    @overload
    async def snooze(self, delivery: Message | str, delay: Duration) -> None: ...
    @overload
    async def snooze(
        self, delivery: Several, delay: Duration, *, partial: Literal[True]
    ) -> list[ReceiptError | None]: ...
    async def snooze(
        self, delivery: Several, delay: Duration, *, partial: bool = False
    ) -> list[ReceiptError | None] | None:
        """Deliver a message again later, as `shardq.Queue.snooze`."""
        return await self._call(
            lambda queue: cast("Any", queue).snooze(delivery, delay, partial=partial)
        )

    @overload
    async def extend(
        self, delivery: Message | str, visibility: Duration = "30s", *, redelivered: bool = False
    ) -> str: ...
    @overload
    async def extend(
        self,
        delivery: Several,
        visibility: Duration = "30s",
        *,
        partial: Literal[True],
        redelivered: bool = False,
    ) -> list[str | ReceiptError]: ...
    async def extend(
        self,
        delivery: Several,
        visibility: Duration = "30s",
        *,
        partial: bool = False,
        redelivered: bool = False,
    ) -> str | list[str | ReceiptError]:
        """Keep a received message for longer, as `shardq.Queue.extend`."""
        return await self._call(
            lambda queue: cast("Any", queue).extend(
                delivery, visibility, partial=partial, redelivered=redelivered
            )
        )

    @overload
    async def bury(self, delivery: Message | str, reason: str = "buried") -> None: ...
    @overload
    async def bury(
        self, delivery: Several, reason: str = "buried", *, partial: Literal[True]
    ) -> list[ReceiptError | None]: ...
    async def bury(
        self, delivery: Several, reason: str = "buried", *, partial: bool = False
    ) -> list[ReceiptError | None] | None:
        """Move a message to the dead-letter queue, as `shardq.Queue.bury`."""
        return await self._call(
            lambda queue: cast("Any", queue).bury(delivery, reason, partial=partial)
        )

    @overload
    async def forward(self, delivery: Message | str, *, to: Queue | str) -> None: ...
    @overload
    async def forward(
        self, delivery: Several, *, to: Queue | str, partial: Literal[True]
    ) -> list[ReceiptError | KeyTaken | None]: ...
    @overload
    async def forward(self, *, to: Queue | str, ids: Iterable[str]) -> dict[str, Answer]: ...
    @overload
    async def forward(
        self,
        *,
        to: Queue | str | None = None,
        limit: int,
        where: Callable[[Message], bool] | None = None,
    ) -> int: ...
    async def forward(
        self,
        delivery: Several | None = None,
        *,
        to: Queue | str | None = None,
        ids: Iterable[str] | None = None,
        limit: int | None = None,
        where: Callable[[Message], bool] | None = None,
        partial: bool = False,
    ) -> list[ReceiptError | KeyTaken | None] | dict[str, Answer] | int | None:
        """Move messages into another queue, as `shardq.Queue.forward`."""
        name = to.name if isinstance(to, Queue) else to
        return await self._call(
            lambda queue: cast("Any", queue).forward(
                delivery, to=name, ids=ids, limit=limit, where=where, partial=partial
            ),
            kind=Kind.QUICK if delivery is not None else Kind.LONG,
        )

    # By key ---------------------------------------------------------------------------------------

    @overload
    async def cancel(self, delivery: Message | str) -> bool: ...
    @overload
    async def cancel(self, *, key: str) -> Answer: ...
    @overload
    async def cancel(
        self, *, keys: Iterable[str] | None = None, ids: Iterable[str] | None = None
    ) -> dict[str, Answer]: ...
    async def cancel(
        self,
        delivery: Message | str | None = None,
        *,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        ids: Iterable[str] | None = None,
    ) -> bool | Answer | dict[str, Answer]:
        """Remove messages that have not been delivered, as `shardq.Queue.cancel`."""
        return await self._call(
            lambda queue: cast("Any", queue).cancel(delivery, key=key, keys=keys, ids=ids)
        )

    async def get(self, key: str) -> Snapshot | None:
        """The message that has a key, as `shardq.Queue.get`."""
        return await self._call(lambda queue: queue.get(key))

    @overload
    async def move(
        self, key: str, *, due: Due | None = None, delay: Duration | None = None
    ) -> Answer: ...
    @overload
    async def move(
        self,
        *,
        keys: Iterable[str] | None = None,
        ids: Iterable[str] | None = None,
        due: Due | None = None,
        delay: Duration | None = None,
    ) -> dict[str, Answer]: ...
    async def move(
        self,
        key: str | None = None,
        *,
        keys: Iterable[str] | None = None,
        ids: Iterable[str] | None = None,
        due: Due | None = None,
        delay: Duration | None = None,
    ) -> Answer | dict[str, Answer]:
        """Let messages that wait be due at another time, as `shardq.Queue.move`."""
        return await self._call(
            lambda queue: cast("Any", queue).move(key, keys=keys, ids=ids, due=due, delay=delay)
        )

    async def edit(
        self,
        key: str,
        *,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Change a message that waits, as `shardq.Queue.edit`."""
        return await self._call(lambda queue: queue.edit(key, body=body, headers=headers))

    # Again and again ------------------------------------------------------------------------------

    @property
    def schedules(self) -> Schedules:
        """The queue's schedules, by name."""
        return Schedules(lambda: self._opened().schedules, self._threads)

    async def every(
        self,
        interval: Duration,
        body: bytes | str,
        *,
        name: str | None = None,
        start: Due | None = None,
        end: Due | None = None,
        at_start: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Put a message again and again, as `shardq.Queue.every`."""
        made = await self._call(
            lambda queue: queue.every(
                interval, body, name=name, start=start, end=end, at_start=at_start, **options
            )
        )
        return Schedule(made, self._threads)

    async def cron(
        self,
        text: str,
        body: bytes | str,
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        start: Due | None = None,
        end: Due | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Put a message at times of the wall clock, as `shardq.Queue.cron`."""
        made = await self._call(
            lambda queue: queue.cron(text, body, tz=tz, name=name, start=start, end=end, **options)
        )
        return Schedule(made, self._threads)

    async def schedule(
        self,
        trigger: BaseTrigger | Trigger,
        body: bytes | str,
        *,
        name: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Put a message whenever a trigger fires, as `shardq.Queue.schedule`."""
        made = await self._call(lambda queue: queue.schedule(trigger, body, name=name, **options))
        return Schedule(made, self._threads)

    # Looking --------------------------------------------------------------------------------------

    async def peek(self, limit: int = 10) -> list[Message]:
        """The messages that are due first, as `shardq.Queue.peek`."""
        return await self._call(lambda queue: queue.peek(limit))

    async def find(
        self, message_id: Message | str | None = None, *, key: str | None = None, near: bool = False
    ) -> Found | None:
        """A message and where it is, as `shardq.Queue.find`."""
        return await self._call(lambda queue: queue.find(message_id, key=key, near=near))

    async def state_of(
        self, message_id: Message | str | None = None, *, key: str | None = None, near: bool = False
    ) -> State | None:
        """Where a message is, as `shardq.Queue.state_of`."""
        return await self._call(lambda queue: queue.state_of(message_id, key=key, near=near))

    async def depth(self, *, exact: bool = False) -> Depth:
        """How many messages there are, as `shardq.Queue.depth`."""
        return await self._call(
            lambda queue: queue.depth(exact=exact), kind=Kind.LONG if exact else Kind.QUICK
        )

    async def forecast(self, horizon: Duration = "1h") -> list[tuple[datetime, int]]:
        """Messages due in each of the coming minutes, as `shardq.Queue.forecast`."""
        # A cron in seconds has 86,400 fire times a day, and each takes 0.1 ms.
        return await self._call(lambda queue: queue.forecast(horizon), kind=Kind.LONG)

    async def audit(
        self,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
        *,
        on_progress: Progress | None = None,
    ) -> Audit:
        """Whether the books balance, as `shardq.Queue.audit`."""
        return await self._call(
            lambda queue: queue.audit(since, until, on_progress=on_progress), kind=Kind.LONG
        )

    async def history(
        self,
        message_id: str | None = None,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
    ) -> AsyncIterator[Record]:
        """What became of a message, or of all of a span, as `shardq.Queue.history`."""
        records = await self._call(lambda queue: queue.history(message_id, since, until))
        some = await self._threads.call(lambda: list(islice(records, _RECORDS_FIRST)))
        while some:
            for record in some:
                yield record
            some = await self._threads.call(lambda: list(islice(records, _RECORDS)))

    async def totals(self) -> Totals:
        """What has happened in this queue, as `shardq.Queue.totals`."""
        return await self._call(lambda queue: queue.totals())

    # Steering -------------------------------------------------------------------------------------

    async def alter(self, **given: Unpack[QueueOptions]) -> None:
        """Change settings while the queue runs, as `shardq.Queue.alter`."""
        await self._call(lambda queue: queue.alter(**given))

    async def pause(self) -> None:
        """Hold deliveries back, as `shardq.Queue.pause`."""
        await self._call(lambda queue: queue.pause())

    async def resume(self) -> None:
        """Deliver again, as `shardq.Queue.resume`."""
        await self._call(lambda queue: queue.resume())

    async def purge(self) -> None:
        """Delete all that has entered the queue until now, as `shardq.Queue.purge`."""
        await self._call(lambda queue: queue.purge())

    async def drop(self) -> None:
        """Purge the queue and take it off the list, as `shardq.Queue.drop`."""
        await self._call(lambda queue: queue.drop())

    async def redrive(
        self, limit: int | None = None, *, where: Callable[[Message], bool] | None = None
    ) -> int:
        """Put this queue's dead messages back, as `shardq.Queue.redrive`."""
        return await self._call(lambda queue: queue.redrive(limit, where=where), kind=Kind.LONG)

    async def check_all(self, on_progress: Callable[[int], None] | None = None) -> Check:
        """Visit every partition, near and far, as `shardq.Queue.check_all`."""
        return await self._call(lambda queue: queue.check_all(on_progress), kind=Kind.LONG)

    async def close(self) -> None:
        """Release what `receive` holds, and store the totals. Idempotent."""
        if self._queue is not None:
            await self._call(lambda queue: queue.close())

    # Details --------------------------------------------------------------------------------------

    def _opened(self) -> SyncQueue:
        if self._queue is None:
            self._queue = self._opening()
        return self._queue

    async def _call(self, call: Callable[[SyncQueue], R], *, kind: Kind = Kind.QUICK) -> R:
        return await self._threads.call(lambda: call(self._opened()), kind)


def _tell(loop: asyncio.AbstractEventLoop, over: asyncio.Future[None]) -> None:
    # A loop that is closed has nobody who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_end, over)


def _end(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
