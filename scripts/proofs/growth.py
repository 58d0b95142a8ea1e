"""A server that answers many requests does not grow; it keeps no socket of vanished clients."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

from measures.asked import Connection, Key
from measures.server import key_of

import shardq
from proofs.promise import Promise
from proofs.serving import Server, free_port
from shardq.child import resident_bytes
from shardq.clock import machine_us

if TYPE_CHECKING:
    from proofs.stage import Stage

_REQUESTS = (20_000, 200_000), (100_000, 1_000_000)
_CONNECTIONS = 32
_VANISHED = (1_000, 10_000)
_AT_ONCE = 100
_GROWTH_MAX = 1.1
_SETTLED_S = 5.0
_LOST_MS_MAX = 1_000


def play(stage: Stage) -> list[Promise]:
    """Compare memory after the first tenth of the requests and at the end, then count sockets."""
    first, last = _REQUESTS[stage.long]
    vanished = _VANISHED[stage.long]
    with (
        shardq.connect(stage.url) as db,
        Server(stage.url, free_port(), stage.directory / "server.log") as server,
    ):
        db.queue("streamed")
        server.wait()
        return asyncio.run(_play(stage, server, key_of(stage.url), first, last, vanished))


async def _play(
    stage: Stage, server: Server, key: Key, first: int, last: int, vanished: int
) -> list[Promise]:
    async with Connection(server.url, key, stage.clock) as one:
        queue = str((await one.call("CreateQueue", {"QueueName": "grown"}))["QueueUrl"])
    began_us = machine_us()
    await _ask(stage, server, key, queue, first)
    early_mb = _resident_mb(server)
    await _ask(stage, server, key, queue, last - first)
    late_mb = _resident_mb(server)
    seconds = (machine_us() - began_us) / 1e6
    await asyncio.sleep(_SETTLED_S)
    sockets = _sockets(server)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(_stream(key))
    # Check that the stream began, because only then can it vanish.
    assert b" 200 " in await reader.readline()  # noqa: S101
    writer.close()
    for number in range(0, vanished, _AT_ONCE):
        await asyncio.gather(
            *(_vanish(stage, server, key, queue, n) for n in range(number, number + _AT_ONCE))
        )
    await asyncio.sleep(_SETTLED_S)
    left = _sockets(server)
    came_ms = await _came_ms(stage, server, key, queue)
    return [
        Promise(
            "growth",
            "memory stays",
            f"{first:,} requests {early_mb:.0f} MB, {last:,} {late_mb:.0f} MB: "
            f"{late_mb / early_mb:.2f} (at most {_GROWTH_MAX}); {last / seconds:,.0f}/s",
            late_mb <= early_mb * _GROWTH_MAX,
        ),
        Promise(
            "growth",
            "no connection stays",
            f"{vanished:,} clients vanished: sockets {sockets} before, {left} after; memory "
            f"{_resident_mb(server):.0f} MB",
            left <= sockets,
        ),
        Promise(
            "growth",
            "none of them is given a message",
            f"a message came to a caller that is there after {came_ms:.0f} ms, in its first "
            f"delivery (at most {_LOST_MS_MAX:,})",
            came_ms <= _LOST_MS_MAX,
        ),
    ]


async def _ask(stage: Stage, server: Server, key: Key, queue: str, requests: int) -> None:
    """Send, receive and delete, by many connections at once."""
    left = requests // 3

    async def ask() -> None:
        nonlocal left
        async with Connection(server.url, key, stage.clock) as one:
            while left > 0:
                left -= 1
                await one.call("SendMessage", {"QueueUrl": queue, "MessageBody": "x" * 200})
                asked = {"QueueUrl": queue, "WaitTimeSeconds": 20}
                [got] = (await one.call("ReceiveMessage", asked))["Messages"]
                ended = {"QueueUrl": queue, "ReceiptHandle": got["ReceiptHandle"]}
                await one.call("DeleteMessage", ended)

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONNECTIONS):
            group.create_task(ask())


async def _vanish(stage: Stage, server: Server, key: Key, queue: str, number: int) -> None:
    """Connect, and vanish: before a request, within its head or body, in a poll or in a stream."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    fields = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    asked = Connection(server.url, key, stage.clock).request("ReceiveMessage", fields)
    sent = b"", asked[:100], asked[:-10], asked, _stream(key)
    writer.write(sent[number % len(sent)])
    await asyncio.sleep(random.random() / 5)
    if number % 2:
        # Reset the connection, without the usual end.
        writer.transport.abort()
    writer.close()


def _stream(key: Key) -> bytes:
    """A request for a stream."""
    return (
        f"GET /v1/queues/streamed/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer sq_{key.id}_{key.secret}\r\n\r\n"
    ).encode()


async def _came_ms(stage: Stage, server: Server, key: Key, queue: str) -> float:
    """How long it takes until a message comes to a caller, milliseconds."""
    async with (
        Connection(server.url, key, stage.clock) as one,
        Connection(server.url, key, stage.clock) as other,
    ):
        asked = {"QueueUrl": queue, "WaitTimeSeconds": 20, "AttributeNames": ["All"]}
        waiting = asyncio.create_task(one.call("ReceiveMessage", asked))
        await asyncio.sleep(1)
        began_us = machine_us()
        await other.call("SendMessage", {"QueueUrl": queue, "MessageBody": "last"})
        [got] = (await waiting)["Messages"]
        took_ms = (machine_us() - began_us) / 1_000
        assert got["Attributes"]["ApproximateReceiveCount"] == "1"  # noqa: S101 - none had it
        return took_ms


def _resident_mb(server: Server) -> float:
    """The server's memory."""
    return (resident_bytes(server.pid or 0) or 0) / (1 << 20)


def _sockets(server: Server) -> int:
    """The number of the server's sockets: its connections and the one that it listens at."""
    files = Path(f"/proc/{server.pid}/fd")
    return sum(os.readlink(one).startswith("socket:") for one in files.iterdir())
