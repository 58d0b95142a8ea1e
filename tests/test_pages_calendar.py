"""Pages of what is to come: the heat map, hot minutes, schedules and their forms."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from callers import TIMEOUT_S, Api, as_test, closed
from paged import Browser, opened

import shardq
from shardq import Consumer
from shardq.model.times import due_ms, iso, moment_of
from shardq.schedules.triggers.clocks import changes
from shardq.server.access import Access
from shardq.server.site import SiteOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from paged import Element

    from shardq.connection import Connection
    from shardq.testing import Stage

DAY_MS = 86_400_000
BERLIN = ZoneInfo("Europe/Berlin")
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</title></svg><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)//",
    "x" * 190,
    "a/b?c=d#e&f=<g>",
]


def play(
    stage: Stage,
    story: Callable[[Browser], Awaitable[None]],
    *,
    before: Callable[[Connection], object] = lambda _: None,
    make: Callable[[Connection], Access] = opened,
    **options: Any,
) -> None:
    """Play a story with somebody who looks at pages."""

    db = stage.connect()
    before(db)
    asyncio.run(told(story, Api(db, access=make(db), options=SiteOptions(**options))))


def looked(**how: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of a story on pages, by `play` with the fixture `stage`."""

    def play_on(story: Any) -> None:
        play(story.keywords["stage"], story, **how)

    return lambda test: as_test(test, play_on, "browser")


async def told(story: Callable[[Browser], Awaitable[None]], api: Api) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await story(Browser(api))
        await api.app.site.close()


def counts(page: Element) -> dict[str, int]:
    """Begin of a cell of the heat map -> what is due in it, of those with anything."""
    [picture] = page.all("svg")
    found = {}
    for cell in picture.all("rect"):
        for title in cell.all("title"):
            start, _, text = title.text.rpartition(": ")
            numbers = re.findall(r"([\d,]+) (?:message|firing)", text)
            found[start] = sum(int(one.replace(",", "")) for one in numbers)
    return found


def seed(db: Connection) -> None:
    mail, post = db.queue("mail"), db.queue("post")
    mail.put_many([{"body": "a", "delay": f"{n * n}s"} for n in range(1, 200)])
    mail.put_many([{"body": "late", "delay": "5h"} for _ in range(300)])
    mail.cron("*/20 * * * *", "a", name="digest")
    post.every("7m", "a", name="often")
    post.cron("30 2 * * *", "a", name="nightly", tz="Europe/Berlin", spread="3m")


# The load ahead -----------------------------------------------------------------------------------


@looked(before=seed)
async def test_each_minute_of_the_map_has_what_the_forecast_counts(
    browser: Browser, stage: Stage
) -> None:
    page = await browser.page("/calendar?queue=mail")
    now_ms = stage.clock.true_ms()
    expected: dict[str, int] = {}
    for minute, count in browser.api.db.queue("mail").forecast("1d"):
        far = minute.timestamp() * 1e3 - now_ms
        if count and far < DAY_MS:
            clock = f"{minute:%H:%M}"
            same_day = minute.date() == moment_of(now_ms).date()
            expected[clock if same_day else f"{minute:%a} {minute.day} {minute:%b %H:%M}"] = count
    assert counts(page) == expected
    assert sum(expected.values()) > 500


@looked(before=seed)
async def test_each_day_of_the_map_has_the_firings_of_the_schedules_in_it(
    browser: Browser, stage: Stage
) -> None:
    page = await browser.page("/calendar?queue=post&span=90d&tz=Europe/Berlin")
    now_ms = stage.clock.true_ms()
    book = browser.api.db.queue("post").schedules._home
    shown = counts(page)
    expected: dict[str, int] = {}
    for at_ms, count in book.firings(now_ms, now_ms + 91 * DAY_MS):
        here = moment_of(at_ms).astimezone(BERLIN)
        day = f"{here:%a} {here.day} {here:%b} {here:%Y}"
        expected[day] = expected.get(day, 0) + count
    assert len(shown) in {90, 91}
    assert shown == {day: expected[day] for day in shown}


@looked(before=seed, make=closed)
async def test_all_queues_together_have_what_each_has(browser: Browser, stage: Stage) -> None:
    await browser.sign_in("rg")
    together = counts(await browser.page("/calendar"))
    single: dict[str, int] = {}
    for queue in ("mail", "post"):
        for start, count in counts(await browser.page(f"/calendar?queue={queue}")).items():
            single[start] = single.get(start, 0) + count
    assert together == single
    page = await browser.page("/calendar")
    # The fullest queue first, with its numbers.
    queues = next(
        rows for n in range(4) if (rows := page.table(n)) and rows[0][0] == "mail" and rows
    )
    assert [row[0] for row in queues] == ["mail", "post"]
    assert sum(int(row[n].replace(",", "")) for row in queues for n in (1, 2)) == sum(
        together.values()
    )


