"""The names of the files that members keep in the directory beside a store, `jobs.db-members`.

`records/presence.py` makes and locks the files.
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
"""Entries of the directory that one check looks at."""
_NAME = re.compile(r"[\w.~:%-]+%2F[0-9a-f]{1,16}", re.ASCII)


def name_of(holder: str) -> str:
    """The name of a member's file, valid in the directory whatever the member's name is.

    >>> name_of("mailer:4711/5b1c09aa")
    'mailer:4711%2F5b1c09aa'
    """
    return quote(holder, safe=":", errors="surrogatepass")


def is_members(entry: os.DirEntry[str]) -> bool:
    """True if an entry can be a member's file: a regular, empty file with a member's name.

    Raises:
        OSError: If the entry is gone, or cannot be looked at.
    """
    found = entry.stat(follow_symlinks=False)
    return stat.S_ISREG(found.st_mode) and not found.st_size and bool(_NAME.fullmatch(entry.name))


def check(directory: Path, shown: str) -> None:
    """Refuse a directory with other files than members', because members remove old files there.

    Args:
        directory: The directory for members' files; it need not exist.
        shown: The store's name for errors.

    Raises:
        StoreUnavailable: If the path is a link or a file, or the directory holds other files.
    """
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            raise _foreign(directory, shown, "is a link or a file")
        with os.scandir(directory) as entries:
            for entry in islice(entries, FILES_MAX):
                if not _is_members_or_gone(entry):
                    raise _foreign(directory, shown, f"holds {printable(entry.name)}")
    except (FileNotFoundError, PermissionError):
        # Members neither make nor remove files in a directory that they cannot open.
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
