"""A consumer process that writes down every delivery when its handler is through.

Ends gracefully on SIGTERM, and then says in a second file how it fared. Where asked to, it also
writes down when the store has had what its deliveries came to.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import shardq
from proofs.judge import HandOut
from shardq.bench.child import peak_bytes
from shardq.clock import SystemClock, machine_us
from shardq.consumer import PREFETCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.intake import Intake
    from shardq.ready import Delivery


@dataclass(frozen=True, slots=True)
class Job:
    """What a consumer is to do.

    Attributes:
        url: The store.
        queue: The queue, which is there.
        out: The file that gets a line for each delivery; `out` + `.life` says how it fared.
        threads: Handlers.
        work_ms: How long each handler takes.
        prefetch: Rows read ahead.
        settled: Write down, in `out` + `.settled`, when the store has had each outcome.
    """

    url: str
    queue: str
    out: str
    threads: int = 8
    work_ms: float = 0
    prefetch: int = PREFETCH
    settled: bool = False

    def to_json(self) -> str:
        """As the process reads it."""
        return json.dumps(asdict(self))


class Recorder:
    """The handler: works for a while, then writes down when that was."""

    def __init__(self, job: Job) -> None:
        # Unbuffered: what was handed out must be on record when the process is killed.
        self._out = os.open(job.out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._work_s = job.work_ms / 1_000
        self._clock = SystemClock()
        self._numbers = itertools.count()

    def __call__(self, message: shardq.Message) -> None:
        number = next(self._numbers)
        began_us = machine_us()
        if self._work_s:
            self._clock.sleep(self._work_s)
        line = HandOut(
            number,
            message.id,
            message.text,
            message.due_ms,
            began_us,
            machine_us(),
            message.attempt,
        ).to_json()
        os.write(self._out, f"{line}\n".encode())


class Witness:
    """Writes down the outcomes that the store has, as they are forgotten here for it.

    Args:
        out: The file.
        intake: Of the consumer.
    """

    def __init__(self, out: str, intake: Intake) -> None:
        self._out = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._forget = intake.forget_all

    def __call__(self, ended: Iterable[Delivery]) -> None:
        """Stands for `Intake.forget_all`."""
        ended = list(ended)
        # Rows that were given up, and never handed out, are still fresh.
        ids = [one.row.message_id for one in ended if one.ended and not one.is_fresh]
        if ids:
            os.write(self._out, f"{json.dumps([machine_us(), ids])}\n".encode())
        self._forget(ended)


def main(text: str) -> None:
    """Consume until SIGTERM."""
    main_us = machine_us()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("cassandra").setLevel(logging.WARNING)
    job = Job(**json.loads(text))
    with shardq.connect(job.url) as db:
        queue = db.queue(job.queue, create=False)
        connected_us = machine_us()
        consumer = shardq.Consumer(
            queue, Recorder(job), threads=job.threads, prefetch=job.prefetch, deadline="20s"
        )
        if job.settled:
            intake = consumer.engine.intake
            # The one place that hears of each outcome once the store has it.
            intake.forget_all = Witness(f"{job.out}.settled", intake)  # type: ignore[method-assign]
        consumer.run()
    life = {"main_us": main_us, "connected_us": connected_us, "peak_bytes": peak_bytes()}
    Path(f"{job.out}.life").write_text(json.dumps(life), encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1])
