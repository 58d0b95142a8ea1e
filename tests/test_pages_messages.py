"""Messages, dead letters and the search on pages for people, through the ASGI application."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import callers
import pytest
from callers import Api, as_test, closed
from paged import Browser, opened, read

import shardq
from shardq.model.times import span
from shardq.server.bulk import BulkJobs
from shardq.server.site import SiteOptions
from shardq.tasks.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HOSTILE = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "attribute": '" onmouseover="alert(1)" \' autofocus onfocus=\'alert(1)',
    "template": "{{ 7*7 }}{% raw %}",
    "bidi": "a\u202egnp.exe",
    "nul": "a\x00b\x07c\x1b[31m",
    "end": "</textarea></pre></table><h1>taken over</h1><!-- ",
    "entity": "&lt;b&gt;&#60;script&#62;",
    "address": "javascript:alert(1)",
    "half": "a\ud800b",
}
_TAGS = frozenset(
    (
        *("html", "head", "meta", "title", "link", "script", "body", "header", "nav", "main"),
        *("footer", "form", "input", "button", "label", "textarea", "select", "option"),
        *("h1", "h2", "h3", "p", "div", "span", "a", "i", "br", "time", "code", "pre", "progress"),
        *("table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "ul", "li"),
    )
)


def play(
    story: Callable[[Browser], Awaitable[None]], *, is_open: bool = True, **options: Any
) -> None:
    """Play a story on the pages of a store in memory."""

    async def played(api: Api) -> None:
        await story(Browser(api))

    callers.play(played, access=opened if is_open else closed, options=SiteOptions(**options))


def looked(**how: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A decorator: the test's story on the pages of a store runs by `play`, with these settings."""
    return lambda test: as_test(test, lambda story: play(story, **how), "person")


async def signed_in(api: Api, levels: str, *queues: str) -> Browser:
    """Somebody who has signed in by a key with these levels."""
    made = Browser(api)
    await made.sign_in(levels, *queues)
    return made


def bury_all(queue: shardq.Queue, reason: Callable[[shardq.Message], str] | str) -> None:
    """Let all messages of a queue that are due die."""
    while some := queue.receive(max=100, visibility="60s"):
        for one in some:
            queue.bury(one, reason if isinstance(reason, str) else reason(one))


def rows(html: str) -> list[str]:
    """The ids of the messages of a list, in order."""
    cells = re.findall(r'<th scope="row" class="id"><a href="[^"]*">(.*?)</a>', html)
    return [unescape(one) for one in cells]


def boxes(html: str) -> list[str]:
    """The values of the checkboxes of a list."""
    return [unescape(one) for one in re.findall(r'name="id" value="([^"]*)"', html)]


def bodies(queue: shardq.Queue) -> list[str]:
    return sorted(one.text for one in queue.peek(1_000))


# Lists --------------------------------------------------------------------------------------------


@looked()
async def test_a_list_shows_each_message_once_over_its_pages_first_due_first(
    person: Browser,
) -> None:
    queue = person.api.db.queue("mail")
    put = [queue.put(f"b{at}", id=f"m{at:03}", delay=f"{at // 40}m") for at in range(120)]
    seen, path = [], "/queues/mail/messages"
    while path:
        html = await person.see(path)
        seen += rows(html)
        found = re.search(r'rel="next" href="/pages([^"]*)"', html)
        path = unescape(found[1]) if found else ""
    assert sorted(seen) == [one.id for one in put]
    dues = {one.id: one.due for one in put}
    assert [dues[one] for one in seen] == sorted(dues.values())


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"text": "ADA"}, {"one", "three"}),
        ({"header": "lang"}, {"one", "two"}),
        ({"header": "lang=D"}, {"one"}),
        ({"group": "g"}, {"three"}),
        ({"task": "app.send"}, {"two"}),
        ({"error": "timeOUT"}, {"four"}),
        ({"text": "ada", "header": "lang"}, {"one"}),
        ({"text": "nobody"}, set()),
        ({"text": "key-7"}, {"two"}),
    ],
)
@looked()
async def test_a_filter_shows_what_matches_and_stays_on_the_page(
    person: Browser, query: dict[str, str], wanted: set[str]
) -> None:
    queue = person.api.db.queue("mail")
    queue.put("to ada", id="one", headers={"lang": "de"})
    queue.put("bob", id="two", headers={"lang": "en", "task": "app.send"}, key="key-7")
    queue.put("x", id="three", group="g", headers={"who": "Ada"})
    failed = queue.put("failed", id="four", priority=0)
    taken = [one for one in queue.receive(max=10, visibility="60s") if one.id == failed.id]
    queue.retry(taken[0], delay="1h", reason="Timeout of 30 s")
    html = await person.see(f"/queues/mail/messages?{urlencode(query)}")
    assert set(rows(html)) == wanted
    shown = {
        one.attributes["name"]: one.attributes["value"]
        for one in read(html).all("input")
        if one.attributes.get("value")
    }
    assert query.items() <= shown.items()
    if not wanted:
        assert "No message matches; 4 were looked at." in html


