"""A server for moto's tests: it drops all queues before each test, as moto's own server does."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from measures.asked import Key

import shardq
from shardq.server import application
from shardq.server.accounts import Accounts
from shardq.server.endpoints import EndpointAddress, Endpoints
from shardq.server.site import SiteOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCOUNT = "123456789012"
_REGION = re.compile(rb"Credential=[^/]*/[0-9]{8}/([a-z0-9-]+)/sqs/")
_IDENTITY = f"""\
<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<GetCallerIdentityResult><Arn>arn:aws:sts::{ACCOUNT}:user/moto</Arn><UserId>moto</UserId>
<Account>{ACCOUNT}</Account></GetCallerIdentityResult></GetCallerIdentityResponse>""".encode()


class Host:
    """The server, which also answers the two requests of moto's tests that are not SQS.

    Args:
        store: The url of its store.

    Attributes:
        key: The key that its clients sign with. The server has an account, so it answers no other
            requests.
    """

    def __init__(self, store: str) -> None:
        self._db = shardq.connect(store)
        home = self._db._home
        accounts = Accounts(home.store, home.clock)
        issued = accounts.add_key(accounts.create("moto", ACCOUNT), levels="all", is_derived=True)
        self.key = Key(issued.key.id, issued.secret)
        self._endpoints = Endpoints(home.store)
        self._regions: set[str] = set()
        self._application = application(self._db, options=SiteOptions(account=ACCOUNT))

    def close(self) -> None:
        """Close the store."""
        self._db.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        body = await _body(receive)
        for _, value in scope["headers"]:
            self._regions |= {one.decode() for one in _REGION.findall(value)}
        if scope["path"] == "/moto-api/reset":
            await self._reset()
            await _answer(send, b"{}")
        elif b"Action=GetCallerIdentity" in body:
            await _answer(send, _IDENTITY)
        else:
            await self._application(scope, _again(body, receive), send)

    async def _reset(self) -> None:
        before = self._application.site
        self._application = application(self._db, options=SiteOptions(account=ACCOUNT))
        await before.close()
        await asyncio.to_thread(self._drop_all)

    def _drop_all(self) -> None:
        for name in self._db.queues():
            self._db.queue(name, create=False).drop()
        for region in self._regions:
            for name, one in self._endpoints.all(ACCOUNT, region).items():
                self._endpoints.remove(EndpointAddress(ACCOUNT, region, name), one.made_ms)


async def _body(receive: Any) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            return bytes(body)


def _again(body: bytes, receive: Any) -> Any:
    """A `receive` that returns a body that was read before, then the messages after it."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Any:
        return first.pop() if first else await receive()

    return received


async def _answer(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def hosted(store: str) -> Iterator[tuple[str, Key]]:
    """Serve from a thread, on a free port of loopback; yields its url, and its clients' key."""
    host = Host(store)
    # Name the protocol, because asyncio sends small packets at once only over TCP sockets.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(100)
    server = uvicorn.Server(uvicorn.Config(host, log_config=None, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", host.key
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        host.close()
