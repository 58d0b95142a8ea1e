"""How fast it is here, against the bare driver doing the same row work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardq import bench as benchmarks
from shardq.cli import options, screen

if TYPE_CHECKING:
    from collections.abc import Sequence

_MET = {True: "yes", False: "NO", None: ""}


@click.command(
    epilog=options.examples(
        "shardq bench --store sqlite:////tmp/bench.db",
        "shardq bench --quick --json",
        "shardq bench --store cassandra://127.0.0.1/shardq --only drain --only put",
        "shardq bench server --store sqlite:////tmp/bench.db",
    )
)
@click.option(
    "--quick", is_flag=True, help="Measure with few messages, in a minute or two instead of ten."
)
@click.option(
    "--only",
    metavar="NAME",
    multiple=True,
    type=click.Choice(benchmarks.NAMES),
    help=f"Only this measurement, one of {', '.join(benchmarks.NAMES)}. May be given several "
    "times.",
)
@click.option(
    "--peer",
    "peers",
    metavar="NAME=URL",
    multiple=True,
    help="With server: measure another server of SQS beside, such as moto=http://127.0.0.1:5000. "
    "May be given several times.",
)
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(benchmarks.NAMES))
@options.store
@options.as_json
def bench(
    url: str | None,
    *,
    names: Sequence[str],
    quick: bool,
    only: Sequence[str],
    peers: Sequence[str],
    as_json: bool,
) -> None:
    """Measure puts, drains and lateness, and what the bare driver reaches in the same run.

    By NAME only that is measured, as by --only. The measurements server and traces are taken by
    their names alone.

    All of it happens in a temporary directory or keyspace beside the store, which is removed at the
    end.
    """
    chosen = options.store_url(url)
    lines = benchmarks.run(
        chosen,
        quick=quick,
        only=[*names, *only],
        peers=[_peer(one) for one in peers],
        tell=lambda text: click.echo(text, err=True),
    )
    if as_json:
        screen.print_json({"quick": quick, "lines": [line.as_dict() for line in lines]})
        return
    table = screen.table("what", ">reached", "unit", ">bare", ">ratio", "target", "met", "note")
    for line in lines:
        table.add_row(
            screen.plain(line.what),
            _figure(line.reached),
            line.unit,
            _figure(line.bare),
            "" if line.ratio is None else f"{line.ratio:.2f}",
            line.target,
            _MET[line.met],
            screen.plain(line.note),
        )
    screen.show(table)


def _peer(text: str) -> tuple[str, str]:
    name, found, url = text.partition("=")
    if not found or not url.startswith("http://"):
        raise click.UsageError(f"--peer {text!r} must be NAME=http://HOST:PORT.")
    return name, url


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
