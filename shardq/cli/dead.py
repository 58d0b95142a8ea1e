"""Dead messages, which ran out of attempts or were buried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import click

from shardq.cli import listing, options, screen, streams
from shardq.cli.exits import Exit
from shardq.cli.messages import body_text, dead_of, key_column, message_json, show_message
from shardq.cli.queues import sure
from shardq.inspection import dead as among_dead
from shardq.lifecycle.fate import OUT_OF_ATTEMPTS
from shardq.model import names
from shardq.model.message import Message, died_in, first_line, read_headers
from shardq.model.settings import OFF
from shardq.model.times import iso

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardq.connection import Connection
    from shardq.model.message import Row
    from shardq.queue import Queue

_FIRST = {"reason": "shardq-reason", "died": "shardq-died"}
_SHOWN = 20
_SHOWN_MAX = 10_000


@dataclass(slots=True)
class _Choice:
    """The dead messages that a command applies to.

    Attributes:
        source: Only messages that died in this queue; empty: all.
        ids: Only messages with these ids; empty: all.
        reason: Only messages whose reason contains this text; empty: all.
        missing: Ids that were not found yet.
    """

    source: str
    ids: Sequence[str]
    reason: str
    missing: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.ids)

    def __call__(self, message: Message) -> bool:
        if self.ids and message.id not in self.ids:
            return False
        if self.source and died_in(message._row) != self.source:
            return False
        self.missing.discard(message.id)
        return self.reason.lower() in _reason(message).lower()

    def found(self, dead: Queue) -> Iterator[Message]:
        """The chosen messages; given ids are searched one by one."""
        if self.ids:
            looked_up = (dead.find(message_id) for message_id in dict.fromkeys(self.ids))
            yield from (one for one in looked_up if one is not None and self(one))
        else:
            rows = among_dead.every(dead._home)
            yield from filter(self, (_message(dead, row) for row in rows))

    def last(self, dead: Queue, limit: int) -> list[Message]:
        """The chosen messages up to a limit, the last death first."""
        if self.ids:
            return list(islice(self.found(dead), limit))
        rows = among_dead.last(dead._home, limit, lambda row: self(_message(dead, row)))
        return [_message(dead, row) for row in rows]


@options.command(
    "shardq dead",
    "shardq dead mail",
    "shardq dead mail order-7",
    "shardq dead mail --json | jq -r '.headers[\"shardq-traceback\"]'",
    "shardq dead mail --redrive",
    "shardq dead mail --redrive order-7 order-8",
    "shardq dead mail --redrive --reason timeout",
    "shardq dead mail --delete order-7",
)
@click.argument("queue", required=False)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@options.option("--reason TEXT", "Only those whose reason contains this.", default="")
@options.option(
    "-n, --limit N",
    f"At most N of them. Where it is not given, the {_SHOWN} that died last are shown, and "
    "all are put back or deleted.",
    least=1,
    most=_SHOWN_MAX,
)
@options.option("--redrive", "Put them back into QUEUE, each under its id.")
@options.option("--delete", "Delete those named by ID or --reason.")
@options.option("--purge", "Delete all dead messages of QUEUE.")
@options.option("--yes", "Do not ask before --purge, or --delete by --reason.")
def dead(
    *,
    queue: str | None,
    ids: tuple[str, ...],
    reason: str,
    limit: int | None,
    redrive: bool,
    delete: bool,
    purge: bool,
    yes: bool,
) -> Exit:
    """Show the dead messages of QUEUE and why they died. Put them back, or delete them.

    Without QUEUE, counts the dead messages of each queue by reason. With one ID, shows the whole
    message. Ends with 1 if the message of an ID does not exist.
    """
    if queue is None:
        if redrive or delete or purge or reason or limit:
            raise click.UsageError("Missing argument 'QUEUE'.")
        _count(options.connect())
        return Exit.OK
    _check_usage(
        queue,
        asked=redrive + delete + purge,
        is_vague=delete and not (ids or reason),
        is_narrow=purge and bool(ids or reason or limit),
    )
    db = options.connect()
    source = db.queue(queue, create=False)
    register = source._home.register
    is_own = register.has_own_dead
    choice = _Choice("" if is_own else queue, ids, reason)
    if purge and not is_own:
        raise click.UsageError(
            f"dead messages of {queue!r} are not in a queue of its own: "
            f"dead is {register.dead_name or OFF!r}; `shardq queues purge` empties a queue."
        )
    # Do not make a dead-letter queue just to look into it.
    kept = dead_of(db, queue)
    if purge:
        sure(f"delete all dead messages of {queue}", yes=yes)
        if kept is not None:
            kept.purge()
        click.echo(f"{queue}: dead messages purged")
    elif redrive:
        count = 0 if kept is None else source.redrive(limit, where=choice)
        click.echo(f"put {screen.plural(count, 'message')} back into {queue}")
    elif delete:
        if not ids:
            sure(f"delete the dead messages of {queue} with the reason {reason!r}", yes=yes)
        count = 0 if kept is None else _delete(kept, islice(choice.found(kept), limit))
        click.echo(f"deleted {screen.plural(count, 'dead message')} of {queue}")
    else:
        # Read one message more than is shown, to find out if there are more.
        most = limit or _SHOWN
        found = [] if kept is None else choice.last(kept, most + 1)
        if not found and not (ids or options.is_json()):
            click.echo(f"{queue} has no {'such ' if reason else ''}dead messages.")
        _show(found[:most], is_one=len(ids) == 1)
        if found and kept is not None and len(ids) != 1:
            is_over = len(found) > most
            is_all = is_own and not (ids or reason)
            left = kept.depth().total - most if is_over and is_all else 0
            _tell_more(queue, left, is_over=is_over)
    for message_id in sorted(choice.missing):
        streams.note(f"{queue} has no dead message {message_id!r}.")
    return Exit.FAILED if choice.missing else Exit.OK


def _count(db: Connection) -> None:
    """Print the number of dead messages by queue and reason."""
    rows = []
    for name in filter(names.is_dead_queue, db.queues()):
        counts: Counter[str] = Counter()
        last: dict[str, int] = {}
        for row in among_dead.every(db.queue(name, create=False)._home, bodies=False):
            reason = read_headers(row).get(_FIRST["reason"], "")
            counts[reason] += 1
            last[reason] = max(last.get(reason, 0), row.due_ms)
        served = names.served_queue(name)
        rows += [
            (served, count, iso(last[reason]), reason) for reason, count in counts.most_common()
        ]
    listing.show_all(
        rows,
        lambda row: dict(zip(("queue", "dead", "last_died", "reason"), row, strict=True)),
        lambda row: {
            "queue": row[0],
            ">dead": f"{row[1]:,}",
            "last died": row[2],
            "reason": screen.plain(first_line(row[3])),
        },
        free=1,
        empty="No queue has dead messages.",
    )


def _check_usage(queue: str, *, asked: int, is_vague: bool, is_narrow: bool) -> None:
    if asked > 1:
        raise click.UsageError("give one of --redrive, --delete and --purge, not both.")
    if is_vague:
        raise click.UsageError("--delete needs an ID or --reason; --purge deletes all.")
    if is_narrow:
        raise click.UsageError("--purge deletes all; --delete takes an ID, --reason or --limit.")
    if names.is_dead_queue(queue):
        raise click.UsageError(
            f"{queue!r} is a dead-letter queue itself; name the queue it serves."
        )


def _message(dead: Queue, row: Row) -> Message:
    return Message(row, 0, dead._home.register.signer)


def _delete(kept: Queue, chosen: Iterable[Message]) -> int:
    return sum(kept.cancel(one) for one in chosen)


def _show(shown: Sequence[Message], *, is_one: bool) -> None:
    if options.is_json():
        for message in shown:
            screen.print_json(message_json(message))
    elif is_one:
        for message in shown:
            show_message(message, first=_FIRST)
    elif shown:
        _list(shown)


def _tell_more(queue: str, left: int, *, is_over: bool) -> None:
    """Print that more dead messages exist, the number if it is known, and the commands for them."""
    if is_over:
        told = f"{left:,} more not shown" if left > 0 else "There are more"
        click.echo(f"{told}; -n N shows N.", err=True)
    if options.is_json():
        return
    click.echo(f"`shardq dead {queue} ID` shows one whole, `--redrive` puts back.", err=True)


def _list(messages: Sequence[Message]) -> None:
    key_of = key_column(messages)
    rows = [
        {
            "died": message.headers.get("shardq-died", iso(message.due_ms))[:19] + "Z",
            ">attempts": f"{message.attempt:,}",
            "id": message.id,
            **key_of(message),
            # Leave out the number of attempts, which has a column of its own.
            "reason": screen.plain(
                first_line(_reason(message).removeprefix(f"{OUT_OF_ATTEMPTS}: "))
            ),
            "body": body_text(message),
        }
        for message in messages
    ]
    listing.show(rows, free=2)


def _reason(message: Message) -> str:
    return message.headers.get("shardq-reason", "")
