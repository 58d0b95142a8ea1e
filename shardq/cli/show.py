"""The state of one message, and why it does not run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from shardq.cli import jobs, options, screen, streams
from shardq.cli.exits import Exit
from shardq.cli.keyed import held
from shardq.errors import StoreCorrupt
from shardq.inspection.state import State, Where
from shardq.inspection.whereabouts import Whereabouts
from shardq.model.message import key_of, priority_of, read_headers
from shardq.model.names import is_dead_queue, served_queue
from shardq.model.receipt import Signer
from shardq.model.times import iso, moment_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from shardq.inspection.finder import Finder, SearchResult
    from shardq.model.message import Row
    from shardq.queue import Queue

_RECEIPT_CHARS = 60
"""An id longer than this that begins like a receipt is likely a receipt that was cut off."""


@options.command(
    "shardq show mail b69d4074-e5f0-11f1-a5b0-1fe3f0a9ae2b",
    "shardq show mail --key order-7",
    "shardq show mail order-7 --near",
    'shardq show mail "$receipt" --json | jq -r .state',
)
@options.queue
@click.argument("message", metavar="ID|RECEIPT", required=False)
@options.key
@options.option(
    "--near",
    "Search only what is due by now or within the hour, and the dead of the last day: not the "
    "whole queue, nor the whole history.",
)
def show(*, queue: str, message: str | None, key: str | None, near: bool) -> Exit:
    """Show where a message of QUEUE is, and why it does not run.

    A key or a RECEIPT leads to the message at once. For an ID the command searches: near, then
    among the dead messages, then in the whole queue, which takes long if the queue is large. Only a
    history shows how a message has ended. Ends with 1 if the message is not found.
    """
    if (message is None) == (key is None):
        raise click.UsageError("give an ID, a RECEIPT or --key, one of them.")
    source = options.queue_of(queue)
    with screen.progress() as bar:
        told = Whereabouts(source._home, screen.teller(bar))
        wanted = told.finder.wanted(message, key)
        look = told.finder.look(wanted, near=near)
        state = told.state(wanted, look)
        call = _call_of(told.finder, look)
    if state is None:
        if key is not None:
            text = keyless(source, key)
        elif wanted.id is not None and _is_key(source, wanted.id):
            named = streams.escaped(shlex.quote(wanted.id))
            text = (
                f"{queue} has no message of id {wanted.id!r}, but one of that key: see "
                f"`shardq show {queue} --key {named}`."
            )
        else:
            text = _missing(source, wanted.id, look)
        streams.note(text)
        return Exit.FAILED
    if options.is_json():
        screen.print_json(state_json(state) | _row_json(source, look.row, call))
    else:
        screen.print_facts(_facts(source, state, look.row, call))
        if advice := _advice(state, is_job=call is not None):
            click.echo(advice)
    return Exit.OK


def state_json(state: State) -> dict[str, Any]:
    """A state for programs."""
    return {
        **screen.picked(state, "id queue"),
        "state": state.where.value,
        "told": str(state),
        **screen.picked(state, "at until since member behind"),
        "head": None if state.head is None else state_json(state.head),
        **screen.picked(state, "ahead busy threads attempts error reason limit limit_of"),
    }


def _row_json(source: Queue, row: Row | None, call: str | None) -> dict[str, Any]:
    if row is None:
        return {}
    return {
        "entered": screen.when(moment_of(row.entered_us // 1_000)),
        "due": iso(row.wanted_ms),
        "first_due": iso(row.order[0]),
        "priority": _priority(source, row),
        "group": row.group,
        "key": None if (key := key_of(row)) is None else key.name,
        "job": call,
    }


def _facts(
    source: Queue, state: State, row: Row | None, call: str | None
) -> Iterator[tuple[str, str]]:
    yield "id", state.id
    if call is not None:
        yield "job", call
    yield "state", state_text(state)
    if row is None:
        return
    attempts = f"{state.attempts:,}"
    if state.where is not Where.DEAD:
        allowed = f"{source.settings.attempts:,}"
        if call is not None:
            allowed = jobs.attempts_allowed(read_headers(row), source.settings.attempts)
        attempts += f" of {allowed}"
    first_due = f", first {iso(row.order[0])}" if row.order[0] != row.wanted_ms else ""
    priority = _priority(source, row)
    yield "queue", row.shard.queue
    yield "entered", iso(row.entered_us // 1_000)
    yield "due", f"{iso(row.wanted_ms)}{first_due}"
    yield "attempts", attempts
    yield "priority", "-" if priority is None else str(priority)
    yield "group", row.group or "-"
    if (key := key_of(row)) is not None:
        yield "key", key.name


def _call_of(finder: Finder, look: SearchResult) -> str | None:
    """A job as a call; None for any other message. One read, only for a job."""
    row = look.row
    try:
        if row is None or jobs.TASK_HEADER not in (headers := read_headers(row)):
            return None
    except StoreCorrupt:
        return None
    whole = row if look.has_body else finder.whole(row)
    return None if whole is None else jobs.call_text(headers, whole.body)


def state_text(state: State) -> str:
    """The place of a message, in lines that stand beside the name of a fact."""
    text = screen.kept_together(streams.escaped(str(state)))
    return "\n".join(screen.wrapped(text, screen.console().width - screen.FACT))


def _priority(source: Queue, row: Row) -> int | None:
    """The priority with which a message was put; None if a dead message does not record it."""
    if not is_dead_queue(row.shard.queue):
        return priority_of(row, source._home.register.layout)
    try:
        text = read_headers(row).get("shardq-priority", "")
    except StoreCorrupt:
        return None
    return int(text) if text.isdecimal() else None


def _advice(state: State, *, is_job: bool) -> str:
    """The advice for a state; empty if there is nothing to do."""
    name, named = served_queue(state.queue), streams.escaped(shlex.quote(state.id))
    of_group = "" if state.limit is None else f" --{state.limit_of} {shlex.quote(state.limit)}"
    return {
        Where.PAUSED: f"Deliver again with `shardq queues resume {name}{of_group}`.",
        Where.LIMITED: f"Change the limit with `shardq limits {name}`.",
        Where.NO_CONSUMER: jobs.starting(name, are_jobs=is_job),
        Where.PASSED: f"Move it to now with `shardq check --all {name}`.",
        Where.DEAD: f"`shardq dead {name} {named}` shows it whole; with --redrive it is put back.",
    }.get(state.where, "")


def keyless(source: Queue, key: str) -> str:
    """The sentence for a key without a message."""
    why = held(source, key) or ": it has ended, or was never put"
    return (
        f"{source.name} has no message with key {key!r}{why}. What has ended is looked up by its "
        f"id."
    )


def is_receipt(text: str) -> bool:
    """True if a given id is a receipt, or likely a receipt that was cut off."""
    return Signer.is_meant(text) or (len(text) > _RECEIPT_CHARS and text.startswith(("Ag", "AQ")))


def _is_key(source: Queue, name: str) -> bool:
    """True if the given id is the key of a message."""
    return not is_dead_queue(source.name) and source.get(name) is not None


def _missing(source: Queue, message_id: str | None, look: SearchResult) -> str:
    """The sentence for a message that was not found: the searched places, and the advice."""
    name = source.name
    what = f"message {message_id!r}" if message_id is not None else "message of this receipt"
    searched = ", ".join(look.searched)
    if look.mark is not None or look.record is not None:
        begin = f"{name} has no {what}, which has not ended by its history (searched: {searched})"
    else:
        begin = f"{name} has no {what} (searched: {searched})"
    if not look.is_whole:
        return f"{begin}; search everywhere, without --near."
    if look.mark is not None or look.record is not None:
        return (
            f"{begin}; it may have moved just now, so try again, and see with "
            f"`shardq audit {name}` whether it is lost."
        )
    if message_id is None:
        return f"{begin}; it was settled, or it has moved: look it up by its id."
    if is_receipt(message_id):
        return f"{begin}; if it is a receipt, it is damaged: pass it on unchanged."
    if source.settings.history_ms:
        return f"{begin}; check the id and the queue's name."
    return (
        f"{begin}; it has ended, or the id is wrong. From now on a history would say: "
        f"`shardq queues alter {served_queue(name)} --history 7d`."
    )
