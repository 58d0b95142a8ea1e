"""Rows of a file as messages, and back."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import click

from pyspark_shardq import files
from pyspark_shardq.cli import options
from pyspark_shardq.cli.options import given
from shardq.cli import screen
from shardq.errors import StoreError, UnknownQueue, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from pyspark_shardq.cli.options import JobPlace
    from pyspark_shardq.jobs.schedule import Plan, Preview, Report
    from pyspark_shardq.pieces import PiecesDone

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
_ROWS = (
    given(
        "--input PATH",
        f"The rows: {files.SUFFIXES}; a file, or a directory of a name like that.",
        name="path",
        required=True,
    ),
    given(
        "--key COLUMN",
        "What tells each from all others; it becomes the message's id.",
        required=True,
    ),
    given(
        "--due COLUMN",
        "When each is due: a time with its offset, 2027-01-01T09:00:00+01:00 say.",
        required=True,
    ),
    given("--body COLUMN", "The body; the whole row as JSON where it is not given."),
    given("--priority COLUMN", "Priority 0 comes first."),
    given("--group COLUMN", "Messages of one group run one at a time."),
    given("--headers COLUMN", "Headers: an object of texts in JSON, a map or a struct in Parquet."),
    given(
        "--spread DURATION",
        "Postpone each due by up to this long: by a part that follows from its key.",
    ),
    options.rate,
)
"""The options that say which rows are messages, and how they are made."""


@options.job(
    options.queue,
    *_ROWS,
    given("--create", "Make the queue where there is none, with its usual settings."),
    given(
        "--bad PATH",
        "Write rows that cannot be messages there, each with its reason, and put the others. "
        "Where it is not given, such a row ends the job before anything is put.",
    ),
    options.run,
    given(
        "--as-of TIME",
        "The time of the run; now where it is not given. Two runs of one time and one input "
        "are one run.",
    ),
    options.dry_run,
    examples=(
        "--queue mail --input people.csv --key id --due at --create",
        "--queue mail --input new.parquet --key id --due at --dry-run",
        "--queue mail --input new.json --key id --due at --bad bad.json",
        "--queue mail --input people.csv --key id --due at --run RUN",
    ),
)
def schedule(
    where: JobPlace, *, path: str, bad: str | None, dry_run: bool, create: bool, **asked: Any
) -> Preview | Report:
    """Put each row of a file into a queue as a message that is due at the row's own time.

    Rows are put by many tasks at once, and each of them exactly once: its id and its due are fixed
    before the first try. What has been put is live at once. After an interruption `--run` resumes,
    and `unschedule` takes back what no consumer has had yet.
    """
    if bad is not None:
        files.kind_of(bad)
    try:
        # Preview makes no queue.
        plan = _plan(where, "schedule", path, asked | {"create": create and not dry_run})
    except UnknownQueue as error:
        error.add_note(
            "Only a run with --create makes the queue, a dry one does not."
            if dry_run
            else "To make the queue, add --create."
        )
        raise
    with options.busy(f"reading {path}"):
        preview = plan.preview()
    if dry_run:
        return preview
    if preview.bad and bad is None:
        reasons = ", ".join(f"{count:,} {why}" for why, count in sorted(preview.bad.items()))
        raise UsageError(
            f"some rows cannot be messages ({reasons}), and nothing was put; mend them, or write "
            f"them to a file and put the others: --bad bad.jsonl."
        )
    if preview.bad and bad is not None:
        files.write(plan.bad, bad)
    click.echo(f"shardq: run {plan.run_id}; --run {plan.run_id} resumes it.", err=True)
    with _watched(f"put into {where.name}", plan, preview):
        return plan.run(skip_bad=True)


@options.job(
    options.queue,
    *_ROWS,
    given("--run RUN", "The run to take back. Each run prints its name."),
    given("--as-of TIME", "The time of the run, where it was given one."),
    options.dry_run,
    examples=(
        "--queue mail --input new.csv --key id --due at --run RUN",
        "--queue mail --input new.csv --key id --due at --as-of TIME",
    ),
)
def unschedule(where: JobPlace, *, path: str, dry_run: bool, **asked: Any) -> Preview | Report:
    """Take back what a schedule of the same file has put, and nothing else.

    Give it the file and the options of that schedule, and its run or its time. What a consumer has
    had already, or has just now, stays as it is and is counted.
    """
    if asked["run"] is None and asked["as_of"] is None:
        raise UsageError(
            "unschedule needs the --run or the --as-of of the schedule that it undoes."
        )
    plan = _plan(where, "unschedule", path, asked)
    with options.busy(f"reading {path}"):
        preview = plan.preview()
    if dry_run:
        return preview
    with _watched(f"take back from {where.name}", plan, preview):
        # The run that is undone has left bad rows out.
        return plan.run(skip_bad=True)


def _plan(where: JobPlace, job: str, path: str, asked: dict[str, Any]) -> Plan:
    queue = where.queue()
    frame = files.read(queue.spark, path)
    asked["priority"] = files.priority_of(frame, path, asked["priority"])
    plan: Plan = getattr(queue, job)(frame, **asked)
    return plan


@contextmanager
def _watched(what: str, plan: Plan, preview: Preview) -> Iterator[None]:
    """While this lasts, a bar on stderr shows the rows that are done, where that is a terminal.

    The rows are counted in the ledger: Spark Connect does not report its tasks.
    """
    with screen.progress() as bar:
        task = bar.add_task(what, total=preview.rows)
        if bar.disable:
            yield
            return
        ended = Event()
        asking = Thread(target=_ask, args=(plan.done(preview), ended, bar, task))
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join()


def _ask(done: PiecesDone, ended: Event, bar: Progress, task: TaskID) -> None:
    while not ended.wait(_PAUSE_S):
        try:
            tally = done.tally()
            bar.update(task, completed=tally.rows + tally.cancelled)
        except StoreError as error:
            # The run itself goes on, or raises it.
            log.info("the progress of a run cannot be read: %s", error)