@looked()
async def test_a_message_in_flight_says_who_has_it(person: Browser) -> None:
    queue = person.api.db.queue("mail")
    queue.put("a", id="m")
    queue.receive(max=1, visibility="60s")
    assert "in flight" in await person.see("/queues/mail/messages")
    assert '<span class="state">running</span>' in await person.see("/queues/mail/messages/m")


@looked(is_open=False)
async def test_without_the_level_read_no_body_is_shown_and_none_is_looked_into(
    person: Browser,
) -> None:
    db = person.api.db
    db.queue("mail").put("secret", id="m", headers={"who": "ada"})
    dead = db.queue("lost")
    dead.put("secret", id="d")
    bury_all(dead, "no paper")
    viewer = await signed_in(person.api, "g")
    for path in (
        "/queues/mail/messages",
        "/queues/mail/messages?text=secret",
        "/queues/mail/messages/m",
        "/queues/lost/messages/d",
        "/dead",
        "/dead?queue=lost&body=secret",
        "/find?q=m",
        "/find?q=ecre",
    ):
        html = await viewer.see(path)
        assert "ecret" not in read(html).text.replace("Find ecre", ""), path
    assert rows(await viewer.see("/queues/mail/messages")) == ["m"]
    assert "no paper" in await viewer.see("/dead")
    assert (await viewer.ask("GET", "/dead/export")).status == 403
    reader = await signed_in(person.api, "rg")
    assert "secret" in await reader.see("/queues/mail/messages")
    elsewhere = await signed_in(person.api, "rg", "news*")
    assert (await elsewhere.ask("GET", "/queues/mail/messages")).status == 403
    assert rows(await elsewhere.see("/dead")) == []
    assert rows(await elsewhere.see("/find?q=m")) == []


@looked(hidden=("*password*",))
async def test_values_of_hidden_names_are_shown_nowhere(person: Browser) -> None:
    queue = person.api.db.queue("mail")
    body = json.dumps({"to": "ada", "db": {"Password": "s3cret"}})
    queue.put(body, id="m", key="k", headers={"x-password": "s3cret"})
    queue.put(json.dumps({"password": "s3cret", "pad": "x" * 9_000}), id="long")
    dead = person.api.db.queue("lost")
    dead.put(body, id="d")
    bury_all(dead, "no paper")
    for path in (
        "/queues/mail/messages",
        "/queues/mail/messages/m",
        "/queues/mail/messages/long",
        "/queues/lost/messages/d",
        "/dead",
        "/find?q=k",
        "/find?q=ada",
    ):
        html = await person.see(path)
        assert "s3cret" not in html, path
    assert "A form cannot change this body" in await person.see("/queues/mail/messages/m")


