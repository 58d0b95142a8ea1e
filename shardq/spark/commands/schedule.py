"""Rows of a file as messages, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardq.cli import options as cli_options
from shardq.errors import UnknownQueue, UsageError
from shardq.spark.commands import options, outcome, progress
from shardq.spark.pieces import UNDO_BEFORE

if TYPE_CHECKING:
    from shardq.spark.commands.options import Where

_PROGRAM = "python -m shardq.spark"


@click.command(
    epilog=cli_options.examples(
        f"{_PROGRAM} schedule --queue mail --input people.csv --key id --due at --create",
        f"{_PROGRAM} schedule --queue mail --input people.parquet --key id --due at --dry-run",
        f"{_PROGRAM} schedule --queue mail --input new.jsonl --key id --due at --bad bad.jsonl",
        f"{_PROGRAM} schedule --queue mail --input people.csv --key id --due at --run RUN",
    )
)
@options.queue
@options.rows
@click.option(
    "--create", is_flag=True, help="Make the queue where there is none, with its usual settings."
)
@click.option(
    "--bad",
    metavar="PATH",
    help="Write rows that cannot be messages there, each with its reason, and put the others. "
    "Where it is not given, such a row ends the job before anything is put.",
)
@options.run
@options.as_of
@options.dry_run
@options.somewhere
@cli_options.store
def schedule(
    *, where: Where, queue: str, path: str, bad: str | None, dry_run: bool, **asked: Any
) -> None:
    """Put each row of a file into a queue as a message that is due at the row's own time.

    Rows are put by many tasks at once, and each of them exactly once: its id and its due are fixed
    before the first try. What has been put is live at once. After an interruption `--run` resumes,
    and `unschedule` takes back what no consumer has had yet.
    """
    from shardq.spark.jobs import schedule as job

    if bad is not None:
        options.kind_of(bad)
    # Preview makes no queue.
    asked["create"] = asked["create"] and not dry_run
    opened = where.queue(queue)
    frame = options.frame_of(opened.spark, path)
    asked["priority"] = options.priority_of(frame, path, asked["priority"])
    try:
        plan = job.plan(opened, frame, **asked)
    except UnknownQueue as error:
        error.add_note(
            "Only a run with --create makes the queue, a dry one does not."
            if dry_run
            else "To make the queue, add --create."
        )
        raise
    with outcome.busy(f"reading {path}"):
        preview = plan.preview()
    if dry_run:
        outcome.tell(preview, where, preview.lines)
        return
    if preview.bad and bad is None:
        reasons = ", ".join(f"{count:,} {why}" for why, count in sorted(preview.bad.items()))
        raise UsageError(
            f"some rows cannot be messages ({reasons}), and nothing was put; mend them, or write "
            f"them to a file and put the others: --bad bad.jsonl."
        )
    if preview.bad and bad is not None:
        options.write(plan.bad, bad)
    click.echo(f"shardq: run {plan.run_id}; --run {plan.run_id} resumes it.", err=True)
    with progress.watched(f"put into {queue}", opened, plan.run_id, preview.bins):
        report = plan.run(skip_bad=True)
    outcome.tell(report, where, report.lines)


@click.command(
    epilog=cli_options.examples(
        f"{_PROGRAM} unschedule --queue mail --input people.csv --key id --due at --run RUN",
        f"{_PROGRAM} unschedule --queue mail --input people.csv --key id --due at --as-of TIME",
    )
)
@options.queue
@options.rows
@click.option("--run", metavar="RUN", help="The run to take back. Each run prints its name.")
@click.option("--as-of", metavar="TIME", help="The time of the run, where it was given one.")
@options.dry_run
@options.somewhere
@cli_options.store
def unschedule(
    *, where: Where, queue: str, path: str, dry_run: bool, run: str | None, as_of: str | None,
    **asked: Any,
) -> None:  # fmt: skip
    """Take back what a schedule of the same file has put, and nothing else.

    Give it the file and the options of that schedule, and its run or its time. What a consumer has
    had already, or has just now, stays as it is and is counted.
    """
    from shardq.spark.jobs import unschedule as job

    if run is None and as_of is None:
        raise UsageError(
            "unschedule needs the --run or the --as-of of the schedule that it undoes."
        )
    opened = where.queue(queue)
    frame = options.frame_of(opened.spark, path)
    asked["priority"] = options.priority_of(frame, path, asked["priority"])
    plan = job.plan(opened, frame, run=run, as_of=as_of, **asked)
    with outcome.busy(f"reading {path}"):
        preview = plan.preview()
    if dry_run:
        outcome.tell(preview, where, preview.lines)
        return
    what = f"take back from {queue}"
    with progress.watched(what, opened, plan.run_id, preview.bins, before=UNDO_BEFORE):
        # The run that is undone has left bad rows out.
        report = plan.run(skip_bad=True)
    outcome.tell(report, where, report.lines)
