"""Plots are PNG, whatever there is to draw, and a page is one file that needs nothing else."""

from __future__ import annotations

import ast
import base64
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_shardq import plots
from pyspark_shardq.page import PageTable, Picture, Section, page

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n\x1a\n"
MINUTE_MS = 60_000
AT_MS = 1_800_000_000_000
NASTY = "<script>alert('1')</script> & \"x\" \ud800"
VOID = {"meta", "img", "br"}


class Outline(HTMLParser):
    """What is in a page: its elements, its texts, and whether what was opened was closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.texts: list[str] = []
        self.sources: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


@pytest.fixture(scope="module")
def picture() -> bytes:
    return plots.balance([("0", 3), ("1", 5)], of="lane")


def test_a_page_is_one_file_without_scripts_and_sources_elsewhere(picture: bytes) -> None:
    table = PageTable(("day", ">messages"), (("2027-01-15", 1_234_567), ("2027-01-16", None)))
    sections = [Section("Lanes", ("A paragraph.", table, Picture(picture, "of each lane")))]
    html = page("Backlog of mail", "mail is empty.", sections, at_ms=AT_MS, asked={"since": None})

    outline = Outline(html)
    assert outline.open == []
    assert "script" not in outline.names
    [source] = outline.sources
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == picture
    assert "default-src 'none'" in html
    assert "1,234,567" in outline.texts
    assert "2027-01-15T08:00:00.000Z" in outline.texts
    assert "since" not in outline.texts
    # The outcome comes before all else.
    assert outline.texts.index("mail is empty.") == outline.texts.index("Backlog of mail", 1) + 1


def test_whatever_a_page_is_given_is_shown_as_text(picture: bytes) -> None:
    table = PageTable((NASTY, ">" + NASTY), ((NASTY, NASTY),))
    parts = (NASTY, table, Picture(picture, NASTY), PageTable(("a",), ()))
    html = page(NASTY, NASTY, [Section(NASTY, parts)], at_ms=AT_MS, asked={NASTY: NASTY})

    outline = Outline(html)
    assert outline.open == []
    assert "script" not in outline.names
    shown = NASTY.replace("\ud800", "?")
    assert outline.texts.count(shown) == 12
    assert html.encode()


def test_times_and_numbers_are_shown_as_people_read_them() -> None:
    moment = datetime(2027, 1, 15, 8, tzinfo=UTC)
    table = PageTable(tuple("abcdef"), ((moment, 10_000, 0.5, 1234.56789, "2027-01-15", True),))
    html = page("t", "l", [Section("s", (table,))], at_ms=AT_MS, asked={})

    cells = re.findall(r"<td>(.*?)</td>", html)
    times = ["<time>2027-01-15T08:00:00.000Z</time>", "<time>2027-01-15</time>"]
    assert cells == [times[0], "10,000", "0.5", "1,234.6", times[1], "True"]


DRAWN: dict[str, Callable[[], bytes]] = {
    "load": lambda: plots.load(
        [(AT_MS, {0: 5, 2: 70_000}), (AT_MS + 5 * MINUTE_MS, {1: 3})],
        width_ms=MINUTE_MS,
        now_ms=AT_MS - MINUTE_MS,
        drained=100.5,
    ),
    "load of many priorities": lambda: plots.load(
        [(AT_MS, dict.fromkeys(range(16), 1))], width_ms=MINUTE_MS
    ),
    "heat": lambda: plots.heat(
        {(AT_MS, 3): 5, (AT_MS + MINUTE_MS, 4): 9}, width_ms=MINUTE_MS, lanes=range(3, 7)
    ),
    "heat of many lanes": lambda: plots.heat(
        {(AT_MS, lane): lane for lane in range(1_100)}, width_ms=MINUTE_MS, lanes=range(1_100)
    ),
    "lateness": lambda: plots.lateness(
        [("2027-01-15", 0.0, 90_000.5, 1e9), ("2027-01-16", None, None, None)]
    ),
    "lateness of no time": lambda: plots.lateness([("2027-01-15", 0, 0, 0)]),
    "fates": lambda: plots.fates([("2027-01-15", {"acked": 7, "dead": 1, "exploded": 2})]),
    "balance of many": lambda: plots.balance([(str(n), n) for n in range(300)], of="node"),
}
EMPTY: dict[str, Callable[[], bytes]] = {
    "load": lambda: plots.load([], width_ms=MINUTE_MS),
    "load of zeros": lambda: plots.load([(AT_MS, {0: 0}), (AT_MS, {})], width_ms=MINUTE_MS),
    "heat": lambda: plots.heat({}, width_ms=MINUTE_MS, lanes=[]),
    "lateness": lambda: plots.lateness([]),
    "lateness of days without": lambda: plots.lateness([("2027-01-15", None, None, None)]),
    "fates": lambda: plots.fates([("2027-01-15", {})]),
    "balance": lambda: plots.balance([], of="lane"),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_plot_is_a_png(draw: Callable[[], bytes]) -> None:
    assert draw().startswith(PNG)


@pytest.mark.parametrize("draw", EMPTY.values(), ids=EMPTY)
def test_a_plot_of_nothing_says_so(draw: Callable[[], bytes]) -> None:
    assert draw().startswith(PNG)


@pytest.mark.parametrize("width_ms", [MINUTE_MS, 60 * MINUTE_MS], ids=["minutes", "days"])
def test_a_plot_counts_in_utc_and_is_the_same_each_time(width_ms: int) -> None:
    import matplotlib as mpl

    bars = [(AT_MS + number * width_ms, {0: number + 1}) for number in range(100)]
    first = plots.load(bars, width_ms=width_ms)
    with mpl.rc_context({"timezone": "Asia/Tokyo"}):
        assert plots.load(bars, width_ms=width_ms) == first


def test_nothing_heavy_is_imported_before_a_plot_is_drawn() -> None:
    room = Path(plots.__file__).parent
    heavy = {"matplotlib", "numpy"}
    found = [
        f"{path.name}:{node.lineno}"
        for path in room.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and (getattr(node, "module", None) or node.names[0].name).split(".")[0] in heavy
    ]
    assert found == []