# Hostile texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@looked()
async def test_hostile_texts_are_shown_as_text(person: Browser, text: str) -> None:
    db = person.api.db
    queue = db.queue("mail", history="1d", attempts=3)
    name = "".join(one for one in text if one.isprintable())[:100]
    body = text.encode("utf-8", "surrogatepass")
    asked = text.encode("utf-8", "replace")
    queue.put(body, id=name, key=f"k {name}", group=f"g {name}", headers={name: text})
    queue.put(json.dumps({text: text}), headers={"task": text})
    failed = next(iter(queue.receive(max=1, visibility="60s")))
    queue.retry(failed, delay="1h", reason=text)
    lost = db.queue("lost")
    lost.put(body, id=name, headers={"task": text})
    bury_all(lost, text)
    for path in (
        "/queues/mail/messages",
        f"/queues/mail/messages?{urlencode({'text': asked, 'header': asked, 'group': asked})}",
        f"/queues/mail/messages/{quote(name, safe='')}",
        f"/queues/lost/messages/{quote(name, safe='')}",
        f"/queues/mail/messages/{quote(asked, safe='')}",
        "/dead",
        f"/dead?{urlencode({'error': asked, 'body': asked, 'task': asked})}",
        f"/find?{urlencode({'q': asked})}",
        f"/find?{urlencode({'q': name})}",
        f"/find?{urlencode({'q': asked, 'by': 'text'})}",
    ):
        got = await person.ask("GET", path)
        assert got.status in {200, 400}, (path, got)
        check_is_plain(got.body.decode())
    html = await person.see("/dead")
    for one in text:
        assert one.isprintable() or f"U+{ord(one):04X}" in html or r"\ud800" in html


def check_is_plain(html: str) -> None:
    """Nothing of a page is anybody else's markup."""
    every = read(html).every()
    for one in every:
        tag, given = one.tag, one.attributes
        assert tag in _TAGS, tag
        assert not any(name.startswith("on") or name in {"style", "autofocus"} for name in given)
        for name in ("href", "action", "src"):
            assert (given.get(name) or "/").startswith(("/", "#")), given
        if tag == "script":
            assert given["src"].startswith("/pages/static/")
    assert not set("\u202e\x00\x07\x1b") & set(html)
    assert html.count("<h1>") == 1


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe\x00<script>",
        b"x" * (1 << 20),
        b'{"a": "' + b"<b>" * 100_000 + b'"}',
        b'["\\ud800", "\\udc00\\ud800"]',
        b"[" * 100_000,
        b"",
        "ü\u2028\u2029".encode() * 5_000,
    ],
    ids=["bytes", "1 MiB", "long JSON", "surrogates", "deep", "empty", "separators"],
)
@looked()
async def test_any_body_is_shown(person: Browser, body: bytes) -> None:
    queue = person.api.db.queue("mail")
    queue.put(body, id="m", key="k")
    lost = person.api.db.queue("lost")
    lost.put(body, id="d")
    bury_all(lost, "no paper")
    for path in (
        "/queues/mail/messages",
        "/queues/mail/messages/m",
        "/queues/lost/messages/d",
        "/dead",
        "/find?q=k",
        "/find?q=paper",
    ):
        html = await person.see(path)
        check_is_plain(html)
        assert len(html) < 1_000_000
    assert f"{len(body):,} bytes" in await person.see("/queues/mail/messages/m")
    assert await person.told("/queues/mail/messages/m", "copy", queue="mail", message="m")
    assert sorted(one.body for one in queue.peek(10)) == [body, body]
    assert rows(await person.see("/dead?queue=lost")) == ["d"]


# One message --------------------------------------------------------------------------------------


@looked()
async def test_the_story_of_a_message_says_where_it_is_and_why(person: Browser) -> None:
    db = person.api.db
    queue = db.queue("mail", history="1d")
    queue.put("later", id="later", delay="2h")
    queue.put("head", id="head", group="g", delay="1s")
    queue.put("done", id="done", priority=0)
    for one in queue.receive(max=10, visibility="60s"):
        queue.ack(one)
    html = await person.see("/queues/mail/messages/later")
    assert '<span class="state">waiting</span>' in html
    assert "not ended" in html
    html = await person.see("/queues/mail/messages/done")
    assert '<span class="state">acked</span>' in html
    assert "Put a copy" not in html
    queue.pause()
    queue.put("now", id="now", due="2026-01-01T00:00:00Z")
    await person.see_soon("/queues/mail/messages/now", "is paused and delivers nothing")
    html = await person.see("/queues/mail/messages/none")
    assert "nothing is known of message" in html
    assert (await person.ask("GET", "/queues/none/messages/x")).status == 404


