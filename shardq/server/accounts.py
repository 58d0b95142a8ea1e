"""Accounts of the server and their keys, in the store.

```
 account 000000000000 shop
 ├── key SQ..: levels, patterns of queues, end, quotas
 │   ├── secret of generation 2: its hash, or derived
 │   └── secret of generation 1, until its end: a rotation leaves two valid
 └── key SQ..
```

No secret is stored. Of a random secret the hash is stored, and a derived secret follows from the
master key. So a secret is shown only once, when it is made. `server/access.py` checks requests
against these accounts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from shardq.errors import StoreCorrupt, StoreUnavailable, UnknownAccount, UsageError, shown
from shardq.model import names
from shardq.server import grants
from shardq.server.masterkey import ROW, MasterKey, master_key, secret_text
from shardq.stores.tables import ACCESS, ACCOUNTS, AccessRecord, AccountRecord, Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq.clock import Clock
    from shardq.stores.store import Registers

DEFAULT_ACCOUNT = "000000000000"
"""The id of the first account, which requests to an open server also have: its queues have plain
names."""
NAME_MAX = 100
LABEL_MAX = 100
RATE_MAX = 1_000_000
DEPTH_MAX = 1_000_000_000
_ID = re.compile(r"[0-9]{12}\Z", re.ASCII)
_KEY_ID_BYTES = 11
_SECRET_BYTES = 32
_TRIES = 20
_SECRETS_MAX = 2

S = TypeVar("S", bound=msgspec.Struct)


class _AccountInfo(msgspec.Struct, frozen=True):
    name: str
    made_ms: int


class Secret(msgspec.Struct, frozen=True):
    """One of a key's secrets: random, or derived from the master key.

    Attributes:
        generation: 1 for the first, and one more with each rotation.
        hash: The sha256 of a random secret; None for a derived secret.
        master: The fingerprint of the master key behind a derived secret; empty for a random one.
        until_ms: The secret's end, epoch milliseconds; 0: the secret ends with its key.
    """

    generation: int
    hash: bytes | None = None
    master: str = ""
    until_ms: int = 0

    def __repr__(self) -> str:
        kind = "derived" if self.hash is None else "hashed"
        return f"Secret(generation={self.generation}, {kind}, until_ms={self.until_ms})"


class Grant(msgspec.Struct, frozen=True):
    """The rights of a key, as stored.

    Attributes:
        levels: The letters of the key's levels.
        queues: Patterns of the queues that the key may use.
        secrets: The key's secrets, the newest first.
        made_ms: When the key was made, epoch milliseconds.
        end_ms: When the key ends, epoch milliseconds; 0 if never.
        label: A text by which people know the key.
        rate: The most requests a second in each server process; 0 for any number.
        depth: No puts into a queue that holds this many messages; 0 for any number.
        revoked_ms: When the key was revoked, epoch milliseconds; 0 if it was not.
    """

    levels: str
    queues: tuple[str, ...]
    secrets: tuple[Secret, ...]
    made_ms: int
    end_ms: int = 0
    label: str = ""
    rate: int = 0
    depth: int = 0
    revoked_ms: int = 0

    def end_by(self, end_ms: int) -> int:
        """The end of a url that the key signed until a time: no later than the key's own end."""
        return min(end_ms, self.end_ms or end_ms)


@dataclass(frozen=True, slots=True)
class Account:
    """An account, with keys by which requests use its queues.

    Attributes:
        id: 12 digits.
        name: The account's name.
        made_ms: When the account was made, epoch milliseconds.
    """

    id: str
    name: str
    made_ms: int


