"""The cost of an idle consumer, and its delay until it handles another process's put."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import shardq
from shardq.bench.job import SENT, BenchJob
from shardq.bench.line import Line, quantile
from shardq.bench.member import MemberProcess
from shardq.bench.timers import WAIT_S

if TYPE_CHECKING:
    from shardq.bench.place import BenchPlace
    from shardq.bench.sizes import Sizes

_QUIET_S = 8
"""The wait after the first delivery, until its shard's lease is no longer renewed."""
_GAP_S = (0.15, 0.25)
_TRIP_MS_SQLITE = 15
_TRIP_MS_CASSANDRA = 60
_SEED = 1


def consumer(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure an idle consumer's CPU time and LWTs, then the time of single messages to it."""
    clock, url = place.clock, place.url()
    chance = random.Random(_SEED)
    with shardq.connect(url) as db:
        queue = place.queue(db, "idle")
        queue.put(SENT.pack(clock.boot_us()))
        with MemberProcess(BenchJob(url, queue.name), clock) as member:
            member.wait(lambda state: state["handled"] > 0, WAIT_S)
            clock.sleep(_QUIET_S)
            before, lwt_before = member.state(), db._home.store.counters["lwt"]
            clock.sleep(sizes.idle_s)
            after, lwt_after = member.state(), db._home.store.counters["lwt"]
            seconds = (after["at_us"] - before["at_us"]) / 1e6
            cpu = 100 * (after["cpu_s"] - before["cpu_s"]) / seconds
            lwt = after["counters"].get("lwt", 0) - before["counters"].get("lwt", 0)
            lwt += lwt_after - lwt_before
            reads = after["counters"].get("reads", 0) - before["counters"].get("reads", 0)
            member.clear()
            for _ in range(sizes.trips):
                queue.put(SENT.pack(clock.boot_us()))
                clock.sleep(chance.uniform(*_GAP_S))
            member.wait(lambda state: state["handled"] >= sizes.trips, WAIT_S)
            trips_ms = [trip_us / 1_000 for trip_us in member.report()["trip_us"]]
    limit_ms = _TRIP_MS_CASSANDRA if place.is_cassandra else _TRIP_MS_SQLITE
    p50, p99 = quantile(trips_ms, 0.5), quantile(trips_ms, 0.99)
    lines = [
        Line(
            "put in another process to handler, idle consumer, p50",
            p50,
            "ms",
            f"< {limit_ms} ms",
            p50 is not None and p50 < limit_ms,
            note=f"{len(trips_ms)} messages, one every 150 to 250 ms; p99 {p99:.1f} ms",
        ),
        Line(
            "idle consumer",
            cpu,
            "% of a core",
            "< 2 %",
            cpu < 2,
            note=f"over {seconds:.0f} s; {reads / seconds:.1f} reads/s",
        ),
    ]
    if place.is_cassandra:
        lines.append(Line("LWTs, idle", lwt / seconds, "1/s", "< 2/s", lwt / seconds < 2))
    return lines
