"""The command line `shardq`: its entry point, and how an error becomes one line and an exit code.

Each command lives in the module of its noun, which is imported when the command is called: a `put`
in a shell loop does not wait for what a live table needs.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from typing import Any, NoReturn

import click

import shardq
from shardq.cli.exits import Exit, exit_of
from shardq.errors import ShardqError

_COMMANDS = {
    "init": "schema",
    "put": "messages",
    "produce": "produce",
    "consume": "consume",
    "observe": "observe",
    "peek": "messages",
    "cancel": "messages",
    "queues": "queues",
    "dead": "dead",
    "schema": "schema",
    "check": "check",
    "audit": "audit",
    "history": "history",
    "demo": "demo",
    "bench": "bench",
    "node": "node",
}
"""Each command, in the order of the help, and its module."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(f"shardq.cli.{module}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python would complain once more when it flushes stdout at its end; and click 8.2, if
            # it saw this error, would end with 1.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.PIPE_CLOSED
        return result


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  export SHARDQ_STORE=sqlite:///jobs.db
  shardq put mail "hello" --delay 5s
  shardq consume mail --until-empty

\b
Exit codes:
   0 done                      10 store unavailable (not applied)
   1 a check or proof failed   11 store timeout (maybe applied)
   2 wrong usage, or an audit  12 store refused
     that does not balance
   3 unknown queue             13 disk full
   4 bad receipt               14 store damaged, or not a database
   5 stale receipt             15 node
   6 schema missing            16 file
   7 schema newer              17 other
   8 clock                     18 the queue keeps no history
   9 extra missing            130 interrupted
""",
)
@click.option(
    "--store",
    metavar="URL",
    help="The store for any command that needs one; SHARDQ_STORE where it is not given.",
)
@click.option("-v", "--verbose", count=True, help="Log to stderr: -v what changes, -vv everything.")
@click.version_option(shardq.__version__, prog_name="shardq")
def shardq_command(store: str | None, verbose: int) -> None:  # noqa: ARG001 - read from the context
    """Durable delays, timers and priorities on SQLite or Apache Cassandra."""
    _set_up_logging(verbose)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of `Exit`.

    Args:
        arguments: What follows the program's name; `sys.argv` where None.
    """
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code. Errors become one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What the terminal's alphabet lacks is escaped rather than fatal.
            stream.reconfigure(errors="backslashreplace")
    try:
        result = shardq_command.main(args=arguments, prog_name="shardq", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except click.ClickException as error:
        return _fail(_usage_text(error), Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted.", Exit.INTERRUPTED)
    except ShardqError as error:
        return _fail(" ".join([str(error), *getattr(error, "__notes__", ())]), exit_of(error))
    except OSError as error:
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}.", Exit.FILE)
    return result if isinstance(result, int) else Exit.OK


def _fail(text: str, code: Exit) -> Exit:
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))
    click.echo(f"shardq: {line}", err=True)
    return code


def _usage_text(error: click.ClickException) -> str:
    text = error.format_message()
    context = getattr(error, "ctx", None)
    return f"{text} See '{context.command_path} --help'." if context else text


def _set_up_logging(verbose: int) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("shardq: %(levelname)s: %(message)s"))
    own = logging.getLogger("shardq")
    own.setLevel(level)
    own.addHandler(handler)
    # What the driver warns of on its way to an error, the error says; alone it would be noise.
    driver = logging.getLogger("cassandra")
    driver.setLevel(logging.INFO if verbose > 1 else logging.CRITICAL)
    driver.addHandler(handler)
