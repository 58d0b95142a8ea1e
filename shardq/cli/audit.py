"""Whether the books of a queue balance, by the history that it keeps."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from shardq import audit as books
from shardq.cli import options, screen
from shardq.cli.exits import Exit
from shardq.names import dead_queue

if TYPE_CHECKING:
    from shardq.audit import Audit, Balance

_NAMED_MAX = 100


@click.command(
    epilog=options.examples(
        "shardq queues alter mail --history 7d",
        "shardq audit mail",
        "shardq audit mail --since 1h",
        "shardq audit mail --since 2027-01-01T09:00Z --json | jq 'select(.lost)'",
    )
)
@options.queue
@click.option("--since", metavar="TIME|DURATION", help="What entered from then on, or so long ago.")
@click.option("--until", metavar="TIME|DURATION", help="What entered before then.")
@click.option("--minutes", "each", is_flag=True, help="Print the balance of each minute as well.")
@options.store
@options.as_json
def audit(
    *,
    queue: str,
    since: str | None,
    until: str | None,
    each: bool,
    url: str | None,
    as_json: bool,
) -> Exit:
    """Check that each message put into QUEUE has ended or is there; ends with 2 where one has not.

    QUEUE must keep a history. Goes back as far as that is whole. Its dead letters are a queue of
    their own, QUEUE.dead. With --json, a line for each minute, each message that does not fit, and
    all of it; nothing is printed there where wrong use, not a loss, is why it ends with 2.
    """
    with options.connect(url) as db, screen.progress() as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        found = db.queue(queue, create=False).audit(since, until, on_progress=tell)
    if as_json:
        _print_json(found)
    else:
        _print(found, each=each)
    return Exit.OK if found.is_even else Exit.UNBALANCED


def _print_json(found: Audit) -> None:
    for minute, balance in found.minutes:
        screen.print_json({"minute": screen.when(minute), **_counts(balance)})
    for one in found.misfits:
        told = {"misfit": one.kind.value, "id": one.id, "entered": screen.when(one.entered)}
        screen.print_json({**told, "fate": one.fate})
    span = {"since": screen.when(found.since), "until": screen.when(found.until)}
    screen.print_json(
        {"queue": found.queue, **span, "balances": found.is_even, **_counts(found.total)}
    )


def _print(found: Audit, *, each: bool) -> None:
    if each:
        made = screen.table("minute", *(f">{name.replace('_', ' ')}" for name in books.NAMES))
        for minute, balance in found.minutes:
            made.add_row(screen.when(minute), *(f"{n:,}" for n in _counts(balance).values()))
        screen.console().print(made, highlight=False)
    for one in islice(found.misfits, _NAMED_MAX):
        ended = f", {one.fate}" if one.fate else ""
        click.echo(f"{one.kind.value}: {one.id}, entered {screen.when(one.entered)}{ended}")
    if len(found.misfits) > _NAMED_MAX:
        click.echo(f"and {len(found.misfits) - _NAMED_MAX:,} more; --json names all.")
    click.echo(f"What entered from {screen.when(found.since)} to {screen.when(found.until)}:")
    click.echo(found.line())
    if found.total.dead:
        click.echo(f"Of its dead letters says `shardq audit {dead_queue(found.queue)}`.")
    if found.total.resurrected:
        click.echo(
            "What has ended is dropped when a consumer meets it; `shardq check --all` drops it now."
        )


def _counts(balance: Balance) -> dict[str, int]:
    return {name: getattr(balance, name) for name in books.NAMES}
