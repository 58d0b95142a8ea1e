"""Take messages as they come due and do something with each."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

import shardq
from shardq.cli import options, screen
from shardq.cli.deliveries import Command, OutFile, delivery_of
from shardq.model import times

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.model.message import Message

log = logging.getLogger(__name__)


@click.command(
    epilog=options.examples(
        "shardq consume mail",
        "shardq consume mail --threads 16 --exec './send-mail --quiet'",
        "shardq consume mail --until-empty --out mail.jsonl",
    )
)
@options.queue
@click.option("--threads", type=click.IntRange(1, 256), default=8, show_default=True)
@click.option("--prefetch", type=click.IntRange(1, 100_000), default=1_000, show_default=True)
@click.option("--until-empty", is_flag=True, help="End once nothing waits, now or later.")
@click.option("--isolated", is_flag=True, help="Read only minutes that are over for good.")
@click.option(
    "--deadline",
    metavar="DURATION",
    default="25s",
    show_default=True,
    help="How long a stop waits.",
)
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    help="Run this for each message: the body on stdin, SHARDQ_ID, SHARDQ_DUE, SHARDQ_ATTEMPT, "
    "SHARDQ_HEADERS and so on in the environment. 0 acks, any other exit code retries. "
    "No shell: write sh -c '...' for one.",
)
@click.option(
    "--out",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append one JSON line a delivery, on disk before its ack.",
)
@click.option("--create", is_flag=True, help="Create QUEUE where it does not exist.")
@options.store
@options.as_json
def consume(
    *,
    queue: str,
    threads: int,
    prefetch: int,
    deadline: str,
    command: str | None,
    path: Path | None,
    url: str | None,
    until_empty: bool,
    isolated: bool,
    create: bool,
    as_json: bool,
) -> None:
    """Take the messages of QUEUE as they come due; prints each body where nothing else is asked.

    Stops on Ctrl-C or SIGTERM: what runs is finished within --deadline, the rest is left to others.
    """
    times.duration_ms(deadline, name="--deadline")
    runner = None if command is None else Command(command)
    with options.connect(url) as db:
        source = db.queue(queue, create=create)
        out = None if path is None else OutFile(path)
        handler = _Handler(
            db._home.clock, runner, out, as_json=as_json, quiet=bool(command or path)
        )
        consumer = shardq.Consumer(
            source,
            handler,
            threads=threads,
            prefetch=prefetch,
            isolated=isolated,
            deadline=deadline,
        )
        handler.on_failure = consumer.stop
        try:
            consumer.run(until_empty=until_empty)
        finally:
            if out is not None:
                out.close()
    if handler.failure is not None:
        raise handler.failure
    click.echo(f"shardq: {screen.plural(handler.count, 'delivery')} of {queue}", err=True)


class _Handler:
    """What is done with each message, from many threads.

    Attributes:
        count: Deliveries that were done.
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
        self.count = 0
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
                self.count += 1
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
