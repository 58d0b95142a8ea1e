"""Checks configuration, connection, clocks and queues."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

import shardq
from shardq.cli import options, screen, states, streams
from shardq.cli.exits import Exit
from shardq.cli.jobs import is_job
from shardq.cli.states import Finding, Limits, Severity, StateName
from shardq.clock import CORRECTION_VARIABLE, OFFSET_VARIABLE, machine_us
from shardq.inspection.backlog import PartBacklogs, backlogs
from shardq.model import times
from shardq.model.limits import queue_limit_of
from shardq.observer import Observer, late_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.connection import Connection
    from shardq.observer import QueueView
    from shardq.queue import Queue
    from shardq.schedules.schedule import Schedule

_DEVIATION_MS_MAX = 1_000
_ROUND_TRIPS = 5
_DRIVER = "cassandra-driver"
_GAPS = 4
"""Columns between a level and its text, and after the text."""
_LOGS_MAX = 2
"""SQLite's log may grow to this many times its usual size while other programs read."""
_HORIZON = "1m"
"""A short horizon: the future is not judged."""


@options.command(
    "shardq check",
    "shardq check mail --max-lag 5m --max-dead 0",
    "shardq check --json | jq -r 'select(.level == \"wrong\") | .text'",
    "shardq check --all mail",
)
@click.argument("queue", required=False)
@options.option(
    "--max-lag DURATION",
    "Fail where a ready message has waited for longer. Isolated consumers may take the queue's "
    "minute and offset more.",
    default="1m",
)
@options.option(
    "--max-dead N",
    "Fail where a queue has more dead messages; without it they are a warning.",
    least=0,
)
@options.option(
    "--max-run DURATION",
    "Fail where a handler has run for longer. Without it, a handler that has run for longer "
    "than the queue's visibility is a warning, and a consumer all of whose handlers have run "
    "for longer than its hold.",
)
@options.option(
    "--all", "Visit every partition of QUEUE, and mend what is found there.", name="everywhere"
)
def check(
    *, queue: str | None, max_lag: str, max_dead: int | None, max_run: str | None, everywhere: bool
) -> Exit:
    """Check the store, the clocks, and QUEUE or all queues.

    Ends with 1 where something is wrong, and with 0 where there are warnings at most. Each finding
    has a level, the name of a state, and says what to do:

    \b
    ok            all is well
    no consumers  messages wait and nobody consumes; wrong after --max-lag
    lagging       consumers are there, and the lag is more than --max-lag
    overdue       consumers are there, and a schedule has not fired for longer
                  than --max-lag
    failing       the trigger of a schedule fails, and so it does not fire
    hanging       a handler has run for long; wrong after --max-run
    dead letters  messages have died; wrong above --max-dead
    paused        deliveries are held back on purpose; never wrong
    limited       a limit holds messages back for over an hour; never wrong
    too new       its settings need a newer shardq; wrong
    damaged       something stored of it cannot be read; wrong
    not drained   --all found messages that consumers had passed by
    counts off    a process crashed as it counted; a consumer or --all mends that
    log large     another program reads SQLite's file for so long that the
                  log beside it grows
    clock off     clocks are over 1 s apart, or a clock that was ahead has fired
                  a schedule
    for tests     a variable is set that is meant for tests

    --all visits every partition of QUEUE. It moves messages that consumers have passed by to now,
    deletes messages whose end the history records, and corrects the totals by the messages that
    exist. It waits up to 10 s for processes that are counting. After a node of Cassandra was away
    for longer than gc_grace, add consistency=all to the url, so that the rows of every node are
    seen. Nothing else writes.
    """  # noqa: D301 - click's own mark
    if everywhere and queue is None:
        raise click.UsageError("--all needs a QUEUE.")
    limits = Limits(
        lag_ms=times.duration_ms(max_lag, name="--max-lag"),
        dead=max_dead,
        run_ms=None if max_run is None else times.duration_ms(max_run, name="--max-run"),
    )
    findings = _configuration()
    figures: dict[str, dict[str, Any]] = {}
    db = options.connect()
    found, figures["store"] = _store(db)
    findings += [found, *_clocks(db)]
    # Visit first, so that repaired faults are not reported.
    visited = [_visit_all(db, queue)] if queue and everywhere else []
    observer = Observer(db, [queue] if queue else None, horizon=_HORIZON)
    with screen.progress() as bar:
        views = observer.look(on_progress=screen.teller(bar))
    shown = states.without_kept(views)

    def more_of(view: QueueView) -> tuple[list[Schedule], list[str], bool, PartBacklogs]:
        queue = observer.queues[view.name]
        own = _schedules(queue) if view.schedules else ([], [])
        return *own, _are_jobs(queue, view), _backlogs(queue, view)

    more = db._home.side_by_side(more_of, shown)
    for view, (schedules, wrong, are_jobs, backlog) in zip(shown, more, strict=True):
        figures[f"queue {view.name}"] = _figures(view) | {"schedules": len(schedules)}
        findings += states.findings(view, limits, schedules, are_jobs=are_jobs, backlogs=backlog)
        findings += [states.damaged(view.name, text) for text in wrong]
    findings += [states.newer(name, text) for name, text in observer.newer.items()]
    findings += [states.damaged(name, text) for name, text in observer.damaged.items()]
    findings += visited
    if options.is_json():
        for one in findings:
            screen.print_json({**dataclasses.asdict(one), **figures.get(one.what, {})})
    else:
        _print(findings)
    return Exit.FAILED if any(one.level == Severity.WRONG for one in findings) else Exit.OK


