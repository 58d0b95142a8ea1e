"""What tasks cost: their puts and runs, beside those of the bare queue; coroutines; memory.

The bare queue's bodies are the tasks' own, and its handler does as little as they do.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import shardq
from shardq.bench.drains import Acked, drain
from shardq.bench.job import Job
from shardq.bench.line import Line, interleaved, rate
from shardq.bench.member import Member
from shardq.errors import ShardqError
from shardq.tasks import App, Worker
from shardq.tasks.worker import COROUTINES

if TYPE_CHECKING:
    from types import TracebackType

    from shardq.bench.place import Place
    from shardq.bench.sizes import Sizes
    from shardq.connection import Connection
    from shardq.tasks import Task

_EACH_TURNS = 3
"""The same number as in `puts`."""
_RATIO, _MANY_RATIO = 0.6, 0.7
_NAP_S = 0.1
_NAPS_S_MAX = 4.0
_MEMORY_RATIO = 1.1
_MEMORY_TIMES = 10
_AT_A_TIME = 1_000
_WAIT_S = 120
_POLL_S = 0.002


class Working:
    """The tasks of a queue; as a context manager, a worker of them in a thread of this process.

    Args:
        db: The store.
        queue: The name of their queue, which is there.

    Attributes:
        nothing: A task of two arguments that does nothing.
        nap: A coroutine that sleeps for 100 ms.
    """

    def __init__(self, db: Connection, queue: str) -> None:
        app = App(db, queue=queue)

        @app.task(name="nothing")
        def nothing(user: str, number: int) -> None:
            """Do nothing."""

        @app.task(name="nap")
        async def nap(number: int) -> None:  # noqa: ARG001 - so that no two jobs are the same
            # As asyncio.sleep does, which is the loop's to time and no clock of ours.
            loop = asyncio.get_running_loop()
            over = loop.create_future()
            loop.call_later(_NAP_S, over.set_result, None)
            await over

        self.nothing: Task[[str, int], None, None] = nothing
        self.nap = nap
        self._app = app
        self._clock = db._home.clock

    def __enter__(self) -> Working:
        self._worker = Worker(self._app)
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
        """How many jobs have ended: the store has their acks."""
        return self._acked.count()

    def wait(self, count: int) -> int:
        """Wait until so many jobs have ended.

        Raises:
            ShardqError: If they have not within two minutes.
        """
        deadline_us = self._clock.boot_us() + _WAIT_S * 1_000_000
        while (ended := self.ended) < count:
            if self._clock.boot_us() > deadline_us:
                raise ShardqError(f"only {ended:,} of {count:,} jobs have ended in {_WAIT_S} s.")
            self._clock.sleep(_POLL_S)
        return ended


def cost(place: Place, sizes: Sizes) -> list[Line]:
    """Single puts, `put_many`, runs, coroutines that sleep, and the memory of a worker."""
    return [
        _each(place, sizes),
        _many(place, sizes),
        _run(place, sizes),
        _naps(place, sizes),
        _memory(place, sizes),
    ]


def _each(place: Place, sizes: Sizes) -> Line:
    count = sizes.put_each

    def ours(_turn: int) -> float:
        with shardq.connect(place.url()) as db:
            put = Working(db, place.queue(db, "tasks").name).nothing.put
            put(*_arguments(0))

            def put_all() -> int:
                for number in range(count):
                    put(*_arguments(number))
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


def _many(place: Place, sizes: Sizes) -> Line:
    count = sizes.put

    def ours(_turn: int) -> float:
        items = [_arguments(number) for number in range(count)]
        with shardq.connect(place.url()) as db:
            task = Working(db, place.queue(db, "tasks").name).nothing
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


def _run(place: Place, sizes: Sizes) -> Line:
    count = sizes.drain

    def ours(_turn: int) -> float:
        with shardq.connect(place.url()) as db:
            working = Working(db, place.queue(db, "tasks").name)
            working.nothing.put_many(_arguments(number) for number in range(count))

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


def _naps(place: Place, sizes: Sizes) -> Line:
    count = sizes.naps
    with shardq.connect(place.url()) as db:
        working = Working(db, place.queue(db, "naps").name)
        working.nap.put_many((number,) for number in range(count))
        begun_us = place.clock.boot_us()
        with working:
            working.wait(count)
            took_s = (place.clock.boot_us() - begun_us) / 1e6
    most_s = _NAPS_S_MAX * count / 10_000
    return Line(f"{count:,} coroutines that sleep for 100 ms", took_s, "s", f"under {most_s:g} s",
                took_s < most_s, note=f"one worker process, {COROUTINES:,} at once")  # fmt: skip


def _memory(place: Place, sizes: Sizes) -> Line:
    """Memory of a process of its own, which neither puts nor measures.

    A few jobs at a time: what a backlog takes, of rows that were read and of SQLite's pages, grows
    with it up to bounds of their own.
    """
    clock, url, count = place.clock, place.url(), sizes.worker_jobs
    used: dict[int, float] = {}
    step = min(_AT_A_TIME, count)
    with shardq.connect(url) as db:
        queue = place.queue(db, "memory")
        task = Working(db, queue.name).nothing
        with Member(Job(url, queue.name, is_worker=True), clock) as member:
            done = 0

            def is_done(state: dict[str, Any]) -> bool:
                return bool(state["handled"] >= done)

            while done < _MEMORY_TIMES * count:
                task.put_many(_arguments(number) for number in range(step))
                done += step
                used[done] = member.wait(is_done, _WAIT_S)["memory_bytes"] / 1e6
    first, last = used[count], used[done]
    return Line(f"memory of a worker after {done:,} jobs", last, "MB",
                f"{_MEMORY_RATIO} of that after {count:,}", last <= _MEMORY_RATIO * first, first,
                last / first, f"{step:,} at a time; bare: after {count:,}")  # fmt: skip


def _arguments(number: int) -> tuple[str, int]:
    return f"user-{number}@example.com", number


def _body(number: int) -> bytes:
    """The body of a job with these arguments."""
    user, number = _arguments(number)
    return json.dumps({"user": user, "number": number}, separators=(",", ":")).encode()
