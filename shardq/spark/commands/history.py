"""How late messages were, and how they ended."""

from __future__ import annotations

from typing import Literal

import click

from shardq.cli import options as cli_options
from shardq.spark.commands import options, outcome
from shardq.spark.commands.options import Where


@click.command(
    epilog=cli_options.examples(
        "python -m shardq.spark history --queue reminders",
        "python -m shardq.spark history --queue reminders --since 7d --report week.html",
        "python -m shardq.spark history --queue reminders --json | jq '.days[].p99_ms'",
    )
)
@options.queue
@cli_options.since
@cli_options.until
@click.option(
    "--by",
    type=click.Choice(["entered", "due", "ended"]),
    default="entered",
    show_default=True,
    help="To which day a message counts.",
)
@options.report
@options.somewhere
@cli_options.store
def history(
    *,
    where: Where,
    queue: str,
    since: str | None,
    until: str | None,
    by: Literal["entered", "due", "ended"],
    report: str | None,
) -> None:
    """Show how late the messages of each day were, how many attempts they took and how they ended.

    The queue must keep a history. Lateness is from the due to the end: exact, and of all messages.
    """
    from shardq.spark.jobs import history as job

    opened = where.queue(queue)
    with outcome.busy(f"reading the history of {queue}"):
        found = job.run(opened, since=since, until=until, by=by)
    outcome.write_page(report, found.page)
    outcome.tell(found, where, found.lines)
