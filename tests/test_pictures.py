"""Pictures: levels that people like, SVG that needs nothing, PNG that says the same."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.inspection.calendar import Calendar, Load
from shardq.inspection.depth import Depth
from shardq.inspection.grid import By, Grid, lay_out
from shardq.model.times import due_ms
from shardq.pictures.colours import ON_PAPER, ON_SCREEN, RED, is_dark
from shardq.pictures.drawing import Drawing
from shardq.pictures.loadmap import Panel, load_map
from shardq.pictures.scale import LEVELS_MAX, Scale, short

SVG = "{http://www.w3.org/2000/svg}"
PNG = b"\x89PNG\r\n\x1a\n"
AT_MS = due_ms("2026-11-26T12:00:30Z")
MINUTE_MS = 60_000


def panel(grid: Grid, minutes: dict[int, int], *hot: int) -> Panel:
    loads = {start: Load(rows) for start, rows in sorted(minutes.items())}
    calendar = Calendar("mail", AT_MS, grid.until_ms, loads, Depth(0, 0, 0, exact=True))
    return Panel(
        "mail: the load ahead",
        "until 13:01",
        grid.loads(calendar.minutes),
        grid.cells_of(hot),
        ["Hot."],
        ["Ok."],
    )


@pytest.fixture(scope="module")
def grid() -> Grid:
    return lay_out(AT_MS, 3_600_000, By.MINUTE, ZoneInfo("UTC"))


@pytest.fixture(scope="module")
def drawn(grid: Grid) -> Drawing:
    first_ms = AT_MS - AT_MS % MINUTE_MS
    minutes = {first_ms: 3, first_ms + MINUTE_MS: 12_345, first_ms + 5 * MINUTE_MS: 40}
    return load_map(grid, [panel(grid, minutes, first_ms + MINUTE_MS)])


def test_a_heat_map_has_a_cell_for_each_minute_and_numbers_in_those_with_any(
    drawn: Drawing,
) -> None:
    root = ET.fromstring(drawn.svg())
    titles = [one.text for one in root.iter(f"{SVG}title")]
    assert titles[:3] == [
        "mail: the load ahead",
        "Thu 26 Nov 12:00: 3",
        "Thu 26 Nov 12:01: 12,345",
    ]
    assert len(titles) == 1 + 61
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert {"3", "12,345", "40", "12,388", "+0", "12:00", "hot", "Hot.", "Ok."} <= set(texts)


def test_a_hot_cell_is_red_and_no_other_is(drawn: Drawing) -> None:
    root = ET.fromstring(drawn.svg())
    red = [one for one in root.iter(f"{SVG}rect") if one.get("fill") == RED]
    assert ["".join(one.itertext()) for one in red] == ["Thu 26 Nov 12:01: 12,345", ""]


def test_an_hour_that_has_a_hot_minute_keeps_the_colour_of_its_load() -> None:
    hours = lay_out(AT_MS, 5 * 3_600_000, By.HOUR, ZoneInfo("UTC"))
    minute = AT_MS - AT_MS % MINUTE_MS + 30 * MINUTE_MS
    drawing = load_map(hours, [panel(hours, {minute: 100, minute + 3_600_000: 100}, minute)])
    boxes = list(ET.fromstring(drawing.svg()).iter(f"{SVG}rect"))
    cells = [one for one in boxes if (one.findtext(f"{SVG}title") or "").endswith(": 100")]
    assert [one.get("fill") for one in cells] == [cells[0].get("fill")] * 2 != [RED] * 2
    stripe, legend = [one for one in boxes if one.get("fill") == RED]
    assert (stripe.get("x"), stripe.get("y")) == (cells[0].get("x"), cells[0].get("y"))
    assert float(stripe.get("width", 0)) < float(legend.get("width", 0))


def test_nothing_is_drawn_outside_of_the_picture(drawn: Drawing) -> None:
    root = ET.fromstring(drawn.svg())
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for one in root.iter(f"{SVG}rect"):
        assert 0 <= float(one.get("x", 0)) <= width - float(one.get("width", 0))
        assert 0 <= float(one.get("y", 0)) <= height - float(one.get("height", 0))
    for one in root.iter(f"{SVG}text"):
        assert 0 <= float(one.get("x", 0)) <= width
        assert 0 <= float(one.get("y", 0)) <= height


def test_an_svg_loads_and_runs_nothing(drawn: Drawing) -> None:
    names = {one.tag.removeprefix(SVG) for one in ET.fromstring(drawn.svg()).iter()}
    assert names == {"svg", "title", "rect", "text"}


def test_what_a_text_has_of_markup_is_a_text() -> None:
    drawing = Drawing(100, "<b>&", 50)
    drawing.text(0, 10, '<script>"&')
    drawing.box(0, 0, 1, 1, RED, title="</title>\ud800")
    root = ET.fromstring(drawing.svg())
    assert [one.text for one in root.iter(f"{SVG}text")] == ['<script>"&']
    assert [one.text for one in root.iter(f"{SVG}title")] == ["<b>&", "</title>?"]


def test_a_png_is_twice_as_fine_and_the_same_each_time(drawn: Drawing) -> None:
    pytest.importorskip("matplotlib")
    png = drawn.png()
    assert png.startswith(PNG)
    width, height = (int.from_bytes(png[n : n + 4]) for n in (16, 20))
    assert (width, height) == (int(2 * drawn.width), int(2 * drawn.height))
    assert png == drawn.png()


def test_a_queue_with_nothing_ahead_has_no_map(grid: Grid) -> None:
    root = ET.fromstring(load_map(grid, [panel(grid, {})]).svg())
    assert len(list(root.iter(f"{SVG}rect"))) == 1
    assert "Ok." in [one.text for one in root.iter(f"{SVG}text")]


def test_what_was_not_counted_is_shown_as_unknown(grid: Grid) -> None:
    first_ms = AT_MS - AT_MS % MINUTE_MS
    given = panel(grid, {first_ms: 3, first_ms + 50 * MINUTE_MS: 7})
    shown = replace(given, known_until_ms=first_ms + 40 * MINUTE_MS)
    texts = [one.text for one in ET.fromstring(load_map(grid, [shown]).svg()).iter(f"{SVG}text")]
    assert texts.count("?") == 20
    assert texts.count("7") == 2


def test_a_long_name_stays_within_the_picture(grid: Grid) -> None:
    long = replace(panel(grid, {}), title=f"{'x' * 100}: the load ahead")
    texts = [
        one.text or "" for one in ET.fromstring(load_map(grid, [long]).svg()).iter(f"{SVG}text")
    ]
    assert max(map(len, texts)) < 100
    assert "".join(texts).count("x") == 100


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50))
def test_a_scale_has_few_levels_that_grow_with_the_count(counts: list[int]) -> None:
    scale = Scale(counts)
    assert 1 <= len(scale.bounds) <= LEVELS_MAX
    assert scale.bounds[0] == 1
    assert list(scale.bounds) == sorted(set(scale.bounds))
    shades = [scale.shade(count, 6) for count in sorted(counts)]
    assert shades == sorted(shades)
    assert 0 <= shades[0] <= shades[-1] <= 5
    assert scale.keys == tuple(bound for bound in scale.bounds if bound <= max(counts))


def test_a_load_that_is_the_same_all_the_time_is_neither_little_nor_much() -> None:
    for count in (10, 40, 7_000):
        scale = Scale([count] * 60)
        assert 1 <= scale.shade(count, 6) <= 3


def test_nothing_has_no_levels() -> None:
    assert Scale([0, 0]).bounds == Scale([]).keys == ()


@given(st.integers(0, 10**13 - 1), st.integers(3, 9))
def test_a_count_fits_its_room_and_is_nearly_right(count: int, room: int) -> None:
    text = short(count, room)
    assert len(text) <= room
    number = text.rstrip("kMGT").replace(",", "")
    unit = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}.get(text[-1], 1)
    last_digit = unit / 10 ** len(number.partition(".")[2])
    assert abs(float(number) * unit - count) <= 0.501 * last_digit


@pytest.mark.parametrize("ramp", [ON_PAPER, ON_SCREEN])
def test_a_ramp_goes_from_one_end_to_the_other_in_brightness(ramp: tuple[str, ...]) -> None:
    bright = [sum(int(one[n : n + 2], 16) for n in (1, 3, 5)) for one in ramp]
    assert bright in (sorted(bright), sorted(bright, reverse=True))
    assert is_dark(ramp[0]) is not is_dark(ramp[-1])
