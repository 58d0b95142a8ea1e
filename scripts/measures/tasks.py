"""The load of a worker of tasks: coroutines at once, and memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import shardq
from shardq.bench.job import BenchJob
from shardq.bench.line import Line
from shardq.bench.member import MemberProcess
from shardq.bench.tasks import BenchTasks, arguments
from shardq.tasks.worker import COROUTINES

if TYPE_CHECKING:
    from measures.sizes import Sizes
    from shardq.bench.place import BenchPlace
    from shardq.connection import Connection

_NAP_S = 0.1
_NAPS_S_MAX = 4.0
_MEMORY_RATIO = 1.1
_MEMORY_TIMES = 10
_AT_A_TIME = 1_000
_WAIT_S = 120


class Napping(BenchTasks):
    """A queue with a task that sleeps for 100 ms."""

    def __init__(self, db: Connection, queue: str) -> None:
        super().__init__(db, queue)

        @self.app.task(name="nap")
        async def nap(number: int) -> None:  # noqa: ARG001 - so that no two jobs are the same
            await asyncio.sleep(_NAP_S)

        self.nap = nap


def coroutines(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure coroutines that sleep."""
    count = sizes.naps
    with shardq.connect(place.url()) as db:
        working = Napping(db, place.queue(db, "naps").name)
        working.nap.put_many((number,) for number in range(count))
        begun_us = place.clock.boot_us()
        with working:
            working.wait(count)
            took_s = (place.clock.boot_us() - begun_us) / 1e6
    most_s = _NAPS_S_MAX * count / 10_000
    return [Line(f"{count:,} coroutines that sleep for 100 ms", took_s, "s", f"under {most_s:g} s",
                took_s < most_s, note=f"one worker process, {COROUTINES:,} at once")]  # fmt: skip


def memory(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure the memory of a worker process, which neither puts nor measures.

    Only a few jobs wait at a time: a backlog would add memory for rows that were read and for
    SQLite's pages, both of which have bounds of their own.
    """
    clock, url, count = place.clock, place.url(), sizes.worker_jobs
    used: dict[int, float] = {}
    step = min(_AT_A_TIME, count)
    with shardq.connect(url) as db:
        queue = place.queue(db, "memory")
        task = BenchTasks(db, queue.name).nothing
        with MemberProcess(BenchJob(url, queue.name), clock, "measures.worker") as member:
            done = 0

            def is_done(state: dict[str, Any]) -> bool:
                return bool(state["handled"] >= done)

            while done < _MEMORY_TIMES * count:
                task.put_many(arguments(number) for number in range(step))
                done += step
                used[done] = member.wait(is_done, _WAIT_S)["memory_bytes"] / 1e6
    first, last = used[count], used[done]
    return [Line(f"memory of a worker after {done:,} jobs", last, "MB",
                f"{_MEMORY_RATIO} of that after {count:,}", last <= _MEMORY_RATIO * first, first,
                last / first, f"{step:,} at a time; bare: after {count:,}")]  # fmt: skip
