"""Shards in even bins: a bin is a partition of Spark, which one task reads or writes.

A partition for each shard would be too many, since a task costs 0.1 s, and too uneven, since a
minute may hold most of all rows.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


def pack(counts: Mapping[T, int], bins: int) -> list[list[T]]:
    """What is counted in so many bins, as even as the largest first into the emptiest makes them.

    Args:
        counts: What each holds.
        bins: How many bins there are; some stay empty where there is less to pack.

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
