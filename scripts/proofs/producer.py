"""A producer process: a steady load; each message is recorded once the store has it.

A call puts at most one message of a group, and the next call begins after it has returned. So each
message of a group is stored before the next one is put. SIGTERM ends the producer after the present
call.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import shardq
from proofs.judge import Put
from proofs.opening import opened
from shardq.clock import SystemClock, machine_us
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_TICKS_PER_S = 10
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Job:
    """The work of a producer.

    Attributes:
        url: The store.
        queue: The queue, which exists.
        out: The file that gets a line for each message that the store has.
        name: The beginning of its bodies and groups.
        rate: Messages a second.
        seconds: The duration of the load.
        delays_ms: Milliseconds from put to due, used in turn. All messages of a group have the
            same.
        groups: The number of groups, used in turn; 0: none. Half of the messages have a group.
        bands: The number of priorities, used in turn. All messages of a group have the same.
    """

    url: str
    queue: str
    out: str
    name: str
    rate: int
    seconds: float
    delays_ms: tuple[int, ...] = (0,)
    groups: int = 0
    bands: int = 1

    def to_json(self) -> str:
        """The JSON text that the process reads."""
        return json.dumps(asdict(self))


def batch_of(job: Job, tick: int, now_ms: int) -> list[dict[str, Any]]:
    """The messages of one tick, as `put_many` takes them."""
    count = max(job.rate // _TICKS_PER_S, 1)
    grouped = min(count // 2, job.groups)
    batch = []
    for place in range(count):
        number = tick * count + place
        group = (tick * grouped + place) % job.groups if place < grouped else None
        turn = number if group is None else group
        due_ms = now_ms + job.delays_ms[turn % len(job.delays_ms)]
        item: dict[str, Any] = {
            "body": f"{job.name}-{number}",
            "due": moment_of(due_ms),
            # Use the priorities at another pace than the delays, so that each priority has all
            # delays.
            "priority": (turn // len(job.delays_ms)) % job.bands,
        }
        if group is not None:
            item["group"] = group_name(job.name, group, job.delays_ms[turn % len(job.delays_ms)])
        batch.append(item)
    return batch


def group_name(producer: str, number: int, delay_ms: int) -> str:
    """A group's name, which contains the delay of its messages."""
    return f"{producer}-group-{number}-in-{delay_ms}"


def put(queue: shardq.Queue, items: Iterable[Any]) -> None:
    """Put items until all are stored; the messages that an error carries are put again."""
    clock = SystemClock()
    left = iter(items)
    while True:
        try:
            queue.put_many(left)
        except (StoreTimeout, StoreUnavailable) as error:
            left = chain(error.messages, left)
            clock.sleep(_PAUSE_S)
        else:
            return


def write_down(file: IO[str], batch: Iterable[dict[str, Any]], began_us: int) -> None:
    """Write a line for each message of a call that has just returned."""
    acked_us = machine_us()
    for item in batch:
        due_ms = round(item["due"].timestamp() * 1_000)
        one = Put(
            item["body"],
            due_ms,
            began_us,
            acked_us,
            item.get("group"),
            item.get("priority", 0),
        )
        file.write(one.to_json() + "\n")
    file.flush()


def main(text: str) -> None:
    """Produce for the job's time, or until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    job = Job(**json.loads(text))
    clock = SystemClock()
    with opened(job.url, job.queue) as queue, open(job.out, "a", encoding="ascii") as file:
        start_us = clock.boot_us()
        for tick in range(round(job.seconds * _TICKS_PER_S)):
            early_us = start_us + tick * 1_000_000 // _TICKS_PER_S - clock.boot_us()
            if early_us > 0:
                clock.sleep(early_us / 1e6)
            if stopping.is_set():
                break
            began_us = machine_us()
            batch = batch_of(job, tick, began_us // 1_000)
            put(queue, batch)
            write_down(file, batch, began_us)


if __name__ == "__main__":
    main(sys.argv[1])
