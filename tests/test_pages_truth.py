"""The pages tell the truth: numbers read off them, beside those of `depth`, `totals` and `audit`.

```
 put ─► first worker ─► pause ─► resume ─► killed ─► second worker ─► rest
                          │                  │                          │
 pages = exact counts ────┴──────────────────┴──────────────────────────┘ = the books, too
```
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
from callers import Api
from forked import DEVNULL, Process
from paged import Browser

import shardq
from shardq.clock import SystemClock, pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardq import Depth, Queue

WORKER = """
import sys, threading, shardq
from shardq.clock import SystemClock

_, url, seconds, holds = sys.argv
clock = SystemClock()

def work(message):
    kind = message.text
    clock.sleep(float(seconds))
    if kind == "hold" and holds == "holds":
        open(f"held-{message.id}", "x").close()
        threading.Event().wait()
    if kind == "once" and message.attempt == 1:
        raise ConnectionError("refused")
    if kind == "snooze" and message.last_error is None:
        raise shardq.Snooze("50ms", "busy")
    if kind == "never":
        raise ValueError("no such user")
    if kind == "bury":
        raise shardq.Bury("no such address")

with shardq.connect(url) as db:
    shardq.run(*[shardq.Consumer(db.queue(name), work, threads=8) for name in ("mail", "post")])
"""
KINDS = ("never", "bury", "once", "once", "snooze", "later", "cancel", "old")
"""What becomes of the first of every 40 messages; of the others nothing special."""
CLAIMED = 2
"""Messages that a caller of `receive` has throughout."""
HELD = 4
"""Messages that the first worker runs when it is killed."""
DEPTH = ("Ready", "Waiting", "In flight", "Dead")
TOTALS = (
    *("put", "delivered", "acked", "retried", "snoozed"),
    *("buried", "cancelled", "expired", "forwarded", "purged"),
)
ENDS = ("acked", "buried", "cancelled", "expired", "forwarded", "purged")
WORK_S = 24.0
"""How long all handlers run together: the kill has to come while they do."""
SECONDS = 120
PAGE_S = 8
"""How old numbers on a page may be. Of dead messages the tenth second would count them anew."""
KNOWN_US = 4_000_000
"""After this time each process knows of a pause: it reads the settings every 3 s."""
MISSED_MS = 3_000
"""A process stores its totals each 2 s: this old, they are stored, however busy the machine is."""


class Shown(NamedTuple):
    """Numbers of a queue: off its pages, or the true ones.

    Attributes:
        front: Ready, waiting, in flight and dead, in the list of queues.
        depth: The same, on its own page.
        totals: What was counted since it was made.
    """

    front: tuple[int, ...]
    depth: tuple[int, ...]
    totals: dict[str, int]


def number(text: str) -> int:
    return int(text.replace(",", ""))


class Play:
    """A play on a file, watched through its pages."""

    def __init__(self, api: Api, url: str, directory: Path, count: int) -> None:
        self.browser = Browser(api)
        self.api = api
        self.queues = [api.db.queue(name) for name in ("mail", "post")]
        self._url = url
        self._directory = directory
        self._seconds = WORK_S / count
        self.later = 0
        """Messages of the first queue that are due in two hours."""

    def worker(self, holds: str) -> Process:
        return Process(
            ["-c", WORKER, self._url, str(self._seconds), holds],
            cwd=self._directory,
            env=os.environ,
            stdout=DEVNULL,
            stderr=DEVNULL,
        )

    @property
    def held(self) -> int:
        """How many messages the first worker holds."""
        return len(list(self._directory.glob("held-*")))

    async def press(self, act: str, queue: Queue) -> None:
        """Press a button of the front page."""
        page = await self.browser.page("/")
        await self.browser.press(page.form(act, queue=queue.name))

    async def shown(self, queue: Queue) -> Shown:
        """The numbers on the pages."""
        front = await self.browser.page("/")
        own = await self.browser.page(f"/queues/{queue.name}")
        names = [one.text for one in front.all("thead")[0].all("th")]
        [row] = [one for one in front.table() if one[0].split()[0] == queue.name]
        listed = dict(zip(names, row, strict=True))
        # `Put` is a rate first, then a total.
        figures: dict[str, list[str]] = {}
        for name, value in zip(own.all("dt"), own.all("dd"), strict=True):
            figures.setdefault(name.text, []).append(value.text)
        return Shown(
            tuple(number(listed[name]) for name in DEPTH),
            tuple(number(figures[name][0]) for name in DEPTH),
            {name: number(figures[name.capitalize()][-1]) for name in TOTALS}
            | {"mended": number(figures.get("Mended", ["0"])[-1])},
        )

    def true(self, queue: Queue) -> Shown:
        """The numbers by exact counts and by the totals."""
        depth, dead = queue.depth(exact=True), queue.dead.depth(exact=True)
        assert dead.waiting == dead.in_flight == 0
        counted = (depth.ready, depth.waiting, depth.in_flight, dead.ready)
        totals = queue.totals()
        return Shown(
            counted, counted, {name: getattr(totals, name) for name in (*TOTALS, "mended")}
        )

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for a condition, which may ask the store."""
        async with asyncio.timeout(SECONDS):
            while not await asyncio.to_thread(holds):
                await pause(0.02)
        sys.stdout.write(f"{SystemClock().boot_us() / 1e6:.1f} {what}\n")

    async def agree(self, when: str) -> dict[str, Shown]:
        """Wait until the pages, which are some seconds old at most, say what is true at rest."""
        agreed: dict[str, Shown] = {}
        try:
            async with asyncio.timeout(PAGE_S):
                while len(agreed) < len(self.queues):
                    for queue in self.queues:
                        shown = await self.shown(queue)
                        if shown == (true := await asyncio.to_thread(self.true, queue)):
                            agreed[queue.name] = shown
                    await pause(0.05)
        except TimeoutError:
            assert (when, queue.name, shown) == (when, queue.name, true)
        sys.stdout.write(f"{SystemClock().boot_us() / 1e6:.1f} {when}\n")
        for name, one in agreed.items():
            sys.stdout.write(f"{when}: {name}: {dict(zip(DEPTH, one.depth, strict=True))}")
            sys.stdout.write(f" {one.totals}\n")
        return agreed


