"""The url of a SQLite database, read into a path and options. Opens nothing.

| option | default | |
|---|---|---|
| `synchronous` | `full` | `full`: a commit is on the disk; `normal`: a power cut may undo it |
| `busy` | `10s` | how long a call waits for other processes' writes |
| `mode` | | `ro`: the file is read and never changed |

With `mode=ro` no file is made beside the database, unless a log exists there. Then SQLite makes the
log's index, and log and index may stay until a process that writes closes the database.
Without `mode=ro` a file is open for reading only if this user cannot write it or its directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from shardq.errors import BadTime, BadUrl
from shardq.model.times import duration_ms, duration_text
from shardq.stores.url import shown, split

BUSY_MS = 10_000
_BUSY_MAX_MS = 600_000
_SYNCHRONOUS = ("full", "normal")
_OPTIONS = ("synchronous=full|normal", "busy=10s", "mode=ro")


def read_url(url: str) -> tuple[Path | None, dict[str, Any]]:
    """The file that a url names, None for memory, and the options of `SqliteStore`.

    Raises:
        BadUrl: If the url names no file, or an option is unknown or unreadable.
    """
    parts = split(url)
    if parts.scheme != "sqlite" or not url.startswith("sqlite://"):
        raise BadUrl(
            f"store url {shown(url)} must begin with sqlite://, as sqlite:///jobs.db does."
        )
    if parts.netloc:
        raise BadUrl(
            f"store url {shown(url)} names a host, which SQLite has none of; "
            f"write sqlite:///jobs.db, or sqlite:////var/jobs.db for an absolute path."
        )
    if parts.fragment:
        raise BadUrl(f"store url {shown(url)} has a '#' in it; write %23.")
    # File names are bytes, and need not be UTF-8.
    path = _path_of(url, unquote(parts.path, errors="surrogateescape"))
    options = _options_of(url, parts.query)
    if path is None and options.get("read_only"):
        raise BadUrl(f"store url {shown(url)}: memory is empty at first; mode=ro needs a file.")
    return path, options


def _path_of(url: str, path: str) -> Path | None:
    if path in ("", "/:memory:"):
        return None
    name = path[1:]
    if not name or name.endswith("/") or "\0" in name:
        raise BadUrl(f"store url {shown(url)} names no file; write sqlite:///jobs.db or sqlite://.")
    return Path(name)


def _options_of(url: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "synchronous" and value.lower() in _SYNCHRONOUS:
            options["synchronous"] = value.lower()
        elif name == "busy":
            options["busy_ms"] = _busy_ms(url, value)
        elif name == "mode" and value == "ro":
            options["read_only"] = True
        else:
            raise BadUrl(
                f"store url {shown(url)}: {name!r} is no option, or not with this value; "
                f"there are {', '.join(_OPTIONS)}."
            )
    return options


def _busy_ms(url: str, value: str) -> int:
    try:
        busy_ms = duration_ms(value, name="busy")
    except BadTime as error:
        raise BadUrl(f"store url {shown(url)}: {error}") from error
    if busy_ms > _BUSY_MAX_MS:
        raise BadUrl(f"store url {shown(url)}: busy must be at most {duration_text(_BUSY_MAX_MS)}.")
    return busy_ms
