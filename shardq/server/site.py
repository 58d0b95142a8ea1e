"""The site: the queues, threads and limits by which one event loop answers requests."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from shardq.aio.threads import THREADS, Threads
from shardq.clock import pause
from shardq.errors import StoreError
from shardq.health.vitals import Readiness
from shardq.records.actions import DONE, Actions
from shardq.server.access import anybody
from shardq.server.answers import SharedAnswers
from shardq.server.hub import Served
from shardq.server.web import QUICK_BYTES, TooMany

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from ipaddress import IPv4Network, IPv6Network

    from shardq.clock import Clock
    from shardq.connection import Connection
    from shardq.records.actions import What
    from shardq.server.access import Access, Caller
    from shardq.server.hub import ServedQueue
    from shardq.server.web import Request

T = TypeVar("T")

REGION = "us-east-1"
ACCOUNT = "000000000000"
POLLS_MAX = 10_000
_UNKNOWN: Final = "unknown"
"""The outcome of a command that the end of the process stopped."""
_WATCH_S = 1.0
"""How often the keys of open polls are checked; they are reread every 3 s."""


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """The choices of an operator.

    Attributes:
        region: The region whose queues have plain names.
        account: The account whose queues have plain names, 12 digits.
        is_dev: True if LocalStack's health path is answered.
        trusted: The proxies whose `X-Forwarded-*` headers are believed.
        admin_port: The only port that answers the admin part of the HTTP API; None: each does.
        polls_max: How many requests of a key may wait for messages at once.
        pages: The path below which pages for people are answered, `/pages` say, or empty for all
            paths; None: there are none.
        pages_only: True if nothing but pages is answered.
        is_read_only: True if pages change nothing.
        hidden: Patterns of names, as `*password*`, whose values no page shows.
        user_header: The header in which a trusted proxy names the user; empty: none.
        user_levels: Letters of the levels that such a user has.
    """

    region: str = REGION
    account: str = ACCOUNT
    is_dev: bool = False
    trusted: tuple[IPv4Network | IPv6Network, ...] = ()
    admin_port: int | None = None
    polls_max: int = POLLS_MAX
    pages: str | None = "/pages"
    pages_only: bool = False
    is_read_only: bool = False
    hidden: tuple[str, ...] = ()
    user_header: str = ""
    user_levels: str = "rg"


@dataclass(slots=True)
class Site:
    """The store, the queues and the threads that handlers work with. One event loop uses it.

    Attributes:
        connection: The store.
        options: The choices of the operator.
        access: Finds the callers of requests; None: each request is the operator's, who may do
            everything.
        actions: Records commands that change something.
        clock: The only reader of time.
        threads: The threads in which calls of the connection run.
        served: The queues.
        readiness: Tells whether the store and the clock are right.
        leaving: Set once the server is to end: streams and polls end then.
        answers: Answers of the store that requests share.
    """

    connection: Connection
    options: SiteOptions = field(default_factory=SiteOptions)
    access: Access | None = None
    actions: Actions = field(init=False)
    clock: Clock = field(init=False)
    threads: Threads = field(default_factory=lambda: Threads(THREADS))
    served: Served = field(init=False)
    readiness: Readiness = field(init=False)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    answers: SharedAnswers = field(init=False)
    _own: dict[Callable[[Site], Any], Any] = field(default_factory=dict)
    _waits: defaultdict[Caller | None, set[asyncio.Timeout]] = field(
        default_factory=lambda: defaultdict(set)
    )
    _polls: Counter[str] = field(default_factory=Counter)
    _watch: asyncio.Task[None] | None = None
    _commands: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.clock = self.connection._home.clock
        self.answers = SharedAnswers(self.clock)
        self.served = Served(self.connection, self.threads)
        self.readiness = Readiness(self.connection)
        self.actions = Actions(self.connection._home.store, self.clock)
        gauges = self.connection._home.meter.gauges
        gauges["shardq_polls_open"] = lambda: sum(self._polls.values())

    def own(self, kind: Callable[[Site], T]) -> T:
        """The site's one object of a kind, made when it is first asked for.

        Args:
            kind: Makes it: a class that takes the site, such as `Looks`.
        """
        found: T | None = self._own.get(kind)
        if found is None:
            found = self._own[kind] = kind(self)
        return found

    async def caller_of(self, request: Request) -> Caller:
        """The caller of a request; `Caller.check` tells whether it may do something.

        Raises:
            Refusal: If the caller is unknown or not admitted, or its key is over its quota.
            StoreError: If keys are to be reread, and the store cannot be read.
        """
        if self.access is None:
            return anybody(request)
        # The signature of a large body is computed in a thread.
        found = self.access.find(request) if len(request.body) <= QUICK_BYTES else None
        if found is None:
            found = await self.threads.call(partial(self.access.caller_of, request))
        return found

    async def check_depth(self, caller: Caller, queue: ServedQueue, count: int = 1) -> None:
        """Refuse puts into a queue that is as full as the caller's key may fill it.

        Raises:
            RequestThrottled: If the queue would hold more.
        """
        if self.access is not None and caller.depth:
            await queue.call(
                lambda opened: cast("Access", self.access).check_depth(caller, opened, count)
            )

    async def command(
        self,
        work: Awaitable[T],
        record: Callable[[str], Awaitable[object]],
        name_of: Callable[[Exception], str],
    ) -> T:
        """Carry a command out to its end and record it, even if its caller leaves meanwhile.

        Args:
            work: The command.
            record: Records it with an outcome: `done`, or the name of an error.
            name_of: The name of an error.
        """

        async def carried_out() -> T:
            outcome = _UNKNOWN
            try:
                made = await work
                outcome = DONE
            except Exception as error:
                outcome = name_of(error)
                raise
            finally:
                await record(outcome)
            return made

        task = asyncio.create_task(carried_out())
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Nobody awaits its error any more; the record has it.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise

    async def record(
        self, caller: Caller, via: str, what: What, about: str, outcome: str = DONE
    ) -> None:
        """Record a command that was carried out or failed. A failure to record it is logged.

        Args:
            caller: The caller that gave it.
            via: The way in: `sqs`, `http`.
            what: The command.
            about: Its object: a queue, or the id of a message.
            outcome: `done`, or the name of the error.
        """
        await self.threads.call(partial(self.actions.record, caller.who, via, what, about, outcome))

    async def admits(self, caller: Caller) -> bool:
        """True if an admitted caller would still be admitted: its key may have ended meanwhile."""
        return not await self.threads.call(partial(self._gone, [caller]))

    def check_polls(self, caller: Caller) -> None:
        """Refuse one more request that waits for messages.

        Raises:
            TooMany: If the key has as many waiting requests as it may have.
        """
        if self._polls[caller.key_id] >= self.options.polls_max:
            raise TooMany(f"{self.options.polls_max:,} requests of this key wait for messages.")

    async def poll(self, work: Coroutine[Any, Any, T], caller: Caller) -> T | None:
        """Await messages for a request; None at once when the server leaves, or its key ends.

        Args:
            work: Waits for messages, such as `ServedQueue.queue.receive`. It is cancelled when
                the server leaves, so messages that it has claimed are released uncounted.
            caller: The caller of the request.

        Raises:
            TooMany: If the key has as many waiting polls as it may have.
        """
        try:
            self.check_polls(caller)
        except TooMany:
            work.close()
            raise
        key = caller.key_id
        self._polls[key] += 1
        try:
            if self._watch is None:
                self._watch = asyncio.create_task(self._end_waits())
            return await self.unless_leaving(work, caller)
        finally:
            self._polls[key] -= 1
            if not self._polls[key]:
                del self._polls[key]

    async def unless_leaving(self, work: Awaitable[T], caller: Caller | None = None) -> T | None:
        """Await anything; None at once when the server leaves.

        Args:
            work: The awaitable. It is cancelled when the server leaves.
            caller: The caller of the request, if the wait is to end with its key.
        """
        wait = asyncio.timeout(0 if self.leaving.is_set() else None)
        try:
            async with wait:
                self._waits[caller].add(wait)
                return await work
        except TimeoutError:
            if wait.expired():
                return None
            raise
        finally:
            self._forget(wait, caller)

    def _forget(self, wait: asyncio.Timeout, caller: Caller | None) -> None:
        if (waits := self._waits.get(caller)) is not None:
            waits.discard(wait)
            if not waits:
                del self._waits[caller]

    def leave(self) -> None:
        """End all polls with nothing, and let streams end. Idempotent; in the event loop."""
        self.leaving.set()
        self._end(self._waits)

    def _end(self, callers: Iterable[Caller | None]) -> None:
        now = asyncio.get_running_loop().time()
        for caller in callers:
            for wait in self._waits.get(caller, ()):
                if not wait.expired():
                    wait.reschedule(now)

    def _gone(self, callers: Iterable[Caller]) -> set[Caller]:
        access = self.access
        return set() if access is None else {one for one in callers if not access.admits(one)}

    async def _end_waits(self) -> None:
        """End the polls of callers that are admitted no more, as long as there are polls."""
        try:
            while self._polls and not self.leaving.is_set():
                await pause(_WATCH_S)
                callers = [one for one in self._waits if one is not None]
                with suppress(StoreError):
                    self._end(await self.threads.call(partial(self._gone, callers)))
        finally:
            self._watch = None

    async def close(self) -> None:
        """Wait for the end of all calls that have begun. The connection stays open."""
        self.leave()
        if self._watch is not None:
            self._watch.cancel()
        if self._commands:
            await asyncio.wait(self._commands)
        await self.threads.close(lambda: None)
