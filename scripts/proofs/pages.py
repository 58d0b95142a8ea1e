"""In a large store each page answers soon, and many viewers cost the store no more than one.

```
 fill ──► server ──► each page, first and again ──► 1 viewer, 50 viewers ──► a change ──► scrapes
```
"""

from __future__ import annotations

import asyncio
import json
import statistics
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

from measures.server import cpu_s, key_of

import shardq
from proofs.large import MESSAGES, fill
from proofs.promise import Promise
from proofs.serving import Server, free_port
from shardq.clock import machine_us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proofs.large import Large
    from proofs.stage import Stage

_PAGE_MS, _KEY_MS, _ID_MS = (500, 1_000), 100, 1_000
_SCRAPE_MS = (300, 1_000)
_CHANGE_S, _CHANGE_OF_MANY_S = 3.0, (3.0, 10.0)
"""The longest times until a change is shown: to one viewer; to many, on SQLite and Cassandra."""
_AGAIN = 5
_VIEWERS = 50
_VIEWED_S = 20.0
_CPU_MAX = 0.15
_READS_MAX = 1.2
"""The most reads of many viewers, in multiples of those of one; more than 1, because looks are not
in step."""
_CHANGES = 5
_WAIT_S = 60.0
_SETTLED_S = 5.0
_EVENT_BYTES_MAX = 1 << 24


class _Shown(NamedTuple):
    """A page that is measured: its name, its path, and within how many milliseconds it answers."""

    name: str
    path: str
    most_ms: int


@dataclass(slots=True)
class _Times:
    """The times of a page's answers, milliseconds."""

    first: float = 0
    again: list[float] = field(default_factory=list)


def play(stage: Stage) -> list[Promise]:
    """Fill a store, and view its pages."""
    is_cassandra = stage.place is not None and stage.place.is_cassandra
    began_us = machine_us()
    with shardq.connect(stage.url) as db:
        large = fill(db)
        watched = db.queue("watched")
        filled_s = (machine_us() - began_us) / 1e6
        print(f"{MESSAGES:,} messages were put in {filled_s:.0f} s", flush=True)
        key = key_of(stage.url)
        ports = free_port(), free_port()
        server = Server(
            stage.url, ports[0], stage.directory / "server.log", ("--metrics", str(ports[1]))
        )
        with server:
            server.wait()
            browser = _Browser(ports[0], f"sq_{key.id}_{key.secret}")
            promises = [*_scrapes(ports[1], is_cassandra)]
            promises += _pages(browser, list(_shown(large, is_cassandra)))
            promises += asyncio.run(_viewers(server, browser, ports[1], large))
            promises += asyncio.run(_changes(browser, watched, is_cassandra))
    return promises


def _shown(large: Large, is_cassandra: bool) -> Iterator[_Shown]:
    """The measured pages, of the queues with the most content."""
    most = _PAGE_MS[is_cassandra]
    full, small, recorded = large.queues[0], large.queues[-2], large.queues[-1]
    for name, path in (
        ("queues", "/"),
        ("queues by what is late", "/?order=late"),
        ("a full queue", f"/queues/{full}"),
        ("a small queue", f"/queues/{small}"),
        ("messages", f"/queues/{full}/messages"),
        ("messages, none with a text", f"/queues/{full}/messages?text=nowhere"),
        ("messages, none of a task", f"/queues/{full}/messages?task=nothing"),
        ("a message that is due soon", f"/queues/{small}/messages/{large.near}"),
        ("a message with a history", f"/queues/{recorded}/messages/{large.recorded}"),
        ("a message due in days", f"/queues/{full}/messages/{large.far}"),
        ("a dead message", f"/queues/{full}/messages/{large.dead}"),
        ("dead letters", "/dead"),
        ("dead letters of a queue", f"/dead?queue={full}"),
        ("dead letters by error", "/dead?error=refused"),
        ("dead letters, none with an error", "/dead?error=nowhere"),
        ("dead letters by text", "/dead?text=ada"),
        ("dead letters, none with a text", "/dead?text=nowhere"),
        ("workers", "/workers"),
        ("who did what", "/actions"),
        ("the next day", "/calendar"),
        ("the next day in Berlin", "/calendar?tz=Europe/Berlin"),
        ("90 days", "/calendar?span=90d"),
        ("the next day of a queue", f"/calendar?queue={full}"),
        ("schedules", "/schedules"),
        ("schedules by time", "/schedules?order=next"),
        ("schedules that are overdue", "/schedules?state=overdue"),
        ("a schedule", f"/queues/{full}/schedules/{large.schedule}"),
        ("find a text", f"/find?q={quote('bob@example.com')}&by=text"),
        ("find what there is not", "/find?q=nothing-at-all"),
    ):
        yield _Shown(name, path, most)
    yield _Shown("find a key", f"/find?q={large.key}", _KEY_MS)
    yield _Shown("find an id that is near", f"/find?q={large.near}", _ID_MS)
    yield _Shown("find an id with a history", f"/find?q={large.recorded}", _ID_MS)
    yield _Shown("find the id of a dead one", f"/find?q={large.dead}", _ID_MS)
    yield _Shown("find an id due in days", f"/find?q={large.far}", _ID_MS)


