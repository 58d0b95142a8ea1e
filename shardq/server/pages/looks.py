"""Looks at all queues, or at one, which all viewers of pages share.

The store is read once in some seconds for any number of viewers, and never without viewers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardq.errors import SchemaNewer, StoreCorrupt, StoreError, UnknownQueue
from shardq.observer import Observer
from shardq.server.answers import LASTS_US

if TYPE_CHECKING:
    from shardq.observer import QueueView
    from shardq.server.site import Site

_WAIT_S = 0.25
"""How long a page waits for a look before it shows the results so far."""
_SHARE = 6
"""Looks at all queues take one part of the time in this many: with 200 queues on Cassandra a second
and a half in nine, at a tenth of a core."""
_OLD_MS = 10_000
"""Results older than this are not shown while new ones are being counted."""
_CHANGED_S = 5.0
"""How long a page waits, after an action, for a look that began since."""
_MOMENT_US = 10_000
"""A timer may fire this much too early."""
_ONES_MAX = 200
"""Queues whose own observers are kept; the observer used longest ago is dropped."""


@dataclass(frozen=True, slots=True)
class Look:
    """The results of a look.

    Attributes:
        at_ms: When it began, epoch milliseconds; 0: there was none yet.
        views: Queue -> its view.
        passed_over: Queue -> why it has no view.
        unseen: How many queues were not looked at yet.
        away: Why the store does not answer; empty while it does.
        away_since_ms: When the store stopped answering, epoch milliseconds.
    """

    at_ms: int = 0
    views: dict[str, QueueView] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)
    unseen: int = 0
    away: str = ""
    away_since_ms: int = 0


class Looks:
    """The looks at the store for all pages of a server. One event loop uses it.

    Args:
        site: The site whose pages show them.

    Attributes:
        ended_us: When the last look at all queues ended, microseconds since boot.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._observer = Observer(site.connection, horizon=None, beside=False)
        self._ones: dict[str, Observer] = {}
        self._last = Look()
        self._lock = asyncio.Lock()
        self._ended = asyncio.Event()
        self._is_asked = False
        self._changed_us = 0
        self._lasts_us = LASTS_US
        self.ended_us = 0

    async def look(self) -> Look:
        """The latest look at all queues, or the results so far of the one under way."""
        self._is_asked = True
        looking = self._begin()
        is_changed = self.ended_us < self._changed_us
        await asyncio.wait([looking], timeout=_CHANGED_S if is_changed else _WAIT_S)
        if looking.done():
            return looking.result()
        now_ms = self._site.clock.now_ms()
        if now_ms - self._last.at_ms < _OLD_MS or self._last.away:
            return self._last
        views = self._observer.views()
        fresh = {name: one for name, one in views.items() if now_ms - one.at_ms < _OLD_MS}
        unseen = len(self._observer.queues) - len(fresh)
        return Look(now_ms, fresh, unseen=unseen)

    async def look_at(self, name: str) -> Look:
        """The latest look at one queue."""

        async def look() -> Look:
            at_ms = self._site.clock.now_ms()
            # One thread at a time may use an observer.
            observer = self._ones.pop(name, None)
            observer = observer or Observer(self._site.connection, [name], horizon=None)
            try:
                views = await self._site.threads.call(observer.look)
            except UnknownQueue:
                return Look(at_ms)
            except (SchemaNewer, StoreCorrupt) as error:
                return Look(at_ms, passed_over={name: str(error)})
            except StoreError as error:
                return self._away(self._last_of(observer), error, at_ms)
            finally:
                self._ones[name] = observer
                while len(self._ones) > _ONES_MAX:
                    del self._ones[next(iter(self._ones))]
            return Look(at_ms, {one.name: one for one in views})

        return await self._site.answers.of((Looks, name), look)

    def change(self) -> None:
        """Drop all results, because something was changed."""
        self._site.answers.forget()
        for observer in (self._observer, *self._ones.values()):
            observer.forget_counts()
        self._changed_us = self._site.clock.boot_us()

    async def ended(self, within_s: float) -> None:
        """Wait until a look at all queues has ended, for at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._ended.wait()

    def _begin(self) -> asyncio.Future[Look]:
        answers, since_us = self._site.answers, self._changed_us
        looked = answers.of(Looks, self._look, lasts_us=self._lasts_us, since_us=since_us)
        return asyncio.ensure_future(looked)

    async def _look(self) -> Look:
        async with self._lock:
            site, at_ms, begun_us = (
                self._site,
                self._site.clock.now_ms(),
                self._site.clock.boot_us(),
            )
            self._is_asked = False
            try:
                views = await site.threads.call(self._observer.look)
            except StoreError as error:
                self._last = self._away(self._last, error, at_ms)
            else:
                passed_over = self._observer.newer | self._observer.damaged
                self._last = Look(at_ms, {one.name: one for one in views}, passed_over)
            self.ended_us = site.clock.boot_us()
        ended, self._ended = self._ended, asyncio.Event()
        ended.set()
        self._lasts_us = max(LASTS_US, _SHARE * (self.ended_us - begun_us))
        next_s = (begun_us + self._lasts_us + _MOMENT_US - self.ended_us) / 1e6
        asyncio.get_running_loop().call_later(max(next_s, 0), self._again)
        return self._last

    def _again(self) -> None:
        """Look again, if a page asked since the last look began."""
        if self._is_asked and not self._site.leaving.is_set():
            self._begin()

    @staticmethod
    def _last_of(observer: Observer) -> Look:
        views = observer.views()
        return Look(max((one.at_ms for one in views.values()), default=0), views)

    @staticmethod
    def _away(last: Look, error: StoreError, at_ms: int) -> Look:
        """The last look, with the reason why there is no newer one."""
        return replace(last, away=str(error), away_since_ms=last.away_since_ms or at_ms)
