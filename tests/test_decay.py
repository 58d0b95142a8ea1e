"""A consumer that runs for long does not slow down; on Cassandra, see `scripts/decay`."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import shardq
from shardq import Consumer
from shardq.testing import Stage

if TYPE_CHECKING:
    from types import FrameType

OURS = f"{Path(shardq.__file__).parent}/*"


def test_what_a_consumer_does_and_keeps_does_not_grow_with_its_age() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail", minute="1s", offset="5s")
        consumer = Consumer(queue, lambda _: None)

        def work(minutes: int) -> None:
            for _ in range(minutes):
                queue.put_many([{"body": b"x", "delay": f"{200 * n}ms"} for n in range(5)])
                stage.drive(consumer, seconds=1)

        def calls(minutes: int) -> int:
            counts: Counter[str] = Counter()

            def note(_frame: FrameType, event: str, _of: object) -> None:
                counts[event] += 1

            # This counts this thread alone; cProfile counts all threads on some Pythons.
            sys.setprofile(note)
            try:
                work(minutes)
            finally:
                sys.setprofile(None)
            return counts["call"] + counts["c_call"]

        def memory() -> int:
            gc.collect()
            # The memory of shardq alone: threads of another test may allocate at the same time.
            taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, OURS)])
            return sum(one.size for one in taken.statistics("filename"))

        # A sealed shard is swept again 4, 32 and 256 minutes later. The test takes longer: its last
        # measurement includes sweeps of each kind.
        tracemalloc.start()
        work(20)
        early = calls(20), memory()
        work(280)
        late = calls(20), memory()
        tracemalloc.stop()
    assert late[0] <= 1.02 * early[0]
    assert late[1] <= 1.05 * early[1]
