"""Pages for people: who gets in, who may do what, and what pages say of faults."""

from __future__ import annotations

import json
import re
from html import unescape
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from callers import Api, Events, closed, on_stage, play, played
from paged import BASE, Browser, opened

from shardq.errors import StoreUnavailable
from shardq.server.access import Access
from shardq.server.pages.looks import Looks
from shardq.server.site import SiteOptions
from shardq.stores.tables import STATS

if TYPE_CHECKING:
    from shardq.testing import Stage


@played(access=closed)
async def test_a_person_signs_in_by_a_key_and_the_session_ends_with_it(api: Api) -> None:
    api.db.queue("mail")
    ada = Browser(api)
    got = await ada.ask("GET", "/queues/mail?a=b")
    assert got.status == 302
    assert got.headers["location"] == f"{BASE}/sign-in?back=%2Fqueues%2Fmail%3Fa%3Db"
    wrong = urlencode({"key": "sq_X_y"}).encode()
    assert (await ada.ask("POST", "/sign-in", wrong)).status == 401
    key = api.key("all", label="ada")
    body = urlencode({"key": key.token, "back": "/workers"}).encode()
    got = await ada.ask("POST", "/sign-in", body)
    assert (got.status, got.headers["location"]) == (303, f"{BASE}/workers")
    assert "HttpOnly; SameSite=Lax" in got.headers["set-cookie"]
    html = await ada.see("/")
    assert "mail" in html
    assert "ada" in html
    cookie = ada.cookies["shardq"]
    assert key.secret not in html + cookie
    # A cookie is no key of the APIs, whose calls have no token.
    headers = {"cookie": f"shardq={cookie}"}
    assert (await api.ask("GET", "/v1/queues", headers=headers)).status == 401
    for changed in (
        cookie[:-1] + ("A" if cookie[-1] != "A" else "B"),
        cookie.replace(".1.", ".2."),
        "x.1.2",
        "x" * 10_000,
    ):
        headers = {"cookie": f"shardq={changed}"}
        assert (await api.ask("GET", f"{BASE}/", headers=headers)).status == 302, changed
    api.accounts.rotate(key.key.id, 0)
    ada.api = Api(api.db, access=Access(api.db))
    assert (await ada.ask("GET", "/")).status == 302
    await ada.api.app.site.close()


@played(access=closed)
async def test_levels_and_patterns_decide_what_is_shown_and_done(api: Api) -> None:
    mail = api.db.queue("mail")
    api.db.queue("secrets")
    eve = Browser(api)
    await eve.sign_in("g", "mail")
    page = await eve.page("/")
    assert ("mail" in page.text, "secrets" in page.text) == (True, False)
    assert not page.has_form("pause")
    await eve.page("/queues/secrets", 403)
    await eve.page("/actions", 403)
    # Her own form, with an action that she may not do.
    page = await eve.press(page.form("sign-out") | {"act": "pause", "queue": "mail"})
    assert "Not done" in page.text
    assert not mail.settings.paused


@played()
async def test_an_open_server_shows_its_pages_to_its_machine_and_takes_no_form_of_another_site(
    api: Api,
) -> None:
    mail, browser = api.db.queue("mail"), Browser(api)
    front = await api.ask("GET", "/", headers={"accept": "text/html"})
    assert (front.status, front.headers["location"]) == (302, f"{BASE}/")
    # A link of another site leads here; its script reads nothing.
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    got = await browser.ask("GET", "/", given=link)
    assert (got.status, got.headers["cross-origin-resource-policy"]) == (200, "same-origin")
    for headers in ({"host": "evil.example"}, {"x-forwarded-for": "192.0.2.7"}):
        assert (await browser.ask("GET", "/", given=headers)).status == 403
    await browser.press((await browser.page("/")).form("pause"))
    assert mail.settings.paused
    evil = {"origin": "https://evil.example"}
    assert (await browser.act("/", "resume", evil, queue="mail")).status == 403
    assert mail.settings.paused


