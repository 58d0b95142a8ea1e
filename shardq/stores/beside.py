"""The names of the files that members have in the directory beside a store, `jobs.db-members`.

Which member locks which file, and what follows from that, is `records/presence.py`'s.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote

from shardq.errors import StoreUnavailable
from shardq.stores.url import printable

if TYPE_CHECKING:
    from pathlib import Path

FILES_MAX = 1_000
"""Entries of the directory that are looked at in one turn."""
_NAME = re.compile(r"[\w.~:%-]+%2F[0-9a-f]{1,16}", re.ASCII)


def name_of(holder: str) -> str:
    """The name of a member's file: a name in that directory, whatever the member is called.

    >>> name_of("mailer:4711/5b1c09aa")
    'mailer:4711%2F5b1c09aa'
    """
    return quote(holder, safe=":", errors="surrogatepass")


def is_members(entry: os.DirEntry[str]) -> bool:
    """True if an entry can be a member's file: empty, regular, and named as one.

    Raises:
        OSError: If it is gone, or cannot be looked at.
    """
    found = entry.stat(follow_symlinks=False)
    return stat.S_ISREG(found.st_mode) and not found.st_size and bool(_NAME.fullmatch(entry.name))


def check(directory: Path, shown: str) -> None:
    """Refuse a directory that is somebody else's: what is old in it is removed.

    Args:
        directory: Where members' files go; it need not exist.
        shown: How the store is named in errors.

    Raises:
        StoreUnavailable: If it is a link, no directory, or holds other files than members'.
    """
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            raise _foreign(directory, shown, "is a link or a file")
        with os.scandir(directory) as entries:
            for entry in islice(entries, FILES_MAX):
                if not _is_members_or_gone(entry):
                    raise _foreign(directory, shown, f"holds {printable(entry.name)}")
    except (FileNotFoundError, PermissionError):
        # Where it is not to be had, nothing is made or removed there.
        return


def _is_members_or_gone(entry: os.DirEntry[str]) -> bool:
    try:
        return is_members(entry)
    except FileNotFoundError:
        return True


def _foreign(directory: Path, shown: str, how: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{shown} keeps its members' files in {printable(directory)}, but that {how}: rename it, "
        f"or name another database."
    )
