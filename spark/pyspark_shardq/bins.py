"""Shards in even bins: a bin is a partition of Spark, which one task reads or writes.

A partition for each shard would be too many, because a task costs 0.1 s, and too uneven, because
a minute may hold most of all rows. So minutes are hashed into slots, and slots are packed into bins
by their rows. The largest slots are cut by a hash of the message's id.

```
 minute ──hash──► slot ──count, pack──► bin, or several    bin ──► sorted by shard, due, name
```
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq.options import cores_of, is_local

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from shardq.model.shard import Layout

T = TypeVar("T")

SLOTS = 512
"""Large slots are cut anyway, so more slots would not make bins more even."""
_PIECES_A_BIN = 8
"""A slot that holds more than this part of a bin is cut into pieces of at most this size."""


def pack(counts: Mapping[T, int], bins: int) -> list[list[T]]:
    """Items in bins that are about evenly full: the largest item goes into the emptiest bin.

    Args:
        counts: Item -> its size.
        bins: How many bins there are; some stay empty if there are fewer items.

    Source:
        Longest processing time first, Graham 1969: at most 4/3 of the best.

    >>> pack({"a": 5, "b": 3, "c": 2}, 2)
    [['a'], ['b', 'c']]
    """
    heap = [(0, one) for one in range(bins)]
    packed: list[list[T]] = [[] for _ in range(bins)]
    for item, count in sorted(counts.items(), key=_by_count, reverse=True):
        load, emptiest = heapq.heappop(heap)
        packed[emptiest].append(item)
        heapq.heappush(heap, (load + count, emptiest))
    return packed


def _by_count(counted: tuple[object, int]) -> int:
    return counted[1]


def bins_of(counts: Sequence[int], bins: int) -> list[list[int]]:
    """The bins of each slot: one, or one for each piece of a slot that is cut.

    Args:
        counts: Rows of each slot.
        bins: How many bins there are.

    >>> bins_of([90, 10, 10], 1), bins_of([1, 1], 2)
    ([[0, 0, 0, 0, 0, 0, 0], [0], [0]], [[0], [1]])
    """
    piece = max(1, sum(counts) // (bins * _PIECES_A_BIN))
    pieces = {
        (slot, number): -(-count // parts)
        for slot, count in enumerate(counts)
        for parts in (max(1, -(-count // piece)),)
        for number in range(parts)
    }
    found: list[list[int]] = [[] for _ in counts]
    for one, packed in enumerate(pack(pieces, bins)):
        for slot, _ in packed:
            found[slot].append(one)
    return found


def slot_of(minute: Column) -> Column:
    """The slot of a minute's shards, 0 to `SLOTS` - 1."""
    return F.pmod(F.xxhash64(minute), F.lit(SLOTS)).cast("int")


def bin_of(slot: Column, name: Column, found: Sequence[Sequence[int]]) -> Column:
    """The bin of a row: that of its slot; in a cut slot a hash of the name chooses one."""
    # One constant array: a look-up takes the same time however many bins there are.
    arrays = ",".join(f"array({','.join(map(str, one or [0]))})" for one in found)
    bins = F.element_at(F.expr(f"array({arrays})"), slot + 1)
    return F.element_at(bins, (F.pmod(F.xxhash64(name), F.size(bins)) + 1).cast("int"))


def tasks_of(spark: SparkSession) -> int:
    """The number of tasks that run at a time."""
    master = spark.conf.get("spark.master", None)
    if master is not None and is_local(master):
        return cores_of(master)
    # Spark divides a range into that many parts, on any cluster and through Spark Connect.
    parts = spark.range(1 << 20).select(F.spark_partition_id()).distinct().count()
    return max(1, parts)


def laid_out(frame: DataFrame, bins: int, layout: Layout) -> DataFrame:
    """A frame's rows in bins, a partition each and sorted as they are written.

    Args:
        frame: Rows with columns `bin`, `minute`, `lane`, `due_ms`, `name` and, maybe, `group`.
        bins: How many bins there are.
        layout: Where the queue's rows live.

    Returns:
        The same columns but `minute`.
    """
    lanes = layout.lane(layout.bands, max(layout.lanes_written, layout.lanes_read))
    minute, minute_ms = F.col("minute"), F.lit(layout.minute_ms)
    # Lanes for groups, which have large numbers, follow the others.
    lane = F.when(F.col("lane") < layout.first_group_lane, F.col("lane")).otherwise(
        F.col("lane") - layout.first_group_lane + lanes
    )
    # Shard and due in one number, because Spark sorts fastest by one column.
    place = (minute * (lanes + layout.group_lanes) + lane) * minute_ms
    place += F.col("due_ms") - minute * minute_ms
    order = ["place", "name", *(name for name in ("group",) if name in frame.columns)]
    placed = frame.withColumn("place", place).drop("minute")
    return placed.repartitionById(bins, F.col("bin")).sortWithinPartitions(*order).drop("place")
