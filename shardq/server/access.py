"""Access: the caller of a request, and what it may do.

```
 Authorization: Bearer sq_ID_SECRET ──┐
 Authorization: AWS4-HMAC-SHA256 ..   ├─► key, read 3 s ago at most ─► Caller: account, levels,
 ?X-Amz-Signature=..                  │                                queues ─► check(level, queue)
 ?sq-signature=..                   ──┘
```

A server without an account may be open, on loopback alone: each program of the machine may do all.
"""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from shardq import locks
from shardq.errors import UsageError
from shardq.model.times import iso
from shardq.server import grants, signed, sigv4
from shardq.server.accounts import DEFAULT_ACCOUNT, Accounts
from shardq.server.grants import Level
from shardq.server.quotas import Depths, Rates, full_bucket
from shardq.server.refusals import (
    AccessDenied,
    InvalidClientTokenId,
    MissingAuthenticationToken,
    Refusal,
    SignatureDoesNotMatch,
)
from shardq.server.sessions import LIFE_S, Pass, token_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardq.connection import Connection
    from shardq.errors import StoreCorrupt
    from shardq.queue import Queue
    from shardq.server.accounts import AccountKey
    from shardq.server.masterkey import MasterKey
    from shardq.server.web import Request

log = logging.getLogger(__name__)