@looked(before=seed, make=closed)
async def test_a_queue_that_somebody_may_not_see_is_in_no_number(
    browser: Browser, stage: Stage
) -> None:
    await browser.sign_in("rgs", "post")
    page = await browser.page("/calendar")
    assert counts(page) == counts(await browser.page("/calendar?queue=post"))
    assert "mail" not in page.text
    page = await browser.page("/calendar?queue=mail", 403)
    assert not page.all("svg")
    page = await browser.page("/schedules")
    assert {row[1] for row in page.table()} == {"post"}
    await browser.page("/schedules?queue=mail", 403)
    await browser.page("/queues/mail/schedules/digest", 403)


@looked(before=seed)
async def test_a_hot_minute_is_listed_with_its_queue(browser: Browser, stage: Stage) -> None:
    page = await browser.page("/calendar")
    hot_ms = stage.clock.true_ms() + 5 * 3_600_000
    [row] = page.table(0)
    assert row[0].startswith(iso(hot_ms - hot_ms % 60_000)[:16].replace("T", " "))
    assert (row[1], int(row[3])) == ("mail", max(counts(page).values()))
    [cell] = [one for one in page.all("rect", **{"class": "hot"}) if one.all("title")]
    assert cell.text.endswith(": 300 messages, 1 firing")
    assert page.all("a", href="/pages/calendar?queue=mail")


@looked(before=seed)
async def test_queues_that_are_not_counted_in_time_are_named_and_counted_all_the_same(
    browser: Browser, stage: Stage
) -> None:
    got = await browser.api.done("GET", "/v1/calendar?within=0s")
    assert (got["uncounted"], got["cells"]) == (["mail", "post"], [])
    got = await browser.api.done("GET", "/v1/calendar")
    assert (got["uncounted"], len(got["queues"])) == ([], 2)
    got = await browser.api.done("GET", "/v1/schedules?within=0s")
    assert (got["unread"], got["schedules"]) == (["mail", "post"], [])
    assert (await browser.api.done("GET", "/v1/schedules"))["total"] == 3


@pytest.mark.parametrize("query", ["tz=Nowhere/At_all", "queue=none", "queue=a/b"])
@looked(before=seed)
async def test_a_view_that_there_is_not_is_refused_with_its_reason(
    browser: Browser, stage: Stage, query: str
) -> None:
    got = await browser.ask("GET", f"/calendar?{query}")
    assert 400 <= got.status < 500
    assert b'role="alert"' in got.body


@looked()
async def test_a_map_of_nothing_is_a_page(browser: Browser, stage: Stage) -> None:
    for path in ("/calendar", "/calendar?span=90d", "/calendar?span=never"):
        assert "Nothing comes due" in (await browser.page(path)).text
    assert "no schedule" in (await browser.page("/schedules")).text


def test_a_damaged_queue_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    async def story(browser: Browser) -> None:
        page = await browser.page("/calendar")
        assert counts(page)
        [problem] = page.all("p", **{"class": "problem"})
        assert problem.text.startswith("mail: totals of queue ")
        got = await browser.ask("GET", "/calendar?queue=mail")
        assert got.status == 500
        assert b"are damaged" in got.body

    path = tmp_path / "jobs.db"
    with shardq.connect(f"sqlite:///{path}") as db:
        seed(db)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE stats SET totals = '{bad' WHERE queue LIKE 'mail%'")
    with shardq.connect(f"sqlite:///{path}") as db:
        asyncio.run(told(story, Api(db, access=opened(db))))


# Schedules ----------------------------------------------------------------------------------------


def names_of(page: Element) -> list[str]:
    return [row[0] for row in page.table()] if page.all("table") else []