@looked()
async def test_the_story_of_a_message_has_each_attempt_that_failed(person: Browser) -> None:
    queue = person.api.db.queue("mail", history="1d", attempts=5, backoff="0s")
    queue.put("a", id="a")

    def work(message: shardq.Message) -> None:
        if message.attempt < 3:
            raise ConnectionError(f"<b>refused {message.attempt}</b>")

    await asyncio.to_thread(shardq.run, shardq.Consumer(queue, work), until_empty=True)
    answer = await person.api.done("GET", "/v1/queues/mail/history?message=a")
    [record] = answer["records"]
    assert [one["attempt"] for one in record["failed"]] == [1, 2]
    assert record["fate"] == "acked"
    html = await person.see("/queues/mail/messages/a")
    table = html.partition("<h3>Failed</h3>")[2].partition("</table>")[0]
    cells = [re.sub("<.*?>", "", one) for one in re.findall(r"<t[dh][ >].*?</t[dh]>", table)]
    for one, row in zip(record["failed"], (cells[5:10], cells[10:]), strict=True):
        number, began, ran, ended, error = row
        assert number == str(one["attempt"])
        assert (ran, unescape(error)) == (span(one["run_ms"]), one["error"])
        assert f"<b>refused {number}</b>" in unescape(error)
        assert one["began"] <= one["ended"]
        for cell in (began, ended):
            assert re.search(r"\d\d:\d\d:\d\d", cell)


@looked()
async def test_a_queue_without_history_says_so(person: Browser) -> None:
    person.api.db.queue("mail").put("a", id="m")
    assert "keeps no history" in await person.see("/queues/mail/messages/m")


@looked()
async def test_a_job_shows_its_result_and_its_task(person: Browser) -> None:
    app = shardq.App(person.api.db)
    person.api.db.queue("sums", history="1d")

    @app.task(name="add", queue="sums", keep="1h")
    def add(one: int) -> dict[str, int]:
        return {"sum": one + 1}

    job = await asyncio.to_thread(add.put, 41)
    await asyncio.to_thread(lambda: Worker(app).run(until_empty=True))
    state = await person.api.done("GET", f"/v1/queues/sums/jobs/{job.id}")
    assert state["state"] == "done"
    html = await person.see(f"/queues/sums/messages/{job.id}")
    assert "a job of the task" in html
    assert '<span class="state">acked</span>' in html
    assert "&#34;sum&#34;: 42" in html


@looked()
async def test_buttons_of_a_message_run_move_copy_and_cancel_it(person: Browser) -> None:
    queue = person.api.db.queue("mail")
    put = queue.put("body", id="a/b %41", delay="2h", headers={"lang": "de"}, group="g", priority=0)
    path = f"/queues/mail/messages/{quote('a/b %41', safe='')}"
    of = {"queue": "mail", "message": put.id}
    assert "moved" in await person.told(path, "move", delay="5h", **of)
    assert "moved" in await person.told(path, "move", due="2030-01-01T10:00:00", **of)
    assert queue.peek(1)[0].due.isoformat().startswith("2030-01-01T10:00:00")
    for wrong in ({}, {"delay": "1h", "due": "2030-01-01T10:00"}, {"delay": "soon"}):
        assert "Not done" in await person.told(path, "move", **wrong, **of)
    assert "due now" in await person.told(path, "run", **of)
    assert queue.find(put.id).due <= put.due
    assert "A copy is put, with the id" in await person.told(path, "copy", **of)
    both = queue.peek(10)
    assert [(one.text, one.headers, one.group) for one in both] == [
        ("body", {"lang": "de"}, "g")
    ] * 2
    assert len({one.id for one in both}) == 2
    assert await person.told(path, "cancel", **of) == "It is cancelled."
    assert [one.id for one in queue.peek(10)] == [one.id for one in both if one.id != put.id]
    assert "Not done" in await person.told(path, "cancel", **of)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (None, "It never runs again. This run goes on: only one with a key can be asked to stop."),
        ("k", "It is running: it is asked to stop, and never runs again."),
    ],
)
@looked()
async def test_a_cancel_of_what_runs_says_whether_the_run_is_asked_to_stop(
    person: Browser, key: str | None, said: str
) -> None:
    queue = person.api.db.queue("mail")
    queue.put("a", id="m", key=key)
    queue.receive(max=1, visibility="60s")
    path = "/queues/mail/messages/m"
    html = await person.see(path)
    assert '<input type="hidden" name="where" value="running">' in html
    of = {"queue": "mail", "message": "m", "where": "running"}
    assert await person.told(path, "cancel", **of) == said


