"""A route of the HTTP API, and a call of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

from shardq.errors import UnknownQueue
from shardq.model import names
from shardq.server.api.rights import allows, check
from shardq.server.web import Response
from shardq.tracing import carrier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from shardq.aio.queue import Queue as Dead
    from shardq.records.actions import What
    from shardq.server.access import Caller
    from shardq.server.grants import Level
    from shardq.server.hub import ServedQueue
    from shardq.server.site import Site
    from shardq.server.web import Request

Q = TypeVar("Q")
B = TypeVar("B")
H = TypeVar("H", bound="Callable[[RouteCall[Any, Any]], Awaitable[Any]]")

QUEUE = "/v1/queues/{queue}"
"""The path of a queue."""


@dataclass(slots=True)
class RouteCall(Generic[Q, B]):
    """A call of a route, with its parts read and checked.

    Attributes:
        request: The request.
        site: The site that answers it.
        route: The route that is called.
        routes: All routes of the API.
        caller: The caller.
        place: The parameters of the path.
        query: The parameters of the query.
        body: The body.
        about: The object of the call, for its record; empty: the parameters of the path.
        what: The command as which it is recorded; None: it is not recorded.
    """

    request: Request
    site: Site
    route: Route
    routes: tuple[Route, ...]
    caller: Caller
    place: Mapping[str, str]
    query: Q
    body: B
    about: str = ""
    what: What | None = field(init=False)

    def __post_init__(self) -> None:
        self.what = self.route.what

    async def queue(self, name: str | None = None) -> ServedQueue:
        """A queue.

        Args:
            name: Its name; None for the one that the path names.

        Raises:
            UnknownQueue: If there is none.
        """
        name = self.place["queue"] if name is None else name
        try:
            return await self.site.served.queue(name)
        except UnknownQueue as error:
            if names.is_dead_queue(name):
                raise
            raise UnknownQueue(
                f"there is no queue {name!r}; make it by PUT /v1/queues/{name}, or check the name."
            ) from error

    async def dead(self) -> Dead:
        """The queue in which messages of the queue that the path names are dead.

        Raises:
            AccessDenied: If that is not its own one, and the caller may not do this there.
        """
        queue = await self.queue()
        self.check_dead(queue, await queue.call(lambda opened: opened.dead.name))
        return queue.queue.dead

    def check_dead(self, queue: ServedQueue, dead: str) -> None:
        """Refuse a caller that may not do this in the dead-letter queue of a queue.

        Args:
            queue: The queue.
            dead: The name of its dead-letter queue; its own one needs no other right.

        Raises:
            AccessDenied: If it may not.
        """
        if dead != names.dead_queue(queue.name) and self.route.level is not None:
            self.check(self.route.level, dead)

    def traced(self, item: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a put, with the trace of its request unless the message has one."""
        traces = self.site.connection._home.traces
        # A current span here belongs to the application into which this one is mounted.
        trace = (traces.current if traces else {}) or carrier.asked_in(self.request.headers)
        headers = item.get("headers", {})
        return {**item, "headers": carrier.carried(trace, headers)} if trace else item

    def allows(self, queue: str) -> bool:
        """True if the caller may make such a call for a queue."""
        level = self.route.level
        return level is not None and allows(self.caller, level, queue, self.site)

    async def queues(self, level: Level | None = None) -> list[str]:
        """The queues for which the caller has a level, without dead-letter queues.

        Args:
            level: The level; None for that of the route.
        """
        wanted = level or self.route.level
        every = await self.site.threads.call(self.site.connection.queues)
        return [
            name
            for name in every
            if not names.is_dead_queue(name)
            and wanted is not None
            and allows(self.caller, wanted, name, self.site)
        ]

    def check(self, level: Level, queue: str) -> None:
        """Refuse a caller that lacks a level for a queue.

        Raises:
            AccessDenied: If it does.
        """
        check(self.caller, level, queue, self.site)


@dataclass(frozen=True, slots=True)
class Route:
    """A line of the table of routes.

    Attributes:
        method: The HTTP method.
        path: The path, with parameters in braces.
        level: The level that a key needs for it; None: it needs no key.
        handler: Carries a call out; returns a struct, or a finished `Response`.
        query: The struct of the query; None: it takes none.
        body: The type of the body; None: it takes none.
        answer: The type of the answer; None: it is not JSON, or there is none.
        status: The status of an answer.
        also: Other statuses that an answer may have.
        media: The media type of an answer that is not JSON.
        what: The command as which a call is recorded; None: calls are not recorded.
        is_admin: True if it is of the admin part of the API.
    """

    method: str
    path: str
    level: Level | None
    handler: Callable[[RouteCall[Any, Any]], Awaitable[Any]]
    query: type[Any] | None = None
    body: Any = None
    answer: Any = None
    status: int = 200
    also: tuple[int, ...] = ()
    media: str = "application/json"
    what: What | None = None
    is_admin: bool = False

    @property
    def summary(self) -> str:
        """Its purpose, in a line."""
        return self._texts[0].strip().removesuffix(".")

    @property
    def description(self) -> str:
        """The text after that line; empty without one."""
        return " ".join(self._texts[2].split())

    @property
    def _texts(self) -> tuple[str, str, str]:
        return (self.handler.__doc__ or "").partition("\n\n")

    @property
    def name(self) -> str:
        """Its name in the OpenAPI document: that of its handler."""
        return self.handler.__name__

    @property
    def parts(self) -> list[str]:
        """The parts of its path."""
        return self.path.split("/")[1:]

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters of its path."""
        return [part[1:-1] for part in self.parts if part.startswith("{")]


routes: list[Route] = []
"""The routes of all handlers that were imported."""


def route(
    method: str,
    path: str,
    level: Level | None,
    *,
    body: Any = None,
    answer: Any = None,
    **more: Any,
) -> Callable[[H], H]:
    """Make a handler the handler of a route.

    The annotations of the handler name the types of the query, the body and the answer.

    Args:
        method: The HTTP method.
        path: The path, with parameters in braces.
        level: The level that a key needs for it; None: it needs no key.
        body: The type of the body, where the annotation cannot name it.
        answer: The type of the answer, where the handler returns it as a `Response`.
        more: The other fields of `Route`.
    """

    def add(handler: H) -> H:
        hints = get_type_hints(handler, include_extras=True)
        query, taken = get_args(hints["call"])
        returned = answer or hints["return"]
        routes.append(
            Route(
                method,
                path,
                level,
                handler,
                query=None if query is NoneType else query,
                body=body or (None if taken is NoneType else taken),
                answer=None if returned in {NoneType, Response} else returned,
                **more,
            )
        )
        return handler

    return add


def place_of(wanted: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    """The parameters of a path; None if it is not the wanted one.

    Args:
        wanted: The parts of the wanted path, with parameters in braces.
        parts: As many parts, decoded.

    >>> place_of(["queues", "{queue}"], ["queues", "mail"])
    {'queue': 'mail'}
    """
    place: dict[str, str] = {}
    for name, part in zip(wanted, parts, strict=True):
        if name.startswith("{"):
            if not part:
                return None
            place[name[1:-1]] = part
        elif name != part:
            return None
    return place


def json_of(made: Any, status: int = 200) -> Response:
    """The answer whose body is a struct."""
    return Response(status, json_bytes(made), [("content-type", "application/json")])


def json_bytes(made: Any) -> bytes:
    """A struct as JSON. Half of a surrogate pair, which a header may hold, becomes its escape."""
    try:
        return msgspec.json.encode(made)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(made)).encode()
