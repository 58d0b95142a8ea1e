"""Single messages: put one, look at what waits, cancel one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from shardq.cli import options, screen
from shardq.cli.exits import Exit
from shardq.inspection.trace import shown_body
from shardq.model.times import iso

if TYPE_CHECKING:
    from typing import Any

    from shardq.model.message import Message


@click.command(
    epilog=options.examples(
        'shardq put mail "hello"',
        'shardq put mail "later" --delay 1h30m --header kind=reminder',
        "shardq put mail --due 2027-01-01T09:00:00+01:00 --json < letter.txt",
    )
)
@options.queue
@click.argument("body", required=False)
@click.option(
    "--due",
    metavar="TIME",
    help="When it is due: ISO 8601 with a zone, such as 2027-01-01T09:00:00+01:00. A time in the "
    "past is now.",
)
@click.option(
    "--delay", metavar="DURATION", help="Instead of --due, how long from now: 90s, 1h30m, PT5M."
)
@options.priority
@options.group
@options.headers
@click.option("--id", "message_id", metavar="ID", help="The message's id; made up if not given.")
@options.store
@options.as_json
def put(
    *,
    queue: str,
    body: str | None,
    due: str | None,
    delay: str | None,
    priority: int,
    group: str | None,
    headers: tuple[str, ...],
    message_id: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Put one message into QUEUE, which is created where it does not exist.

    BODY is read from stdin where it is left out or `-`. Prints the message's id; with --json also
    its due and the receipt that cancels it.
    """
    given = options.headers_of(headers)
    # The argument's own bytes, whatever the locale made of them.
    content = options.stdin("the body").read() if body in (None, "-") else os.fsencode(body or "")
    with options.connect(url) as db:
        message = db.queue(queue).put(
            content,
            due=due,
            delay=delay,
            priority=priority,
            group=group,
            headers=given,
            id=message_id,
        )
        if as_json:
            screen.print_json(stored_json(message))
        else:
            click.echo(message.id)


def stored_json(message: Message) -> dict[str, Any]:
    """What has been put, for programs: all but the body, which they know."""
    return {
        "id": message.id,
        "queue": message.queue,
        "due": iso(message.due_ms),
        "priority": message.priority,
        "group": message.group,
        "headers": message.headers,
        "receipt": message.receipt,
    }


@click.command(
    epilog=options.examples("shardq peek mail", "shardq peek mail -n 100 --json | jq .body")
)
@options.queue
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=10, show_default=True)
@options.store
@options.as_json
def peek(queue: str, limit: int, url: str | None, *, as_json: bool) -> None:
    """Show the messages of QUEUE that are due next; takes nothing."""
    with options.connect(url) as db:
        messages = db.queue(queue, create=False).peek(limit=limit)
        if as_json:
            for message in messages:
                screen.print_json(message_json(message))
            return
        made = screen.table("due", "id", ">attempts", ">bytes", "body")
        for message in messages:
            made.add_row(
                iso(message.due_ms),
                message.id,
                f"{message.attempt:,}",
                f"{len(message.body):,}",
                screen.plain(message.body.decode(errors="replace"), 60),
            )
        screen.show(made if messages else f"{queue} is empty.")


def message_json(message: Message) -> dict[str, Any]:
    """A message for programs."""
    return {
        "id": message.id,
        "queue": message.queue,
        "due": iso(message.due_ms),
        "attempts": message.attempt,
        "priority": message.priority,
        "group": message.group,
        "headers": message.headers,
    } | shown_body(message.body)


@click.command(
    epilog=options.examples(
        'shardq cancel mail "$(shardq put mail hello --delay 1h --json | jq -r .receipt)"'
    )
)
@options.queue
@click.argument("receipt")
@options.store
def cancel(queue: str, receipt: str, url: str | None) -> Exit:
    """Cancel the message of QUEUE that RECEIPT was given for, if it has not been delivered yet.

    The receipt is what `put --json` printed. Best effort: a delivery that has begun goes on.
    """
    with options.connect(url) as db:
        cancelled = db.queue(queue, create=False).cancel(receipt)
    click.echo(
        "cancelled" if cancelled else "nothing to cancel: it was settled or is being delivered"
    )
    return Exit.OK if cancelled else Exit.RECEIPT_STALE
