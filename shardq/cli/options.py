"""Options that several commands share, and what they open."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

import shardq
from shardq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO, TextIO

    from shardq.connection import Connection

STORE_VARIABLE = "SHARDQ_STORE"
_SENTENCE_MAX = 1_000
"""Characters; the first sentence of a help is always shorter."""

store = click.option(
    "--store",
    "url",
    metavar="URL",
    help="The store: sqlite:///jobs.db or cassandra://host:9042/keyspace. SHARDQ_STORE names it "
    "where this is not given.",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs, one object a line."
)
queue = click.argument("queue")
priority = click.option(
    "--priority",
    type=int,
    default=0,
    show_default=True,
    help="0 is first; must be below the queue's bands.",
)
group = click.option(
    "--group",
    metavar="NAME",
    help="Messages of one group are handled one at a time, in the order of their due.",
)
headers = click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="Travels with the body; may be repeated.",
)


class Group(click.Group):
    """A command of commands whose help shows the whole first sentence of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Like click's own, which cuts a sentence that is longer than a line."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(_SENTENCE_MAX)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def examples(*lines: str) -> str:
    """The end of a command's help: how it is used."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def store_url(url: str | None) -> str:
    """The store's url: the command's option, else that of `shardq`, else `SHARDQ_STORE`.

    Raises:
        UsageError: If it is given nowhere.
    """
    chosen = given_url(url) or os.environ.get(STORE_VARIABLE)
    if not chosen:
        raise UsageError(
            "no store is given; add --store sqlite:///jobs.db, or set SHARDQ_STORE once: "
            "export SHARDQ_STORE=sqlite:///jobs.db"
        )
    return chosen


def given_url(url: str | None) -> str | None:
    """The url that was given as an option, of the command or of those that lead to it."""
    context: click.Context | None = click.get_current_context()
    while context is not None and not url:
        url = context.params.get("url") or context.params.get("store")
        context = context.parent
    return url


def connect(url: str | None) -> Connection:
    """A connection to the store that was chosen.

    Raises:
        UsageError: If none was.
        ShardqError: If it cannot be opened.
    """
    return shardq.connect(store_url(url))


def headers_of(given: Iterable[str]) -> dict[str, str] | None:
    """The headers that were given as `NAME=VALUE`; None where there are none.

    Raises:
        click.UsageError: If one has no `=`.
    """
    headers = {}
    for text in given:
        name, found, value = text.partition("=")
        if not found:
            raise click.UsageError(f"--header {text!r} must be NAME=VALUE.")
        headers[name] = value
    return headers or None


def stdin(what: str) -> BinaryIO:
    """The bytes of stdin; a person at a terminal is told what is waited for.

    Args:
        what: What is read.

    Raises:
        UsageError: If it is closed.
    """
    # None where this process was started without one, whatever its type says.
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise UsageError(f"stdin is closed, so {what} cannot be read from it.")
    if stream.isatty():
        click.echo(f"shardq: reading {what} from the terminal; end it with Ctrl-D.", err=True)
    return stream.buffer