def _schedules(queue: Queue) -> tuple[list[Schedule], list[str]]:
    """The schedules of a queue, and a sentence for each damaged one."""
    return queue.schedules._home.readable()


def _backlogs(queue: Queue, view: QueueView) -> PartBacklogs:
    """The backlogs of a queue, counted only if groups have limits, or tasks or keys are paused."""
    home, settings = queue._home, view.settings
    if not (settings.group_limits or queue_limit_of(settings.queue_limit).paused):
        return PartBacklogs()
    return backlogs(home.store, home.register, view.at_ms)


def _are_jobs(queue: Queue, view: QueueView) -> bool:
    """True if the first message of a queue without consumers is a job."""
    if view.members or not view.depth.total:
        return False
    return any(map(is_job, queue.peek(limit=1)))


def _figures(view: QueueView) -> dict[str, Any]:
    return {
        "queue": view.name,
        "ready": view.depth.ready,
        "waiting": view.depth.waiting,
        "in_flight": view.depth.in_flight,
        "dead": view.dead,
        "consumers": len(view.members),
        "lag_ms": view.lag_ms,
        **late_to_json(view.late_ms, view.late_day_ms),
    }


def _print(findings: Sequence[Finding]) -> None:
    made = screen.table("", "")
    made.show_header = False
    made.columns[0].no_wrap = True
    levels = max(len(one.level) for one in findings)
    room = screen.console().width - levels - _GAPS
    for one in findings:
        named = "" if one.state == StateName.OK else f", {one.state}"
        told = [streams.escaped(f"{one.what}{named}: {one.text}"), one.advice]
        lines = [line for text in told for line in screen.wrapped(screen.kept_together(text), room)]
        made.add_row(Text(one.level, style=screen.STYLES[one.level]), Text("\n".join(lines)))
    screen.show(made)
    counted = [
        sum(one.level == level for one in findings) for level in (Severity.WRONG, Severity.WARNING)
    ]
    wrong, warnings = counted
    said = ([f"{wrong:,} wrong"] if wrong else []) + (
        [screen.plural(warnings, "warning")] if warnings else []
    )
    click.echo(f"{', '.join(said)}." if said else "All is well.")


def _visit_all(db: Connection, name: str) -> Finding:
    with screen.progress() as bar:
        task = bar.add_task(f"partitions of {name}", total=None)
        found = db.queue(name, create=False).check_all(
            lambda shards: bar.update(task, completed=shards)
        )
    text = (
        f"every partition visited, {found.shards:,}, with {screen.plural(found.rows, 'message')}; "
        f"moved to now: {found.moved:,}; purged: {found.purged:,}; dropped: {found.dropped:,}; "
        + (f"expired: {found.expired:,}; " if found.expired else "")
        + (f"keys freed: {found.freed:,}; " if found.freed else "")
        + (f"totals mended by {found.mended:+,}" if found.mended else "totals right")
        + ("" if found.is_proven else ", as far as can be told while processes are at work")
    )
    if found.damaged:
        return Finding(
            f"queue {name}",
            Severity.WARNING,
            StateName.COUNTS_OFF,
            f"{text}. {screen.plural(len(found.damaged), 'row')} of its totals could not be read.",
            "Deleted; what is there was counted instead, and what they told of before is lost.",
        )
    if found.moved:
        advice = (
            "They are delivered now. See why they were passed by: clocks, or nodes that were away."
        )
        return Finding(f"queue {name}", Severity.WARNING, StateName.NOT_DRAINED, f"{text}.", advice)
    return Finding(f"queue {name}", Severity.OK, StateName.OK, text)


