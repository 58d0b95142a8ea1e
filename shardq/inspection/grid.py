"""The time ahead as rows of cells, by the clocks of a zone: the layout of a heat map of load.

```
 minute, to 2 h    a row of ten minutes     14:20  0 1 2 .. 9
 minute, to 2 d    a row an hour            14:00  :00 :05 .. :55   or each minute, if asked for
 hour              a row a day              Thu 26 Nov  0 1 2 .. 23
 day               a row a week             23 Nov  Mon Tue .. Sun
```

If clocks go back, the repeated hour gets its own row, or its own column, which other days leave
empty. If they go forward, the skipped row or cell is missing.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shardq.errors import BadTime
from shardq.inspection.calendar import Load
from shardq.model.shard import HOUR_MS, MINUTE_MS
from shardq.model.times import duration_text, moment_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime, tzinfo

_DAY_MS = 24 * HOUR_MS
_SINGLE_MS = 2 * HOUR_MS
"""Up to this horizon a cell is a minute, beyond it five."""
_BLOCK_MINUTES = 5
_HOUR_MINUTES = 60
_QUARTER_MS = 15 * MINUTE_MS
"""Every zone is off UTC by a multiple of this, so that hours begin only at such times."""
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class By(StrEnum):
    """The length of a heat map's cell."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


HORIZON_MS_MAX = {By.MINUTE: 2 * _DAY_MS, By.HOUR: 62 * _DAY_MS, By.DAY: 366 * _DAY_MS}
"""Length of a cell -> how far ahead a heat map may reach."""


class Cell(NamedTuple):
    """A stretch of time, epoch milliseconds; the first one begins at the calendar's now."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class GridRow:
    """Cells aligned with those of other rows; None for times that do not exist."""

    label: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A heat map without its colours.

    Attributes:
        by: The length of a cell.
        cell: The length of a cell as text, `a minute` or `5 minutes`.
        zone: The zone of the clocks.
        columns: The heads of the columns.
        rows: The rows in order of time.
        at_ms: The beginning of the first cell, epoch milliseconds.
        until_ms: The end of the last cell.
        changes: The changes of the clocks in that time, each a sentence without its full stop.
    """

    by: By
    cell: str
    zone: tzinfo
    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]
    at_ms: int
    until_ms: int
    changes: tuple[str, ...]

    def loads(self, minutes: Mapping[int, Load]) -> dict[Cell, Load]:
        """The load of each cell, including empty ones.

        Args:
            minutes: Start of a minute, epoch milliseconds -> its load.
        """
        found = {cell: Load() for row in self.rows for cell in row.cells if cell is not None}
        for cell, start_ms in self._places(minutes):
            before, load = found[cell], minutes[start_ms]
            found[cell] = Load(before.rows + load.rows, before.firings + load.firings)
        return found

    def cells_of(self, minutes: Iterable[int]) -> frozenset[Cell]:
        """The cells that contain some of these minutes, given by their starts in milliseconds."""
        return frozenset(cell for cell, _ in self._places(minutes))

    def _places(self, minutes: Iterable[int]) -> Iterator[tuple[Cell, int]]:
        """(cell, start of a minute) for each minute that has a cell."""
        cells = sorted(cell for row in self.rows for cell in row.cells if cell is not None)
        ends = [cell.end_ms for cell in cells]
        for start_ms in minutes:
            number = bisect_right(ends, start_ms)
            if number < len(cells):
                yield cells[number], start_ms


def by_of(horizon_ms: int) -> By:
    """The usual length of a cell for a horizon."""
    if horizon_ms <= HORIZON_MS_MAX[By.MINUTE]:
        return By.MINUTE
    return By.HOUR if horizon_ms <= HORIZON_MS_MAX[By.HOUR] else By.DAY


def lay_out(at_ms: int, horizon_ms: int, by: By, zone: tzinfo, *, is_fine: bool = False) -> Grid:
    """The cells from now on to the end of the cell that contains the horizon.

    Args:
        at_ms: Now, epoch milliseconds.
        horizon_ms: How far ahead, from a minute.
        by: The length of a cell.
        zone: The zone of the clocks.
        is_fine: True to make each row an hour of 60 minutes; only if a cell is a minute.

    Raises:
        BadTime: If the horizon is out of bounds.
    """
    most_ms = HORIZON_MS_MAX[by]
    if not MINUTE_MS <= horizon_ms <= most_ms:
        raise BadTime(
            f"horizon must be 1m to {duration_text(most_ms)} where a cell is a {by}, "
            f"not {duration_text(horizon_ms)}."
        )
    view = _view(by, horizon_ms, is_fine=is_fine)
    labels: list[str] = []
    rows: list[dict[int, Cell]] = []
    row = place = None
    before: datetime | None = None
    start_ms = at_ms - at_ms % view.slot_ms
    while True:
        here = moment_of(start_ms).astimezone(zone)
        found = view.row(here), view.column(here)
        if start_ms >= at_ms + horizon_ms and found != place:
            break
        place = found
        if place[0] != row:
            row = place[0]
            labels.append(view.label(here, before))
            rows.append({})
            before = here
        cells, column = rows[-1], place[1]
        first_ms = cells[column].start_ms if column in cells else max(start_ms, at_ms)
        start_ms += view.slot_ms
        cells[column] = Cell(first_ms, start_ms)
    columns = sorted({*view.columns, *(column for cells in rows for column in cells)})
    return Grid(
        by,
        view.cell,
        zone,
        tuple(map(view.head, columns)),
        tuple(
            GridRow(label, tuple(map(cells.get, columns)))
            for label, cells in zip(labels, rows, strict=True)
        ),
        at_ms,
        start_ms,
        tuple(_changes(at_ms, start_ms, zone)),
    )


