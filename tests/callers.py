"""Callers of the HTTP API of an application, without a socket between."""

from __future__ import annotations

import asyncio
import json
from functools import partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import shardq
from shardq.clock import pause
from shardq.server import application
from shardq.server.access import Access
from shardq.server.accounts import Accounts
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from shardq.server.accounts import IssuedKey
    from shardq.server.app import Application
    from shardq.server.site import SiteOptions

TIMEOUT_S = 60
OTHER = "000000000001"
"""The id of the account `other`."""


class Got(NamedTuple):
    """An answer.

    Attributes:
        status: The HTTP status.
        headers: By names in lower case.
        body: The body.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """One request and its answer, part by part."""

    def __init__(
        self, app: Application, scope: dict[str, Any], body: bytes, *, has_more: bool = False
    ) -> None:
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.send(body, has_more=has_more)
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task = asyncio.create_task(app(scope, self._asked.get, self._send))

    def send(self, body: bytes, *, has_more: bool = False) -> None:
        """Send a part of the body."""
        self._asked.put_nowait({"type": "http.request", "body": body, "more_body": has_more})

    async def taken(self) -> None:
        """Wait until all that was sent has been read."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self._asked.empty():
                await pause(0)

    async def _send(self, event: dict[str, Any]) -> None:
        self._sent.put_nowait(event)

    async def next(self) -> dict[str, Any]:
        """The next event of the answer."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self._sent.get()

    def depart(self) -> None:
        """Let the client go away."""
        # A server says so as often as it is asked.
        for _ in range(10):
            self._asked.put_nowait({"type": "http.disconnect"})

    async def leave(self) -> None:
        """Leave before the end of the answer."""
        self.depart()
        await self.ended()

    @property
    def is_answered(self) -> bool:
        """True if a part of an answer is not taken by `next`."""
        return not self._sent.empty()

    async def ended(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self._task


class Api:
    """The HTTP API of a connection.

    Attributes:
        app: The application.
        db: The connection.
    """

    def __init__(
        self,
        db: shardq.Connection,
        *,
        root: str = "",
        access: Access | None = None,
        options: SiteOptions | None = None,
        port: int = 9324,
    ) -> None:
        self.db = db
        self.app: Application = application(db, options=options, access=access)
        self._port = port
        self._root = root

    def begin(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        has_more: bool = False,
        **scope: Any,
    ) -> Exchange:
        """Begin a request.

        Args:
            method: The HTTP method.
            path: Encoded, with the query.
            body: Bytes, or a value that is sent as JSON.
            headers: More headers.
            has_more: True if a part of the body follows.
            scope: More of the scope.
        """
        content = body if isinstance(body, bytes) else b""
        sent = {"host": "localhost", **(headers or {})}
        if body is not None and not isinstance(body, bytes):
            content = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        where, _, query = (self._root + path).partition("?")
        made = {
            "type": "http",
            "method": method,
            "path": unquote(where),
            "raw_path": where.encode(),
            "root_path": unquote(self._root),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", self._port),
            "scheme": "http",
            **scope,
        }
        return Exchange(self.app, made, content, has_more=has_more)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        **scope: Any,
    ) -> Got:
        """Make a request; returns its whole answer."""
        exchange = self.begin(method, path, body, headers, **scope)
        start = await exchange.next()
        found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        parts = b""
        while True:
            event = await exchange.next()
            parts += event["body"]
            if not event.get("more_body"):
                await exchange.ended()
                return Got(start["status"], found, parts)

    async def done(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        """Make a request that is not refused; returns its JSON, or None without any."""
        got = await self.ask(method, path, body, headers)
        assert got.status < 300, got
        return got.json if got.body else None

    async def sqs(self, action: str, token: str = "", **fields: Any) -> Got:
        """Ask for an action of SQS by JSON, with a key if one is given."""
        headers = target(action) | (bearer(token) if token else {})
        return await self.ask("POST", "/", json.dumps(fields).encode(), headers)

    def begin_sqs(self, action: str, **fields: Any) -> Exchange:
        """Begin to ask for an action of SQS by JSON."""
        return self.begin("POST", "/", json.dumps(fields).encode(), target(action))

    async def sqs_done(self, action: str, **fields: Any) -> Any:
        """Ask for an action that is not refused; returns its JSON."""
        got = await self.sqs(action, **fields)
        assert got.status == 200, got
        return got.json if got.body else {}

    @property
    def accounts(self) -> Accounts:
        """The accounts of the store."""
        return accounts_of(self.db)

    def key(self, levels: str, *queues: str, account: str = "shop", **more: Any) -> IssuedKey:
        """A new key of an account."""
        home = self.accounts
        return home.add_key(home.account(account), levels=levels, queues=queues or ("*",), **more)

    def token(self, levels: str, *queues: str, **more: Any) -> str:
        """The text of a new key."""
        return self.key(levels, *queues, **more).token


def accounts_of(db: shardq.Connection) -> Accounts:
    """The accounts of a store."""
    return Accounts(db._home.store, db._home.clock)


def closed(db: shardq.Connection) -> Access:
    """The access of a server whose store has the accounts `shop`, its own, and `other`."""
    accounts_of(db).create("shop")
    accounts_of(db).create("other", OTHER)
    return Access(db)


def bearer(token: str) -> dict[str, str]:
    """The header of a key."""
    return {"authorization": f"Bearer {token}"}


def target(action: str) -> dict[str, str]:
    """The headers of an action of SQS by JSON."""
    return {
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": f"AmazonSQS.{action}",
    }


class Events:
    """The events of a stream.

    Attributes:
        exchange: The request.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._left = ""
        self.is_ended = False

    async def next(self) -> str:
        """The next event or comment; empty at the end."""
        while "\n\n" not in self._left:
            event = await self.exchange.next()
            if event["type"] == "http.response.start":
                assert event["status"] == 200, event
                continue
            self._left += event["body"].decode()
            if not event.get("more_body"):
                self.is_ended = True
                return ""
        one, _, self._left = self._left.partition("\n\n")
        return one

    async def message(self) -> Any:
        """The next message."""
        async for one in self._all():
            if one.startswith("event: message\n"):
                return json.loads(one.partition("data: ")[2])
        raise AssertionError("the stream has ended")

    async def _all(self) -> AsyncIterator[str]:
        while one := await self.next():
            yield one


