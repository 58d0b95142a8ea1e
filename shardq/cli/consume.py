"""Take messages as they come due and do something with each."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

import shardq
from shardq import consumer
from shardq.cli import options, screen
from shardq.cli.deliveries import Command, OutFile, delivery_of
from shardq.errors import UnknownQueue
from shardq.model import names, times

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.connection import Connection
    from shardq.model.message import Message
    from shardq.queue import Queue


@click.command(
    epilog=options.examples(
        "shardq consume mail",
        "shardq consume mail post --threads 16 --exec './send --quiet'",
        "shardq consume mail --until-empty --out mail.jsonl",
    )
)
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@options.whole(
    "--threads",
    text="How many messages of each queue are handled at once.",
    least=1,
    most=consumer.THREADS_MAX,
    default=consumer.THREADS,
)
@options.whole(
    "--prefetch",
    text="How many messages of each queue are read ahead.",
    least=1,
    most=consumer.PREFETCH_MAX,
    default=consumer.PREFETCH,
)
@click.option(
    "--until-empty",
    is_flag=True,
    help="End once no message waits in any of the queues, however far away it is due. "
    "The messages of a paused queue are waited for until it is resumed.",
)
@click.option(
    "--isolated",
    is_flag=True,
    help="Deliver only from minutes that are over for good, so that consumers never read where "
    "producers write.",
)
@click.option(
    "--deadline",
    metavar="DURATION",
    default=consumer.DEADLINE,
    show_default=True,
    help="How long a stop waits for the messages that are being handled.",
)
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    help="Run this for each message: the body on stdin, SHARDQ_QUEUE, SHARDQ_ID, SHARDQ_DUE, "
    "SHARDQ_ATTEMPT, SHARDQ_HEADERS and so on in the environment. 0 acks, any other exit code "
    "retries. It is run without a shell; write sh -c '...' for one.",
)
@click.option(
    "--out",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Append one JSON line for each delivery to this file, on disk before the message is "
    "acked; - is stdout. FILE may be a pipe or a device.",
)
@options.store
@options.as_json
def consume(
    *,
    queues: tuple[str, ...],
    threads: int,
    prefetch: int,
    deadline: str,
    command: str | None,
    path: Path | None,
    url: str | None,
    until_empty: bool,
    isolated: bool,
    as_json: bool,
) -> None:
    """Handle the messages of one or more QUEUEs as they come due.

    Prints each body where neither --exec, --out nor --json is given. A queue that does not exist
    is created. Stops on Ctrl-C or SIGTERM: messages that are being handled are finished within
    --deadline, the others are left to other consumers.
    """
    times.duration_ms(deadline, name="--deadline")
    for number, name in enumerate(queues):
        if names.queue_name(name) in queues[:number]:
            raise click.UsageError(f"queue {name} is given twice; raise --threads instead.")
    runner = None if command is None else Command(command)
    with options.connect(url, makes=True) as db:
        out = None if path is None else OutFile(path)
        # Written to stdout already, a delivery is not printed as well.
        as_json = as_json and str(path) != "-"
        handler = _Handler(
            db._home.clock, runner, out, as_json=as_json, quiet=bool(command or path)
        )
        consumers = [
            shardq.Consumer(
                _opened(db, name),
                handler,
                threads=threads,
                prefetch=prefetch,
                isolated=isolated,
                deadline=deadline,
            )
            for name in queues
        ]
        # The end of one is the end of all.
        handler.on_failure = consumers[0].stop
        try:
            shardq.run(*consumers, until_empty=until_empty)
        finally:
            if out is not None:
                out.close()
    if handler.failure is not None:
        raise handler.failure
    done = ", ".join(
        f"{screen.plural(handler.counts[name], 'message')} of {name}" for name in queues
    )
    click.echo(f"shardq: handled {done}", err=True)


def _opened(db: Connection, name: str) -> Queue:
    """A queue, made where there is none; says what its user may not expect."""
    try:
        queue = db.queue(name, create=False)
    except UnknownQueue:
        queue = db.queue(name)
        click.echo(f"shardq: queue {name} did not exist and was created.", err=True)
    if queue.settings.paused:
        click.echo(
            f"shardq: queue {name} is paused: its messages wait for `shardq queues resume {name}`.",
            err=True,
        )
    return queue


class _Handler:
    """What is done with each message, from many threads.

    Attributes:
        counts: Deliveries that were done, by queue.
        failure: The error of our own output, after which consuming must end.
        on_failure: Called once, when it happens.
    """

    def __init__(
        self,
        clock: Clock,
        command: Command | None,
        out: OutFile | None,
        *,
        as_json: bool,
        quiet: bool,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.failure: OSError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._clock = clock
        self._command = command
        self._out = out
        self._as_json = as_json
        self._quiet = quiet and not as_json
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        delivery = delivery_of(message, self._clock.now_ms())
        if self._command is not None:
            self._command(message)
        try:
            if self._out is not None:
                self._out.write(delivery.to_json())
            with self._lock:
                self.counts[message.queue] += 1
                if not self._quiet:
                    line = delivery.to_json().encode() if self._as_json else message.body
                    sys.stdout.buffer.write(line + b"\n")
                    sys.stdout.buffer.flush()
        except OSError as error:
            # A full disk is no fault of the message: it keeps its attempts, and we stop.
            with self._lock:
                first = self.failure is None
                self.failure = error
            if first:
                self.on_failure()
            raise shardq.Snooze("1s") from error