@looked()
async def test_a_message_with_a_key_is_edited_and_keeps_its_lines(person: Browser) -> None:
    queue = person.api.db.queue("mail")
    queue.put("\none\ntwo", id="m", key="order/7", delay="1h")
    queue.put("x", id="keyless", delay="1h")
    path = "/queues/mail/messages/m"
    html = await person.see(path)
    assert '<textarea name="body" rows="8">\n\none\ntwo</textarea>' in html
    fields = {"queue": "mail", "message": "m", "key": "order/7"}
    said = await person.told(path, "edit", body="\r\none\r\nthree", **fields)
    assert said == "Its body is changed."
    assert queue.find("m").text == "\none\nthree"
    assert "textarea" not in await person.see("/queues/mail/messages/keyless")


@looked()
async def test_chosen_messages_are_moved_run_and_cancelled(person: Browser) -> None:
    queue = person.api.db.queue("mail")
    for at in range(5):
        queue.put(f"b{at}", id=f"m{at}", delay="1h")
    path = "/queues/mail/messages"
    values = dict(zip(rows(html := await person.see(path)), boxes(html), strict=True))
    some = [values["m1"], values["m3"]]
    said = await person.told(path, "move-chosen", queue="mail", id=some, delay="3h")
    assert said == "2 of 2 messages are moved."
    assert set(rows(await person.see(path))[-2:]) == {"m1", "m3"}
    # The same form again, though the messages have moved since: their receipts are old.
    said = await person.told(path, "run-chosen", queue="mail", id=some)
    assert said == "2 of 2 messages are due now."
    said = await person.told(path, "cancel-chosen", queue="mail", id=["m0", "m0", "none"])
    assert said == "1 of 2 messages are cancelled. 1 are not there any more."
    assert bodies(queue) == ["b1", "b2", "b3", "b4"]
    for name in ("cancel-chosen", "run-chosen", "move-chosen"):
        assert "choose at least one" in await person.told(path, name, queue="mail")
    assert bodies(queue) == ["b1", "b2", "b3", "b4"]


# Forms that are none ------------------------------------------------------------------------------

_DEEDS: list[tuple[str, dict[str, Any], str]] = [
    ("cancel", {"queue": "mail", "message": "m"}, "a"),
    ("run", {"queue": "mail", "message": "m"}, "u"),
    ("move", {"queue": "mail", "message": "m", "delay": "9h"}, "u"),
    ("edit", {"queue": "mail", "key": "k", "body": "other"}, "u"),
    ("copy", {"queue": "mail", "message": "m"}, "p"),
    ("cancel-chosen", {"queue": "mail", "id": ["m"]}, "a"),
    ("move-chosen", {"queue": "mail", "id": ["m"], "delay": "9h"}, "u"),
    ("redrive-one", {"queue": "lost", "message": "d"}, "m"),
    ("redrive-one", {"queue": "lost", "message": "d", "body": "other"}, "mu"),
    ("delete-one", {"queue": "lost", "message": "d"}, "a"),
    ("redrive-chosen", {"id": ["lost/d"]}, "m"),
    ("delete-chosen", {"id": ["lost/d"]}, "d"),
    ("redrive-matching", {}, "m"),
    ("delete-matching", {"sure": "yes"}, "d"),
]


def _state(db: shardq.Connection) -> list[tuple[str, str, str]]:
    lost = db.queue("lost")
    return [
        (one.queue, one.text, one.due.isoformat())
        for queue in (db.queue("mail"), lost, lost.dead)
        for one in queue.peek(10)
    ]


def _fill(db: shardq.Connection) -> None:
    db.queue("mail").put("body", id="m", key="k", delay="2h")
    lost = db.queue("lost")
    lost.put("dead", id="d")
    bury_all(lost, "no paper")


