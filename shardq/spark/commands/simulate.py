"""Where timers that nobody has put would lie: planning, on paper."""

from __future__ import annotations

import click

from shardq.cli import options as cli_options
from shardq.spark.commands import options, outcome
from shardq.spark.commands.options import Where

_TIMERS_MAX = 10**12


@click.command(
    epilog=cli_options.examples(
        "python -m shardq.spark simulate --timers 20000000",
        "python -m shardq.spark simulate --timers 4000000 --over 1h --shape burst --lanes 16",
        "python -m shardq.spark simulate --timers 100000000 --over 30d --nodes 12 --report p.html",
    )
)
@cli_options.whole(
    "--timers", text="How many timers.", least=1, most=_TIMERS_MAX, default=1_000_000
)
@click.option("--start", metavar="TIME", help="The first due.")
@click.option(
    "--over",
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="How long a time their dues are spread over.",
)
@click.option(
    "--shape",
    metavar="NAME",
    default="even",
    show_default=True,
    help="How they are spread: even, daily (as people are awake), hourly (many on the hour) or "
    "burst (many in one minute).",
)
@click.option(
    "--share",
    metavar="PART",
    type=float,
    default=0.5,
    show_default=True,
    help="With hourly and burst: how many of them, 0 to 1.",
)
@cli_options.whole("--body", "body_bytes", text="Bytes of each body.", least=0, default=200)
@cli_options.whole("--lanes", text="Lanes of each priority.", least=1, default=4)
@cli_options.whole("--bands", text="Priorities.", least=1, default=1)
@click.option(
    "--minute", metavar="DURATION", default="1m", show_default=True, help="The queue's minute."
)
@cli_options.whole("--nodes", text="Nodes of the cluster.", least=1, default=3)
@cli_options.whole("--replicas", text="Copies of each row.", least=1, default=3)
@options.plot
@options.report
@options.somewhere
def simulate(
    *,
    where: Where,
    start: str | None,
    plot: str | None,
    report: str | None,
    **asked: object,
) -> None:
    """Show how many timers would spread over lanes, shards and the nodes of a cluster.

    Made-up timers go through the arithmetic by which messages find their shards. No store is
    needed. It says how even that is, which shards are hot, how many lanes would be enough, and how
    many rows and bytes each node holds.
    """
    from shardq.spark.jobs import simulate as job

    given = asked if start is None else asked | {"start": start}
    spark = where.session()
    with outcome.busy("simulating"):
        found = job.run(spark, **given)  # type: ignore[arg-type]
    outcome.write_plot(plot, found.plot)
    outcome.write_page(report, found.page)
    outcome.tell(found, where, found.lines)
