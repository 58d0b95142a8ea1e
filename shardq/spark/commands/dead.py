"""Dead messages, by the thousand: what killed them, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardq.cli import options as cli_options
from shardq.errors import UsageError
from shardq.spark.commands import options, outcome

if TYPE_CHECKING:
    from shardq.spark.commands.options import Where

_PROGRAM = "python -m shardq.spark"


@click.command(
    epilog=cli_options.examples(
        f"{_PROGRAM} dead --queue reminders",
        f"{_PROGRAM} dead --queue reminders --where \"reason LIKE '%timeout%'\" --redrive",
        f"{_PROGRAM} dead --queue reminders --redrive --rate 500 --dry-run",
        f"{_PROGRAM} dead --queue reminders --where \"died < '2027-01-01'\" --purge --dry-run",
    )
)
@options.queue
@click.option(
    "--where",
    "condition",
    metavar="SQL",
    help="Only those for which this holds, a condition on the columns of the view dead: id, "
    "reason, died, attempts, traceback, group, priority, due and others.",
)
@click.option("--redrive", is_flag=True, help="Put them back into the queue, each under its id.")
@click.option("--purge", "--delete", "purge", is_flag=True, help="Delete them.")
@options.rate
@options.run
@options.dry_run
@options.somewhere
@cli_options.store
def dead(
    *,
    where: Where,
    queue: str,
    condition: str | None,
    redrive: bool,
    purge: bool,
    rate: int | None,
    run: str | None,
    dry_run: bool,
) -> None:
    """Group the dead messages of a queue by error. Put them back, or delete them.

    Each is put back once, however often a task is tried. They come due at the rate that you give,
    2,000 a second where you give none.
    """
    from shardq.spark.jobs import dead as job

    if redrive and purge:
        raise UsageError("give one of --redrive and --purge, not both.")
    if not redrive and (rate is not None or (run is not None and not purge)):
        raise UsageError("--rate belongs to --redrive, and --run to --redrive or --purge.")
    opened = where.queue(queue)
    with outcome.busy(f"reading the dead of {queue}"):
        if redrive:
            done = job.redrive(opened, where=condition, rate=rate, run=run, dry_run=dry_run)
        elif purge:
            done = job.purge(opened, where=condition, run=run, dry_run=dry_run)
        else:
            found = job.table(opened, where=condition)
    if redrive or purge:
        outcome.tell(done, where, done.lines)
    else:
        outcome.tell(found, where, found.lines)
