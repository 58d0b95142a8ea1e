"""Slow jobs on eight processes of one thread, as in most fleets.

```
 put, put_many ──► queue ──► 8 members ──► a file: what was done when
                                            └── the last end, against work / 8
```
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import shardq
from shardq.bench.job import BenchJob, ended
from shardq.bench.line import Line
from shardq.bench.member import MemberProcess
from shardq.bench.puts import body_of
from shardq.errors import ShardqError
from shardq.records.membership import heartbeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from measures.sizes import Sizes
    from shardq.bench.place import BenchPlace
    from shardq.clock import Clock
    from shardq.queue import Queue

PROCESSES = 8
_RUNS_MAX = 3
_TIMES_SHORTER = 20
_KNOWN_S = 15
_SETTLE_S = 1
"""The wait until the consumers have leased their lanes."""
_WAIT_S = 120
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Work:
    """The jobs of one measurement.

    Attributes:
        jobs: How many.
        work_ms: How long each takes, milliseconds.
        over_s: How much longer than the ideal all jobs may take, seconds.
    """

    jobs: int
    work_ms: int
    over_s: float

    def ideal_s(self, processes: int) -> float:
        """The seconds that the jobs take if no process ever waits for a job."""
        return self.jobs * self.work_ms / 1_000 / processes


def shared(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Seconds from the first put to the end of the last job, of slow jobs and of short ones."""
    slow = Work(sizes.slow_jobs, 500, 1.5)
    short = Work(sizes.slow_jobs * _TIMES_SHORTER, 50, 2.0)
    times = min(sizes.repetitions, _RUNS_MAX)
    return [line for work in (slow, short) for line in fleet(place, work, PROCESSES, times)]


def fleet(place: BenchPlace, work: Work, processes: int, times: int) -> Iterator[Line]:
    """A line for jobs that are put one by one, and a line for jobs put by `put_many`."""
    clock, url = place.clock, place.url()
    ideal_s = work.ideal_s(processes)
    with (
        shardq.connect(url) as db,
        tempfile.NamedTemporaryFile("r", encoding="ascii") as out,
        ExitStack() as stack,
    ):
        queue = place.queue(db, "workers")
        job = BenchJob(url, queue.name, threads=1, work_ms=work.work_ms, out=out.name)
        members = [stack.enter_context(MemberProcess(job, clock)) for _ in range(processes)]
        for member in members:
            member.state()
        _meet(queue, processes, clock)
        for how, put in (("put", _put_each), ("put_many", _put_many)):
            took_s, shares = [], []
            for _ in range(times):
                took_s.append(_take(queue, put, work.jobs, Path(out.name), clock))
                shares += [member.state()["handled"] for member in members]
                for member in members:
                    member.clear()
            reached_s = statistics.median(took_s)
            yield Line(
                f"{work.jobs:,} jobs of {work.work_ms / 1_000} s, {processes} processes of one "
                f"thread, by {how}",
                reached_s,
                "s",
                f"ideal + {work.over_s} s",
                reached_s <= ideal_s + work.over_s,
                ideal_s,
                reached_s / ideal_s,
                note=f"{min(shares)} to {max(shares)} a process; bare: no process ever waits",
            )


def _take(
    queue: Queue, put: Callable[[Queue, int], object], jobs: int, path: Path, clock: Clock
) -> float:
    """Put jobs and wait for them; returns how long that took, in seconds."""
    before = len(ended(path))
    start_us = clock.boot_us()
    put(queue, jobs)
    while len(done := ended(path)) < before + jobs:
        if clock.boot_us() - start_us > _WAIT_S * 1_000_000:
            raise ShardqError(
                f"only {len(done) - before:,} of {jobs:,} jobs were done after {_WAIT_S} s; "
                f"see what the consumers logged."
            )
        clock.sleep(_POLL_S)
    return (max(at_us for _, at_us in done[before:]) - start_us) / 1e6


def _put_each(queue: Queue, jobs: int) -> None:
    for number in range(jobs):
        queue.put(body_of(number))


def _put_many(queue: Queue, jobs: int) -> None:
    queue.put_many([body_of(number) for number in range(jobs)])


def _meet(queue: Queue, processes: int, clock: Clock) -> None:
    """Wait until the consumers know of each other, as in a fleet: each has its own lanes."""
    deadline_us = clock.boot_us() + _KNOWN_S * 1_000_000
    register = queue._home.register
    while clock.boot_us() < deadline_us:
        beats = heartbeats(queue._home.store, register.members_key)
        each = [set(beat.lanes) for beat in beats.values()]
        if len(each) >= processes and all(each) and sum(map(len, each)) == len(set().union(*each)):
            break
        clock.sleep(_POLL_S)
    clock.sleep(_SETTLE_S)
