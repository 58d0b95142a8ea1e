"""The sealed history as a stream of Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shardq
from shardq import Queue
from shardq.errors import HistoryOff, UsageError
from shardq.model import ids
from shardq.stores.store import MINUTE_US, Entry, Mark

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from spark_stores import STORES, queue, url
from spark_views import options_of, schema_of

from pyspark_shardq import register
from pyspark_shardq.feed import FeedReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000


def feed_of(url: str, queue: Queue, **given: str) -> FeedReader:
    options = options_of(url, queue.name, **{"view": "history", **given})
    return FeedReader(options, schema_of(options), cores=2)


def this_minute(queue: Queue) -> int:
    return queue._home.clock.now_us() // MINUTE_US


def end(queue: Queue, minute: int, *names: str, entered: int | None = None) -> None:
    """Record that messages entered and ended, in these minutes."""
    marks = []
    for number, name in enumerate(names):
        born_us = (minute if entered is None else entered) * MINUTE_US + number
        entry = Entry(queue.name, ids.fixed(born_us, name))
        marks.append(Mark(entry, born_us // 1_000, name))
        ended_ms = minute * MINUTE_US // 1_000 + 59_999 - number
        marks.append(Mark(entry, None, None, "acked", ended_ms, 1, "worker"))
    queue._home.store.record(marks, DAY_MS)


def rows_of(feed: FeedReader, first: int, last: int) -> list[str]:
    """The ids of a micro-batch, sorted."""
    parts = feed.partitions({"minute": first}, {"minute": last})
    batches = [batch for part in parts for batch in feed.read(part)]
    return sorted(row["id"] for batch in batches for row in batch.to_pylist())


# Offsets and rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("url", STORES, indirect=True)
def test_a_message_is_given_once_with_the_minute_of_its_end(url: str, queue: Queue) -> None:
    minute = this_minute(queue) - 60
    end(queue, minute, "a", "b")
    end(queue, minute + 1, "c", entered=minute - 300)
    end(queue, minute + 5, "d", entered=minute + 5)
    queue.put("waiting", delay="1h", id="e")
    feed = feed_of(url, queue)
    assert rows_of(feed, minute, minute + 1) == ["a", "b"]
    assert rows_of(feed, minute + 1, minute + 5) == ["c"]
    assert rows_of(feed, minute + 5, minute + 6) == ["d"]
    assert rows_of(feed, minute, minute + 6) == ["a", "b", "c", "d"]
    assert rows_of(feed_of(url, queue, reach="1h"), minute, minute + 6) == ["a", "b", "d"]
    assert feed.partitions({"minute": minute}, {"minute": minute}) == []


def test_a_minute_is_given_when_it_is_sealed(url: str, queue: Queue) -> None:
    feed = feed_of(url, queue, since="2h", maxMinutes="50")
    start = feed.initialOffset()
    assert 119 <= this_minute(queue) - start["minute"] <= 121
    first = feed.latestOffset(start, feed.getDefaultReadLimit())
    assert first == {"minute": start["minute"] + 50}
    # The offset is two minutes.
    every = feed.latestOffset(first, ReadAllAvailable())
    assert this_minute(queue) - every["minute"] in (1, 2, 3)
    assert feed.latestOffset({"minute": every["minute"] + 9}, ReadMaxFiles(50)) == {
        "minute": every["minute"] + 9
    }
    assert feed.reportLatestOffset()["minute"] >= every["minute"]
    queue.alter(offset="10m")
    assert 9 <= this_minute(queue) - feed.reportLatestOffset()["minute"] <= 11


def test_a_stream_that_takes_what_is_available_ends(url: str, queue: Queue) -> None:
    feed = feed_of(url, queue, since="2h", maxMinutes="50")
    feed.prepareForTriggerAvailableNow()
    offsets = [feed.initialOffset()]
    while (after := feed.latestOffset(offsets[-1], feed.getDefaultReadLimit())) != offsets[-1]:
        offsets.append(after)
    assert len(offsets) == 4
    assert offsets[-1] == {"minute": feed.target}


def test_only_what_has_ended_is_a_stream(url: str, queue: Queue) -> None:
    with pytest.raises(UsageError, match="view 'messages' is no stream"):
        feed_of(url, queue, view="messages")
    with pytest.raises(UsageError, match="a stream has no end"):
        feed_of(url, queue, until="1h")
    queue.alter(history="off")
    with pytest.raises(HistoryOff, match="keeps no history"):
        feed_of(url, queue)


# In Spark -----------------------------------------------------------------------------------------


def test_a_stream_that_is_killed_gives_the_same_rows_again(
    spark: SparkSession, url: str, queue: Queue, tmp_path: Path
) -> None:
    minute = this_minute(queue) - 30
    for number in range(2):
        end(queue, minute + 1 + 15 * number, f"a{number}", f"b{number}")
    register(spark)
    given: list[tuple[int, list[str]]] = []

    def run(*, is_killed: bool) -> None:
        def take(frame: DataFrame, number: int) -> None:
            given.append((number, sorted(row["id"] for row in frame.select("id").collect())))
            if is_killed and number == 1:
                raise ConnectionError

        options = {
            "store": url, "queue": queue.name, "view": "history", "since": "30m",
            "maxMinutes": "15", "numPartitions": "1", "reach": "10m",
        }  # fmt: skip
        stream: Any = spark.readStream.format("shardq").options(**options).load()
        writing = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        writing.option("checkpointLocation", str(tmp_path / "kept")).start().awaitTermination()

    with pytest.raises(PySparkException):
        run(is_killed=True)
    end(queue, this_minute(queue) + 1, "later")
    run(is_killed=False)
    # A minute may be sealed meanwhile: its batch is empty.
    assert [one for one in given if one[1]] == [
        (0, ["a0", "b0"]),
        (1, ["a1", "b1"]),
        (1, ["a1", "b1"]),
    ]
