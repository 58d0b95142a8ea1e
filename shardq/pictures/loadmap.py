"""The load ahead of queues as a picture: a heat map for each, and sentences about it below."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardq.model.shard import MINUTE_MS
from shardq.model.times import moment_of
from shardq.pictures.colours import DARK, ON_PAPER, RED, is_dark
from shardq.pictures.drawing import Drawing
from shardq.pictures.scale import Scale, short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq.inspection.calendar import Load
    from shardq.inspection.grid import Cell, Grid

_NONE = "#f1f1f1"
_FAINT = "#666666"
_MARGIN = 24
_LABEL = 92
_TOTAL = 64
_GAP = 2
_CELL_HEIGHT = 24
_LINE = 19
_TITLE = 17
_SIZE = 12
_SMALL = 10
_LETTER = 0.58
"""The width of a letter as a share of its size, in the widest font that is likely."""
_WIDTHS = {7: 92, 10: 64, 12: 54}
_WIDTH = 32
_SWATCH = 22
_RARE = 10
"""Hot cells are rare if at most one cell in this many is hot."""
_STRIPE = 4
"""The width of the mark at the left of a cell that has a hot minute."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One queue's heat map.

    Attributes:
        title: The title, which names the queue.
        subtitle: The line below: the whole load, its time, and the zone of the clocks.
        loads: The load of each cell of the grid.
        hot: The cells that have a minute that is too full.
        warnings: Sentences about the hot cells.
        lines: Other sentences about the queue.
        known_until_ms: The end of the counted time, epoch milliseconds. A later cell without a load
            may have one that was not counted. None: all cells were counted.
    """

    title: str
    subtitle: str
    loads: Mapping[Cell, Load]
    hot: frozenset[Cell]
    warnings: Sequence[str] = ()
    lines: Sequence[str] = ()
    known_until_ms: int | None = None

    def is_all_hot(self, cell: Cell) -> bool:
        """True if a cell is shown as hot as a whole, and not only marked at its left.

        A cell of one minute is. A longer cell is only if hot cells are rare, because otherwise the
        map would show little else.
        """
        is_minute = cell.end_ms - cell.start_ms <= MINUTE_MS
        is_rare = len(self.hot) * _RARE <= len(self.loads)
        return cell in self.hot and (is_minute or is_rare)

    def is_unknown(self, cell: Cell) -> bool:
        """True if the load of a cell was not counted."""
        until_ms = self.known_until_ms
        return not self.loads[cell].total and until_ms is not None and cell.start_ms >= until_ms

    @property
    def scale(self) -> Scale:
        """The colour scale of the cells that are not shown as hot as a whole."""
        loads = self.loads.items()
        return Scale(load.total for cell, load in loads if not self.is_all_hot(cell))


def load_map(grid: Grid, panels: Sequence[Panel]) -> Drawing:
    """Heat maps of queues below one another.

    Args:
        grid: The cells of each heat map.
        panels: The heat maps, one for each queue.
    """
    cell_width = _WIDTHS.get(len(grid.columns), _WIDTH)
    inner = _LABEL + len(grid.columns) * cell_width + _TOTAL
    titles = ", ".join(panel.title for panel in panels)
    drawing = Drawing(inner + 2 * _MARGIN, titles, _MARGIN)
    for number, panel in enumerate(panels):
        drawing.height += 2 * _LINE if number else 0
        _draw(drawing, grid, panel, cell_width)
    drawing.height += _MARGIN - _LINE / 2
    return drawing


def _draw(drawing: Drawing, grid: Grid, panel: Panel, cell_width: float) -> None:
    drawing.height += _LINE - 4
    for number, line in enumerate(_wrapped(panel.title, drawing.width, _TITLE)):
        drawing.height += _LINE if number else 0
        drawing.text(_MARGIN, drawing.height, line, size=_TITLE, bold=True)
    for line in _wrapped(panel.subtitle, drawing.width):
        drawing.height += _LINE
        drawing.text(_MARGIN, drawing.height, line, fill=_FAINT)
    if any(load.total for load in panel.loads.values()):
        _draw_map(drawing, grid, panel, cell_width)
    drawing.height += 6
    for texts, fill in ((panel.warnings, RED), (panel.lines, DARK)):
        for line in (line for text in texts for line in _wrapped(text, drawing.width)):
            drawing.height += _LINE
            drawing.text(_MARGIN, drawing.height, line, fill=fill)


def _draw_map(drawing: Drawing, grid: Grid, panel: Panel, cell_width: float) -> None:
    drawing.height += _LINE + 8
    left = _MARGIN + _LABEL
    for number, head in enumerate(grid.columns):
        middle = left + (number + 0.5) * cell_width
        drawing.text(middle, drawing.height, head, size=_SMALL, anchor="middle", fill=_FAINT)
    right = drawing.width - _MARGIN
    drawing.text(right, drawing.height, "total", size=_SMALL, anchor="end", fill=_FAINT)
    drawing.height += 7
    scale = panel.scale
    for row in grid.rows:
        baseline = drawing.height + _CELL_HEIGHT / 2 + 4
        drawing.text(left - 10, baseline, row.label, size=_SMALL + 1, anchor="end")
        for number, cell in enumerate(row.cells):
            if cell is not None:
                x = left + number * cell_width
                _draw_cell(drawing, panel, grid, cell, scale, (x, cell_width))
        total = sum(panel.loads[cell].total for cell in row.cells if cell is not None)
        if total:
            text = short(total, 9)
            drawing.text(right, baseline, text, size=_SMALL + 1, anchor="end", fill=_FAINT)
        drawing.height += _CELL_HEIGHT
    drawing.height += 10
    _draw_legend(drawing, grid, scale, has_hot=bool(panel.hot))


def _draw_cell(
    drawing: Drawing,
    panel: Panel,
    grid: Grid,
    cell: Cell,
    scale: Scale,
    across: tuple[float, float],
) -> None:
    x, width = across
    load = panel.loads[cell]
    is_all_hot = panel.is_all_hot(cell)
    fill = RED if is_all_hot else _NONE
    if load.total and not is_all_hot:
        fill = ON_PAPER[scale.shade(load.total, len(ON_PAPER))]
    top = drawing.height
    title = f"{moment_of(cell.start_ms).astimezone(grid.zone):%a %-d %b %H:%M}: {load.total:,}"
    drawing.box(x, top, width - _GAP, _CELL_HEIGHT - _GAP, fill, title=title)
    stripe = _STRIPE if cell in panel.hot and not is_all_hot else 0
    if stripe:
        drawing.box(x, top, stripe, _CELL_HEIGHT - _GAP, RED)
    if load.total or panel.is_unknown(cell):
        room = int((width - _STRIPE - _GAP) / (_SMALL * _LETTER))
        drawing.text(
            x + (width - _GAP + stripe) / 2,
            top + _CELL_HEIGHT / 2 + 3,
            short(load.total, room) if load.total else "?",
            size=_SMALL,
            anchor="middle",
            fill="#ffffff" if is_dark(fill) else DARK,
            bold=is_all_hot,
        )


def _draw_legend(drawing: Drawing, grid: Grid, scale: Scale, *, has_hot: bool) -> None:
    drawing.height += 12
    x: float = _MARGIN + _LABEL
    said = f"due in {grid.cell}:"
    drawing.text(x - 10, drawing.height, said, size=_SMALL, anchor="end", fill=_FAINT)
    keys = [("none", _NONE)]
    keys += [(f"{key:,}+", ON_PAPER[scale.shade(key, len(ON_PAPER))]) for key in scale.keys]
    if has_hot:
        keys.append(("hot", RED))
    for text, fill in keys:
        drawing.box(x, drawing.height - 10, _SWATCH, 12, fill)
        drawing.text(x + _SWATCH + 5, drawing.height, text, size=_SMALL, fill=_FAINT)
        x += _SWATCH + 5 + len(text) * _SMALL * _LETTER + 12


def _wrapped(text: str, width: float, size: float = _SIZE) -> list[str]:
    return textwrap.wrap(text, int((width - 2 * _MARGIN) / (size * _LETTER)))
