"""A worker of tasks in a process of its own that reports on itself when asked."""

from __future__ import annotations

import json
import sys

import shardq
from shardq.bench.child import answer, commands, memory_bytes
from shardq.bench.job import BenchJob
from shardq.bench.tasks import BenchTasks


def main(argument: str) -> None:
    """Run tasks until stdin ends."""
    job = BenchJob(**json.loads(argument))
    with shardq.connect(job.url) as db, BenchTasks(db, job.queue) as working:
        for _ in commands():
            answer({"handled": working.ended, "memory_bytes": memory_bytes()})


if __name__ == "__main__":
    main(sys.argv[1])
