"""The output of `schedule preview`: fire times as a calendar, with the reasons of unusual ones.

```
    day             Europe/Berlin  UTC    due
    Sat 2026-03-28  02:30 +01:00   01:30  02:31:04
 ── Sun 2026-03-29  clocks go forward: 02:00 +01:00 becomes 03:00 +02:00 ──────
    Sun 2026-03-29  03:30 +02:00   01:30  03:33:31
                    02:30 does not exist, clocks go forward: moved to 03:30
```
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rich.cells import cell_len
from rich.text import Text

from shardq.model.times import due_ms, iso, moment_of
from shardq.schedules.options import previewed
from shardq.schedules.triggers.clocks import ClockChange, changes
from shardq.schedules.triggers.zones import zone_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime, tzinfo

    from shardq.schedules.definition import ScheduleDefinition

_GAP = "  "
_INDENT = "    "
_MARKED_MS = 100 * 86_400_000
"""Clock changes between fire times further apart than this are not shown: there would be too
many."""
_RULE = 78
"""The line of a clock change is at least this wide, in columns."""
_LEFT_OUT_MIN = 4
"""If this many dropped fire times or more follow one another, only the first and last are shown."""
_CHANGED = "cyan"
_UNUSUAL = "yellow"
_PASSED_BY = "red"


class Fires(NamedTuple):
    """A fire time, or a fire time that a policy drops.

    Attributes:
        time: The fire time, aware.
        due: When its message will be due; None if it is dropped.
        why: The reason if it is unusual; else empty.
    """

    time: datetime
    due: datetime | None
    why: str


class More(NamedTuple):
    """The number of further dropped fire times."""

    number: int


Event: TypeAlias = "Fires | More | ClockChange"


def events(
    definition: ScheduleDefinition, after_ms: int, count: int, *, fired: int = 0
) -> list[Fires]:
    """The next fire times of a schedule, including those that its policies drop.

    Args:
        definition: The schedule.
        after_ms: The start, epoch milliseconds.
        count: How many fire times that are not dropped.
        fired: How often it has fired.
    """
    made: list[Fires] = []
    for one in previewed(definition, after_ms, count, fired=fired):
        time_ms = due_ms(one.time)
        made += _passed_by(definition, after_ms, time_ms)
        made.append(Fires(one.time, one.due, one.why))
        after_ms = time_ms
    return made


def _passed_by(definition: ScheduleDefinition, after_ms: int, until_ms: int) -> Iterator[Fires]:
    """The dropped fire times of a span: those that would exist if each local time fired."""
    zone = definition.trigger.tzinfo
    if until_ms - after_ms > _MARKED_MS or not changes(zone, after_ms, until_ms):
        return
    for one in definition.trigger.fires(after_ms, until_ms - 1, twice="both", gap="shift"):
        yield Fires(moment_of(one.at_ms).astimezone(zone), None, one.why.partition(": moved")[0])


def to_json(one: Fires) -> dict[str, Any]:
    """A fire time for programs."""
    return {
        "time": iso(due_ms(one.time)),
        "local": one.time.isoformat(timespec="milliseconds"),
        "fires": one.due is not None,
        "due": None if one.due is None else iso(due_ms(one.due)),
        "why": one.why,
    }


@dataclass(frozen=True, slots=True)
class Timetable:
    """Fire times as lines.

    Attributes:
        fires: The fire times, ascending.
        zone: The zone to show them in.
        after_ms: The start of the shown span, epoch milliseconds.
        has_due: True if messages are due later than the fire times.
        ascii_only: True if the terminal has no line characters.
    """

    fires: Sequence[Fires]
    zone: tzinfo
    after_ms: int
    has_due: bool
    ascii_only: bool = False

    def lines(self, width: int) -> list[Text]:
        """The lines for a terminal of this width; a text without room goes below its line."""
        has_seconds = any(one.time.second for one in self.fires)
        clock = "%H:%M:%S" if has_seconds else "%H:%M"
        utc = [] if self._is_utc else ["UTC"]
        heads = ["day", zone_name(self.zone), *utc, *(["due"] if self.has_due else [])]
        table = [heads, *(self._cells(one, clock) for one in self.fires)]
        widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
        below = _INDENT + " " * widths[0] + _GAP
        made = [Text(_INDENT + _joined(heads, widths), style="bold")]
        events = list(self._events())
        days = {self._day(one.at_ms) for one in events if isinstance(one, ClockChange)}
        for one in events:
            if isinstance(one, ClockChange):
                made.append(self._change(one, min(width, _RULE)))
                continue
            if isinstance(one, More):
                made.append(Text(f"{below}{one.number:,} more not fired", style=_PASSED_BY))
                continue
            cells = self._cells(one, clock)
            if one.due is None:
                text = f"{_INDENT}{cells[0]}{_GAP}not fired: {one.why}"
                lines = [Text(text, style=_PASSED_BY)]
            else:
                text = f"{_INDENT}{_joined(cells, widths)}{_GAP}{one.why}"
                style = _UNUSUAL if one.why else ""
                lines = [Text(text.rstrip(), style=style)]
                if cell_len(text.rstrip()) > width:
                    lines = [Text(text.removesuffix(one.why).rstrip(), style=style)]
                    lines.append(Text(below + one.why, style=style))
            if cells[0] in days:
                lines[0].stylize(f"bold {_CHANGED}", len(_INDENT), len(_INDENT) + widths[0])
            made += lines
        for line in made:
            line.rstrip()
        return made

    def _events(self) -> Iterator[Event]:
        """Fire times and, between them, the clock changes of the shown zone."""
        last_ms = self.after_ms
        for one in _shortened(self.fires):
            if isinstance(one, Fires):
                time_ms = due_ms(one.time)
                if time_ms - last_ms <= _MARKED_MS:
                    yield from changes(self.zone, last_ms, time_ms)
                last_ms = time_ms
            yield one

    def _cells(self, one: Fires, clock: str) -> list[str]:
        local = one.time.astimezone(self.zone)
        cells = [
            self._day(due_ms(one.time)),
            f"{local:{clock}}" if self._is_utc else f"{local:{clock}} {offset(local)}",
        ]
        if not self._is_utc:
            cells.append(_time(one.time.astimezone(UTC), local, clock))
        if self.has_due:
            due = one.due or one.time
            cells.append(_time(due.astimezone(self.zone), local, "%H:%M:%S"))
        return cells

    @property
    def _is_utc(self) -> bool:
        """True if the wall clock is UTC's, so that a UTC column would repeat it."""
        return zone_name(self.zone) == "UTC"

    def _day(self, at_ms: int) -> str:
        return f"{moment_of(at_ms).astimezone(self.zone):%a %Y-%m-%d}"

    def _change(self, one: ClockChange, width: int) -> Text:
        rule = "-" if self.ascii_only else "─"
        way = "forward" if one.after_ms > one.before_ms else "back"
        old, new = (_at_offset(one.at_ms, ms) for ms in (one.before_ms, one.after_ms))
        text = (
            f" {rule * 2} {self._day(one.at_ms)}{_GAP}clocks go {way}: {old:%H:%M} {offset(old)} "
            f"becomes {new:%H:%M} {offset(new)} "
        )
        return Text(text + rule * (width - cell_len(text)), style=f"bold {_CHANGED}")


def _shortened(fires: Iterable[Fires]) -> Iterator[Fires | More]:
    """Shorten many dropped fire times in a row to the first and the last."""
    for is_passed_by, some in groupby(fires, lambda one: one.due is None):
        row = list(some)
        if is_passed_by and len(row) >= _LEFT_OUT_MIN:
            yield from (row[0], More(len(row) - 2), row[-1])
        else:
            yield from row


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))


def _time(moment: datetime, local: datetime, clock: str) -> str:
    """A time of day, with its weekday if that differs from the local time's."""
    day = "" if moment.date() == local.date() else f" {moment:%a}"
    return f"{moment:{clock}}{day}"


def _at_offset(at_ms: int, offset_ms: int) -> datetime:
    return moment_of(at_ms).astimezone(timezone(timedelta(milliseconds=offset_ms)))


def offset(moment: datetime) -> str:
    """The offset of a time from UTC, `+02:00`."""
    text = moment.strftime("%z")
    return f"{text[:3]}:{text[3:5]}"
