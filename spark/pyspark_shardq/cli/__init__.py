"""The command line `python -m pyspark_shardq`: jobs on queues, in Spark.

```
 main ─► a command ─► options.job: a session, a queue ─► pyspark_shardq.jobs ─► text, JSON, files
```

How an error becomes a line and an exit code is `shardq.cli`'s.
"""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import click

import shardq
from shardq import cli
from shardq.cli import logs, streams
from shardq.cli.exits import MEANINGS, Exit
from shardq.cli.options import examples, kept, option
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = "python -m pyspark_shardq"
USAGE, UNBALANCED = 64, 2
"""These two differ from `shardq`'s: pipelines ask an audit with 2, and 64 is BSD's for usage."""
_OWN = {Exit.USAGE: USAGE, Exit.UNBALANCED: UNBALANCED}
_MEANT = {Exit.FAILED: "a day could not be archived"}
"""The meanings of codes that are narrower here than in `shardq`."""
_ELSEWHERE = {
    Exit.RECEIPT_BAD,
    Exit.RECEIPT_STALE,
    Exit.NODE,
    Exit.COMMAND,
    Exit.TERMINATED,
}
"""The codes of `shardq` with which no job ends."""


def exit_codes() -> list[str]:
    """The codes of jobs and their meanings, a line each."""
    told = {_OWN.get(code, int(code)): text for code, text in (MEANINGS | _MEANT).items()
            if code not in _ELSEWHERE}  # fmt: skip
    return [f"{code:3} {told[code]}" for code in sorted(told)]


class _Jobs(cli.Commands):
    room = __name__
    elsewhere: ClassVar[Mapping[str, str]] = {}
    table: ClassVar[Mapping[str, tuple[str, str]]] = {
        "schedule": ("schedule", "Put the rows of a file into a queue, each due at its own time."),
        "unschedule": ("schedule", "Take back what a schedule of the same file has put."),
        "backlog": ("jobs", "Show what waits, by minute, and when it will be done."),
        "audit": ("jobs", "Check that each message put has ended or is still there."),
        "dead": ("jobs", "Group dead messages by error; put them back, or delete them."),
        "history": ("jobs", "Show how late messages were and how they ended, day by day."),
        "archive": ("jobs", "Copy the history to Parquet, a day at a time, verified."),
        "simulate": ("jobs", "Show how timers would spread over lanes, shards and nodes."),
    }

    def invoke(self, ctx: click.Context) -> Any:
        from pyspark_shardq.complaint import translated

        try:
            with translated():
                return super().invoke(ctx)
        except ShardqError as error:
            if ctx.params.get("verbose") and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            raise


def _print_script(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(Path(__file__).parent.with_name("__main__.py"))
        ctx.exit()


@click.group(
    cls=_Jobs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "export SHARDQ_STORE=sqlite:///jobs.db",
        f"{PROGRAM} schedule --queue reminders --input people.csv --key id --due send_at",
        f"{PROGRAM} audit --queue reminders",
        f'spark-submit --master yarn "$({PROGRAM} --script)" backlog --queue reminders',
    )
    + "\n\n\b\nExit codes:\n"
    + "\n".join(f" {line}" for line in exit_codes()),
)
@option(
    "--store URL",
    "Which store to use, for any job that needs one. SHARDQ_STORE names it otherwise.",
    **kept,
)
@option(
    "-v, --verbose",
    "Log to stderr, Spark's warnings as well, and show where in Spark an error came from.",
    count=True,
)
@option(
    "--script",
    "Print the path of the script that spark-submit runs these jobs by, and exit.",
    is_eager=True,
    expose_value=False,
    callback=_print_script,
)
@click.version_option(shardq.__version__, prog_name=PROGRAM, help="Print the version and exit.")
def program(verbose: int) -> None:
    """Jobs on queues of shardq with Apache Spark, on this machine or a cluster."""
    from pyspark_shardq.complaint import log_from

    logs.set_up_logging(verbose)
    if not verbose:
        # Py4J logs a call that Ctrl-C has ended, with a traceback, to the root logger.
        logging.getLogger().addHandler(logging.NullHandler())
    log_from(logging.ERROR if verbose else logging.CRITICAL + 1)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a job and exit with one of the codes that the help lists.

    Args:
        arguments: What follows the program's name; `sys.argv` where None.
    """
    streams.take_over()
    code = run(arguments)
    streams.give_back()
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run a job; returns the exit code. Errors become one line on stderr."""
    code = cli.run(arguments, program, PROGRAM)
    return _OWN.get(Exit(code), code)