# Views --------------------------------------------------------------------------------------------


class _View(Protocol):
    """Places times in rows and columns; columns are numbered in order."""

    cell: str
    slot_ms: int
    """Times of one slot share a cell."""
    columns: range
    """The columns that always exist."""

    def row(self, here: datetime, /) -> object:
        """A value that differs from row to row."""

    def column(self, here: datetime, /) -> int:
        """The number of a time's column."""

    def label(self, here: datetime, before: datetime | None, /) -> str:
        """The label of a row, by its first time and the first time of the row before."""

    def head(self, column: int, /) -> str:
        """The head of a column."""


class _Minutes:
    """A row is an hour, or a part of one."""

    slot_ms = MINUTE_MS

    def __init__(self, a_row: int, a_cell: int) -> None:
        self._a_row, self._a_cell = a_row, a_cell
        self.cell = "a minute" if a_cell == 1 else f"{a_cell} minutes"
        self.columns = range(a_row // a_cell)

    def row(self, here: datetime) -> object:
        return here.date(), here.hour, here.minute // self._a_row, here.utcoffset()

    def column(self, here: datetime) -> int:
        return here.minute % self._a_row // self._a_cell

    def label(self, here: datetime, before: datetime | None) -> str:
        day = f"{here:%a} " if before is not None and before.date() != here.date() else ""
        clock = f"{here.hour:02}:{here.minute // self._a_row * self._a_row:02}"
        return f"{day}{clock}" + (f" {here.tzname()}" if _is_twice(here) else "")

    def head(self, column: int) -> str:
        return f"+{column}" if self._a_row < _HOUR_MINUTES else f":{column * self._a_cell:02}"


class _Hours:
    """A row is a day. An hour that happens twice has two columns."""

    cell = "an hour"
    slot_ms = _QUARTER_MS
    columns = range(0, 48, 2)

    def row(self, here: datetime) -> object:
        return here.date()

    def column(self, here: datetime) -> int:
        return 2 * here.hour + _is_again(here)

    def label(self, here: datetime, _before: datetime | None) -> str:
        return f"{here:%a %-d %b}"

    def head(self, column: int) -> str:
        return f"{column // 2}{'b' if column % 2 else ''}"


class _Days:
    """A row is a week."""

    cell = "a day"
    slot_ms = _QUARTER_MS
    columns = range(7)

    def row(self, here: datetime) -> object:
        return here.isocalendar()[:2]

    def column(self, here: datetime) -> int:
        return here.weekday()

    def label(self, here: datetime, _before: datetime | None) -> str:
        return f"{here.date() - timedelta(days=here.weekday()):%-d %b}"

    def head(self, column: int) -> str:
        return _DAYS[column]


def _view(by: By, horizon_ms: int, *, is_fine: bool) -> _View:
    if by is By.MINUTE and is_fine:
        return _Minutes(_HOUR_MINUTES, 1)
    if by is By.MINUTE:
        is_short = horizon_ms <= _SINGLE_MS
        return _Minutes(10, 1) if is_short else _Minutes(_HOUR_MINUTES, _BLOCK_MINUTES)
    return _Hours() if by is By.HOUR else _Days()


# Clocks -------------------------------------------------------------------------------------------


def _is_twice(here: datetime) -> bool:
    """True if clocks show this time twice."""
    other = here.replace(fold=1 - here.fold).utcoffset()
    return other is not None and here.utcoffset() != other


def _is_again(here: datetime) -> bool:
    """True if clocks have gone back since the hour began, so that it is the second of its name.

    If clocks go back at a quarter of an hour, a part of the second hour is shown once.
    """
    return _offset(here.replace(minute=0, fold=0)) > _offset(here)


def _changes(at_ms: int, until_ms: int, zone: tzinfo) -> Iterator[str]:
    """The changes of a zone's clocks in a span of time."""
    before = moment_of(at_ms).astimezone(zone)
    for start_ms in range(at_ms - at_ms % _QUARTER_MS, until_ms, _QUARTER_MS):
        here = moment_of(start_ms).astimezone(zone)
        step = _offset(here) - _offset(before)
        if step and start_ms > at_ms:
            yield _change(here, step)
        before = here


def _offset(here: datetime) -> timedelta:
    return here.utcoffset() or timedelta()


def _change(here: datetime, step: timedelta) -> str:
    """A change of the clocks as a sentence without its full stop.

    Args:
        here: The first time after the change.
        step: How far the clocks go forward; below 0: back.
    """
    shown = here - step
    day = f"{here:%a %-d %b}"
    if step > timedelta():
        return f"{day}: clocks go forward from {shown:%H:%M} to {here:%H:%M}"
    return f"{day}: clocks go back from {shown:%H:%M} to {here:%H:%M}, so {here:%H:%M} comes twice"
