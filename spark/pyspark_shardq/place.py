"""A process's open stores, shared by all that Spark runs in it: drivers, planners, tasks.

Spark's Python processes run one task after another. So a store is opened when the first task needs
it, never at import and never before a fork, and stays open for later tasks.
"""

from __future__ import annotations

from pathlib import Path

from pyspark_shardq.options import url_of
from shardq import locks
from shardq.clock import SystemClock
from shardq.errors import UnknownQueue
from shardq.lifecycle.home import Home
from shardq.records.register import Register
from shardq.stores import store_of
from shardq.stores.url import shown, split

_places: dict[str, tuple[Home, object]] = {}
"""The places by url, each with the identity of the store's file when it was opened."""
_lock = locks.new()


def place(store: str, *, create: bool = False) -> Home:
    """This process's place of a store, opened at its first use. From any thread.

    Args:
        store: A url, or `env:NAME`.
        create: True if a missing SQLite file may be made.

    Raises:
        BadUrl: If the text names no store.
        UnknownQueue: If the store is a file that does not exist.
        SchemaMissing, SchemaNewer: If the store has no tables of shardq, or those of a newer one.
        StoreUnavailable: If the store cannot be reached.
    """
    url = url_of(store)
    with _lock:
        found = _places.get(url)
        file = _file_of(url, create=create)
        # A file that was removed and made anew is another store than the open one.
        if found is None or found[1] != file:
            if found is not None:
                found[0].store.close()
                del _places[url]
            opened = store_of(url)
            opened.open()
            clock = SystemClock()
            _places[url] = found = Home(opened, clock), _file_of(url, create=True)
    here = found[0]
    here.clock.measure(here.store)
    return here


def register_of(here: Home, queue: str, *, create: bool = False) -> Register:
    """The record of a queue, read anew.

    Args:
        here: Where the queue is.
        queue: Its name.
        create: True to make it where there is none.

    Raises:
        UnknownQueue: If there is none, and none is to be made.
        ClockError: If this machine's clock is further off than the queue's offset.
    """
    return Register.open(here.store, here.clock, queue, {}, create=create)


def _file_of(url: str, *, create: bool) -> object:
    """The identity of a SQLite file, which a new file of the name lacks; None for other stores."""
    parts = split(url)
    if parts.scheme != "sqlite":
        return None
    from shardq.stores.sqlite.address import read_url

    path, _ = read_url(url)
    if path is None:
        return None
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        if create:
            return None
        raise UnknownQueue(
            f"there is no file {str(path.absolute())!r}, which the store {shown(url)} names; check "
            f"the name, or put a first message."
        ) from None
    return found.st_dev, found.st_ino
