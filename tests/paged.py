"""Pages as a browser without script sees them: elements, texts, tables, forms that can be sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from callers import TIMEOUT_S, Api

from shardq.server.access import Access

if TYPE_CHECKING:
    from callers import Got

    import shardq
    from shardq.server.accounts import IssuedKey

BASE = "/pages"
_VOID = {"meta", "link", "input", "br", "hr", "img"}


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its text, with spaces as they are shown."""
        parts = (one if isinstance(one, str) else f" {one.text} " for one in self.children)
        return " ".join("".join(parts).split())

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """All elements of a tag below it."""
        found = []
        for one in self.children:
            if isinstance(one, Element):
                if one.tag == tag and one.attributes.items() >= attributes.items():
                    found.append(one)
                found += one.all(tag, **attributes)
        return found

    def table(self, number: int = 0) -> list[list[str]]:
        """The texts of the rows of a table, without its heads."""
        body = self.all("tbody")[number]
        return [
            [one.text for one in row.children if isinstance(one, Element)] for row in body.all("tr")
        ]

    def form(self, act: str, **fields: str) -> dict[str, str]:
        """The fields of the form of an action, with these values among them."""
        for form in self.all("form"):
            found = {
                one.attributes["name"]: one.attributes.get("value", "")
                for one in form.all("input")
                if "name" in one.attributes
            }
            if found.items() >= {"act": act, **fields}.items():
                return found
        raise AssertionError(f"there is no form of {act} with {fields}")

    def has_form(self, act: str) -> bool:
        return any(one.attributes.get("value") == act for one in self.all("input", name="act"))

    def every(self) -> list[Element]:
        """All elements below it."""
        below = [one for one in self.children if isinstance(one, Element)]
        return [*below, *(each for one in below for each in one.every())]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: value or "" for name, value in attrs})
        self.stack[-1].children.append(made)
        if tag not in _VOID:
            self.stack.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.stack[-1].tag == tag:
            self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.stack[-1].children.append(data)


def read(html: str) -> Element:
    """The elements of a page."""
    reader = _Reader()
    reader.feed(html)
    assert len(reader.stack) == 1, [one.tag for one in reader.stack]
    return reader.stack[0]


class Browser:
    """Somebody who looks at the pages of an application, with the cookies that they have set."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.cookies: dict[str, str] = {}

    async def ask(
        self, method: str, path: str, body: bytes = b"", given: dict[str, str] | None = None
    ) -> Got:
        headers = {"accept": "text/html"}
        if body:
            headers |= {
                "content-type": "application/x-www-form-urlencoded",
                "origin": "http://localhost",
            }
        headers |= given or {}
        if self.cookies:
            pairs = (f"{name}={value}" for name, value in self.cookies.items())
            headers["cookie"] = "; ".join(pairs)
        got = await self.api.ask(method, BASE + path, body, headers)
        if set_cookie := got.headers.get("set-cookie"):
            name, _, value = set_cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return got

    async def see(self, path: str) -> str:
        """The HTML of a page."""
        got = await self.ask("GET", path)
        assert got.status == 200, got
        return got.body.decode()

    async def see_soon(self, path: str, text: str) -> None:
        """Read a page until it shows a text: a busy machine may take several looks."""
        async with asyncio.timeout(TIMEOUT_S):
            while text not in await self.see(path):
                pass

    async def page(self, path: str, status: int = 200) -> Element:
        """A page, once all that it shows is counted."""
        while True:
            got = await self.ask("GET", path)
            assert got.status == status, (got.status, got.headers, got.body[-300:])
            made = read(got.body.decode())
            if "still being" not in made.text:
                return made

    async def sign_in(self, levels: str, *queues: str) -> None:
        """Sign in by a new key of the first account."""
        await self.sign_in_by(self.api.key(levels, *queues, label="ada"))

    async def sign_in_by(self, key: IssuedKey) -> None:
        """Sign in by a key."""
        got = await self.ask("POST", "/sign-in", urlencode({"key": key.token}).encode())
        assert got.status == 303, got

    async def send(self, fields: dict[str, str]) -> Got:
        """Send a form of an action; returns the answer, without following it."""
        return await self.ask("POST", "/act", urlencode(fields).encode())

    async def act(
        self, path: str, name: str, headers: dict[str, str] | None = None, **fields: Any
    ) -> Got:
        """Send a form of a page, with its token unless one is given.

        Args:
            path: The page.
            name: The action.
            headers: More headers.
            fields: The fields; a list is several fields of one name.
        """
        for place in (path, "/"):
            # A page without a button has no token; it is the same on all.
            tokens = (await self.page(place)).all("input", name="token")
            if tokens:
                fields.setdefault("token", tokens[0].attributes["value"])
                break
        body = urlencode({"act": name, "back": path, **fields}, doseq=True).encode()
        return await self.ask("POST", "/act", body, headers)

    async def told(self, path: str, name: str, **fields: Any) -> str:
        """Send a form; returns the text about it on the next page."""
        got = await self.act(path, name, **fields)
        assert (got.status, got.headers["location"]) == (303, BASE + path), got
        [said] = (await self.page(path)).all("p", role="status")
        return said.text

    async def press(self, fields: dict[str, str]) -> Element:
        """Send a form of an action; returns the page that it leads to."""
        got = await self.send(fields)
        assert got.status == 303, (got.status, got.body)
        return await self.page(got.headers["location"].removeprefix(BASE))


def opened(db: shardq.Connection) -> Access:
    """The access of a store without accounts, which is open."""
    return Access(db, is_open=True)