def play(
    story: Callable[[Api], Awaitable[None]],
    url: str = "sqlite://",
    *,
    access: Callable[[shardq.Connection], Access | None] = lambda _: None,
    **more: Any,
) -> None:
    """Play a story with the API of a store.

    Args:
        story: The story.
        url: The store.
        access: Makes the access of the server.
        more: More arguments of `Api`.
    """
    with shardq.connect(url) as db:
        asyncio.run(_played(Api(db, access=access(db), **more), story))


def staged(
    story: Callable[[Stage, Api], Awaitable[None]],
    *,
    access: Callable[[shardq.Connection], Access | None] = lambda _: None,
    **options: Any,
) -> None:
    """Play a story on a stage, whose clock and faults it sets.

    Args:
        story: The story.
        access: Makes the access of the server.
        options: The arguments of `Stage`.
    """
    with Stage(**options) as stage:
        db = stage.connect()
        asyncio.run(_played(Api(db, access=access(db)), partial(story, stage)))


def as_test(
    test: Callable[..., Any], play: Callable[[Callable[..., Any]], object], *own: str
) -> Callable[..., None]:
    """A test that plays a coroutine.

    Args:
        test: The coroutine function.
        play: Plays a story.
        own: The parameters that the player gives; pytest gives the others.
    """

    @wraps(test)
    def run(**given: Any) -> None:
        play(partial(test, **given))

    known = signature(test)
    others = [one for name, one in known.parameters.items() if name not in own]
    run.__signature__ = known.replace(parameters=others)  # type: ignore[attr-defined]
    return run


def played(**how: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of a story with the API of a store, by `play`."""
    return lambda test: as_test(test, lambda story: play(story, **how), "api")


def on_stage(**how: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of a story on a stage, by `staged`."""
    return lambda test: as_test(test, lambda story: staged(story, **how), "stage", "api")


async def _played(api: Api, story: Callable[[Api], Awaitable[None]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await story(api)
        await api.app.site.close()
