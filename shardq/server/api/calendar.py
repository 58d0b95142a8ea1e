"""The load ahead of one queue or of all: what comes due in each minute, hour or day."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from shardq.inspection.calendar import Calendar as Counted
from shardq.inspection.calendar import CalendarCounter, Load
from shardq.inspection.grid import By, lay_out
from shardq.inspection.outlook import backlog, hot_minutes
from shardq.model.times import duration_ms, iso, iso_or_none
from shardq.schedules.triggers.zones import zone_name, zone_of
from shardq.server.api.route import RouteCall, route
from shardq.server.api.shapes import Span, Time, Wait, within_s
from shardq.server.grants import Level
from shardq.server.stretches import ahead_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from shardq.inspection.grid import Grid
    from shardq.inspection.outlook import Hot
    from shardq.queue import Queue as SyncQueue

HOT_MAX = 100
_GRID_MS = 2_000
"""Calendars begin at a multiple of this."""


class CalendarQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The time ahead to look at.

    Attributes:
        queue: Only this queue; all queues that the caller may see unless given.
        horizon: How far ahead: to 2 days by minute, to 62 days by hour, to 366 days by day.
        by: The length of a cell.
        tz: The time zone in which hours and days begin.
        within: How long to count, at most 60 s; queues not counted by then are `uncounted`.
    """

    queue: str | None = None
    horizon: Span = "1d"
    by: Literal["minute", "hour", "day"] = "minute"
    tz: str = "UTC"
    within: Wait = "10s"


class LoadCell(Struct, omit_defaults=True):
    """A stretch of time in which something comes due.

    Attributes:
        start: When it begins.
        end: When it ends.
        messages: Messages that are due in it.
        firings: Messages that schedules will put.
    """

    start: Time
    end: Time
    messages: int = 0
    firings: int = 0


class HotMinutes(Struct, kw_only=True, omit_defaults=True):
    """Minutes in a row with more than consumers do, or far more than other minutes have.

    Attributes:
        queue: The queue.
        start: When the first begins.
        end: When the last ends.
        due: Messages and firings that come due in them.
        most: The same for the fullest of them.
        usual: The median of other minutes.
        done: When the last of these messages begins to run; absent if the consumers' limit is
            unknown.
        late_ms: How late that is, milliseconds.
    """

    queue: str
    start: Time
    end: Time
    due: int
    most: int
    usual: int
    done: Time | None = None
    late_ms: int = 0


class QueueAhead(Struct, kw_only=True, omit_defaults=True):
    """The load ahead of one queue.

    Attributes:
        queue: Its name.
        at: When it was counted.
        messages: Messages that come due.
        firings: Messages that its schedules will put.
        later: Messages that are due later than the horizon.
        due: Messages that are due now, and not in flight.
        paused: True if its deliveries are held back.
        consumers: How many processes consume it.
        done_rate: Deliveries a second at present; absent if there were none lately.
        clears: When all messages due now are done, at the present rate; absent if unknown.
        firings_until: Up to when firings were counted, if there are too many to count all.
    """

    queue: str
    at: Time
    messages: int = 0
    firings: int = 0
    later: int = 0
    due: int = 0
    paused: bool = False
    consumers: int = 0
    done_rate: float | None = None
    clears: Time | None = None
    firings_until: Time | None = None


class Damage(Struct):
    """A queue that cannot be read.

    Attributes:
        queue: Its name.
        detail: Why, and what to do.
    """

    queue: str
    detail: str


