"""A server for tests of moto: its store is a new one for each test, as moto's own server does."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

import shardq
from shardq.server import application
from shardq.server.site import Options

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCOUNT = "123456789012"
_IDENTITY = f"""\
<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<GetCallerIdentityResult><Arn>arn:aws:sts::{ACCOUNT}:user/moto</Arn><UserId>moto</UserId>
<Account>{ACCOUNT}</Account></GetCallerIdentityResult></GetCallerIdentityResponse>""".encode()


class Host:
    """The server, and the two requests of moto's tests that are for no SQS."""

    def __init__(self) -> None:
        self._begin()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        body = await _body(receive)
        if scope["path"] == "/moto-api/reset":
            await self._reset()
            await _answer(send, b"{}")
        elif b"Action=GetCallerIdentity" in body:
            await _answer(send, _IDENTITY)
        else:
            await self._application(scope, _again(body, receive), send)

    def _begin(self) -> None:
        self._db = shardq.connect("sqlite://")
        self._application = application(self._db, options=Options(account=ACCOUNT))

    async def _reset(self) -> None:
        before, site = self._db, self._application.site
        self._begin()
        await site.close()
        await asyncio.to_thread(before.close)


async def _body(receive: Any) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            return bytes(body)


def _again(body: bytes, receive: Any) -> Any:
    """Receives a body that was read before, then what follows."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Any:
        return first.pop() if first else await receive()

    return received


async def _answer(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def hosted() -> Iterator[str]:
    """Serve from a thread, on a free port of loopback; gives the url."""
    # By this protocol asyncio knows to send small packets at once.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(100)
    server = uvicorn.Server(uvicorn.Config(Host(), log_config=None, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
