"""The load ahead as a heat map, with hot minutes and the share of each queue."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.inspection.calendar import Load
from shardq.inspection.grid import By, lay_out
from shardq.inspection.outlook import clock
from shardq.model.shard import MINUTE_MS
from shardq.model.times import due_ms, duration_ms
from shardq.pictures.loadmap import Panel
from shardq.schedules.triggers.zones import zone_of
from shardq.server.pages.heatmap import heat_map, title_of
from shardq.server.pages.page import Template

if TYPE_CHECKING:
    from markupsafe import Markup

    from shardq.inspection.grid import Grid
    from shardq.server.pages.page import Page

SPANS = {"1d": ("The next day, by minute", By.MINUTE), "90d": ("90 days, by day", By.DAY)}
"""The span of a page -> its title, and the length of a cell."""
WITHIN = "300ms"
"""How long a page waits for queues that are not counted yet."""
_FULLEST_MAX = 10
_HOT_MAX = 25


class Full(NamedTuple):
    """One of the fullest cells.

    Attributes:
        text: Its start and its load, in words.
        start: Its start, epoch milliseconds.
        rows: Messages.
        firings: Firings of schedules.
    """

    text: str
    start: int
    rows: int
    firings: int


class Drawn(NamedTuple):
    """A calendar as a page shows it.

    Attributes:
        found: The answer of `/v1`.
        picture: The heat map.
        rows: Label, and sum of messages and firings, of each row of the map: the text of the map.
        fullest: The fullest cells, the fullest first.
    """

    found: dict[str, Any]
    picture: Markup
    rows: list[tuple[str, int]]
    fullest: list[Full]


async def calendar(page: Page) -> Template:
    """The load ahead of a queue, or of all."""
    queue, zone = page.query.get("queue", ""), page.query.get("tz", "")
    span = page.query.get("span", "")
    span = span if span in SPANS else "1d"
    name = ("calendar", queue, zone, span)
    drawn = await page.shared(name, lambda: _drawn(page, queue, zone, span))
    names = await page.names()
    found = drawn.found
    if found["uncounted"]:
        page.forget(name)
    return Template(
        "calendar",
        {
            "queue": queue,
            "names": sorted({*names, queue} - {""}),
            "zone": zone,
            "span": span,
            "spans": {one: text for one, (text, _) in SPANS.items()},
            "drawn": drawn,
            "hot": found["hot"][:_HOT_MAX],
            "hot_more": len(found["hot"]) - _HOT_MAX,
            "queues": sorted(
                (one for one in found["queues"] if _total(one)),
                key=lambda one: (-_total(one), one["queue"]),
            ),
        },
    )


def _total(one: dict[str, Any]) -> int:
    return int(one.get("messages", 0) + one.get("firings", 0))


async def _drawn(page: Page, queue: str, zone: str, span: str) -> Drawn:
    by = SPANS[span][1]
    asked = {"queue": queue, "tz": zone, "horizon": span, "by": by.value, "within": WITHIN}
    given = {name: value for name, value in asked.items() if value}
    found = await page.call("GET", "calendar", query=given)
    at_ms, horizon_ms = due_ms(found["at"]), duration_ms(span)
    grid = lay_out(at_ms, horizon_ms, by, zone_of(found["zone"]), is_fine=True)
    minutes = {
        due_ms(one["start"]): Load(one.get("messages", 0), one.get("firings", 0))
        for one in found["cells"]
    }
    loads = grid.loads(minutes)
    hot = grid.cells_of(
        chain.from_iterable(
            range(due_ms(one["start"]), due_ms(one["end"]), MINUTE_MS) for one in found["hot"]
        )
    )
    panel = Panel(_title(found, queue, grid), "", loads, hot)
    full = sorted((cell for cell in loads if loads[cell].total), key=lambda one: -loads[one].total)
    return Drawn(
        found,
        heat_map(grid, panel),
        [
            (row.label, sum(loads[cell].total for cell in row.cells if cell is not None))
            for row in grid.rows
        ],
        [
            Full(title_of(grid, cell, loads[cell]), cell.start_ms, *loads[cell])
            for cell in full[:_FULLEST_MAX]
        ],
    )


def _title(found: dict[str, Any], queue: str, grid: Grid) -> str:
    until = clock(grid.until_ms, grid.at_ms, grid.zone, seconds=False)
    return (
        f"The load ahead of {queue or 'all queues'} until {until} {found['zone']}: "
        f"{found['messages']:,} messages and {found['firings']:,} firings of schedules"
    )
