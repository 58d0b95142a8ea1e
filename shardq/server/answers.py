"""Answers of the store that are read once for all requests within a second or two.

```
 of(question) ─► asked already, and fresh or on its way? ─► that answer
                 else ask: one reading, whoever waits for it   once somebody has changed it: forget
```

The store is read once in a while for any number of viewers, and never without viewers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shardq.errors import ShardqError, StoreCorrupt, StoreError, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from shardq.clock import Clock
    from shardq.queue import Queue
    from shardq.server.hub import Served

T = TypeVar("T")

LASTS_US = 1_000_000
SHARE = 10
"""Reads of one answer take at most one tenth of the time, even slow ones."""
_SHARE_MAX_US = 1_500_000
"""But no answer of one queue is older."""
READERS = 2
"""Queues that are read at once: fewer than the threads for long calls, and so few that the event
loop still gets the interpreter's lock."""
_KEPT_MAX = 5_000
"""The most answers that are kept; the one asked for longest ago is dropped first."""


@dataclass(slots=True)
class _KeptAnswer:
    """An answer that is kept.

    Attributes:
        task: The read; it may have ended.
        begun_us: When the read began, microseconds since boot.
        took_us: How long it took; 0 while it has not ended.
        last: The answer before this one, while the read runs; None without one.
    """

    task: asyncio.Task[Any]
    begun_us: int
    took_us: int = 0
    last: _KeptAnswer | None = None


class SharedAnswers:
    """The answers of a site. One event loop uses it.

    Args:
        clock: Tells how old an answer is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[Hashable, _KeptAnswer] = {}
        self._readers = asyncio.Semaphore(READERS)

    async def of(
        self,
        question: Hashable,
        ask: Callable[[], Awaitable[T]],
        *,
        lasts_us: int = LASTS_US,
        since_us: int = 0,
    ) -> T:
        """The answer to a question.

        Args:
            question: The name of the question, with the rights of its caller.
            ask: Finds the answer.
            lasts_us: How long an answer stays valid after its read began.
            since_us: Answers whose reads began before this time since boot are too old.
        """
        kept = self._begin(question, ask, lasts_us, since_us)
        found: T = await asyncio.shield(kept.task)
        return found

    def forget(self, question: Hashable | None = None) -> None:
        """Drop the answer to a question; None: all, because something was changed."""
        if question is None:
            self._kept.clear()
        else:
            self._kept.pop(question, None)

    def forget_queue(self, name: str) -> None:
        """Drop the answers of a queue that was changed."""
        for question in [one for one in self._kept if isinstance(one, Of) and one.queue == name]:
            del self._kept[question]

    async def gather(
        self,
        served: Served,
        question: Hashable,
        read: Callable[[Queue], T],
        names: Sequence[str],
        *,
        within_s: float,
    ) -> QueueAnswers[T]:
        """The answers of queues to one question: a few seconds old, or older if time is short.

        A caller waits no longer than it asks to. An answer that is not read by then is read all the
        same, and is ready when the caller asks again.

        Args:
            served: The queues.
            question: The name of the question.
            read: Answers it for a queue; called in a thread.
            names: The queues; one that does not exist is in no part of the answers.
            within_s: How long to wait for queues that must be read.

        Raises:
            StoreError: If the store answered for no queue.
        """

        async def answer(name: str) -> T:
            async with self._readers:
                return await (await served.queue(name)).call(read, is_long=True)

        questions = {name: Of(question, name) for name in names}
        known = (self._kept.get(one) for one in questions.values())
        cost_us = sum(one.took_us for one in known if one is not None)
        lasts_us = max(2 * LASTS_US, SHARE * cost_us)
        kept = {
            name: self._begin(one, partial(answer, name), lasts_us, 0)
            for name, one in questions.items()
        }
        running = [one.task for one in kept.values() if not one.task.done()]
        if running:
            await asyncio.wait(running, timeout=within_s)
        return _found(kept)

    def _begin(
        self, question: Hashable, ask: Callable[[], Awaitable[Any]], lasts_us: int, since_us: int
    ) -> _KeptAnswer:
        """The valid answer, or the one whose read begins now."""
        now_us, before = self._clock.boot_us(), self._kept.pop(question, None)
        if before is not None and before.begun_us >= since_us:
            share_us = min(SHARE * before.took_us, _SHARE_MAX_US)
            until_us = before.begun_us + max(lasts_us, share_us)
            if not before.task.done() or now_us < until_us:
                self._kept[question] = before
                return before
        made = self._kept[question] = _KeptAnswer(asyncio.ensure_future(ask()), now_us)
        if before is not None and before.task.done():
            before.last = None
            made.last = before

        def end(task: asyncio.Task[Any]) -> None:
            made.took_us, made.last = max(self._clock.boot_us() - now_us, 1), None
            if not task.cancelled():
                # The callers that wait raise the error; maybe none waits any more.
                task.exception()

        made.task.add_done_callback(end)
        while len(self._kept) > _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return made


@dataclass(frozen=True, slots=True)
class Of:
    """A question about one queue of several."""

    question: Hashable
    queue: str


@dataclass(slots=True)
class QueueAnswers(Generic[T]):
    """The answers of queues to one question.

    Attributes:
        values: Queue -> its answer.
        failed: Queue -> why it has none.
        unread: The queues that were not read in time.
    """

    values: dict[str, T] = field(default_factory=dict)
    failed: dict[str, ShardqError] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def _found(kept: dict[str, _KeptAnswer]) -> QueueAnswers[Any]:
    found: QueueAnswers[Any] = QueueAnswers()
    for name, one in kept.items():
        known = one if one.task.done() else one.last
        if known is None:
            found.unread.append(name)
            continue
        error = known.task.exception()
        if error is None:
            found.values[name] = known.task.result()
        elif isinstance(error, ShardqError) and not isinstance(error, UnknownQueue):
            found.failed[name] = error
        elif not isinstance(error, UnknownQueue):
            raise error
    errors = [
        one
        for one in found.failed.values()
        if isinstance(one, StoreError) and not isinstance(one, StoreCorrupt)
    ]
    if errors and not found.values and len(errors) == len(found.failed):
        raise errors[0]
    return found
