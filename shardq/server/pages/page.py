"""One request for a page: its session and filters, and the calls that its handler makes."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from shardq.errors import ShardqError
from shardq.model.names import is_dead_queue
from shardq.server import api
from shardq.server.api import rights
from shardq.server.api.problem import Refused
from shardq.server.grants import Level
from shardq.server.pages.looks import Looks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping

    from shardq.server.access import PageSession
    from shardq.server.pages.looks import Look
    from shardq.server.site import Site
    from shardq.server.web import Request

log = logging.getLogger(__name__)

VIA = "pages"


@dataclass(frozen=True, slots=True)
class Template:
    """The template that a handler returns, with its values.

    Attributes:
        name: The template's file, without `.html`.
        values: The values that it shows.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Page:
    """A request for a page.

    Attributes:
        request: The request.
        site: The site that answers it.
        session: The session of the person who asks.
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
        """The page's url with its filters, which shows the same again."""
        return self.base + self.path + (f"?{urlencode(self.query)}" if self.query else "")

    @property
    def live_url(self) -> str:
        """The url that streams the page's changes."""
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
        """The latest look at all queues that the person may see."""
        return self._seen(await self.site.own(Looks).look())

    async def look_at(self, queue: str) -> Look:
        """The latest look at one queue."""
        return self._seen(await self.site.own(Looks).look_at(queue))

    async def names(self) -> list[str]:
        """The queues that the person may see, without dead-letter queues."""

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
        """The answer of a GET of `/v1`, as JSON; a fresh answer of another viewer is shared.

        Args:
            parts: The parts of its path below `/v1`, not encoded.
            query: Its query; values that are None or empty are left out.

        Raises:
            Refused: If it is refused.
        """
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        name = (parts, tuple(given.items()))
        return await self.shared(name, lambda: self.call("GET", *parts, query=given))

    async def shared(self, name: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a question, shared with viewers that ask it under the same rights."""
        return await self.site.answers.of((*self.rights, name), ask)

    def forget(self, name: Hashable) -> None:
        """Drop the answer to a shared question, because it was not whole."""
        self.site.answers.forget((*self.rights, name))

    @property
    def rights(self) -> tuple[Hashable, ...]:
        """The rights of the person; two persons with equal rights share answers."""
        caller = self.session.caller
        return caller.account, caller.levels, caller.queues

    async def call(
        self, method: str, *parts: str, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Any:
        """The answer of a call of `/v1`, as JSON; None without a body.

        Raises:
            Refused: If it is refused, with the reason.
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
            # Log and show the error, of a damaged record say: people read how to fix it.
            log.error("pages: %s %s failed: %s", method, path, error)  # noqa: TRY400 - it says all
            raise Refused(500, str(error)) from error
        assert isinstance(answer.body, bytes)  # noqa: S101 - no page follows a stream
        found = json.loads(answer.body) if answer.body else None
        if answer.status >= 400:
            raise Refused(answer.status, json.loads(answer.body)["detail"])
        return found
