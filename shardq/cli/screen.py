"""Output for people: tables and progress bars. Results go to stdout, progress to stderr."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from shardq.cli import options, streams
from shardq.model import text as texts
from shardq.model import times
from shardq.model.times import due_ms, iso

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rich.console import RenderableType
    from rich.progress import TaskID

STYLES = {"ok": "green", "warning": "yellow", "wrong": "red"}
"""The colours of levels."""
_WITHIN_A_NUMBER = re.compile(r"(?<=\d) (?=\w)")
"""Matches the space in `4 queues`."""
span = times.span
plural = texts.plural
FACT = 10
"""Columns for the name of a fact."""
WIDE = 2_000
"""The width of a pipe or a log: so large that no line is cut or folded."""


def console() -> Console:
    """The console for results."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def show(what: RenderableType) -> None:
    """Print a table or a text to stdout; its contents are not read as markup or highlighted."""
    to = console()
    if to.is_terminal:
        to.print(what, highlight=False)
        return
    # Strip the spaces that pad a table's last column, which are noise in a file.
    with to.capture() as captured:
        to.print(what, highlight=False)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def table(*columns: str, title: str | None = None) -> Table:
    """A table. Columns whose titles begin with `>` hold numbers; the others fold long texts."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        made.add_column(
            column.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="ellipsis" if right else "fold",
        )
    return made


def progress() -> Progress:
    """A progress bar on stderr; silent if stderr is no terminal."""
    target = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=target,
        disable=not target.is_terminal,
        transient=True,
    )


def teller(bar: Progress, whose: str = "") -> Callable[[str, int, int | None], None]:
    """A function that shows progress on a bar, which has a line for each kind of object."""
    tasks: dict[str, TaskID] = {}

    def tell(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(f"{whose}{what}", total=total)
        bar.update(tasks[what], completed=done)

    return tell


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    click.echo(json_line(value, sys.stdout.encoding or "utf-8"))


def json_line(value: Any, encoding: str = "utf-8") -> str:
    """A value as JSON, without the line's end; escaped if the encoding cannot hold its characters.

    No encoding holds half a surrogate pair, which a header may have.
    """
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return line


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, a line each; the further lines of a value stand below its first."""
    for name, value in facts:
        lines = map(streams.escaped, value.splitlines())
        click.echo(f"{name:{FACT}}" + f"\n{'':{FACT}}".join(lines))


def picked(one: object, names: str) -> dict[str, Any]:
    """Attributes of an object for programs; times are texts, and None stays None.

    Args:
        one: The object.
        names: The attributes, with spaces between them.
    """
    values = {name: getattr(one, name) for name in names.split()}
    return {
        name: when(value) if isinstance(value, datetime) else value
        for name, value in values.items()
    }


def result(told: Mapping[str, Any], text: str) -> None:
    """Print a result: with `--json` for programs, otherwise as a sentence."""
    if options.is_json():
        print_json(told)
    else:
        click.echo(text)


def busy(running: int, threads: int) -> str:
    """How many of all handlers run, as text.

    >>> busy(1, 8)
    '1 of 8 handlers busy'
    """
    return f"{running:,} of {plural(threads, 'handler')} busy"


def quantiles(milliseconds: tuple[float, float] | None) -> str:
    """Two spans of time; a dash for None.

    >>> quantiles((0.2, 1500)), quantiles(None)
    ('0ms/1.5s', '-')
    """
    return "/".join(map(span, milliseconds)) if milliseconds else "-"


def plain(text: str, width: int = 200) -> Text:
    """A user's text in one line, safe to print: no control characters, no markup.

    Args:
        text: The text.
        width: Columns of a terminal; a longer text is cut, and ends with `…`.
    """
    line = "".join(c if streams.is_shown(c) else " " for c in text[: 2 * width])
    if cell_len(line) <= width and len(text) <= 2 * width:
        return Text(line)
    return Text(set_cell_size(line, width - 1).rstrip() + cut_mark())


def cut_mark() -> str:
    """The mark of a cut; one column wide."""
    try:
        "…".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return "~"
    return "…"


def squeezed(text: str, width: int) -> str:
    """A name in some columns; a longer one loses its middle.

    >>> squeezed("mailer-of-the-shop:1234:5b1c09aa", 20)
    'mailer-of-…:5b1c09aa'
    """
    if cell_len(text) <= width:
        return text
    half = max(width - 1, 0) // 2
    tail = text[max(len(text) - half, 0) :] if half else ""
    while cell_len(tail) > half:
        tail = tail[1:]
    return set_cell_size(text, max(width - 1 - cell_len(tail), 0)) + cut_mark() + tail


def wrapped(text: str, width: int, *, indent: str = "") -> list[str]:
    """The lines of a text: no-break spaces stay within a line, and are printed as plain ones.

    Words that are longer than a line are left whole.

    Args:
        text: The text.
        width: Columns.
        indent: The beginning of lines after the first.

    >>> wrapped("it waits for 3\N{NO-BREAK SPACE}more queues", 14)
    ['it waits for', '3 more queues']
    """
    lines = textwrap.wrap(
        text,
        max(width, len(indent) + 1),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def kept_together(text: str) -> str:
    """A text with no-break spaces between numbers and their units, for `wrapped`."""
    return _WITHIN_A_NUMBER.sub("\N{NO-BREAK SPACE}", text)


def no_queues(store: str) -> str:
    """The sentence for a store without queues, which is likely the wrong store.

    Args:
        store: Its name, as people may see it.
    """
    return f"{store} has no queues yet; put a message: shardq put mail hello"


def exact(text: str) -> Text:
    """A name or an id as given, to be copied: never cut; only control characters are escaped."""
    return Text(streams.escaped(text))


def when(moment: datetime | None) -> str | None:
    """A time for programs; None without one."""
    return None if moment is None else iso(due_ms(moment))
