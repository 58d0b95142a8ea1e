"""The queues that a server serves, which carry out the calls of many requests in batches.

```
 requests ──► line of a queue and kind ──► one batch under way, in a thread ──► an answer each
                  └── what arrives meanwhile is the next batch
 long polls ──► the stepper of the connection; no thread waits
```
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from shardq.aio.queue import Queue
from shardq.aio.threads import Threads
from shardq.errors import ShardqError, StoreError, StoreTimeout, UnknownQueue, own_copy
from shardq.records.meter import BATCH, SIZES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardq.connection import Connection
    from shardq.model.message import Message
    from shardq.model.settings import Settings
    from shardq.queue import Queue as SyncQueue

T = TypeVar("T")
R = TypeVar("R")

_BATCH_MAX = 1_000
_BATCH_BYTES = 1 << 20
_OLD_US = 5_000_000
_ONCE = {"key", "once"}


@dataclass(slots=True)
class _Calls(Generic[T, R]):
    """The calls of one request, and the future of their answers."""

    calls: Sequence[T]
    size_bytes: int
    done: asyncio.Future[Sequence[R | Exception]]


class CallLine(Generic[T, R]):
    """Calls of one kind in line: those that arrive while a batch is under way are the next batch.

    The calls of one request stay together. One event loop uses it.

    Args:
        carry_out: Carries out a batch, in a thread; returns an answer or an error for each call.
        threads: The threads.
        note: Called with the number of calls of each batch.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[T]], Sequence[R | ShardqError]],
        threads: Threads,
        note: Callable[[int], object] = lambda _count: None,
    ) -> None:
        self._carry_out = carry_out
        self._note = note
        self._threads = threads
        self._line: deque[_Calls[T, R]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def do(self, call: T, size_bytes: int = 0) -> R:
        """Put a call in line; returns its answer.

        A caller that goes away does not stop a call that has begun.

        Raises:
            ShardqError: The error that is its answer.
        """
        [answer] = await self.do_all([call], size_bytes)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def do_all(self, calls: Sequence[T], size_bytes: int = 0) -> Sequence[R | Exception]:
        """Put calls in line as one; returns the answer or the error of each."""
        if not calls:
            return []
        done: asyncio.Future[Sequence[R | Exception]] = asyncio.get_running_loop().create_future()
        self._line.append(_Calls(calls, size_bytes, done))
        if self._task is None:
            # In an empty context, not that of one caller: a batch has the calls of many.
            self._task = asyncio.create_task(self._run(), context=contextvars.Context())
        return await done

    async def _run(self) -> None:
        try:
            while self._line:
                batch = self._next()
                if not batch:
                    continue
                calls = [call for one in batch for call in one.calls]
                self._note(len(calls))
                answers = iter(await self._answers(calls))
                for one in batch:
                    mine = list(islice(answers, len(one.calls)))
                    if not one.done.done():
                        one.done.set_result(mine)
        finally:
            self._task = None
            while self._line:
                # This is only reached when the loop ends.
                self._line.popleft().done.cancel()

    async def _answers(self, calls: Sequence[T]) -> Sequence[R | Exception]:
        """The answer of each call; an error of the whole batch is that of each."""
        work = asyncio.wrap_future(self._threads.begin(partial(self._carry_out, calls)))
        await asyncio.wait([work])
        error = work.exception()
        if error is None:
            return work.result()
        if isinstance(error, ShardqError):
            return [own_copy(error) for _ in calls]
        # Errors that no code catches are answers too, so that no caller waits for ever.
        fault = error if isinstance(error, Exception) else RuntimeError(repr(error))
        return [fault] * len(calls)

    def _next(self) -> list[_Calls[T, R]]:
        batch: list[_Calls[T, R]] = []
        count = size_bytes = 0
        while self._line and count < _BATCH_MAX and size_bytes <= _BATCH_BYTES:
            one = self._line.popleft()
            if one.done.done():
                continue
            batch.append(one)
            count += len(one.calls)
            size_bytes += one.size_bytes
        return batch


def check_store(answers: Sequence[object]) -> None:
    """Refuse a batch as a whole if the store failed for each part: clients repeat it then.

    Raises:
        StoreError: If it did.
    """
    if answers and all(isinstance(one, StoreError) for one in answers):
        raise cast("StoreError", answers[0])


class ServedQueue:
    """A queue that is served.

    Attributes:
        name: Its name.
        queue: The queue for asyncio: for calls that have no line here.
        on_settled: Called with deliveries that were settled here: receipt -> the receipt that
            takes its place, or None of one that has ended.
    """

    def __init__(self, opened: SyncQueue, threads: Threads) -> None:
        self.name = opened.name
        self.queue = Queue(opened.name, threads, lambda: opened)
        self.on_settled: set[Callable[[Mapping[str, str | None]], object]] = set()
        self._opened = opened
        self._threads = threads
        self._puts: CallLine[Mapping[str, Any], Message] = CallLine(
            self._put_each, threads, partial(self._note, "put")
        )
        self._acks: CallLine[str, None] = CallLine(
            self._ack_each, threads, partial(self._note, "ack")
        )
        self._ends: CallLine[str, None] = CallLine(
            self._end_each, threads, partial(self._note, "ack")
        )

    @property
    def settings(self) -> Settings:
        """Its settings, as last read."""
        return self._opened.settings

    async def is_dropped(self) -> bool:
        """True if it was dropped more than 5 s ago, by whichever process. Rarely reads the store.

        Raises:
            StoreError: If the settings are old, and the store cannot be read.
        """
        register = self._opened._home.register
        # A queue that receives rereads its settings sooner.
        if register.age_us > _OLD_US:
            try:
                await self._threads.call(register.refresh)
            except UnknownQueue:
                return True
        return self.settings.dropped

    async def put(self, item: Mapping[str, Any]) -> Message:
        """Put a message, given as a mapping of `put`'s arguments; returns it once it is stored.

        Raises:
            ShardqError: As `Queue.put` raises it.
        """
        return await self._puts.do(item, len(item["body"]))

    async def put_all(self, items: Sequence[Mapping[str, Any]]) -> list[Message | ShardqError]:
        """Put messages; returns for each the message or the error that it failed by."""
        size_bytes = sum(len(item["body"]) for item in items)
        return _told(await self._puts.do_all(items, size_bytes))

    async def ack_all(
        self, receipts: Sequence[str], *, redelivered: bool = False
    ) -> list[ShardqError | None]:
        """End deliveries as done; returns the error of each that did not end, None of the others.

        Args:
            receipts: Their receipts.
            redelivered: As for `Queue.ack`.
        """
        errors = _told(await (self._ends if redelivered else self._acks).do_all(receipts))
        if self.on_settled:
            ended = zip(receipts, errors, strict=True)
            self.tell({receipt: None for receipt, error in ended if error is None})
        return errors

    def tell(self, settled: Mapping[str, str | None]) -> None:
        """Notify the streams of this process of deliveries that were settled.

        Args:
            settled: Receipt -> the receipt that takes its place, or None of one that has ended.
        """
        for listener in self.on_settled:
            listener(settled)

    async def unsettled(self, receipts: Sequence[str]) -> list[str]:
        """Those of the given receipts whose deliveries have not ended; one read."""
        return await self.call(lambda queue: queue._receipts.unsettled(receipts))

    async def call(self, call: Callable[[SyncQueue], R], *, is_long: bool = False) -> R:
        """Let a thread make a call of the queue.

        Args:
            call: The call.
            is_long: True if it may take minutes.
        """
        return await self._threads.call(lambda: call(self._opened), is_long=is_long)

    def _note(self, kind: str, count: int) -> None:
        meter = self._opened._home.meter
        if meter.is_on:
            meter.observe(BATCH, (kind,), (count,), SIZES)

    def _put_each(self, items: Sequence[Mapping[str, Any]]) -> Sequence[Message | ShardqError]:
        """Put messages; one that may be stored is put again, before its client puts another."""
        answers = self._opened.put_many(items, partial=True)
        # The client itself may safely repeat a put with a key, or with `once`.
        again = {
            at: answer.messages[0]
            for at, (item, answer) in enumerate(zip(items, answers, strict=True))
            if isinstance(answer, StoreTimeout) and answer.messages and not _ONCE & item.keys()
        }
        if again:
            repeated = self._opened.put_many(again.values(), partial=True)
            for at, answer in zip(again, repeated, strict=True):
                # After an error of the repeat the first error holds: the message may be stored.
                if not isinstance(answer, ShardqError):
                    answers[at] = answer
        return answers

    def _ack_each(self, receipts: Sequence[str]) -> Sequence[ShardqError | None]:
        return self._opened.ack(*receipts, partial=True)

    def _end_each(self, receipts: Sequence[str]) -> Sequence[ShardqError | None]:
        return self._opened.ack(*receipts, partial=True, redelivered=True)


def _told(answers: Sequence[R | Exception]) -> list[R | ShardqError]:
    """The answers and errors of calls; an exception that is no error of shardq is raised."""
    told: list[R | ShardqError] = []
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, ShardqError):
            raise answer
        told.append(answer)
    return told


class Served:
    """The queues of a connection, each opened once. One event loop uses it.

    Args:
        connection: The connection.
        threads: The threads in which batches and calls run.
    """

    def __init__(self, connection: Connection, threads: Threads) -> None:
        self._connection = connection
        self._threads = threads
        self._queues: dict[str, ServedQueue] = {}

    async def queue(self, name: str, *, create: bool = False, **settings: Any) -> ServedQueue:
        """A queue.

        Args:
            name: Its name.
            create: True to make it where there is none.
            settings: Settings of a queue that is made.

        Raises:
            UnknownQueue: If there is none.
        """
        found = self._queues.get(name)
        if found is not None and await found.is_dropped():
            # Another process dropped it. A queue made since under its name is another queue.
            self.forget(name)
            found = None
        if found is None or create:
            opened = await self._threads.call(
                partial(self._connection.queue, name, create=create, **settings)
            )
            found = self._queues.setdefault(name, ServedQueue(opened, self._threads))
        return found

    def forget(self, name: str) -> None:
        """Forget a queue that was dropped."""
        self._queues.pop(name, None)
