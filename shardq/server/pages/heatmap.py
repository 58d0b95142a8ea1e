"""A heat map of load as SVG within a page: colours are classes, which the style sheet sets.

```
 grid, panel ─► rows of cells, a title each ─► legend
```

The colours show nothing that texts do not: each cell has its numbers in a title, and the page lists
the fullest cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from shardq.inspection.grid import By
from shardq.inspection.outlook import clock
from shardq.pictures.scale import LEVELS_MAX, short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.inspection.calendar import Load
    from shardq.inspection.grid import Cell, Grid
    from shardq.pictures.loadmap import Panel
    from shardq.pictures.scale import Scale

_LABEL = 78
_TOTAL = 62
_HEAD = 18
_LETTER = 7
"""The width of a digit, in the widest font that is likely."""
_SIZES = {By.MINUTE: (16, 18), By.HOUR: (34, 24), By.DAY: (108, 28)}
"""Width and height of a cell with the gap after it; only wide cells have a number."""
_NUMBER_MIN = 30
_GAP = 1
_HEAD_EVERY = {By.MINUTE: 5, By.HOUR: 1, By.DAY: 1}
_SWATCH = 20

_SVG = (
    '<svg class="map" role="img" aria-labelledby="map-title" width="{0}" height="{1}" '
    'viewBox="0 0 {0} {1}"><title id="map-title">{2}</title>{3}</svg>'
)


def heat_map(grid: Grid, panel: Panel) -> Markup:
    """A heat map.

    Args:
        grid: The cells.
        panel: Their load.
    """
    wide, high = _SIZES[grid.by]
    width = _LABEL + len(grid.columns) * wide + _TOTAL
    scale = panel.scale
    parts = [*_heads(grid, wide)]
    for number, row in enumerate(grid.rows):
        top = _HEAD + number * high
        middle = top + high // 2 + 4
        parts.append(_text("label", _LABEL - 8, middle, row.label))
        for column, cell in enumerate(row.cells):
            if cell is not None:
                parts += _cell(grid, panel, cell, scale, (_LABEL + column * wide, top))
        total = sum(panel.loads[cell].total for cell in row.cells if cell is not None)
        if total:
            parts.append(_text("total", width, middle, short(total, 8)))
    bottom = _HEAD + len(grid.rows) * high
    parts += _legend(grid, scale, bottom + 8, has_hot=bool(panel.hot))
    made = _SVG.format(width, bottom + 32, escape(panel.title), "".join(parts))
    return Markup(made)  # noqa: S704 - all texts in it are escaped


def _heads(grid: Grid, wide: int) -> Iterator[str]:
    for column, head in enumerate(grid.columns):
        if column % _HEAD_EVERY[grid.by] == 0:
            middle = _LABEL + column * wide + (wide - _GAP) // 2
            yield _text("head", middle, _HEAD - 6, head)


def _cell(grid: Grid, panel: Panel, cell: Cell, scale: Scale, at: tuple[int, int]) -> Iterator[str]:
    """A cell, and its number if there is room."""
    (x, y), (wide, high) = at, _SIZES[grid.by]
    load = panel.loads[cell]
    shape = x, y, wide - _GAP, high - _GAP
    if not load.total:
        yield _rect("none", *shape)
        return
    level = _level(scale, load.total)
    if panel.is_all_hot(cell):
        level = "hot"
    yield _rect(level, *shape, title_of(grid, cell, load))
    if wide >= _NUMBER_MIN:
        text = short(load.total, max(wide // _LETTER - 1, 3))
        yield _text(f"number on-{level}", x + (wide - _GAP) // 2, y + high // 2 + 4, text)


def title_of(grid: Grid, cell: Cell, load: Load) -> str:
    """A cell in words: `14:05: 3 messages, 2 firings`."""
    if grid.by is By.DAY:
        start = clock(cell.start_ms, 0, grid.zone, seconds=False)[:-6]
    else:
        start = clock(cell.start_ms, grid.at_ms, grid.zone, seconds=False)
    parts = [
        f"{count:,} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((load.rows, "message"), (load.firings, "firing"))
        if count
    ]
    return f"{start}: {', '.join(parts)}"


def _level(scale: Scale, count: int) -> str:
    return f"level-{scale.shade(count, LEVELS_MAX)}"


def _legend(grid: Grid, scale: Scale, top: int, *, has_hot: bool) -> Iterator[str]:
    x = _LABEL
    keys = [("none", "none"), *((f"{key:,}+", _level(scale, key)) for key in scale.keys)]
    if has_hot:
        keys.append(("hot", "hot"))
    said = f"due in {grid.cell}:"
    yield _text("legend", x, top + 13, said)
    x += len(said) * _LETTER + 4
    for text, level in keys:
        yield _rect(level, x, top + 2, _SWATCH, 14)
        yield _text("legend", x + _SWATCH + 5, top + 13, text)
        x += _SWATCH + len(text) * _LETTER + 18


def _rect(kind: str, x: int, y: int, width: int, height: int, title: str = "") -> str:
    said = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}">{said}</rect>'


def _text(kind: str, x: int, y: int, text: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'
