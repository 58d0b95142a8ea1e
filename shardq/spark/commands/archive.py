"""The history of a queue, kept for longer than the queue keeps it."""

from __future__ import annotations

import click

from shardq.cli import options as cli_options
from shardq.cli import screen
from shardq.cli.exits import Exit
from shardq.spark.commands import options, outcome
from shardq.spark.commands.options import Where


@click.command(
    epilog=cli_options.examples(
        "python -m shardq.spark archive --queue reminders --to archive/reminders",
        "python -m shardq.spark archive --queue reminders --to s3a://logs/reminders --since 7d",
        "python -m shardq.spark archive --queue reminders --to archive/reminders --dry-run",
    )
)
@options.queue
@click.option(
    "--to",
    "path",
    metavar="PATH",
    required=True,
    help="The archive's directory, of this queue alone; made where there is none.",
)
@cli_options.since
@cli_options.until
@options.dry_run
@options.somewhere
@cli_options.store
def archive(
    *,
    where: Where,
    queue: str,
    path: str,
    since: str | None,
    until: str | None,
    dry_run: bool,
) -> Exit:
    """Copy the history of a queue to Parquet, a directory for each day that is over.

    The queue must keep a history. What was written is read back, and its counts and checksums have
    to be those of the history. A day that is there already is not copied again; one that the
    history has less of by now stays as it is. Nothing is deleted from the queue. Ends with 1 where
    a day could not be archived.
    """
    from shardq.spark.jobs import archive as job

    opened = where.queue(queue)
    with screen.progress() as bar:
        tell = screen.teller(bar, f"{queue}: ")
        tell("days", 0, None)
        plan = job.plan(opened, path, since=since, until=until)
        report = plan.preview() if dry_run else plan.run(on_progress=tell)
    outcome.tell(report, where, report.lines)
    return Exit.OK if dry_run or report.is_whole else Exit.FAILED
