"""Handles messages as they come due."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import shardq
from shardq import consumer
from shardq.cli import options, probes, screen, streams
from shardq.cli.command import GRACE_S, CannotStart, MessageProgram
from shardq.cli.deliveries import Lines, OutFile, delivery_of, printed
from shardq.cli.exits import Exit
from shardq.cli.jobs import TASK_HEADER, is_job
from shardq.cli.probes import Probes
from shardq.errors import UnknownQueue, UsageError, shown
from shardq.health.vitals import ConsumerVitals
from shardq.model import names, times
from shardq.tasks.importing import put_here_on_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.clock import Clock
    from shardq.connection import Connection
    from shardq.model.message import Message
    from shardq.queue import Queue

_AGAIN = "1s"
"""The delay of a message that could not be handled."""
_MARGIN_S = 2.0
"""How much longer a consumer waits than a command may take to end."""
_NAMED_MAX = 5


@options.command(
    "shardq consume mail",
    "shardq consume mail post --threads 16 --exec './send --quiet'",
    "shardq consume mail --until-empty --out mail.jsonl",
)
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@options.option(
    "--threads N",
    "How many messages of each queue are handled at once.",
    least=1,
    most=consumer.THREADS_MAX,
    default=consumer.THREADS,
)
@options.option(
    "--prefetch N",
    "How many messages of each queue are read ahead.",
    least=1,
    most=consumer.PREFETCH_MAX,
    default=consumer.PREFETCH,
)
@options.option(
    "--until-empty",
    "End once no message waits in any of the queues, however far away it is due; with 24 where "
    "messages have died. The messages of a paused queue are waited for until it is resumed.",
)
@options.option(
    "--isolated",
    "Deliver only from minutes that are over for good, so that consumers never read where "
    "producers write.",
)
@options.option(
    "--deadline DURATION",
    "How long a stop waits for the messages that are being handled. A command of --exec that "
    "still runs then gets SIGTERM, and SIGKILL 3 s later, with all in its process group; its "
    "message is delivered again and spends no attempt.",
    default=consumer.DEADLINE,
)
@options.option(
    "--exec CMD",
    "Run this for each message: the body on stdin, SHARDQ_QUEUE, SHARDQ_ID, SHARDQ_DUE, "
    "SHARDQ_ATTEMPT, SHARDQ_HEADERS, SHARDQ_LAST_ERROR and so on in the environment. 0 acks, "
    "any other exit code retries, with the end of its stderr as the reason. It is run without "
    "a shell; write sh -c '...' for one. A consumer that is killed leaves it running, with "
    "nobody to read its stderr.",
    name="command",
)
@options.option(
    "--out FILE",
    "Append one JSON line for each delivery to this file, on disk before the message is acked; "
    "- is stdout. FILE may be a pipe or a device.",
    name="path",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
)
@options.option(
    "--tasks",
    "Print jobs of tasks too, and ack them: their functions do not run.",
    name="takes_jobs",
)
@probes.metrics
@probes.health
def consume(
    *,
    queues: tuple[str, ...],
    deadline: str,
    command: str | None,
    path: Path | None,
    metrics: str | None,
    health: str | None,
    until_empty: bool,
    takes_jobs: bool,
    **settings: Any,
) -> Exit:
    """Handle the messages of one or more QUEUEs as they come due.

    Prints each body if none of --exec, --out and --json is given. A queue that does not exist is
    created. Stops on Ctrl-C or SIGTERM: messages that are being handled are finished within
    --deadline, the others are left to other consumers.

    Jobs of tasks are for `shardq work`, which runs their functions. Where messages are only
    printed, without --exec and --out, this stops at the first job, and leaves it in QUEUE.

    Also stops if its output cannot be written, or the command of --exec cannot be started. Then
    unfinished messages are not acked, and spend no attempt. If only part of a line was written, the
    whole line is written again later.
    """
    deadline_ms = times.duration_ms(deadline, name="--deadline")
    for number, name in enumerate(queues):
        if names.queue_name(name) in queues[:number]:
            raise click.UsageError(f"queue {name} is given twice; raise --threads instead.")
    runner = None if command is None else MessageProgram(command)
    is_out_stdout = path is not None and streams.is_stdout(path)
    # Do not print deliveries that `--out -` writes to stdout already.
    is_printed = not is_out_stdout if options.is_json() else not (command or path)
    # Make the user's own triggers importable; otherwise they would not fire.
    put_here_on_path()
    with ExitStack() as stack:
        probed = stack.enter_context(closing(Probes(metrics, health)))
        outputs: list[tuple[Lines, bool]] = []
        if is_printed:
            outputs.append((printed(), options.is_json()))
        db = options.connect(makes=True)
        if path is not None:
            outputs.insert(0, (stack.enter_context(closing(OutFile(path))), True))
        takes_jobs = takes_jobs or command is not None or path is not None
        handler = _MessageHandler(db._home.clock, runner, outputs, takes_jobs=takes_jobs)
        consumers = [
            _CommandConsumer(
                _opened(db, name),
                handler,
                **settings,
                deadline_ms=deadline_ms,
                on_dead=handler.count_dead if until_empty else None,
            )
            for name in queues
        ]
        # Stopping one consumer is enough: when one ends, all end.
        handler.on_failure = consumers[0].stop
        probed.begin(lambda: ConsumerVitals(db, consumers), probes.of_one(db))
        try:
            shardq.run(*consumers, until_empty=until_empty)
        finally:
            if runner is not None:
                runner.end()
                _tell_ended(runner)
    if handler.failure is None:
        streams.note(f"handled {_done(handler, queues)}")
        return Exit.DIED if handler.dead else Exit.OK
    told = f"Handled before that: {_done(handler, queues)}; the others are delivered again."
    if isinstance(handler.failure, CannotStart):
        streams.note(f"--exec: {handler.failure}. {told}")
        return Exit.COMMAND
    handler.failure.add_note(told)
    raise handler.failure


def _opened(db: Connection, name: str) -> Queue:
    """A queue, made if it does not exist; prints notes that its user may need."""
    try:
        queue = db.queue(name, create=False)
    except UnknownQueue:
        queue = db.queue(name)
        streams.note(f"queue {name} did not exist and was created.")
    if queue.settings.paused:
        streams.note(
            f"queue {name} is paused: its messages wait for `shardq queues resume {name}`."
        )
    return queue


def _done(handler: _MessageHandler, queues: Sequence[str]) -> str:
    return ", ".join(_done_of(handler, name) for name in queues)


def _done_of(handler: _MessageHandler, name: str) -> str:
    done = f"{screen.plural(handler.counts[name], 'message')} of {name}"
    count = handler.dead[name]
    return f"{done} ({count:,} died: shardq dead {name})" if count else done


class _CommandConsumer(shardq.Consumer):
    """A consumer that stops its command when it stops, and waits for the command's end."""

    def __init__(
        self, queue: Queue, handler: _MessageHandler, *, deadline_ms: int, **settings: Any
    ) -> None:
        self._command = handler.command
        self._command_deadline_s = deadline_ms / 1_000
        if self._command is not None:
            deadline_ms += round((GRACE_S + _MARGIN_S) * 1_000)
        super().__init__(queue, handler, deadline=f"{deadline_ms}ms", **settings)

    def stop(self) -> None:
        super().stop()
        if self._command is not None:
            self._command.stop(self._command_deadline_s)


