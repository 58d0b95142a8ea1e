"""A steady load: messages that are put in small batches, at a rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.bench.job import SENT
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from shardq.clock import Clock
    from shardq.queue import Queue

_TICK_MS = 100
_FILLER = b"x" * 192


def produce(clock: Clock, queue: Queue, rate: int, seconds: float, *, ahead_ms: int = 0) -> int:
    """Put messages for some seconds.

    Args:
        rate: Messages a second.
        seconds: The length of the load.
        ahead_ms: The least time from put to due, milliseconds; 0: due at once.

    Returns:
        The number of messages.
    """
    batch = max(rate * _TICK_MS // 1_000, 1)
    ticks = round(seconds * rate / batch)
    start_us = clock.boot_us()
    for tick in range(ticks):
        late_us = clock.boot_us() - (start_us + tick * _TICK_MS * 1_000)
        if late_us < 0:
            clock.sleep(-late_us / 1e6)
        body = SENT.pack(clock.boot_us()) + _FILLER
        if ahead_ms:
            first_ms = clock.now_ms() + ahead_ms
            # Spread the dues over the next tick, so that every millisecond has its share.
            queue.put_many(
                {"body": body, "due": moment_of(first_ms + n * _TICK_MS // batch)}
                for n in range(batch)
            )
        else:
            queue.put_many([body] * batch)
    return ticks * batch