@dataclass(frozen=True, slots=True)
class AccountKey:
    """A key of an account.

    Attributes:
        id: 20 capitals and digits; it is no secret.
        account: The account's id.
        grant: What the key may do.
        version: How often the key was stored.
    """

    id: str
    account: str
    grant: Grant
    version: int

    def state(self, now_ms: int) -> str:
        """`valid`, `ended` or `revoked`."""
        if self.grant.revoked_ms:
            return "revoked"
        return "ended" if 0 < self.grant.end_ms <= now_ms else "valid"

    @property
    def is_derived(self) -> bool:
        """True if the key's secrets are derived, and so can sign by SigV4."""
        return self.grant.secrets[0].hash is None

    def secrets(self, now_ms: int) -> tuple[Secret, ...]:
        """The key's secrets that have not ended, the newest first."""
        return tuple(one for one in self.grant.secrets if not one.until_ms or now_ms < one.until_ms)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key with a new secret, to be shown once.

    Attributes:
        key: The key.
        secret: The secret; if it is derived, SDKs call it the secret access key.
    """

    key: AccountKey
    secret: str = field(repr=False)

    @property
    def token(self) -> str:
        """Id and secret as one text, for `Authorization: Bearer`."""
        return f"sq_{self.key.id}_{self.secret}"


class Accounts:
    """The accounts of a store, and their keys."""

    def __init__(self, store: Registers, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._master: MasterKey | None = None

    @property
    def master(self) -> MasterKey:
        """The master key, read or made at the first use."""
        return self._master or self.read_master()

    def read_master(self) -> MasterKey:
        """Read the master key, or make it. Costs at most two reads and an LWT."""
        self._master = master_key(self._store)
        return self._master

    # Accounts -------------------------------------------------------------------------------------

    def create(self, name: str, account_id: str | None = None) -> Account:
        """Make an account. Idempotent: the account that has the name is returned.

        Args:
            name: 1 to 100 printable characters.
            account_id: 12 digits. None for those of `DEFAULT_ACCOUNT` if this is the first account,
                else for digits that follow from the name.

        Raises:
            BadName: If the name cannot be used.
            UsageError: If another account has the id, or this name has another id.
        """
        names.label(name, what="an account's name", most=NAME_MAX)
        if account_id is not None and not _ID.match(account_id):
            raise UsageError(f"an account's id is 12 digits, not {shown(account_id)}.")
        for attempt in range(_TRIES):
            there = self.all_accounts()
            for one in there:
                if one.name == name:
                    if account_id in (None, one.id):
                        return one
                    raise UsageError(f"account {name!r} exists and has the id {one.id}.")
                if one.id == account_id:
                    raise UsageError(f"account {one.name!r} has the id {account_id}.")
            chosen = account_id or (_derived_id(name, attempt) if there else DEFAULT_ACCOUNT)
            info = _AccountInfo(name, self._clock.now_ms())
            record = AccountRecord(_text(info), 1)
            change = Change((), (chosen,), {"version": None}, record._asdict())
            if not self._store.write_records(ACCOUNTS, [change]):
                return Account(chosen, name, info.made_ms)
        raise StoreUnavailable(f"account {name!r} could not be made: others kept making accounts.")

    def all_accounts(self) -> list[Account]:
        """All accounts, by name. Costs one read."""
        found = []
        for account_id, record in self._store.notes(ACCOUNTS, ()).items():
            if account_id != ROW:
                info = _read(record.info, _AccountInfo, f"account {account_id}")
                found.append(Account(account_id, info.name, info.made_ms))
        return sorted(found, key=lambda one: (one.name, one.id))

    def account(self, named: str) -> Account:
        """An account by its id or name.

        Raises:
            UnknownAccount: If there is no such account.
        """
        there = self.all_accounts()
        found = [one for one in there if named == one.id] or [
            one for one in there if named == one.name
        ]
        if not found:
            known = ", ".join(repr(one.name) for one in there[:10]) or "none yet"
            raise UnknownAccount(
                f"there is no account {shown(named)}; there are {known}. `shardq accounts create` "
                f"makes one."
            )
        return found[0]

    # Keys -----------------------------------------------------------------------------------------

    def all_keys(self, damaged: dict[str, StoreCorrupt] | None = None) -> list[AccountKey]:
        """All keys, including revoked ones, by account and age. Costs one read.

        Args:
            damaged: Gets the errors of keys that cannot be read, by their ids; if None, the first
                error is raised.

        Raises:
            StoreCorrupt: If a key cannot be read.
        """
        found = []
        for key_id, record in self._store.notes(ACCESS, ()).items():
            try:
                found.append(_key(key_id, record))
            except StoreCorrupt as error:
                if damaged is None:
                    raise
                damaged[key_id] = error
        return sorted(found, key=lambda one: (one.account, one.grant.made_ms, one.id))

    def key(self, key_id: str) -> AccountKey:
        """A key by its id, as last stored.

        Raises:
            UnknownAccount: If there is no such key.
        """
        record = self._store.records(ACCESS, (), [key_id]).get(key_id)
        if record is None:
            raise UnknownAccount(
                f"there is no key {shown(key_id)}; `shardq accounts key list` shows all."
            )
        return _key(key_id, record)

    def add_key(
        self,
        account: Account,
        *,
        levels: str,
        queues: Iterable[str] = (grants.ANY_QUEUE,),
        end_ms: int = 0,
        label: str = "",
        rate: int = 0,
        depth: int = 0,
        is_derived: bool = False,
    ) -> IssuedKey:
        """Make a key of an account.

        Args:
            account: The account.
            levels: As `grants.levels_of` takes them.
            queues: Patterns of the queues that the key may use.
            end_ms: When the key ends, epoch milliseconds; 0 if never.
            label: A text by which people know the key, up to 100 characters.
            rate: The most requests a second in each server process; 0 for any number.
            depth: No puts into a queue that holds this many messages; 0 for any number.
            is_derived: True if the key also signs by SigV4, for which a server must know the
                secret.

        Raises:
            UsageError: If a value cannot be used; nothing was written.
        """
        now_ms = self._clock.now_ms()
        if end_ms and end_ms <= now_ms:
            raise UsageError("a key must end later than now.")
        if label:
            names.label(label, what="a key's label", most=LABEL_MAX)
        for what, value, most in (("rate", rate, RATE_MAX), ("depth", depth, DEPTH_MAX)):
            if not 0 <= value <= most:
                raise UsageError(f"a key's {what} must be 0 to {most:,}, not {value:,}.")
        key_id = "SQ" + base64.b32encode(secrets.token_bytes(_KEY_ID_BYTES)).decode()[:18]
        stored, secret = self._secret(key_id, 1, is_derived=is_derived)
        grant = Grant(
            levels=grants.levels_of(levels),
            queues=grants.patterns_of(queues),
            secrets=(stored,),
            made_ms=now_ms,
            end_ms=end_ms,
            label=label,
            rate=rate,
            depth=depth,
        )
        made = AccountKey(key_id, account.id, grant, 1)
        self._write(made, None)
        return IssuedKey(made, secret)

    def rotate(self, key_id: str, keep_ms: int) -> IssuedKey:
        """Give a key a new secret. The last secret stays valid for a while, older ones end now.

        Args:
            key_id: The key.
            keep_ms: How long the last secret stays valid, milliseconds.

        Raises:
            UnknownAccount: If there is no such key.
            UsageError: If the key was revoked or has ended.
        """
        now_ms = self._clock.now_ms()
        # Make a secret once: a random secret must be the same as in the record that is written.
        made: dict[int, tuple[Secret, str]] = {}

        def step(key: AccountKey) -> Grant:
            if (state := key.state(now_ms)) != "valid":
                raise UsageError(f"key {key_id} is {state}; add another one.")
            generation = key.grant.secrets[0].generation + 1
            if generation not in made:
                made[generation] = self._secret(key_id, generation, is_derived=key.is_derived)
            former = msgspec.structs.replace(key.grant.secrets[0], until_ms=now_ms + keep_ms)
            newest = (made[generation][0], former)
            return msgspec.structs.replace(key.grant, secrets=newest[:_SECRETS_MAX])

        changed = self._change(key_id, step)
        return IssuedKey(changed, made[changed.grant.secrets[0].generation][1])

    def revoke(self, key_id: str) -> AccountKey:
        """Revoke a key for good. Idempotent; every server process refuses it within 5 s.

        Raises:
            UnknownAccount: If there is no such key.
        """
        now_ms = self._clock.now_ms()
        return self._change(
            key_id,
            lambda key: msgspec.structs.replace(
                key.grant, revoked_ms=key.grant.revoked_ms or now_ms
            ),
        )

    # Secrets --------------------------------------------------------------------------------------

    def secret_of(self, key: AccountKey, secret: Secret) -> str:
        """The text of a derived secret."""
        return secret_text(self.master.derive("secret", key.id, secret.generation))

    def is_secret(self, key: AccountKey, secret: Secret, given: str) -> bool:
        """True if a text is this secret of a key. The comparison takes constant time."""
        if secret.hash is None:
            return hmac.compare_digest(self.secret_of(key, secret).encode(), given.encode())
        return hmac.compare_digest(secret.hash, _hash(given))

    def _secret(self, key_id: str, generation: int, *, is_derived: bool) -> tuple[Secret, str]:
        if is_derived:
            master = self.master
            secret = secret_text(master.derive("secret", key_id, generation))
            return Secret(generation, master=master.fingerprint), secret
        secret = secret_text(secrets.token_bytes(_SECRET_BYTES))
        return Secret(generation, hash=_hash(secret)), secret

    def _change(self, key_id: str, step: Callable[[AccountKey], Grant]) -> AccountKey:
        for _ in range(_TRIES):
            there = self.key(key_id)
            wanted = AccountKey(key_id, there.account, step(there), there.version + 1)
            if wanted.grant == there.grant or self._write(wanted, there.version):
                return wanted
        raise StoreUnavailable(f"key {key_id} could not be changed: others kept changing it.")

    def _write(self, key: AccountKey, seen: int | None) -> bool:
        record = AccessRecord(key.account, _text(key.grant), key.version)
        change = Change((), (key.id,), {"version": seen}, record._asdict())
        return not self._store.write_records(ACCESS, [change])


def _hash(secret: str) -> bytes:
    # A slow hash would protect words that people choose; this secret has 256 random bits.
    return hashlib.sha256(secret.encode()).digest()


def _derived_id(name: str, attempt: int) -> str:
    digest = hashlib.sha256(f"{attempt}:{name}".encode()).digest()
    return f"{int.from_bytes(digest[:8], 'big') % 10**12:012}"


def _key(key_id: str, record: AccessRecord) -> AccountKey:
    return AccountKey(
        key_id, record.account, _read(record.info, Grant, f"key {key_id}"), record.version
    )


def _text(info: msgspec.Struct) -> str:
    return msgspec.json.encode(info).decode()


def _read(text: str, kind: type[S], whose: str) -> S:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        # The text is not shown, because it may contain hashes.
        raise StoreCorrupt(
            f"the record of {whose} is damaged; restore the store from a copy."
        ) from error
