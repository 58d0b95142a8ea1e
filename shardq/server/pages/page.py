"""One request for a page: who asks, for what, and how its handler reads it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from shardq.errors import ShardqError
from shardq.model.grants import Level
from shardq.model.names import is_dead_queue
from shardq.server import api
from shardq.server.api import rights
from shardq.server.pages.looks import looks_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping

    from shardq.server.access import PageSession
    from shardq.server.pages.looks import Look
    from shardq.server.site import Site
    from shardq.server.web import Request

log = logging.getLogger(__name__)

VIA = "pages"


class NotShown(Exception):
    """A page that cannot be shown, or an action that was refused.

    Attributes:
        status: The HTTP status.
        detail: Why, in a sentence.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Template:
    """What a handler returns.

    Attributes:
        name: The template's file, without `.html`.
        values: What it shows.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Page:
    """A request for a page.

    Attributes:
        request: The request.
        site: Where it is answered.
        session: Who asks.
        base: The path of the front page, without its last slash.
        path: The path below that, as `/queues/mail`, encoded.
        place: The parameters of the path.
        query: The filters, by name.
    """

    request: Request
    site: Site
    session: PageSession
    base: str
    path: str
    place: Mapping[str, str]
    query: dict[str, str]

    @property
    def url(self) -> str:
        """The page's url with its filters: it shows the same again."""
        return self.base + self.path + (f"?{urlencode(self.query)}" if self.query else "")

    @property
    def live_url(self) -> str:
        """Where the page's changes are streamed."""
        return f"{self.url}{'&' if self.query else '?'}live=1"

    def url_of(self, *parts: str, **query: object) -> str:
        """The url of another page.

        Args:
            parts: The parts of its path, not encoded.
            query: Its filters; those that are None or empty are left out.
        """
        path = "/".join([self.base, *(quote(part, safe="") for part in parts)])
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        # A task's name may hold half of a surrogate pair.
        return path + (f"?{urlencode(given, errors='replace')}" if given else "")

    def allows(self, level: str, queue: str | None = None) -> bool:
        """True if the person has a level, given by its letter, for a queue."""
        caller = self.session.caller
        if queue is None:
            return caller.allows(Level(level))
        return rights.allows(caller, Level(level), queue, self.site)

    def may(self, level: str, queue: str | None = None) -> bool:
        """True if a button that needs a level is shown."""
        return not self.site.options.is_read_only and self.allows(level, queue)

    async def look(self) -> Look:
        """What was found lately of all queues that the person may see."""
        return self._seen(await looks_of(self.site).look())

    async def look_at(self, queue: str) -> Look:
        """What there is of one queue."""
        return self._seen(await looks_of(self.site).look_at(queue))

    async def names(self) -> list[str]:
        """The queues that the person may see, but for those that stand beside others."""

        async def read() -> list[str]:
            every = await self.site.threads.call(self.site.connection.queues)
            return [one for one in every if not is_dead_queue(one)]

        found = await self.site.answers.of("names", read)
        return [name for name in found if self.allows("g", name)]

    def _seen(self, found: Look) -> Look:
        return replace(
            found,
            views={name: one for name, one in found.views.items() if self.allows("g", name)},
            passed_over={
                name: text for name, text in found.passed_over.items() if self.allows("g", name)
            },
        )

    async def read(self, *parts: str, **query: object) -> Any:
        """The answer of a GET of `/v1`, as JSON; that of another viewer where it is fresh.

        Args:
            parts: The parts of its path below `/v1`, not encoded.
            query: Its query; what is None or empty is left out.

        Raises:
            NotShown: If it is refused.
        """
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        name = (parts, tuple(given.items()))
        return await self.shared(name, lambda: self.call("GET", *parts, query=given))

    async def shared(self, name: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a question, shared with viewers that ask it under the same rights."""
        return await self.site.answers.of((*self.rights, name), ask)

    def forget(self, name: Hashable) -> None:
        """Ask a shared question anew next time: its answer was not whole."""
        self.site.answers.forget((*self.rights, name))

    @property
    def rights(self) -> tuple[Hashable, ...]:
        """What the person may do: two with the same see the same."""
        caller = self.session.caller
        return caller.account, caller.levels, caller.queues

    async def call(
        self, method: str, *parts: str, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Any:
        """The answer of a call of `/v1`, as JSON; None without any.

        Raises:
            NotShown: If it is refused, with its reason.
        """
        path = "/".join(["/v1", *(quote(part, safe="") for part in parts)])
        asked = replace(
            self.request,
            method=method,
            path="/".join(["/v1", *parts]),
            raw_path=path,
            query=urlencode(query or {}),
            headers={"content-type": "application/json"},
            body=b"" if body is None else json.dumps(body).encode(),
        )
        try:
            answer = await api.answer(asked, self.site, self.session.caller, VIA)
        except ShardqError as error:
            # A damaged record, say: people read what is wrong, and what to do.
            log.error("pages: %s %s failed: %s", method, path, error)  # noqa: TRY400 - it says all
            raise NotShown(500, str(error)) from error
        assert isinstance(answer.body, bytes)  # noqa: S101 - no page follows a stream
        found = json.loads(answer.body) if answer.body else None
        if answer.status >= 400:
            raise NotShown(answer.status, json.loads(answer.body)["detail"])
        return found
