"""What a job has come to: a sentence, lines or JSON on stdout, and files."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from shardq.cli import screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardq.spark.commands.options import Where


class Outcome(Protocol):
    """A job's report."""

    def line(self) -> str:
        """It in a sentence."""
        ...

    def to_json(self) -> dict[str, Any]:
        """It as plain values."""
        ...


def tell(outcome: Outcome, where: Where, lines: Callable[[], Iterable[str]]) -> None:
    """Print an outcome to stdout, as JSON where that is asked for.

    Args:
        outcome: It.
        where: How it is told.
        lines: What there is to say before its sentence.
    """
    if where.as_json:
        screen.print_json(outcome.to_json())
        return
    for line in (*lines(), outcome.line()):
        # Reasons and names are as somebody else has written them.
        click.echo(screen.exact(line))


def write_page(path: str | None, made: Callable[[], str]) -> None:
    """Write a page of HTML, where one is asked for.

    Raises:
        OSError: If it cannot be written.
    """
    if path is not None:
        Path(path).write_text(made(), encoding="utf-8")


def write_plot(path: str | None, made: Callable[[], bytes]) -> None:
    """Write a plot, where one is asked for.

    Raises:
        OSError: If it cannot be written.
    """
    if path is not None:
        Path(path).write_bytes(made())


@contextmanager
def busy(what: str) -> Iterator[None]:
    """While this lasts, stderr shows it where that is a terminal."""
    with screen.progress() as bar:
        bar.add_task(what, total=None)
        yield