def test_schedules_of_all_queues_are_listed_filtered_and_ordered(stage: Stage) -> None:
    def before(db: Connection) -> None:
        seed(db)
        db.queue("post").schedules["often"].pause()

    async def story(browser: Browser) -> None:
        page = await browser.page("/schedules")
        assert [row[:2] for row in page.table()] == [
            ["digest", "mail"],
            ["nightly", "post"],
            ["often", "post"],
        ]
        for row in page.table():
            one = browser.api.db.queue(row[1]).schedules[row[0]]
            assert row[2] == str(one.trigger)
            assert row[7] == one.state
            told = "-" if one.next is None else iso(due_ms(one.next)).replace("T", " ")
            assert row[3].endswith(told)
        for query, names in (
            ("queue=post", ["nightly", "often"]),
            ("text=ig", ["digest", "nightly"]),
            ("state=paused", ["often"]),
            ("state=failing", []),
            ("order=next", ["digest", "nightly", "often"]),
            ("queue=post&text=night&state=waiting", ["nightly"]),
            ("text=nothing", []),
            ("state=nonsense", ["digest", "nightly", "often"]),
        ):
            assert names_of(await browser.page(f"/schedules?{query}")) == names, query

    play(stage, story, before=before)


def test_a_list_of_many_schedules_has_pages(stage: Stage) -> None:
    def before(db: Connection) -> None:
        queue = db.queue("mail")
        for number in range(105):
            queue.every("1h", "a", name=f"every {number:03}")

    async def story(browser: Browser) -> None:
        page = await browser.page("/schedules?text=every")
        assert "105 schedules" in page.text
        [more] = [one for one in page.all("a") if one.text == "Next page"]
        rest = await browser.page(more.attributes["href"].removeprefix("/pages"))
        assert names_of(page) + names_of(rest) == [f"every {n:03}" for n in range(105)]
        assert [one.text for one in rest.all("a")].count("First page") == 1

    play(stage, story, before=before)


@looked(before=seed)
async def test_an_overdue_schedule_says_so(browser: Browser, stage: Stage) -> None:
    stage.clock.advance(9 * 60)
    page = await browser.page("/schedules?state=overdue")
    shown = {row[0]: row[7] for row in page.table()}
    assert shown["often"] == "overdue"
    assert "nightly" not in shown


@looked(before=seed)
async def test_the_next_times_are_those_of_the_preview_with_changes_of_the_clocks(
    browser: Browser, stage: Stage
) -> None:
    now_ms = stage.clock.true_ms()
    change = next(
        one
        for one in changes(BERLIN, now_ms, now_ms + 500 * DAY_MS)
        if one.after_ms > one.before_ms
    )
    stage.clock.advance((change.at_ms - now_ms) / 1_000 - 3 * 86_400)
    page = await browser.page("/queues/post/schedules/nightly")
    found = browser.api.db.queue("post").schedules["nightly"].preview(20)
    rows = page.table(0)
    assert len(rows) == 20
    for row, one in zip(rows, found, strict=True):
        local = one.time.astimezone(BERLIN)
        offset = f"{local:%z}"
        assert row[0] == f"{local:%a %Y-%m-%d %H:%M} {offset[:3]}:{offset[3:]}"
        assert row[1].endswith(iso(due_ms(one.time)).replace("T", " "))
        assert row[2] == f"{one.due.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        assert row[3] == one.why
    assert any("02:30 does not exist" in row[3] for row in rows)


def test_the_last_firings_have_the_outcomes_that_the_history_records(stage: Stage) -> None:
    def before(db: Connection) -> None:
        queue = db.queue("mail")
        queue.every("10m", "a", name="often")
        stage.drive(Consumer(queue, lambda _: None), seconds=35 * 60)
        queue.schedules["often"].run()
        # No consumer fires these.
        stage.clock.advance(30 * 60)

    async def story(browser: Browser) -> None:
        queue = browser.api.db.queue("mail")
        page = await browser.page("/queues/mail/schedules/often")
        rows = page.table(1)
        records = {one.id.partition("@")[2]: one.fate for one in queue.history()}
        assert sorted(records.values(), key=str) == [None, "acked", "acked", "acked"]
        shown = {}
        for row in rows:
            at = re.findall(r"\d{4}-\S+ \S+Z", row[0])[0].replace(" ", "T")
            shown[at] = row[1]
        recorded = {at: fate or "not ended" for at, fate in records.items()}
        assert {at: shown[at] for at in recorded if at in shown} == {
            at: text for at, text in recorded.items() if at in shown
        }
        assert len(shown.keys() & recorded.keys()) >= 3
        assert list(shown.values()).count("nothing is recorded") == 3
        assert list(shown) == sorted(shown, reverse=True)

    play(stage, story, before=before)


def test_a_queue_without_history_says_why_no_firing_is_shown(stage: Stage) -> None:
    def before(db: Connection) -> None:
        db.queue("mail", history="off").every("10m", "a", name="often")

    async def story(browser: Browser) -> None:
        page = await browser.page("/queues/mail/schedules/often")
        assert "keeps no history" in page.text
        assert len(page.table(0)) == 20

    play(stage, story, before=before)


