"""Streams the messages that have ended, each once, by the minutes of their ends.

```
 ledger of the minutes of entry within `reach` ──► ended from start to end ──► a micro-batch
 offset {"minute": m}: all ends before minute m have been given      m ≤ (now - offset) / 60 s
```

A minute of ends is sealed when it ended an offset ago: by then each end of it is recorded. So a
minute that is read again gives the same rows, and nothing is settled by reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxFiles, SupportsTriggerAvailableNow

from pyspark_shardq import views
from pyspark_shardq.bounds import FAR_MS
from pyspark_shardq.options import refuse_in_task
from pyspark_shardq.place import place, register_of
from pyspark_shardq.reading import batches_of, marks_of, minutes_in, seldom_collected
from shardq.errors import UsageError, shown
from shardq.model.times import duration_ms, moment_or_ago_ms
from shardq.records.ledger import kept_for
from shardq.stores.store import MINUTE_US

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from pyspark_shardq.options import Options
    from shardq.records.register import Register

_MINUTE_MS = MINUTE_US // 1_000


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of a queue's history. It is pickled, so it keeps no store.

    Args:
        options: Of which `since` says where it begins: else with all that is kept.
        schema: The columns.
        cores: How many tasks run at once.

    Raises:
        UsageError: If another view is asked for.
        HistoryOff: If the queue keeps no history.
    """

    def __init__(self, options: Options, schema: StructType, *, cores: int) -> None:
        if options.view != "history":
            raise UsageError(
                f"view {shown(options.view)} is no stream: a message that waits may yet move; read "
                f"what has ended, .option('view', 'history')."
            )
        if options.until is not None:
            raise UsageError("a stream has no end: leave 'until' out, or read without a stream.")
        self.options = options
        self.schema = schema
        views.of_schema(options.view, schema)
        self.bins = options.partitions or 2 * cores
        self.reach_ms = None if options.reach is None else duration_ms(options.reach, name="reach")
        self.target: int | None = None
        register, now_ms = self._look()
        settings = register.settings
        self.former_us = settings.former_until_us
        self.purged_before_us = settings.purged_before_us
        since_ms = now_ms - kept_for(settings, register.name)
        if options.since is not None:
            since_ms = moment_or_ago_ms(options.since, now_ms, name="since")
        self.first = max(since_ms, 0) // _MINUTE_MS

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        """The offset at which a new stream begins."""
        return {"minute": self.first}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Minutes of ends of a micro-batch; Spark counts in files, and a minute is as whole."""
        if self.options.minutes_max is None:
            return super().getDefaultReadLimit()
        return ReadMaxFiles(self.options.minutes_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The last minute that is sealed, as far as the limit and the trigger allow."""
        end = self._sealed() if self.target is None else self.target
        if isinstance(limit, ReadMaxFiles):
            end = min(end, start["minute"] + limit.max_files)
        return {"minute": max(end, start["minute"])}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        """The last minute that is sealed."""
        return {"minute": self._sealed()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """End the stream with the minutes that are sealed now."""
        self.target = self._sealed()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Bins of the ledger in which messages may be that ended between two offsets."""
        first, last = start["minute"], end["minute"]
        if first >= last:
            return []
        register, now_ms = self._look()
        if self.reach_ms is None:
            entered = (now_ms - kept_for(register.settings, register.name)) // _MINUTE_MS
        else:
            entered = first - -(-self.reach_ms // _MINUTE_MS)
        # Clocks differ by the offset at most: a message may seem to end before it entered.
        last += -(-register.layout.offset_ms // _MINUTE_MS)
        entered = max(min(entered, first), self.former_us // MINUTE_US, 0)
        ended_ms = (first * _MINUTE_MS, end["minute"] * _MINUTE_MS)
        bins = minutes_in(range(entered, last), self.bins)
        return [InputPartition((stretches, ended_ms)) for stretches in bins]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a bin."""
        refuse_in_task(self.options.url)
        store, queue = place(self.options.store).store, self.options.queue
        stretches, (first_ms, before_ms) = partition.value
        ended = (
            mark
            for mark in marks_of(store, queue, stretches)
            if mark.fate is not None and first_ms <= mark.ended_ms < before_ms
        )
        with seldom_collected():
            yield from batches_of(
                ended,
                views.of_schema(self.options.view, self.schema),
                queue,
                purged_before_us=self.purged_before_us,
                from_us=self.former_us,
                before_us=FAR_MS * 1_000,
            )

    def _look(self) -> tuple[Register, int]:
        """The queue's record, and now."""
        here = place(self.options.store)
        return register_of(here, self.options.queue), here.clock.now_ms()

    def _sealed(self) -> int:
        """The minute before which all ends are recorded."""
        register, now_ms = self._look()
        return (now_ms - register.layout.offset_ms) // _MINUTE_MS
