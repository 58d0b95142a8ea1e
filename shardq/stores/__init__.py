"""The databases that hold queues, each behind the protocol of `shardq.stores.store`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.errors import BadUrl
from shardq.stores.url import shown, split

if TYPE_CHECKING:
    from shardq.stores.store import Store


def store_of(url: str) -> Store:
    """The store that a url names, not yet opened.

    Args:
        url: `sqlite:///jobs.db` (relative), `sqlite:////var/jobs.db` (absolute), `sqlite://`
            (memory), or
            `cassandra://host1,host2:9042/keyspace?dc=..&user=..&consistency=..`.

    Raises:
        BadUrl: If the url names no kind of store.
    """
    scheme = split(url).scheme
    if scheme == "sqlite":
        from shardq.stores.sqlite import SqliteStore

        return SqliteStore.from_url(url)
    if scheme == "cassandra":
        # Imported here because the driver takes 0.2 s, which users of SQLite should not wait for.
        from shardq.stores.cassandra import CassandraStore

        return CassandraStore.from_url(url)
    raise BadUrl(
        f"store url {shown(url)} names no store; use sqlite:///jobs.db, sqlite:// or "
        f"cassandra://host:9042/keyspace."
    )
