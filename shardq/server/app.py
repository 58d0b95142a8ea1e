"""The server as an ASGI 3 application: reads requests, and passes each to the API that it is for.

```
 request ── headers, body: limits ──► Request ─┬─ /v1/..          ─► api ─┐
                                               ├─ /livez, /readyz         ├─► Response ─► sent
                                               └─ all else        ─► sqs ─┘
```
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from shardq.records.meter import HTTP
from shardq.server import api, sqs
from shardq.server.client import Bodies, Client, Gone, Untaken
from shardq.server.proxies import is_trusted, seen_through
from shardq.server.site import Site, SiteOptions
from shardq.server.web import Request, Response

if TYPE_CHECKING:
    from types import ModuleType

    from shardq.connection import Connection
    from shardq.server.access import Access
    from shardq.server.client import Event, Receive, Send

log = logging.getLogger(__name__)

HEADER_BYTES_MAX = 64 << 10
_CLOSE = ("connection", "close")


class Application:
    """An ASGI 3 application, which serves the queues of a connection. Made by `application`.

    It may be mounted into another application, with or without events of its lifespan.
    """

    def __init__(self, connection: Connection, options: SiteOptions, access: Access) -> None:
        """Made by `application`."""
        self._connection = connection
        self._options = options
        self._access = access
        self._site: Site | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bodies = Bodies()

    @property
    def site(self) -> Site:
        """The site of the running event loop; opened when it is first needed."""
        loop = asyncio.get_running_loop()
        if self._site is None or self._loop is not loop:
            self._site, self._loop = Site(self._connection, self._options, self._access), loop
        return self._site

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Answer a request, or handle the start and the end of the server."""
        if scope["type"] == "http":
            client = Client(receive, send, self._bodies)
            try:
                await self._answer(scope, client)
            finally:
                client.forget_body()
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                _ = self.site
                await send({"type": "lifespan.startup.complete"})
            elif event["type"] == "lifespan.shutdown":
                await self.site.close()
                self._site = None
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, scope: Event, client: Client) -> None:
        site = self.site
        request = _request(scope, site.options)
        side = _side(request, site.options)
        begun_us = site.clock.boot_us()
        is_whole = False
        try:
            if _header_bytes(scope) > HEADER_BYTES_MAX:
                raise Untaken(431, "RequestHeaderTooLarge", "The headers exceed 64 KiB.")
            request.body = await client.body(request.headers.get("content-length"))
            is_whole = True
            answer = await client.await_while_there(self._answered(request, site, side))
        except Untaken as error:
            answer = side.refusal(request, error.status, error.code, error.text)
            if error.status == 503 and side is not api:
                answer.headers.append(("retry-after", "1"))
        except Gone:
            return
        meter = self._connection._home.meter
        if meter.is_on:
            labels = (_api(request, side), request.action, str(answer.status))
            meter.observe(HTTP, labels, (site.clock.boot_us() - begun_us,))
        headers = [("x-request-id", request.id)]
        if side is sqs:
            headers.append(("x-amzn-requestid", request.id))
        if not is_whole:
            headers.append(_CLOSE)
        try:
            await client.send(answer, headers)
        except Gone:
            log.debug("request %s: the client left before its answer", request.id)

    async def _answered(self, request: Request, site: Site, side: ModuleType) -> Response:
        """The answer; an unforeseen error is logged once, and answered with the request's id."""
        try:
            health = _HEALTH.get(request.path)
            if health is not None and request.method in {"GET", "HEAD"}:
                return await health(site)
            answer: Response = await side.answer(request, site)
        except Exception:
            log.exception("request %s: %s %s failed", request.id, request.method, request.path)
            answer = side.refusal(
                request, 500, "InternalFailure", "An error of the server; its log has the request."
            )
        return answer


async def _livez(_site: Site) -> Response:
    return Response(200, b"ok\n", [("content-type", "text/plain")])


async def _readyz(site: Site) -> Response:
    """The answer 200 if the server does not leave and its store and clock are right, else 503."""
    ready = [("content-type", "text/plain")]
    if site.leaving.is_set():
        return Response(503, b"leaving\n", ready)
    sign = await site.threads.call(site.readiness.sign)
    # Anybody may ask, so the text of the store's own error is left out.
    text = sign.text.partition(":")[0]
    return Response(200 if sign.is_well else 503, f"{text}\n".encode(), ready)


async def _localstack(site: Site) -> Response:
    if not site.options.is_dev:
        return Response(404, b"not found\n", [("content-type", "text/plain")])
    body = b'{"services": {"sqs": "running"}, "edition": "shardq", "version": "4.14.0"}'
    return Response(200, body, [("content-type", "application/json")])


_HEALTH = {"/livez": _livez, "/readyz": _readyz, "/_localstack/health": _localstack}


def _side(request: Request, options: SiteOptions) -> ModuleType:
    if options.pages is not None:
        # Jinja2 is loaded only where there are pages.
        from shardq.server import pages

        if options.pages_only or pages.is_page(request, options.pages):
            return pages
    return api if request.path == "/v1" or request.path.startswith("/v1/") else sqs


def _api(request: Request, side: ModuleType) -> str:
    """The API that a request is for, as metrics name it."""
    if request.path in _HEALTH:
        return "health"
    return "http" if side is api else "sqs" if side is sqs else "pages"


def _header_bytes(scope: Event) -> int:
    size = len(scope["query_string"])
    for name, value in scope["headers"]:
        size += len(name) + len(value)
    return size


def _request(scope: Event, options: SiteOptions) -> Request:
    """The request of an ASGI scope, without its body."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    path, root = scope["path"], scope.get("root_path", "")
    raw_path = scope.get("raw_path")
    server = scope.get("server") or ("", None)
    peer = (scope.get("client") or ("", 0))[0]
    client, scheme, host = seen_through(options.trusted, headers, peer, scope.get("scheme", "http"))
    user = ""
    if options.user_header and is_trusted(peer, options.trusted):
        user = headers.get(options.user_header.lower(), "")
    return Request(
        method=scope["method"],
        path=path.removeprefix(root) if root else path,
        raw_path=raw_path.decode("latin-1") if raw_path is not None else quote(path),
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        body=b"",
        client=client,
        scheme=scheme,
        host=host,
        id=str(uuid4()),
        is_admin=options.admin_port is None or server[1] == options.admin_port,
        user=user,
    )
