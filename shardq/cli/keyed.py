"""Messages by their keys: move one, edit one, and how such a command ends."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click

from shardq.cli import options, screen
from shardq.cli.exits import Exit
from shardq.lifecycle.keyed import Answer
from shardq.model.times import iso
from shardq.records.keys import Keys
from shardq.records.standing import Is

if TYPE_CHECKING:
    from shardq.lifecycle.keyed import Snapshot
    from shardq.queue import Queue

_EXITS = {Answer.DONE: Exit.OK, Answer.NOT_THERE: Exit.NOT_THERE, Answer.RUNNING: Exit.RUNNING}
_DONE = {"cancel": "cancelled", "move": "moved", "edit": "edited"}
"""What has become of a message, by the command."""


@click.command(
    epilog=options.examples(
        "shardq move mail --key order-7 --delay 30m",
        "shardq move mail --key order-7 --due 2027-01-01T09:00:00+01:00",
    )
)
@options.queue
@options.key
@options.due
@options.delay
@options.store
@options.as_json
def move(
    queue: str,
    key: str | None,
    due: str | None,
    delay: str | None,
    url: str | None,
    *,
    as_json: bool,
) -> Exit:
    """Let the message of QUEUE that has a key be due at another time.

    A message that waits for its due, for a retry or for a consumer is moved: it does not run at its
    old time, whatever crashes. Ends with 21 where no such message has the key, with 22 where it
    runs now; nothing is changed then.
    """
    named = _needed(key)
    if (due is None) == (delay is None):
        raise click.UsageError("give --due or --delay, one of them.")
    with options.connect(url) as db:
        options.refuse_ticks(db, queue)
        source = db.queue(queue, create=False)
        answer = source.move(named, due=due, delay=delay)
        return tell(source, named, "move", answer, as_json=as_json)


@click.command(
    epilog=options.examples(
        'shardq edit mail --key order-7 --body "your order has been sent"',
        "shardq edit mail --key order-7 < letter.txt",
        "shardq edit mail --key order-7 --header kind=reminder --header lang=de",
    )
)
@options.queue
@options.key
@click.option(
    "--body",
    metavar="TEXT",
    help="The new body. `-` reads it from stdin, as where neither it nor --header is given; "
    "there an empty stdin is an error.",
)
@options.headers
@options.store
@options.as_json
def edit(
    queue: str,
    key: str | None,
    body: str | None,
    headers: tuple[str, ...],
    url: str | None,
    *,
    as_json: bool,
) -> Exit:
    """Change the message of QUEUE that has a key; its due and its id stay.

    A message that waits for its due, for a retry or for a consumer is edited: it does not run as it
    was before. Headers that are given take the place of all that it has; what is not given stays.
    Ends with 21 where no such message has the key, with 22 where it runs now; nothing is changed
    then.
    """
    named = _needed(key)
    given = options.headers_of(headers)
    if body == "-" or (body is None and given is None):
        content: bytes | None = options.stdin("the body").read()
        if not content and body is None:
            # As in a cron job, where a forgotten option would empty the message.
            raise click.UsageError("give --body or --header, for stdin is empty.")
    else:
        content = None if body is None else os.fsencode(body)
    with options.connect(url) as db:
        options.refuse_ticks(db, queue)
        source = db.queue(queue, create=False)
        answer = source.edit(named, body=content, headers=given)
        return tell(source, named, "edit", answer, as_json=as_json)


def _needed(key: str | None) -> str:
    if key is None:
        raise click.UsageError("give --key: the key of the message.")
    return key


def tell(source: Queue, key: str, command: str, answer: Answer, *, as_json: bool) -> Exit:
    """Print what a command by key has come to; returns what the process ends with.

    Args:
        source: The queue.
        key: The message's key.
        command: `cancel`, `move` or `edit`.
        answer: What it has come to.
        as_json: Whether it is for programs.
    """
    now = None if command == "cancel" or answer is Answer.RUNNING else source.get(key)
    due = iso(now.due) if command == "move" and answer and now is not None else None
    if as_json:
        told = {"queue": source.name, "key": key, "answer": answer.value}
        screen.print_json(told if due is None else told | {"due": due})
    elif answer:
        click.echo(_DONE[command] if due is None else f"{_DONE[command]}: due {due}")
    elif answer is Answer.NOT_THERE:
        click.echo(f"not {_DONE[command]}: {_missing(source, key, now)}")
    elif command == "cancel":
        click.echo("it runs now: its handler is asked to stop, and it is not delivered again")
    else:
        click.echo(f"not {_DONE[command]}: it runs now")
    return _EXITS[answer]


def _missing(source: Queue, key: str, now: Snapshot | None) -> str:
    """Why a command has found no message."""
    if now is not None and now.state == "dead":
        named = screen.exact(shlex.quote(now.id)).plain
        return f"it is dead; `shardq dead {source.name} {named} --redrive` puts it back"
    return f"{source.name} has no message with key {screen.exact(key).plain}{held(source, key)}"


def held(source: Queue, key: str) -> str:
    """What is said of a key that no message has and none can take yet."""
    home = source._home
    found = Keys(home.store, home.clock, home.register).seek([key])[key]
    is_held = found.state is Is.HELD
    return f"; the key is held until {iso(found.key.until_ms or 0)}" if is_held else ""