def test_a_damaged_schedule_says_so_and_can_be_removed(tmp_path: Path) -> None:
    async def story(browser: Browser) -> None:
        page = await browser.page("/schedules")
        assert names_of(page) == ["nightly", "often"]
        [problem] = page.all("p", **{"class": "problem"})
        assert problem.text.startswith("schedule 'digest' of queue 'mail' is damaged")
        page = await browser.page("/queues/mail/schedules/digest")
        assert "is damaged" in page.all("p", role="alert")[0].text
        assert not page.has_form("schedule-run")
        page = await browser.press(page.form("schedule-remove"))
        assert not page.all("p", **{"class": "problem"})

    path = tmp_path / "jobs.db"
    with shardq.connect(f"sqlite:///{path}") as db:
        seed(db)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE schedules SET definition = '{' WHERE name = 'digest'")
        file.execute("UPDATE messages SET body = X'7b' WHERE name = 'digest'")
    with shardq.connect(f"sqlite:///{path}") as db:
        asyncio.run(told(story, Api(db, access=opened(db))))


# Forms --------------------------------------------------------------------------------------------

POST = "/queues/post/schedules/often"


@looked(before=seed)
async def test_a_schedule_is_paused_resumed_and_run_by_its_buttons(
    browser: Browser, stage: Stage
) -> None:
    queue = browser.api.db.queue("post")
    page = await browser.press((await browser.page(POST)).form("schedule-pause"))
    assert "often is paused." in page.text
    assert [one.state for one in queue.schedules] == ["waiting", "paused"]
    # The very page that it leads to knows.
    assert not page.has_form("schedule-pause")
    page = await browser.page("/schedules?queue=post")
    assert {row[0]: row[7] for row in page.table()}["often"] == "paused"
    page = await browser.press(page.form("schedule-resume", schedule="often"))
    assert [one.state for one in queue.schedules] == ["waiting", "waiting"]
    assert {row[0]: row[7] for row in page.table()}["often"] == "waiting"
    waiting = queue.depth().total
    page = await browser.press(page.form("schedule-run", schedule="nightly"))
    assert queue.depth().total == waiting + 1
    [made] = [one for one in queue.peek() if one.id.startswith("nightly@")]
    assert made.id in page.text


@looked(before=seed)
async def test_a_span_is_counted_before_it_is_filled(browser: Browser, stage: Stage) -> None:
    queue = browser.api.db.queue("post")
    path = "/queues/post/schedules/nightly?after=2026-03-27&until=2026-04-01"
    before = queue.depth().total
    page = await browser.page(path)
    assert "5 fire times" in page.text
    assert queue.depth().total == before
    page = await browser.press(page.form("schedule-backfill"))
    assert "5 messages of nightly were put." in page.text
    found = sorted(one.headers["schedule-time"] for one in queue.peek(100))
    local = [datetime.fromisoformat(one).astimezone(BERLIN) for one in found]
    # 02:30 of 29 March does not exist there.
    assert [f"{one:%d %H:%M}" for one in local] == [
        "27 02:30",
        "28 02:30",
        "29 03:30",
        "30 02:30",
        "31 02:30",
    ]
    for query, text in (
        ("after=2026-04-01&until=2026-03-27", "must be later"),
        ("after=soon&until=later", "soon"),
        ("after=1990-01-01&until=1990-01-01T01:00", "0 fire times"),
    ):
        page = await browser.page(f"/queues/post/schedules/nightly?{query}")
        assert text in page.text
        assert not page.has_form("schedule-backfill") or text.startswith("0")


@looked(before=seed)
async def test_a_schedule_that_is_removed_leads_to_the_list(browser: Browser, stage: Stage) -> None:
    page = await browser.press((await browser.page(POST)).form("schedule-remove"))
    assert "often is removed." in page.text
    assert names_of(page) == ["nightly"]
    page = await browser.page(POST, 404)
    assert "no schedule" in page.text