def _tell_ended(command: MessageProgram) -> None:
    """Name the messages whose commands did not end by themselves."""
    for ids, what in ((command.ended, "was ended"), (command.running, "cannot be ended")):
        if ids:
            more = f" and {len(ids) - _NAMED_MAX:,} more" if len(ids) > _NAMED_MAX else ""
            streams.note(
                f"the command of {', '.join(ids[:_NAMED_MAX])}{more} was not done within "
                f"--deadline and {what}; its message is delivered again, and spends no attempt."
            )


def _refuse_job(message: Message) -> None:
    if is_job(message):
        task = message.headers[TASK_HEADER]
        raise UsageError(
            f"message {shown(message.id)} of queue {message.queue} is a job of task {shown(task)}, "
            f"which would be gone without having run: run it with `shardq work MODULE:app`, or add "
            f"--tasks to print and ack jobs."
        )


class _MessageHandler:
    """The actions for each message, from many threads.

    Args:
        clock: The clock for the begin of a delivery.
        command: Run for each message.
        outputs: The outputs that get a line for each message, each with True if the line is JSON.
        takes_jobs: True to handle jobs of tasks too. Otherwise a job ends consuming.

    Attributes:
        command: The command.
        counts: Handled deliveries, by queue.
        dead: Messages that died, by the dead-letter queue that keeps them.
        failure: The error after which no message can be handled, and consuming must end.
        on_failure: Called once, on that error.
    """

    def __init__(
        self,
        clock: Clock,
        command: MessageProgram | None,
        outputs: Sequence[tuple[Lines, bool]],
        *,
        takes_jobs: bool,
    ) -> None:
        self.command = command
        self.counts: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.failure: OSError | CannotStart | UsageError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._clock = clock
        self._outputs = outputs
        self._takes_jobs = takes_jobs
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        if self.failure is not None:
            raise shardq.Snooze(_AGAIN)
        delivery = delivery_of(message, self._clock.now_ms())
        try:
            if not self._takes_jobs:
                _refuse_job(message)
            if self.command is not None:
                self.command(message)
            for lines, is_json in self._outputs:
                lines.write(
                    delivery.to_json().encode("utf-8", "surrogatepass") if is_json else message.body
                )
        except (OSError, CannotStart, UsageError) as error:
            # The message is not at fault: it keeps its attempts, and consuming stops.
            with self._lock:
                is_first = self.failure is None
                self.failure = self.failure or error
            if is_first:
                self.on_failure()
            raise shardq.Snooze(_AGAIN) from error
        with self._lock:
            self.counts[message.queue] += 1

    def count_dead(self, message: Message) -> None:
        """Count a message that died: the `on_dead` of each consumer."""
        with self._lock:
            self.dead[message.headers["shardq-queue"]] += 1
