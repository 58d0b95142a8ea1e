"""Quotas of keys: requests a second by a bucket of tokens each, and the depth of queues.

Each process counts for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq import locks
from shardq.model.limits import BeginRate, Bucket
from shardq.server.refusals import RequestThrottled

if TYPE_CHECKING:
    from shardq.clock import Clock
    from shardq.queue import Queue

_KEPT_MAX = 10_000
_DEPTH_US = 1_000_000


def full_bucket(rate: int, now_us: int) -> Bucket:
    """Return a bucket that holds the tokens of one second.

    Args:
        rate: Tokens a second.
        now_us: Microseconds since boot.
    """
    return Bucket(((BeginRate(rate, 1_000), rate),), now_us - 1_000_000)


class Rates:
    """Requests a second of each key.

    Args:
        clock: The time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = locks.new()
        self._buckets: dict[tuple[str, int], Bucket] = {}

    def take(self, key_id: str, rate: int) -> None:
        """Count a request of a key against its rate.

        Args:
            key_id: The key.
            rate: Its requests a second.

        Raises:
            RequestThrottled: If the key has made so many within a second already.
        """
        with self._lock:
            now_us = self._clock.boot_us()
            bucket = self._buckets.get((key_id, rate))
            if bucket is None:
                if len(self._buckets) >= _KEPT_MAX:
                    self._buckets.clear()
                bucket = self._buckets[key_id, rate] = full_bucket(rate, now_us)
            is_over = not bucket.take(now_us)
        if is_over:
            raise RequestThrottled(
                f"key {key_id} may make {rate:,} requests a second; try again in 1s.", 1
            )


class Depths:
    """The depths of queues, as counted within the last second, plus the puts since.

    Args:
        clock: The time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = locks.new()
        self._counted: dict[str, tuple[int, int]] = {}

    def take(self, key_id: str, most: int, queue: Queue, count: int) -> None:
        """Count puts of a key into a queue. May read the store: call it from a thread.

        Args:
            key_id: The key.
            most: The most messages that a queue may hold.
            queue: The queue.
            count: How many messages are to be put.

        Raises:
            RequestThrottled: If the queue would hold more.
        """
        now_us = self._clock.boot_us()
        with self._lock:
            depth, at_us = self._counted.get(queue.name, (0, -_DEPTH_US))
        if now_us - at_us >= _DEPTH_US:
            depth, at_us = queue.depth().total, now_us
        if depth + count > most:
            raise RequestThrottled(
                f"queue {queue.name!r} holds {depth:,} messages, and key {key_id} may fill it to "
                f"{most:,}; put again once some were handled.",
                1,
            )
        with self._lock:
            if len(self._counted) >= _KEPT_MAX:
                self._counted.clear()
            self._counted[queue.name] = depth + count, at_us
