"""The fates of messages, by the history that their queue keeps."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import click

from shardq.cli import options, screen, streams
from shardq.cli.exits import Exit
from shardq.inspection.whereabouts import Whereabouts
from shardq.model import ids
from shardq.model.times import span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.inspection.state import State
    from shardq.queue import Queue
    from shardq.records.ledger import FailedAttempt, Record

_INDENT = "    "


@options.command(
    "shardq history mail b69d4074-e5f0-11f1-a5b0-1fe3f0a9ae2b",
    "shardq history mail order-7 --since 1d",
    "shardq history mail --since 1h --until 30m",
    "shardq history mail --since 2027-01-01T09:00Z --json",
)
@options.queue
@click.argument("message_id", metavar="[ID]", required=False)
@options.since
@options.until
def history(*, queue: str, message_id: str | None, since: str | None, until: str | None) -> Exit:
    """Show what became of the message ID of QUEUE, or of all that entered QUEUE.

    QUEUE must keep a history. An id that shardq made up is found at once. An id of your own is
    searched for between --since and --until, or in the whole history. A key stands for the id of
    the message that has it, until that message has ended. Ends with 1 if nothing is recorded.
    """
    width = screen.console().width
    source = options.queue_of(queue)
    records = source.history(message_id, since, until)
    first = next(records, None)
    if first is None:
        of = f"{queue} has recorded nothing"
        if message_id is not None:
            # Use `repr`, because a name may contain control characters.
            of += f" of message {message_id!r}"
            if ids.from_text(message_id) is None:
                of += "; a message that had this for a key and has ended is found by its id"
        streams.note(f"{of}.")
        return Exit.FAILED
    for record in chain([first], records):
        state = None if message_id is None else _state(source, record)
        lines = (_line(record, state), *map(_failed_line, record.failed))
        wrapped = (line for one in lines for line in screen.wrapped(one, width, indent=_INDENT))
        screen.result(_told(record, state), "\n".join(wrapped))
    return Exit.OK


def _state(source: Queue, record: Record) -> State | None:
    """The state of a message that has not ended; None if it is not found nearby."""
    if record.fate is not None:
        return None
    return Whereabouts(source._home).of_record(record)


def _told(record: Record, state: State | None) -> dict[str, object]:
    """A record for programs."""
    failed = [screen.picked(one, "attempt began ended run_ms error") for one in record.failed]
    return {
        **screen.picked(record, "id entered due fate ended attempt"),
        "member": record.member or None,
        "task": record.task,
        "failed": failed,
        "state": None if state is None else state.where.value,
        "told": None if state is None else str(state),
    }


def _failed_line(one: FailedAttempt) -> str:
    """A line for a failed attempt, below that of its record."""
    clauses = [f"{_INDENT}attempt {one.attempt:,}"]
    if one.began is not None and one.run_ms is not None:
        clauses += [f"began {screen.when(one.began)},", f"ran {span(one.run_ms)},"]
    clauses.append(f"failed {screen.when(one.ended)}:")
    return f"{_unbroken(clauses)} {screen.plain(one.error)}"


def _unbroken(clauses: Iterable[str]) -> str:
    """Clauses of no-break spaces: a terminal keeps each on one line."""
    return " ".join(clause.replace(" ", "\N{NO-BREAK SPACE}") for clause in clauses)


def _line(record: Record, state: State | None) -> str:
    """A record, and its present state."""
    due = f"due {screen.when(record.due)}" if record.due else "put not recorded"
    task = "" if record.task is None else f"{screen.plain(record.task)}, "
    entered = f"{screen.exact(record.id)}: {task}entered {screen.when(record.entered)},"
    clauses = [entered, f"{due},"]
    if record.fate is not None and record.ended is None:
        clauses.append(f"{screen.plain(record.fate)}: is deleted when it comes due")
    elif record.fate is not None:
        clauses += [
            f"{screen.plain(record.fate)} {screen.when(record.ended)}",
            f"after {screen.plural(record.attempt, 'delivery')}",
            f"by {screen.plain(record.member)}",
        ]
    elif state is None:
        clauses.append("not ended")
    # Allow breaks between the words of a long sentence.
    told = "" if state is None else f" {screen.kept_together(streams.escaped(str(state)))}"
    return _unbroken(clauses) + told
