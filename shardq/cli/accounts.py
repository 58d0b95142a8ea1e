"""Accounts of the server, their keys, and signed urls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from rich.text import Text

from shardq.cli import listing, options, recorded, screen
from shardq.errors import UsageError
from shardq.model import grants
from shardq.model.times import asked_ms, ceil_ms, duration_ms, iso
from shardq.records.accounts import DEPTH_MAX, RATE_MAX, Accounts
from shardq.server import signed

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.connection import Connection
    from shardq.records.accounts import AccountKey, IssuedKey

_LEVELS = "rpuag"
"""The levels of a key without `--levels`: all for handling messages, none to remove a queue."""

_levels = click.option(
    "--levels",
    metavar="LEVELS",
    default=_LEVELS,
    show_default=True,
    help="Letters of: r read, p put, u update, a ack, g get, c create, d delete, s schedule, m "
    "manage; or the words with commas between them; or all.",
)
_key_id = click.argument("key", metavar="KEY")


@click.group(
    cls=options.CommandGroup,
    epilog=options.examples(
        "shardq accounts create shop",
        "shardq accounts key add shop --label worker",
        "shardq accounts key list",
        "shardq accounts sign SQ4XNRYBGDDYO3HS5MLE uploads --levels p --for 1h",
    ),
)
def accounts() -> None:
    """Say who may use the server: accounts, keys, signed urls; see the commands below.

    A server without an account is open to all programs of its machine, and listens nowhere else.
    """


@accounts.command(
    epilog=options.examples(
        "shardq accounts create shop", "shardq accounts create tests --id 123456789012"
    )
)
@click.argument("name")
@click.option(
    "--id",
    "account_id",
    metavar="DIGITS",
    help="Its 12 digits, which are in the urls of its queues. Otherwise those of the first account "
    "are 000000000000, and those of others follow from their names.",
)
@options.store
@options.as_json
def create(name: str, account_id: str | None, url: str | None, *, as_json: bool) -> None:
    """Create an account called NAME. Doing so again changes nothing.

    The first account uses the queues that Python programs use, under their names.
    """
    with options.connect(url, makes=True) as db:
        made = _of(db).create(name, account_id)
        if as_json:
            screen.print_json({"account": made.id, "name": made.name, "made": iso(made.made_ms)})
        else:
            click.echo(f"{screen.exact(made.name).plain}: account {made.id}")


@accounts.command("list", epilog=options.examples("shardq accounts list"))
@options.store
@options.as_json
def list_(url: str | None, *, as_json: bool) -> None:
    """List all accounts, and how many valid keys each has."""
    with options.connect(url) as db:
        now_ms = db._home.clock.now_ms()
        there = _of(db).all_accounts()
        valid = [key.account for key in _of(db).all_keys() if key.state(now_ms) == "valid"]
    if as_json:
        for one in there:
            counted = {"keys": valid.count(one.id), "made": iso(one.made_ms)}
            screen.print_json({"account": one.id, "name": one.name, **counted})
    elif not there:
        click.echo("There is no account; make one: shardq accounts create shop")
    else:
        rows = [
            [
                Text(one.id),
                screen.exact(one.name),
                Text(f"{valid.count(one.id):,}"),
                Text(_day(one.made_ms)),
            ]
            for one in there
        ]
        listing.show(["account", "name", ">keys", "made"], rows, free=1)


@accounts.group(
    cls=options.CommandGroup,
    epilog=options.examples(
        "shardq accounts key add shop --levels rag --queue 'orders*'",
        "shardq accounts key rotate SQ4XNRYBGDDYO3HS5MLE --keep 1h",
        "shardq accounts key revoke SQ4XNRYBGDDYO3HS5MLE",
    ),
)
def key() -> None:
    """Add, list, rotate and revoke the keys of accounts: see the commands below."""


@key.command(
    epilog=options.examples(
        "shardq accounts key add shop --label worker",
        "shardq accounts key add shop --sigv4 --queue 'orders*' --rate 100",
        "shardq accounts key add shop --levels p --queue uploads --depth 10000",
    )
)
@click.argument("account")
@_levels
@click.option(
    "--queue",
    "queues",
    metavar="PATTERN",
    multiple=True,
    help="A queue that it may use, or the beginning of names and a *: 'orders*'. May be repeated. "
    "Otherwise all queues.",
)
@click.option(
    "--sigv4",
    is_flag=True,
    help="It also signs as AWS does, so that SQS clients can use it: its secret follows from the "
    "master key.",
)
@click.option("--for", "life", metavar="DURATION", help="It ends after so long: 30d.")
@click.option("--until", metavar="TIME", help="Instead: it ends at this time, ISO 8601.")
@click.option("--label", metavar="TEXT", default="", help="What it is for, for people.")
@options.whole(
    "--rate",
    text="The most requests a second in each server process; more are answered with 429. 0 is any "
    "number.",
    least=0,
    most=RATE_MAX,
    default=0,
)
@options.whole(
    "--depth",
    text="It may not put into a queue that holds N messages. 0 is any number.",
    least=0,
    most=DEPTH_MAX,
    default=0,
)
@options.store
@options.as_json
def add(
    *,
    account: str,
    levels: str,
    queues: tuple[str, ...],
    sigv4: bool,
    life: str | None,
    until: str | None,
    label: str,
    rate: int,
    depth: int,
    url: str | None,
    as_json: bool,
) -> None:
    """Add a key to ACCOUNT, by its name or 12 digits.

    Its secret is printed now, and never again: the store has its hash alone.
    """
    with options.connect(url) as db:
        home = _of(db)
        end_ms = _end_ms(db, until, life) if until or life else 0
        issued = home.add_key(
            home.account(account),
            levels=levels,
            queues=queues or (grants.ANY_QUEUE,),
            end_ms=end_ms,
            label=label,
            rate=rate,
            depth=depth,
            is_derived=sigv4,
        )
        recorded.refine(f"{issued.key.account} {issued.key.id}")
        _tell_issued(issued, as_json=as_json)


@key.command(
    "list", epilog=options.examples("shardq accounts key list", "shardq accounts key list shop")
)
@click.argument("account", required=False)
@click.option("--all", "is_all", is_flag=True, help="Those that were revoked or have ended, too.")
@options.store
@options.as_json
def list_keys(account: str | None, url: str | None, *, is_all: bool, as_json: bool) -> None:
    """List the keys of ACCOUNT, or of all accounts; no secrets, which nobody has.

    \b
    key      its id, which is no secret
    levels   the letters of what it may do
    queues   the queues that it may use
    signs    sigv4, where SQS clients can sign with it
    quota    requests a second, and messages in a queue
    state    valid, ended or revoked; two secrets, after it was rotated

    A key that was revoked or has ended is listed with --all.
    """  # noqa: D301 - click's own mark
    with options.connect(url) as db:
        home = _of(db)
        wanted = None if account is None else home.account(account).id
        now_ms = db._home.clock.now_ms()
        found = [
            one
            for one in home.all_keys()
            if wanted in (None, one.account) and (is_all or one.state(now_ms) == "valid")
        ]
    if as_json:
        for one in found:
            screen.print_json(_told(one, now_ms))
    elif not found:
        click.echo("There is no such key; make one: shardq accounts key add ACCOUNT")
    else:
        heads = ["key", "account", "levels", "queues", "signs", "quota", "end", "state", "label"]
        listing.show(heads, [_row(one, now_ms) for one in found], free=1)


@key.command(epilog=options.examples("shardq accounts key rotate SQ4XNRYBGDDYO3HS5MLE --keep 1h"))
@_key_id
@click.option(
    "--keep",
    metavar="DURATION",
    default="24h",
    show_default=True,
    help="How long the secret before stays valid; 0s ends it now.",
)
@options.store
@options.as_json
def rotate(key: str, keep: str, url: str | None, *, as_json: bool) -> None:
    """Give KEY another secret; the one before stays valid for a while.

    Its id stays, and all that it may do. The new secret is printed now, and never again.
    """
    keep_ms = duration_ms(keep, name="--keep")
    with options.connect(url) as db:
        _tell_issued(_of(db).rotate(key, keep_ms), as_json=as_json)


@key.command(epilog=options.examples("shardq accounts key revoke SQ4XNRYBGDDYO3HS5MLE"))
@_key_id
@options.store
@options.as_json
def revoke(key: str, url: str | None, *, as_json: bool) -> None:
    """Revoke KEY for good, and the urls that were signed for it.

    Every server refuses it within 5 s.
    """
    with options.connect(url) as db:
        revoked = _of(db).revoke(key)
        if as_json:
            screen.print_json(_told(revoked, db._home.clock.now_ms()))
        else:
            click.echo(f"{revoked.id}: revoked; every server refuses it within 5s")


@accounts.command(
    epilog=options.examples(
        "shardq accounts sign SQ4XNRYBGDDYO3HS5MLE uploads --levels p --for 1h",
        "shardq accounts sign SQ4XNRYBGDDYO3HS5MLE uploads --levels p --for 1h --json",
    )
)
@_key_id
@click.argument("queue")
@click.option(
    "--levels",
    metavar="LEVELS",
    required=True,
    help="What the url allows, as for a key. What the key may not do, the url does not allow.",
)
@click.option("--for", "life", metavar="DURATION", help="It is valid for so long.")
@click.option("--until", metavar="TIME", help="Instead: it is valid until this time, ISO 8601.")
@click.option("--start", metavar="TIME", help="It is not valid before this time, ISO 8601.")
@click.option(
    "--url",
    "base",
    metavar="URL",
    help="The url to sign; otherwise only the query is printed that makes it a signed one.",
)
@options.store
@options.as_json
def sign(
    *,
    key: str,
    queue: str,
    levels: str,
    life: str | None,
    until: str | None,
    start: str | None,
    base: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Sign a url for KEY: whoever has the url may use QUEUE, without a key, until its end.

    QUEUE may be the beginning of names and a *. The url ends with the key, and with the key's
    newest secret.
    """
    if not (until or life):
        raise click.UsageError("give --for or --until: when the url ends.")
    if base is not None and "#" in base:
        raise click.UsageError("--url must have no fragment, the part after a #.")
    with options.connect(url) as db:
        home = _of(db)
        now_ms = db._home.clock.now_ms()
        found = home.key(key)
        if (state := found.state(now_ms)) != "valid":
            raise UsageError(f"key {key} is {state}; sign for another one.")
        draft = signed.drafted(
            found.id,
            queue,
            levels,
            now_ms=now_ms,
            start_ms=asked_ms(0, start, None) if start else 0,
            end_ms=_end_ms(db, until, life),
        )
        query = draft.query(home.master, found.account, found.grant.secrets[0].generation)
        recorded.refine(f"{found.id} {draft.levels} {draft.queue}")
        end = iso(draft.end_s * 1_000)
    whole = query if base is None else f"{base}{'&' if urlsplit(base).query else '?'}{query}"
    if as_json:
        screen.print_json({"url": whole, "levels": draft.levels, "queue": draft.queue, "end": end})
    else:
        click.echo(whole)


