"""Lists of messages. Ids are never cut, so that they can be copied; other texts may be cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from rich.cells import cell_len
from rich.text import Text

from shardq.cli import options, screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_T = TypeVar("_T")
Row: TypeAlias = "Mapping[str, str | Text]"
"""The cells of a row by their heads; a cell that is a `Text` is never cut."""

_GAP = "  "
_INDENT = "    "
_FREE_MIN = 20
"""The least columns for a cut text; with less room it is not worth reading."""


def show_all(
    found: Sequence[_T],
    to_json: Callable[[_T], Mapping[str, Any]],
    to_row: Callable[[_T], Row],
    *,
    free: int,
    empty: str,
) -> None:
    """Print objects: with `--json` as lines of JSON, otherwise as a list.

    Args:
        found: The objects.
        to_json: Returns an object for programs.
        to_row: Returns the cells of an object.
        free: How many of the last columns may be cut.
        empty: The sentence for people if there are none.
    """
    if options.is_json():
        for one in found:
            screen.print_json(to_json(one))
    elif found:
        show([to_row(one) for one in found], free=free)
    else:
        click.echo(empty)


def show(rows: Sequence[Row], *, free: int) -> None:
    """Print rows under their heads.

    Args:
        rows: The cells by their heads, the same in each row. A column whose head begins with `>`
            holds numbers.
        free: How many of the last columns may be cut.
    """
    cells = [
        [screen.exact(cell) if isinstance(cell, str) else cell for cell in row.values()]
        for row in rows
    ]
    print_lines(lines(list(rows[0]), cells, free=free, width=screen.console().width))


def print_lines(made: Iterable[Text]) -> None:
    """Print lines as they are."""
    to = screen.console()
    for line in made:
        if to.is_terminal:
            # Let the terminal wrap long lines, so that copied text contains no inserted line ends.
            to.print(line, soft_wrap=True, highlight=False)
        else:
            click.echo(line.plain)


def lines(
    heads: Sequence[str], rows: Sequence[Sequence[Text]], *, free: int, width: int
) -> list[Text]:
    """The lines of a list; if the last columns have too little room, they go below the others.

    Args:
        heads: The columns' titles; one that begins with `>` holds numbers.
        rows: A text for each column.
        free: How many of the last columns may be cut.
        width: Columns of the terminal.
    """
    titles = [Text(head.removeprefix(">"), style="bold") for head in heads]
    table = [titles, *rows]
    widths = [max(cell_len(row[n].plain) for row in table) for n in range(len(heads))]
    fixed = len(heads) - free
    room = width - sum(widths[:fixed]) - len(_GAP) * fixed
    is_below = room < free * _FREE_MIN and room < sum(widths[fixed:]) + len(_GAP) * (free - 1)
    if is_below:
        room = width - len(_INDENT)
    # Each column gets an equal share, and the room that narrower columns leave.
    by_width = sorted(range(fixed, len(heads)), key=lambda n: widths[n])
    for left, n in zip(range(free, 0, -1), by_width, strict=True):
        widths[n] = min(widths[n], max((room - len(_GAP) * (left - 1)) // left, 1))
        room -= widths[n] + len(_GAP)
    made = []
    for row in table:
        cells = [
            _set(cell, width, is_right=head.startswith(">"), is_fixed=n < fixed)
            for n, (cell, width, head) in enumerate(zip(row, widths, heads, strict=True))
        ]
        if is_below:
            made += [_joined(cells[:fixed]), Text(_INDENT) + _joined(cells[fixed:])]
        else:
            made.append(_joined(cells))
    for line in made:
        line.rstrip()
    return made


def _set(cell: Text, width: int, *, is_right: bool, is_fixed: bool) -> Text:
    if not is_fixed and cell_len(cell.plain) > width:
        cell = screen.plain(cell.plain, width)
    space = Text(" " * (width - cell_len(cell.plain)))
    return space + cell if is_right else cell + space


def _joined(cells: Sequence[Text]) -> Text:
    return Text(_GAP).join(cells)
