"""Balances the books of a queue, by the history that it keeps."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import click

from shardq.cli import listing, options, screen
from shardq.cli.exits import Exit
from shardq.cli.messages import dead_of
from shardq.errors import BadTime, UnknownQueue
from shardq.inspection import audit as books
from shardq.model.names import dead_queue, is_dead_queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from shardq.inspection.audit import Audit, Balance
    from shardq.queue import Queue

_NAMED_MAX = 100


@options.command(
    "shardq queues alter mail --history 7d",
    "shardq audit mail",
    "shardq audit mail --dead",
    "shardq audit mail --since 1h",
    "shardq audit mail --since 2027-01-01T09:00Z --json | jq 'select(.lost)'",
)
@options.queue
@options.since
@options.until
@options.option("--minutes", "Print the balance of each minute as well.", name="each")
@options.option("--dead", "Audit its dead-letter queue as well.", name="with_dead")
def audit(*, queue: str, since: str | None, until: str | None, each: bool, with_dead: bool) -> Exit:
    """Check that each message put into QUEUE has ended or is still there.

    Ends with 19 if a message does not fit, and names it; with 18 if QUEUE keeps no history, without
    which no audit is possible. Goes back as far as the history is complete. If no message has
    entered, prints so and ends with 0.

    The dead letters of QUEUE are a queue of their own, QUEUE.dead. With --dead, that one has to
    balance too.

    \b
    waiting      is there: due, or due later
    in flight    is there, and being delivered
    lost         was put, has not ended, and is not there
    resurrected  has ended, and yet is there
    unrecorded   is there or has ended, but its put was not recorded
    unknown      has ended in a way that this shardq does not know

    With --json, a line for each minute, for each message that does not fit, and for the whole, of
    each queue. After several nodes of Cassandra crashed together, add consistency=all to the url:
    an end that was recorded just before the crash may be on one node only.
    """  # noqa: D301 - click's own mark
    if with_dead and is_dead_queue(queue):
        raise click.UsageError(
            f"{queue!r} is a dead-letter queue itself; name the queue it serves."
        )
    db = options.connect()
    with screen.progress() as bar:
        audits = [_audited(db.queue(queue, create=False), since, until, bar)]
        if with_dead:
            # Do not make a dead-letter queue, and accept a time before the first death.
            with suppress(UnknownQueue, BadTime):
                dead = dead_of(db, queue)
                audits += [] if dead is None else [_audited(dead, since, until, bar)]
    for found in audits:
        if options.is_json():
            _print_json(found)
        else:
            _print(found, each=each)
    if not options.is_json():
        _print_dead(audits, with_dead=with_dead)
    return Exit.OK if all(found.is_even for found in audits) else Exit.UNBALANCED


def _audited(queue: Queue, since: str | None, until: str | None, bar: Progress) -> Audit:
    return queue.audit(since, until, on_progress=screen.teller(bar, f"{queue.name}: "))


def _print_json(found: Audit) -> None:
    whose = {"queue": found.queue}
    for minute, balance in found.minutes:
        screen.print_json({**whose, "minute": screen.when(minute), **_counts(balance)})
    for one in found.misfits:
        told = {**whose, "misfit": one.kind.value, "id": one.id}
        screen.print_json({**told, "entered": screen.when(one.entered), "fate": one.fate})
    span = {"since": screen.when(found.since), "until": screen.when(found.until)}
    outcome = {"balances": found.is_even, "empty": found.is_empty}
    screen.print_json({**whose, **span, **outcome, **_counts(found.total)})


def _print(found: Audit, *, each: bool) -> None:
    if each:
        _print_minutes(found)
    for one in islice(found.misfits, _NAMED_MAX):
        # Escape the words: a damaged store may contain any text.
        ended = f", {screen.plain(one.fate)}" if one.fate else ""
        entered = screen.when(one.entered)
        click.echo(f"{one.kind.value}: {screen.exact(one.id)}, entered {entered}{ended}")
    if len(found.misfits) > _NAMED_MAX:
        click.echo(f"and {len(found.misfits) - _NAMED_MAX:,} more; --json names all.")
    click.echo(f"What entered from {screen.when(found.since)} to {screen.when(found.until)}:")
    click.echo(found.line())
    if found.total.unknown:
        click.echo(
            "An unknown end is what a newer shardq has recorded, which an upgrade here will "
            "know; or the store is damaged: see `shardq history`."
        )
    if found.total.lost:
        click.echo(
            "What is lost was removed, by something else than shardq: `shardq history` says when "
            "it entered, and was due."
        )
    if found.total.unrecorded:
        click.echo(
            "A put is not recorded by who has not heard of the history yet, for 5 s, or died just "
            "then; of many, the history itself may have been lost."
        )
    if found.total.resurrected:
        click.echo(
            "What has ended is dropped when a consumer meets it; `shardq check --all` drops it now."
        )


def _print_minutes(found: Audit) -> None:
    """A line for each minute; of eleven counts only those that are not always 0, to fit."""
    names = [name for name in books.NAMES if name == "put" or getattr(found.total, name)]
    rows = [
        {
            "minute": f"{minute:%Y-%m-%dT%H:%MZ}",
            **{f">{name.replace('_', ' ')}": f"{getattr(balance, name):,}" for name in names},
        }
        for minute, balance in found.minutes
    ]
    if rows:
        listing.show(rows, free=0)


def _print_dead(audits: Sequence[Audit], *, with_dead: bool) -> None:
    first = audits[0]
    if with_dead and len(audits) == 1:
        click.echo(f"{dead_queue(first.queue)}: nothing had died by then.")
    elif not with_dead and first.total.dead:
        click.echo(f"Its dead letters are audited as well by `shardq audit {first.queue} --dead`.")


def _counts(balance: Balance) -> dict[str, int]:
    return {name: getattr(balance, name) for name in books.NAMES}
