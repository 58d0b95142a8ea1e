"""The SQS server: requests a second and CPU for each, beside servers without a store and others.

```
 this process ── 1, 8, 32, 64 connections ──► shardq serve               the place's store
   signs each    SendMessage · ReceiveMessage ──► storeless                none: the same HTTP
   request       and DeleteMessage · batches   ──► peers, by their urls    as they are
```

All servers take turns in one run, because the machine's other work then slows all of them alike.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import shardq
from measures.asked import Connection, Key
from shardq.bench.line import Line
from shardq.child import ChildProcess
from shardq.errors import ShardqError
from shardq.server.accounts import Accounts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from measures.sizes import Sizes
    from shardq.bench.place import BenchPlace

_CONNECTIONS = 32
_OTHERS = (1, 8, 64)
_BODY = "x" * 200
_BATCH = 10
_AT = re.compile(r" at (http://\S+?)\.$")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class _Work(NamedTuple):
    """A kind of request that is measured.

    Attributes:
        what: Its name.
        unit: The unit that is counted.
        each: How many units a call does.
        of_storeless: The target, as a part of the rate of the server without a store.
        of_peers: The targets, as parts of the rates of moto, MiniStack and ElasticMQ.
        needs: How many messages a call takes out of the queue.
        call: Makes one call, on a connection.
    """

    what: str
    unit: str
    each: int
    of_storeless: float
    of_peers: tuple[float, float, float]
    needs: int
    call: Callable[[_Side, Connection], Awaitable[None]]


@dataclass
class _Side:
    """A server that is measured.

    Attributes:
        name: Its name.
        url: Its url.
        key: The key that signs requests to it.
        pid: Its process; None if its CPU cannot be measured.
        queue: The url of its queue.
        rates: The name of each kind of request -> the rates of all turns.
        cpu_us: The name of each kind of request -> the CPU of a request in each turn.
    """

    name: str
    url: str
    key: Key
    pid: int | None = None
    queue: str = ""
    rates: dict[str, list[float]] = field(default_factory=dict)
    cpu_us: dict[str, list[float]] = field(default_factory=dict)


async def _send(side: _Side, one: Connection) -> None:
    await one.call("SendMessage", {"QueueUrl": side.queue, "MessageBody": _BODY})


async def _receive(side: _Side, one: Connection) -> None:
    await _take(side, one, 1)


async def _send_batch(side: _Side, one: Connection) -> None:
    entries = [{"Id": str(number), "MessageBody": _BODY} for number in range(_BATCH)]
    await one.call("SendMessageBatch", {"QueueUrl": side.queue, "Entries": entries})


async def _receive_batch(side: _Side, one: Connection) -> None:
    await _take(side, one, _BATCH)


async def _take(side: _Side, one: Connection, most: int) -> None:
    """Receive and delete messages."""
    asked = {"QueueUrl": side.queue, "MaxNumberOfMessages": most, "WaitTimeSeconds": 20}
    found = (await one.call("ReceiveMessage", asked)).get("Messages")
    if not found:
        raise ShardqError(f"{side.name} had no message left, though so many were sent.")
    handles = [message["ReceiptHandle"] for message in found]
    if most == 1:
        await one.call("DeleteMessage", {"QueueUrl": side.queue, "ReceiptHandle": handles[0]})
        return
    entries = [{"Id": str(number), "ReceiptHandle": one} for number, one in enumerate(handles)]
    await one.call("DeleteMessageBatch", {"QueueUrl": side.queue, "Entries": entries})


_WORKS = (
    _Work("SendMessage", "requests/s", 1, 0.5, (20, 2, 0.5), 0, _send),
    _Work("ReceiveMessage(1) and DeleteMessage", "requests/s", 2, 0.4, (20, 2, 0.5), 1, _receive),
    _Work("SendMessageBatch of ten", "messages/s", _BATCH, 0.4, (50, 3, 1), 0, _send_batch),
    _Work(
        "ReceiveMessage(10) and DeleteMessageBatch",
        "messages/s",
        _BATCH,
        0.4,
        (50, 3, 1),
        _BATCH,
        _receive_batch,
    ),
)
_PEERS = ("moto", "ministack", "elasticmq")


def requests(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Requests of SQS by 32 connections, and by 1, 8 and 64."""
    with ExitStack() as stack:
        url = place.url()
        if place.is_cassandra:
            shardq.init(url)
        key = key_of(url)
        ours = stack.enter_context(_running("shardq", url, key, "shardq", "serve", "--port", "0"))
        bare = stack.enter_context(_running("storeless", url, key, "measures.storeless"))
        peers = [_Side(name, url, key) for name, url in sizes.peers]
        sides = [ours, bare, *peers]
        asyncio.run(_measure(place, sizes, sides))
        return [*_compared(ours, bare, peers), *_by_connections(ours)]


def key_of(url: str) -> Key:
    """A key with all rights, of a new account."""
    with shardq.connect(url) as db:
        accounts = Accounts(db._home.store, db._home.clock)
        issued = accounts.add_key(accounts.create("bench"), levels="all", is_derived=True)
        return Key(issued.key.id, issued.secret)


