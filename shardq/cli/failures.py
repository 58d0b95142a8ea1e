"""The last failures, in all queues or some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.cli import listing, options, screen, streams
from shardq.cli.messages import dead_of
from shardq.errors import ShardqError
from shardq.inspection import failed
from shardq.inspection.failed import Next
from shardq.model.message import first_line
from shardq.model.names import is_dead_queue
from shardq.model.times import iso, iso_or_none, moment_or_ago_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.cli.listing import Row
    from shardq.connection import Connection
    from shardq.inspection.failed import LastFailure
    from shardq.queue import Queue

_SHOWN = 20
_SHOWN_MAX = 10_000
_NEXT = {Next.DUE: "is due", Next.RUNNING: "runs again", Next.DEAD: "dead"}


@options.command(
    "shardq failures",
    "shardq failures --since 1h --task shop.charge",
    "shardq failures mail -n 100 --json | jq -r .error | sort | uniq -c",
)
@options.queues
@options.option("-n, --limit N", "At most N of them.", least=1, most=_SHOWN_MAX, default=_SHOWN)
@options.option(
    "--since TIME|DURATION", "Only what failed from this time on, or at most so long ago."
)
@options.task
def failures(*, queues: tuple[str, ...], limit: int, since: str | None, task: str | None) -> None:
    """Show what failed last in QUEUES, or in all queues, the last first.

    \b
    failed   when the attempt ended
    attempt  its number; of a message with several failures the last one
    next     again in: when it is delivered again; is due: as soon as a
             consumer is free; runs again; dead: when somebody puts it back

    A message is shown until a later attempt succeeds, or until it is dead and put back or deleted.
    A message whose next attempt is more than a day away is left out. If a queue has many messages,
    the 20,000 due first are read.
    """  # noqa: D301 - click's own mark
    db = options.connect()
    now_ms = db._home.clock.now_ms()
    since_ms = 0 if since is None else moment_or_ago_ms(since, now_ms, name="--since")

    def is_wanted(one: LastFailure) -> bool:
        return (
            one.at_ms >= since_ms
            and (task is None or one.task == task)
            and (not queues or one.queue in queues)
        )

    opened, dead = _opened(db, queues)

    def look(queue: Queue) -> tuple[list[LastFailure], str]:
        """The last failures of a queue, and a sentence on the part that was not read."""
        home, died = queue._home, []
        if queue.name in dead:
            died = failed.of_dead(home, is_wanted, since_ms=since_ms, limit=limit)
        if is_dead_queue(queue.name):
            return died, ""
        waiting, is_whole = failed.of_queue(home, is_wanted, limit=limit)
        more = f"{queue.name}: only the {failed.ROWS_MAX:,} messages due first were read."
        return [*died, *waiting], "" if is_whole else more

    def look_or_fail(queue: Queue) -> tuple[list[LastFailure], str]:
        try:
            return look(queue)
        except ShardqError as error:
            return [], str(error)

    every: list[LastFailure] = []
    with screen.progress() as bar:
        tell = screen.teller(bar)
        looked = db._home.side_by_side(look_or_fail, opened)
        for number, (found, missing) in enumerate(looked, 1):
            tell("queues", number, len(opened))
            every += found
            if missing:
                streams.note(missing)
    last = sorted(every, key=lambda one: -one.at_ms)[:limit]
    listing.show_all(
        last,
        _json,
        lambda one: _row(one, now_ms),
        free=1,
        empty="Nothing that is there has failed.",
    )


def _opened(db: Connection, names: Sequence[str]) -> tuple[list[Queue], set[str]]:
    """The queues to read, and the names of those with dead messages of others."""
    opened = options.queues_of(names)
    if names:
        kept = [one for one in (dead_of(db, name) for name in names) if one is not None]
        opened = list({one.name: one for one in (*opened, *kept)}.values())
        return opened, {one.name for one in kept}
    dead = {one._home.register.dead_name for one in opened}
    return opened, {one.name for one in opened if one.name in dead or is_dead_queue(one.name)}


def _json(one: LastFailure) -> dict[str, Any]:
    return {
        "at": iso(one.at_ms),
        **screen.picked(one, "queue task id attempt error"),
        "next": one.next.value,
        "again": iso_or_none(one.again_ms),
    }


def _row(one: LastFailure, now_ms: int) -> Row:
    return {
        "failed": f"{iso(one.at_ms)[:19]}Z",
        "queue": one.queue,
        "task": one.task or "-",
        "id": one.id,
        ">attempt": f"{one.attempt:,}",
        "next": _next(one, now_ms),
        "error": screen.plain(first_line(one.error)),
    }


def _next(one: LastFailure, now_ms: int) -> str:
    if one.again_ms is None:
        return _NEXT[one.next]
    return f"again in {screen.span(max(one.again_ms - now_ms, 0))}"