# Pages --------------------------------------------------------------------------------------------


class _Browser:
    """A viewer who has signed in with a key, and asks for one page after another."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        body = urlencode({"key": token})
        headers = {"content-type": "application/x-www-form-urlencoded"}
        with _closing(port) as connection:
            connection.request("POST", "/pages/sign-in", body, headers)
            cookie = connection.getresponse().headers["set-cookie"]
        self.headers = {"cookie": cookie.partition(";")[0], "accept": "text/html"}

    def ask(self, path: str) -> tuple[float, str]:
        """A page, and how long it took, milliseconds."""
        began_us = machine_us()
        with _closing(self.port) as connection:
            connection.request("GET", f"/pages{path}", headers=self.headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        took_ms = (machine_us() - began_us) / 1_000
        if answer.status != 200:
            raise shardq.ShardqError(f"{path} is answered with {answer.status}: {text[-300:]}")
        return took_ms, text


def _pages(browser: _Browser, shown: list[_Shown]) -> list[Promise]:
    """Ask for each page once, and then all of them in turn, so that no cache is fresh."""
    times = {one: _Times() for one in shown}
    for number in range(1 + _AGAIN):
        for one in shown:
            took_ms, _ = browser.ask(one.path)
            if number:
                times[one].again.append(took_ms)
            else:
                times[one].first = took_ms
    width = max(len(one.name) for one in shown)
    print(f"{'page':<{width}} {'first':>7} {'again':>7} {'worst':>7} {'within':>7} ms")
    for one, took in times.items():
        again, worst = statistics.median(took.again), max(took.again)
        print(
            f"{one.name:<{width}} {took.first:7,.0f} {again:7,.0f} {worst:7,.0f} {one.most_ms:7,}",
            flush=True,
        )
    slow = [
        one.name
        for one, took in times.items()
        if max(took.first, statistics.median(took.again)) > one.most_ms
    ]
    slowest = max(times, key=lambda one: times[one].first / one.most_ms)
    return [
        Promise(
            "pages",
            "each page answers soon",
            f"{len(shown)} pages, the slowest at first is {slowest.name}, "
            f"{times[slowest].first:,.0f} ms; too slow: {', '.join(slow) or 'none'}",
            not slow,
        )
    ]


def _scrapes(port: int, is_cassandra: bool) -> list[Promise]:
    """Scrape the metrics of a server that has just started, twice."""
    most_ms, took_ms = _SCRAPE_MS[is_cassandra], []
    for _ in range(1 + _AGAIN):
        began_us = machine_us()
        _scraped(port)
        took_ms.append((machine_us() - began_us) / 1_000)
    first, *again = took_ms
    return [
        Promise(
            "pages",
            "a scrape answers soon",
            f"the first in {first:,.0f} ms, others in {statistics.median(again):,.0f} ms, "
            f"{max(again):,.0f} ms at most (at most {most_ms:,})",
            max(first, statistics.median(again)) <= most_ms,
        )
    ]


def _scraped(port: int) -> dict[str, float]:
    """The metrics, by their names and labels."""
    with _closing(port) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    pairs = (line.rpartition(" ") for line in lines)
    return {name: float(value) for name, _, value in pairs}


def _closing(port: int) -> closing[HTTPConnection]:
    return closing(HTTPConnection("127.0.0.1", port, timeout=_WAIT_S))


# Viewers ------------------------------------------------------------------------------------------


class _Viewer:
    """A viewer who follows the stream of a page."""

    def __init__(self, browser: _Browser, path: str) -> None:
        self._browser = browser
        self._path = f"/pages{path}{'&' if '?' in path else '?'}live=1"
        self.html = ""
        self.events = 0
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Read the stream until its end."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._browser.port, limit=1 << 24
        )
        cookie = self._browser.headers["cookie"]
        writer.write(
            f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n".encode()
        )
        try:
            async for line in reader:
                if line.startswith(b"data: "):
                    self.html = json.loads(line[6:])
                    self.events += 1
                    self._changed.set()
        finally:
            writer.close()

    async def shows(self, text: str) -> float:
        """Wait until a text is on the page; returns the seconds that it took."""
        began_us = machine_us()
        async with asyncio.timeout(_WAIT_S):
            while text not in self.html:
                self._changed.clear()
                await self._changed.wait()
        return (machine_us() - began_us) / 1e6


class _Load(NamedTuple):
    """The cost of viewers: calls of the store a second, and the share of a core."""

    reads: float
    cpu: float
    events: int


async def _viewers(server: Server, browser: _Browser, port: int, large: Large) -> list[Promise]:
    """Let one viewer look at each of some pages, then many of them."""
    full = large.queues[0]
    paths = ["/", f"/queues/{full}", f"/queues/{full}/messages", "/dead", "/workers"]
    paths += ["/calendar", "/schedules", "/actions", "/?order=late", f"/queues/{large.queues[-1]}"]
    loads = {}
    for name, some in (("the front page", ["/"]), ("ten pages", paths)):
        one = await _load(server, browser, port, some)
        many = await _load(server, browser, port, some * (_VIEWERS // len(some)))
        loads[name] = some, one, many
    # Measure the idle server last: before the first viewer it still refreshes pages that were asked
    # for.
    await asyncio.sleep(_VIEWED_S)
    none = await _load(server, browser, port, [])
    promises = []
    for name, (some, one, many) in loads.items():
        reads = (many.reads - none.reads) / max(one.reads - none.reads, 0.1)
        promises.append(
            Promise(
                "pages",
                f"{_VIEWERS} viewers of {name}",
                f"{many.reads:,.0f} calls of the store a second, {reads:.2f} times those of "
                f"{len(some)} (at most {_READS_MAX}); {many.cpu:.1%} of a core (at most "
                f"{_CPU_MAX:.0%}), {one.cpu:.1%} of {len(some)}, {none.cpu:.1%} of none; "
                f"{many.events:,} changes were sent",
                reads <= _READS_MAX and many.cpu <= _CPU_MAX,
            )
        )
    return promises


async def _load(server: Server, browser: _Browser, port: int, paths: list[str]) -> _Load:
    """The load of the server while viewers follow pages."""
    viewers = [_Viewer(browser, path) for path in paths]
    following = [asyncio.create_task(one.follow()) for one in viewers]
    async with asyncio.timeout(_WAIT_S):
        while not all(one.events for one in viewers):
            await asyncio.sleep(0.1)
    # Wait until the pages show the results of the first looks.
    await asyncio.sleep(_SETTLED_S)
    reads, before_s, began_us = _reads(port), cpu_s(server.pid), machine_us()
    before = sum(one.events for one in viewers)
    await asyncio.sleep(_VIEWED_S)
    spent_s, cpu = (machine_us() - began_us) / 1e6, cpu_s(server.pid) - before_s
    made = _Load(
        (_reads(port) - reads) / spent_s, cpu / spent_s, sum(one.events for one in viewers) - before
    )
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    return made


def _reads(port: int) -> float:
    """How many calls of the store the server has made."""
    name = "shardq_store_seconds_count"
    return sum(count for series, count in _scraped(port).items() if series.startswith(name))


async def _changes(browser: _Browser, watched: shardq.Queue, is_cassandra: bool) -> list[Promise]:
    """Put messages, and wait until followed pages show the new number."""
    one = _Viewer(browser, f"/queues/{watched.name}")
    every = _Viewer(browser, "/?order=waiting")
    others = [_Viewer(browser, "/") for _ in range(_VIEWERS)]
    following = [asyncio.create_task(viewer.follow()) for viewer in (one, every, *others)]
    took: list[tuple[float, float]] = []
    for number in range(_CHANGES):
        # Use a number that no page shows by chance.
        count = 1_117 * (number + 1)
        added = [{"body": "x", "delay": "1h"}] * 1_117
        await asyncio.to_thread(watched.put_many, added)
        took.append(await asyncio.gather(one.shows(f"{count:,}"), every.shows(f"{count:,}")))
        await asyncio.sleep(1.7 * number)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    names = "the page of a queue", "the list of 200 queues"
    bounds = _CHANGE_S, _CHANGE_OF_MANY_S[is_cassandra]
    return [
        Promise(
            "pages",
            f"a change is on {name} soon",
            f"in {', '.join(f'{seconds:.1f}' for seconds in times)} s (at most {most_s:.0f})",
            max(times) <= most_s,
        )
        for name, times, most_s in zip(names, zip(*took, strict=True), bounds, strict=True)
    ]
