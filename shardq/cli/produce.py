"""Many messages: a trace replayed, or a steady rate."""

from __future__ import annotations

import itertools
import os
import select
import signal
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import BufferedReader, UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from click.core import ParameterSource

from shardq.cli import options, screen, streams, trace
from shardq.cli.exits import Exit
from shardq.errors import KeyTaken, StoreError, StoreTimeout, StoreUnavailable, UsageError
from shardq.model import times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

    from _typeshed import WriteableBuffer
    from rich.progress import Progress, TaskID

    from shardq.clock import Clock
    from shardq.errors import ShardqError
    from shardq.queue import Queue

_CHUNK = 1_000
_TRIES = 10
_PAUSE_S = 1.0
_TICK_S = 0.02
_NAP_S = 0.2
"""The longest single wait: a signal is noticed between two."""
_GATHER_US = 200_000
"""Lines that arrive one by one are gathered for at most this long, and stored together."""
_BUFFER_BYTES = 64 << 10
_RATE_MAX = 1e9
_LIMIT_MAX = 10**12
_PART_CHARS = 16
_OF_A_FILE = ("due_field", "key_field", "speed", "start", "limit", "part", "lead")
_OF_A_RATE = ("delay", "count", "body")
"""Options that are only valid with a rate, not with a file."""


