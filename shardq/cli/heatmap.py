"""The heat map of `calendar` as lines that fit a terminal.

```
 wide cells, colours     a number on its colour       hot: on red, or red at its left
 wide cells, none        a number                     hot: !1,234
 narrow cells, colours   a colour                     hot: red, or red at its left
 narrow cells, none      ink: ░ ▒ ▓ █                 hot: !▓
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from shardq.cli import screen
from shardq.pictures.colours import ON_SCREEN, RED, is_dark
from shardq.pictures.scale import short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.inspection.grid import Cell, Grid
    from shardq.pictures.loadmap import Panel

_INK = "░▒▓█"
_INK_ASCII = ".:*#"
_NUMBER_MIN = 5
"""Columns of a cell with room for a number: a mark, three characters and a space."""
_CELL_MAX = 8
_GAP = "  "
_TOTAL = 8
_HOT = "!"
_UNKNOWN = "?"


class HeatMap:
    """Draws the load ahead of one queue.

    Args:
        grid: The cells.
        panel: The contents of the cells, and the texts.
        width: Columns of the terminal; `screen.WIDE` without one.
        has_colours: True if the terminal shows colours.
        ascii_only: True if the terminal has no shades of ink.
    """

    def __init__(
        self, grid: Grid, panel: Panel, width: int, *, has_colours: bool, ascii_only: bool
    ) -> None:
        self._grid = grid
        self._panel = panel
        self._width = width
        self._has_colours = has_colours
        self._ink = _INK_ASCII if ascii_only else _INK
        self._none = "-" if ascii_only else "·"
        self._scale = panel.scale
        self._label = max(cell_len(row.label) for row in grid.rows)
        left = width - self._label - len(_GAP)
        self._total = _TOTAL if left >= _TOTAL + len(grid.columns) else 0
        room = (left - self._total) // len(grid.columns)
        longest = max(len(f"{load.total:,}") for load in panel.loads.values())
        # Without colours a cell is only as wide as its number.
        wide = _CELL_MAX if has_colours else max(longest + 2, _NUMBER_MIN)
        self._cell = max(min(room, wide), 1)
        self._has_numbers = self._cell >= _NUMBER_MIN

    def lines(self) -> Iterator[Text]:
        """All lines."""
        panel = self._panel
        yield from self._folded(panel.title, "bold")
        yield from self._folded(panel.subtitle)
        if any(load.total for load in panel.loads.values()):
            yield Text()
            yield from self._map()
            yield from self._legend()
        yield Text()
        for text in panel.warnings:
            yield from self._folded(text, screen.STYLES["warning"])
        for text in panel.lines:
            yield from self._folded(text)

    def _map(self) -> Iterator[Text]:
        lead = " " * (self._label + len(_GAP))
        total = "total".rjust(self._total) if self._total else ""
        yield Text(f"{lead}{self._heads()}{total}", style="dim", no_wrap=True)
        for row in self._grid.rows:
            line = Text(row.label.rjust(self._label) + _GAP, no_wrap=True)
            for cell in row.cells:
                line.append_text(self._drawn(cell))
            count = sum(self._panel.loads[cell].total for cell in row.cells if cell is not None)
            if count and self._total:
                line.append(short(count, _TOTAL - 1).rjust(_TOTAL), style="dim")
            yield line

    def _heads(self) -> str:
        """The heads of the columns; a head that would touch the one before is left out."""
        if self._has_numbers:
            return "".join(f"{head.rjust(self._cell - 1)} " for head in self._grid.columns)
        heads = ""
        for number, head in enumerate(self._grid.columns):
            if len(heads) <= number * self._cell:
                heads = f"{heads.ljust(number * self._cell)}{head} "
        return heads.rstrip().ljust(len(self._grid.columns) * self._cell)

    def _drawn(self, cell: Cell | None) -> Text:
        width = self._cell
        if cell is None:
            return Text(" " * width)
        total, is_hot = self._panel.loads[cell].total, cell in self._panel.hot
        if not total:
            none = _UNKNOWN if self._panel.is_unknown(cell) else self._none
            return Text(f"{none.rjust(width - 1)} " if width > 1 else none, style="dim")
        number = short(total, width - 2) if self._has_numbers else ""
        if not self._has_colours:
            mark = _HOT if is_hot else ""
            if self._has_numbers:
                return Text(f"{mark}{number}".rjust(width - 1) + " ")
            return Text(mark.ljust(width, self._inked(total)))
        if self._panel.is_all_hot(cell):
            return Text(f"{number} ".rjust(width), style=_on(RED))
        # Mark one column of a cell that has a hot minute.
        stripe = int(is_hot)
        drawn = Text().append(" " * stripe, style=_on(RED))
        return drawn.append(f"{number} ".rjust(width)[stripe:], style=_on(self._colour(total)))

    def _colour(self, count: int) -> str:
        return ON_SCREEN[self._scale.shade(count, len(ON_SCREEN))]

    def _inked(self, count: int) -> str:
        return self._ink[self._scale.shade(count, len(self._ink))]

    def _legend(self) -> Iterator[Text]:
        """The meaning of colours and ink; nothing if numbers show it."""
        if self._has_numbers and not self._has_colours:
            return
        keys: list[Text] = []
        said = ""
        for key in self._scale.keys:
            if self._has_colours:
                keys.append(Text(f" {key:,}+ ", style=_on(self._colour(key))))
            elif said != (said := self._inked(key)):
                # Show each ink once, because several levels may share it.
                keys.append(Text(f" {said} {key:,}+"))
        if self._panel.hot and self._has_colours:
            keys.append(Text(" hot ", style=_on(RED)))
        elif self._panel.hot:
            keys.append(Text(f" {_HOT} hot"))
        line = Text(f"due in {self._grid.cell}:")
        yield Text()
        for text in keys:
            if cell_len(line.plain) + cell_len(text.plain) >= self._width:
                yield line
                line = Text(_GAP)
            line.append(" ")
            line.append_text(text)
        yield line

    def _folded(self, text: str, style: str = "") -> Iterator[Text]:
        for line in screen.wrapped(screen.kept_together(text), self._width, indent=_GAP):
            yield Text(line, style=style)


def _on(colour: str) -> str:
    return f"{'#ffffff' if is_dark(colour) else '#000000'} on {colour}"
