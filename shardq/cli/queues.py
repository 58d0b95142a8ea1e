"""Queues: list, create, alter, pause, resume, purge, drop."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from shardq.cli import options, screen
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Callable


_HISTORY = (
    "How long to keep what became of each message, for `audit` and `history`: 7d, or off, the "
    "default, for no such record."
)


def _settings(of_creation: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options for a queue's settings; those fixed at creation only where it is made."""
    fixed = [
        click.option("--minute", metavar="DURATION", help="A shard's length; 60s unless a test."),
        click.option("--bands", type=int, help="Priorities, 1 to 16."),
        click.option("--group-lanes", type=int, help="Lanes over which groups are hashed."),
    ]
    free = [
        click.option("--lanes", type=int, help="Lanes that producers fill, 1 to 256."),
        click.option("--offset", metavar="DURATION", help="How long a shard stays open."),
        click.option("--attempts", type=int, help="Deliveries before the dead-letter queue."),
        click.option("--backoff", metavar="DURATION", help="Delay of the first retry."),
        click.option("--backoff-max", metavar="DURATION", help="Longest delay of a retry."),
        click.option("--hold", metavar="DURATION", help="How long a delivery may run unparked."),
        click.option("--visibility", metavar="DURATION", help="How far ahead a claim is placed."),
        click.option("--history", metavar="DURATION|off", help=_HISTORY),
    ]

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(fixed + free if of_creation else free):
            command = option(command)
        return command

    return add


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


@click.group(
    invoke_without_command=True,
    epilog=options.examples(
        "shardq queues",
        "shardq queues create mail --lanes 8 --bands 3",
        "shardq queues alter mail --lanes 3 --attempts 10",
        "shardq queues purge mail --yes",
    ),
)
@options.store
@options.as_json
@click.pass_context
def queues(context: click.Context, url: str | None, *, as_json: bool) -> None:
    """List queues, or create, alter, pause, resume, purge and drop one."""
    if context.invoked_subcommand is not None:
        return
    with options.connect(url) as db:
        rows = []
        for name in db.queues():
            queue = db.queue(name, create=False)
            rows.append((name, queue.depth(), queue.settings))
        if as_json:
            for name, depth, settings in rows:
                screen.print_json(
                    {
                        "queue": name,
                        "ready": depth.ready,
                        "waiting": depth.waiting,
                        "in_flight": depth.in_flight,
                        "settings": dataclasses.asdict(settings),
                    }
                )
            return
        made = screen.table(
            "queue", ">ready", ">waiting", ">in flight", ">lanes", ">bands", "state"
        )
        for name, depth, settings in rows:
            made.add_row(
                name,
                f"{depth.ready:,}",
                f"{depth.waiting:,}",
                f"{depth.in_flight:,}",
                f"{settings.lanes_written:,}",
                f"{settings.bands:,}",
                "paused" if settings.paused else "",
            )
        screen.show(made if rows else "no queues yet.")


@queues.command(
    epilog=options.examples("shardq queues create mail --lanes 8 --bands 3 --attempts 10")
)
@options.queue
@_settings(of_creation=True)
@options.store
def create(queue: str, url: str | None, **settings: Any) -> None:
    """Create QUEUE; the same settings again change nothing."""
    with options.connect(url) as db:
        made = db.queue(queue, **_given(settings))
        click.echo(f"{made.name}: {screen.plural(made.settings.lanes_written, 'lane')}")


@queues.command(
    epilog=options.examples(
        "shardq queues alter mail --lanes 8",
        "shardq queues alter mail --attempts 10 --backoff 5s",
        "shardq queues alter mail --history 7d",
    )
)
@options.queue
@_settings(of_creation=False)
@options.store
def alter(queue: str, url: str | None, **settings: Any) -> None:
    """Change settings of QUEUE while it runs; members follow within 5 s."""
    given = _given(settings)
    if not given:
        raise click.UsageError("give at least one setting to change.")
    with options.connect(url) as db:
        altered = db.queue(queue, create=False)
        altered.alter(**given)
        click.echo(f"{queue}: changed {', '.join(sorted(given))}")
        if "history" in given and altered.settings.history_ms:
            whole = screen.when(moment_of(altered.settings.history_from_ms))
            click.echo(f"{queue}: its history is whole for what enters from {whole} on")


@queues.command()
@options.queue
@options.store
def pause(queue: str, url: str | None) -> None:
    """Hold back all deliveries of QUEUE; messages can still be put."""
    with options.connect(url) as db:
        db.queue(queue, create=False).pause()
        click.echo(f"{queue}: paused")


@queues.command()
@options.queue
@options.store
def resume(queue: str, url: str | None) -> None:
    """Deliver QUEUE again, what came due in the meantime first."""
    with options.connect(url) as db:
        db.queue(queue, create=False).resume()
        click.echo(f"{queue}: resumed")


_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@queues.command()
@options.queue
@_yes
@options.store
def purge(queue: str, url: str | None, *, yes: bool) -> None:
    """Delete all messages that have entered QUEUE until now, far timers too."""
    with options.connect(url) as db:
        target = db.queue(queue, create=False)
        sure(f"delete all messages of {queue}", yes=yes)
        target.purge()
        click.echo(f"{queue}: purged; within 5 s no older message is delivered any more")


@queues.command()
@options.queue
@_yes
@options.store
def drop(queue: str, url: str | None, *, yes: bool) -> None:
    """Delete QUEUE and all its messages."""
    with options.connect(url) as db:
        target = db.queue(queue, create=False)
        sure(f"drop {queue} with all its messages", yes=yes)
        target.drop()
        click.echo(f"{queue}: dropped")


def sure(what: str, *, yes: bool) -> None:
    """Ask whether to go on; where nobody can answer, `--yes` must have been given.

    Raises:
        click.UsageError: If it was not.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"to {what} without being asked, add --yes.")
    click.confirm(f"Really {what}?", abort=True, err=True)
