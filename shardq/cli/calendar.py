"""The load ahead: a heat map in the terminal or as a picture, hot minutes, and the backlog."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from shardq.cli import options, screen
from shardq.cli.heatmap import HeatMap
from shardq.errors import SchemaNewer, StoreCorrupt, UsageError, shown
from shardq.inspection.calendar import FIRINGS_MAX, CalendarCounter
from shardq.inspection.grid import By, by_of, lay_out
from shardq.inspection.outlook import backlog, by_time_of_day, clock, hot_minutes
from shardq.model.names import is_dead_queue
from shardq.model.shard import HOUR_MS, MINUTE_MS
from shardq.model.times import duration_ms, iso, iso_or_none, moment_of
from shardq.pictures.drawing import check_png
from shardq.pictures.loadmap import Panel, load_map
from shardq.schedules.triggers.zones import zone_name, zone_of
from shardq.tasks.importing import put_here_on_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from shardq.connection import Connection
    from shardq.inspection.calendar import Calendar
    from shardq.inspection.grid import Grid
    from shardq.inspection.outlook import Hot

_WARNINGS_MAX = 5
_SUFFIXES = (".svg", ".png")
_HORIZONS_MS = (HOUR_MS, 24 * HOUR_MS, 30 * 24 * HOUR_MS)
"""The steps of the horizon: by minute, by five minutes, by hour."""
_SHADES = {"256", "truecolor"}
"""Rich's names of colour systems that have enough colours."""


@options.command(
    "shardq calendar",
    "shardq calendar mail --horizon 1d --tz Europe/Berlin",
    "shardq calendar mail --horizon 30d --out load.svg",
    "shardq calendar mail --json | jq .hot",
)
@click.argument("queues", nargs=-1)
@options.option(
    "--horizon DURATION",
    "How far to look ahead: to 2d by minute, to 62d by hour, to 366d by day. Where it is not "
    "given, 1h by minute and 30d else; and where nothing is due in the hour, a day, on SQLite "
    "30d.",
)
@options.option(
    "--by",
    "What a cell is. Where it is not given: minute to 2d, hour to 62d, day beyond. By minute "
    "it is five minutes where the horizon is over 2h.",
    type=click.Choice([by.value for by in By]),
)
@options.option(
    "--tz ZONE",
    "By whose clocks: a name such as Europe/Berlin, or an offset such as +02:00.",
    default="UTC",
)
@options.option(
    "--out FILE",
    "Write a picture there as well: load.svg, or load.png, for which shardq[plots] has to be "
    "installed.",
    type=click.Path(dir_okay=False, path_type=Path),
)
def calendar(
    *, queues: tuple[str, ...], horizon: str | None, by: str | None, tz: str, out: Path | None
) -> None:
    """Show what comes due in QUEUES, or in all queues: messages that wait, and firings ahead.

    A heat map for each queue. Below it stand the hot minutes, the worst first, and when the
    messages that are due now will be done:

    \b
    hot        more messages are due in the minute than can be done in it, by the
               queue's rate and by its consumers. The consumers' speed is known
               only if they were late in two successive minutes of the last 5;
               else a minute is hot if far more messages are due than in others,
               and more than were done in any minute
    done       deliveries a second in this minute and the one before, or in the
               last 5 minutes if those were few
    come in    messages put a second in the same time, or messages known to come
               due, whichever are more

    Messages in flight are not counted. It writes nothing to the store.
    """  # noqa: D301 - click's own mark
    zone = zone_of(tz)
    _check(out)
    # Make the user's own triggers importable; otherwise they would have no firings.
    put_here_on_path()
    db = options.connect()
    for horizon_ms in _horizons(horizon, by):
        cell = By(by) if by else by_of(horizon_ms)
        grid = lay_out(db._home.clock.now_ms(), horizon_ms, cell, zone)
        found, failed = _count(db, queues, grid)
        if any(one.load.total for one in found) or not any(one.later for one in found):
            break
    if options.is_json():
        for one in found:
            screen.print_json(_told(one, grid))
        for name, text in failed.items():
            screen.print_json({"queue": name, "error": text})
    else:
        _print(db, grid, found, failed)
    if out is not None:
        panels = [_panel(one, grid) for one in found]
        drawing = load_map(grid, panels)
        out.write_bytes(drawing.svg() if out.suffix.lower() == ".svg" else drawing.png())
        if not options.is_json():
            click.echo(f"wrote {out}", err=True)


def _horizons(given: str | None, by: str | None) -> list[int]:
    """The horizons to try, milliseconds: the next one if nothing is due within one."""
    if given is not None:
        return [duration_ms(given, name="--horizon")]
    if by in {By.HOUR, By.DAY}:
        return [_HORIZONS_MS[-1]]
    if by == By.MINUTE:
        return list(_HORIZONS_MS[:-1])
    return list(_HORIZONS_MS)


def _check(out: Path | None) -> None:
    """Refuse a picture that cannot be made, before the count."""
    if out is None:
        return
    if out.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--out {shown(str(out))} must end with .svg or .png.")
    if out.suffix.lower() == ".png":
        check_png()
    if not out.parent.is_dir():
        raise UsageError(
            f"--out {shown(str(out))}: there is no directory {shown(str(out.parent))}."
        )


