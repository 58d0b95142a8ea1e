"""Callers of `receive`: how fast many take and settle, and the cost of callers that wait.

```
 backlog ──► receive(10), ack   by 1 and 8 threads: without groups, in 100, in one by tens
 put, receive(1), ack           by 1, 16 and 64 threads, each its own message after message
 1,000 wait on one queue; one on each of 30 ──► processor time; then a put ──► answered when?
```
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import threading
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import shardq
from shardq import aio
from shardq.bench.line import Line, interleaved, quantile
from shardq.bench.puts import body_of, grouped
from shardq.clock import pause
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from measures.sizes import Sizes
    from shardq.bench.place import BenchPlace
    from shardq.clock import Clock
    from shardq.queue import Queue

_WAIT_S = 120
_RUNS_MAX = 3
_SETTLE_S = 2
_GAP_S = 0.05
_BY_CALLERS = ((1, 8_000, 2_000), (8, 12_000, 6_000))
"""(callers, target on SQLite, target on Cassandra), targets in rows a second."""
_GROUPS = 100
_GROUPED_PART = 0.5
_PER_GROUP = 500
_PARTS = 10
_BY_CYCLERS = (1, 16, 64)
_CYCLES_SQLITE = 4_000
_IDLE_PERCENT = 5
_ANSWER_MS = 20


def taken(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """`receive(10)` and `ack` of a backlog; then whole cycles of one message each."""
    runs = min(sizes.repetitions, _RUNS_MAX)
    lines = []
    for callers, sqlite, cassandra in _BY_CALLERS:
        target = cassandra if place.is_cassandra else sqlite
        many = f"{callers} caller{'s'[: callers > 1]}"
        pair = interleaved(
            runs,
            partial(_drained, place, callers, sizes.received, groups=_GROUPS),
            partial(_drained, place, callers, sizes.received),
        )
        note = f"{sizes.received:,} rows, one process, median of {runs}"
        lines += [
            Line(
                f"receive(10) and ack, {many}",
                pair.bare,
                "rows/s",
                f"{target:,}/s",
                pair.bare >= target,
                note=note,
            ),
            Line(
                f"receive(10) and ack in {_GROUPS} groups, {many}",
                pair.reached,
                "rows/s",
                f"{_GROUPED_PART} of the same without groups",
                pair.ratio >= _GROUPED_PART,
                pair.bare,
                pair.ratio,
                note,
            ),
        ]
    tenths = _drain(place, 1, sizes.received, groups=1, per_group=10)
    reached = statistics.harmonic_mean(tenths)
    lines.append(
        Line(
            "receive(10, per_group=10) and ack in one group",
            reached,
            "rows/s",
            f"{_PER_GROUP}/s",
            reached >= _PER_GROUP,
            note=f"{sizes.received:,} rows, one caller; the first tenth {tenths[0]:,.0f}/s, "
            f"the last {tenths[-1]:,.0f}/s",
        )
    )
    before = 0.0
    for threads in _BY_CYCLERS:
        reached = statistics.median(_cycle(place, threads, sizes.cycles) for _ in range(runs))
        least = before
        if threads == _BY_CYCLERS[1] and not place.is_cassandra:
            least = max(before, _CYCLES_SQLITE)
        lines.append(
            Line(
                f"put, receive(1) and ack, {threads} thread{'s'[: threads > 1]}",
                reached,
                "cycles/s",
                f"{least:,.0f}/s" if least else "",
                reached >= least if least else None,
                note=f"{sizes.cycles:,} cycles, one process, median of {runs}",
            )
        )
        before = reached
    return lines


def waiting(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """The cost of callers that wait for messages, and how soon a caller gets a message."""
    return [
        *_idle(place, sizes, "1,000 callers on one idle queue", queues=1, each=1_000),
        *_idle(place, sizes, "one caller on each of 30 idle queues", queues=30, each=1),
    ]


def _drained(place: BenchPlace, callers: int, count: int, _turn: int, *, groups: int = 0) -> float:
    """Rows a second until all of a backlog is acked."""
    return statistics.harmonic_mean(_drain(place, callers, count, groups=groups))


def _drain(
    place: BenchPlace, callers: int, count: int, *, groups: int, per_group: int = 1
) -> list[float]:
    """Rows a second in each tenth of a backlog that callers receive by tens and ack."""
    with shardq.connect(place.url()) as db:
        queue = place.queue(db, "received")
        queue.put_many(grouped(count, groups))
        done = 0
        clock = place.clock
        passed_us: list[int] = []
        lock = threading.Lock()

        def work() -> None:
            nonlocal done
            while done < count:
                got = queue.receive(10, wait="1s", per_group=per_group)
                if got:
                    queue.ack(*got)
                    with lock:
                        done += len(got)
                        if done >= count * len(passed_us) // _PARTS:
                            passed_us.append(clock.boot_us())

        passed_us.append(clock.boot_us())
        _timed(clock, [work] * callers)
        return [
            count / _PARTS * 1e6 / max(after_us - before_us, 1)
            for before_us, after_us in pairwise(passed_us)
        ]


def _cycle(place: BenchPlace, threads: int, count: int) -> float:
    """Cycles a second, each of a put, the receipt of some message, and its ack."""
    with shardq.connect(place.url()) as db:
        queue = place.queue(db, "cycled")
        each = max(count // threads, 1)

        def work() -> None:
            for number in range(each):
                queue.put(body_of(number))
                [message] = _received(queue)
                queue.ack(message)

        return each * threads / _timed(place.clock, [work] * threads)


def _received(queue: Queue) -> list[shardq.Message]:
    got = queue.receive(1, wait=f"{_WAIT_S}s")
    if not got:
        raise ShardqError(f"no message of those that were put was received in {_WAIT_S} s.")
    return got


def _timed(clock: Clock, works: list[Callable[[], None]]) -> float:
    """Seconds until threads have done all their work, run at once."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except ShardqError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    start_us = clock.boot_us()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return max(clock.boot_us() - start_us, 1) / 1e6


