"""Single messages: put one, show the waiting ones, cancel one."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from rich.text import Text

from shardq.cli import jobs, listing, options, screen, streams
from shardq.cli.exits import Exit
from shardq.cli.keyed import Telling, check_named
from shardq.cli.show import is_receipt, keyless, print_state
from shardq.errors import StoreCorrupt, UnknownQueue
from shardq.inspection.state import Where
from shardq.inspection.trace import shown_body
from shardq.inspection.whereabouts import run_of
from shardq.lifecycle.keyed import Answer
from shardq.lifecycle.keyedputs import CHOICES
from shardq.model.message import first_line, is_snooze_reason
from shardq.model.names import is_dead_queue
from shardq.model.times import iso
from shardq.records.membership import heartbeats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from shardq.connection import Connection
    from shardq.inspection.state import Found, State
    from shardq.model.message import Message
    from shardq.queue import Queue


@click.command(
    epilog=options.examples(
        'shardq put mail "hello"',
        'shardq put mail "later" --delay 1h30m --header kind=reminder',
        "shardq put mail --due 2027-01-01T09:00:00+01:00 --json < letter.txt",
        'shardq put mail "pay order 7" --delay 3d --key order-7 --on-conflict replace',
        """shardq put --app app:app --task app.welcome --args '["ada"]' --delay 1h""",
    )
)
@click.argument("queue", required=False)
@click.argument("body", required=False)
@options.due
@options.delay
@options.priority
@options.group
@options.headers
@click.option("--id", metavar="ID", help="The message's id; made up if not given.")
@click.option("--task", metavar="NAME", help="Put a job of this task, with --args for a body.")
@click.option(
    "--args",
    "arguments",
    metavar="JSON",
    help="The arguments of --task: an object by name; with --app also a list by position. None "
    "where it is left out.",
)
@click.option(
    "--app",
    "app_name",
    metavar="APP",
    help="The app of --task, app:app say: its arguments are checked, and what is not given here is "
    "as the task has it, QUEUE too. Where the app names a store, that has the job, whatever "
    "SHARDQ_STORE says.",
)
@click.option(
    "--key", metavar="KEY", help="A name that no other message of QUEUE has until this one ends."
)
@click.option(
    "--on-conflict",
    metavar="CHOICE",
    type=click.Choice(CHOICES),
    default=CHOICES[0],
    show_default=True,
    help="What to do where a message has the key: keep it and put none, put this in its place "
    "(replace), fail (reject), or replace it and push its due out (debounce), "
    "which follows one that runs.",
)
@click.option(
    "--expires", metavar="DURATION", help="For how long after its due it is of use, and delivered."
)
@click.option(
    "--max-wait", metavar="DURATION", help="How long a debounced message waits at the most."
)
@click.option(
    "--unique-for", metavar="DURATION", help="How long the key is held after the message's end."
)
@options.store
@options.as_json
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
    url: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Put one message into QUEUE, which is created where it does not exist.

    BODY is read from stdin where it is left out or `-`. Prints the message's id; with --json also
    its due and the receipt that cancels it. With --key, that is the message that has the key.

    With --task it is a job, as `shardq work` runs it, and has --args for a body. Without --app
    nothing is checked of these: a worker finds out.
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
        with jobs.app_of(app_name, url) as app:
            message = jobs.put_job(app, task, jobs.arguments_of(arguments), from_user)
            _tell_put(message, as_json=as_json)
            jobs.tell_store(app)
        return
    if queue is None:
        raise click.UsageError("Missing argument 'QUEUE'" + (", or --app." if task else "."))
    if task is not None:
        values = jobs.arguments_of(arguments)
        if not isinstance(values, dict):
            raise click.UsageError("--args by position need the names that the --app has; add it.")
        content = jobs.body_of(values)
        chosen["headers"] = {jobs.TASK_HEADER: task, **(given or {})}
    else:
        # The bytes of the argument itself, whatever the locale made of them.
        content = (
            options.stdin("the body").read() if body in (None, "-") else os.fsencode(body or "")
        )
    with options.connect(url, makes=True) as db:
        _tell_put(db.queue(queue).put(content, **chosen), as_json=as_json)


def _is_given(context: click.Context, name: str) -> bool:
    """True if an option was given, not left at its default."""
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _tell_put(message: Message, *, as_json: bool) -> None:
    with streams.saying(f"The message is stored, as {message.id}."):
        if as_json:
            screen.print_json(stored_json(message))
        else:
            click.echo(message.id)


def stored_json(message: Message) -> dict[str, Any]:
    """A put message for programs: everything except the body, which they have."""
    return {
        "id": message.id,
        "queue": message.queue,
        "due": iso(message.due_ms),
        "priority": message.priority,
        "group": message.group,
        "key": message.key,
        "headers": message.headers,
        "receipt": message.receipt,
    }


@click.command(
    epilog=options.examples(
        "shardq peek mail",
        "shardq peek mail --key order-7",
        "shardq peek mail -n 100 --json | jq .body",
    )
)
@options.queue
@options.whole("-n", "--limit", text="How many to show.", least=1, most=10_000, default=10)
@click.option("--id", "message_id", metavar="ID", help="Show all of the message of this id.")
@click.option("--key", metavar="KEY", help="Show all of the message of this key.")
@options.store
@options.as_json
def peek(
    *,
    queue: str,
    limit: int,
    message_id: str | None,
    key: str | None,
    url: str | None,
    as_json: bool,
) -> Exit:
    """Show the messages of QUEUE that are due first, those in flight too. It takes none.

    With --key, it shows one message whole, body and headers; with --id too, for which it searches
    QUEUE. Ends with 1 where that message is not there.
    """
    if message_id is not None and key is not None:
        raise click.UsageError("give --key or --id, not both.")
    with options.connect(url) as db:
        source = db.queue(queue, create=False)
        if key is not None:
            return _look_up_by_key(source, key, as_json=as_json)
        if message_id is not None:
            return _look_up(db, source, message_id, as_json=as_json)
        messages = source.peek(limit=limit)
        home = source._home
        beats = heartbeats(home.store, home.register.members_key) if messages else {}
        running = [run_of(message._row, beats) is not None for message in messages]
    if as_json:
        for message, is_running in zip(messages, running, strict=True):
            attempts = _attempts(message, is_running=is_running)
            screen.print_json(message_json(message) | {"attempts": attempts})
    elif messages:
        _list(messages, running)
    else:
        click.echo(f"{queue} is empty.")
    return Exit.OK


def _attempts(message: Message, *, is_running: bool) -> int:
    """Begun deliveries: a running one is recorded only when it ends or is parked."""
    return message.attempt + (is_running and message._row.claim is None)


def _list(messages: Sequence[Message], running: Sequence[bool]) -> None:
    errors = [_error_text(message) for message in messages]
    has_errors = any(errors)
    keys = key_column(messages)
    rows = [
        [
            Text(iso(message.due_ms)),
            Text(f"{_attempts(message, is_running=is_running):,}{', runs' if is_running else ''}"),
            Text(f"{len(message.body):,}"),
            screen.exact(message.id),
            *key,
            *([screen.plain(first_line(error))] if has_errors else []),
            body_text(message),
        ]
        for message, error, key, is_running in zip(messages, errors, keys, running, strict=True)
    ]
    heads = ["due", ">attempts", ">bytes", "id", *(["key"] if any(keys) else [])]
    heads += ["last error", "body"] if has_errors else ["body"]
    listing.show(heads, rows, free=1 + has_errors)


def key_column(messages: Sequence[Message]) -> list[list[Text]]:
    """The column of keys in a list: nothing if no key differs from its id."""
    if all(message.key in (None, message.id) for message in messages):
        return [[] for _ in messages]
    return [[screen.exact(message.key or "-")] for message in messages]


def _error_text(message: Message) -> str:
    """The last error, for a list that one damaged message must not end."""
    try:
        return message.last_error or ""
    except StoreCorrupt:
        return "(it is damaged)"


def _show_found(message: Found, *, as_json: bool) -> Exit:
    if as_json:
        state = {"state": message.state.where.value, "told": str(message.state)}
        screen.print_json(message_json(message) | state)
    else:
        show_message(message, state=message.state)
    return Exit.OK


def _look_up_by_key(source: Queue, key: str, *, as_json: bool) -> Exit:
    message = source.find(key=key)
    if message is not None:
        return _show_found(message, as_json=as_json)
    now = source.get(key)
    if now is not None and now.state == "dead":
        named = screen.exact(shlex.quote(now.id)).plain
        text = f"the message with key {key!r} is dead: see `shardq dead {source.name} {named}`."
    else:
        text = keyless(source, key)
    click.echo(f"shardq: {text}", err=True)
    return Exit.FAILED


def _look_up(db: Connection, source: Queue, message_id: str, *, as_json: bool) -> Exit:
    message = source.find(message_id)
    if message is not None:
        return _show_found(message, as_json=as_json)
    dead = dead_of(db, source.name)
    # The whole queue has just been searched.
    state_now = source.state_of(message_id, near=True)
    if dead is not None and (state_now is None or state_now.where is Where.DEAD):
        found = dead.find(message_id)
        state_now = state_now if found is None else found.state
    if state_now is None:
        text = f"{source.name} has no message {message_id!r}: it has ended, or the id is wrong"
    elif state_now.where is Where.DEAD:
        text = f"{message_id!r} is dead: see `shardq dead {source.name}`"
    else:
        text = f"{source.name} has no message {message_id!r}: {state_now}"
    click.echo(f"shardq: {text}.", err=True)
    return Exit.FAILED


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
    return {
        "id": message.id,
        "queue": message.queue,
        "due": iso(message.due_ms),
        "attempts": message.attempt,
        "priority": message.priority,
        "group": message.group,
        "key": message.key,
        "headers": message.headers,
        "last_error": message.last_error,
        "last_error_at": screen.when(message.last_error_at),
        "receipt": message.receipt,
    } | shown_body(message.body)


def show_message(
    message: Message, *, first: Mapping[str, str] | None = None, state: State | None = None
) -> None:
    """Print all of a message, a line for each fact, more for long texts.

    Args:
        message: The message.
        first: The first fact after its id: a name of 9 letters at most, and a header.
        state: The message's state.
    """
    first = first or {}
    click.echo(f"{'id':9} {screen.exact(message.id).plain}")
    if (call := jobs.call_text(message.headers, message.body)) is not None:
        click.echo(f"{'job':9} {screen.exact(call).plain}")
    if state is not None:
        print_state(state)
    for name, header in first.items():
        if header in message.headers:
            click.echo(f"{name:9} {_block(message.headers[header])}")
    told = {
        "queue": message.queue,
        "due": iso(message.due_ms),
        "attempts": f"{message.attempt:,}",
        "priority": str(message.priority),
        "group": message.group or "-",
        **({} if message.key is None else {"key": message.key}),
        "receipt": message.receipt,
    }
    for name, value in told.items():
        click.echo(f"{name:9} {screen.exact(value).plain}")
    error = message.last_error
    # The reason of a dead message is among its headers.
    if error is not None and error != message.headers.get("shardq-reason"):
        is_snoozed = is_snooze_reason(message._row)
        click.echo(f"{'reason' if is_snoozed else 'error':9} {_block(error)}")
        at = screen.when(message.last_error_at) or "-"
        click.echo(f"{'snoozed' if is_snoozed else 'failed':9} {at}")
    for name, value in sorted(message.headers.items()):
        if name in first.values():
            continue
        click.echo(f"header    {screen.exact(name).plain}={_block(value)}")
    click.echo(f"bytes     {len(message.body):,}")
    if message.body:
        click.echo(f"body      {_block(message.body.decode(errors='replace'))}")


def _block(text: str) -> str:
    """A text of one or more lines, indented after the first."""
    lines = [screen.exact(line).plain for line in text.splitlines()]
    return "\n          ".join(lines)


@click.command(
    epilog=options.examples(
        "shardq cancel mail --key order-7",
        "shardq cancel mail 2f6b8e1c 0b1d77aa",
        "receipt=$(shardq put mail hello --delay 1h --json | jq -r .receipt)",
        'shardq cancel mail "$receipt"',
    )
)
@options.queue
@options.ids
@options.keys
@options.store
@options.as_json
def cancel(
    queue: str, ids: tuple[str, ...], keys: tuple[str, ...], url: str | None, *, as_json: bool
) -> Exit:
    """Cancel messages of QUEUE that have not been delivered yet.

    By its key that is exact, whatever crashes, also of one that is dead. Ends with 21 where no
    message has the key, with 22 where it runs now: then its handler is asked to stop, and it is not
    delivered again.

    Without a key a message is named by its ID, which is searched, or by the RECEIPT that `put
    --json` printed. Best effort: a delivery that has begun is not stopped. Ends with 5 where there
    is nothing to cancel.

    Of several each is tried. A code other than 0 is that of the first that failed.
    """
    check_named(ids, keys)
    with options.connect(url) as db:
        source = db.queue(queue, create=False)
        told = Telling(source, "cancel", as_json=as_json, is_one=len(ids) + len(keys) == 1)
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
