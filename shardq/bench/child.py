"""A consumer in a process of its own that reports on itself when asked.

```
 bench ── state, report, clear ──► stdin      until its end, or that of its parent
   ▲                                │
   └──── one line of JSON ◄─────────┘ stdout
```
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from array import array
from typing import TYPE_CHECKING, Any

import shardq
from shardq.bench.job import SENT, BenchJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.model.message import Message

_STATUS = "/proc/self/status"


class Child:
    """Handles messages, and keeps the time of each."""

    def __init__(self, db: shardq.Connection, job: BenchJob) -> None:
        self._db = db
        self._job = job
        self._clock = db._home.clock
        self._lock = threading.Lock()
        self._out = None if job.out is None else os.open(job.out, os.O_WRONLY | os.O_APPEND)
        self._first_us = 0
        self._late_us = array("q")
        self._trip_us = array("q")

    def handle(self, message: Message) -> None:
        """The handler."""
        clock = self._clock
        now_us, boot_us = clock.now_us(), clock.boot_us()
        with self._lock:
            self._first_us = self._first_us or boot_us
            self._late_us.append(now_us - message.due_ms * 1_000)
            if len(message.body) >= SENT.size:
                self._trip_us.append(boot_us - SENT.unpack_from(message.body)[0])
        if self._job.work_ms:
            clock.sleep(self._job.work_ms / 1_000)
        if self._out is not None:
            # Write without a buffer, because a record of done work must survive a kill of the
            # process.
            os.write(self._out, f"{message.id} {clock.boot_us()}\n".encode())

    def clear(self) -> None:
        """Forget the times so far."""
        with self._lock:
            self._late_us = array("q")
            self._trip_us = array("q")

    def state(self) -> dict[str, Any]:
        """The number of handled messages since the last `clear`, and the process's resources."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "at_us": self._clock.boot_us(),
            "first_us": self._first_us,
            "handled": len(self._late_us),
            "cpu_s": used.ru_utime + used.ru_stime,
            "memory_bytes": memory_bytes(),
            "peak_bytes": peak_bytes(),
            "counters": dict(self._db._home.store.counters),
        }

    def report(self) -> dict[str, Any]:
        """The state, and for each message its lateness and its time from put to handler."""
        state = self.state()
        with self._lock:
            return {**state, "late_us": list(self._late_us), "trip_us": list(self._trip_us)}


def memory_bytes() -> int:
    """The bytes that this process has in memory; its peak if the system reports only that."""
    return _status("VmRSS") or _peak_of_usage()


def peak_bytes() -> int:
    """The most bytes that this process has had in memory."""
    # Prefer VmHWM: on Linux getrusage's peak includes the parent's memory at this process's start.
    return _status("VmHWM") or _peak_of_usage()


def _status(name: str) -> int:
    """A figure of /proc, in bytes; 0 where there is none."""
    try:
        with open(_STATUS, encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))
    except FileNotFoundError:
        return 0


def _peak_of_usage() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def main(argument: str) -> None:
    """Consume until stdin ends."""
    job = BenchJob(**json.loads(argument))
    with shardq.connect(job.url) as db:
        child = Child(db, job)
        queue = db.queue(job.queue, create=False)
        consumer = shardq.Consumer(queue, child.handle, threads=job.threads)
        consumer.start()
        for command in commands():
            if command == "clear":
                child.clear()
            answer(child.report() if command == "report" else child.state())
        consumer.stop()
        consumer.join()


def commands() -> Iterator[str]:
    """The lines of stdin, until its end."""
    return (line.strip() for line in sys.stdin)


def answer(told: dict[str, Any]) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
