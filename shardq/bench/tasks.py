"""The cost of tasks: their puts and runs, beside those of the bare queue.

The bare queue has the same bodies as the tasks, and its handler does nothing either.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import shardq
from shardq.bench.drains import Acked, drain
from shardq.bench.line import Line, interleaved, rate
from shardq.errors import ShardqError
from shardq.tasks import App, Worker

if TYPE_CHECKING:
    from types import TracebackType

    from shardq.bench.place import BenchPlace
    from shardq.bench.sizes import Sizes
    from shardq.connection import Connection
    from shardq.tasks import Task

_EACH_TURNS = 3
"""Turns of single puts for each repetition, as in `puts`."""
_RATIO, _MANY_RATIO = 0.6, 0.7
_WAIT_S = 120
_POLL_S = 0.002


class BenchTasks:
    """The tasks of a queue. As a context manager, runs their worker in a thread of this process.

    Args:
        db: The store.
        queue: The name of their queue, which exists.

    Attributes:
        app: Their app.
        nothing: A task of two arguments that does nothing.
    """

    def __init__(self, db: Connection, queue: str) -> None:
        app = App(db, queue=queue)

        @app.task(name="nothing")
        def nothing(user: str, number: int) -> None:
            """Do nothing."""

        self.app = app
        self.nothing: Task[[str, int], None, None] = nothing
        self._clock = db._home.clock

    def __enter__(self) -> BenchTasks:
        self._worker = Worker(self.app)
        self._acked = Acked(self._worker._consumers[0]._engine.home.stats)  # noqa: SLF001 - as of a drain
        self._thread = threading.Thread(target=self._worker.run, name="shardq-bench-worker")
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._worker.stop()
        self._thread.join()

    @property
    def ended(self) -> int:
        """The number of ended jobs, whose acks are stored."""
        return self._acked.count()

    def wait(self, count: int) -> int:
        """Wait until a number of jobs has ended.

        Raises:
            ShardqError: If the jobs have not ended within two minutes.
        """
        deadline_us = self._clock.boot_us() + _WAIT_S * 1_000_000
        while (ended := self.ended) < count:
            if self._clock.boot_us() > deadline_us:
                raise ShardqError(f"only {ended:,} of {count:,} jobs have ended in {_WAIT_S} s.")
            self._clock.sleep(_POLL_S)
        return ended


def cost(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure single puts, `put_many` and runs."""
    return [_each(place, sizes), _many(place, sizes), _run(place, sizes)]


def _each(place: BenchPlace, sizes: Sizes) -> Line:
    count = sizes.put_each

    def ours(_turn: int) -> float:
        with shardq.connect(place.url()) as db:
            put = BenchTasks(db, place.queue(db, "tasks").name).nothing.put
            put(*arguments(0))

            def put_all() -> int:
                for number in range(count):
                    put(*arguments(number))
                return count

            return rate(place.clock, put_all)

    def bare(_turn: int) -> float:
        bodies = [_body(number) for number in range(count)]
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, "bare")
            queue.put(bodies[0])

            def put_all() -> int:
                for body in bodies:
                    queue.put(body)
                return count

            return rate(place.clock, put_all)

    pair = interleaved(sizes.repetitions * _EACH_TURNS, ours, bare)
    return Line("put of a task, one by one", pair.reached, "rows/s", f"{_RATIO} of the queue's",
                pair.ratio >= _RATIO, pair.bare, pair.ratio,
                f"{count:,} jobs of two arguments; bare: put of their bodies")  # fmt: skip


def _many(place: BenchPlace, sizes: Sizes) -> Line:
    count = sizes.put

    def ours(_turn: int) -> float:
        items = [arguments(number) for number in range(count)]
        with shardq.connect(place.url()) as db:
            task = BenchTasks(db, place.queue(db, "tasks").name).nothing
            task.put(*items[0])
            return rate(place.clock, lambda: task.put_many(items))

    def bare(_turn: int) -> float:
        bodies = [_body(number) for number in range(count)]
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, "bare")
            queue.put(bodies[0])
            return rate(place.clock, lambda: queue.put_many(bodies))

    pair = interleaved(sizes.repetitions, ours, bare)
    return Line("put_many of a task", pair.reached, "rows/s", f"{_MANY_RATIO} of the queue's",
                pair.ratio >= _MANY_RATIO, pair.bare, pair.ratio,
                f"{count:,} jobs of two arguments; bare: put_many of their bodies")  # fmt: skip


def _run(place: BenchPlace, sizes: Sizes) -> Line:
    count = sizes.drain

    def ours(_turn: int) -> float:
        with shardq.connect(place.url()) as db:
            working = BenchTasks(db, place.queue(db, "tasks").name)
            working.nothing.put_many(arguments(number) for number in range(count))

            with ExitStack() as stack:

                def work() -> int:
                    stack.enter_context(working)
                    return working.wait(count)

                return rate(place.clock, work)

    def bare(_turn: int) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, "bare")
            queue.put_many(_body(number) for number in range(count))
            return drain(place, queue, count)

    pair = interleaved(sizes.repetitions, ours, bare)
    return Line("run of a task that does nothing", pair.reached, "jobs/s",
                f"{_RATIO} of the queue's drain", pair.ratio >= _RATIO, pair.bare,
                pair.ratio, f"{count:,} jobs, one worker process; bare: a consumer")  # fmt: skip


def arguments(number: int) -> tuple[str, int]:
    """Arguments that differ from those of all other jobs."""
    return f"user-{number}@example.com", number


def _body(number: int) -> bytes:
    """The body of a job with these arguments."""
    user, number = arguments(number)
    return json.dumps({"user": user, "number": number}, separators=(",", ":")).encode()
