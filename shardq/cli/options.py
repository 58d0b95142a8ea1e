"""Options that several commands share, and the connections that they open."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

import shardq
from shardq.cli import recorded
from shardq.errors import StoreUnavailable, UsageError, shown
from shardq.model import names
from shardq.stores.url import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from typing import BinaryIO, TextIO

    from shardq.connection import Connection

STORE_VARIABLE = "SHARDQ_STORE"
_SENTENCE_MAX = 1_000
"""Characters; the first sentence of a help is always shorter."""


class WholeNumber(click.ParamType[int]):
    """A whole number with bounds, which are in the help and in errors."""

    name = "whole number"

    def __init__(self, least: int, most: int | None = None) -> None:
        self.least = least
        self.most = most

    @property
    def bounds(self) -> str:
        """The bounds as text."""
        if self.most is None:
            return f"{self.least:,} or more"
        return f"{self.least:,} to {self.most:,}"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Convert a text to the number. Called by click."""
        try:
            number = int(str(value))
        except ValueError:
            number = self.least - 1
        if number < self.least or (self.most is not None and number > self.most):
            self.fail(f"{shown(value)} is not a whole number of {self.bounds}.", param, ctx)
        return number


_F = TypeVar("_F", bound=Callable[..., Any])


def whole(
    *names: str, text: str, least: int, most: int | None = None, default: int | None = None
) -> Callable[[_F], _F]:
    """An option for a whole number.

    Args:
        names: The option, and its parameter's name.
        text: Its help, a sentence.
        least: The smallest.
        most: The largest; None without one.
        default: The number if it is not given; None: there is none.
    """
    kind = WholeNumber(least, most)
    otherwise = "" if default is None else f", and {default:,} where it is not given"
    return click.option(
        *names,
        metavar="N",
        type=kind,
        default=default,
        help=f"{text} N is {kind.bounds}{otherwise}.",
    )


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
    metavar="N",
    type=int,
    default=0,
    help="Among those due, messages of priority 0 come first. N is 0, where it is not given, to "
    "one less than the queue's bands.",
)
group = click.option(
    "--group",
    metavar="NAME",
    help="Messages of one group are handled one at a time, in the order of their due.",
)
key = click.option("--key", metavar="KEY", help="The message's key.")
keys = click.option(
    "--key", "keys", metavar="KEY", multiple=True, help="A message's key. May be repeated."
)
ids = click.argument("ids", metavar="[ID|RECEIPT]...", nargs=-1)
due = click.option(
    "--due",
    metavar="TIME",
    help="When it is due: ISO 8601 with a zone, such as 2027-01-01T09:00:00+01:00. A time in the "
    "past is now.",
)
delay = click.option(
    "--delay", metavar="DURATION", help="Instead of --due, how long from now: 90s, 1h30m, PT5M."
)
headers = click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A name and a text that travel with the body. May be repeated.",
)
since = click.option(
    "--since",
    metavar="TIME|DURATION",
    help="Only what entered from this time on, or at most so long ago.",
)
until = click.option(
    "--until",
    metavar="TIME|DURATION",
    help="Only what entered before this time, or longer ago than this.",
)


class CommandGroup(click.Group):
    """A command of commands whose help shows the whole first sentence of each.

    Attributes:
        elsewhere: Names that people know from elsewhere, each with the command here.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's own, with a hint if there is no such command."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = names.nearest(name, self.list_commands(ctx))
            meant = self.elsewhere.get(name) or (near and f"{ctx.command_path} {near}")
            hint = "" if meant is None else f"; did you mean {meant!r}?"
            ctx.fail(f"No such command {name!r}{hint or '.'}")
        return super().resolve_command(ctx, args)

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
    """The end of a command's help: examples of its use."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def store_url(url: str | None) -> str:
    """The store's url: the command's option, else that of `shardq`, else `SHARDQ_STORE`.

    Raises:
        UsageError: If none is given.
    """
    chosen = given_url(url) or os.environ.get(STORE_VARIABLE)
    if not chosen:
        raise UsageError(
            "no store is given; add --store sqlite:///jobs.db, or set SHARDQ_STORE once: "
            "export SHARDQ_STORE=sqlite:///jobs.db"
        )
    return chosen


def given_url(url: str | None) -> str | None:
    """The url given as an option of the command or of a group above it."""
    context: click.Context | None = click.get_current_context()
    while context is not None and not url:
        url = context.params.get("url") or context.params.get("store")
        context = context.parent
    return url


def connect(url: str | None, *, makes: bool = False) -> AbstractContextManager[Connection]:
    """A connection to the chosen store; see `recorded.kept`.

    Args:
        url: The command's option.
        makes: True to make a SQLite file that does not exist. A command that only reads must not:
            for a mistyped name an empty store would report that all is well.

    Raises:
        UsageError: If no store was given.
        StoreUnavailable: If it is a SQLite file that does not exist, and is not made.
        ShardqError: If it cannot be opened.
    """
    chosen = store_url(url)
    if not makes and chosen.startswith("sqlite:"):
        from shardq.stores.sqlite import SqliteStore

        path = SqliteStore.from_url(chosen).path
        if path is not None and not path.exists():
            raise StoreUnavailable(
                f"there is no file {printable(path)}; check the store's name, or make it: "
                f"`shardq init`."
            )
    db = shardq.connect(chosen)
    tell_memory(db.url_shown)
    return recorded.kept(db, lambda one: one)


def tell_memory(shown: str) -> None:
    """Print a note if a store is in memory: no other process sees its messages.

    Args:
        shown: The store's url, as a connection shows it.
    """
    if shown == "sqlite://":
        click.echo(
            "shardq: store sqlite:// is in the memory of this process: no other can put there, and "
            "it is gone when this one ends; use a file, sqlite:///jobs.db.",
            err=True,
        )


def headers_of(given: Iterable[str]) -> dict[str, str] | None:
    """The headers given as `NAME=VALUE`; None without any.

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
    """The bytes of stdin; at a terminal a note names the expected input.

    Args:
        what: The name of the input.

    Raises:
        UsageError: If stdin is closed.
    """
    # None if this process was started without stdin, whatever its type says.
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise UsageError(f"stdin is closed, so {what} cannot be read from it.")
    if stream.isatty():
        click.echo(f"shardq: reading {what} from the terminal; end it with Ctrl-D.", err=True)
    return stream.buffer
