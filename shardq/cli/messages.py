"""Commands for single messages: put one, show the waiting messages, cancel one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource
from rich.text import Text

from shardq.cli import jobs, listing, options, screen, streams
from shardq.cli.exits import Exit
from shardq.cli.keyed import Telling, check_named
from shardq.cli.show import is_receipt, keyless, state_text
from shardq.cli.trace import shown_body
from shardq.errors import StoreCorrupt, UnknownQueue
from shardq.inspection.state import Where
from shardq.inspection.whereabouts import run_of
from shardq.lifecycle.keyed import Answer
from shardq.lifecycle.keyedputs import CHOICES
from shardq.model.message import first_line, is_snooze_reason
from shardq.model.names import is_dead_queue
from shardq.model.times import iso
from shardq.records.membership import heartbeats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from shardq.cli.listing import Row
    from shardq.connection import Connection
    from shardq.inspection.state import State
    from shardq.model.message import Message
    from shardq.queue import Queue


@options.command(
    'shardq put mail "hello"',
    'shardq put mail "later" --delay 1h30m --header kind=reminder',
    "shardq put mail --due 2027-01-01T09:00:00+01:00 --json < letter.txt",
    'shardq put mail "pay order 7" --delay 3d --key order-7 --on-conflict replace',
    """shardq put --app app:app --task app.welcome --args '["ada"]' --delay 1h""",
)
@click.argument("queue", required=False)
@click.argument("body", required=False)
@options.due
@options.delay
@options.spread
@options.priority
@options.group
@options.headers
@options.option("--id ID", "The message's id; made up if not given.")
@jobs.task
@jobs.arguments
@jobs.app
@options.option("--key KEY", "A name that no other message of QUEUE has until this one ends.")
@options.option(
    "--on-conflict CHOICE",
    "What to do where a message has the key: keep it and put none, put this in its place "
    "(replace), fail (reject), or replace it and push its due out (debounce), which follows "
    "one that runs.",
    type=click.Choice(CHOICES),
    default=CHOICES[0],
)
@options.option("--expires DURATION", "For how long after its due it is of use, and delivered.")
@options.option("--max-wait DURATION", "How long a debounced message waits at the most.")
@options.option("--unique-for DURATION", "How long the key is held after the message's end.")
@click.pass_context
def put(
    context: click.Context,
    /,
    *,
    queue: str | None,
    body: str | None,
    headers: tuple[str, ...],
    task: str | None,
    arguments: str | None,
    app_name: str | None,
    **chosen: Any,
) -> None:
    """Put one message into QUEUE, which is created where it does not exist.

    Without BODY, or with `-`, the body is read from stdin. Prints the message's id; with --json
    also its due and the receipt that cancels it. With --key, the id is that of the message that
    has the key, perhaps an earlier one.

    With --task the message is a job, which `shardq work` runs, and --args takes the place of the
    body. Without --app neither task nor arguments are checked: the worker finds mistakes.
    """
    chosen["headers"] = given = options.headers_of(headers)
    if task is None:
        if arguments is not None or app_name is not None:
            raise click.UsageError("--args and --app belong to --task; name the task as well.")
    elif body is not None:
        raise click.UsageError("a job of --task has --args for a body; leave BODY out.")
    if app_name is not None and task is not None:
        from_user = {name: value for name, value in chosen.items() if _is_given(context, name)}
        if queue is not None:
            from_user["queue"] = queue
        with jobs.opened(app_name) as app:
            tell_put(jobs.put_job(app, task, jobs.arguments_of(arguments), from_user))
        return
    if queue is None:
        raise click.UsageError("Missing argument 'QUEUE'" + (", or --app." if task else "."))
    if task is not None:
        content = jobs.content_of(arguments)
        chosen["headers"] = {jobs.TASK_HEADER: task, **(given or {})}
    else:
        content = options.content(body)
    tell_put(options.connect(makes=True).queue(queue).put(content, **chosen))


def _is_given(context: click.Context, name: str) -> bool:
    """True if an option was given, not left at its default."""
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def tell_put(message: Message) -> None:
    """Print a put message: its id; with `--json` all except the body, which the caller has."""
    with streams.saying(f"The message is stored, as {message.id}."):
        facts = screen.picked(message, "id queue due priority group key headers receipt")
        screen.result(facts, message.id)


@options.command(
    "shardq peek mail",
    "shardq peek mail --key order-7",
    "shardq peek mail -n 100 --json | jq .body",
)
@options.queue
@options.option("-n, --limit N", "How many to show.", least=1, most=10_000, default=10)
@options.option("--id ID", "Show all of the message of this id.", name="message_id")
@options.option("--key KEY", "Show all of the message of this key.")
def peek(*, queue: str, limit: int, message_id: str | None, key: str | None) -> Exit:
    """Show the messages of QUEUE that are due first, those in flight too. It takes none.

    With --key or --id, shows one message whole, with body and headers; --id searches QUEUE. Ends
    with 1 if the message does not exist.
    """
    if message_id is not None and key is not None:
        raise click.UsageError("give --key or --id, not both.")
    db = options.connect()
    source = db.queue(queue, create=False)
    if key is not None or message_id is not None:
        found = source.find(message_id, key=key)
        if found is None:
            missing = _missing_key(source, key) if key else _missing(db, source, message_id or "")
            streams.note(missing)
            return Exit.FAILED
        if options.is_json():
            state = {"state": found.state.where.value, "told": str(found.state)}
            screen.print_json(message_json(found) | state)
        else:
            show_message(found, state=found.state)
        return Exit.OK
    messages = source.peek(limit=limit)
    home = source._home
    beats = heartbeats(home.store, home.register.members_key) if messages else {}
    waiting = [_Waiting(one, run_of(one._row, beats) is not None) for one in messages]
    key_of = key_column(messages)
    has_errors = any(one.error for one in waiting)

    def to_row(one: _Waiting) -> Row:
        message = one.message
        return {
            "due": iso(message.due_ms),
            ">attempts": f"{one.attempts:,}{', runs' if one.is_running else ''}",
            ">bytes": f"{len(message.body):,}",
            "id": message.id,
            **key_of(message),
            **({"last error": screen.plain(first_line(one.error))} if has_errors else {}),
            "body": body_text(message),
        }

    listing.show_all(
        waiting,
        lambda one: message_json(one.message) | {"attempts": one.attempts},
        to_row,
        free=1 + has_errors,
        empty=f"{queue} is empty.",
    )
    return Exit.OK


class _Waiting(NamedTuple):
    """A message, and True if it runs."""

    message: Message
    is_running: bool

    @property
    def attempts(self) -> int:
        """Begun deliveries; a running one counts only once it has ended or is parked."""
        return self.message.attempt + (self.is_running and self.message._row.claim is None)

    @property
    def error(self) -> str:
        """The last error. Does not raise for a damaged message, which must not end a list."""
        try:
            return self.message.last_error or ""
        except StoreCorrupt:
            return "(it is damaged)"


def key_column(messages: Sequence[Message]) -> Callable[[Message], Row]:
    """The column of keys in a list: nothing if no key differs from its id."""
    if all(message.key in (None, message.id) for message in messages):
        return lambda _: {}
    return lambda message: {"key": message.key or "-"}


def _missing_key(source: Queue, key: str) -> str:
    """The sentence for a key that no deliverable message has."""
    now = source.get(key)
    if now is None or now.state != "dead":
        return keyless(source, key)
    named = streams.escaped(shlex.quote(now.id))
    return f"the message with key {key!r} is dead: see `shardq dead {source.name} {named}`."


def _missing(db: Connection, source: Queue, message_id: str) -> str:
    """The sentence for an id that was not found; the whole queue has just been searched."""
    dead = dead_of(db, source.name)
    state_now = source.state_of(message_id, near=True)
    if dead is not None and (state_now is None or state_now.where is Where.DEAD):
        found = dead.find(message_id)
        state_now = state_now if found is None else found.state
    if state_now is not None and state_now.where is Where.DEAD:
        return f"{message_id!r} is dead: see `shardq dead {source.name}`."
    why = "it has ended, or the id is wrong" if state_now is None else str(state_now)
    return f"{source.name} has no message {message_id!r}: {why}."


def dead_of(db: Connection, name: str) -> Queue | None:
    """The queue that keeps the dead messages of another; None if nothing has died yet.

    Also None for a dead-letter queue: dead messages do not die again.
    """
    if is_dead_queue(name):
        return None
    dead = db.queue(name, create=False)._home.register.dead_name
    try:
        return None if dead is None else db.queue(dead, create=False)
    except UnknownQueue:
        return None


def body_text(message: Message) -> Text:
    """The beginning of a body, in one line; a job is shown as a call."""
    call = _call_of(message)
    return screen.plain(call or message.body[:1_000].decode(errors="replace"))


def _call_of(message: Message) -> str | None:
    try:
        return jobs.call_text(message.headers, message.body)
    except StoreCorrupt:
        return None


def message_json(message: Message) -> dict[str, Any]:
    """A message for programs."""
    names = "id queue due attempt priority group key headers last_error last_error_at receipt"
    facts = screen.picked(message, names)
    facts["attempts"] = facts.pop("attempt")
    return facts | shown_body(message.body)


def show_message(
    message: Message, *, first: Mapping[str, str] | None = None, state: State | None = None
) -> None:
    """Print all of a message, a line for each fact, more for long texts.

    Args:
        message: The message.
        first: The first facts after its id: a name, and a header.
        state: The message's state.
    """
    first = first or {}
    headers, error = dict(message.headers), message.last_error
    facts = [("id", message.id)]
    if (call := jobs.call_text(headers, message.body)) is not None:
        facts.append(("job", call))
    if state is not None:
        facts.append(("state", state_text(state)))
    facts += [(name, headers[header]) for name, header in first.items() if header in headers]
    facts += [
        ("queue", message.queue),
        ("due", iso(message.due_ms)),
        ("attempts", f"{message.attempt:,}"),
        ("priority", str(message.priority)),
        ("group", message.group or "-"),
        *([] if message.key is None else [("key", message.key)]),
        ("receipt", message.receipt),
    ]
    # Leave out the reason of a dead message, which is among its headers.
    if error is not None and error != headers.get("shardq-reason"):
        names = ("reason", "snoozed") if is_snooze_reason(message._row) else ("error", "failed")
        facts += zip(names, (error, screen.when(message.last_error_at) or "-"), strict=True)
    facts += [
        ("header", f"{name}={value}")
        for name, value in sorted(headers.items())
        if name not in first.values()
    ]
    facts.append(("bytes", f"{len(message.body):,}"))
    if message.body:
        facts.append(("body", message.body.decode(errors="replace")))
    screen.print_facts(facts)


@options.command(
    "shardq cancel mail --key order-7",
    "shardq cancel mail 2f6b8e1c 0b1d77aa",
    "receipt=$(shardq put mail hello --delay 1h --json | jq -r .receipt)",
    'shardq cancel mail "$receipt"',
)
@options.queue
@options.ids
@options.keys
def cancel(queue: str, ids: tuple[str, ...], keys: tuple[str, ...]) -> Exit:
    """Cancel messages of QUEUE that have not been delivered yet.

    With --key this is exact, whatever crashes, and works for a dead message too. Ends with 21 if no
    message has the key; with 22 if the message runs now: then its handler is asked to stop, and the
    message is not delivered again.

    Without a key, name a message by its ID, which takes a search, or by the RECEIPT that `put
    --json` printed. This is best effort: a delivery that has begun is not stopped. Ends with 5 if
    there is nothing to cancel.

    Each of several messages is tried. A code other than 0 is that of the first failure.
    """
    check_named(ids, keys)
    source = options.queue_of(queue)
    told = Telling(source, "cancel", is_one=len(ids) + len(keys) == 1)
    for key in keys:
        told.of_key(key, source.cancel(key=key))
    for name in ids:
        with told.damaged(name):
            told.of_id(name, _cancel(source, name))
    return told.ended


def _cancel(source: Queue, name: str) -> Answer:
    if is_receipt(name):
        return Answer.DONE if source.cancel(name) else Answer.NOT_THERE
    return source.cancel(ids=[name])[name]
