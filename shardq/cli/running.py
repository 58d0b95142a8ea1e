"""The present runs, in all queues or some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from shardq.cli import listing, options, screen
from shardq.model.times import iso
from shardq.observer import runs_of
from shardq.records.membership import heartbeats

if TYPE_CHECKING:
    from shardq.cli.listing import Row
    from shardq.observer import RunView
    from shardq.queue import Queue


class _Run(NamedTuple):
    """A run, where it is, and since when."""

    queue: str
    worker: str
    run: RunView
    since: str

    def to_json(self) -> dict[str, Any]:
        run = self.run
        return {
            "task": run.task,
            "queue": self.queue,
            "id": run.message,
            "worker": self.worker,
            "since": self.since,
            "run_ms": run.run_ms,
        }

    def to_row(self) -> Row:
        return {
            "task": self.run.task or "-",
            "queue": self.queue,
            "id": self.run.message,
            "worker": self.worker,
            "since": f"{self.since[:19]}Z",
            ">for": screen.span(self.run.run_ms),
        }


@options.command(
    "shardq running",
    "shardq running mail --task shop.charge",
    "shardq running --json | jq -r .task | sort | uniq -c",
)
@options.queues
@options.task
def running(queues: tuple[str, ...], task: str | None) -> None:
    """Show what runs now of QUEUES, or of all queues, the longest run first.

    \b
    task    the task that it is a job of; - for a message that is none
    worker  the consumer that runs it: host, process, a part of its own
    since   when its handler was called
    for     how long ago that was

    A consumer reports every 3 s what it runs, and names the 32 runs that began first. The runs of a
    killed consumer are still shown for 10 s. Messages that a program took by `receive` are not
    shown.
    """  # noqa: D301 - click's own mark
    db = options.connect()
    now_ms = db._home.clock.now_ms()

    def look(queue: Queue) -> tuple[list[_Run], int]:
        home, found, unnamed = queue._home, [], 0
        for member, beat in heartbeats(home.store, home.register.members_key).items():
            runs = runs_of(beat, now_ms)
            found += [_Run(queue.name, member, run, iso(now_ms - run.run_ms)) for run in runs]
            unnamed += max(beat.running - len(runs), 0)
        return found, unnamed

    looked = list(db._home.side_by_side(look, options.queues_of(queues)))
    named = [one for found, _ in looked for one in found if task in (None, one.run.task)]
    named.sort(key=lambda one: -one.run.run_ms)
    unnamed = sum(count for _, count in looked)
    empty = "No run is named." if unnamed else "Nothing runs."
    listing.show_all(named, _Run.to_json, _Run.to_row, free=0, empty=empty)
    if unnamed:
        text = f"{screen.plural(unnamed, 'more run')}: a consumer names the 32 that began first."
        click.echo(text, err=True)
