"""Watches queues: a live screen, a single look, or JSON."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

import click
from rich.live import Live

from shardq.cli import options, probes, screen
from shardq.cli.dashboard import Dashboard
from shardq.cli.probes import Probes
from shardq.errors import UsageError
from shardq.health.vitals import ConsumerVitals
from shardq.model import times
from shardq.observer import Observer
from shardq.tasks.importing import put_here_on_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.observer import QueueView

_LOOK_S = 1.0
"""The screen waits no longer than this; queues that were not read by then are shown later."""


@options.command(
    "shardq observe",
    "shardq observe mail --once",
    "shardq observe --json | jq '{queue, ready, lag_ms}'",
)
@click.argument("queues", nargs=-1)
@options.option("--once", "Look once and end.")
@options.option("--every DURATION", "Time between two looks.", default="1s")
@options.option(
    "--horizon DURATION", "How far ahead to count what comes due, a day at most.", default="10m"
)
@options.option(
    "--metrics [HOST:]PORT",
    "Show nothing here, but answer Prometheus at http://HOST:PORT/metrics until this is ended: "
    "for a store whose workers do not. Without HOST, on loopback; port 0 is any that is free.",
    name="place",
)
def observe(
    *, queues: tuple[str, ...], every: str, horizon: str, place: str | None, once: bool
) -> None:
    """Watch QUEUES, or all queues: how they are, who consumes them, who puts. Ctrl-C ends it.

    \b
    state      as `shardq check` names it
    ready      messages that are due and wait for a handler
    waiting    messages that are due later; counted up to an hour ahead, then
               by what processes have stored
    in flight  messages that are being delivered
    put/s      messages put a second, over the last 10 s or more; at the first
               look, as with --once, over this minute and the last
    out/s      deliveries a second, likewise
    p50, p99   how late deliveries began in the last 5 minutes: half of them, 99 %
               of them at most; below each queue those of the day as well
    lag        how long the oldest ready message has waited; messages that run do
               not count
    dead       messages in the dead-letter queue
    busy       handlers that run, of those that the consumers have
    longest    how long the handler that began first has run
    runs       the tasks whose jobs run, and how many of each, of the 32 runs
               that a consumer names
    held       messages that a consumer has read ahead
    lanes      lanes that a consumer reads, of every band unless one is named
    put by     processes that put in this minute and the four before, and how many
               messages each
    paused     groups, tasks and keys that are paused; Limited pauses a task, too

    A queue that needs a newer shardq, or is damaged, is only named; if QUEUES names it, the
    command ends with an error.

    With --once, or if the output is no terminal, the command looks once. --json without --once
    prints a line for each queue at every look, until Ctrl-C. The command writes nothing.
    """  # noqa: D301 - click's own mark
    every_s = max(times.duration_ms(every, name="--every") / 1_000, 0.1)
    # Make the user's own triggers importable; otherwise they would have no firings.
    put_here_on_path()
    if place is not None:
        if once or options.is_json():
            raise UsageError("--metrics shows nothing here: leave --once and --json out.")
        _answer(place, queues)
        return
    db = options.connect()
    observer = Observer(db, queues or None, horizon=horizon)
    to = screen.console()
    dashboard = Dashboard(db.url_shown, ascii_only=to.options.ascii_only)
    if once or not (options.is_json() or to.is_terminal):
        with screen.progress() as bar:
            views = observer.look(on_progress=screen.teller(bar))
        if options.is_json():
            _print_json(views, observer)
        else:
            screen.show(dashboard.whole(views, to.width, _passed_over(observer)))
        return
    try:
        while options.is_json():
            _print_json(observer.look(), observer)
            db._home.clock.sleep(every_s)
        with Live(console=to, auto_refresh=False, screen=True, redirect_stdout=False) as live:
            while True:
                views = observer.look(seconds=_LOOK_S, first=dashboard.shown)
                over = _passed_over(observer)
                live.update(
                    dashboard.fitted(views, *to.size, over, unseen=observer.unseen),
                    refresh=True,
                )
                if not observer.unseen:
                    db._home.clock.sleep(every_s)
    except KeyboardInterrupt:
        return  # Ctrl-C is the usual end


def _answer(place: str, queues: Sequence[str]) -> None:
    """Answer Prometheus until Ctrl-C."""
    with ExitStack() as stack:
        probed = stack.enter_context(closing(Probes(place, None)))
        db = options.connect()
        probed.begin(lambda: ConsumerVitals(db, ()), probes.of_one(db, queues or None))
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


def _passed_over(observer: Observer) -> dict[str, str]:
    """The queues that could not be read, each with the reason in a few words."""
    newer = dict.fromkeys(observer.newer, "needs a newer shardq; upgrade it here")
    return newer | dict.fromkeys(observer.damaged, "is damaged: see `shardq check`")


def _print_json(views: Sequence[QueueView], observer: Observer) -> None:
    for view in views:
        screen.print_json(view.to_json())
    for name, text in (observer.newer | observer.damaged).items():
        screen.print_json({"queue": name, "error": text})
