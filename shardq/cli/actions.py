"""Recorded commands that changed or removed something, with their users."""

from __future__ import annotations

import click
from rich.text import Text

from shardq.cli import listing, options, screen
from shardq.model.times import duration_ms, iso
from shardq.records.actions import KEPT_DAYS, Action, Actions

_SHOWN = 20
_SHOWN_MAX = 100_000


@click.command(
    epilog=options.examples(
        "shardq actions",
        "shardq actions --what drop --since 7d",
        "shardq actions --who SQ4XNRYBGDDYO3HS5MLE -n 100 --json",
    )
)
@options.whole("-n", "--limit", text="At most N of them.", least=1, most=_SHOWN_MAX, default=_SHOWN)
@click.option("--since", metavar="DURATION", help="Only those that are at most so long ago.")
@click.option(
    "--who", metavar="TEXT", default="", help="Only those by a key or user that contains this."
)
@click.option("--what", metavar="TEXT", default="", help="Only those that contain this: drop.")
@click.option(
    "--about", metavar="TEXT", default="", help="Only those whose object contains this: a queue."
)
@options.store
@options.as_json
def actions(
    *,
    limit: int,
    since: str | None,
    who: str,
    what: str,
    about: str,
    url: str | None,
    as_json: bool,
) -> None:
    """List commands that changed or removed something, the last one first.

    \b
    when     when it ended
    who      the user and machine of a shell, or the account and key of a request
    via      the way in: shell, sqs, http
    what     the command
    object   what it was about: a queue, a message's id, a schedule, a key
    outcome  done, or why not

    Commands of the server and of the shell are kept for 90 days, without bodies and secrets. What
    programs do through the library is not among them.
    """  # noqa: D301 - click's own mark

    def is_asked(one: Action) -> bool:
        return who in one.who and what in one.what and about in one.object

    with options.connect(url) as db:
        home = db._home
        since_ms = home.clock.now_ms() - duration_ms(since, name="--since") if since else 0
        found = Actions(home.store, home.clock).last(limit, since_ms=since_ms, where=is_asked)
    if as_json:
        for one in found:
            screen.print_json({"at": iso(one.at_ms), **_without_time(one)})
    elif not found:
        click.echo(f"No such command is recorded; they are kept for {KEPT_DAYS} days.")
    else:
        rows = [
            [Text(f"{iso(one.at_ms)[:19]}Z"), *map(screen.plain, _without_time(one).values())]
            for one in found
        ]
        listing.show(["when", "who", "via", "what", "object", "outcome"], rows, free=2)


def _without_time(one: Action) -> dict[str, str]:
    told = one._asdict()
    del told["at_ms"]
    return told
