"""Messages moved into another queue."""

from __future__ import annotations

import click

from shardq.cli import options, screen
from shardq.cli.exits import Exit
from shardq.cli.keyed import Telling

_TOGETHER = 500
"""How many messages one call moves, if no rate is given."""


@options.command(
    "shardq forward mail --to mail-slow --limit 1000",
    "shardq forward mail 2f6b8e1c 0b1d77aa --to mail-slow",
    "shardq forward mail.dead --to review",
    "shardq forward mail.dead --rate 50",
    has_json=False,
)
@options.queue
@options.ids
@options.option(
    "--to QUEUE",
    "The queue that they go to. Without it each dead message goes back to the queue that it "
    "died in, and all others stay.",
)
@options.option("-n, --limit N", "At most N of them; all where it is not given.", least=1)
@options.option("--rate N", "At most N a second.", least=1)
def forward(
    queue: str, ids: tuple[str, ...], to: str | None, limit: int | None, rate: int | None
) -> Exit:
    """Move messages of QUEUE into another queue, under their ids and with all attempts there.

    Messages due first are moved first; messages that are being delivered stay. A message that a
    consumer of QUEUE has already read may run in both queues: pause QUEUE before. For IDs the
    command searches QUEUE, and ends with 21 if a message does not exist, with 22 if it runs now.
    """
    if ids and (limit or rate or to is None):
        raise click.UsageError("IDs go with --to alone.")
    db = options.connect()
    source = db.queue(queue, create=False)
    if ids:
        told = Telling(source, "forward", is_one=len(ids) == 1)
        for name in ids:
            with told.damaged(name):
                told.of_id(name, source.forward(to=to or "", ids=[name])[name])
        return told.ended
    clock, count = source._home.clock, 0
    while limit is None or count < limit:
        begun_us = clock.boot_us()
        most = min(rate or _TOGETHER, _TOGETHER)
        moved = source.forward(to=to, limit=most if limit is None else min(most, limit - count))
        count += moved
        if moved < most:
            break
        if rate is not None:
            clock.sleep(max(moved / rate - (clock.boot_us() - begun_us) / 1e6, 0))
    click.echo(f"moved {screen.plural(count, 'message')}" + (f" to {to}" if to else " back"))
    return Exit.OK