@played(options=SiteOptions(pages="", pages_only=True))
async def test_pages_alone_answer_nothing_else(api: Api) -> None:
    api.db.queue("mail")
    assert b"mail" in (await api.ask("GET", "/")).body
    assert (await api.ask("GET", "/v1/queues")).status == 404


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_trusted_proxy_names_the_user_and_nobody_else_does(is_trusted: bool) -> None:
    async def story(api: Api) -> None:
        api.accounts.create("shop")
        api.db.queue("mail")
        browser = Browser(api)
        named = {"x-forwarded-user": "bob", "x-forwarded-for": "192.0.2.7"}
        got = await browser.ask("GET", "/", given=named)
        if not is_trusted:
            assert got.status == 302
            return
        assert (got.status, b"bob" in got.body) == (200, True)
        assert b'value="pause"' not in got.body
        assert (await api.ask("GET", "/v1/queues", headers=named)).status == 401
        exchange = api.begin("GET", f"{BASE}/?live=1", headers=named)
        assert await changed(Events(exchange))
        await exchange.leave()

    options: dict[str, Any] = {"user_header": "X-Forwarded-User", "user_levels": "g"}
    if is_trusted:
        options["trusted"] = (ip_network("127.0.0.0/8"),)
    play(story, options=SiteOptions(**options))


async def changed(events: Events) -> str:
    """The next change of a page that is followed."""
    while not (one := await events.next()).startswith("data: "):
        assert one, "the stream has ended"
    return str(json.loads(one[6:]))


@played()
async def test_a_page_is_followed_and_its_changes_arrive(api: Api) -> None:
    mail = api.db.queue("mail")
    mail.put("a")
    exchange = api.begin("GET", f"{BASE}/?live=1")
    events = Events(exchange)
    assert "mail" in await changed(events)
    mail.put_many(["b", "c"])
    while ">3</a>" not in await changed(events):
        pass
    await exchange.leave()


@played()
async def test_what_a_page_does_not_know_has_a_clear_answer(api: Api) -> None:
    browser = Browser(api)
    for path, status in (
        ("/queues/none", 404),
        ("/nowhere", 404),
        ("/queues/%00", 400),
        ("/static/../page.py", 404),
        ("/static/none.js", 404),
    ):
        got = await browser.ask("GET", path)
        assert got.status == status, path
        assert "Traceback" not in unescape(got.body.decode())
    assert "evil.example" not in await browser.see("/sign-in?back=//evil.example")


@played()
async def test_a_damaged_queue_says_so_on_both_pages_and_the_others_stand(api: Api) -> None:
    bad, browser = api.db.queue("bad"), Browser(api)
    bad.put("x")
    api.db.queue("mail").put_many(["x"] * 7)
    place = bad._home.stats.totals.minute, "x"
    api.db._home.store.note(STATS, ("bad",), {place: "no JSON"})
    front = await browser.page("/")
    [problem] = front.all("p", **{"class": "problem"})
    assert problem.text.startswith("bad: ")
    assert "damaged" in problem.text
    assert front.table()[0][1] == "7"
    assert len((await browser.page("/queues/bad")).all("p", **{"class": "problem"})) == 1
    assert ">7</a>" in await browser.see("/queues/mail")
    # Once it is mended, its line is as that of any other.
    api.db._home.store.erase(STATS, ("bad",), [place])
    api.app.site.own(Looks).change()
    assert 'class="problem"' not in await browser.see("/")


@played()
async def test_the_page_of_a_queue_names_what_is_paused_of_it(api: Api) -> None:
    limits = {"paused": {"tasks": ["shop.<b>"], "keys": ["order-7"]}}
    api.db.queue("mail", groups={"paused": ["vip-*"]}, limits=limits)
    page = await Browser(api).page("/queues/mail")
    assert "paused group vip-*, key order-7, task shop.<b>" in page.text


@on_stage(access=opened)
async def test_a_store_that_is_away_is_told_with_the_time_and_what_was_known_stays(
    stage: Stage, api: Api
) -> None:
    browser = Browser(api)
    api.db.queue("mail").put("a")
    assert ">1</a>" in await browser.see("/")
    for verb in ("notes queues", "read", "count"):
        stage.faults.fail(verb, times=1_000, error=StoreUnavailable("the disk is away"))
    stage.clock.advance(20)
    html = await browser.see("/")
    assert "the disk is away" in html
    assert re.search(r"does not answer since <time [^>]*>.*ago", html)
    assert ">1</a>" in html
    stage.faults.heal()
    stage.clock.advance(20)
    assert "away" not in await browser.see("/")
