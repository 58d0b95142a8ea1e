"""The options that commands of `python -m pyspark_shardq` share, and how a command ends."""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardq.cli import options, screen
from shardq.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from pyspark_shardq.connection import QueueJobs

_NICE = 10


given = options.option

queue = given("--queue NAME", "The queue.", required=True)
dry_run = given("--dry-run", "Say what would be done, and do nothing.")
run = given(
    "--run RUN", "Resume this run: what it has done is not done again. Each run prints its name."
)
rate = given("--rate N", "At most N messages a second, of all tasks together.", least=1)
report = given("--report FILE", "Write a page with tables and plots there.")
plot = given("--plot FILE", "Write a plot there, as PNG.")
_SESSION = (
    given(
        "--master URL",
        "Where Spark runs: local[4], spark://host:7077, yarn, or sc://host:15002 for Spark "
        "Connect. Where it is not given, as spark-submit says, or on all cores of this machine.",
    ),
    given("--memory SIZE", "Memory of the Java that is started here.", default="1g"),
    given("--nice", "Yield the processor to all else on this machine, to consumers above all."),
    options.store,
)
"""The options of a job on a queue."""


@dataclass(frozen=True, slots=True)
class JobPlace:
    """The place in which a job runs.

    Attributes:
        name: The queue's name.
        master: Of Spark.
        memory: Of Spark's Java.
        is_nice: True if others go first.
    """

    name: str
    master: str | None
    memory: str
    is_nice: bool

    def session(self) -> SparkSession:
        """The session of Spark.

        Raises:
            MissingExtra: If there is no Java.
            UsageError: If it does not start.
        """
        from pyspark_shardq import session

        if self.is_nice:
            # The Java that is started below inherits the niceness.
            os.nice(_NICE)
        is_verbose = click.get_current_context().find_root().params.get("verbose")
        asked = {"spark.log.level": "WARN"} if is_verbose else {}
        return session(master=self.master or "local[*]", memory=self.memory, **asked)

    def queue(self) -> QueueJobs:
        """The queue in the session.

        Raises:
            UsageError: If no store is given.
        """
        from pyspark_shardq import connect

        # Before Java is started, which takes seconds: what is wrong is said at once.
        url = options.store_url()
        return connect(self.session(), self.name, url)


def job(
    *given: Callable[[Any], Any], examples: Sequence[str], doing: str = "", bad: Exit = Exit.OK
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that takes options, and returns a report.

    One that has `queue` among its options is called with a `JobPlace` before them.

    The report is printed, as JSON where that is asked for, and written to the files of `plot` and
    `report`.

    Args:
        given: The command's own options; those of a session and a store follow where it is a job
            on a queue.
        examples: Arguments, for the help.
        doing: What stderr shows meanwhile, where that is a terminal; before the queue's name.
        bad: The exit code where the report is not good.
    """

    def made(work: Callable[..., Any]) -> click.Command:
        @functools.wraps(work)
        def called(
            *,
            queue: str | None = None,
            master: str | None = None,
            memory: str = "",
            nice: bool = False,
            plot: str | None = None,
            report: str | None = None,
            **asked: Any,
        ) -> Exit:
            where = () if queue is None else (JobPlace(queue, master, memory, nice),)
            with busy(f"{doing} {queue or ''}") if doing else nullcontext():
                found = work(*where, **asked)
            if plot is not None:
                Path(plot).write_bytes(found.plot())
            if report is not None:
                Path(report).write_text(found.page(), encoding="utf-8")
            if options.is_json():
                screen.print_json(found.to_json())
            else:
                # Reasons and names are as somebody else has written them.
                for line in (*found.lines(), found.line()):
                    click.echo(screen.exact(line))
            return Exit.OK if found.is_good else bad

        last = _SESSION if queue in given else ()
        command = called
        for option in reversed((*given, options.as_json, *last)):
            command = option(command)
        program = f"python -m pyspark_shardq {work.__name__}"
        return click.command(epilog=options.examples(*(f"{program} {one}" for one in examples)))(
            command
        )

    return made


@contextmanager
def busy(what: str) -> Iterator[None]:
    """While this lasts, stderr shows it where that is a terminal."""
    with screen.progress() as bar:
        bar.add_task(what, total=None)
        yield