def _idle(place: BenchPlace, sizes: Sizes, what: str, *, queues: int, each: int) -> list[Line]:
    cpu, trips_ms = asyncio.run(_wait(place, sizes, queues, each))
    p50 = quantile(trips_ms, 0.5)
    return [
        Line(
            what,
            cpu,
            "% of a core",
            f"< {_IDLE_PERCENT} %",
            cpu < _IDLE_PERCENT,
            note=f"over {sizes.idle_s} s, one process, from asyncio",
        ),
        Line(
            f"put to answer in one process, {what}, p50",
            p50,
            "ms",
            f"< {_ANSWER_MS} ms",
            p50 is not None and p50 < _ANSWER_MS,
            note=f"{len(trips_ms)} messages, one every {_GAP_S * 1e3:.0f} ms",
        ),
    ]


async def _wait(
    place: BenchPlace, sizes: Sizes, count: int, each: int
) -> tuple[float, list[float]]:
    """The share of a core while all callers wait, and milliseconds from puts to receipts."""
    clock = place.clock
    answered: dict[bytes, int] = {}
    async with aio.connect(place.url()) as db:
        queues = [db.queue(place.name("waited")) for _ in range(count)]

        async def call(queue: aio.Queue) -> None:
            while True:
                for message in await queue.receive(1, wait="1h"):
                    answered[message.body] = clock.boot_us()
                    await queue.ack(message)

        callers = [asyncio.create_task(call(queue)) for queue in queues for _ in range(each)]
        await pause(_SETTLE_S)
        start_us, cpu_s = clock.boot_us(), _cpu_s()
        await pause(sizes.idle_s)
        cpu = 100e6 * (_cpu_s() - cpu_s) / (clock.boot_us() - start_us)
        put_us: dict[bytes, int] = {}
        for number in range(sizes.trips):
            body = body_of(number)
            put_us[body] = clock.boot_us()
            await queues[number % count].put(body)
            await pause(_GAP_S)
        deadline_us = clock.boot_us() + _WAIT_S * 1_000_000
        while len(answered) < len(put_us) and clock.boot_us() < deadline_us:
            await pause(_GAP_S)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    return cpu, [(answered[body] - at_us) / 1e3 for body, at_us in put_us.items()]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
