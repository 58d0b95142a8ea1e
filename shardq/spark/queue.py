"""A queue as Spark sees it: its views as DataFrames, and a method for each job.

What a job does is in `jobs/`; how rows travel, in `source`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardq.connection import store_url
from shardq.model import names
from shardq.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shardq.records.register import Register
    from shardq.spark.place import Place

FORMAT = "shardq"
"""What the data source is called."""
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def connect(spark: SparkSession, queue: str, store: str | None = None) -> SparkQueue:
    """A queue in Spark. Opens nothing: the store and the queue are met when they are used.

    Args:
        spark: The session; the data source is registered with it.
        queue: Its name.
        store: The url of its store, or `env:NAME` where each process of Spark finds the url in its
            environment, so that no password travels; None: the url in `SHARDQ_STORE` here.

    Raises:
        BadName: If the name cannot be used.
        BadUrl: If no store is named.
    """
    names.queue_name(queue)
    register(spark)
    return SparkQueue(spark, queue, _everywhere(store_url(store)))


def _everywhere(url: str) -> str:
    """A url that means the same in every process of this machine, whatever its directory is."""
    if not url.startswith("sqlite:"):
        return url
    from shardq.stores.sqlite.address import read_url
    from shardq.stores.url import printable

    path, _ = read_url(url)
    if path is None or path.is_absolute():
        return url
    _, mark, options = url.partition("?")
    return f"sqlite:///{printable(os.path.abspath(path))}{mark}{options}"


@dataclass(frozen=True, slots=True)
class SparkQueue:
    """A queue in Spark. Made by `connect`.

    Attributes:
        spark: The session.
        name: Of the queue.
        store: The url of its store, or `env:NAME`.
    """

    spark: SparkSession
    name: str
    store: str

    def read(self, view: str = "messages", *, bodies: bool = False, **options: str) -> DataFrame:
        """What the queue holds, as it is read; nothing is claimed.

        Filters on minute, due, lane and queue reach the store; of history those on `entered`.

        Args:
            view: `messages`, `dead`, `history` or `shards`.
            bodies: Whether messages have their bodies.
            options: Others of the data source, such as `since`, `until` and `numPartitions`.

        Raises:
            ShardqError: If an option cannot be used, or the store or the queue is not there.
        """
        # A source that takes filters is refused while this is off, as it is at first.
        self.spark.conf.set(_PUSHDOWN, "true")
        given = {"store": self.store, "queue": self.name, "view": view, "pushdown": "true"}
        reader = self.spark.read.format(FORMAT).options(**given).options(**options)
        return reader.option("bodies", str(bodies).lower()).load()

    def place(self) -> Place:
        """The open store of this process, and its clock; opened at the first call.

        Raises:
            StoreError: If it cannot be opened.
        """
        from shardq.spark.place import place

        return place(self.store)

    def register(self, *, create: bool = False) -> Register:
        """The queue's record: its settings and layout.

        Args:
            create: Whether to make the queue where there is none.

        Raises:
            UnknownQueue: If there is none, and it is not made.
        """
        from shardq.spark.place import place, register_of

        return register_of(place(self.store, create=create), self.name, create=create)
