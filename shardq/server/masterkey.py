"""The key from which secrets are derived: of a file, of the environment, or made once in the store.

A derived secret is stored nowhere. Whoever has the master key can make it, so a store that holds
the master key is as secret as the keys themselves.
"""

from __future__ import annotations

import base64
import hmac
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shardq.errors import StoreCorrupt, UsageError
from shardq.stores.tables import ACCOUNTS, AccountRecord, Change

if TYPE_CHECKING:
    from shardq.stores.store import Registers

MASTER_VARIABLE = "SHARDQ_MASTER_KEY"
FILE_VARIABLE = "SHARDQ_MASTER_KEY_FILE"
ROW = "master"
"""The master key's row in table `accounts`. It is no account's id, as those have 12 digits."""
_CHARACTERS_MIN = 32
_BYTES = 32


class _StoredMasterKey(msgspec.Struct, frozen=True):
    master: bytes

    def __repr__(self) -> str:
        return "_StoredMasterKey(...)"


class MasterKey:
    """Derives secrets.

    Args:
        key: The bytes of the master key.

    Attributes:
        fingerprint: 16 characters that distinguish the key from others, and reveal nothing else of
            it.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.fingerprint: str = self.derive("fingerprint", "", 0)[:8].hex()

    def derive(self, purpose: str, key_id: str, generation: int) -> bytes:
        """Derive 32 bytes for a purpose, key and generation; always the same for the same three."""
        text = f"shardq\0{purpose}\0{key_id}\0{generation}"
        return hmac.digest(self._key, text.encode(), "sha256")


def master_key(store: Registers) -> MasterKey:
    """The master key: from the file that the environment names, the environment, or the store.

    If there is none, a key is made in the store. Costs a read, and the first time an LWT.

    Raises:
        UsageError: If the given key is too short, or its file cannot be read.
        StoreCorrupt: If the stored key is damaged.
    """
    if (path := os.environ.get(FILE_VARIABLE)) is not None:
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"the master key cannot be read from {path}, which {FILE_VARIABLE} names."
            ) from error
        return _given(text, f"the file that {FILE_VARIABLE} names")
    if (text := os.environ.get(MASTER_VARIABLE, "").strip()) != "":
        return _given(text, MASTER_VARIABLE)
    record = store.records(ACCOUNTS, (), [ROW]).get(ROW)
    if record is None:
        made = _StoredMasterKey(secrets.token_bytes(_BYTES))
        record = AccountRecord(msgspec.json.encode(made).decode(), 1)
        change = Change((), (ROW,), {"version": None}, record._asdict())
        if store.write_records(ACCOUNTS, [change]):
            # Another process has made the key.
            record = store.records(ACCOUNTS, (), [ROW])[ROW]
    try:
        return MasterKey(msgspec.json.decode(record.info, type=_StoredMasterKey).master)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(
            "the master key in table accounts is damaged; restore the store from a copy, or give "
            f"the key by {MASTER_VARIABLE}."
        ) from error


def _given(text: str, where: str) -> MasterKey:
    if len(text) < _CHARACTERS_MIN:
        raise UsageError(
            f"the master key of {where} must have {_CHARACTERS_MIN} characters or more; "
            f"`openssl rand -hex 32` makes one."
        )
    return MasterKey(text.encode())


def secret_text(secret: bytes) -> str:
    """A secret as people copy it: only small letters and digits."""
    return base64.b32encode(secret).decode().rstrip("=").lower()
