"""The present runs, in all queues or some."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click
from rich.text import Text

from shardq.cli import listing, options, screen
from shardq.errors import ShardqError
from shardq.model.times import iso
from shardq.observer import runs_of
from shardq.records.membership import heartbeats

if TYPE_CHECKING:
    from shardq.connection import Connection
    from shardq.observer import RunView
    from shardq.queue import Queue


class _QueueRuns(NamedTuple):
    """The runs of a queue.

    Attributes:
        runs: (queue, worker, run) of each reported run.
        unnamed: How many more run.
    """

    runs: list[tuple[str, str, RunView]]
    unnamed: int


@click.command(
    epilog=options.examples(
        "shardq running",
        "shardq running mail --task shop.charge",
        "shardq running --json | jq -r .task | sort | uniq -c",
    )
)
@click.argument("queues", nargs=-1)
@click.option("--task", metavar="NAME", help="Only the jobs of this task.")
@options.store
@options.as_json
def running(*, queues: tuple[str, ...], task: str | None, url: str | None, as_json: bool) -> None:
    """Show what runs now of QUEUES, or of all queues, the longest run first.

    \b
    task    the task that it is a job of; - for a message that is none
    worker  the consumer that runs it: host, process, a part of its own
    since   when its handler was called
    for     how long ago that was

    A consumer says every 3 s what it runs, and names the 32 runs that began first. One that was
    killed is still shown for 10 s. Messages that a program took by `receive` are not shown.
    """  # noqa: D301 - click's own mark
    with options.connect(url) as db:
        now_ms = db._home.clock.now_ms()

        def look(queue: Queue) -> _QueueRuns:
            home, found, unnamed = queue._home, [], 0
            for member, beat in heartbeats(home.store, home.register.members_key).items():
                runs = runs_of(beat, now_ms)
                found += [(queue.name, member, run) for run in runs]
                unnamed += max(beat.running - len(runs), 0)
            return _QueueRuns(found, unnamed)

        looked = list(db._home.side_by_side(look, _opened(db, queues)))
    named = [one for found in looked for one in found.runs if task in (None, one[2].task)]
    named.sort(key=lambda one: -one[2].run_ms)
    unnamed = sum(found.unnamed for found in looked)
    if as_json:
        for queue, member, run in named:
            told = {"task": run.task, "queue": queue, "id": run.message, "worker": member}
            since = iso(now_ms - run.run_ms)
            screen.print_json(told | {"since": since, "run_ms": run.run_ms})
    elif named:
        _list(named, now_ms)
    else:
        click.echo("Nothing runs." if not unnamed else "No run is named.")
    if unnamed:
        text = f"{screen.plural(unnamed, 'more run')}: a consumer names the 32 that began first."
        click.echo(text, err=True)


def _opened(db: Connection, names: tuple[str, ...]) -> list[Queue]:
    if names:
        return [db.queue(name, create=False) for name in dict.fromkeys(names)]
    return [one for one in db._home.open_all().values() if not isinstance(one, ShardqError)]


def _list(named: list[tuple[str, str, RunView]], now_ms: int) -> None:
    rows = [
        [
            screen.exact(run.task or "-"),
            Text(queue),
            screen.exact(run.message),
            screen.exact(member),
            Text(f"{iso(now_ms - run.run_ms)[:19]}Z"),
            Text(screen.span(run.run_ms)),
        ]
        for queue, member, run in named
    ]
    listing.show(["task", "queue", "id", "worker", "since", ">for"], rows, free=0)
