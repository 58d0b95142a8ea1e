"""Jobs that look at a queue, or at its dead: each prints one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pyspark_shardq.cli import options
from pyspark_shardq.cli.options import given
from shardq.cli import options as cli_options
from shardq.cli import screen
from shardq.cli.exits import Exit
from shardq.errors import UsageError

if TYPE_CHECKING:
    from pyspark_shardq import (
        ArchiveReport,
        AuditReport,
        BacklogReport,
        DeadReport,
        DeadTable,
        HistoryReport,
        SimulateReport,
    )
    from pyspark_shardq.cli.options import JobPlace

_TIMERS_MAX = 10**12


@options.job(
    options.queue,
    given(
        "--rate N",
        "How many messages a second are delivered; where it is not given, as many as in the "
        "last hour.",
        least=1,
    ),
    given(
        "--ahead DURATION", "Only what is due until then; all, near and far, where it is not given."
    ),
    options.plot,
    options.report,
    doing="counting",
    examples=(
        "--queue reminders",
        "--queue reminders --nice --plot backlog.png",
        "--queue reminders --rate 500 --report backlog.html",
    ),
)
def backlog(where: JobPlace, **asked: Any) -> BacklogReport:
    """Show what waits in a queue: by minute and priority, the oldest, and when all will be done.

    Counts rows where they lie; no message travels, and none is claimed.
    """
    return where.queue().backlog(**asked)


@options.job(
    options.queue,
    cli_options.since,
    cli_options.until,
    given(
        "--expected PATH", "Audit the ids in this file, rather than what the history says was put."
    ),
    given("--key COLUMN", "With --expected: the column of the ids.", default="id"),
    examples=(
        "--queue reminders",
        "--queue reminders --since 1d --json | jq .lost",
        "--queue reminders --expected people.csv --key id",
    ),
    bad=Exit.UNBALANCED,
)
def audit(where: JobPlace, *, expected: str | None, **asked: Any) -> AuditReport:
    """Check that each message put into a queue has ended or is still there, and none is twice.

    Ends with 2 where that is not so, and names the messages; with 18 where the queue keeps no
    history. Consumers may run meanwhile. What the words mean, `shardq audit --help` says.
    """
    from pyspark_shardq import files
    from pyspark_shardq.jobs import audit as job

    queue = where.queue()
    wanted = None if expected is None else files.read(queue.spark, expected)
    with screen.progress() as bar:
        tell = screen.teller(bar, f"{queue.name}: ")
        return job.run(queue, expected=wanted, on_progress=tell, **asked)


@options.job(
    options.queue,
    given(
        "--where SQL",
        "Only those for which this holds, a condition on the columns of the view dead: id, "
        "reason, died, attempts, traceback, group, priority, due and others.",
        name="condition",
    ),
    given("--redrive", "Put them back into the queue, each under its id."),
    click.option("--purge", "--delete", "purge", is_flag=True, help="Delete them."),
    options.rate,
    options.run,
    options.dry_run,
    doing="reading the dead of",
    examples=(
        "--queue reminders",
        "--queue reminders --where \"reason LIKE '%timeout%'\" --redrive",
        "--queue reminders --redrive --rate 500 --dry-run",
        "--queue reminders --where \"died < '2027-01-01'\" --purge --dry-run",
    ),
)
def dead(
    where: JobPlace,
    *,
    condition: str | None,
    redrive: bool,
    purge: bool,
    rate: int | None,
    run: str | None,
    dry_run: bool,
) -> DeadReport | DeadTable:
    """Group the dead messages of a queue by error. Put them back, or delete them.

    Each is put back once, however often a task is tried. They come due at the rate that you give,
    2,000 a second where you give none.
    """
    if redrive and purge:
        raise UsageError("give one of --redrive and --purge, not both.")
    if not redrive and (rate is not None or (run is not None and not purge)):
        raise UsageError("--rate belongs to --redrive, and --run to --redrive or --purge.")
    queue = where.queue()
    if redrive:
        return queue.redrive(where=condition, rate=rate, run=run, dry_run=dry_run)
    if purge:
        return queue.purge(where=condition, run=run, dry_run=dry_run)
    return queue.dead(where=condition)


@options.job(
    options.queue,
    cli_options.since,
    cli_options.until,
    click.option(
        "--by",
        type=click.Choice(["entered", "due", "ended"]),
        default="entered",
        show_default=True,
        help="To which day a message counts.",
    ),
    options.report,
    doing="reading the history of",
    examples=(
        "--queue reminders",
        "--queue reminders --since 7d --report week.html",
        "--queue reminders --json | jq '.days[].p99_ms'",
    ),
)
def history(where: JobPlace, **asked: Any) -> HistoryReport:
    """Show how late the messages of each day were, how many attempts they took and how they ended.

    The queue must keep a history. Lateness is from the due to the end: exact, and of all messages.
    """
    return where.queue().history(**asked)


@options.job(
    options.queue,
    given(
        "--to PATH",
        "The archive's directory, of this queue alone; made where there is none.",
        name="path",
        required=True,
    ),
    cli_options.since,
    cli_options.until,
    options.dry_run,
    examples=(
        "--queue reminders --to archive/reminders",
        "--queue reminders --to s3a://logs/reminders --since 7d",
        "--queue reminders --to archive/reminders --dry-run",
    ),
    bad=Exit.FAILED,
)
def archive(where: JobPlace, *, dry_run: bool, **asked: Any) -> ArchiveReport:
    """Copy the history of a queue to Parquet, a directory for each day that is over.

    The queue must keep a history. Each written day is read back, and its counts and checksums must
    equal the history's. An archived day is not copied again; it stays as it is if the history has
    lost a part of it by now. Nothing is deleted from the queue. Ends with 1 if a day could not be
    archived.
    """
    from pyspark_shardq.jobs import archive as job

    queue = where.queue()
    with screen.progress() as bar:
        tell = screen.teller(bar, f"{queue.name}: ")
        tell("days", 0, None)
        plan = job.plan(queue, **asked)
        return plan.preview() if dry_run else plan.run(on_progress=tell)


@options.job(
    given("--timers N", "How many timers.", least=1, most=_TIMERS_MAX, default=1_000_000),
    given("--start TIME", "The first due."),
    given(
        "--over DURATION",
        "How long a time their dues are spread over.",
        default="1d",
    ),
    given(
        "--shape NAME",
        "How they are spread: even, daily (as people are awake), hourly (many on the hour) or "
        "burst (many in one minute).",
        default="even",
    ),
    given(
        "--share PART",
        "With hourly and burst: how many of them, 0 to 1.",
        type=float,
        default=0.5,
    ),
    given("--body N", "Bytes of each body.", name="body_bytes", least=0, default=200),
    given("--lanes N", "Lanes of each priority.", least=1, default=4),
    given("--bands N", "Priorities.", least=1, default=1),
    given("--minute DURATION", "The queue's minute.", default="1m"),
    given("--nodes N", "Nodes of the cluster.", least=1, default=3),
    given("--replicas N", "Copies of each row.", least=1, default=3),
    options.plot,
    options.report,
    doing="simulating",
    examples=(
        "--timers 20000000",
        "--timers 4000000 --over 1h --shape burst --lanes 16",
        "--timers 100000000 --over 30d --nodes 12 --report p.html",
    ),
)
def simulate(*, start: str | None, **asked: Any) -> SimulateReport:
    """Show how many timers would spread over lanes, shards and the nodes of a cluster.

    Draws how many made-up timers each shard would have. Neither a store nor Spark is needed. It
    says how even that is, which shards are hot, how many lanes would be enough, and how many rows
    and bytes each node holds.
    """
    from pyspark_shardq import simulate

    return simulate(**(asked if start is None else asked | {"start": start}))
