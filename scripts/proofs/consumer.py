"""A consumer process that records every delivery when its handler has ended.

It ends gracefully on SIGTERM, and then writes its counts into a second file. If asked, it also
records when it took rows into memory, and when the store had the outcome of each delivery.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import shardq
from proofs import courses
from proofs.courses import Deed, Outcome
from proofs.judge import HandOut
from proofs.opening import opened
from shardq.bench.child import peak_bytes
from shardq.clock import SystemClock, machine_us
from shardq.consumer import PREFETCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardq.engine.engine import Engine
    from shardq.engine.handing.delivery import Delivery
    from shardq.model.message import Row


@dataclass(frozen=True, slots=True)
class Job:
    """The work of a consumer.

    Attributes:
        url: The store.
        queue: The queue, which exists.
        out: The file that gets a line for each delivery; `out` + `.life` gets the consumer's
            counts.
        threads: Handlers.
        work_ms: How long each handler takes.
        prefetch: Rows read ahead.
        settled: True to record in `out` + `.taken` when rows were taken into memory, and in `out` +
            `.settled` when the store had each outcome.
        courses: True to handle each message as its body asks, instead of for `work_ms`.
    """

    url: str
    queue: str
    out: str
    threads: int = 8
    work_ms: float = 0
    prefetch: int = PREFETCH
    settled: bool = False
    courses: bool = False

    def to_json(self) -> str:
        """The JSON text that the process reads."""
        return json.dumps(asdict(self))


class Pen:
    """Writes lines to the end of a file; unbuffered, so that a kill loses none.

    Args:
        path: The file, made if it does not exist.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line: str) -> None:
        """Write one line."""
        os.write(self._file, f"{line}\n".encode())


def line_of(message: shardq.Message, number: int, began_us: int, deed: Deed) -> str:
    """The line of a delivery that ends now.

    Args:
        message: The delivered message.
        number: How many deliveries its process had before.
        began_us: When the delivery began, by the machine's clock, epoch microseconds.
        deed: The action of the handler.
    """
    return HandOut(
        number,
        message.id,
        message.text,
        message.due_ms,
        began_us,
        machine_us(),
        message.attempt,
        deed.outcome.value,
        deed.delay_ms,
    ).to_json()


class Failure(Exception):
    """Raised by a handler whose body asks for a failure."""


class Recorder:
    """The handler: works for a while, then records when it worked."""

    def __init__(self, job: Job) -> None:
        self._lines = Pen(job.out)
        self._deed = Deed(work_ms=job.work_ms)
        self._courses = job.courses
        self._clock = SystemClock()
        self._numbers = itertools.count()

    def __call__(self, message: shardq.Message) -> None:
        number = next(self._numbers)
        began_us = machine_us()
        deed = courses.deed_for(message, began_us // 1_000) if self._courses else self._deed
        if deed.work_ms:
            self._clock.sleep(deed.work_ms / 1_000)
        self._lines.write(line_of(message, number, began_us, deed))
        delay = timedelta(milliseconds=deed.delay_ms)
        if deed.backs_off:
            raise Failure(message.text)
        if deed.outcome is Outcome.RETRIED:
            raise shardq.Retry(delay)
        if deed.outcome is Outcome.SNOOZED:
            raise shardq.Snooze(delay)
        if deed.outcome is Outcome.BURIED:
            raise shardq.Bury("its body asks for it")


class Witness:
    """Records when rows are taken into memory, and when the store had their outcomes.

    Each of the two passes through one function of the engine, which this object wraps.

    Args:
        out: The file of deliveries; this writes `out` + `.taken` and `out` + `.settled`.
        engine: The consumer's engine.
    """

    def __init__(self, out: str, engine: Engine) -> None:
        self._taken = Pen(f"{out}.taken")
        self._settled = Pen(f"{out}.settled")
        self._known = engine.memory.known
        self._accept = engine.intake.accept
        self._forget = engine.memory.forget_all
        engine.intake.accept = self._take_in  # type: ignore[method-assign]
        engine.memory.forget_all = self._settle  # type: ignore[method-assign]

    def _take_in(self, rows: Sequence[Row]) -> dict[int, int]:
        _write_ids(self._taken, [row.message_id for row in rows if row.id not in self._known])
        return self._accept(rows)

    def _settle(self, ended: Iterable[Delivery]) -> None:
        ended = list(ended)
        # Leave out released rows, which have run in no thread.
        ids = [one.row.message_id for one in ended if one.has_ended and one.thread_id]
        _write_ids(self._settled, ids)
        self._forget(ended)


def _write_ids(lines: Pen, ids: list[str]) -> None:
    if ids:
        lines.write(json.dumps([machine_us(), ids]))


def main(text: str) -> None:
    """Consume until SIGTERM."""
    main_us = machine_us()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("cassandra").setLevel(logging.WARNING)
    job = Job(**json.loads(text))
    with opened(job.url, job.queue) as queue:
        connected_us = machine_us()
        consumer = shardq.Consumer(
            queue, Recorder(job), threads=job.threads, prefetch=job.prefetch, deadline="20s"
        )
        if job.settled:
            Witness(job.out, consumer._engine)
        consumer.run()
    life = {"main_us": main_us, "connected_us": connected_us, "peak_bytes": peak_bytes()}
    Path(f"{job.out}.life").write_text(json.dumps(life), encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1])
