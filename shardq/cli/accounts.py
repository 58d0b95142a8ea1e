"""Accounts of the server, their keys, and signed urls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from shardq.cli import listing, options, recorded, screen, streams
from shardq.errors import UsageError
from shardq.model.times import asked_ms, ceil_ms, duration_ms, iso
from shardq.server import grants, signed
from shardq.server.accounts import DEPTH_MAX, RATE_MAX, Accounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.cli.listing import Row
    from shardq.connection import Connection
    from shardq.server.accounts import Account, AccountKey, IssuedKey

_LEVELS = "rpuag"
"""The levels of a key without `--levels`: all for handling messages, none to remove a queue."""

_levels = options.option(
    "--levels LEVELS",
    "Letters of: r read, p put, u update, a ack, g get, c create, d delete, s schedule, m "
    "manage; or the words with commas between them; or all.",
    default=_LEVELS,
)
_key_id = click.argument("key", metavar="KEY")


@options.command_group(
    "shardq accounts create shop",
    "shardq accounts key add shop --label worker",
    "shardq accounts key list",
    "shardq accounts sign SQ4XNRYBGDDYO3HS5MLE uploads --levels p --for 1h",
)
def accounts() -> None:
    """Say who may use the server: accounts, keys, signed urls; see the commands below.

    A server without an account is open to all programs of its machine, and listens nowhere else.
    """


@options.command(
    "shardq accounts create shop", "shardq accounts create tests --id 123456789012", of=accounts
)
@click.argument("name")
@options.option(
    "--id DIGITS",
    "Its 12 digits, which are in the urls of its queues. Otherwise those of the first account "
    "are 000000000000, and those of others follow from their names.",
    name="account_id",
)
def create(name: str, account_id: str | None) -> None:
    """Create an account called NAME. Doing so again changes nothing.

    The first account uses the queues that Python programs use, under their names.
    """
    db = options.connect(makes=True)
    made = _of(db).create(name, account_id)
    told = {"account": made.id, "name": made.name, "made": iso(made.made_ms)}
    screen.result(told, f"{streams.escaped(made.name)}: account {made.id}")


@options.command("shardq accounts list", of=accounts, name="list")
def list_() -> None:
    """List all accounts, and how many valid keys each has."""
    db = options.connect()
    now_ms = db._home.clock.now_ms()
    there = _of(db).all_accounts()
    valid = [key.account for key in _of(db).all_keys() if key.state(now_ms) == "valid"]

    def to_json(one: Account) -> dict[str, Any]:
        counted = {"keys": valid.count(one.id), "made": iso(one.made_ms)}
        return {"account": one.id, "name": one.name, **counted}

    def to_row(one: Account) -> Row:
        keys = f"{valid.count(one.id):,}"
        return {"account": one.id, "name": one.name, ">keys": keys, "made": _day(one.made_ms)}

    empty = "There is no account; make one: shardq accounts create shop"
    listing.show_all(there, to_json, to_row, free=1, empty=empty)


@options.command_group(
    "shardq accounts key add shop --levels rag --queue 'orders*'",
    "shardq accounts key rotate SQ4XNRYBGDDYO3HS5MLE --keep 1h",
    "shardq accounts key revoke SQ4XNRYBGDDYO3HS5MLE",
    of=accounts,
)
def key() -> None:
    """Add, list, rotate and revoke the keys of accounts: see the commands below."""


@options.command(
    "shardq accounts key add shop --label worker",
    "shardq accounts key add shop --sigv4 --queue 'orders*' --rate 100",
    "shardq accounts key add shop --levels p --queue uploads --depth 10000",
    of=key,
)
@click.argument("account")
@_levels
@options.option(
    "--queue PATTERN",
    "A queue that it may use, or the beginning of names and a *: 'orders*'. Otherwise all queues.",
    name="queues",
    multiple=True,
)
@options.option(
    "--sigv4",
    "It also signs as AWS does, so that SQS clients can use it: its secret follows from the "
    "master key.",
)
@options.option("--for DURATION", "It ends after so long: 30d.", name="life")
@options.option("--until TIME", "Instead: it ends at this time, ISO 8601.")
@options.option("--label TEXT", "What it is for, for people.", default="")
@options.option(
    "--rate N",
    "The most requests a second in each server process; more are answered with 429. 0 is any "
    "number.",
    least=0,
    most=RATE_MAX,
    default=0,
)
@options.option(
    "--depth N",
    "It may not put into a queue that holds N messages. 0 is any number.",
    least=0,
    most=DEPTH_MAX,
    default=0,
)
def add(
    *,
    account: str,
    levels: str,
    queues: tuple[str, ...],
    sigv4: bool,
    life: str | None,
    until: str | None,
    **limits: Any,
) -> None:
    """Add a key to ACCOUNT, by its name or 12 digits.

    Its secret is printed now, and never again: the store has its hash alone.
    """
    db = options.connect()
    home = _of(db)
    end_ms = _end_ms(db, until, life) if until or life else 0
    issued = home.add_key(
        home.account(account),
        levels=levels,
        queues=queues or (grants.ANY_QUEUE,),
        end_ms=end_ms,
        **limits,
        is_derived=sigv4,
    )
    recorded.refine(f"{issued.key.account} {issued.key.id}")
    _tell_issued(issued)


@options.command("shardq accounts key list", "shardq accounts key list shop", of=key, name="list")
@click.argument("account", required=False)
@options.option("--all", "Those that were revoked or have ended, too.", name="is_all")
def list_keys(account: str | None, *, is_all: bool) -> None:
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
    db = options.connect()
    home = _of(db)
    wanted = None if account is None else home.account(account).id
    now_ms = db._home.clock.now_ms()
    found = [
        one
        for one in home.all_keys()
        if wanted in (None, one.account) and (is_all or one.state(now_ms) == "valid")
    ]
    listing.show_all(
        found,
        lambda one: _told(one, now_ms),
        lambda one: _row(one, now_ms),
        free=1,
        empty="There is no such key; make one: shardq accounts key add ACCOUNT",
    )


@options.command("shardq accounts key rotate SQ4XNRYBGDDYO3HS5MLE --keep 1h", of=key)
@_key_id
@options.option(
    "--keep DURATION", "How long the secret before stays valid; 0s ends it now.", default="24h"
)
def rotate(key: str, keep: str) -> None:
    """Give KEY another secret; the one before stays valid for a while.

    Its id stays, and all that it may do. The new secret is printed now, and never again.
    """
    keep_ms = duration_ms(keep, name="--keep")
    db = options.connect()
    _tell_issued(_of(db).rotate(key, keep_ms))


@options.command("shardq accounts key revoke SQ4XNRYBGDDYO3HS5MLE", of=key)
@_key_id
def revoke(key: str) -> None:
    """Revoke KEY for good, and the urls that were signed for it.

    Every server refuses it within 5 s.
    """
    db = options.connect()
    revoked = _of(db).revoke(key)
    told = _told(revoked, db._home.clock.now_ms())
    screen.result(told, f"{revoked.id}: revoked; every server refuses it within 5s")


@options.command(
    "shardq accounts sign SQ4XNRYBGDDYO3HS5MLE uploads --levels p --for 1h",
    "shardq accounts sign SQ4XNRYBGDDYO3HS5MLE uploads --levels p --for 1h --json",
    of=accounts,
)
@_key_id
@click.argument("queue")
@options.option(
    "--levels LEVELS",
    "What the url allows, as for a key. What the key may not do, the url does not allow.",
    required=True,
)
@options.option("--for DURATION", "It is valid for so long.", name="life")
@options.option("--until TIME", "Instead: it is valid until this time, ISO 8601.")
@options.option("--start TIME", "It is not valid before this time, ISO 8601.")
@options.option(
    "--url URL",
    "The url to sign; otherwise only the query is printed that makes it a signed one.",
    name="base",
)
def sign(
    *,
    key: str,
    queue: str,
    levels: str,
    life: str | None,
    until: str | None,
    start: str | None,
    base: str | None,
) -> None:
    """Sign a url for KEY: whoever has the url may use QUEUE, without a key, until its end.

    QUEUE may be the beginning of names and a *. The url ends with the key, and with the key's
    newest secret.
    """
    if not (until or life):
        raise click.UsageError("give --for or --until: when the url ends.")
    if base is not None and "#" in base:
        raise click.UsageError("--url must have no fragment, the part after a #.")
    db = options.connect()
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
    told = {"url": whole, "levels": draft.levels, "queue": draft.queue, "end": end}
    screen.result(told, whole)


def _of(db: Connection) -> Accounts:
    return Accounts(db._home.store, db._home.clock)


def _end_ms(db: Connection, until: str | None, life: str | None) -> int:
    if until and life:
        raise click.UsageError("give --for or --until, not both.")
    return asked_ms(ceil_ms(db._home.clock.now_us()), until, life)


def _tell_issued(issued: IssuedKey) -> None:
    """Print a key with its secret."""
    key = issued.key
    if options.is_json():
        secret = {"secret": issued.secret, "token": issued.token}
        screen.print_json({"key": key.id, "account": key.account, "signs": key.is_derived} | secret)
        return
    if key.is_derived:
        click.echo(f"AWS_ACCESS_KEY_ID={key.id}")
        click.echo(f"AWS_SECRET_ACCESS_KEY={issued.secret}")
    click.echo(f"SHARDQ_KEY={issued.token}")
    click.echo("This is shown once: keep it now.", err=True)


def _row(key: AccountKey, now_ms: int) -> Row:
    grant = key.grant
    state = key.state(now_ms)
    if state == "valid" and len(key.secrets(now_ms)) > 1:
        state = "two secrets"
    quota = [f"{grant.rate:,}/s"] if grant.rate else []
    quota += [f"{grant.depth:,} deep"] if grant.depth else []
    return {
        "key": key.id,
        "account": key.account,
        "levels": grant.levels,
        "queues": ", ".join(grant.queues),
        "signs": "sigv4" if key.is_derived else "",
        "quota": ", ".join(quota),
        "end": _day(grant.end_ms) if grant.end_ms else "",
        "state": state,
        "label": grant.label,
    }


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
