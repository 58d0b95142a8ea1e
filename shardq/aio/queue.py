"""A queue, from asyncio: the methods of `shardq.Queue` as coroutines."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, overload

from shardq.aio.feed import fed
from shardq.aio.schedules import Schedules, schedule_face
from shardq.aio.threaded import Face, declared, faced, lengthy, threaded
from shardq.engine.handing.caller import ReceiveCall
from shardq.model.names import dead_queue
from shardq.queue import Queue as SyncQueue
from shardq.queue import received

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from shardq.aio.feed import AnyIterable
    from shardq.aio.threads import Threads
    from shardq.errors import KeyTaken, ReceiptError, ShardqError
    from shardq.lifecycle.batch import Item
    from shardq.lifecycle.keyed import Answer
    from shardq.model.message import Message
    from shardq.model.settings import Settings
    from shardq.model.times import Due, Duration
    from shardq.queue import Several
    from shardq.records.ledger import Record

_RECORDS_FIRST, _RECORDS = 10, 1_000
_PATIENT_MS = 2_000
"""A `receive` that waits at least this long starts no read of its own, but waits for shared
ones."""


# Calls with overloads have names: mypy loses the overloads of a call within a call.
_ack = threaded(SyncQueue.ack)
_retry = threaded(SyncQueue.retry)
_snooze = threaded(SyncQueue.snooze)
_extend = threaded(SyncQueue.extend)
_bury = threaded(SyncQueue.bury)
_cancel = threaded(SyncQueue.cancel)
_move = threaded(SyncQueue.move)
_limit = threaded(SyncQueue.limit)
_forward: Any = lengthy(SyncQueue.forward, lambda delivery=None, *_, **__: delivery is None)


class Queue(Face[SyncQueue]):
    """A queue, from asyncio. Made by `Connection.queue`; its first call opens it.

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
            threads: The threads of its calls.
            opening: Opens it; called in a thread.
        """
        super().__init__(opening, threads)
        self.name: str = name

    def __repr__(self) -> str:
        return f"<aio.Queue {self.name!r}>"

    @property
    def dead(self) -> Queue:
        """The queue that keeps this one's dead messages, as `shardq.Queue.dead`."""
        register = self._own and self._own._home.register
        name = (register and register.dead_name) or dead_queue(self.name)
        return Queue(name, self._threads, lambda: self._opened().dead)

    async def settings(self) -> Settings:
        """The settings, as last read."""
        return await self._call(lambda queue: queue.settings)

    # Putting --------------------------------------------------------------------------------------

    @declared(threaded(SyncQueue.put))
    def put(self) -> None:
        """Put one message, as `shardq.Queue.put`; when this returns, the store has it."""

    @overload
    async def put_many(self, items: AnyIterable[Item], *, ids: Literal[False] = False) -> int: ...
    @overload
    async def put_many(self, items: AnyIterable[Item], *, ids: Literal[True]) -> list[str]: ...
    @overload
    async def put_many(self, items: AnyIterable[Item], *, ids: bool) -> int | list[str]: ...
    @overload
    async def put_many(
        self, items: AnyIterable[Item], *, partial: Literal[True]
    ) -> list[Message | ShardqError]: ...
    async def put_many(
        self,
        items: AnyIterable[Item],
        *,
        ids: bool = False,
        partial: bool = False,
    ) -> int | list[str] | list[Message | ShardqError]:
        """Put messages from an iterable, as `shardq.Queue.put_many`.

        An async iterable is read by the calling task, any other in a thread.
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

        Any number of tasks may wait, without a thread each. A cancelled call ends at once, and
        releases the messages that it has taken, which costs them no attempt.
        """
        count, visibility_ms, wait_ms, per_group = received(max, visibility, wait, per_group)
        queue = self._own
        if queue is None:
            queue = await self._call(lambda opened: opened)
        receiver = queue._receiver
        if not receiver.has_stepper:
            return await self._call(
                lambda opened: opened.receive(
                    count, visibility, wait, per_group=per_group, lasting=lasting
                ),
                is_long=True,
            )
        self._threads.check()
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        caller = ReceiveCall(
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
            # If the call cannot leave the line any more, its answer is on the way: wait for it.
            if not (over.done() or receiver.leave(caller)):
                await over
        except BaseException:
            receiver.abandon(caller)
            raise
        return caller.answer()

    @declared(_ack)
    def ack(self) -> None:
        """End deliveries as done, as `shardq.Queue.ack`."""

    @declared(_retry)
    def retry(self) -> None:
        """End a delivery as failed, as `shardq.Queue.retry`."""

    @declared(_snooze)
    def snooze(self) -> None:
        """Deliver a message again later, as `shardq.Queue.snooze`."""

    @declared(_extend)
    def extend(self) -> None:
        """Keep a received message for longer, as `shardq.Queue.extend`."""

    @declared(_bury)
    def bury(self) -> None:
        """Move a message to the dead-letter queue, as `shardq.Queue.bury`."""

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
    @declared(_forward)
    async def forward(self, *given: Any, **options: Any) -> Any:
        """Move messages into another queue, as `shardq.Queue.forward`."""

    # By key ---------------------------------------------------------------------------------------

    @declared(_cancel)
    def cancel(self) -> None:
        """Remove messages that have not been delivered, as `shardq.Queue.cancel`."""

    @declared(threaded(SyncQueue.get))
    def get(self) -> None:
        """The message that has a key, as `shardq.Queue.get`."""

    @declared(_move)
    def move(self) -> None:
        """Give waiting messages another due, as `shardq.Queue.move`."""

    @declared(threaded(SyncQueue.edit))
    def edit(self) -> None:
        """Change a waiting message, as `shardq.Queue.edit`."""

    # Schedules ------------------------------------------------------------------------------------

    @property
    def schedules(self) -> Schedules:
        """The queue's schedules, by name."""
        return Schedules(lambda: self._opened().schedules, self._threads)

    @declared(faced(SyncQueue.every, schedule_face))
    def every(self) -> None:
        """Put a message repeatedly, after an interval, as `shardq.Queue.every`."""

    @declared(faced(SyncQueue.cron, schedule_face))
    def cron(self) -> None:
        """Put a message at times of the wall clock, as `shardq.Queue.cron`."""

    @declared(faced(SyncQueue.schedule, schedule_face))
    def schedule(self) -> None:
        """Put a message whenever a trigger fires, as `shardq.Queue.schedule`."""

    # Inspecting -----------------------------------------------------------------------------------

    @declared(threaded(SyncQueue.peek))
    def peek(self) -> None:
        """The messages that are due first, as `shardq.Queue.peek`."""

    @declared(threaded(SyncQueue.find))
    def find(self) -> None:
        """A message and where it is, as `shardq.Queue.find`."""

    @declared(threaded(SyncQueue.state_of))
    def state_of(self) -> None:
        """The state of a message, as `shardq.Queue.state_of`."""

    @declared(lengthy(SyncQueue.depth, lambda *_, exact=False, **__: exact))
    def depth(self) -> None:
        """The number of messages, as `shardq.Queue.depth`."""

    # The call is long, because a cron in seconds has 86,400 fire times a day of 0.1 ms each.
    @declared(lengthy(SyncQueue.forecast))
    def forecast(self) -> None:
        """Messages due in each of the coming minutes, as `shardq.Queue.forecast`."""

    @declared(lengthy(SyncQueue.audit))
    def audit(self) -> None:
        """Compare puts with ends, as `shardq.Queue.audit`."""

    async def history(
        self,
        message_id: str | None = None,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
    ) -> AsyncIterator[Record]:
        """The history of a message, or of a span of time, as `shardq.Queue.history`."""
        records = await self._call(lambda queue: queue.history(message_id, since, until))
        some = await self._threads.call(lambda: list(islice(records, _RECORDS_FIRST)))
        while some:
            for record in some:
                yield record
            some = await self._threads.call(lambda: list(islice(records, _RECORDS)))

    @declared(threaded(SyncQueue.totals))
    def totals(self) -> None:
        """Counts of this queue's puts, deliveries and ends, as `shardq.Queue.totals`."""

    # Operating ------------------------------------------------------------------------------------

    @declared(threaded(SyncQueue.alter))
    def alter(self) -> None:
        """Change settings while the queue runs, as `shardq.Queue.alter`."""

    @declared(_limit)
    def limit(self) -> None:
        """Set the limits of groups, as `shardq.Queue.limit`."""

    @declared(threaded(SyncQueue.pause))
    def pause(self) -> None:
        """Stop deliveries until `resume`, as `shardq.Queue.pause`."""

    @declared(threaded(SyncQueue.resume))
    def resume(self) -> None:
        """Deliver again, as `shardq.Queue.resume`."""

    @declared(threaded(SyncQueue.purge))
    def purge(self) -> None:
        """Delete all messages put until now, as `shardq.Queue.purge`."""

    @declared(threaded(SyncQueue.drop))
    def drop(self) -> None:
        """Purge and remove the queue, as `shardq.Queue.drop`."""

    @declared(lengthy(SyncQueue.redrive))
    def redrive(self) -> None:
        """Put this queue's dead messages back, as `shardq.Queue.redrive`."""

    @declared(lengthy(SyncQueue.check_all))
    def check_all(self) -> None:
        """Check every partition, near and far, as `shardq.Queue.check_all`."""

    async def close(self) -> None:
        """Release the messages that `receive` holds, and store the totals. Idempotent."""
        if self._own is not None:
            await self._call(SyncQueue.close)


def _tell(loop: asyncio.AbstractEventLoop, over: asyncio.Future[None]) -> None:
    # Ignore the error of a closed loop, in which nobody waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_end, over)


def _end(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
