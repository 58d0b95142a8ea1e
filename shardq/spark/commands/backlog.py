"""What waits in a queue, and for how long still."""

from __future__ import annotations

import click

from shardq.cli import options as cli_options
from shardq.spark.commands import options, outcome
from shardq.spark.commands.options import Where


@click.command(
    epilog=cli_options.examples(
        "python -m shardq.spark backlog --queue reminders",
        "python -m shardq.spark backlog --queue reminders --nice --plot backlog.png",
        "python -m shardq.spark backlog --queue reminders --rate 500 --report backlog.html",
    )
)
@options.queue
@cli_options.whole(
    "--rate",
    text="How many messages a second are delivered; where it is not given, as many as in the last "
    "hour.",
    least=1,
)
@click.option(
    "--ahead",
    metavar="DURATION",
    help="Only what is due until then; all, near and far, where it is not given.",
)
@options.plot
@options.report
@options.somewhere
@cli_options.store
def backlog(
    *,
    where: Where,
    queue: str,
    rate: int | None,
    ahead: str | None,
    plot: str | None,
    report: str | None,
) -> None:
    """Show what waits in a queue: by minute and priority, the oldest, and when all will be done.

    Counts rows where they lie; no message travels, and none is claimed.
    """
    from shardq.spark.jobs import backlog as job

    opened = where.queue(queue)
    with outcome.busy(f"counting {queue}"):
        found = job.run(opened, ahead=ahead, rate=rate)
    outcome.write_plot(plot, found.plot)
    outcome.write_page(report, found.page)
    outcome.tell(found, where, found.lines)
