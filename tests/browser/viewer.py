"""Somebody who looks at pages: complaints of the browser, requests to other hosts, clicks."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import TimeoutError as NotInTime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Locator, Page, Request

    from browser.shop import Shop

_RUN_AXE = """async () => (await axe.run()).violations.map(found =>
    `${found.id}: ${found.help}: ${found.nodes.map(node => node.html.slice(0, 200)).join(" | ")}`
)"""
_HEIGHT = 800
_TIMEOUT_MS = 60_000


class Mode(NamedTuple):
    """How somebody looks at pages.

    Attributes:
        scheme: `light` or `dark`.
        width: The window's, in pixels.
        has_script: False if script is off.
    """

    scheme: Any = "light"
    width: int = 1_280
    has_script: bool = True


MODES = {
    "light": Mode(),
    "dark": Mode("dark"),
    "phone": Mode(width=400),
    "no script": Mode(has_script=False),
}


class Viewer:
    """A browser's page.

    Attributes:
        page: It.
        has_script: False if script is off.
        problems: What the browser complained of, and requests to other hosts.
        clicks: How often somebody had to click: a link, a button, a field to type in, the answer to
            a question.
    """

    def __init__(self, page: Page, shop: Shop, *, has_script: bool = True) -> None:
        self.page = page
        self.has_script = has_script
        self.problems: list[str] = []
        self.clicks = 0
        self._shop = shop
        self._host = urlsplit(shop.url).netloc
        self._is_asked = False
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._see)
        page.on("dialog", self._answer)

    def open(self, path: str, status: int | None = 200) -> None:
        """Open a page by its path below the front page, and wait until it follows what happens.

        Args:
            path: The path.
            status: The status that its answer has to have; None: any below 500.
        """
        url = self._shop.url + path
        answer = self.page.goto(url)
        assert answer is not None
        is_right = answer.status < 500 if status is None else answer.status == status
        assert is_right, (url, answer.status)
        if answer.status >= 400:
            # The browser itself complains about a page that does not exist.
            self.problems = [one for one in self.problems if not one.startswith("Failed to load")]
        if self.has_script and self.page.locator("#live[data-stream]").count():
            self.page.locator("#followed").wait_for()

    def click(self, name: str, within: Locator | None = None, *, asks: bool = False) -> None:
        """Click a link or a button by its whole name.

        Args:
            name: Its name.
            within: The element that has it; None: the page.
            asks: True if the page asks back; the answer is yes, and a click.
        """
        place = within or self.page.locator("body")
        exactly = re.compile(rf"^\s*{re.escape(name)}\s*$")
        self.click_on(place.locator("a, button").filter(has_text=exactly), asks=asks)

    def click_on(self, element: Locator, *, asks: bool = False) -> None:
        self._is_asked = asks
        self.clicks += 1
        element.click()
        assert not self._is_asked, "it did not ask"

    def fill(self, label: str, text: str, *, enter: bool = False) -> None:
        """Click into a field and type.

        Args:
            label: Its label.
            text: The text.
            enter: True to press Enter then.
        """
        field = self.page.get_by_label(label)
        self.clicks += 1
        field.click()
        field.fill(text)
        if enter:
            field.press("Enter")

    def row(self, text: str) -> Locator:
        """The row of a table that has a text."""
        return self.page.locator("tr").filter(has_text=text)

    def expect(self, text: str, within: str = "main") -> None:
        """Wait until an element shows a text."""
        found = self.page.locator(within).filter(has_text=text).first
        try:
            found.wait_for()
        except NotInTime as error:
            raise AssertionError(f"no {text!r} in {self.facts()}") from error

    def facts(self) -> str:
        """What the page shows, with its spaces as one."""
        return " ".join(self.page.locator("main").inner_text().split())

    def violations(self) -> list[str]:
        """What axe-core finds wrong with the page."""
        self.page.evaluate(AXE_SCRIPT)
        found: list[str] = self.page.evaluate(_RUN_AXE)
        return found

    def is_cut_off(self) -> bool:
        """True if the page is wider than its window."""
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        return bool(self.page.evaluate(wide))

    def picture(self, path: Path, *, whole: bool = True) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=whole)

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"}:
            self.problems.append(f"{said.text} at {said.location}")

    def _see(self, request: Request) -> None:
        where = urlsplit(request.url)
        if where.netloc != self._host and where.scheme not in {"data", "blob"}:
            self.problems.append(f"it asks {request.url}")

    def _answer(self, dialog: Dialog) -> None:
        if not self._is_asked:
            self.problems.append(f"a dialog: {dialog.message}")
            dialog.dismiss()
            return
        self._is_asked = False
        self.clicks += 1
        dialog.accept()


@contextmanager
def looking(
    browser: Browser, shop: Shop, mode: Mode = MODES["light"], *, signed_in: bool = True
) -> Iterator[Viewer]:
    """Somebody who has signed in, with a browser of their own."""
    context = browser.new_context(
        color_scheme=mode.scheme,
        viewport={"width": mode.width, "height": _HEIGHT},
        java_script_enabled=mode.has_script,
        locale="en-GB",
        timezone_id="UTC",
    )
    context.set_default_timeout(_TIMEOUT_MS)
    try:
        if signed_in:
            form: dict[str, str | float | bool] = {"key": shop.key.token, "back": "/"}
            context.request.post(f"{shop.url}/sign-in", form=form)
        yield Viewer(context.new_page(), shop, has_script=mode.has_script)
    finally:
        context.close()