@pytest.mark.parametrize(("name", "fields", "levels"), _DEEDS, ids=[one[0] for one in _DEEDS])
@looked(is_open=False)
async def test_a_form_does_nothing_without_its_token_level_and_origin(
    person: Browser,
    name: str,
    fields: dict[str, Any],
    levels: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "shardq.server.pages")
    _fill(person.api.db)
    before = _state(person.api.db)
    viewer = await signed_in(
        person.api, "".join(one for one in "rpuagdsm" if one not in levels) + "g"
    )
    other = await signed_in(person.api, f"g{levels}")
    [others_token, *_] = (await other.page("/dead")).all("input", name="token")
    for headers, given, status in (
        ({}, {"token": ""}, 403),
        ({}, {"token": "x" * 24}, 403),
        ({}, {"token": others_token.attributes["value"]}, 403),
        ({"sec-fetch-site": "cross-site"}, {}, 403),
        ({"origin": "https://evil.example"}, {}, 403),
        ({}, {}, 303),
    ):
        got = await viewer.act("/dead", name, headers, **fields, **given)
        assert got.status == status, (headers, given, got)
    assert _state(person.api.db) == before
    assert len([one for one in caplog.records if "refused" in one.getMessage()]) == 6
    got = await Browser(person.api).ask("POST", "/act", urlencode(fields).encode())
    assert got.status == 401
    assert _state(person.api.db) == before
    said = await other.told("/dead", name, **fields)
    assert not said.startswith("Not done"), said
    assert _state(person.api.db) != before
    done = [one for one in person.api.app.site.actions.last(9) if one.outcome == "done"]
    assert all((one.via, "ada" in one.who) == ("pages", True) for one in done)


@looked(is_read_only=True)
async def test_read_only_pages_change_nothing_and_show_no_buttons_that_would(
    person: Browser,
) -> None:
    _fill(person.api.db)
    before = _state(person.api.db)
    for path in ("/queues/mail/messages", "/queues/mail/messages/m", "/dead"):
        html = await person.see(path)
        assert not re.search(r"<button[^>]*>(Cancel|Run now|Move|Redrive|Delete)", html), path
    for name, fields, _ in _DEEDS:
        got = await person.act("/dead", name, **fields)
        assert got.status == 403
    assert _state(person.api.db) == before
    got = await person.act("/dead", "export", id=["lost/d"])
    assert json.loads(got.body)["body"] == "dead"


# The dead -----------------------------------------------------------------------------------------


def _mixed(db: shardq.Connection, count: int = 30) -> tuple[shardq.Queue, shardq.Queue]:
    """Two queues whose dead have two errors and two tasks."""
    queues = db.queue("mail"), db.queue("news")
    for at in range(count):
        queue = queues[at % 2]
        queue.put(f"body {at}", id=f"m{at:03}", headers={"task": f"app.t{at % 3}"})
    for queue in queues:
        bury_all(queue, lambda one: "Timeout of a bank" if int(one.id[1:]) % 5 else "no <paper>")
    return queues


@pytest.mark.parametrize(
    ("query", "is_wanted"),
    [
        ({}, lambda _: True),
        ({"queue": "mail"}, lambda at: at % 2 == 0),
        ({"error": "TIMEOUT"}, lambda at: at % 5 != 0),
        ({"task": "app.t1"}, lambda at: at % 3 == 1),
        ({"body": "Body 7"}, lambda at: at == 7),
        ({"since": "1h"}, lambda _: True),
        ({"until": "1h"}, lambda _: False),
        ({"error": "paper", "task": "app.t0", "queue": "mail"}, lambda at: at % 30 == 0),
    ],
)
@looked()
async def test_dead_messages_are_filtered_and_all_that_match_are_put_back(
    person: Browser, query: dict[str, str], is_wanted: Callable[[int], bool]
) -> None:
    queues = _mixed(person.api.db)
    wanted = {f"m{at:03}" for at in range(30) if is_wanted(at)}
    path = "/dead" + (f"?{urlencode(query)}" if query else "")
    assert set(rows(await person.see(path))) == wanted
    got = await person.ask("GET", "/dead/export" + path.removeprefix("/dead"))
    assert {json.loads(one)["id"] for one in got.body.splitlines()} == wanted
    assert "attachment" in got.headers["content-disposition"]
    said = await person.told(path, "redrive-matching", **query)
    if wanted:
        assert said == f"{len(wanted)} of {len(wanted)} dead messages are put back."
    else:
        assert said == "No dead message matches: nothing was done."
    assert {one.id for queue in queues for one in queue.peek(100)} == wanted
    assert rows(await person.see(path)) == []
    said = await person.told(path, "redrive-matching", **query)
    assert said == "No dead message matches: nothing was done."