@options.command(
    "shardq produce mail --from mail.jsonl.gz --due-field at --speed 3600",
    "shardq produce mail --from - --speed 1e6 --lead 5s < mail.jsonl.gz",
    "shardq produce mail --from orders.jsonl --key-field order",
    "shardq produce mail --rate 10 --delay 60s --count 1000",
)
@options.queue
@options.option(
    "--from FILE",
    "Replay these JSON Lines, plain or gzipped: each line is one message. - is stdin.",
    name="path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)
@options.option("--due-field NAME", "The field that holds each line's time.", default="at")
@options.option(
    "--key-field NAME",
    "The field that holds each line's key, a text or a whole number. A line whose key is "
    "taken, by a message or by --unique-for of one, is not put: so a file can be replayed "
    "again.",
)
@options.option(
    "--speed FACTOR",
    "Divides the gaps between lines: 60 makes a second of a minute.",
    type=float,
    default=1.0,
)
@options.option("--start TIME", "When the first line is due; now if it is not given.")
@options.option("--limit N", "Take only the first N lines.", least=1, most=_LIMIT_MAX)
@options.option(
    "--part I/N", "Take every N-th line from the I-th on, so that N producers share a file."
)
@options.option(
    "--lead DURATION",
    "Put each line this long before it is due, instead of at once. The lines must be sorted by "
    "their due: one that is due longer than this before a line above it is put late, and the "
    "end says how many were.",
)
@options.option("--rate R", "Without a file: put R messages a second.", type=float)
@options.option(
    "--delay DURATION", "With --rate: how long after its put each message is due.", default="0s"
)
@options.option("--count N", "With --rate: stop after N messages.", least=1)
@options.option("--body TEXT", "With --rate: each message's body; its number if not given.")
@options.priority
@options.group
@options.headers
def produce(
    *,
    queue: str,
    path: Path | None,
    due_field: str,
    key_field: str | None,
    speed: float,
    start: str | None,
    limit: int | None,
    part: str | None,
    lead: str | None,
    rate: float | None,
    delay: str,
    count: int | None,
    body: str | None,
    priority: int,
    group: str | None,
    headers: tuple[str, ...],
) -> Exit:
    """Put many messages into QUEUE: a file's lines, each due as it happened, or R a second.

    A line's due is the start plus its gap to the first line, divided by --speed. QUEUE is created
    where it does not exist. An interrupted write is repeated as it was, so that nothing is put
    twice.

    FILE may be a pipe: each line is stored as soon as it arrives. Ctrl-C or SIGTERM ends the
    command once all whole lines that were read are stored; a second signal ends it at once.
    """
    if (path is None) == (rate is None):
        raise click.UsageError("give --from FILE to replay a trace, or --rate R; one of them.")
    _refuse_alone("--from", _OF_A_FILE if path is None else ())
    _refuse_alone("--rate", _OF_A_RATE if rate is None else ())
    _above_zero("--speed", speed)
    _above_zero("--rate", rate)
    if rate is not None and rate > _RATE_MAX:
        raise click.UsageError(f"--rate must be at most {_RATE_MAX:,.0f}, not {rate}.")
    delay_ms = times.duration_ms(delay, name="--delay")
    lead_ms = None if lead is None else times.duration_ms(lead, name="--lead")
    start_ms = None if start is None else times.due_ms(start, name="--start")
    first, step = _part(part)
    shared = {"priority": priority, "group": group, "headers": options.headers_of(headers)}
    with ExitStack() as stack:
        # Open the file before signals are caught, because the open waits for a pipe's writer.
        source = None if path is None else stack.enter_context(_opened(path))
        db = options.connect(makes=True)
        clock = db._home.clock
        writer = _ChunkWriter(db.queue(queue), clock, shared)
        writer.bar = stack.enter_context(screen.progress())
        total = count if path is None else limit and -(-limit // step)
        writer.task = writer.bar.add_task(f"put into {queue}", total=total)
        caught = stack.enter_context(_caught_signals())
        try:
            if source is not None:
                events = _events(source, due_field, key_field, caught, writer.gather)
                timed = trace.replay(
                    itertools.islice(events, limit),
                    start_ms=clock.now_ms() if start_ms is None else start_ms,
                    speed=speed,
                )
                # Take the part after `replay`, so that every part counts its gaps from the trace's
                # first line.
                timed = itertools.islice(timed, first, None, step)
                _replay(writer, timed, lead_ms, caught)
            elif rate is not None:
                _at_rate(writer, rate, delay_ms, count, body, caught)
        except (UsageError, OSError) as error:
            writer.tell(error)
            raise
    if writer.late:
        streams.note(
            f"{screen.plural(writer.late, 'line')} came after a line that is due later by "
            f"more than --lead, and so up to {screen.span(writer.latest_ms)} late; sort the file "
            f"by its due, or raise --lead."
        )
    put = screen.plural(writer.put, "message")
    lines = screen.plural(writer.kept, "line")
    whose = "its key is" if writer.kept == 1 else "their keys are"
    kept = f"; {lines} not put, since {whose} taken" if writer.kept else ""
    told = {
        "queue": queue,
        "put": writer.put,
        "repeated_writes": writer.repeats,
        "put_late": writer.late,
        "kept": writer.kept,
    }
    with streams.saying(f"Stored: {put}."):
        screen.result(told, f"put {put} into {queue}{kept}")
    if not caught:
        return Exit.OK
    name = signal.Signals(caught[0]).name
    stored = "" if path is None else ", with every whole line stored that was read"
    streams.note(f"ended by {name}{stored}.")
    return Exit.INTERRUPTED if caught[0] == signal.SIGINT else Exit.TERMINATED


def _refuse_alone(option: str, names: Iterable[str]) -> None:
    """Refuse options without effect, because the option that they go with is missing."""
    source_of = click.get_current_context().get_parameter_source
    for name in names:
        if source_of(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with {option} alone.")


def _above_zero(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise click.UsageError(f"{name} must be more than 0, not {value}.")


def _part(text: str | None) -> tuple[int, int]:
    """(lines to skip, step) of `2/3`: the second of every three."""
    if text is None:
        return 0, 1
    number, _, of = text.partition("/")
    plausible = number.isdecimal() and of.isdecimal() and len(text) <= _PART_CHARS
    if not (plausible and 1 <= int(number) <= int(of)):
        raise click.UsageError(f"--part {text!r} must be like 1/2 and 2/2.")
    return int(number) - 1, int(of)


class _StoppedReading(Exception):
    """A signal was caught, and all lines that were read are taken."""


class _Source(streams.BlockingFile):
    """The input: all lines that it has returned are stored before it waits for more.

    Attributes:
        caught: The signals caught; one ends it.
        on_wait: Called when there is nothing to read; returns for how many milliseconds to wait.
    """

    def __init__(self, descriptor: int, said: str, *, closes: bool) -> None:
        super().__init__(descriptor, "rb", said, closes=closes)
        self.said = said
        self.caught: Sequence[int] = ()
        self.on_wait: Callable[[], float] = lambda: 0.0
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLIN)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        while not self.caught:
            # A regular file is always ready.
            if self._ready.poll(0):
                return super().readinto(buffer)
            self._ready.poll(self.on_wait())
        raise _StoppedReading


def _opened(path: Path) -> BinaryIO:
    if not streams.is_stdin(path):
        raw = _Source(os.open(path, os.O_RDONLY), str(path), closes=True)
        return BufferedReader(raw, _BUFFER_BYTES)
    stream = options.stdin("JSON Lines")
    try:
        return BufferedReader(_Source(stream.fileno(), "stdin", closes=False), _BUFFER_BYTES)
    except UnsupportedOperation:
        # In tests stdin is a stream in memory.
        return stream


def _events(
    source: BinaryIO,
    due_field: str,
    key_field: str | None,
    caught: Sequence[int],
    on_wait: Callable[[], float],
) -> Iterator[trace.Event]:
    raw = source.raw if isinstance(source, BufferedReader) else None
    if not isinstance(raw, _Source):
        return trace.read(source, due_field, key_field=key_field)
    raw.caught, raw.on_wait = caught, on_wait
    return trace.read(source, due_field, raw.said, key_field)


@contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """The caught signals that ask for an end; a second one has its usual effect.

    A put that is interrupted by the second one may or may not be stored.
    """
    caught: list[int] = []
    before: dict[int, Any] = {}

    def set_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def catch(number: int, _frame: FrameType | None) -> None:
        caught.append(number)
        set_back()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            # Keep ignoring Ctrl-C if the process ignores it, like a shell's background job.
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN:
                before[number] = handler
                signal.signal(number, catch)
    try:
        yield caught
    finally:
        set_back()


@dataclass(slots=True)
class _ChunkWriter:
    """Puts chunks, and repeats interrupted writes.

    Attributes:
        shared: Arguments of `put` that every message has.
        put: Messages stored for certain.
        kept: Lines not put, because their keys were taken.
        repeats: Writes that had to be repeated.
        late: Lines put after their due, because an earlier line is due later.
        latest_ms: The most by which a line was late.
    """

    queue: Queue
    clock: Clock
    shared: dict[str, Any] = field(default_factory=dict)
    put: int = 0
    kept: int = 0
    repeats: int = 0
    late: int = 0
    latest_ms: int = 0
    bar: Progress | None = None
    task: TaskID | None = None
    _waiting: list[trace.Timed] = field(default_factory=list)
    _stored_us: int = 0

    def add(self, message: trace.Timed) -> None:
        """Put a line, together with others."""
        self._waiting.append(message)
        if len(self._waiting) >= _CHUNK:
            self.flush()

    def flush(self) -> None:
        """Put the waiting lines."""
        items = [_item(message) for message in self._waiting]
        self._waiting.clear()
        if items:
            self.write(items)
            self._stored_us = self.clock.boot_us()

    def gather(self) -> float:
        """Put the waiting lines, unless a put was just now; returns milliseconds to wait."""
        if self._waiting:
            early_us = self._stored_us + _GATHER_US - self.clock.boot_us()
            if early_us > 0:
                return early_us / 1_000
            self.flush()
        return _NAP_S * 1_000

    def write(self, items: Iterable[dict[str, Any]]) -> None:
        """Put items of `put_many`.

        Raises:
            UsageError: If one cannot be used; the items before it are stored.
            StoreError: If the store stays unavailable; the text has the number of stored messages.
        """
        chunk = [item | self.shared for item in items]
        left: Iterator[Any] = iter(chunk)
        asked, kept = len(chunk), 0
        for attempt in itertools.count(1):
            try:
                kept += asked - self.queue.put_many(left)
            except KeyTaken as taken:
                # Continue after the item whose key is taken; `left` may be past further items of
                # its chunk.
                rest = list(left)
                kept += asked - len(rest) - taken.put
                left, asked = iter(rest), len(rest)
            except (StoreTimeout, StoreUnavailable) as error:
                if attempt >= _TRIES:
                    self.tell(error)
                    raise
                # The error has exactly the messages of the failed write, so a repeat stores them
                # once. All earlier items are stored.
                again = [*error.messages, *left]
                left, asked = iter(again), len(again)
                self.repeats += 1
                self.clock.sleep(_PAUSE_S)
            except StoreError as error:
                self.tell(error)
                raise
            except UsageError as error:
                # Drop the error's note, which counts this chunk only.
                error.__notes__ = []
                self.put += len(chunk) - len(list(left)) - 1
                raise
            else:
                break
        self.put += len(chunk) - kept
        self.kept += kept
        if self.bar is not None and self.task is not None:
            self.bar.advance(self.task, len(chunk))

    def tell(self, error: ShardqError | OSError) -> None:
        """Add the number of stored messages to an error."""
        error.add_note(f"Stored before that: {screen.plural(self.put, 'message')}.")


def _replay(
    writer: _ChunkWriter, timed: Iterator[trace.Timed], lead_ms: int | None, caught: Sequence[int]
) -> None:
    newest_ms = 0
    try:
        for message in timed:
            newest_ms = max(newest_ms, message.due_ms)
            if lead_ms is not None and (late_ms := newest_ms - lead_ms - message.due_ms) > 0:
                writer.late += 1
                writer.latest_ms = max(writer.latest_ms, late_ms)
            # Do not wait after a signal: lines that were read are put at once.
            while lead_ms is not None and not caught:
                early_ms = message.due_ms - lead_ms - writer.clock.now_ms()
                if early_ms <= 0:
                    break
                writer.flush()
                # Sleep for a tick at least, so that all lines due within it are put together.
                writer.clock.sleep(min(max(early_ms / 1_000, _TICK_S), _NAP_S))
            writer.add(message)
    except _StoppedReading:
        pass
    finally:
        # Do this even after an error, of a bad line say, so that the lines above it are stored.
        writer.flush()


def _item(message: trace.Timed) -> dict[str, Any]:
    item = {"body": message.body, "due": times.moment_of(message.due_ms)}
    return item if message.key is None else item | {"key": message.key}


def _at_rate(
    writer: _ChunkWriter,
    rate: float,
    delay_ms: int,
    count: int | None,
    body: str | None,
    caught: Sequence[int],
) -> None:
    """Put `rate` messages a second; faster for a while after the store was slow."""
    delay = f"{delay_ms}ms"
    began_us = writer.clock.boot_us()
    sent = 0
    while not caught and (count is None or sent < count):
        passed_s = (writer.clock.boot_us() - began_us) / 1e6
        wanted = int(passed_s * rate) + 1 - sent
        if count is not None:
            wanted = min(wanted, count - sent)
        wanted = min(wanted, _CHUNK)
        if wanted > 0:
            numbers = range(sent + 1, sent + wanted + 1)
            writer.write({"body": body or str(number), "delay": delay} for number in numbers)
            sent += wanted
        else:
            writer.clock.sleep(min(max((sent / rate) - passed_s, 0.001), _NAP_S))
