"""Accounts of the server, their keys and signed urls: the admin part."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta, Struct

from shardq.errors import UnknownAccount, UsageError
from shardq.model.times import asked_ms, duration_ms, iso
from shardq.records.actions import What
from shardq.server import grants, signed
from shardq.server.accounts import DEPTH_MAX, RATE_MAX, Accounts
from shardq.server.api.problem import Refused
from shardq.server.api.route import RouteCall, json_of, route
from shardq.server.api.shapes import Span, Time, struct_of
from shardq.server.grants import ANY_QUEUE, Level
from shardq.server.refusals import AccessDenied
from shardq.server.web import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.server.accounts import Account as FoundAccount
    from shardq.server.accounts import AccountKey, IssuedKey

R = TypeVar("R")

_NO_STORE = ("cache-control", "no-store")


_ACCOUNT = "/v1/accounts/{account}"
_KEYS = _ACCOUNT + "/keys"
_admin = partial(route, level=Level.MANAGE, is_admin=True)
"""Makes a handler that of a route of the admin part."""


class Account(Struct):
    """An account.

    Attributes:
        id: Its 12 digits.
        name: Its name.
        made: When it was made.
    """

    id: str
    name: str
    made: Time


class AccountList(Struct):
    """Accounts.

    Attributes:
        accounts: The accounts, by name.
    """

    accounts: list[Account]


class NewAccount(Struct, kw_only=True, forbid_unknown_fields=True):
    """An account that is made.

    Attributes:
        id: Its 12 digits; they follow from its name unless given.
    """

    id: Annotated[str, Meta(pattern="^[0-9]{12}$")] | None = None


class Key(Struct, kw_only=True, omit_defaults=True):
    """A key, without its secret.

    Attributes:
        id: Its id, which is no secret.
        account: The id of its account.
        levels: Letters of its levels.
        queues: Patterns of the queues that it may use.
        state: `valid`, `ended` or `revoked`.
        sigv4: True if it also signs as AWS does.
        made: When it was made.
        end: When it ends.
        label: A text by which people know it.
        rate: The most requests a second in each server process.
        depth: No puts into a queue that holds this many messages.
    """

    id: str
    account: str
    levels: str
    queues: list[str]
    state: str
    sigv4: bool
    made: Time
    end: Time | None = None
    label: str = ""
    rate: int = 0
    depth: int = 0


class Keys(Struct):
    """Keys.

    Attributes:
        keys: The keys, the oldest first.
    """

    keys: list[Key]


class NewKey(Struct, kw_only=True, forbid_unknown_fields=True):
    """A key that is made.

    Attributes:
        levels: Its levels: letters, or words with commas between them, or `all`.
        queues: Patterns of the queues that it may use: a name, or a beginning and a `*`.
        until: When it ends.
        life: Instead of `until`: how long it is valid.
        label: A text by which people know it.
        rate: The most requests a second in each server process; 0: any number.
        depth: No puts into a queue that holds this many messages; 0: any number.
        sigv4: True if it also signs as AWS does.
    """

    levels: str
    queues: Annotated[tuple[str, ...], Meta(min_length=1, max_length=100)] = (ANY_QUEUE,)
    until: Time | None = None
    life: Span | None = None
    label: str = ""
    rate: Annotated[int, Meta(ge=0, le=RATE_MAX)] = 0
    depth: Annotated[int, Meta(ge=0, le=DEPTH_MAX)] = 0
    sigv4: bool = False


class Rotation(Struct, kw_only=True, forbid_unknown_fields=True):
    """How to rotate a key.

    Attributes:
        keep: How long the secret before stays valid.
    """

    keep: Span = "1d"


class Issued(Struct):
    """A key with its secret, which is shown once.

    Attributes:
        key: The key.
        secret: The secret; of a key that signs, what an SDK calls its secret access key.
        token: Id and secret as one text, for `Authorization: Bearer`.
    """

    key: Key
    secret: str
    token: str


class NewUrl(Struct, kw_only=True, forbid_unknown_fields=True):
    """A url that is signed.

    Attributes:
        key: The key that it is signed for; the caller's unless given.
        queue: A queue, or the beginning of names and a `*`.
        levels: The levels that the url gives, written as those of a key.
        start: When it begins; now unless given.
        until: When it ends.
        life: Instead of `until`: how long it is valid.
    """

    key: str | None = None
    queue: str
    levels: str
    start: Time | None = None
    until: Time | None = None
    life: Span | None = None


class SignedUrl(Struct):
    """The query that makes a url a signed one.

    Attributes:
        query: The query. Append it after the `?` of any call that it allows.
        levels: Letters of the levels that it gives.
        end: When it ends.
    """

    query: str
    levels: str
    end: Time


@_admin("GET", "/v1/accounts")
async def list_accounts(call: RouteCall[None, None]) -> AccountList:
    """The accounts that the caller may look at: all, or its own."""
    found = await _done(call, lambda home: home.all_accounts())
    return AccountList([_account_of(one) for one in found if _is_own(call, one.id)])


@_admin("PUT", _ACCOUNT, what=What.ACCOUNT_CREATE)
async def put_account(call: RouteCall[None, NewAccount]) -> Account:
    """Make an account, or find the one of that name."""
    check_server(call)
    name = call.place["account"]
    return _account_of(await _done(call, lambda home: home.create(name, call.body.id)))


@_admin("GET", _KEYS)
async def list_keys(call: RouteCall[None, None]) -> Keys:
    """The keys of an account, without their secrets."""
    account = await _account(call)
    found = await _done(call, lambda home: home.all_keys())
    return Keys([_key_of(call, one) for one in found if one.account == account.id])


@_admin("POST", _KEYS, answer=Issued, status=201, what=What.KEY_ADD)
async def add_key(call: RouteCall[None, NewKey]) -> Response:
    """Make a key of an account; its secret is shown once.

    A caller can give a key no more rights than its own, no later end, and no wider quotas.
    """
    body, account = call.body, await _account(call)
    levels = grants.levels_of(body.levels)
    call.caller.check_gives(levels, body.queues)
    end_ms = 0
    if body.until or body.life:
        end_ms = _end_ms(call, body.until, body.life)
    call.caller.check_bounds(end_ms=end_ms, rate=body.rate, depth=body.depth)
    issued = await _done(
        call,
        lambda home: home.add_key(
            account,
            levels=levels,
            queues=body.queues,
            end_ms=end_ms,
            label=body.label,
            rate=body.rate,
            depth=body.depth,
            is_derived=body.sigv4,
        ),
    )
    call.about = f"{account.id} {issued.key.id}"
    return _issued(call, issued)


@_admin("POST", _KEYS + "/{key}/rotate", answer=Issued, status=201, what=What.KEY_ROTATE)
async def rotate_key(call: RouteCall[None, Rotation]) -> Response:
    """Give a key another secret, shown once; the one before stays valid for a while."""
    key = await _key(call)
    grant = key.grant
    call.caller.check_gives(grant.levels, grant.queues)
    call.caller.check_bounds(end_ms=grant.end_ms, rate=grant.rate, depth=grant.depth)
    keep_ms = duration_ms(call.body.keep, name="keep")
    return _issued(call, await _done(call, lambda home: home.rotate(key.id, keep_ms)))


@_admin("DELETE", _KEYS + "/{key}", what=What.KEY_REVOKE)
async def revoke_key(call: RouteCall[None, None]) -> Key:
    """Revoke a key for good, and the urls that were signed for it, within 5 seconds."""
    key = await _key(call)
    call.caller.check_gives(key.grant.levels, key.grant.queues)
    return _key_of(call, await _done(call, lambda home: home.revoke(key.id)))


@_admin("POST", "/v1/sign", answer=SignedUrl, status=201, what=What.SIGN)
async def sign_url(call: RouteCall[None, NewUrl]) -> Response:
    """Sign a url, whose holder may make the calls that it allows until its end, without a key.

    The url ends with its key. It allows no call that the key may not make.
    """
    body, named = call.body, call.body.key or call.caller.key_id
    if not named:
        raise Refused(400, "give the key that the url is signed for.", field="key")
    found = await _done(call, lambda home: home.key(named))
    if not _is_own(call, found.account):
        raise _not_own(found.account)
    now_ms = call.site.clock.now_ms()
    if (state := found.state(now_ms)) != "valid":
        raise UsageError(f"key {found.id} is {state}; sign for another one.")
    draft = signed.drafted(
        found.id,
        body.queue,
        body.levels,
        now_ms=now_ms,
        start_ms=asked_ms(0, body.start, None) if body.start else 0,
        end_ms=_end_ms(call, body.until, body.life),
    )
    call.caller.check_gives(draft.levels, [draft.queue])
    grant = found.grant
    end_ms = grant.end_by(draft.end_s * 1_000)
    call.caller.check_bounds(end_ms=end_ms, rate=grant.rate, depth=grant.depth)
    generation = grant.secrets[0].generation
    query = await _done(call, lambda home: draft.query(home.master, found.account, generation))
    call.about = f"{found.id} {draft.levels} {draft.queue}"
    made = json_of(SignedUrl(query, draft.levels, iso(draft.end_s * 1_000)), 201)
    made.headers.append(_NO_STORE)
    return made


async def _done(call: RouteCall[Any, Any], ask: Callable[[Accounts], R]) -> R:
    """The answer of the accounts; a thread asks them."""
    home, site = call.site.connection._home, call.site
    return await site.threads.call(lambda: ask(Accounts(home.store, home.clock)))


def _is_own(call: RouteCall[Any, Any], account: str) -> bool:
    """True if the caller manages an account: its own, or any if it manages the server.

    A signed url manages no account, because keys that it made would outlast it.
    """
    caller = call.caller
    is_own = caller.account == account
    return caller.via != "url" and (is_own or _manages_server(call))


def _manages_server(call: RouteCall[Any, Any]) -> bool:
    caller = call.caller
    is_whole = grants.ANY_QUEUE in caller.queues and caller.via != "url"
    return is_whole and caller.account == call.site.options.account


def check_server(call: RouteCall[Any, Any]) -> None:
    """Refuse a caller that does not manage the server.

    Raises:
        AccessDenied: If it does not.
    """
    if not _manages_server(call):
        raise AccessDenied("only keys of the server's own account, for all queues, may do this.")


def _not_own(account: str) -> AccessDenied:
    return AccessDenied(f"the key may not manage account {account}.")


async def _account(call: RouteCall[Any, Any]) -> FoundAccount:
    """The account that the path names."""
    named = call.place["account"]
    found = await _done(call, lambda home: home.account(named))
    if not _is_own(call, found.id):
        raise _not_own(found.id)
    return found


async def _key(call: RouteCall[Any, Any]) -> AccountKey:
    """The key that the path names."""
    account, named = await _account(call), call.place["key"]
    found = await _done(call, lambda home: home.key(named))
    if found.account != account.id:
        raise UnknownAccount(f"account {account.name!r} has no key {named!r}.")
    return found


def _end_ms(call: RouteCall[Any, Any], until: str | None, life: str | None) -> int:
    if (until is None) == (life is None):
        raise Refused(400, "give until or life, one of them.", field="until")
    return asked_ms(call.site.clock.now_ms(), until, life)


def _account_of(found: FoundAccount) -> Account:
    return Account(found.id, found.name, iso(found.made_ms))


def _key_of(call: RouteCall[Any, Any], found: AccountKey) -> Key:
    grant = found.grant
    return struct_of(
        Key,
        found,
        grant,
        queues=list(grant.queues),
        state=found.state(call.site.clock.now_ms()),
        sigv4=found.is_derived,
        made=iso(grant.made_ms),
        end=iso(grant.end_ms) if grant.end_ms else None,
    )


def _issued(call: RouteCall[Any, Any], issued: IssuedKey) -> Response:
    made = json_of(Issued(_key_of(call, issued.key), issued.secret, issued.token), 201)
    made.headers.append(_NO_STORE)
    return made
