"""Options that several commands share, and the connections that they open."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

import shardq
from shardq.cli import recorded, streams
from shardq.errors import ShardqError, StoreUnavailable, UsageError, shown
from shardq.model import names
from shardq.stores.url import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO, TextIO

    from shardq.connection import Connection
    from shardq.queue import Queue

STORE_VARIABLE = "SHARDQ_STORE"
_CONNECTION = f"{__name__}.connection"
_SENTENCE_MAX = 1_000
"""Characters of a help's first sentence, which is always shorter than this."""


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
_C = TypeVar("_C", bound=click.Command)


def option(
    usage: str,
    text: str,
    *,
    name: str | None = None,
    least: int | None = None,
    most: int | None = None,
    multiple: bool = False,
    **more: Any,
) -> Callable[[_F], _F]:
    """An option, declared as its help shows it.

    A default is shown, unless it is empty. Without a placeholder and a type it is a flag.

    Args:
        usage: Its names and the placeholder of its value: `-n, --limit N`.
        text: Its help, a sentence.
        name: The parameter's name; None: the option's name.
        least: The smallest whole number. Bounds and default become a part of the help.
        most: The largest whole number; None without one.
        multiple: True if it may be repeated.
        more: Other arguments of `click.option`.
    """
    words = usage.replace(",", "").split()
    names = [word for word in words if word.startswith("-")]
    value = words[-1] if len(words) > len(names) else None
    more["show_default"] = bool(more.get("default"))
    if least is not None:
        kind = more["type"] = WholeNumber(least, most)
        default = more["default"] = more.get("default")
        more["show_default"] = False
        otherwise = "" if default is None else f", and {default:,} where it is not given"
        text = f"{text} N is {kind.bounds}{otherwise}."
    if multiple:
        text = f"{text} May be repeated."
    if value is None and not {"type", "count"} & more.keys():
        more["is_flag"] = True
    if name is not None:
        names.append(name)
    return click.option(*names, metavar=value, help=text, multiple=multiple, **more)


