"""Pages for people: who gets in, who may do what, and that they show texts as texts."""

from __future__ import annotations

import json
import logging
import re
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from callers import Api, Events, Got, play

import shardq
from shardq.errors import StoreUnavailable
from shardq.records.accounts import Accounts
from shardq.records.masterkey import FILE_VARIABLE, MASTER_VARIABLE
from shardq.server.access import Access
from shardq.server.pages.looks import Looks
from shardq.server.site import SiteOptions
from shardq.stores.tables import STATS
from shardq.testing import Stage

if TYPE_CHECKING:
    from shardq.records.accounts import IssuedKey

PAGES = "/pages"
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(autouse=True)
def no_master_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (MASTER_VARIABLE, FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def closed(db: shardq.Connection) -> Access:
    Accounts(db._home.store, db._home.clock).create("shop")
    return Access(db)


def home_of(api: Api) -> Accounts:
    return Accounts(api.db._home.store, api.db._home.clock)


def key_of(api: Api, levels: str, *queues: str) -> IssuedKey:
    home = home_of(api)
    return home.add_key(home.account("shop"), levels=levels, queues=queues or ("*",), label="ada")


async def cookie_of(api: Api, token: str) -> dict[str, str]:
    """The headers of somebody who has signed in."""
    body = urlencode({"key": token, "back": "/workers"}).encode()
    got = await api.ask("POST", f"{PAGES}/sign-in", body, FORM)
    assert (got.status, got.headers["location"]) == (303, f"{PAGES}/workers")
    assert "HttpOnly; SameSite=Lax" in got.headers["set-cookie"]
    return {"cookie": got.headers["set-cookie"].partition(";")[0]}


def forms_of(got: Got) -> list[dict[str, str]]:
    """The hidden fields of each form of a page."""
    return [
        dict(re.findall(r'name="([\w.]+)" value="([^"]*)"', one))
        for one in got.body.decode().split("<form ")[1:]
    ]


async def act(api: Api, name: str, headers: dict[str, str], **fields: str) -> Got:
    """Press the button of the front page that does this."""
    page = await api.ask("GET", f"{PAGES}/", headers=headers)
    [form, *_] = [one for one in forms_of(page) if one.get("act") == name]
    return await api.ask("POST", f"{PAGES}/act", urlencode(form | fields).encode(), FORM | headers)


def said(got: Got) -> str:
    return got.headers.get("set-cookie", "")


def test_a_person_signs_in_by_a_key_and_the_session_ends_with_it() -> None:
    async def story(api: Api) -> None:
        api.db.queue("mail")
        got = await api.ask("GET", f"{PAGES}/queues/mail?a=b")
        assert got.status == 302
        assert got.headers["location"] == f"{PAGES}/sign-in?back=%2Fqueues%2Fmail%3Fa%3Db"
        wrong = urlencode({"key": "sq_X_y"}).encode()
        assert (await api.ask("POST", f"{PAGES}/sign-in", wrong, FORM)).status == 401
        key = key_of(api, "all")
        ada = await cookie_of(api, key.token)
        got = await api.ask("GET", f"{PAGES}/", headers=ada)
        assert (got.status, b"mail" in got.body, b"ada" in got.body) == (200, True, True)
        assert key.secret not in got.body.decode() + ada["cookie"]
        # A cookie is no key of the APIs, whose calls have no token.
        assert (await api.ask("GET", "/v1/queues", headers=ada)).status == 401
        for changed in (
            ada["cookie"][:-1] + ("A" if ada["cookie"][-1] != "A" else "B"),
            ada["cookie"].replace(".1.", ".2."),
            "shardq=x.1.2",
            "shardq=" + "x" * 10_000,
        ):
            got = await api.ask("GET", f"{PAGES}/", headers={"cookie": changed})
            assert got.status == 302, changed
        home_of(api).rotate(key.key.id, 0)
        other = Api(api.db, access=Access(api.db))
        assert (await other.ask("GET", f"{PAGES}/", headers=ada)).status == 302
        await other.app.site.close()

    play(story, access=closed)


def test_a_form_does_nothing_without_its_token_or_from_another_origin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(api: Api) -> None:
        mail = api.db.queue("mail")
        ada = await cookie_of(api, key_of(api, "all").token)
        eve = await cookie_of(api, key_of(api, "g").token)
        page = await api.ask("GET", f"{PAGES}/", headers=ada)
        [form] = [one for one in forms_of(page) if one.get("act") == "pause"]
        for change, headers in (
            ({"token": ""}, ada),
            ({"token": "x" * 24}, ada),
            ({}, eve),
            ({}, ada | {"origin": "https://evil.example"}),
            ({}, ada | {"sec-fetch-site": "cross-site"}),
            ({}, ada | {"sec-fetch-site": "same-site"}),
            ({}, {}),
        ):
            caplog.clear()
            body = urlencode(form | change).encode()
            got = await api.ask("POST", f"{PAGES}/act", body, FORM | headers)
            assert got.status in {401, 403}, (change, headers)
            if headers:
                assert "ada" in caplog.text
        got = await api.ask("GET", f"{PAGES}/act?{urlencode(form)}", headers=ada)
        assert got.status == 404
        assert not mail.settings.paused
        got = await api.ask("POST", f"{PAGES}/act", urlencode(form).encode(), FORM | ada)
        assert (got.status, got.headers["location"]) == (303, f"{PAGES}/")
        assert "mail%20is%20paused" in said(got)
        shown = await api.ask("GET", "/v1/actions", headers=bearer(api))
        [recorded] = shown.json["actions"]
        assert (recorded["via"], recorded["what"], "ada" in recorded["who"]) == (
            "pages",
            "pause",
            True,
        )

    caplog.set_level(logging.WARNING)
    play(story, access=closed)


def bearer(api: Api) -> dict[str, str]:
    return {"authorization": f"Bearer {key_of(api, 'all').token}"}


def test_levels_and_patterns_decide_what_is_shown_and_done() -> None:
    async def story(api: Api) -> None:
        mail = api.db.queue("mail")
        api.db.queue("secrets")
        eve = await cookie_of(api, key_of(api, "g", "mail").token)
        page = await api.ask("GET", f"{PAGES}/", headers=eve)
        assert (b"mail" in page.body, b"secrets" in page.body) == (True, False)
        assert b'value="pause"' not in page.body
        assert (await api.ask("GET", f"{PAGES}/queues/secrets", headers=eve)).status == 403
        assert (await api.ask("GET", f"{PAGES}/actions", headers=eve)).status == 403
        # Her own form, with an action that she may not do.
        [form] = [one for one in forms_of(page) if one.get("act") == "sign-out"]
        body = urlencode(form | {"act": "pause", "queue": "mail"}).encode()
        got = await api.ask("POST", f"{PAGES}/act", body, FORM | eve)
        assert (got.status, "Not%20done" in said(got)) == (303, True)
        assert not mail.settings.paused

    play(story, access=closed)


def test_an_open_server_shows_its_pages_to_its_machine_and_takes_no_form_of_another_site() -> None:
    async def story(api: Api) -> None:
        mail = api.db.queue("mail")
        front = await api.ask("GET", "/", headers={"accept": "text/html"})
        assert (front.status, front.headers["location"]) == (302, f"{PAGES}/")
        # A link of another site leads here; its script reads nothing.
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        got = await api.ask("GET", f"{PAGES}/", headers=link)
        assert (got.status, got.headers["cross-origin-resource-policy"]) == (200, "same-origin")
        for headers in ({"host": "evil.example"}, {"x-forwarded-for": "192.0.2.7"}):
            assert (await api.ask("GET", f"{PAGES}/", headers=headers)).status == 403
        assert (await act(api, "pause", {"origin": "http://localhost"})).status == 303
        assert mail.settings.paused
        [form] = [
            one for one in forms_of(await api.ask("GET", f"{PAGES}/")) if one.get("act") == "resume"
        ]
        body = urlencode(form).encode()
        evil = FORM | {"origin": "https://evil.example"}
        assert (await api.ask("POST", f"{PAGES}/act", body, evil)).status == 403
        assert mail.settings.paused

    play(story)


def test_read_only_pages_change_nothing() -> None:
    async def run(api: Api) -> None:
        mail = api.db.queue("mail")
        page = await api.ask("GET", "/")
        assert b'value="pause"' not in page.body
        token = re.search(rb'name="token" value="([^"]*)"', page.body)
        form = {"act": "pause", "queue": "mail", "token": token[1].decode() if token else ""}
        got = await api.ask("POST", "/act", urlencode(form).encode(), FORM)
        assert got.status == 403
        assert not mail.settings.paused
        # Nothing but pages is answered.
        assert (await api.ask("GET", "/v1/queues")).status == 404

    play_with(SiteOptions(pages="", pages_only=True, is_read_only=True), run)


def play_with(options: SiteOptions, story: Any, **more: Any) -> None:
    """Play a story with a server of some options."""
    import asyncio

    async def played() -> None:
        with shardq.connect("sqlite://") as db:
            api = Api(db, options=options, **more)
            await story(api)
            await api.app.site.close()

    asyncio.run(played())


def test_a_trusted_proxy_names_the_user_and_nobody_else_does() -> None:
    from ipaddress import ip_network

    async def run(api: Api) -> None:
        home_of(api).create("shop")
        api.db.queue("mail")
        named = {"x-forwarded-user": "bob", "x-forwarded-for": "192.0.2.7"}
        got = await api.ask("GET", f"{PAGES}/", headers=named)
        assert (got.status, b"bob" in got.body) == (200, True)
        assert b'value="pause"' not in got.body
        assert (await api.ask("GET", "/v1/queues", headers=named)).status == 401
        exchange = api.begin("GET", f"{PAGES}/?live=1", headers=named)
        events = Events(exchange)
        while not (one := await events.next()).startswith("data: "):
            assert one, "the stream has ended"
        await exchange.leave()

    trusted = (ip_network("127.0.0.0/8"),)
    play_with(SiteOptions(trusted=trusted, user_header="X-Forwarded-User", user_levels="g"), run)

    async def untrusted(api: Api) -> None:
        home_of(api).create("shop")
        got = await api.ask("GET", f"{PAGES}/", headers={"x-forwarded-user": "bob"})
        assert got.status == 302

    play_with(SiteOptions(user_header="X-Forwarded-User"), untrusted)


def test_a_page_is_followed_and_its_changes_arrive() -> None:
    async def story(api: Api) -> None:
        mail = api.db.queue("mail")
        mail.put("a")
        exchange = api.begin("GET", f"{PAGES}/?live=1")
        events = Events(exchange)
        while not (one := await events.next()).startswith("data: "):
            pass
        assert "mail" in json.loads(one[6:])
        mail.put_many(["b", "c"])
        while ">3</a>" not in (one := await events.next()):
            pass
        await exchange.leave()

    play(story)


def test_what_a_page_does_not_know_has_a_clear_answer() -> None:
    async def story(api: Api) -> None:
        for path, status in (
            ("/queues/none", 404),
            ("/nowhere", 404),
            ("/queues/%00", 400),
            ("/static/../page.py", 404),
            ("/static/none.js", 404),
        ):
            got = await api.ask("GET", PAGES + path)
            assert got.status == status, path
            assert "Traceback" not in unescape(got.body.decode())
        got = await api.ask("GET", f"{PAGES}/sign-in?back=//evil.example")
        assert b"evil.example" not in got.body

    play(story)


def test_a_damaged_queue_says_so_on_both_pages_and_the_others_stand() -> None:
    async def story(api: Api) -> None:
        bad, mail = api.db.queue("bad"), api.db.queue("mail")
        bad.put("x")
        mail.put_many(["x"] * 7)
        place = bad._home.stats.totals.minute, "x"
        api.db._home.store.note(STATS, ("bad",), {place: "no JSON"})
        front = (await api.ask("GET", f"{PAGES}/")).body.decode()
        [problem] = re.findall(r'<p class="problem">(.*?)</p>', front)
        assert problem.startswith("bad: ")
        assert "damaged" in problem
        assert ">7</a>" in front
        own = await api.ask("GET", f"{PAGES}/queues/bad")
        assert (own.status, own.body.decode().count('<p class="problem">')) == (200, 1)
        assert ">7</a>" in (await api.ask("GET", f"{PAGES}/queues/mail")).body.decode()
        # Once it is mended, its line is as that of any other.
        api.db._home.store.erase(STATS, ("bad",), [place])
        api.app.site.own(Looks).change()
        assert 'class="problem"' not in (await api.ask("GET", f"{PAGES}/")).body.decode()

    play(story)


def test_a_store_that_is_away_is_told_with_the_time_and_what_was_known_stays() -> None:
    import asyncio

    async def run() -> None:
        with Stage() as stage:
            api = Api(stage.connect())
            api.db.queue("mail").put("a")
            assert b">1</a>" in (await api.ask("GET", f"{PAGES}/")).body
            for verb in ("notes queues", "read", "count"):
                stage.faults.fail(verb, times=1_000, error=StoreUnavailable("the disk is away"))
            stage.clock.advance(20)
            got = await api.ask("GET", f"{PAGES}/")
            assert (got.status, b"the disk is away" in got.body) == (200, True)
            assert re.search(rb"does not answer since <time [^>]*>.*ago", got.body)
            assert b">1</a>" in got.body
            stage.faults.heal()
            stage.clock.advance(20)
            assert b"away" not in (await api.ask("GET", f"{PAGES}/")).body
            await api.app.site.close()

    asyncio.run(run())
