"""One look at all queues for all who look at pages, and answers that viewers share.

However many viewers there are, the store is read once in some seconds, and not at all without any.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardq.errors import StoreError
from shardq.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from shardq.observer import QueueView
    from shardq.server.site import Site

_FRESH_US = 1_500_000
_SHARE = 6
"""A look takes one part in so many of the time, however long it is."""
_LOOK_S = 2.0
_SHARED_US = 1_500_000
_SHARED_MAX = 500


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at all queues has found.

    Attributes:
        at_ms: When it began, epoch milliseconds; 0: there was none yet.
        views: Queue -> what is known of it.
        passed_over: Queue -> why nothing is known of it.
        unseen: How many queues were not looked at yet.
        away: Why the store does not answer; empty while it does.
        away_since_ms: Since when it does not, epoch milliseconds.
    """

    at_ms: int = 0
    views: dict[str, QueueView] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)
    unseen: int = 0
    away: str = ""
    away_since_ms: int = 0


class Looks:
    """Looks at the store for all pages of a server. It is used by one event loop.

    Args:
        site: Where requests are answered.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._observer = Observer(site.connection)
        self._last = Look()
        self._until_us = 0
        self._task: asyncio.Task[None] | None = None
        self._shared: dict[Hashable, tuple[int, asyncio.Task[Any]]] = {}

    async def look(self) -> Look:
        """What was found lately, at most some seconds ago."""
        if self._site.clock.boot_us() >= self._until_us:
            if self._task is None:
                self._task = asyncio.create_task(self._look())
                self._task.add_done_callback(self._ended)
            await asyncio.shield(self._task)
        return self._last

    def forget(self, name: Hashable | None = None) -> None:
        """Forget the answer to a question; None: all that was found, as something was changed."""
        if name is not None:
            self._shared.pop(name, None)
            return
        self._shared.clear()
        self._observer.forget_counts()
        self._until_us = 0

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        _forget_error(task)

    async def _look(self) -> None:
        site, begun_us = self._site, self._site.clock.boot_us()
        at_ms = site.clock.now_ms()
        try:
            views = await site.threads.call(lambda: self._observer.look(seconds=_LOOK_S))
        except StoreError as error:
            since_ms = self._last.away_since_ms or at_ms
            last = self._last
            self._last = Look(
                last.at_ms, last.views, last.passed_over, last.unseen, str(error), since_ms
            )
        else:
            passed_over = self._observer.newer | self._observer.damaged
            self._last = Look(
                at_ms, {one.name: one for one in views}, passed_over, self._observer.unseen
            )
        ended_us = site.clock.boot_us()
        self._until_us = ended_us + max(_FRESH_US, (_SHARE - 1) * (ended_us - begun_us))

    async def shared(self, name: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a question that several viewers ask within a second or two.

        Args:
            name: The question, with the rights under which it is asked.
            ask: Finds the answer.
        """
        now_us = self._site.clock.boot_us()
        at_us, task = self._shared.get(name, (0, None))
        if task is None or now_us >= at_us + _SHARED_US:
            if len(self._shared) >= _SHARED_MAX:
                self._shared.clear()
            task = asyncio.ensure_future(ask())
            task.add_done_callback(_forget_error)
            self._shared[name] = now_us, task
        return await asyncio.shield(task)


def _forget_error(task: asyncio.Task[Any]) -> None:
    """Note that an error is known: those who wait raise it, and maybe nobody waits any more."""
    if not task.cancelled():
        task.exception()


def looks_of(site: Site) -> Looks:
    """The looks of a site."""
    found: Looks | None = site.looks
    if found is None:
        found = site.looks = Looks(site)
    return found
