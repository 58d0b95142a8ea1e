"""A queue as Spark's jobs see it: its views as DataFrames, its store and its record.

The jobs themselves are methods of what `connection.connect` gives. How rows travel is in `source`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_shardq import place as opened
from pyspark_shardq.complaint import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shardq.lifecycle.home import Home
    from shardq.records.register import Register

FORMAT = "shardq"
"""The name of the data source."""
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@dataclass(frozen=True, slots=True)
class SparkQueue:
    """A queue in Spark.

    Attributes:
        spark: The session.
        name: Of the queue.
        store: The url of its store, or `env:NAME`.
    """

    spark: SparkSession
    name: str
    store: str

    def read(
        self, view: str = "messages", *, bodies: bool | str = False, **options: str
    ) -> DataFrame:
        """The content of the queue, as it is read; nothing is claimed.

        Filters on minute, due, lane and queue reach the store; of history those on `entered`.

        Args:
            view: `messages`, `dead`, `history` or `shards`.
            bodies: True if messages have their bodies, also as a text.
            options: Others of the data source, such as `since`, `until` and `numPartitions`.

        Raises:
            ShardqError: If an option cannot be used, or the store or the queue is not there.
        """
        # A source that takes filters is refused while this is off, as it is at first.
        self.spark.conf.set(_PUSHDOWN, "true")
        given = {"store": self.store, "queue": self.name, "view": view, "pushdown": "true"}
        reader = self.spark.read.format(FORMAT).options(**given).options(**options)
        with translated():
            return reader.option("bodies", str(bodies).lower()).load()

    def place(self) -> Home:
        """The open store of this process, and its clock; opened at the first call.

        Raises:
            StoreError: If it cannot be opened.
        """
        return opened.place(self.store)

    def register(self, *, create: bool = False) -> Register:
        """The queue's record: its settings and layout.

        Args:
            create: True to make the queue where there is none.

        Raises:
            UnknownQueue: If there is none, and it is not made.
        """
        here = opened.place(self.store, create=create)
        return opened.register_of(here, self.name, create=create)