class Calendar(Struct, kw_only=True):
    """The load ahead.

    Attributes:
        at: Its start: when the first queue was counted.
        until: Its end.
        zone: The time zone of its hours and days.
        by: The length of a cell.
        messages: Messages that come due in that time.
        firings: Messages that schedules will put in it.
        cells: The cells that are not empty, in order.
        hot: Minutes that are too full, the worst first; by minute alone.
        queues: The queues that were counted, by name.
        changes: Changes of the zone's clocks in that time, a sentence each, without its end.
        uncounted: The queues that were not counted in time: ask again.
        damaged: The queues that cannot be read.
    """

    at: Time
    until: Time
    zone: str
    by: str
    messages: int
    firings: int
    cells: list[LoadCell]
    hot: list[HotMinutes]
    queues: list[QueueAhead]
    changes: list[str]
    uncounted: list[str]
    damaged: list[Damage]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A queue's calendar, whose minutes are as long as the cells, and its summary.

    Attributes:
        calendar: The calendar.
        told: The summary.
        hot: The minutes that are too full.
    """

    calendar: Counted
    told: QueueAhead
    hot: Sequence[Hot]


@route("GET", "/v1/calendar", Level.GET)
async def get_calendar(call: RouteCall[CalendarQuery, None]) -> Calendar:
    """The messages that come due, and the firings of schedules, in each minute, hour or day."""
    query, site = call.query, call.site
    limit_s = within_s(query.within)
    by, zone = By(query.by), zone_of(query.tz)
    horizon_ms = duration_ms(query.horizon, name="horizon")
    now_ms = site.clock.now_ms()
    # This refuses a bad horizon before anything is counted.
    _grid(now_ms - now_ms % _GRID_MS, horizon_ms, by, zone)
    if query.queue is None:
        asked = await call.queues()
    else:
        call.check(Level.GET, query.queue)
        asked = [query.queue]
        await call.queue(query.queue)
    question = ("calendar", horizon_ms, by, zone_name(zone))
    read = partial(_count, horizon_ms=horizon_ms, by=by, zone=zone)
    found = await site.answers.gather(site.served, question, read, asked, within_s=limit_s)
    if query.queue in found.failed:
        raise found.failed[query.queue]
    at_ms = min((one.calendar.at_ms for one in found.values.values()), default=now_ms)
    grid = _grid(at_ms, horizon_ms, by, zone)
    return _merged(
        grid,
        [found.values[name] for name in sorted(found.values)],
        found.unread,
        [Damage(name, str(error)) for name, error in sorted(found.failed.items())],
    )


@lru_cache(16)
def _grid(at_ms: int, horizon_ms: int, by: By, zone: tzinfo) -> Grid:
    return lay_out(at_ms, horizon_ms, by, zone, is_fine=True)


def _count(queue: SyncQueue, *, horizon_ms: int, by: By, zone: tzinfo) -> _Ahead:
    """Count what is ahead of a queue."""
    home, book = queue._home, queue.schedules._home
    now_ms = home.clock.now_ms()
    # Queues that are counted together share it: one of 90 days takes 30 ms.
    grid = _grid(now_ms - now_ms % _GRID_MS, horizon_ms, by, zone)
    cells = sorted(cell for row in grid.rows for cell in row.cells if cell is not None)
    counter = CalendarCounter(home)

    def by_cell(_after_ms: int, _until_ms: int) -> Iterator[tuple[int, int]]:
        return ahead_by(book.records({}).values(), cells)

    firings = book.firings if by is By.MINUTE else by_cell
    calendar = counter.count(grid.at_ms, grid.until_ms, firings)
    loads = grid.loads(calendar.minutes)
    # Keep the loads by cell: by minute, a queue would hold 500,000 of them for a year.
    coarse = {cell.start_ms: load for cell, load in sorted(loads.items()) if load.total}
    kept = replace(calendar, minutes=coarse)
    load = kept.load
    clear_ms = backlog(calendar).clear_ms if by is By.MINUTE else None
    told = QueueAhead(
        queue=calendar.queue,
        at=iso(calendar.at_ms),
        messages=load.rows,
        firings=load.firings,
        later=kept.later,
        due=calendar.depth.ready,
        paused=calendar.is_paused,
        consumers=calendar.consumers,
        done_rate=None if calendar.pace is None else calendar.pace.done,
        clears=iso_or_none(clear_ms),
        firings_until=iso_or_none(calendar.fired_until_ms),
    )
    return _Ahead(kept, told, hot_minutes(calendar)[:HOT_MAX] if by is By.MINUTE else ())


def _merged(
    grid: Grid, found: Sequence[_Ahead], uncounted: list[str], damaged: list[Damage]
) -> Calendar:
    rows: Counter[int] = Counter()
    firings: Counter[int] = Counter()
    for one in found:
        for start_ms, load in one.calendar.minutes.items():
            rows[start_ms] += load.rows
            firings[start_ms] += load.firings
    minutes = {start_ms: Load(rows[start_ms], firings[start_ms]) for start_ms in rows | firings}
    loads = grid.loads(minutes)
    hot = [(run, one.told.queue) for one in found for run in one.hot]
    hot.sort(key=lambda item: (-item[0].late_ms, -item[0].most, item[0].start_ms))
    return Calendar(
        at=iso(grid.at_ms),
        until=iso(grid.until_ms),
        zone=zone_name(grid.zone),
        by=grid.by.value,
        messages=sum(load.rows for load in loads.values()),
        firings=sum(load.firings for load in loads.values()),
        cells=[
            LoadCell(iso(cell.start_ms), iso(cell.end_ms), load.rows, load.firings)
            for cell, load in sorted(loads.items())
            if load.total
        ],
        hot=[_hot_of(run, queue) for run, queue in hot[:HOT_MAX]],
        queues=[one.told for one in found],
        changes=list(grid.changes),
        uncounted=uncounted,
        damaged=damaged,
    )


def _hot_of(run: Hot, queue: str) -> HotMinutes:
    return HotMinutes(
        queue=queue,
        start=iso(run.start_ms),
        end=iso(run.end_ms),
        due=run.total,
        most=run.most,
        usual=run.usual,
        done=iso_or_none(run.done_ms),
        late_ms=run.late_ms,
    )
