"""A caller process: receives messages and settles each by its receipt, as its body asks.

It writes the same files as a consumer: a line for each delivery before the delivery is settled, and
in a second file the time at which the store had its outcome. The caller ends with an error if a
receipt is refused that is still valid and that no earlier try may have used. SIGTERM ends the
caller once all received messages are settled.
"""

from __future__ import annotations

import itertools
import json
import logging
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import shardq
from proofs import courses
from proofs.consumer import Pen, line_of
from proofs.courses import Deed, Outcome
from proofs.opening import opened
from shardq.clock import machine_us
from shardq.errors import StaleReceipt, StoreTimeout, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_BATCH = 20
_THREADS = 16
_WAIT = "500ms"
_PAUSE_S = 0.1
_MARGIN_MS = 1_000
"""A claim may be settled until this long before its end."""
_VISIBILITY = timedelta(milliseconds=courses.VISIBILITY_MS)


@dataclass(frozen=True, slots=True)
class Job:
    """The work of a caller.

    Attributes:
        url: The store.
        queue: The queue, which exists.
        out: The file that gets a line for each delivery; `out` + `.settled` has the time at which
            the store had each outcome.
        courses: True to handle each message as its body asks; False to ack all.
    """

    url: str
    queue: str
    out: str
    courses: bool = True

    def to_json(self) -> str:
        """The JSON text that the process reads."""
        return json.dumps(asdict(self))


class Caller:
    """Takes messages of one queue and settles them. A context manager that waits for its calls.

    Messages that are only acked, and have no group, are acked together. Each other message is
    settled in a thread of its own, because unblocking a group takes a dozen calls of the store.

    Args:
        queue: The queue.
        out: The file of deliveries.
        courses: True to handle each message as its body asks.
    """

    def __init__(self, queue: shardq.Queue, out: str, *, courses: bool = True) -> None:
        self._queue = queue
        self._courses = courses
        self._lines = Pen(out)
        self._settled = Pen(f"{out}.settled")
        self._numbers = itertools.count()
        self._pool = ThreadPoolExecutor(_THREADS)
        self._dealings: list[Future[None]] = []

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self._look(self._dealings)

    def turn(self) -> None:
        """Take some messages, and settle them or begin to."""
        running = [one for one in self._dealings if not one.done()]
        self._look([one for one in self._dealings if one not in running])
        self._dealings = running
        try:
            taken = self._queue.receive(_BATCH, _VISIBILITY, _WAIT)
        except (StoreTimeout, StoreUnavailable):
            self._queue._home.clock.sleep(_PAUSE_S)
            return
        began_us = machine_us()
        plain = []
        for one in taken:
            deed = courses.deed_for(one, began_us // 1_000) if self._courses else Deed()
            if deed == Deed() and one.group is None:
                plain.append(one)
            else:
                self._dealings.append(self._pool.submit(self._deal, deed, one, began_us))
        if plain:
            self._ack(plain, began_us)

    @staticmethod
    def _look(dealings: Iterable[Future[None]]) -> None:
        for one in dealings:
            one.result()

    def _ack(self, messages: list[shardq.Message], began_us: int) -> None:
        for one in messages:
            self._write(one, began_us, Deed())
        until_ms = min(one.due_ms for one in messages)
        receipts = [one.receipt for one in messages]
        if self._surely(lambda: self._queue.ack(*receipts), until_ms):
            self._settled.write(json.dumps([machine_us(), [one.id for one in messages]]))

    def _deal(self, deed: Deed, message: shardq.Message, began_us: int) -> None:
        receipt, until_ms = message.receipt, message.due_ms
        if deed.work_ms > courses.WORK_MS:
            extended: list[str] = []
            asked_ms = self._queue._home.clock.now_ms()
            if not self._surely(
                lambda: extended.append(self._queue.extend(receipt, _VISIBILITY)), until_ms
            ):
                # The claim may have been extended: its present receipt is unknown, so the message
                # is given up.
                return
            # The position of a claim in a group lane has the due of its row.
            receipt, until_ms = extended[0], asked_ms + courses.VISIBILITY_MS
            self._queue._home.clock.sleep(deed.work_ms / 1_000)
        self._write(message, began_us, deed)
        if self._surely(lambda: self._settle(deed, receipt), until_ms):
            self._settled.write(json.dumps([machine_us(), [message.id]]))

    def _write(self, message: shardq.Message, began_us: int, deed: Deed) -> None:
        self._lines.write(line_of(message, next(self._numbers), began_us, deed))

    def _settle(self, deed: Deed, receipt: str) -> None:
        if deed.outcome is Outcome.ACKED:
            self._queue.ack(receipt)
        elif deed.outcome is Outcome.BURIED:
            self._queue.bury(receipt, "its body asks for it")
        elif deed.outcome is Outcome.SNOOZED:
            self._queue.snooze(receipt, timedelta(milliseconds=deed.delay_ms))
        else:
            delay = None if deed.backs_off else timedelta(milliseconds=deed.delay_ms)
            self._queue.retry(receipt, delay, reason="its body asks for it")

    def _surely(self, act: Callable[[], None], until_ms: int) -> bool:
        """Repeat an action until it is known to be done, while there is time; True if it is done.

        Args:
            until_ms: The end of the claim, epoch milliseconds by the queue's clock.
        """
        clock, is_unknown = self._queue._home.clock, False
        while True:
            try:
                act()
            except StaleReceipt:
                if is_unknown or clock.now_ms() >= until_ms - _MARGIN_MS:
                    return False
                raise
            except StoreTimeout:
                is_unknown = True
            except StoreUnavailable:
                pass
            else:
                return True
            if clock.now_ms() >= until_ms - _MARGIN_MS:
                return False
            clock.sleep(_PAUSE_S)


def main(text: str) -> None:
    """Receive and settle until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("cassandra").setLevel(logging.WARNING)
    job = Job(**json.loads(text))
    with opened(job.url, job.queue) as queue, Caller(queue, job.out, courses=job.courses) as caller:
        while not stopping.is_set():
            caller.turn()


if __name__ == "__main__":
    main(sys.argv[1])
