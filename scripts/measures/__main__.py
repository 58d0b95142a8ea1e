"""The command of `scripts/bench`: takes the named measurements, or all."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from measures import callers, groups, history, keys, metrics, server, tasks, traces, workers
from measures.sizes import FULL, QUICK, Sizes
from shardq import cli
from shardq.bench import Measurement, names, run
from shardq.cli import options
from shardq.cli.bench import show

if TYPE_CHECKING:
    from collections.abc import Sequence

MEASUREMENTS: tuple[Measurement[Sizes], ...] = (
    Measurement("groups", groups.drained),
    Measurement("keys", keys.cost),
    Measurement("coroutines", tasks.coroutines),
    Measurement("memory", tasks.memory),
    Measurement("callers", callers.taken),
    Measurement("waiting", callers.waiting),
    Measurement("history", history.cost),
    Measurement("workers", workers.shared),
    Measurement("metrics", metrics.cost),
    Measurement("traces", traces.cost),
    Measurement("server", server.requests),
)


@click.command(epilog=f"NAME is one of {', '.join(names(MEASUREMENTS))}.")
@options.option("--quick", "Measure with few messages.")
@options.option(
    "--peer NAME=URL",
    "With server: measure another server of SQS beside, such as moto=http://127.0.0.1:5000.",
    name="peers",
    multiple=True,
)
@click.argument("only", metavar="[NAME]...", nargs=-1, type=click.Choice(names(MEASUREMENTS)))
@options.store
@options.as_json
def bench(*, only: Sequence[str], quick: bool, peers: Sequence[str]) -> None:
    """Measure what `shardq bench` does not: the named ones, or all."""
    sizes = replace(QUICK if quick else FULL, peers=tuple(_peer(one) for one in peers))
    lines = run(
        options.store_url(),
        MEASUREMENTS,
        sizes,
        only=only,
        tell=lambda text: click.echo(text, err=True),
    )
    show(lines, quick=quick)


def _peer(text: str) -> tuple[str, str]:
    name, found, url = text.partition("=")
    if not found or not url.startswith("http://"):
        raise click.UsageError(f"--peer {text!r} must be NAME=http://HOST:PORT.")
    return name, url


if __name__ == "__main__":
    sys.exit(cli.run(command=bench, name="scripts/bench"))