def _count(
    db: Connection, names: Sequence[str], grid: Grid
) -> tuple[list[Calendar], dict[str, str]]:
    """The calendars of queues, and errors; for the whole store only the readable queues."""
    found: list[Calendar] = []
    failed: dict[str, str] = {}
    with screen.progress() as bar:
        for name in names or db.queues():
            if not names and is_dead_queue(name):
                continue
            try:
                found.append(_count_one(db, name, grid, bar))
            except (SchemaNewer, StoreCorrupt) as error:
                if names:
                    raise
                failed[name] = str(error)
    return found, failed


def _count_one(db: Connection, name: str, grid: Grid, bar: Progress) -> Calendar:
    queue = db.queue(name, create=False)
    tell = screen.teller(bar, f"{name}: ")
    counter = CalendarCounter(queue._home, tell)
    return counter.count(grid.at_ms, grid.until_ms, queue.schedules._home.firings)


def _panel(one: Calendar, grid: Grid) -> Panel:
    hot = hot_minutes(one)
    minutes = (range(run.start_ms, run.end_ms, MINUTE_MS) for run in hot)
    times = by_time_of_day(hot, grid.zone)
    warnings = [
        f"Hot: {run.line(one, grid.zone, days=days)}." for run, days in times[:_WARNINGS_MAX]
    ]
    if len(times) > _WARNINGS_MAX:
        warnings.append(f"Hot as well: {len(times) - _WARNINGS_MAX:,} more; --json names all.")
    lines = [backlog(one).line(grid.zone)]
    if hot and one.pace is None and not one.depth.ready:
        lines.append("What consumers can do is not known: nothing was delivered lately.")
    lines += [f"{change}." for change in grid.changes]
    if one.fired_until_ms is not None:
        until = clock(one.fired_until_ms, one.at_ms, grid.zone, seconds=False)
        lines.append(f"Of firings the next {FIRINGS_MAX:,} are counted, those until {until}.")
    if one.later:
        lines.append(f"{screen.plural(one.later, 'message')} due later: --horizon looks further.")
    return Panel(
        f"{one.queue}: the load ahead",
        _subtitle(one, grid),
        grid.loads(one.minutes),
        grid.cells_of(chain.from_iterable(minutes)),
        warnings,
        lines,
        one.fired_until_ms,
    )


def _subtitle(one: Calendar, grid: Grid) -> str:
    """The load, its time, and the zone of the clocks, as text."""
    load = one.load
    begin = moment_of(one.at_ms).astimezone(grid.zone)
    until = clock(grid.until_ms, one.at_ms, grid.zone, seconds=False)
    said = f"{begin:%a %-d %b %Y %H:%M} to {until} {zone_name(grid.zone)}: "
    if not load.total:
        return f"{said}nothing is due"
    said += "" if one.fired_until_ms is None else "at least "
    said += f"{load.total:,} due"
    if load.firings:
        messages = f"{screen.plural(load.rows, 'message')}, " if load.rows else ""
        said += f" ({messages}{screen.plural(load.firings, 'firing')} of schedules)"
    start_ms, most = max(one.minutes.items(), key=lambda item: item[1].total)
    at = clock(start_ms, one.at_ms, grid.zone, seconds=False)
    return f"{said}, at most {most.total:,} in one minute ({at})"


def _print(db: Connection, grid: Grid, found: Sequence[Calendar], failed: dict[str, str]) -> None:
    to = screen.console()
    if not found and not failed:
        click.echo(screen.no_queues(db.url_shown))
    has_colours = to.is_terminal and not to.no_color and to.color_system in _SHADES
    for number, one in enumerate(found):
        if number:
            click.echo()
        drawn = HeatMap(
            grid,
            _panel(one, grid),
            to.width,
            has_colours=has_colours,
            ascii_only=to.options.ascii_only,
        )
        screen.show(Text("\n").join(drawn.lines()))
    for name, text in failed.items():
        click.echo(f"{name}: {text}", err=True)


def _told(one: Calendar, grid: Grid) -> dict[str, Any]:
    """A calendar for programs."""
    pace, work = one.pace, backlog(one)
    load, loads = one.load, grid.loads(one.minutes)
    return {
        "queue": one.queue,
        "at": iso(one.at_ms),
        "until": iso(one.until_ms),
        "zone": zone_name(grid.zone),
        "by": grid.by.value,
        "due": one.depth.ready,
        "in_flight": one.depth.in_flight,
        "messages": load.rows,
        "firings": load.firings,
        "firings_until": iso_or_none(one.fired_until_ms),
        "later": one.later,
        "consumers": one.consumers,
        "paused": one.is_paused,
        "done_rate": pace and pace.done,
        "put_rate": pace and pace.put,
        "rate_over_ms": pace and pace.over_ms,
        "best_rate": pace and pace.best,
        "best_is_limit": pace and pace.is_limit,
        "clear": iso_or_none(work.clear_ms),
        "hot": [_hot_told(run) for run in hot_minutes(one)],
        "cells": [
            {
                "start": iso(cell.start_ms),
                "end": iso(cell.end_ms),
                "messages": loads[cell].rows,
                "firings": loads[cell].firings,
            }
            for cell in sorted(loads)
        ],
    }


def _hot_told(run: Hot) -> dict[str, Any]:
    return {
        "start": iso(run.start_ms),
        "end": iso(run.end_ms),
        "due": run.total,
        "most": run.most,
        "usual": run.usual,
        "done": iso_or_none(run.done_ms),
        "late_ms": run.late_ms,
    }