def _configuration() -> list[Finding]:
    versions = [f"shardq {shardq.__version__}", f"Python {platform.python_version()}"]
    # The driver may be missing if only SQLite is used.
    with suppress(metadata.PackageNotFoundError):
        versions.append(f"{_DRIVER} {metadata.version(_DRIVER)}")
    findings = [Finding("versions", Severity.OK, StateName.OK, ", ".join(versions))]
    for name in (OFFSET_VARIABLE, CORRECTION_VARIABLE):
        if name in os.environ:
            text = f"is set to {os.environ[name]!r}, which is meant for tests alone."
            advice = f"Run without it: unset {name}"
            findings.append(Finding(name, Severity.WARNING, StateName.FOR_TESTS, text, advice))
    return findings


def _store(db: Connection) -> tuple[Finding, dict[str, int]]:
    """The finding about the store, and the size of its log, if it has one."""
    # Import here, because a store on Cassandra does not need SQLite's modules.
    from shardq.stores.sqlite import SqliteStore
    from shardq.stores.sqlite.database import LOG_BYTES

    store = db._home.store
    if not isinstance(store, SqliteStore):
        return Finding("store", Severity.OK, StateName.OK, db.url_shown), {}
    log_bytes = store.log_bytes
    text = f"{db.url_shown}, its log {log_bytes / 1e6:,.1f} MB"
    if log_bytes <= _LOGS_MAX * LOG_BYTES:
        return Finding("store", Severity.OK, StateName.OK, text), {"log_bytes": log_bytes}
    advice = (
        "Another program reads the file for long, or did: end its transaction, and a later write "
        "shortens the log."
    )
    found = Finding("store", Severity.WARNING, StateName.LOG_LARGE, f"{text}.", advice)
    return found, {"log_bytes": log_bytes}


def _clocks(db: Connection) -> list[Finding]:
    findings = []
    told = []
    for node, ask_us in db._home.store.clocks().items():
        error_us, trip_us = _compare(db, ask_us)
        told.append(error_us)
        trip = screen.span(trip_us / 1_000)
        text = f"{times.offset(error_us / 1_000)} from this machine's, round trip {trip}"
        advice = "shardq corrects that; run NTP on this machine and on the node all the same."
        findings.append(_clock(f"clock of {node}", error_us, text, Severity.WARNING, advice))
    spread_ms = (max(told) - min(told)) / 1_000 if told else 0
    if spread_ms > _DEVIATION_MS_MAX:
        text = f"the nodes' clocks are {screen.span(spread_ms)} apart."
        findings.append(
            Finding("clocks", Severity.WRONG, StateName.CLOCK_OFF, text, "Run NTP on all nodes.")
        )
    reference_us = round(statistics.median(told)) if told else 0
    error_us = db._home.clock.now_us() - machine_us() - reference_us
    text = f"corrected now is {times.offset(error_us / 1_000)} from the store's"
    advice = "Run NTP on this machine and on all nodes; then start this again."
    findings.append(_clock("correction", error_us, text, Severity.WRONG, advice))
    return findings


def _clock(what: str, error_us: float, text: str, level: Severity, advice: str) -> Finding:
    """The finding about a clock; it has the given level and advice if the error is too large."""
    if abs(error_us) / 1_000 > _DEVIATION_MS_MAX:
        return Finding(what, level, StateName.CLOCK_OFF, f"{text}.", advice)
    return Finding(what, Severity.OK, StateName.OK, text)


def _compare(db: Connection, ask_us: Callable[[], int]) -> tuple[int, int]:
    """(node less machine, round trip), microseconds, by the shortest of several round trips."""
    best: tuple[int, int] | None = None
    for _ in range(_ROUND_TRIPS):
        sent = db._home.clock.boot_us()
        told, ours = ask_us(), machine_us()
        trip = db._home.clock.boot_us() - sent
        if best is None or trip < best[1]:
            best = told + trip // 2 - ours, trip
    return best or (0, 0)
