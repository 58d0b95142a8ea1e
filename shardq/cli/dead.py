"""Dead messages: those that ran out of attempts or were buried."""

from __future__ import annotations

import click

from shardq.cli import options, screen
from shardq.cli.messages import message_json
from shardq.cli.queues import sure
from shardq.model import names
from shardq.model.times import iso


@click.command(
    epilog=options.examples(
        "shardq dead mail",
        "shardq dead mail --json | jq -r '.headers[\"shardq-traceback\"]'",
        "shardq dead mail --redrive",
    )
)
@options.queue
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--redrive", is_flag=True, help="Put them all back into QUEUE, each under its id.")
@click.option("--purge", is_flag=True, help="Delete them all.")
@click.option("--yes", is_flag=True, help="Do not ask before --purge.")
@options.store
@options.as_json
def dead(
    *,
    queue: str,
    limit: int,
    url: str | None,
    redrive: bool,
    purge: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the dead messages of QUEUE and why they died; put them back, or delete them."""
    if redrive and purge:
        raise click.UsageError("give --redrive or --purge, not both.")
    if names.is_dead_queue(queue):
        raise click.UsageError(
            f"{queue!r} is a dead-letter queue itself; name the queue it serves."
        )
    with options.connect(url) as db:
        source = db.queue(queue, create=False)
        if redrive:
            count = source.redrive()
            click.echo(f"put {screen.plural(count, 'message')} back into {queue}")
            return
        if purge:
            sure(f"delete all dead messages of {queue}", yes=yes)
            source.dead.purge()
            click.echo(f"{queue}: dead messages purged")
            return
        messages = source.dead.peek(limit=limit)
        if as_json:
            for message in messages:
                died_after = int(message.headers.get("shardq-attempts", message.attempt))
                screen.print_json(message_json(message) | {"attempts": died_after})
            return
        made = screen.table("died", "id", ">attempts", "reason", "body")
        for message in messages:
            headers = message.headers
            made.add_row(
                headers.get("shardq-died", iso(message.due_ms))[:23],
                message.id,
                headers.get("shardq-attempts", "?"),
                screen.plain(headers.get("shardq-reason", ""), 60),
                screen.plain(message.body.decode(errors="replace"), 30),
            )
        screen.show(made if messages else f"{queue} has no dead messages.")