@looked()
async def test_the_dead_of_all_queues_are_shown_once_each_the_last_one_first(
    person: Browser,
) -> None:
    queues = _mixed(person.api.db, 130)
    seen, path = [], "/dead"
    while path:
        html = await person.see(path)
        seen += rows(html)
        found = re.search(r'rel="next" href="/pages([^"]*)"', html)
        path = unescape(found[1]) if found else ""
    died = {one.id: one.due_ms for queue in queues for one in queue.dead.peek(200)}
    assert sorted(seen) == sorted(died)
    assert [died[one] for one in seen] == sorted(died.values(), reverse=True)


@looked()
async def test_two_people_who_put_back_the_same_do_no_harm(person: Browser) -> None:
    queues = _mixed(person.api.db, 60)
    other = Browser(person.api)
    await asyncio.gather(
        person.act("/dead", "redrive-matching"),
        other.act("/dead?queue=mail", "redrive-matching", queue="mail"),
        other.act("/dead?error=bank", "redrive-matching", error="bank"),
        other.act("/dead", "redrive-matching"),
    )
    assert sorted(one.id for queue in queues for one in queue.peek(100)) == [
        f"m{at:03}" for at in range(60)
    ]
    totals = [queue.dead.depth(exact=True).total for queue in queues]
    assert totals == [0, 0]


@looked()
async def test_a_bulk_action_at_a_rate_shows_its_progress_and_stops(person: Browser) -> None:
    queue, _ = _mixed(person.api.db, 20)
    said = await person.told("/dead?queue=mail", "redrive-matching", queue="mail", rate="1")
    assert said.startswith("It has begun: ")
    html = await person.see("/dead")
    assert "<progress" in html
    assert "at most 1 a second" in html
    found = re.search(r'name="bulk" value="([0-9a-f]+)"', html)
    assert found is not None
    # The same again is the one that runs.
    await person.told("/dead?queue=mail", "redrive-matching", queue="mail", rate="1")
    bulks = (await person.api.done("GET", "/v1/dead/bulks"))["bulks"]
    assert [one["id"] for one in bulks] == [found[1]]
    assert "It stops" in await person.told("/dead", "stop-bulk", bulk=found[1])
    await person.api.app.site.own(BulkJobs).get(found[1]).task
    left = queue.dead.depth(exact=True).total
    assert 0 < left < 10
    assert len(queue.peek(100)) == 10 - left
    said = await person.told("/dead?queue=mail", "redrive-matching", queue="mail")
    assert said == f"{left} of {left} dead messages are put back."
    for rate in ("0", "-1", "x", "501", "1" * 12):
        said = await person.told("/dead", "redrive-matching", rate=rate)
        assert said.startswith("Not done: "), said
    assert (await person.api.ask("GET", "/v1/dead/bulks/none")).status == 404


@looked()
async def test_what_has_another_key_by_now_stays_and_is_said(person: Browser) -> None:
    queue = person.api.db.queue("mail")
    queue.put("old", key="k")
    queue.put("free")
    bury_all(queue, "no paper")
    queue.cancel(key="k")
    queue.put("old", key="k2")
    bury_all(queue, "no paper")
    queue.put("new", key="k2", on_conflict="replace")
    said = await person.told("/dead", "redrive-matching")
    assert re.match(r"1 of 1 dead|2 of 2 dead|1 of 2 dead", said), said


