"""What pages cost: how often the store is read for one, and that viewers share what was read."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from callers import Api, Events, closed, on_stage, played
from paged import Browser, opened

import shardq
from shardq.clock import pause
from shardq.errors import StoreCorrupt
from shardq.server import choice
from shardq.server.answers import SharedAnswers
from shardq.server.choice import Choice
from shardq.server.pages.looks import Looks
from shardq.testing import Stage

if TYPE_CHECKING:
    import pytest

QUEUES = 40


def reads(api: Api) -> int:
    return api.db._home.store.counters["reads"]


async def html_of(events: Events) -> str:
    """The next change of a page that is followed."""
    while not (one := await events.next()).startswith("data: "):
        assert one, "the stream has ended"
    return str(json.loads(one[6:]))


def bury(queue: shardq.Queue, count: int, body: str = "x") -> None:
    """Let messages die."""
    queue.put_many([body] * count)
    while count:
        # A message is due in the millisecond after its put at the latest.
        found = queue.receive(max=1_000, wait="1s")
        queue.bury(found, "it is broken", partial=True)
        count -= len(found)


def filled(db: shardq.Connection) -> None:
    """40 queues: messages due and far, schedules, a few dead."""
    for number in range(QUEUES):
        queue = db.queue(f"q-{number:02}")
        bury(queue, 3)
        queue.put_many([{"body": "x", "delay": f"{n % 5 * n}h"} for n in range(30)])
        queue.every("1h", "x", name="digest")


@played(access=opened)
async def test_a_look_at_all_queues_costs_a_few_reads_of_each_however_far_their_messages_are(
    api: Api,
) -> None:
    filled(api.db)
    browser = Browser(api)
    await browser.page("/")
    api.app.site.own(Looks).change()
    before = reads(api)
    page = await browser.page("/")
    assert len(page.table()) == QUEUES
    # The dead and the far are counted at once, wherever they are.
    assert reads(api) - before <= 12 * QUEUES + 20


@on_stage(access=opened)
async def test_many_viewers_cost_the_store_one_look(stage: Stage, api: Api) -> None:
    filled(api.db)
    async with AsyncExitStack() as leaving:

        async def follow(path: str) -> str:
            exchange = api.begin("GET", f"/pages{path}?live=1")
            leaving.push_async_callback(exchange.leave)
            return await html_of(Events(exchange))

        # Load the page once, so that all is counted.
        await Browser(api).page("/")
        first = await follow("/")
        before = reads(api)
        others = [await follow("/") for _ in range(20)]
        # The time stands still, so that nothing has become old.
        assert reads(api) - before == 0
        assert set(others) == {first}
        assert "q-00" in first


@played(access=closed)
async def test_each_viewer_is_sent_forms_with_a_token_of_their_own(api: Api) -> None:
    api.db.queue("mail")
    ada, eve = Browser(api), Browser(api)
    await ada.sign_in("all")
    await eve.sign_in("all")
    tokens = []
    for one in (ada, eve):
        token = (await one.page("/")).form("pause")["token"]
        (cookie,) = one.cookies.items()
        headers = {"cookie": "=".join(cookie)}
        exchange = api.begin("GET", "/pages/?live=1", headers=headers)
        html = await html_of(Events(exchange))
        assert f'name="token" value="{token}"' in html
        tokens.append(token)
        await exchange.leave()
    assert tokens[0] != tokens[1]


def test_the_dead_that_died_last_are_read_without_the_thousands_before_them() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        for _ in range(20):
            bury(queue, 100)
            stage.clock.advance(60)
        counters = queue._home.store.counters
        before = counters["rows_read:list"]
        dead = queue.dead._home
        damaged: dict[str, str] = {}
        found = choice.last_died([dead], Choice(), 50, damaged=damaged)
        assert len(found.rows) == 50
        assert not damaged
        # Some to know that there are many, again and again, then the last ones.
        assert counters["rows_read:list"] - before < 1_500
        seen = [row.id for row in found.rows]
        while found.end is not None:
            found = choice.last_died([dead], Choice(), 50, after=found.end, damaged=damaged)
            seen += [row.id for row in found.rows]
        assert len(set(seen)) == len(seen) == 2_000


@played()
async def test_the_dead_of_all_queues_are_listed_in_the_order_in_which_they_died(api: Api) -> None:
    names = [f"q-{number}" for number in range(5)]
    for turn in range(3):
        for name in names:
            bury(api.db.queue(name), 1, f"{name} {turn}")
            await pause(0.002)
    found = await api.done("GET", "/v1/dead?limit=4")
    bodies = [one["message"]["body"] for one in found["dead"]]
    while "next" in found:
        path = f"/v1/dead?{urlencode({'limit': 4, 'after': found['next']})}"
        found = await api.done("GET", path)
        bodies += [one["message"]["body"] for one in found["dead"]]
    assert bodies == [f"{name} {turn}" for turn in (2, 1, 0) for name in reversed(names)]
    assert found["queues"] == names
    found = await api.done("GET", "/v1/dead?queue=q-3&text=q-3%201")
    assert [one["message"]["body"] for one in found["dead"]] == ["q-3 1"]


@played()
async def test_a_key_is_sought_in_all_queues_by_one_read_of_those_that_have_keys(api: Api) -> None:
    filled(api.db)
    api.db.queue("q-07").put("x", key="order-7", delay="90d")
    await api.done("GET", "/v1/find?q=order-8")
    before = reads(api)
    found = await api.done("GET", "/v1/find?q=order-7")
    assert [(one["queue"], one["by"]) for one in found["hits"]] == [("q-07", "key")]
    # The receivers by which some have died read until they end.
    assert reads(api) - before < 3 * QUEUES


@on_stage(access=opened, local=False, history="off")
async def test_an_id_that_is_far_is_found_by_a_search_with_progress(
    stage: Stage, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.server.api.finding.LOOKED_MAX", 10)
    # A store without an index of ids, as Cassandra is.
    queues = [api.db.queue(f"q-{number}") for number in range(4)]
    for queue in queues:
        queue.put_many([{"body": "x", "delay": f"{2 + n}h"} for n in range(50)])
    far = queues[2].put("far", delay="30d")
    browser = Browser(api)
    got = await api.ask("GET", f"/v1/queues/q-2/messages/{far.id}?near=true")
    assert got.status == 404
    page = await browser.page(f"/find?q={far.id}")
    assert not page.all("tbody")
    page = await browser.press(page.form("search"))
    while not page.all("tbody"):
        await pause(0.05)
        stage.clock.advance(2)
        page = await browser.page(f"/find?q={far.id}")
    assert [(row[0], row[1], row[3]) for row in page.table()] == [(far.id, "q-2", "live")]
    [link] = [one for one in page.all("a") if one.text == far.id]
    path = link.attributes["href"].removeprefix("/pages")
    assert "waiting" in (await browser.page(path)).text.lower()
    [search] = (await api.done("GET", "/v1/find/searches"))["searches"]
    assert (search["q"], search["queues"], search["state"]) == (far.id, 4, "done")
    assert search["looked"] > 100
    again = await api.done("GET", f"/v1/find/searches/{search['id']}")
    assert again["hits"][0]["queue"] == "q-2"


@on_stage(access=opened, local=False, history="off")
async def test_a_search_is_stopped_after_the_part_under_way(
    stage: Stage, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.server.searches._PART", 10)
    queue = api.db.queue("mail")
    queue.put_many([{"body": "x", "delay": f"{2 + n}h"} for n in range(200)])
    monkeypatch.setattr("shardq.server.api.jobs._WAIT_S", 0)
    begun = await api.done("POST", "/v1/find/searches", {"q": "nothing"})
    assert not begun["hits"]
    same = await api.done("POST", "/v1/find/searches", {"q": "nothing"})
    assert same["id"] == begun["id"]
    await api.done("POST", f"/v1/find/searches/{begun['id']}/stop")
    async with asyncio.timeout(60):
        while not (found := await api.done("GET", f"/v1/find/searches/{begun['id']}")).get("ended"):
            await pause(0.01)
    assert found["state"] == "stopped"
    assert found["looked"] < 200
    assert (await api.ask("GET", "/v1/find/searches/none")).status == 404


@on_stage()
async def test_an_answer_is_read_once_for_all_who_wait_and_anew_once_forgotten(
    stage: Stage, api: Api
) -> None:
    answers: SharedAnswers = api.app.site.answers
    asked = []

    async def ask() -> int:
        asked.append(1)
        await pause(0.01)
        return len(asked)

    found = await asyncio.gather(*(answers.of("how many", ask) for _ in range(5)))
    assert found == [1] * 5
    stage.clock.advance(0.9)
    assert await answers.of("how many", ask) == 1
    stage.clock.advance(0.2)
    assert await answers.of("how many", ask) == 2
    answers.forget("how many")
    assert await answers.of("how many", ask) == 3
    since_us = stage.clock.boot_us() + 1
    stage.clock.advance(0.1)
    assert await answers.of("how many", ask, since_us=since_us) == 4


@on_stage()
async def test_a_damaged_queue_is_named_while_others_are_still_read(stage: Stage, api: Api) -> None:
    site, goes_on = api.app.site, threading.Event()
    api.db.queue("mail"), api.db.queue("news")

    def read(queue: shardq.Queue) -> None:
        if queue.name == "mail":
            raise StoreCorrupt("bad")
        goes_on.wait(60)

    names = ["mail", "news"]
    found = None
    while found is None or "mail" in found.unread:
        found = await site.answers.gather(site.served, "x", read, names, within_s=0.01)
    goes_on.set()
    assert (found.unread, str(found.failed["mail"])) == (["news"], "bad")


@on_stage(access=opened)
async def test_what_is_not_read_in_time_is_told_as_it_was_before(stage: Stage, api: Api) -> None:
    site = api.app.site
    api.db.queue("mail"), api.db.queue("news")
    rounds = []

    def read(queue: shardq.Queue) -> str:
        rounds.append(queue.name)
        return f"{queue.name} {rounds.count(queue.name)}"

    names = ["mail", "news", "none"]
    found = await site.answers.gather(site.served, "x", read, names, within_s=60)
    assert found.values == {"mail": "mail 1", "news": "news 1"}
    assert (found.unread, found.failed) == ([], {})
    stage.clock.advance(100)
    late = await site.answers.gather(site.served, "x", read, names, within_s=0)
    assert late.values == found.values
    site.answers.forget_queue("mail")
    found = await site.answers.gather(site.served, "x", read, names, within_s=60)
    assert found.values["news"] == "news 2"
    assert found.values["mail"] >= "mail 2"
