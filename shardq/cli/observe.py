"""Watch queues: a live table, a single one, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from shardq.cli import options, screen
from shardq.model import times
from shardq.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from shardq.observer import QueueView

_BARS = " ▁▂▃▄▅▆▇█"
_LANES_SHOWN = 32
_MEMBERS_SHOWN = 16


@click.command(
    epilog=options.examples(
        "shardq observe",
        "shardq observe mail --once",
        "shardq observe --json | jq '{queue, ready, lag_ms}'",
    )
)
@click.argument("queues", nargs=-1)
@click.option("--once", is_flag=True, help="Look once and end.")
@click.option("--every", metavar="DURATION", default="1s", show_default=True, help="Between looks.")
@click.option(
    "--horizon", metavar="DURATION", default="10m", show_default=True, help="To forecast."
)
@options.store
@options.as_json
def observe(
    *,
    queues: tuple[str, ...],
    every: str,
    horizon: str,
    url: str | None,
    once: bool,
    as_json: bool,
) -> None:
    """Watch QUEUES, or all: depth, rates, lateness, lanes with owners and lag, what is to come.

    Lag is how long the oldest due message has been waiting to be settled. Ends on Ctrl-C.
    """
    every_s = max(times.duration_ms(every, name="--every") / 1_000, 0.1)
    with options.connect(url) as db:
        observer = Observer(db, list(queues) or None, horizon=horizon)
        views = observer.look()
        if once or not (as_json or screen.console().is_terminal):
            _show(views, as_json=as_json)
            return
        try:
            if as_json:
                while True:
                    _show(views, as_json=True)
                    db._home.clock.sleep(every_s)
                    views = observer.look()
            with Live(screen_of(views), auto_refresh=False, screen=True) as live:
                while True:
                    db._home.clock.sleep(every_s)
                    live.update(screen_of(observer.look()), refresh=True)
        except KeyboardInterrupt:
            return  # the way to end it


def _show(views: Sequence[QueueView], *, as_json: bool) -> None:
    if as_json:
        for view in views:
            screen.print_json(view.to_json())
    else:
        screen.console().print(screen_of(views), highlight=False)


def screen_of(views: Sequence[QueueView]) -> RenderableType:
    """All that is shown, top to bottom."""
    if not views:
        return Text("no queues yet; put a message: shardq put mail hello")
    parts: list[RenderableType] = [_queues_table(views)]
    parts += [_lanes_table(view) for view in views if any(v.owner or v.lag_ms for v in view.lanes)]
    parts += [_members_table(view) for view in views if view.members]
    parts += [_forecast_line(view) for view in views if any(n for _, n in view.forecast)]
    return Group(*_spaced(parts))


def _spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    return [item for part in parts for item in (part, Text())][:-1]


def _queues_table(views: Sequence[QueueView]) -> Table:
    made = screen.table(
        "queue",
        ">ready",
        ">waiting",
        ">in flight",
        ">put/s",
        ">out/s",
        ">p50",
        ">p99",
        ">lag",
        ">dead",
    )
    for view in views:
        late = view.late_ms
        made.add_row(
            Text(view.name + (" (paused)" if view.settings.paused else "")),
            f"{view.depth.ready:,}",
            f"{view.depth.waiting:,}",
            f"{view.depth.in_flight:,}",
            _rate(view.put_rate),
            _rate(view.delivered_rate),
            "-" if late is None else screen.span(late[0]),
            "-" if late is None else screen.span(late[1]),
            screen.span(view.lag_ms) if view.lag_ms else "-",
            f"{view.totals.buried:,}",
        )
    return made


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _lanes_table(view: QueueView) -> Table:
    made = screen.table(">lane", ">band", "owner", ">lag", title=f"lanes of {view.name}")
    for lane in view.lanes[:_LANES_SHOWN]:
        lag = screen.span(lane.lag_ms) if lane.lag_ms else "-"
        made.add_row(str(lane.lane), str(lane.band), Text(lane.owner or "-"), lag)
    if len(view.lanes) > _LANES_SHOWN:
        made.add_row("...", "", f"{len(view.lanes) - _LANES_SHOWN:,} more", "")
    return made


def _members_table(view: QueueView) -> Table:
    made = screen.table(
        "consumer", ">busy", ">threads", ">held", "lanes", title=f"consumers of {view.name}"
    )
    for member in view.members[:_MEMBERS_SHOWN]:
        lanes = " ".join(map(str, member.lanes)) or "-"
        counts = (f"{n:,}" for n in (member.busy, member.threads, member.ready))
        made.add_row(Text(member.name), *counts, lanes)
    if len(view.members) > _MEMBERS_SHOWN:
        made.add_row(f"{len(view.members) - _MEMBERS_SHOWN:,} more", "", "", "", "")
    return made


def _forecast_line(view: QueueView) -> Text:
    counts = [count for _, count in view.forecast]
    most = max(counts)
    bars = "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts)
    return Text(
        f"{view.name}, next {screen.plural(len(counts), 'minute')}: {sum(counts):,} due, "
        f"at most {most:,} in one  {bars}"
    )
