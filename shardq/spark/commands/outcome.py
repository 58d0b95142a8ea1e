"""What a job has come to: a sentence, lines or JSON on stdout, and files."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from shardq.cli import screen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardq.spark.commands.options import Where


class Outcome(Protocol):
    """A job's report."""

    def line(self) -> str:
        """It in a sentence."""
        ...

    def lines(self) -> Sequence[str]:
        """What there is to say before that sentence."""
        ...

    def to_json(self) -> dict[str, Any]:
        """It as plain values."""
        ...


class Drawn(Outcome, Protocol):
    """One that can be drawn."""

    def plot(self) -> bytes:
        """Its plot, as PNG."""
        ...

    def page(self, at_ms: int) -> str:
        """Its page, as HTML, made at a time."""
        ...


def tell(outcome: Outcome, where: Where) -> None:
    """Print an outcome to stdout, as JSON where that is asked for."""
    if where.as_json:
        screen.print_json(outcome.to_json())
        return
    for line in (*outcome.lines(), outcome.line()):
        click.echo(line)


def write_files(outcome: Drawn, at_ms: int, *, plot: str | None, report: str | None) -> None:
    """Write the plot and the page that are asked for.

    Args:
        outcome: Of which.
        at_ms: Epoch milliseconds, for the page.
        plot: The path of the plot.
        report: The path of the page.

    Raises:
        OSError: If one cannot be written.
    """
    if plot is not None:
        Path(plot).write_bytes(outcome.plot())
    if report is not None:
        Path(report).write_text(outcome.page(at_ms), encoding="utf-8")


@contextmanager
def busy(what: str) -> Iterator[None]:
    """While this lasts, stderr shows it where that is a terminal."""
    with screen.progress() as bar:
        bar.add_task(what, total=None)
        yield
