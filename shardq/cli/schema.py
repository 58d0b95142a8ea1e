"""The tables: make them, or print their definitions."""

from __future__ import annotations

import os

import click

import shardq
from shardq.cli import options
from shardq.connection import STORE_VARIABLE
from shardq.errors import UsageError


@options.command(
    "shardq init --store sqlite:///jobs.db",
    "shardq init --store cassandra://10.0.0.1,10.0.0.2:9042/jobs?dc=dc1",
    has_json=False,
)
def init() -> None:
    """Create the tables of the store, and on Cassandra its keyspace.

    The command may be repeated: a second run changes nothing, or finishes an interrupted one.
    SQLite does not need it, because opening a file creates the tables. Tables from before 0.1.0 are
    refused and stay as they are.
    """
    chosen = options.store_url()
    shardq.init(chosen)
    with shardq.connect(chosen) as db:
        click.echo(f"ready: {db.url_shown}")


@options.command("shardq schema cassandra > shardq.cql", "shardq schema sqlite", has_json=False)
@click.argument("kind", type=click.Choice(["cassandra", "sqlite"]), required=False)
def schema(kind: str | None) -> None:
    """Print the CQL or SQL that makes the tables. It connects to nothing.

    Without cassandra or sqlite the store's url decides. A Cassandra url gives the keyspace, the
    number of copies and the data centre; without such a url: shardq, 3 copies, and all
    data centres.
    """
    given = options.given_url() or os.environ.get(STORE_VARIABLE)
    if kind is None:
        given = options.store_url()
    scheme = (given or "").partition(":")[0]
    wanted = kind or scheme
    if wanted == "sqlite":
        from shardq.stores.sqlite import SqliteStore

        click.echo(SqliteStore.schema_text())
    elif wanted == "cassandra":
        from shardq.stores.cassandra import CassandraStore

        address = CassandraStore.from_url(given).address if given and scheme == wanted else None
        click.echo(CassandraStore.schema_text(address))
    else:
        raise UsageError(f"there is no schema for {wanted!r}; use cassandra or sqlite.")
