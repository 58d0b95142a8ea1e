"""The data source `shardq`: what Spark asks for its schema, its readers and its writers.

```
driver    schema()  reader() ─► partitions()              writer() ─► commit()
              │                    │ bins of shards          │
tasks                           read(bin) ─► store      write(rows) ─► store
```

Everything that can be wrong is looked for in the driver, before a task starts. Spark imports this
module to learn what sources there are: so what reads and writes is imported where it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from pyspark_shardq.options import Options


class ShardqDataSource(DataSource):
    """Queues as tables of Spark.

    Attributes:
        master: Where Spark runs, as `register` has found; None where Spark has found this class by
            itself.
        cores: How many tasks run at once, where Spark's settings say so.
    """

    master: ClassVar[str | None] = None
    cores: ClassVar[int | None] = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "shardq"

    def schema(self) -> str:
        """The columns of the view, in Spark's words.

        Raises:
            ShardqError: If an option is wrong, the store is down or the queue is not there.
        """
        from pyspark_shardq import columns, views
        from pyspark_shardq.reading import check

        options = self._read_options()
        made = views.of_view(options)
        check(options)
        return columns.ddl(made)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a view."""
        from pyspark_shardq.options import cores_of
        from pyspark_shardq.reading import reader

        return reader(self._read_options(), schema, cores=self.cores or cores_of(self.master))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """The reader of what has ended, minute after minute."""
        from pyspark_shardq.feed import FeedReader
        from pyspark_shardq.options import cores_of

        return FeedReader(self._read_options(), schema, cores=self.cores or cores_of(self.master))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of new messages."""
        from pyspark_shardq.writing import batch_writer

        return batch_writer(self._write_options(overwrite=overwrite), schema)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamWriter:
        """The writer of new messages, one micro-batch after another."""
        from pyspark_shardq.writing import StreamWriter

        return StreamWriter(self._write_options(overwrite=overwrite), schema)

    def _read_options(self) -> Options:
        from pyspark_shardq.options import Options, refuse_store

        options = Options.of_reader(self.options)
        refuse_store(options.url, self.master)
        return options

    def _write_options(self, *, overwrite: bool) -> Options:
        from pyspark_shardq.options import Options, refuse_store
        from shardq.errors import UsageError

        if overwrite:
            raise UsageError(
                "a queue cannot be overwritten: its messages may be on their way; write with "
                "mode('append'), and purge the queue yourself where it has to be empty."
            )
        options = Options.of_writer(self.options)
        refuse_store(options.url, self.master)
        return options


def register(spark: SparkSession) -> None:
    """Let a session of Spark read and write the format `shardq`.

    Idempotent. Call it for each session, also on Spark Connect.
    """
    master = spark.conf.get("spark.master", None)
    # Made here, so that it travels by value and says where Spark runs: Spark's helpers cannot ask.
    known = {"master": master, "cores": _cores(spark)}
    made = type("DefaultSource", (ShardqDataSource,), {"__module__": "__main__", **known})
    spark.dataSource.register(made)


def _cores(spark: SparkSession) -> int | None:
    """The number of tasks that run at once on a cluster, where its settings say so."""
    total = spark.conf.get("spark.cores.max", None)
    each = spark.conf.get("spark.executor.cores", None)
    count = spark.conf.get("spark.executor.instances", None)
    if each and count and each.isdigit() and count.isdigit():
        return int(each) * int(count)
    return int(total) if total and total.isdigit() else None
