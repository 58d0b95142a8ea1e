"""The command line `shardq`: its entry point, and the line and exit code of each error.

Each command lives in the module of its noun, which is imported when the command is called: a `put`
in a shell loop does not wait for the imports of a live table.
"""

from __future__ import annotations

import importlib
import io
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import click

import shardq
from shardq.cli import logs, options, recorded, streams
from shardq.cli.exits import Exit, exit_codes, exit_of, text_of
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COMMANDS = {
    "init": ("schema", "Create the tables of a store."),
    "put": ("messages", "Put one message into a queue, or a job of a task."),
    "produce": ("produce", "Put many messages: the lines of a file, or so many a second."),
    "consume": ("consume", "Deliver the messages of queues as they come due."),
    "work": ("work", "Run the tasks of an app."),
    "tasks": ("tasks", "Show the tasks of an app."),
    "serve": ("serve", "Serve queues to clients of Amazon SQS, and by an HTTP API."),
    "observe": ("observe", "Watch queues: depth, rates, lateness, consumers, what is to come."),
    "calendar": ("calendar", "Show the load ahead as a heat map, hot minutes, and the backlog."),
    "peek": ("messages", "Show the messages that are due next, and take none."),
    "show": ("show", "Show where a message is, and why it does not run."),
    "cancel": ("messages", "Cancel messages that have not been delivered."),
    "move": ("keyed", "Let messages that wait be due at another time, or now."),
    "forward": ("forward", "Move messages into another queue."),
    "edit": ("keyed", "Change the body or headers of a message that waits, by its key."),
    "running": ("running", "Show what runs now, by task and worker."),
    "failures": ("failures", "Show what failed lately, and what happens next."),
    "queues": ("queues", "List queues; create, show, alter, pause, purge or drop one."),
    "limits": ("limits", "Limit groups: places, rates, weights; list and explain limits."),
    "schedule": ("schedule", "Put messages again and again, by schedules; preview, change them."),
    "dead": ("dead", "Show dead messages; put them back, or delete them."),
    "schema": ("schema", "Print the CQL or SQL that makes the tables."),
    "check": ("check", "Check the store, its clocks and its queues."),
    "audit": ("audit", "Check that each message put has ended or is still there."),
    "history": ("history", "Show what became of a message."),
    "accounts": ("accounts", "Say who may use the server: accounts, keys, signed urls."),
    "actions": ("actions", "List commands that changed or removed something, and by whom."),
    "bench": ("bench", "Measure how fast shardq is here."),
    "node": ("node", "Run a Cassandra on this machine, for development and tests."),
}
"""Each command, in the order of the help: its module, and its help line."""


_OF_QUEUES = ("create", "alter", "pause", "resume", "purge", "drop")


class Commands(options.CommandGroup):
    """Commands that are imported when they are called.

    Attributes:
        room: The package of their modules.
        table: Each command, in the order of the help: its module, and its line in the help.
    """

    room = __name__
    table: ClassVar[Mapping[str, tuple[str, str]]] = _COMMANDS
    elsewhere: ClassVar[Mapping[str, str]] = {
        **{name: f"shardq queues {name}" for name in _OF_QUEUES},
        "redrive": "shardq dead QUEUE --redrive",
        "retry": "shardq move QUEUE ID --delay 0s",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of the commands."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """A command, by its name."""
        if cmd_name not in self.table:
            return None
        module, _ = self.table[cmd_name]
        command = getattr(importlib.import_module(f"{self.room}.{module}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands from the table, so that no command has to be imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Make the context as click does, but print the help ourselves."""
        with _closed_pipe_told():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command as click does, and flush all output."""
        with _closed_pipe_told():
            result = recorded.carried_out(ctx, partial(super().invoke, ctx))
            sys.stdout.flush()
            return result


@contextmanager
def _closed_pipe_told() -> Iterator[None]:
    """End with `PIPE_CLOSED` if the reader of stdout has gone; click itself would end with 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise click.exceptions.Exit(Exit.PIPE_CLOSED) from error


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=options.examples(
        "export SHARDQ_STORE=sqlite:///jobs.db",
        'shardq put mail "hello" --delay 5s',
        "shardq consume mail --until-empty",
    )
    + "\n\n\b\nExit codes:\n"
    + "\n".join(f" {line}" for line in exit_codes()),
)
@options.option(
    "--store URL",
    "Which store to use, for any command that needs one. SHARDQ_STORE names it otherwise.",
    **options.kept,
)
@options.option(
    "-v, --verbose",
    "Log to stderr, each line with its time: -v what changes, -vv everything.",
    count=True,
)
@click.version_option(shardq.__version__, prog_name="shardq", help="Print the version and exit.")
def shardq_command(verbose: int) -> None:
    """Durable delays, timers and priorities on SQLite or Apache Cassandra."""
    logs.set_up_logging(verbose)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of `Exit`.

    Args:
        arguments: The words after the program's name; None: those of `sys.argv`.
    """
    streams.take_over()
    code = run(arguments)
    streams.give_back()
    sys.exit(code)


def run(
    arguments: list[str] | None = None,
    command: click.Command | None = None,
    name: str = "shardq",
) -> int:
    """Run a command line; returns the exit code. Errors become one line on stderr.

    Args:
        arguments: The words after the program's name; None: those of `sys.argv`.
        command: The whole command line; None: that of `shardq`.
        name: The program's name.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Escape characters that the terminal cannot show, which would raise otherwise.
            stream.reconfigure(errors="backslashreplace")
    try:
        whole = command or shardq_command
        result = whole.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except click.ClickException as error:
        return _fail(_usage_text(error), Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted.", Exit.INTERRUPTED)
    except ShardqError as error:
        return _fail(text_of(error), exit_of(error))
    except OSError as error:
        text = f"{error.filename or 'a file'}: {error.strerror or error}."
        return _fail(text_of(error, text), Exit.FILE)
    return result if isinstance(result, int) else Exit.OK


def _fail(text: str, code: Exit) -> Exit:
    streams.note(text)
    return code


def _usage_text(error: click.ClickException) -> str:
    text = error.format_message()
    # Add a full stop, which some of click's sentences lack.
    text = text if text.endswith((".", "?")) else f"{text}."
    context = getattr(error, "ctx", None)
    return f"{text} See '{context.command_path} --help'." if context else text
