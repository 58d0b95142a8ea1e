"""Whether the books of a queue balance, however many messages it has had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardq.cli import options as cli_options
from shardq.cli import screen
from shardq.cli.exits import Exit
from shardq.model.times import iso
from shardq.spark.commands import options, outcome
from shardq.spark.commands.options import Where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.spark.jobs.audit import AuditReport

_NAMED_MAX = 100


@click.command(
    epilog=cli_options.examples(
        "python -m shardq.spark audit --queue reminders",
        "python -m shardq.spark audit --queue reminders --since 1d --json | jq .lost",
        "python -m shardq.spark audit --queue reminders --expected people.csv --key id",
    )
)
@options.queue
@cli_options.since
@cli_options.until
@click.option(
    "--expected",
    metavar="PATH",
    help="Audit the ids in this file, rather than what the history says was put.",
)
@click.option(
    "--key",
    metavar="COLUMN",
    default="id",
    show_default=True,
    help="With --expected: the column of the ids.",
)
@options.somewhere
@cli_options.store
def audit(
    *,
    where: Where,
    queue: str,
    since: str | None,
    until: str | None,
    expected: str | None,
    key: str,
) -> Exit:
    """Check that each message put into a queue has ended or is still there, and none is twice.

    Ends with 2 where that is not so, and names the messages; with 18 where the queue keeps no
    history. Consumers may run meanwhile. What the words mean, `shardq audit --help` says.
    """
    from shardq.spark.jobs import audit as job

    opened = where.queue(queue)
    wanted = None if expected is None else options.frame_of(opened.spark, expected)
    with screen.progress() as bar:
        tell = screen.teller(bar, f"{queue}: ")
        report = job.run(
            opened, since=since, until=until, expected=wanted, key=key, on_progress=tell
        )
    outcome.tell(report, where, lambda: _named(report))
    return Exit.OK if report.is_even else Exit.UNBALANCED


def _named(report: AuditReport) -> Iterator[str]:
    misfits = [] if report.is_even else report.named(_NAMED_MAX + 1)
    for one in misfits[:_NAMED_MAX]:
        ended = f", {one.fate}" if one.fate else ""
        yield f"{one.kind.value}: {one.id}, entered {iso(one.entered)}{ended}"
    if len(misfits) > _NAMED_MAX:
        yield f"and more; these are {_NAMED_MAX}, and `misfits` of the report in Python has all."
