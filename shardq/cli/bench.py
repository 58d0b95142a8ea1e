"""The speed of this machine, compared with the bare driver at the same work on rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardq import bench as benchmarks
from shardq.bench.sizes import FULL, QUICK
from shardq.cli import options, screen

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = benchmarks.names(benchmarks.MEASUREMENTS)
_MET = {True: "yes", False: "NO", None: ""}


@options.command(
    "shardq bench --store sqlite:////tmp/bench.db",
    "shardq bench --quick --json",
    "shardq bench --store cassandra://127.0.0.1/shardq --only drain --only put",
)
@options.option("--quick", "Measure with few messages, in a minute or two instead of ten.")
@options.option(
    "--only NAME",
    f"Only this measurement, one of {', '.join(NAMES)}.",
    multiple=True,
    type=click.Choice(NAMES),
)
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(NAMES))
def bench(*, names: Sequence[str], quick: bool, only: Sequence[str]) -> None:
    """Measure puts, drains and lateness, and what the bare driver reaches in the same run.

    With NAME, only that is measured, as with --only.

    Everything runs in a temporary directory or keyspace beside the store, which is removed at the
    end.
    """
    lines = benchmarks.run(
        options.store_url(),
        benchmarks.MEASUREMENTS,
        QUICK if quick else FULL,
        only=[*names, *only],
        tell=lambda text: click.echo(text, err=True),
    )
    show(lines, quick=quick)


def show(lines: Sequence[benchmarks.Line], *, quick: bool) -> None:
    """Print lines as a table, or as JSON."""
    if options.is_json():
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


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
