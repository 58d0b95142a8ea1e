"""Answers about all queues: each queue is read by itself, kept for some seconds, and shared.

```
 of(names, within) ─► fresh ones, at once
                      the others ─► a line ─► READERS at a time ─► kept    those not read in time: unread
```

A store has hundreds of queues, and a caller waits no longer than it wants to: what is not read
within its time is read all the same, and is there when it asks again.
"""  # noqa: E501 - a drawing

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

from shardq.errors import ShardqError, StoreError, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from shardq.queue import Queue
    from shardq.server.site import Site

T = TypeVar("T")

READERS = 2
"""Queues that are read at once: fewer than there are threads for long calls, and not so many that
they keep the event loop from the interpreter's lock."""
FRESH_US = 2_000_000
_SHARE = 6
"""Reading all queues takes one part in so many of the time, however long it is."""
_QUESTIONS_MAX = 8
"""Questions whose answers are kept; those of the one asked longest ago are forgotten first."""


@dataclass(slots=True)
class Found(Generic[T]):
    """What is known of queues.

    Attributes:
        values: Queue -> its answer.
        failed: Queue -> why it has none.
        unread: The queues that were not read in time.
    """

    values: dict[str, T] = field(default_factory=dict)
    failed: dict[str, ShardqError] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


class _Kept(NamedTuple, Generic[T]):
    """An answer, or an error; when it was read, and how long that took, in microseconds."""

    value: T | None
    error: ShardqError | None
    at_us: int
    cost_us: int


class Gathered(Generic[T]):
    """The answers of queues to one question. It is used by one event loop.

    Args:
        site: Where the queues are served.
        read: Answers for a queue; called in a thread.
    """

    def __init__(self, site: Site, read: Callable[[Queue], T]) -> None:
        self._site = site
        self._read = read
        self._kept: dict[str, _Kept[T]] = {}
        self._cost_us = 0
        self._awaited: dict[str, asyncio.Future[None]] = {}
        self._line: deque[str] = deque()
        self._changed: set[str] = set()
        self._readers: set[asyncio.Task[None]] = set()

    async def of(self, names: Sequence[str], within_s: float) -> Found[T]:
        """The answers of queues, each a few seconds old at most, or older where time is short.

        Args:
            names: The queues; one that does not exist is in no part of what is found.
            within_s: How long to wait for those that are to be read.

        Raises:
            StoreError: If the store has answered for none of them.
        """
        old = [self._begin(name) for name in names if not self._is_fresh(name)]
        if old:
            await asyncio.wait(old, timeout=within_s)
        found: Found[T] = Found()
        for name in names:
            kept = self._kept.get(name)
            if kept is None and name in self._awaited:
                found.unread.append(name)
            elif kept is not None and kept.error is not None:
                found.failed[name] = kept.error
            elif kept is not None:
                found.values[name] = cast("T", kept.value)
        errors = list(found.failed.values())
        if errors and not found.values and all(isinstance(one, StoreError) for one in errors):
            raise errors[0]
        return found

    def forget(self, name: str) -> None:
        """Forget the answer of a queue that was changed here, so that the next one knows of it."""
        kept = self._kept.pop(name, None)
        self._cost_us -= 0 if kept is None else kept.cost_us
        if name in self._awaited:
            self._changed.add(name)

    def _is_fresh(self, name: str) -> bool:
        kept = self._kept.get(name)
        lasts_us = max(FRESH_US, _SHARE * self._cost_us)
        return kept is not None and self._site.clock.boot_us() < kept.at_us + lasts_us

    def _begin(self, name: str) -> asyncio.Future[None]:
        """Let a queue be read, unless it is in line already."""
        if name not in self._awaited:
            self._awaited[name] = asyncio.get_running_loop().create_future()
            self._line.append(name)
            if len(self._readers) < READERS:
                reader = asyncio.create_task(self._read_on())
                self._readers.add(reader)
                reader.add_done_callback(self._readers.discard)
        return self._awaited[name]

    async def _read_on(self) -> None:
        while self._line:
            name = self._line.popleft()
            try:
                await self._read_one(name)
            finally:
                # Also as the loop ends, so that nobody waits for ever.
                self._changed.discard(name)
                self._awaited.pop(name).set_result(None)

    async def _read_one(self, name: str) -> None:
        clock, value, error = self._site.clock, None, None
        begun_us = clock.boot_us()
        try:
            served = await self._site.served.queue(name)
            value = await served.call(self._read, is_long=True)
            if name in self._changed:
                # It was read before the change, maybe.
                value = await served.call(self._read, is_long=True)
        except UnknownQueue:
            self.forget(name)
            return
        except ShardqError as failed:
            error = failed
        self.forget(name)
        cost_us = clock.boot_us() - begun_us
        self._kept[name] = _Kept(value, error, begun_us, cost_us)
        self._cost_us += cost_us


def forget(site: Site, queue: str) -> None:
    """Forget what was gathered of a queue that a command has changed."""
    for one in site.gathered.values():
        one.forget(queue)


def gathered(site: Site, question: Hashable, read: Callable[[Queue], T]) -> Gathered[T]:
    """The answers of a site's queues to a question.

    Args:
        site: The site.
        question: Its name.
        read: Answers it for a queue; the first one given stays.
    """
    found = site.gathered.pop(question, None) or Gathered(site, read)
    site.gathered[question] = found
    while len(site.gathered) > _QUESTIONS_MAX:
        del site.gathered[next(iter(site.gathered))]
    return cast("Gathered[T]", found)