def put_all(play: Play, count: int) -> None:
    """Put messages of all kinds into both queues, those for later into the first, and cancel."""
    mail, post = play.queues
    items: dict[str, list[dict[str, object]]] = {"mail": [], "post": []}
    for place in range(count):
        kind = (*KINDS, *["plain"] * 32)[place % 40]
        name = "post" if place % 4 == 3 or kind == "cancel" else "mail"
        item: dict[str, object] = {"body": kind}
        if kind in {"later", "cancel"}:
            item["delay"] = "2h"
        if kind == "cancel":
            item["key"] = f"key-{place}"
        if kind == "old":
            item |= {"expires": "1ms", "due": "2020-01-01T00:00Z"}
        if name == "post" and kind == "plain":
            item["group"] = f"group-{place % 7}"
        items[name].append(item)
        play.later += kind == "later"
    mail.put_many(items["mail"])
    post.put_many(items["post"])
    for item in items["post"]:
        if "key" in item:
            assert post.cancel(key=item["key"])


async def played(play: Play, count: int) -> None:
    clock = SystemClock()
    play.queues[0].put_many(["plain"] * CLAIMED)
    assert len(play.queues[0].receive(CLAIMED, visibility="1h")) == CLAIMED
    play.queues[0].put_many(["hold"] * HELD)
    with play.worker("holds") as first:
        second = None
        try:
            await play.until("four are held", lambda: play.held == HELD)
            second = play.worker("works")
            await asyncio.to_thread(put_all, play, count - CLAIMED - HELD)
            await play.until("a quarter is done", lambda: left(play) <= count * 3 // 4)
            first.kill()
            killed_ms = clock.now_ms()
            first.wait()
            await play.until("half is done", lambda: left(play) <= count // 2)
            await paused(play)
            await play.until("drained", lambda: is_at_rest(play))
            second.send_signal(signal.SIGTERM)
            second.wait()
            for queue in play.queues:
                await asyncio.to_thread(queue.check_all)
            await rested(play, killed_ms)
        finally:
            for one in (first, second):
                if one is not None:
                    one.kill()
                    one.wait()


async def paused(play: Play) -> None:
    """Pause all queues on the front page, look, and resume them."""
    for queue in play.queues:
        await play.press("pause", queue)
    seen: list[tuple[int, list[Depth]]] = []

    def is_still() -> bool:
        """True if nothing has changed for `KNOWN_US`: by then each worker knows of the pause."""
        now_us, depths = SystemClock().boot_us(), [one.depth(exact=True) for one in play.queues]
        if not seen or seen[0][1] != depths:
            seen[:] = [(now_us, depths)]
        # No job of the killed worker runs: its messages are ready again, or done elsewhere.
        is_idle = [one.in_flight for one in depths] == [CLAIMED, 0]
        return is_idle and now_us - seen[0][0] >= KNOWN_US

    await play.until("nothing runs", is_still)
    shown = await play.agree("paused")
    assert (await play.browser.see("/")).count('<span class="state">paused</span>') == len(
        play.queues
    )
    for queue in play.queues:
        books = await asyncio.to_thread(lambda queue=queue: queue.audit().total)
        assert books.is_even
        ready, waiting, in_flight, dead = shown[queue.name].depth
        assert ready + waiting + in_flight == books.waiting + books.in_flight
        assert dead == books.dead
        await play.press("resume", queue)


def left(play: Play) -> int:
    """How many messages have not ended. The totals would say so up to 2 s later."""
    depths = [queue.depth(exact=True) for queue in play.queues]
    return sum(one.ready + one.waiting + one.in_flight for one in depths)


def is_at_rest(play: Play) -> bool:
    """True if nothing is left but what is due in two hours, and what a caller has."""
    depths = [queue.depth(exact=True) for queue in play.queues]
    found = [(one.ready, one.waiting, one.in_flight) for one in depths]
    return found == [(0, play.later, CLAIMED), (0, 0, 0)]


async def rested(play: Play, killed_ms: int) -> None:
    """Compare pages, counts and books at rest."""
    for name, shown in (await play.agree("at rest")).items():
        queue = play.api.db.queue(name)
        total = await asyncio.to_thread(lambda queue=queue: queue.audit().total)
        sys.stdout.write(f"at rest: {name}: {total}\n")
        assert total.is_even
        ready, waiting, in_flight, dead = shown.depth
        assert (ready, waiting, in_flight) == (0, total.waiting, total.in_flight)
        assert dead == total.dead
        assert shown.totals["put"] == total.put
        ended = {
            "acked": total.acked,
            "buried": total.dead,
            "cancelled": total.cancelled,
            "expired": total.expired,
            "forwarded": total.forwarded,
            "purged": total.purged,
        }
        missed = {one: ended[one] - shown.totals[one] for one in ENDS}
        # Only the counts that the killed worker had not stored are missing; rows make up for them.
        assert sum(missed.values()) == -shown.totals["mended"]
        assert min(missed.values()) >= 0
        last = [
            one
            for one in queue.history()
            if one.ended is not None and 0 <= killed_ms - one.ended.timestamp() * 1e3 <= MISSED_MS
        ]
        assert sum(missed.values()) <= len(last)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[shardq.Connection, str]]:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with shardq.connect(url) as db:
        given = {"history": "1d", "attempts": 2, "backoff": "50ms", "visibility": "1s"}
        db.queue("mail", bands=2, **given)
        db.queue("post", keyed=True, **given)
        yield db, url


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_pages_show_what_is_there_whatever_fails_pauses_or_is_killed(
    opened: tuple[shardq.Connection, str], tmp_path: Path, count: int
) -> None:
    db, url = opened

    async def story() -> None:
        api = Api(db)
        try:
            await played(Play(api, url, tmp_path, count), count)
        finally:
            await api.app.site.close()

    asyncio.run(story())
