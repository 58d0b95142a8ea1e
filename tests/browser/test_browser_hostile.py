"""Names, bodies, errors and headers of a stranger, on every page that shows them."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

import pytest
from hostile import INJECTIONS

from browser.shop import Shop, served
from browser.viewer import Viewer, looking
from shardq.errors import ShardqError
from shardq.records.actions import Actions, What
from shardq.server.accounts import Accounts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

    import shardq

pytestmark = [pytest.mark.browser, pytest.mark.nightly]
COUNT = 500
_RUN = "window.__ran=1"
MARKUP = [
    f"<script>{_RUN}</script>",
    f"<img src=x onerror={_RUN}>",
    f"<svg/onload={_RUN}>",
    '<iframe srcdoc="<script>parent.__ran=1</script>">',
    f"<details open ontoggle={_RUN}>",
    f"<body onload={_RUN}>",
    f"<input autofocus onfocus={_RUN}>",
    f'<a href="javascript:{_RUN}">a</a>',
    f"<form action=javascript:{_RUN}><button>b</button></form>",
    f'<meta http-equiv="refresh" content="0;url=javascript:{_RUN}">',
    "<base href=//evil.example/>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>*{display:none}</style>",
    "<img src=//evil.example/x.png>",
    f"<template><script>{_RUN}</script></template>",
    f"<math><mtext><script>{_RUN}</script></mtext></math>",
    "<h1>taken over</h1>",
    f"javascript:{_RUN}",
    f"&lt;script&gt;{_RUN}&lt;/script&gt;",
    f"&#60;script&#62;{_RUN}&#60;/script&#62;",
    "{{ 7 * 7 }}{% raw %}",
    "${7*7}<%= 7*7 %>#{7*7}",
    "<![CDATA[x]]>",
    "\u202egnp.exe",
    "\u2066a\u2069\u200f\u200b\ufeff",
    "\u2028\u2029",
    "e" + "\u0301" * 40,
    "\x00\x07\x1b[31m",
    "\ud800\udfff\udcff",
    "\U0001f600\ufffe\U000e0041",
    "constructor",
    "__proto__",
    "<b>" * 60,
    *INJECTIONS,
]
WRAPPINGS = [
    "{}",
    '"> {}',
    "'> {}",
    '" onmouseover="{}" x="',
    "</textarea>{}",
    "</title></script></style>{}",
    "</pre></td></tr></table>{}",
    "--><!--{}",
    "a\nb\t{}",
    "\u202e{}\u202c",
    "\x00{}",
    "`{}`",
]


def hostile_texts() -> list[str]:
    """All markup in all wrappings, in an order that stays the same, as many as are wanted."""
    made = [wrapping.replace("{}", text) for wrapping in WRAPPINGS for text in MARKUP]
    # First each text without a wrapping.
    rest = made[len(MARKUP) :]
    random.Random(41).shuffle(rest)
    return [*MARKUP, *rest][:COUNT]


class Message(NamedTuple):
    """A message that is shown.

    Attributes:
        queue: Its queue.
        id: Its id.
        text: The hostile text.
        texts: What its page has to show as text.
    """

    queue: str
    id: str
    text: str
    texts: tuple[str, ...]


def printed(text: str) -> str:
    """A text as pages show it, with spaces as one."""
    shown = "".join(
        one if one in "\n\t" or one.isprintable() else f"U+{ord(one):04X}" for one in text
    )
    return " ".join(shown.split())


def put_all(db: shardq.Connection, texts: list[str]) -> list[Message]:
    """Put a message for each text: in turn one that waits, one that is retried, one that died."""
    waiting = db.queue("hostile", history="1d")
    tried = db.queue("tried", attempts=5, history="1d")
    lost = db.queue("lost", history="1d")
    queues = (waiting, tried, lost)
    made = [_put(queues[number % 3], number, text) for number, text in enumerate(texts)]
    reasons = {one.id: one.text or "none" for one in made}
    for queue in (tried, lost):
        while some := queue.receive(max=100, visibility="60s"):
            for one in some:
                if queue is lost:
                    queue.bury(one, reasons[one.id])
                else:
                    queue.retry(one, delay="1h", reason=reasons[one.id])
    return made


def _put(queue: shardq.Queue, number: int, text: str) -> Message:
    """Put a message that has a text wherever it may be."""
    name = f"{number} " + "".join(one for one in text if one.isprintable())[:200]
    header, body = f"h{name}"[:60], text.encode("utf-8", "surrogatepass")
    delay = f"{number + 60}s" if queue.name == "hostile" else None
    put = partial(queue.put, body, id=name, key=f"k{name}", group=f"g{name}", delay=delay)
    shown = [name]
    try:
        put(headers={header: text, "task": text})
        shown.append(text)
    except ShardqError:
        # A surrogate pair in two halves cannot be in a header.
        put(headers={header: name})
    return Message(queue.name, name, text, tuple(map(printed, shown)))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with served(f"sqlite:///{tmp_path}/shop.db?synchronous=normal") as made:
        yield made


@pytest.fixture
def stranger(browser: Browser, shop: Shop) -> Iterator[Viewer]:
    """A viewer whose pages note what ran, and that judges them."""
    with looking(browser, shop) as viewer:
        yield viewer


def check(viewer: Viewer, path: str, texts: tuple[str, ...] = ()) -> None:
    """A page stands, shows texts as text, and nothing of them runs."""
    viewer.open(path, None)
    found = viewer.page.evaluate(
        """() => ({
            ran: window.__ran,
            tags: [...new Set([...document.querySelectorAll("*")].map(one => one.localName))],
            scripts: [...document.scripts].map(one => one.src),
            heads: document.querySelectorAll("h1").length,
            handlers: [...document.querySelectorAll("*")].flatMap(one => one.getAttributeNames())
                .filter(name => name.startsWith("on") || name === "style" || name === "srcdoc"),
            links: [...document.querySelectorAll("[href], [src], [action]")].flatMap(one =>
                ["href", "src", "action"].map(name => one.getAttribute(name) || "/"))
                .filter(link => !/^[/#](?![/\\\\])/.test(link) && link !== "#"),
            text: document.querySelector("main").textContent,
        })"""
    )
    assert found["ran"] is None, path
    assert len(found["scripts"]) == 1, path
    assert found["heads"] == 1, path
    assert found["handlers"] == [], path
    assert found["links"] == [], path
    assert not {"img", "iframe", "style", "base", "math", "template"} & set(found["tags"]), path
    shown = " ".join(found["text"].split())
    for text in texts:
        assert text in shown, (path, text, shown)
    assert viewer.problems == [], path


def test_the_page_of_each_message_shows_texts_as_text(stranger: Viewer, shop: Shop) -> None:
    made = put_all(shop.db, hostile_texts())
    assert len(made) == COUNT
    for one in made:
        check(stranger, f"/queues/{one.queue}/messages/{quote(one.id, safe='')}", one.texts)


def test_lists_show_texts_as_text_over_all_their_pages(stranger: Viewer, shop: Shop) -> None:
    made = put_all(shop.db, hostile_texts())
    lists = {
        "hostile": "/queues/hostile/messages",
        "tried": "/queues/tried/messages",
        "lost": "/dead",
    }
    for queue, first in lists.items():
        path, names = first, []
        while path:
            check(stranger, path)
            names += stranger.page.locator("th.id a").all_inner_texts()
            more = stranger.page.locator("a[rel=next]")
            path = _below(more.get_attribute("href")) if more.count() else ""
        wanted = [printed(one.id) for one in made if one.queue == queue]
        assert sorted(" ".join(name.split()) for name in names) == sorted(wanted)


def _below(url: str | None) -> str:
    return (url or "").removeprefix("/pages")


def test_filters_and_the_search_show_texts_as_text(stranger: Viewer, shop: Shop) -> None:
    texts = hostile_texts()[:90]
    put_all(shop.db, texts)
    for number, text in enumerate(texts):
        asked = text.encode("utf-8", "replace")
        given = urlencode(dict.fromkeys(("text", "header", "error", "task"), asked))
        paths = (
            f"/queues/hostile/messages?{given}",
            f"/dead?{given}&body=x",
            f"/dead?{urlencode({'since': asked})}",
            f"/find?{urlencode({'q': asked})}",
            f"/queues/hostile/messages/{quote(asked or 'none', safe='')}",
            f"/?{urlencode({'q': asked, 'order': asked})}",
            f"/actions?{urlencode({'object': asked, 'who': asked})}",
            f"/calendar?{urlencode({'queue': asked, 'tz': asked})}",
        )
        # Each second page by turns: 90 texts are many.
        for path in paths[number % 2 :: 2]:
            check(stranger, path)


def test_schedules_and_the_log_show_texts_as_text(stranger: Viewer, shop: Shop) -> None:
    texts = hostile_texts()[:120]
    queue, log = shop.db.queue("hostile"), Actions(shop.db._home.store, shop.db._home.clock)
    names = []
    for number, text in enumerate(texts):
        log.record(f"{number} {text}", text, What.PAUSE, text, text)
        name = f"{number} " + "".join(one for one in text if one.isprintable())[:100]
        body = text.encode("utf-8", "surrogatepass")
        queue.every("1h", body, name=name, headers={f"h{number}": printed(text)})
        names.append(name)
    check(stranger, "/actions")
    assert stranger.page.locator("tbody tr").count() == len(texts)
    shown = []
    path = "/schedules"
    while path:
        check(stranger, path)
        shown += stranger.page.locator("tbody th a").all_inner_texts()
        more = stranger.page.locator("a", has_text="Next page")
        path = _below(more.get_attribute("href")) if more.count() else ""
    assert sorted(" ".join(one.split()) for one in shown) == sorted(map(printed, names))
    for name in names:
        check(stranger, f"/queues/hostile/schedules/{quote(name, safe='')}", (printed(name),))


@pytest.mark.parametrize("piece", ["<script>window.__ran=1</script>", "x", "\x00", '{"a":['])
def test_a_body_of_1_mib_is_shown_by_its_beginning(
    piece: str, stranger: Viewer, shop: Shop
) -> None:
    body = (piece * (1 << 20))[: 1 << 20].encode()
    queue, lost = shop.db.queue("hostile"), shop.db.queue("lost")
    queue.put(body, id="long", key="k", delay="1h")
    lost.put(body, id="dead")
    lost.bury(lost.receive(max=1, visibility="60s")[0], piece * 2_000)
    for path in (
        "/queues/hostile/messages",
        "/queues/hostile/messages/long",
        "/queues/lost/messages/dead",
        "/dead",
        "/find?q=k",
        "/find?q=x&by=text",
    ):
        check(stranger, path)
        assert not stranger.is_cut_off(), path


def test_a_person_whose_key_has_a_hostile_label_is_shown_as_text(
    browser: Browser, shop: Shop
) -> None:
    home = Accounts(shop.db._home.store, shop.db._home.clock)
    for text in MARKUP[:20]:
        key = home.add_key(home.account("shop"), levels="all", label=text[:100])
        with looking(browser, replace(shop, key=key)) as viewer:
            check(viewer, "/")
            assert text[:100] in viewer.page.locator("header").inner_text()