@contextmanager
def _running(name: str, url: str, key: Key, *module: str) -> Iterator[_Side]:
    """Run a server in a process of its own while this lasts."""
    child = ChildProcess(
        [sys.executable, "-m", *module],
        env=os.environ | {"SHARDQ_STORE": url, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
    )
    assert child.process.stderr is not None  # noqa: S101 - a pipe was asked for
    with child.process:
        try:
            lines = []
            for line in child.process.stderr:
                lines.append(line.decode().strip())
                if found := _AT.search(lines[-1]):
                    yield _Side(name, found[1], key, child.pid)
                    return
            raise ShardqError(f"{name} did not start: {' '.join(lines)}")
        finally:
            child.signal(signal.SIGTERM)
            child.process.stderr.close()


async def _measure(place: BenchPlace, sizes: Sizes, sides: list[_Side]) -> None:
    for side in sides:
        async with Connection(side.url, side.key, place.clock) as one:
            made = await one.call("CreateQueue", {"QueueName": "bench"})
            side.queue = str(made["QueueUrl"])
        await _warm(place, side, sizes.warm_s)
    for work in _WORKS:
        for turn in range(sizes.repetitions):
            for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                await _one(place, side, work, _CONNECTIONS, sizes.requests)
    for count in _OTHERS:
        for _ in range(sizes.repetitions):
            await _one(place, sides[0], _WORKS[0], count, sizes.requests)


async def _warm(place: BenchPlace, side: _Side, seconds: float) -> None:
    until_us = place.clock.boot_us() + round(seconds * 1e6)
    while place.clock.boot_us() < until_us:
        await _run(place, side, _WORKS[0], _CONNECTIONS, 200)
        await _run(place, side, _WORKS[1], _CONNECTIONS, 200)


async def _one(place: BenchPlace, side: _Side, work: _Work, connections: int, count: int) -> None:
    """Measure a kind of request at a server, once."""
    calls = max(count // work.each, connections)
    if work.needs:
        await _run(
            place, side, _WORKS[2], _CONNECTIONS, calls * work.needs // _BATCH + _CONNECTIONS
        )
    before_s = cpu_s(side.pid)
    took_s = await _run(place, side, work, connections, calls)
    name = f"{work.what}, {connections}"
    side.rates.setdefault(name, []).append(calls * work.each / took_s)
    if before_s:
        used_s = cpu_s(side.pid) - before_s
        side.cpu_us.setdefault(name, []).append(used_s * 1e6 / (calls * work.each))


async def _run(place: BenchPlace, side: _Side, work: _Work, connections: int, calls: int) -> float:
    """The seconds that a number of calls takes over a number of connections."""
    left = calls

    async def call(one: Connection) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await work.call(side, one)

    opened = [Connection(side.url, side.key, place.clock) for _ in range(connections)]
    try:
        for one in opened:
            await one.open()
        start_us = place.clock.boot_us()
        async with asyncio.TaskGroup() as group:
            for one in opened:
                group.create_task(call(one))
        return max(place.clock.boot_us() - start_us, 1) / 1e6
    finally:
        for one in opened:
            one.close()


def cpu_s(pid: int | None) -> float:
    """Seconds of CPU that a process has used; 0 if the system does not report it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _compared(ours: _Side, bare: _Side, peers: Sequence[_Side]) -> Iterator[Line]:
    note = f"{_CONNECTIONS} connections, signed, bodies of {len(_BODY)} bytes, one process"
    for work in _WORKS:
        name = f"{work.what}, {_CONNECTIONS}"
        cpu = ours.cpu_us.get(name)
        used = f"; {statistics.median(cpu):,.0f} us of CPU each" if cpu else ""
        yield _line(work.what, work.unit, ours, bare, name, work.of_storeless, note + used)
        for peer in peers:
            known = dict(zip(_PEERS, work.of_peers, strict=True)).get(peer.name.lower())
            yield _line(
                f"{work.what}, beside {peer.name}", work.unit, ours, peer, name, known, note
            )


def _line(
    what: str, unit: str, ours: _Side, other: _Side, name: str, target: float | None, note: str
) -> Line:
    pairs = zip(ours.rates[name], other.rates[name], strict=True)
    ratio = statistics.median(mine / its for mine, its in pairs)
    return Line(
        what,
        statistics.median(ours.rates[name]),
        unit,
        "" if target is None else f"{target:g} of {other.name}",
        None if target is None else ratio >= target,
        statistics.median(other.rates[name]),
        ratio,
        note,
    )


def _by_connections(ours: _Side) -> Iterator[Line]:
    """The lines that check that more connections never lower the rate."""
    before = 0.0
    for count in sorted((*_OTHERS, _CONNECTIONS)):
        reached = statistics.median(ours.rates[f"{_WORKS[0].what}, {count}"])
        yield Line(
            f"SendMessage, {count} connection{'s'[: count > 1]}",
            reached,
            "requests/s",
            f"{before:,.0f}" if before else "",
            reached >= before if before else None,
            note="more connections never lower the rate" if before else "",
        )
        before = max(before, reached)
