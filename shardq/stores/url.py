"""Store urls: split into parts, and shown without users and passwords."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, urlsplit

from shardq.errors import BadUrl

if TYPE_CHECKING:
    from pathlib import Path

_LOGIN = re.compile(r"(?<=://)[^/].*@|\A(?!\w+://).*@", re.DOTALL)
_PASSWORD = re.compile(r"(password=).*", re.DOTALL | re.IGNORECASE)
_SHOWN_MAX = 200
_RELATIVE = "sqlite:///"
"""Comes before the name of a file in the working directory."""


def split(url: object) -> SplitResult:
    """The parts of a url.

    Raises:
        BadUrl: If the url is not printable text, or cannot be split.
    """
    if not isinstance(url, str):
        raise BadUrl(f"a store url is text such as sqlite:///jobs.db, not {type(url).__name__}.")
    if not url.isprintable():
        raise BadUrl(
            f"store url {shown(url)} has characters that cannot be printed; "
            f"write them in percents, as %20."
        )
    try:
        return urlsplit(url)
    except ValueError:
        # The error's text may quote the password, and a cause is printed too.
        raise BadUrl(f"store url {shown(url)} cannot be read.") from None


def shown(url: str) -> str:
    """A url for an error, quoted, without parts that are, or may be meant as, user or password.

    >>> shown("casandra://me:secret@db/jobs?password=secret")
    "'casandra://...@db/jobs?password=...'"
    """
    text = repr(_LOGIN.sub("...@", _PASSWORD.sub(r"\1...", url)))
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 4] + "...'"


def anchored(url: str, directory: Path) -> str:
    """The url with a directory before its file, if it names a file by a relative path.

    >>> from pathlib import Path
    >>> [anchored(f"sqlite:///{file}", Path("/srv")) for file in ("jobs.db", "/var/jobs.db")]
    ['sqlite:////srv/jobs.db', 'sqlite:////var/jobs.db']
    """
    file = url.removeprefix(_RELATIVE)
    if file == url or not file or file.startswith(("/", "?", ":memory:")):
        return url
    return f"{_RELATIVE}{printable(directory)}/{file}"


def printable(path: Path | str) -> str:
    """A path as part of a url: printable in one line, and readable again.

    >>> printable("/var/50%.db")
    '/var/50%25.db'
    """
    return "".join(
        c if c.isprintable() and c not in "%?#" else quote(os.fsencode(c)) for c in str(path)
    )