@looked()
async def test_chosen_dead_messages_are_exported_put_back_and_deleted(person: Browser) -> None:
    queues = _mixed(person.api.db, 10)
    some = ["mail/m000", "news/m003", "mail/none"]
    got = await person.act("/dead", "export", id=some[:2])
    assert [json.loads(one)["queue"] for one in got.body.splitlines()] == ["mail", "news"]
    said = await person.told("/dead", "redrive-chosen", id=some)
    assert said == "2 of 2 dead messages are put back."
    said = await person.told("/dead", "delete-chosen", id=["mail/m002", "news/m001"])
    assert said == "2 of 2 dead messages are deleted."
    assert sorted(one.id for queue in queues for one in queue.dead.peek(100)) == [
        f"m{at:03}" for at in range(4, 10)
    ]
    assert "choose at least one" in await person.told("/dead", "redrive-chosen")
    assert "for good" in await person.told("/dead", "delete-matching")
    assert sum(queue.dead.depth().total for queue in queues) == 6
    said = await person.told("/dead", "delete-matching", sure="yes")
    assert said == "6 of 6 dead messages are deleted."
    assert "There are no dead messages" in await person.see("/dead")


@looked()
async def test_a_dead_message_is_edited_and_put_back_or_deleted(person: Browser) -> None:
    queue = person.api.db.queue("mail", history="1d")
    for name, key in (("one", "k"), ("two", None), ("three", None)):
        queue.put("bad", id=name, headers={"lang": "de"}, **({"key": key} if key else {}))
    bury_all(queue, "no paper")
    for name in ("one", "two"):
        path = f"/queues/mail/messages/{name}"
        assert "Redrive with this body" in await person.see(path)
        fields = {"queue": "mail", "message": name, "body": "good"}
        assert await person.told(path, "redrive-one", **fields) == "It is put back."
        found = queue.find(name)
        assert (found.text, found.headers, found.attempt) == ("good", {"lang": "de"}, 0)
        assert "Not done" in await person.told(path, "redrive-one", **fields)
    assert queue.get("k").body == b"good"
    path = "/queues/mail/messages/three"
    said = await person.told(path, "delete-one", queue="mail", message="three")
    assert said == "It is deleted for good."
    assert queue.dead.depth(exact=True).total == 0


# The search ---------------------------------------------------------------------------------------


@looked()
async def test_the_search_finds_by_id_by_key_and_by_text_over_all_queues(person: Browser) -> None:
    db = person.api.db
    mail, news = db.queue("mail", history="1d"), db.queue("news")
    put = mail.put("to ada", key="order-7", delay="30m")
    news.put("x", key="order-7", delay="1h")
    ended = mail.put("acked")
    for one in mail.receive(max=10, visibility="60s"):
        mail.ack(one)
    news.put("to ADA too", id="lost")
    bury_all(news, "no <paper>")

    assert rows(await person.see(f"/find?q={put.id}")) == [put.id]
    html = await person.see("/find?q=order-7")
    assert len(rows(html)) == 2
    assert "Find it as a text" in html
    assert rows(await person.see(f"/find?q={ended.id}")) == [ended.id]
    assert rows(await person.see("/find?q=lost")) == ["lost"]
    html = await person.see("/find?q=%20ada")
    assert sorted(rows(html)) == sorted([put.id, "lost"])
    assert "messages of 2 queues were looked at" in html
    html = await person.see("/find?q=nothing")
    assert "No message has this text" in html
    assert "Search all messages for this id" in html
    assert 'name="q"' in await person.see("/")
    assert "Type an id" in await person.see("/find")


@looked()
async def test_the_search_says_how_far_it_has_looked(person: Browser) -> None:
    queue = person.api.db.queue("mail")
    queue.put_many([{"body": "x", "delay": "1m"}] * 1_000 + [{"body": "needle", "delay": "1h"}])
    found = await person.api.done("GET", "/v1/find?q=needle&by=text")
    assert (found["hits"], found["looked"]) == ([], 1_000)
    found = await person.api.done("GET", "/v1/queues/mail/messages?text=needle&look=500")
    assert found["messages"] == []
    assert found["looked"] == 500
    path = "/v1/queues/mail/messages?text=needle&look=600&after=" + found["next"]
    assert len((await person.api.done("GET", path))["messages"]) == 1