def _of(db: Connection) -> Accounts:
    return Accounts(db._home.store, db._home.clock)


def _end_ms(db: Connection, until: str | None, life: str | None) -> int:
    if until and life:
        raise click.UsageError("give --for or --until, not both.")
    return asked_ms(ceil_ms(db._home.clock.now_us()), until, life)


def _tell_issued(issued: IssuedKey, *, as_json: bool) -> None:
    """Print a key with its secret."""
    key = issued.key
    if as_json:
        secret = {"secret": issued.secret, "token": issued.token}
        screen.print_json({"key": key.id, "account": key.account, "signs": key.is_derived} | secret)
        return
    if key.is_derived:
        click.echo(f"AWS_ACCESS_KEY_ID={key.id}")
        click.echo(f"AWS_SECRET_ACCESS_KEY={issued.secret}")
    click.echo(f"SHARDQ_KEY={issued.token}")
    click.echo("This is shown once: keep it now.", err=True)


def _row(key: AccountKey, now_ms: int) -> list[Text]:
    grant = key.grant
    state = key.state(now_ms)
    if state == "valid" and len(key.secrets(now_ms)) > 1:
        state = "two secrets"
    quota = [f"{grant.rate:,}/s"] if grant.rate else []
    quota += [f"{grant.depth:,} deep"] if grant.depth else []
    return [
        Text(key.id),
        Text(key.account),
        Text(grant.levels),
        Text(", ".join(grant.queues)),
        Text("sigv4" if key.is_derived else ""),
        Text(", ".join(quota)),
        Text(_day(grant.end_ms) if grant.end_ms else ""),
        Text(state),
        screen.exact(grant.label),
    ]


def _told(key: AccountKey, now_ms: int) -> dict[str, Any]:
    """A key for programs."""
    grant = key.grant
    when: Callable[[int], str | None] = lambda at_ms: iso(at_ms) if at_ms else None  # noqa: E731
    return {
        "key": key.id,
        "account": key.account,
        "label": grant.label,
        "levels": grant.levels,
        "queues": grant.queues,
        "sigv4": key.is_derived,
        "rate": grant.rate or None,
        "depth": grant.depth or None,
        "made": iso(grant.made_ms),
        "end": when(grant.end_ms),
        "revoked": when(grant.revoked_ms),
        "state": key.state(now_ms),
        "secrets": len(key.secrets(now_ms)),
    }


def _day(at_ms: int) -> str:
    return f"{iso(at_ms)[:19]}Z"