@looked(before=seed, make=closed)
async def test_forms_do_nothing_without_their_token_or_level(
    browser: Browser, stage: Stage
) -> None:
    book = browser.api.db.queue("post").schedules

    def state() -> Any:
        return [(one.name, one.state, one.fired) for one in book], browser.api.db.queue(
            "post"
        ).depth().total

    before = state()
    await browser.sign_in("rgs")
    page = await browser.page(POST)
    forms = [page.form(f"schedule-{name}") for name in ("pause", "run", "remove")]
    page = await browser.page(POST + "?after=2026-03-27&until=2026-04-01")
    forms.append(page.form("schedule-backfill"))
    for form in forms:
        for change in ({"token": ""}, {"token": "x" * 24}):
            assert (await browser.send(form | change)).status == 403
        without = {name: value for name, value in form.items() if name != "token"}
        assert (await browser.send(without)).status == 403
    other = Browser(browser.api)
    for form in forms:
        assert (await other.send(form)).status == 401
    # Somebody else's token, and a level that is too low.
    await other.sign_in("rg")
    for form in forms:
        assert (await other.send(form)).status == 403
    await other.page("/schedules", 403)
    mine = (await other.page("/")).form("sign-out")["token"]
    for form in forms:
        page = await other.press(form | {"token": mine, "back": "/"})
        assert "Not done" in page.text
    assert state() == before
    # The same form does something for whom it was made.
    await browser.press(forms[0])
    assert book["often"].state == "paused"


@looked(before=seed)
async def test_who_paused_a_schedule_and_filled_it_is_recorded(
    browser: Browser, stage: Stage
) -> None:
    await browser.press((await browser.page(POST)).form("schedule-pause"))
    page = await browser.page(POST + "?after=2026-03-27&until=2026-03-28")
    await browser.press(page.form("schedule-backfill"))
    found = browser.api.app.site.actions.last(10)
    assert {(one.via, one.what, one.object) for one in found} == {
        ("pages", "schedule backfill", "post often"),
        ("pages", "schedule pause", "post often"),
    }


# Hostile ------------------------------------------------------------------------------------------


def test_hostile_names_and_bodies_are_shown_as_text(stage: Stage) -> None:
    def before(db: Connection) -> None:
        queue = db.queue("mail")
        for number, text in enumerate(HOSTILE):
            headers = {text[:100]: text, "password": text}
            queue.every(f"{number + 1}h", f"</pre>{text}\0\u202e", name=text, headers=headers)

    async def story(browser: Browser) -> None:
        page = await browser.page("/schedules")
        check_harmless(page)
        links = {
            one.text: one.attributes["href"]
            for one in page.all("a")
            if "/schedules/" in one.attributes["href"]
        }
        assert set(links) == set(HOSTILE)
        for name, url in links.items():
            page = await browser.page(url.removeprefix("/pages"))
            check_harmless(page)
            assert [one.text for one in page.all("h1")] == [name]
            [body] = page.all("pre")
            assert body.text.startswith(f"</pre>{name}")
            page = await browser.press(page.form("schedule-pause"))
            assert page.all("p", role="status")[0].text == f"{name} is paused."
            check_harmless(page)
            assert browser.api.db.queue("mail").schedules[name].state == "paused"
        for text in HOSTILE:
            check_harmless(await browser.page(f"/schedules?text={quoted(text)}"))
            got = await browser.ask("GET", f"/calendar?tz={quoted(text)}&queue={quoted(text)}")
            assert got.status < 500
            assert text not in got.body.decode() or "<" not in text

    play(stage, story, before=before)


def quoted(text: str) -> str:
    return "".join(f"%{one:02X}" for one in text.encode())


def check_harmless(page: Element) -> None:
    assert [one.attributes["src"].partition("?")[0] for one in page.all("script")] == [
        "/pages/static/live.js"
    ]
    assert not page.all("img")
    for one in page.every():
        assert not [name for name in one.attributes if name.startswith("on") or name == "style"]
        href = one.attributes.get("href", "#")
        assert href.startswith(("/pages/", "#")), href


@looked(before=seed)
async def test_every_input_has_a_label_and_every_head_a_scope(
    browser: Browser, stage: Stage
) -> None:
    for path in ("/calendar", "/calendar?span=90d", "/schedules", POST):
        page = await browser.page(path)
        assert all(one.attributes.get("scope") for one in page.all("th"))
        labelled = {id(one) for label in page.all("label") for one in label.every()}
        for one in [*page.all("input"), *page.all("select")]:
            is_hidden = one.attributes.get("type") == "hidden"
            assert is_hidden or id(one) in labelled or "aria-label" in one.attributes
        assert all(one.all("title") for one in page.all("svg"))


def test_values_of_hidden_names_are_on_no_page(stage: Stage) -> None:
    def before(db: Connection) -> None:
        body = json.dumps({"to": "ada", "password": "tell nobody"})
        db.queue("mail").every("1h", body, name="s", headers={"password": "tell nobody"})

    async def story(browser: Browser) -> None:
        got = await browser.ask("GET", "/queues/mail/schedules/s")
        assert b"tell nobody" not in got.body
        assert b"ada" in got.body

    play(stage, story, before=before, hidden=("pass*",))
