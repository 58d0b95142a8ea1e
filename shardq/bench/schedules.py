"""The lateness of schedules: a few each second, very many each minute, spread or at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import shardq
from shardq.bench.job import BenchJob
from shardq.bench.line import Line
from shardq.bench.member import MemberProcess, sleeper
from shardq.bench.timers import lateness
from shardq.model.times import iso

if TYPE_CHECKING:
    from shardq.bench.place import BenchPlace
    from shardq.bench.sizes import Sizes
    from shardq.queue import Queue

EACH_SECOND = 200
_WAIT_S = 60
_AHEAD_MS = 3_000
_MINUTE_MS = 60_000
_MAKERS = 24
"""Threads that make schedules on Cassandra, where each schedule takes several round trips."""
_SPREAD_MS = 1_000
_AT_ONCE_MS = 5_000


def firings(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure firings each second, then the firings of very many schedules each minute."""
    name = f"firings, {EACH_SECOND} schedules of 1 s"
    return [
        *lateness(place, _each_second(place, sizes), name),
        *_each_minute(place, sizes, "spread over it", _SPREAD_MS, spread="1m"),
        *_each_minute(place, sizes, "all at :00", _AT_ONCE_MS),
    ]


def _each_second(place: BenchPlace, sizes: Sizes) -> dict[str, Any]:
    """The report of a consumer process after seconds in which schedules fire all the time."""
    clock, url = place.clock, place.url()
    with shardq.connect(url) as db:
        queue = place.queue(db, "seconds")
        with MemberProcess(BenchJob(url, queue.name), clock) as member:
            start_ms = clock.now_ms() + _AHEAD_MS
            step_ms = 1_000 // EACH_SECOND
            for number in range(EACH_SECOND):
                queue.every("1s", b"", name=f"s{number}", start=iso(start_ms + number * step_ms))
            member.wait(lambda state: state["handled"] > EACH_SECOND, _WAIT_S)
            with sleeper() as naps_us:
                before = member.clear()
                count = EACH_SECOND * sizes.timers_s
                after = member.wait(lambda state: state["handled"] >= count, _WAIT_S)
            cpu = (after["cpu_s"] - before["cpu_s"]) * 1e6 / (after["at_us"] - before["at_us"])
            return {**member.report(), "cpu": cpu, "naps_us": naps_us}


def _each_minute(
    place: BenchPlace, sizes: Sizes, how: str, most_ms: int, **options: Any
) -> list[Line]:
    """Measure many schedules of one minute on one consumer: the latest firing, and their cost."""
    clock, url, count = place.clock, place.url(), sizes.schedules
    what = f"{count:,} schedules of 1 min, {how}"
    with shardq.connect(url) as db:
        queue = place.queue(db, "minutes")
        begun_us = clock.boot_us()
        _make(place, queue, count, **options)
        made = count * 1e6 / (clock.boot_us() - begun_us)
        with MemberProcess(BenchJob(url, queue.name), clock) as member:
            # Begin between two minutes' firings, so that exactly those of the next minute are
            # counted.
            left_ms = _MINUTE_MS - clock.now_ms() % _MINUTE_MS
            clock.sleep((left_ms - _AHEAD_MS) / 1_000 if left_ms > _AHEAD_MS else left_ms / 1_000)
            before = member.clear()
            clock.sleep((2 * _AHEAD_MS + _MINUTE_MS) / 1_000)
            after = member.wait(lambda state: state["handled"] >= count, _WAIT_S)
            late_us = member.report()["late_us"]
        cpu_us = (after["cpu_s"] - before["cpu_s"]) * 1e6 / len(late_us)
        asked = after["counters"].get("lwt", 0) - before["counters"].get("lwt", 0)
    latest_ms = max(late_us) / 1_000
    note = f"{len(late_us):,} firings, {sum(late < 0 for late in late_us)} early; made {made:.0f}/s"
    return [
        Line(
            f"latest of {what}",
            latest_ms,
            "ms",
            f"< {most_ms:,} ms",
            latest_ms < most_ms,
            note=note,
        ),
        Line("a consumer's CPU for each of them", cpu_us, "us"),
        Line("LWTs for each of them", asked / len(late_us), "LWTs"),
    ]


def _make(place: BenchPlace, queue: Queue, count: int, **options: Any) -> None:
    now_ms = place.clock.now_ms()
    start = iso(now_ms - now_ms % _MINUTE_MS + _MINUTE_MS)

    def make(number: int) -> None:
        queue.every("1m", b"", name=f"s{number}", start=start, **options)

    with ThreadPoolExecutor(_MAKERS if place.is_cassandra else 1) as makers:
        for _ in makers.map(make, range(count)):
            pass
