"""The way of a request through the HTTP API: to its route, its rights, its parts, its handler."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from shardq.errors import ShardqError
from shardq.server.access import anybody
from shardq.server.api import table
from shardq.server.api.problem import REFERENCE, Problem, Refused, answer_of, headers_of, problem_of
from shardq.server.api.reading import body_of, prefix_and_parts, query_of
from shardq.server.api.rights import check
from shardq.server.api.route import RouteCall, json_of
from shardq.server.web import QUICK_BYTES, Response, TooMany

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.server.access import Caller
    from shardq.server.api.route import Route
    from shardq.server.site import Site
    from shardq.server.web import Request


async def answer(
    request: Request, site: Site, caller: Caller | None = None, via: str = "http"
) -> Response:
    """Answer a request.

    Args:
        request: The request.
        site: The site that answers it.
        caller: The caller, if it is known already; None: the request shows it.
        via: The way in, for the record of commands.

    Raises:
        ShardqError: If the server has failed, as with a damaged store.
    """
    prefix = ""
    try:
        prefix, parts = prefix_and_parts(request)
        return await _answered(request, site, parts, caller, via)
    except (Refused, ShardqError, TooMany) as error:
        problem = problem_of(error)
        problem.type = prefix + problem.type
        return answer_of(problem, headers_of(error))


def refusal(request: Request, status: int, code: str, text: str) -> Response:  # noqa: ARG001
    """The answer to a request that the server refuses, or fails at.

    Args:
        request: The request.
        status: The HTTP status.
        code: A name of the error, such as `InternalFailure`.
        text: A sentence for people.
    """
    return answer_of(
        Problem(type=f"{REFERENCE}#status-{status}", title=code, status=status, detail=text)
    )


async def _answered(
    request: Request, site: Site, parts: list[str], caller: Caller | None, via: str
) -> Response:
    routes = {
        method: found
        for method, found in table.found(parts).items()
        if request.is_admin or not found[0].is_admin
    }
    if not routes:
        raise Refused(404, f"there is no path {request.path}; {REFERENCE} lists all.")
    allowed = {*routes, "OPTIONS"} | ({"HEAD"} if "GET" in routes else set())
    allow = ("allow", ", ".join(sorted(allowed)))
    if request.method == "OPTIONS":
        return Response(204, headers=[allow])
    is_head = request.method == "HEAD"
    found = routes.get("GET" if is_head else request.method)
    if found is None:
        raise Refused(
            405, f"{request.path} has no {request.method}, only {allow[1]}.", headers=[allow]
        )
    route, place = found
    request.action = f"{route.method} {route.path}"
    made = await _called(request, site, route, place, caller, via)
    if is_head:
        made.body = b""
    return made


async def _called(
    request: Request,
    site: Site,
    route: Route,
    place: Mapping[str, str],
    caller: Caller | None,
    via: str,
) -> Response:
    """The answer of a route, after a check of the caller's right and of the call's parts."""
    if route.level is None:
        caller = anybody(request)
    else:
        caller = caller or await site.caller_of(request)
        check(caller, route.level, place.get("queue"), site)
    query = query_of(request, route.query)
    if len(request.body) <= QUICK_BYTES:
        body = body_of(request, route.body)
    else:
        body = await site.threads.call(partial(body_of, request, route.body))
    call = RouteCall(request, site, route, table.ROUTES, caller, place, query, body)
    made = await _recorded(call, via)
    if isinstance(made, Response):
        return made
    return Response(route.status) if made is None else json_of(made, route.status)


async def _recorded(call: RouteCall[Any, Any], via: str) -> Any:
    """Carry a call out, and record it with its outcome if it is a command."""
    handler = call.route.handler
    if call.what is None:
        return await handler(call)

    async def record(outcome: str) -> None:
        if call.what is not None:
            about = call.about or " ".join(call.place.values())
            await call.site.record(call.caller, via, call.what, about, outcome)

    try:
        return await call.site.command(handler(call), record, lambda error: type(error).__name__)
    finally:
        # A part of a call that failed may have been carried out.
        call.site.answers.forget_queue(call.place.get("queue", ""))
