"""Whether everything is as it should be: configuration, connection, clocks, queues."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import click

import shardq
from shardq.cli import options, screen
from shardq.cli.exits import Exit
from shardq.clock import CORRECTION_VARIABLE, OFFSET_VARIABLE, machine_us
from shardq.model.names import is_dead_queue, served_queue

if TYPE_CHECKING:
    from shardq.connection import Connection

_WARN_DEVIATION_MS = 1_000
_ROUND_TRIPS = 5


@dataclass(frozen=True, slots=True)
class _Finding:
    what: str
    state: str
    """`ok`, `warning` or `wrong`."""
    text: str


@click.command(epilog=options.examples("shardq check", "shardq check --all mail"))
@click.argument("queue", required=False)
@click.option("--all", "everywhere", is_flag=True, help="Visit every partition of QUEUE.")
@options.store
@options.as_json
def check(queue: str | None, url: str | None, *, everywhere: bool, as_json: bool) -> Exit:
    """Check configuration, connection and clocks; ends with 1 where something is wrong.

    With --all, visits every partition of QUEUE, moves what its consumers have passed by, and drops
    what has ended by its history; after a node was away for longer than gc_grace, with
    consistency=all in the url, so that the rows of every node are seen.
    """
    if everywhere and queue is None:
        raise click.UsageError("--all needs a QUEUE.")
    findings = _configuration()
    with options.connect(url) as db:
        findings.append(_Finding("store", "ok", db.url_shown))
        findings += _clocks(db)
        for name in [queue] if queue else db.queues():
            findings += _queue(db, name)
        if queue and everywhere:
            findings.append(_visit_all(db, queue))
    if as_json:
        for one in findings:
            screen.print_json({"what": one.what, "state": one.state, "text": one.text})
    else:
        made = screen.table("", "", "")
        made.show_header = False
        style = {"ok": "green", "warning": "yellow", "wrong": "red"}
        for one in findings:
            state = f"[{style[one.state]}]{one.state}[/]"
            made.add_row(state, screen.plain(one.what), screen.plain(one.text, 300))
        screen.console().print(made, highlight=False)
    return Exit.FAILED if any(one.state == "wrong" for one in findings) else Exit.OK


def _visit_all(db: Connection, name: str) -> _Finding:
    with screen.progress() as bar:
        task = bar.add_task(f"partitions of {name}", total=None)
        found = db.queue(name, create=False).check_all(
            lambda shards: bar.update(task, completed=shards)
        )
    text = (
        f"every partition visited, {found.shards:,}, with {screen.plural(found.rows, 'message')}; "
        f"moved to now: {found.moved:,}; purged: {found.purged:,}; dropped: {found.dropped:,}"
    )
    return _Finding(f"queue {name}", "warning" if found.moved else "ok", text)


def _configuration() -> list[_Finding]:
    driver = metadata.version("cassandra-driver")
    findings = [
        _Finding(
            "versions",
            "ok",
            f"shardq {shardq.__version__}, Python {platform.python_version()}, "
            f"cassandra-driver {driver}",
        )
    ]
    for name in (OFFSET_VARIABLE, CORRECTION_VARIABLE):
        if name in os.environ:
            text = f"is set to {os.environ[name]!r}; meant for tests alone"
            findings.append(_Finding(name, "warning", text))
    return findings


def _clocks(db: Connection) -> list[_Finding]:
    findings = []
    told = []
    for node in db._home.store.nodes():
        error_us, trip_us = _compare(db, node)
        told.append(error_us)
        late = abs(error_us) / 1_000 > _WARN_DEVIATION_MS
        text = f"{error_us / 1e6:+.3f} s from this machine's, round trip {trip_us / 1e3:.1f} ms"
        findings.append(_Finding(f"clock of {node}", "warning" if late else "ok", text))
    spread_ms = (max(told) - min(told)) / 1_000 if told else 0
    if spread_ms > _WARN_DEVIATION_MS:
        text = f"the nodes are {screen.span(spread_ms)} apart; run NTP on all of them"
        findings.append(_Finding("clocks", "wrong", text))
    reference_us = round(statistics.median(told)) if told else 0
    error_us = db._home.clock.now_us() - machine_us() - reference_us
    error_s = error_us / 1e6
    text = f"corrected now is {error_s:+.3f} s from the store's"
    wrong = abs(error_s) * 1_000 > _WARN_DEVIATION_MS
    findings.append(_Finding("correction", "wrong" if wrong else "ok", text))
    return findings


def _compare(db: Connection, node: str) -> tuple[int, int]:
    """(node less machine, round trip), microseconds, of the shortest of several round trips."""
    best: tuple[int, int] | None = None
    for _ in range(_ROUND_TRIPS):
        sent = db._home.clock.boot_us()
        told, ours = db._home.store.time_us(node), machine_us()
        trip = db._home.clock.boot_us() - sent
        if best is None or trip < best[1]:
            best = told + trip // 2 - ours, trip
    return best or (0, 0)


def _queue(db: Connection, name: str) -> list[_Finding]:
    queue = db.queue(name, create=False)
    depth = queue.depth()
    members = len(db._home.store.members(name))
    text = (
        f"{depth.ready:,} ready, {depth.waiting:,} waiting, {depth.in_flight:,} in flight, "
        f"{screen.plural(members, 'consumer')}"
    )
    state = "ok"
    if queue.settings.paused:
        state, text = "warning", f"{text}; it is paused"
    elif depth.ready and is_dead_queue(name):
        state, text = "warning", f"{text}; see `shardq dead {served_queue(name)}`"
    elif depth.ready and not members:
        state, text = "warning", f"{text}; nobody consumes it"
    return [_Finding(f"queue {name}", state, text)]
