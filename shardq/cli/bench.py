"""How fast it is here, against the bare driver doing the same row work."""

from __future__ import annotations

import click

from shardq.cli import options


@click.command(
    epilog=options.examples(
        "shardq bench --store sqlite:////tmp/bench.db", "shardq bench --quick --json"
    )
)
@click.option("--quick", is_flag=True, help="A tenth of the messages.")
@options.store
@options.as_json
def bench(url: str | None, *, quick: bool, as_json: bool) -> None:
    """Measure puts, drains and lateness, beside the bare driver in the same run."""
    # Not at the top, where the help would import what only a measurement needs.
    from shardq import bench as benchmarks  # noqa: PLC0415

    benchmarks.run(options.store_url(url), quick=quick, as_json=as_json)
