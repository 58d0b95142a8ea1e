"""A consumer killed half way through its jobs, and restarted."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import shardq
from shardq.bench.job import BenchJob, ended
from shardq.bench.line import Line
from shardq.bench.member import MemberProcess
from shardq.bench.puts import body_of
from shardq.engine.leases.lease import TTL_MS
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from shardq.bench.place import BenchPlace
    from shardq.bench.sizes import Sizes

THREADS = 8
WORK_MS = 30
_GRACE_S = 3
_WAIT_S = 90
_POLL_S = 0.01


def restart(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure the seconds from a restart after `kill -9` to the end of the last job."""
    clock, url = place.clock, place.url()
    with shardq.connect(url) as db, tempfile.NamedTemporaryFile("r", encoding="ascii") as out:
        is_told = db._home.store.beside is not None
        limit_s = _GRACE_S + (1 if is_told else TTL_MS / 1_000)
        queue = place.queue(db, "jobs")
        ids = {queue.put(body_of(n)).id for n in range(sizes.jobs)}
        job = BenchJob(url, queue.name, THREADS, WORK_MS, out.name)
        path = Path(out.name)
        deadline_us = clock.boot_us() + _WAIT_S * 1_000_000
        with MemberProcess(job, clock) as first:
            while len(_done(path)) < sizes.jobs // 2:
                _check(clock.boot_us() < deadline_us, path, sizes)
                clock.sleep(_POLL_S)
            first.kill()
        half = len(_done(path))
        with MemberProcess(job, clock) as second:
            while not ids <= _done(path).keys():
                _check(clock.boot_us() < deadline_us, path, sizes)
                clock.sleep(_POLL_S)
            last_us = max(at_us for _, at_us in ended(path))
            seconds = (last_us - second.started_us) / 1e6
        again = sum(_done(path).values()) - sizes.jobs
    return [
        Line(
            f"{sizes.jobs} jobs of {WORK_MS} ms, {THREADS} threads, killed half way: "
            "restart to last job's end",
            seconds,
            "s",
            f"{'1 s' if is_told else 'a lease'} + {_GRACE_S} s = {limit_s:.0f} s",
            seconds <= limit_s,
            note=f"killed after {half}; all done, {again} of them twice",
        )
    ]


def _done(path: Path) -> Counter[str]:
    """The number of times that each message was done."""
    return Counter(message_id for message_id, _ in ended(path))


def _check(in_time: bool, path: Path, sizes: Sizes) -> None:
    if not in_time:
        raise ShardqError(
            f"only {len(_done(path))} of {sizes.jobs} jobs were done after {_WAIT_S} s."
        )
