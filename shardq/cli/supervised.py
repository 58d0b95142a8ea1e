"""A command that does its work in this process, or in several under a supervisor."""

from __future__ import annotations

import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from shardq.cli import streams
from shardq.cli.exits import Exit, exit_of, text_of
from shardq.errors import ShardqError
from shardq.tasks.processes import Supervisor
from shardq.tasks.several import Several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.cli.probes import Probes
    from shardq.tasks.line import ProcessLine


def supervise(probed: Probes, **settings: Any) -> int:
    """Do the work of this command in processes; returns the exit code.

    Args:
        probed: The probes, which are closed in the end.
        settings: Arguments of `Supervisor`.
    """
    # Start the same command; a process finds by its line that it has a supervisor.
    command = [sys.executable, *sys.orig_argv[1:]]
    with closing(probed):
        supervisor = Supervisor(command, report=streams.note, **settings)
        several = Several(supervisor)
        probed.begin(lambda: several, lambda: several.metrics)
        outcome = supervisor.run()
    if outcome.text:
        streams.note(outcome.text)
    if outcome.code or outcome.killed:
        return outcome.code or Exit.TERMINATED
    return Exit.DIED if outcome.has_deaths else Exit.OK


@contextmanager
def reported(line: ProcessLine | None, interrupted: str = "interrupted.") -> Iterator[None]:
    """Send the error of one of several processes to the supervisor, which prints it once for all.

    Args:
        line: The line to the supervisor; None without one: the error is raised.
        interrupted: The text for an interruption.
    """
    try:
        yield
    except (ShardqError, KeyboardInterrupt) as error:
        if line is None:
            raise
        code, text = Exit.INTERRUPTED, interrupted
        if isinstance(error, ShardqError):
            code, text = exit_of(error), text_of(error)
        line.failed(code, text)
        raise click.exceptions.Exit(code) from error
