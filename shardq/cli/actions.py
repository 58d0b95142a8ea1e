"""Recorded commands that changed or removed something, with their users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.cli import listing, options, screen
from shardq.model.times import duration_ms, iso
from shardq.records.actions import KEPT_DAYS, Action, Actions

if TYPE_CHECKING:
    from shardq.cli.listing import Row

_SHOWN = 20
_SHOWN_MAX = 100_000


@options.command(
    "shardq actions",
    "shardq actions --what drop --since 7d",
    "shardq actions --who SQ4XNRYBGDDYO3HS5MLE -n 100 --json",
)
@options.option("-n, --limit N", "At most N of them.", least=1, most=_SHOWN_MAX, default=_SHOWN)
@options.option("--since DURATION", "Only those that are at most so long ago.")
@options.option("--who TEXT", "Only those by a key or user that contains this.", default="")
@options.option("--what TEXT", "Only those that contain this: drop.", default="")
@options.option("--about TEXT", "Only those whose object contains this: a queue.", default="")
def actions(*, limit: int, since: str | None, who: str, what: str, about: str) -> None:
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

    home = options.connect()._home
    since_ms = home.clock.now_ms() - duration_ms(since, name="--since") if since else 0
    found = Actions(home.store, home.clock).last(limit, since_ms=since_ms, where=is_asked)
    listing.show_all(
        found,
        lambda one: {"at": iso(one.at_ms), **_without_time(one)},
        _row,
        free=2,
        empty=f"No such command is recorded; they are kept for {KEPT_DAYS} days.",
    )


def _row(one: Action) -> Row:
    cells = {name: screen.plain(text) for name, text in _without_time(one).items()}
    return {"when": f"{iso(one.at_ms)[:19]}Z", **cells}


def _without_time(one: Action) -> dict[str, str]:
    told = one._asdict()
    del told["at_ms"]
    return told