_HOSTS_KEPT = 100
REFRESH_US = 3_000_000
"""A revoked key is refused once it was reread: within 5 s, with a slow read."""
_REREADS_MAX = 5
"""How often a second all keys are reread for an unknown one, so that a new key works at once."""
_FORWARDED = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})
"""The headers that a proxy adds."""
_OWN_SITE = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site` of a page of this server, and of an address that somebody has typed."""
_LOCAL_NAMES = ("localhost", "localhost.localstack.cloud")
_SAFE = frozenset({"GET", "HEAD"})
_BEARER: Final = "bearer "
_TOKEN_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request, and what it may do.

    Attributes:
        account: The account's id.
        key_id: The key's id; empty on an open server.
        label: The key's label.
        via: `open`, `bearer`, `sigv4`, `url`, `session` or `proxy`.
        region: The region that the request was signed for; empty if it was not.
        levels: Letters of its levels.
        queues: Patterns of the queues that it may use.
        rate: The most requests a second in each server process; 0: any number.
        depth: No puts into a queue that holds this many messages; 0: any number.
        client: The address that it has.
        end_ms: When the key or the signed url ends, epoch milliseconds; 0: never.
    """

    account: str
    key_id: str
    label: str
    via: str
    region: str
    levels: str
    queues: tuple[str, ...]
    rate: int
    depth: int
    client: str
    end_ms: int = 0

    @property
    def who(self) -> str:
        """The caller's name in `actions`."""
        named = f"{self.account}/{self.key_id}" if self.key_id else f"anybody at {self.client}"
        return f"{named} ({self.label})" if self.label else named

    def allows(self, level: Level, queue: str | None = None) -> bool:
        """True if the caller has a level for a queue; without a queue, for any."""
        return level.value in self.levels and (queue is None or grants.matches(self.queues, queue))

    def check(self, level: Level, queue: str | None = None) -> None:
        """Refuse a caller that lacks a level, or may not use a queue.

        Args:
            level: The level that the request needs.
            queue: The queue's name in the account; None if the request is about no queue.

        Raises:
            AccessDenied: Names both, and what the key has.
        """
        if self.allows(level, queue):
            return
        about = "" if queue is None else f" on queue {queue!r}"
        raise AccessDenied(
            f"key {self.key_id} lacks the level {level.name.lower()} ({level}){about}: it has "
            f"{self.levels or 'no level'} on {', '.join(self.queues) or 'no queue'}."
        )

    def check_gives(self, levels: str, queues: Iterable[str]) -> None:
        """Refuse to make a key or url with more rights than the caller has.

        Raises:
            AccessDenied: If the caller lacks one of the levels, or one of the queues.
        """
        if not set(levels) <= set(self.levels) or not grants.covers(self.queues, queues):
            raise AccessDenied(
                f"key {self.key_id} cannot give away more than it has: the levels {self.levels} on "
                f"{', '.join(self.queues)}."
            )

    def check_bounds(self, *, end_ms: int, rate: int, depth: int) -> None:
        """Refuse to make a key or url that exceeds the caller's own end or quotas.

        Args:
            end_ms: When the key or url ends, epoch milliseconds; 0: never.
            rate: Its requests a second; 0: any number.
            depth: The messages to which it may fill a queue; 0: any number.

        Raises:
            AccessDenied: Names the first bound that is missing or wider than the caller's.
        """
        for own, given, bound in (
            (self.end_ms, end_ms, f"end by {iso(self.end_ms)}: give until or life"),
            (self.rate, rate, f"have a rate of at most {self.rate:,}: give rate"),
            (self.depth, depth, f"have a depth of at most {self.depth:,}: give depth"),
        ):
            if own and not 0 < given <= own:
                raise AccessDenied(f"keys that key {self.key_id} makes or renews must {bound}.")


@dataclass(frozen=True, slots=True)
class PageSession:
    """A signed-in person who looks at pages.

    Attributes:
        caller: The caller that the person is to the API.
        token: The token in the forms of the person's pages.
        name: The person's name on pages; empty on an open server.
    """

    caller: Caller
    token: str
    name: str


class Access:
    """The keys of a store, reread every 3 s, and the callers that have them.

    Its methods may be called from any thread; `find` reads no store, so an event loop may call it.

    Args:
        db: The store's connection.
        is_open: True if requests without a key are admitted as long as there is no account.
        is_local: True if an open server is for programs of this machine alone.

    Attributes:
        accounts: The accounts of the store.
    """

    def __init__(self, db: Connection, *, is_open: bool = False, is_local: bool = True) -> None:
        self._clock = db._home.clock
        self.accounts: Accounts = Accounts(db._home.store, self._clock)
        self._may_be_open = is_open
        self._is_local = is_local
        self._lock = locks.new()
        self._verifier = sigv4.Verifier()
        self._rates = Rates(self._clock)
        self._depths = Depths(self._clock)
        self._rereads = full_bucket(_REREADS_MAX, self._clock.boot_us())
        self._keys: dict[str, AccountKey] = {}
        self._damaged: set[str] = set()
        self._has_accounts = True
        self._read_us: int | None = None

    @classmethod
    def starting(cls, db: Connection, hosts: Sequence[str], *, insecure: bool = False) -> Access:
        """The access of a server that is about to listen.

        Args:
            db: The store's connection.
            hosts: The addresses or names that it listens on.
            insecure: True to be open to other machines, too, as long as there is no account.

        Raises:
            UsageError: If the store has no account, and other machines could reach the server.
        """
        is_local = all(map(is_loopback, hosts))
        access = cls(db, is_open=is_local or insecure, is_local=is_local and not insecure)
        if not access._may_be_open and not access.accounts.all_accounts():
            raise UsageError(
                f"there is no account, so at {' and '.join(hosts)} everybody who reaches the "
                f"server might do everything. Make an account and a key, `shardq accounts create "
                f"NAME` and `shardq accounts key add NAME`; or listen on --host 127.0.0.1; or say "
                f"--insecure."
            )
        return access

    @property
    def is_open(self) -> bool:
        """True if requests need no key now: there is no account, and the server may be open.

        Reads the store if that was not done within 3 s.
        """
        if self._is_old(REFRESH_US):
            self._refresh(REFRESH_US)
        return self._may_be_open and not self._has_accounts

    @property
    def warning(self) -> str:
        """The line that a server logs when it starts open; empty if it does not."""
        if not self.is_open:
            return ""
        who = "every program of this machine" if self._is_local else "whoever reaches this port"
        return (
            f"there is no account: {who} may do everything, until `shardq accounts create NAME` "
            f"makes one."
        )

    def find(self, request: Request) -> Caller | None:
        """The caller of a request, if it is known without a read of the store.

        Returns:
            None if keys must be reread first: then call `caller_of` from a thread.

        Raises:
            Refusal: As `caller_of` raises it.
        """
        return None if self._is_old(REFRESH_US) else self._found(request)

    def caller_of(self, request: Request) -> Caller:
        """The caller of a request. Reads the store every 3 s, and for a key that is not known.

        Raises:
            Refusal: If the caller is unknown or not admitted, or its key is over its quota.
            StoreError: If the store cannot be read.
        """
        if self._is_old(REFRESH_US):
            self._refresh(REFRESH_US)
        found = self._found(request)
        if found is None and self._rereads.take(self._clock.boot_us()):
            self._refresh(0)
            found = self._found(request)
        if found is None:
            raise _unknown()
        return found

    def session_of(self, request: Request, cookie: str, levels: str) -> PageSession | None:
        """The session of the person who asks for a page; None without one. May read the store.

        Args:
            request: The request.
            cookie: The text of the cookie; empty without one.
            levels: The levels of a user whom a trusted proxy names.

        Raises:
            Refusal: If the request may not be admitted.
            StoreError: If the store cannot be read.
        """
        if self._is_old(REFRESH_US):
            self._refresh(REFRESH_US)
        if self._may_be_open and not self._has_accounts:
            if request.method not in _SAFE:
                _check_page(request)
            if self._is_local:
                _check_local(request)
            return PageSession(anybody(request), token_of(self._master(), "open"), "")
        if request.user:
            caller = replace(anybody(request), label=request.user, via="proxy", levels=levels)
            return PageSession(
                caller, token_of(self._master(), f"user {request.user}"), request.user
            )
        found = Pass.of(cookie)
        key = None if found is None else self._keys.get(found.key_id)
        if found is None or key is None:
            return None
        now_ms = self._clock.now_ms()
        if (
            key.state(now_ms) != "valid"
            or all(one.generation != found.generation for one in key.secrets(now_ms))
            or found.end_s * 1_000 <= now_ms
            or not found.is_valid(self._master())
        ):
            return None
        end_ms = key.grant.end_by(found.end_s * 1_000)
        caller = self._caller(key, "session", request, end_ms=end_ms)
        return PageSession(caller, token_of(self._master(), cookie), key.grant.label or key.id)

    def sign_in(self, request: Request, token: str) -> str:
        """The cookie of a person who signs in by a key. May read the store.

        Args:
            request: The request.
            token: The key, `sq_ID_SECRET`.

        Raises:
            Refusal: If it is no valid key.
            StoreError: If the store cannot be read.
        """
        # Keys are reread, so that a key made just now is known.
        self._refresh(0)
        caller = self._by_token(token.strip(), request)
        if caller is None:
            raise _unknown()
        now_ms = self._clock.now_ms()
        key = self._keys[caller.key_id]
        secret = token.strip().split("_", 2)[2]
        [generation, *_] = [
            one.generation
            for one in key.secrets(now_ms)
            if self.accounts.is_secret(key, one, secret)
        ]
        made = Pass(key.id, generation, now_ms // 1_000 + LIFE_S)
        return made.signed(self._master())

    def _master(self) -> MasterKey:
        return self.accounts.master

    def admits(self, caller: Caller) -> bool:
        """True if an admitted caller would still be admitted. Reads the store every 3 s.

        Args:
            caller: The caller of a request that takes long.

        Raises:
            StoreError: If the store cannot be read.
        """
        if self._is_old(REFRESH_US):
            self._refresh(REFRESH_US)
        if caller.via == "proxy":
            # No key ends it: the proxy signed the person in.
            return True
        if not caller.key_id:
            return self._may_be_open and not self._has_accounts
        now_ms = self._clock.now_ms()
        key = self._keys.get(caller.key_id)
        has_ended = 0 < caller.end_ms <= now_ms
        return key is not None and key.state(now_ms) == "valid" and not has_ended

    def check_depth(self, caller: Caller, queue: Queue, count: int = 1) -> None:
        """Refuse puts into a queue that the caller's key may not fill further.

        Reads the store at most once a second for each queue if `caller.depth` is set, else never.

        Args:
            caller: The caller.
            queue: The queue.
            count: How many messages are to be put.

        Raises:
            RequestThrottled: If the queue would hold more.
        """
        if caller.depth:
            self._depths.take(caller.key_id, caller.depth, queue, count)

    # Keys -----------------------------------------------------------------------------------------

    def _is_old(self, most_us: int) -> bool:
        return self._read_us is None or self._clock.boot_us() - self._read_us >= most_us

    def _refresh(self, most_us: int) -> None:
        with self._lock:
            # Many threads may wait here; the first one has reread the keys for all.
            if not self._is_old(most_us):
                return
            at_us = self._clock.boot_us()
            damaged: dict[str, StoreCorrupt] = {}
            keys = {key.id: key for key in self.accounts.all_keys(damaged)}
            for key_id in damaged.keys() - self._damaged:
                # Only the damaged key is refused; all others stay valid.
                log.error("%s", damaged[key_id])
            self._damaged = set(damaged)
            self._has_accounts = bool(keys or damaged) or bool(self.accounts.all_accounts())
            if keys and self._read_us is None:
                self.accounts.read_master()
            self._keys, self._read_us = keys, at_us

    def _key(self, key_id: str) -> AccountKey | None:
        """A valid key; None if keys must be reread first, because it may be new.

        Raises:
            InvalidClientTokenId: If there is none.
        """
        key = self._keys.get(key_id)
        if key is None:
            if self._rereads.next_us() <= self._clock.boot_us():
                return None
            raise _unknown()
        if (state := key.state(self._clock.now_ms())) != "valid":
            raise InvalidClientTokenId(f"key {key_id} is {state}; use another one.")
        return key

    # Callers --------------------------------------------------------------------------------------

    def _found(self, request: Request) -> Caller | None:
        authorization = request.headers.get("authorization", "")
        if self._may_be_open and not self._has_accounts:
            return self._anybody(request, authorization)
        if sigv4.is_in_header(authorization):
            return self._by_signature(sigv4.from_header(request), request)
        if authorization[: len(_BEARER)].lower() == _BEARER:
            return self._by_token(authorization[len(_BEARER) :].strip(), request)
        if authorization:
            raise MissingAuthenticationToken(
                "the Authorization header must be `Bearer sq_..` or a signature of version 4."
            )
        if sigv4.is_in_query(request.query):
            return self._by_signature(sigv4.from_query(request), request)
        if signed.is_in_query(request.query):
            return self._by_url(signed.from_query(request.query), request)
        raise MissingAuthenticationToken(
            "the request has no key: send `Authorization: Bearer sq_..`, sign it, or "
            "use a signed url."
        )

    def _by_token(self, token: str, request: Request) -> Caller | None:
        prefix, _, rest = token.partition("_")
        key_id, _, secret = rest.partition("_")
        if prefix != "sq" or not secret or len(token) > _TOKEN_CHARACTERS_MAX:
            raise InvalidClientTokenId("a bearer key is `sq_ID_SECRET`.")
        key = self._key(key_id)
        if key is None:
            return None
        now_ms = self._clock.now_ms()
        if not any(self.accounts.is_secret(key, one, secret) for one in key.secrets(now_ms)):
            raise InvalidClientTokenId(f"the secret of key {key_id} is another one.")
        return self._caller(key, "bearer", request)

    def _by_signature(self, signature: sigv4.Signature, request: Request) -> Caller | None:
        key = self._key(signature.key_id)
        if key is None:
            return None
        if not key.is_derived:
            raise InvalidClientTokenId(
                f"key {key.id} cannot sign: its secret is stored as a hash. Make one with `shardq "
                f"accounts key add ACCOUNT --sigv4`."
            )
        now_ms = self._clock.now_ms()
        sigv4.check_time(signature, now_ms / 1_000)
        for one in key.secrets(now_ms):
            if one.master != self.accounts.master.fingerprint:
                raise SignatureDoesNotMatch(
                    f"key {key.id} was made by another master key than this server has."
                )
            secret = partial(self.accounts.secret_of, key, one)
            if self._verifier.is_valid(signature, request, secret, one.generation):
                return self._caller(key, "sigv4", request, region=signature.region)
        raise SignatureDoesNotMatch(
            "The request signature we calculated does not match the signature you provided. Check "
            "your secret access key, and that nothing on the way changes the request's path, host "
            "or body."
        )

    def _by_url(self, url: signed.UnverifiedUrl, request: Request) -> Caller | None:
        key = self._key(url.key_id)
        if key is None:
            return None
        now_ms = self._clock.now_ms()
        if not any(
            url.is_valid(self.accounts.master, key.account, one.generation)
            for one in key.secrets(now_ms)
        ):
            raise SignatureDoesNotMatch("the url's signature does not match what the url says.")
        url.check_time(now_ms)
        return self._caller(
            key,
            "url",
            request,
            levels="".join(one for one in url.levels if one in key.grant.levels),
            queues=grants.within([url.queue], key.grant.queues),
            end_ms=key.grant.end_by(url.end_s * 1_000),
        )

    def _caller(
        self,
        key: AccountKey,
        via: str,
        request: Request,
        *,
        region: str = "",
        levels: str | None = None,
        queues: tuple[str, ...] | None = None,
        end_ms: int = 0,
    ) -> Caller:
        grant = key.grant
        if grant.rate:
            self._rates.take(key.id, grant.rate)
        return Caller(
            key.account,
            key.id,
            grant.label,
            via,
            region,
            grant.levels if levels is None else levels,
            grant.queues if queues is None else queues,
            grant.rate,
            grant.depth,
            request.client,
            end_ms or grant.end_ms,
        )

    def _anybody(self, request: Request, authorization: str) -> Caller:
        _check_page(request)
        if self._is_local:
            _check_local(request)
        region = ""
        if sigv4.is_in_header(authorization):
            # Clients sign with any key; the region names their queues.
            region = sigv4.from_header(request).region
        elif sigv4.is_in_query(request.query):
            region = sigv4.from_query(request).region
        return anybody(request, region)


def anybody(request: Request, region: str = "") -> Caller:
    """The caller of a request to an open server."""
    anything = (grants.ANY_QUEUE,)
    return Caller(
        DEFAULT_ACCOUNT, "", "", "open", region, grants.ALL, anything, 0, 0, request.client
    )


@lru_cache(_HOSTS_KEPT)
def is_loopback(host: str) -> bool:
    """True if only programs of this machine reach a server on this address or name.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    name = host.strip("[]").lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name in _LOCAL_NAMES or name.endswith(tuple(f".{one}" for one in _LOCAL_NAMES))


def _check_local(request: Request) -> None:
    """Refuse a request that is not from a program of this machine.

    A request through a proxy may be from anywhere. So may one under a name of a web site that leads
    to 127.0.0.1: the site's page in a browser of this machine sends it.

    Raises:
        AccessDenied: If it is from elsewhere.
    """
    is_named = not request.host or is_loopback(_host_of(f"//{request.host}"))
    is_direct = _FORWARDED.isdisjoint(request.headers)
    if not (is_named and is_direct and is_loopback(request.client)):
        raise AccessDenied(
            f"a server without an account answers programs of this machine under a name of "
            f"loopback alone, not {request.client!r} for {request.host!r}: make an account, "
            f"`shardq accounts create NAME`, and use a key; or serve with --insecure."
        )


def _check_page(request: Request) -> None:
    """Refuse a request that a browser sends for another site's page: an open server needs no key.

    Raises:
        AccessDenied: If it is such a request.
    """
    origin = request.headers.get("origin")
    is_same = origin is None or origin.partition("://")[2] == request.host
    if not is_same or request.headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        raise AccessDenied(
            f"the page of another site, {origin or 'in a browser'}, may do nothing here without a "
            f"key; `shardq accounts create NAME` makes an account."
        )


@lru_cache(_HOSTS_KEPT)
def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _unknown() -> Refusal:
    return InvalidClientTokenId("the key is not known; `shardq accounts key list` shows all keys.")