def together(*added: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """A decorator that adds several options; the help lists them in the given order."""

    def add(function: _F) -> _F:
        for one in reversed(added):
            function = one(function)
        return function

    return add


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Keep an option's value for the whole command line; inner commands override outer ones."""
    if value:
        context.meta[f"{__name__}.{parameter.name}"] = value


def _kept(name: str) -> Any:
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(f"{__name__}.{name}")


kept: dict[str, Any] = {"expose_value": False, "callback": _keep}
"""Arguments of `option` for a value that no function takes."""
store = option(
    "--store URL",
    "The store: sqlite:///jobs.db or cassandra://host:9042/keyspace. SHARDQ_STORE names it "
    "where this is not given.",
    **kept,
)
as_json = option("--json", "Print JSON for programs, one object a line.", **kept)
queue = click.argument("queue")
queues = click.argument("queues", nargs=-1)
priority = option(
    "--priority N",
    "Among those due, messages of priority 0 come first. N is 0, where it is not given, to one "
    "less than the queue's bands.",
    type=int,
    default=0,
)
group = option(
    "--group NAME",
    "Messages of one group are handled one at a time, in the order of their due.",
)
key = option("--key KEY", "The message's key.")
keys = option("--key KEY", "A message's key.", name="keys", multiple=True)
ids = click.argument("ids", metavar="[ID|RECEIPT]...", nargs=-1)
due = option(
    "--due TIME",
    "When it is due: ISO 8601 with a zone, such as 2027-01-01T09:00:00+01:00. A time in the past "
    "is now.",
)
delay = option("--delay DURATION", "Instead of --due, how long from now: 90s, 1h30m, PT5M.")
spread = option(
    "--spread DURATION", "How much later it may be due, where its queue's budget is used up."
)
headers = option(
    "--header NAME=VALUE",
    "A name and a text that travel with the body.",
    name="headers",
    multiple=True,
)
since = option(
    "--since TIME|DURATION", "Only what entered from this time on, or at most so long ago."
)
until = option(
    "--until TIME|DURATION", "Only what entered before this time, or longer ago than this."
)
task = option("--task NAME", "Only the jobs of this task.")


def is_json() -> bool:
    """True if output is for programs: `--json`. Ask in the thread of the command."""
    return bool(_kept("json"))


class CommandGroup(click.Group):
    """A command of commands whose help shows the whole first sentence of each.

    Attributes:
        elsewhere: Names of commands in other tools, each with the command of shardq.
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


def command(
    *lines: str,
    of: click.Group | None = None,
    name: str | None = None,
    has_store: bool = True,
    has_json: bool = True,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function.

    Args:
        lines: Examples of its use.
        of: The command above it; None: `shardq` itself.
        name: Its name; None: the function's name.
        has_store: True for the option `--store`.
        has_json: True for the option `--json`.
    """
    declared = (click.command if of is None else of.command)(name, epilog=examples(*lines))

    def declare(function: Callable[..., Any]) -> click.Command:
        return _completed(declared(function), has_store=has_store, has_json=has_json)

    return declare


def command_group(
    *lines: str, of: click.Group | None = None, has_store: bool = False, **more: Any
) -> Callable[[Callable[..., Any]], click.Group]:
    """Make a command of commands of a function; arguments are those of `command` and of click."""
    declared = (click.group if of is None else of.group)(
        cls=CommandGroup, epilog=examples(*lines), **more
    )

    def declare(function: Callable[..., Any]) -> click.Group:
        return _completed(declared(function), has_store=has_store, has_json=has_store)

    return declare


def _completed(made: _C, *, has_store: bool, has_json: bool) -> _C:
    """Add `--store` and `--json` to a command, where the command has them."""
    if has_store:
        store(made)
    if has_json:
        as_json(made)
    return made


def store_url() -> str:
    """The store's url: the command's option, else that of `shardq`, else `SHARDQ_STORE`.

    Raises:
        UsageError: If none is given.
    """
    chosen = given_url() or os.environ.get(STORE_VARIABLE)
    if not chosen:
        raise UsageError(
            "no store is given; add --store sqlite:///jobs.db, or set SHARDQ_STORE once: "
            "export SHARDQ_STORE=sqlite:///jobs.db"
        )
    return chosen


def given_url() -> str | None:
    """The url given as an option of the command or of a group above it."""
    url: str | None = _kept("store")
    return url


def connect(url: str | None = None, *, makes: bool = False) -> Connection:
    """The connection to the chosen store, made by the first call; open until the command line ends.

    Args:
        url: The store; None: the chosen one.
        makes: True to make a SQLite file that does not exist. A command that only reads must not:
            for a mistyped name an empty store would report that all is well.

    Raises:
        UsageError: If no store was given.
        StoreUnavailable: If it is a SQLite file that does not exist, and is not made.
        ShardqError: If it cannot be opened.
    """
    context = click.get_current_context()
    made: Connection | None = context.meta.get(_CONNECTION)
    if made is not None:
        return made
    chosen = url or store_url()
    if not makes and chosen.startswith("sqlite:"):
        from shardq.stores.sqlite import SqliteStore

        path = SqliteStore.from_url(chosen).path
        if path is not None and not path.exists():
            raise StoreUnavailable(
                f"there is no file {printable(path)}; check the store's name, or make it: "
                f"`shardq init`."
            )
    db = context.meta[_CONNECTION] = shardq.connect(chosen)
    tell_memory(db.url_shown)
    recorded.keep_open(db, lambda: db)
    return db


def queue_of(name: str) -> Queue:
    """A queue of the chosen store, as `connect` opens it.

    Raises:
        UnknownQueue: If it does not exist.
    """
    return connect().queue(name, create=False)


def queues_of(names: Iterable[str] = ()) -> list[Queue]:
    """Queues of the chosen store: the named ones, or all; a note names each unreadable one of all.

    Raises:
        UnknownQueue: If a named one does not exist.
    """
    db = connect()
    if names:
        return [db.queue(name, create=False) for name in dict.fromkeys(names)]
    opened = db._home.open_all().values()
    for one in opened:
        if isinstance(one, ShardqError):
            streams.note(str(one))
    return [one for one in opened if not isinstance(one, ShardqError)]


def content(body: str | None) -> bytes:
    """The bytes of a body: the argument's original bytes, whatever the locale, or those of stdin.

    Args:
        body: The argument; None and `-` are stdin.
    """
    return stdin("the body").read() if body in (None, "-") else os.fsencode(body or "")


def tell_memory(shown: str) -> None:
    """Print a note if a store is in memory: no other process sees its messages.

    Args:
        shown: The store's url, as a connection shows it.
    """
    if shown == "sqlite://":
        streams.note(
            "store sqlite:// is in the memory of this process: no other can put there, and it is "
            "gone when this one ends; use a file, sqlite:///jobs.db."
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
    # stdin is None if this process was started without it, although its type excludes None.
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise UsageError(f"stdin is closed, so {what} cannot be read from it.")
    if stream.isatty():
        streams.note(f"reading {what} from the terminal; end it with Ctrl-D.")
    return stream.buffer
