"""Many messages: a trace replayed, or a steady rate."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardq.cli import options, screen
from shardq.errors import StoreError, StoreTimeout, StoreUnavailable, UsageError
from shardq.inspection import trace
from shardq.model import times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.progress import Progress, TaskID

    from shardq.clock import Clock
    from shardq.errors import ShardqError
    from shardq.queue import Queue

_CHUNK = 1_000
_TRIES = 10
_PAUSE_S = 1.0
_TICK_S = 0.02
_NAP_S = 60.0
"""The longest single wait: a platform's sleep takes no more than some centuries."""
_RATE_MAX = 1e9
_PART_CHARS = 16


@click.command(
    epilog=options.examples(
        "shardq produce commits --from commits.jsonl.gz --due-field at --speed 100000",
        "shardq produce commits --from commits.jsonl.gz --speed 1e6 --lead 5s --part 1/2",
        "shardq produce mail --rate 10 --delay 60s --count 1000",
    )
)
@options.queue
@click.option(
    "--from",
    "path",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replay this .jsonl or .jsonl.gz: each line is one message.",
)
@click.option(
    "--due-field", metavar="NAME", default="at", show_default=True, help="Each line's time."
)
@click.option("--speed", type=float, default=1.0, show_default=True, help="Divides the gaps.")
@click.option("--start", metavar="TIME", help="When the first line is due; now where not given.")
@click.option(
    "--limit", type=click.IntRange(1, sys.maxsize), metavar="N", help="Only the first N lines."
)
@click.option("--part", metavar="I/N", help="Every N-th line from the I-th: shares a trace.")
@click.option(
    "--lead", metavar="DURATION", help="Put each line so long before it is due, not at once."
)
@click.option("--rate", type=float, metavar="R", help="Without a file: messages a second.")
@click.option("--delay", metavar="DURATION", default="0s", show_default=True, help="With --rate.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="With --rate: stop after N.")
@click.option("--body", metavar="TEXT", help="With --rate; otherwise the message's number.")
@options.store
@options.as_json
def produce(
    *,
    queue: str,
    path: Path | None,
    due_field: str,
    speed: float,
    start: str | None,
    limit: int | None,
    part: str | None,
    lead: str | None,
    rate: float | None,
    delay: str,
    count: int | None,
    body: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Put many messages into QUEUE: a file's lines, each due as it happened, or R a second.

    A line's due is the start plus its gap to the first line, divided by --speed. An interrupted
    write is repeated as it was, so that nothing is put twice.
    """
    if (path is None) == (rate is None):
        raise click.UsageError("give --from FILE to replay a trace, or --rate R; one of them.")
    _above_zero("--speed", speed)
    _above_zero("--rate", rate)
    if rate is not None and rate > _RATE_MAX:
        raise click.UsageError(f"--rate must be at most {_RATE_MAX:,.0f}, not {rate}.")
    delay_ms = times.duration_ms(delay, name="--delay")
    lead_ms = None if lead is None else times.duration_ms(lead, name="--lead")
    start_ms = None if start is None else times.due_ms(start)
    first, step = _part(part)
    with options.connect(url) as db:
        target = db.queue(queue)
        writer = _Writer(target, db._home.clock)
        with screen.progress() as bar:
            if path is not None:
                events = itertools.islice(trace.read(path, due_field), limit)
                timed = trace.replay(
                    events,
                    start_ms=db._home.clock.now_ms() if start_ms is None else start_ms,
                    speed=speed,
                )
                # After `replay`, so that every part counts its gaps from the trace's first line.
                mine = itertools.islice(timed, first, None, step)
                writer.task = bar.add_task(f"put into {queue}", total=limit and -(-limit // step))
                writer.bar = bar
                try:
                    _replay(writer, mine, lead_ms)
                except UsageError as error:
                    writer.tell(error)
                    raise
            elif rate is not None:
                writer.task = bar.add_task(f"put into {queue}", total=count)
                writer.bar = bar
                _at_rate(writer, rate, delay_ms, count, body)
    if as_json:
        screen.print_json({"queue": queue, "put": writer.put, "repeated_writes": writer.repeats})
    else:
        click.echo(f"put {screen.plural(writer.put, 'message')} into {queue}")


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


@dataclass(slots=True)
class _Writer:
    """Puts chunks, and repeats what was interrupted.

    Attributes:
        put: Messages stored for certain.
        repeats: Writes that had to be repeated.
    """

    queue: Queue
    clock: Clock
    put: int = 0
    repeats: int = 0
    bar: Progress | None = None
    task: TaskID | None = None

    def write(self, items: Iterable[Any]) -> None:
        """Put items of `put_many`.

        Raises:
            StoreError: If the store does not come back; the text says how many were stored.
        """
        chunk = list(items)
        left: Iterator[Any] = iter(chunk)
        for attempt in itertools.count(1):
            try:
                self.queue.put_many(left)
            except (StoreTimeout, StoreUnavailable) as error:
                if attempt == _TRIES:
                    self.tell(error)
                    raise
                # Those it carries are the very rows: written twice, they are there once. Where it
                # carries none, none was taken from `left` and not stored.
                left = itertools.chain(error.messages, left)
                self.repeats += 1
                self.clock.sleep(_PAUSE_S)
            except StoreError as error:
                self.tell(error)
                raise
            else:
                break
        self.put += len(chunk)
        if self.bar is not None and self.task is not None:
            self.bar.advance(self.task, len(chunk))

    def tell(self, error: ShardqError) -> None:
        """Add to an error how much was done before it."""
        error.add_note(f"Stored before that: {screen.plural(self.put, 'message')}.")


def _replay(writer: _Writer, timed: Iterator[trace.Timed], lead_ms: int | None) -> None:
    waiting: list[trace.Timed] = []
    for message in timed:
        while lead_ms is not None:
            early_ms = message.due_ms - lead_ms - writer.clock.now_ms()
            if early_ms <= 0:
                break
            writer.write(map(_item, waiting))
            waiting.clear()
            # A tick gathers what is due within it into one batch.
            writer.clock.sleep(min(max(early_ms / 1_000, _TICK_S), _NAP_S))
        waiting.append(message)
        if len(waiting) >= _CHUNK:
            writer.write(map(_item, waiting))
            waiting.clear()
    writer.write(map(_item, waiting))


def _item(message: trace.Timed) -> dict[str, Any]:
    return {"body": message.body, "due": times.moment_of(message.due_ms)}


def _at_rate(
    writer: _Writer, rate: float, delay_ms: int, count: int | None, body: str | None
) -> None:
    """Put `rate` messages a second; what a slow store delays is caught up."""
    delay = f"{delay_ms}ms"
    began_us = writer.clock.boot_us()
    sent = 0
    while count is None or sent < count:
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
