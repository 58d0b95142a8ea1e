"""Runs the tasks of an app: in this process, or in several under a supervisor."""

from __future__ import annotations

import os
import re
import signal
import threading
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardq import consumer
from shardq.child import handled
from shardq.cli import logs, options, probes, screen, streams, supervised
from shardq.cli.exits import Exit
from shardq.cli.joblines import JobLines
from shardq.cli.jobs import app_of
from shardq.cli.probes import Probes
from shardq.clock import SystemClock
from shardq.errors import UsageError, shown
from shardq.health.vitals import ConsumerVitals
from shardq.model import times
from shardq.tasks.importing import directory_of
from shardq.tasks.line import COUNTS, MARGIN_S, ProcessLine
from shardq.tasks.processes import PROCESSES_MAX
from shardq.tasks.sources import Sources
from shardq.tasks.worker import COROUTINES, COROUTINES_MAX, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from shardq.connection import Connection
    from shardq.model.message import Message
    from shardq.tasks import App, Ended

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_MEMORY_MIN = 1_000_000
_MAX_JOBS_MAX = 1_000_000_000
_INIT = 1
"""The process id of a container's main process."""


class Size(click.ParamType[int]):
    """Bytes, as people write them: 500MB, 1.5GiB."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Convert a text to the number of bytes. Called by click."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]i?B)", str(value).strip(), re.IGNORECASE)
        count = round(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
        if count < _MEMORY_MIN:
            self.fail(f"{shown(value)} is no size of 1MB or more, such as 500MB.", param, ctx)
        return count


@options.command(
    "shardq work app:app",
    "shardq work app:app --threads 8 --processes 2 --memory 500MB",
    "shardq work app:app --reload",
    "shardq work app:app --queue mail --log json --until-empty",
    has_json=False,
)
@click.argument("name", metavar="APP")
@options.option(
    "--threads N",
    "How many jobs of all queues run at once in a process, but for coroutines.",
    least=1,
    most=consumer.THREADS_MAX,
    default=consumer.THREADS,
)
@options.option(
    "--coroutines N",
    "How many coroutines run at once in a process.",
    least=1,
    most=COROUTINES_MAX,
    default=COROUTINES,
)
@options.option(
    "--processes N",
    "How many processes run jobs, each with its own threads and loop. One that dies, or in "
    "which a function outlives its time limit, is replaced. Without it, and without --memory, "
    "--max-jobs and --reload, jobs run in this process, which nothing replaces.",
    least=1,
    most=PROCESSES_MAX,
)
@options.option(
    "--memory SIZE",
    "Replace a process that has grown beyond this, 500MB say: another starts at once, and it "
    "ends gracefully.",
    type=Size(),
)
@options.option(
    "--max-jobs N",
    "Replace a process that has run so many jobs, as one that has grown beyond --memory.",
    least=1,
    most=_MAX_JOBS_MAX,
)
@options.option(
    "--reload",
    "For development: replace the processes when a *.py file of the app changes. An app that "
    "is broken is tried again at the next change.",
)
@options.option(
    "--reload-dir DIR",
    "With --reload: watch this directory, not the app's.",
    name="reload_dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@options.option(
    "--reload-exclude PATTERN",
    "With --reload: pass over files and folders of this name, gen or *_pb2.py say.",
    name="reload_excludes",
    multiple=True,
)
@options.option(
    "--queue NAME",
    "Serve this queue alone, not all of the app's tasks.",
    name="queues",
    multiple=True,
)
@options.option(
    "--prefetch N",
    "How many jobs of each queue are read ahead.",
    least=1,
    most=consumer.PREFETCH_MAX,
    default=consumer.PREFETCH,
)
@options.option(
    "--until-empty",
    "End once no job waits in any of the queues, however far away it is due; with 24 where "
    "jobs have died.",
)
@options.option(
    "--deadline DURATION",
    "How long a stop waits for jobs that run. Those that still run then are run again "
    "elsewhere, and spend no attempt; a process that has not ended 5 s later is killed.",
    default=consumer.DEADLINE,
)
@options.option(
    "--log FORM",
    "What is printed of each run that ends: a line for people, a JSON object, or nothing "
    "(lines, json, none).",
    name="form",
    type=click.Choice(("lines", "json", "none")),
    default="lines",
)
@probes.metrics
@probes.health
def work(
    *,
    name: str,
    processes: int | None,
    memory: int | None,
    max_jobs: int | None,
    reload: bool,
    reload_dirs: tuple[Path, ...],
    reload_excludes: tuple[str, ...],
    until_empty: bool,
    deadline: str,
    form: str,
    metrics: str | None,
    health: str | None,
    **settings: Any,
) -> int:
    """Run the jobs of APP, of all its queues, as they come due.

    APP is module:attribute, app:app say, imported from the current directory; the attribute is app
    where it is left out. The store is the app's own, else --store or SHARDQ_STORE, else
    sqlite:///shardq.db in the current directory.

    Stops on Ctrl-C, on SIGTERM, or when its terminal is closed: jobs that run are finished within
    --deadline, the others are left to other workers. A second signal waits for none. With
    --processes and no terminal, SIGHUP replaces the processes so. Under nohup it does nothing.
    Ends with 143 where a process had to be killed.
    """
    if (reload_dirs or reload_excludes) and not reload:
        raise UsageError("--reload-dir and --reload-exclude have no use without --reload.")
    line = ProcessLine.inherited()
    deadline_ms = times.duration_ms(deadline, name="--deadline")
    deadline_s = deadline_ms / 1_000
    is_supervised = any(one is not None for one in (processes, memory, max_jobs)) or reload
    # A process that has a supervisor opens no ports: the supervisor has them.
    probed = Probes(metrics, health) if line is None else None
    if probed is not None and is_supervised:
        watched = [path.resolve() for path in reload_dirs or [directory_of(name)]]
        return supervised.supervise(
            probed,
            processes=processes or 1,
            deadline_s=deadline_s,
            memory_bytes=memory,
            reload=Sources(*watched, excludes=reload_excludes) if reload else None,
            is_counting=metrics is not None,
        )
    interrupted = f"interrupted while {name} was imported."
    with (
        supervised.reported(line, interrupted),
        _heeding() as early,
        closing(probed) if probed else nullcontext(),
    ):
        app = app_of(name)
        if early.is_told_to_end:
            streams.note(f"was told to end while {name} was imported.")
            return Exit.TERMINATED
        return _work(
            app,
            line,
            form,
            deadline_s,
            early=early,
            max_jobs=max_jobs,
            until_empty=until_empty,
            settings=settings | {"deadline": f"{deadline_ms}ms"},
            watched=partial(_watch, app.connection, probed, line, deadline_s, metrics),
        )


class _Early:
    """Catches SIGTERM in process 1 until jobs run; SIGTERM ends any other process by default.

    Attributes:
        is_told_to_end: True after the first SIGTERM. A second one ends the process at once.
    """

    def __init__(self) -> None:
        self.is_told_to_end = False
        self._stop: Callable[[], object] | None = None

    def catch(self, _number: int, _frame: FrameType | None) -> None:
        """Handle the signal."""
        if self.is_told_to_end:
            os._exit(Exit.TERMINATED)
        self.is_told_to_end = True
        if self._stop is not None:
            self._stop()

    def end_by(self, stop: Callable[[], object]) -> None:
        """Call a function at the first signal, or now if there was one."""
        self._stop = stop
        if self.is_told_to_end:
            stop()


@contextmanager
def _heeding() -> Iterator[_Early]:
    early = _Early()
    if os.getpid() != _INIT:
        yield early
        return
    with handled({signal.SIGTERM: early.catch}):
        yield early


def _work(
    app: App,
    line: ProcessLine | None,
    form: str,
    deadline_s: float,
    *,
    early: _Early,
    max_jobs: int | None,
    until_empty: bool,
    settings: dict[str, Any],
    watched: Callable[[Worker], object],
) -> Exit:
    """Run jobs in this process until a signal or the supervisor ends it; returns the exit code."""
    db = app.connection
    lines = None
    if form != "none":
        lines = JobLines(db._home.clock, app.tasks, as_json=form == "json")
    who = "" if line is None else f"process {os.getpid()} "

    def overran(said: str) -> None:
        if line is not None:
            # Leave out the place in the code, which is in the log already.
            line.overrun(said.partition("; it stands at:")[0])
            worker.stop()

    is_bounded = has_deaths = False

    def dies(_message: Message) -> None:
        nonlocal has_deaths
        if line is not None and not has_deaths:
            line.died()
        has_deaths = True

    def stops(running: int) -> None:
        nonlocal is_bounded
        is_bounded = line is None
        jobs = screen.plural(running, "job")
        limit = times.duration_text(round(deadline_s * 1_000))
        # Give no hint in a process that has a supervisor, which may be replacing it.
        hint = "; a second Ctrl-C ends the wait" if line is None else ""
        streams.note(f"{who}waits for {jobs} to end, up to {limit}{hint}.")

    try:
        worker = Worker(
            app,
            report=_report_of(lines, max_jobs, overran),
            on_overrun=None if line is None else overran,
            on_dead=dies if until_empty else None,
            on_stop=stops,
            **settings,
        )
        early.end_by(worker.stop)
        watched(worker)
        _tell_served(app, who, settings["queues"])
        with nullcontext() if lines is None else logs.without(lines.says):
            worker.run(until_empty=until_empty)
    finally:
        if lines is not None:
            lines.close()
        app.close()
    if lines is not None:
        streams.note(f"{who}ended after {lines.total}.")
    if line is not None:
        # Send the last counts, of the time since the last question.
        line.answer(COUNTS)
        if until_empty:
            line.done()
    if is_bounded:
        _end_within(MARGIN_S)
    return Exit.DIED if has_deaths else Exit.OK


def _watch(
    db: Connection,
    probed: Probes | None,
    line: ProcessLine | None,
    deadline_s: float,
    metrics: str | None,
    worker: Worker,
) -> None:
    """Connect a worker to probes, or to its supervisor. It ends if the supervisor dies."""

    def vitals() -> ConsumerVitals:
        return ConsumerVitals(db, worker.consumers, lambda: worker.loop_hung_us)

    if probed is not None:
        probed.begin(vitals, probes.of_one(db))
    if line is not None:
        probes.answer(line, vitals, db, has_metrics=metrics is not None)
        line.on_lost(worker.stop, deadline_s)
        line.ready()


def _report_of(
    lines: JobLines | None, max_jobs: int | None, overran: Callable[[str], object]
) -> Callable[[Ended], object] | None:
    """The function for ended runs: prints lines, and ends the process after `max_jobs` jobs."""
    if max_jobs is None:
        return None if lines is None else lines.tell
    ran = count(1)

    def report(ended: Ended) -> None:
        if lines is not None:
            lines.tell(ended)
        if next(ran) == max_jobs:
            overran(f"it has run {screen.plural(max_jobs, 'job')}")

    return report


def _tell_served(app: App, who: str, queues: tuple[str, ...]) -> None:
    """Print the queues and tasks of the worker."""
    tasks = screen.plural(len(app.tasks), "task")
    served = ", ".join(dict.fromkeys(queues or app.queue_names))
    streams.note(f"{who}runs {tasks} of {served} of {app.connection.url_shown}.")
    if others := [name for name in queues if name not in app.queue_names]:
        streams.note(f"{who}no task of the app has queue {', '.join(others)}: check its name.")


def _end_within(seconds: float) -> None:
    """End this process after some time, because Python would wait for the user's own threads."""

    def end() -> None:
        SystemClock().sleep(seconds)
        streams.note("ends, though threads or processes that its jobs have started still work.")
        os._exit(Exit.TERMINATED)

    threading.Thread(target=end, name="shardq-end", daemon=True).start()
