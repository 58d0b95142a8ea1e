"""The lateness of timers, alone and beside a million far timers, and the cost of far timers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import shardq
from shardq.bench import load
from shardq.bench.job import BenchJob
from shardq.bench.line import Line, quantile
from shardq.bench.member import MemberProcess, sleeper
from shardq.bench.puts import YEAR_MS, body_of, timers

if TYPE_CHECKING:
    from shardq.bench.place import BenchPlace
    from shardq.bench.sizes import Sizes

RATE = 500
_PUT_AHEAD_MS = 2_000
WAIT_S = 60
_WARM_S = 2
_MB = 1 << 20
_P50_MS = 2
_P99_MS_SQLITE = 5
_P99_MS_CASSANDRA = 20
_GROWTH_MB_MAX = 5


def known(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Measure timers that are put 2 s ahead; then the same while far timers wait."""
    alone = _fire(place, sizes, behind=0)
    crowded = _fire(place, sizes, behind=sizes.far)
    many = f"{sizes.far:,} far timers behind"
    ready_s = (crowded["first_us"] - crowded["started_us"]) / 1e6
    peak_mb = crowded["peak_bytes"] / _MB
    growth_mb = (crowded["peak_bytes"] - alone["peak_bytes"]) / _MB
    return [
        *lateness(place, alone, f"timers known 2 s ahead, {RATE}/s"),
        *lateness(place, crowded, f"the same, {many}"),
        Line(f"put_many of {many}", crowded["put_rate"], "rows/s"),
        Line(
            f"consumer's start to first delivery, {many}",
            ready_s,
            "s",
            "3 s",
            ready_s <= 3,
            note="from the start of its process",
        ),
        Line(f"consumer's memory at its peak, {many}", peak_mb, "MB", "< 100 MB", peak_mb < 100),
        Line(
            f"memory that {many} cost a consumer",
            growth_mb,
            "MB",
            "none",
            growth_mb < _GROWTH_MB_MAX,
            note=f"its peak less that of one without them, {alone['peak_bytes'] / _MB:.1f} MB",
        ),
    ]


def _fire(place: BenchPlace, sizes: Sizes, *, behind: int) -> dict[str, Any]:
    """The report of a consumer process after seconds of timers."""
    clock, url = place.clock, place.url()
    put_rate = 0.0
    with shardq.connect(url) as db:
        queue = place.queue(db, "timers")
        if behind:
            start_us = clock.boot_us()
            put = queue.put_many(timers(behind, clock.now_ms(), YEAR_MS))
            put_rate = put * 1e6 / (clock.boot_us() - start_us)
        queue.put(body_of(0))
        with MemberProcess(BenchJob(url, queue.name), clock) as member:
            member.wait(lambda state: state["handled"] > 0, WAIT_S)
            warm = load.produce(clock, queue, RATE, _WARM_S, ahead_ms=_PUT_AHEAD_MS)
            member.wait(lambda state: state["handled"] > warm, WAIT_S)
            with sleeper() as naps_us:
                before = member.clear()
                count = load.produce(clock, queue, RATE, sizes.timers_s, ahead_ms=_PUT_AHEAD_MS)
                after = member.wait(lambda state: state["handled"] >= count, WAIT_S)
            cpu = (after["cpu_s"] - before["cpu_s"]) * 1e6 / (after["at_us"] - before["at_us"])
            return {
                **member.report(),
                "started_us": member.started_us,
                "put_rate": put_rate,
                "cpu": cpu,
                "naps_us": naps_us,
            }


def lateness(place: BenchPlace, report: dict[str, Any], what: str) -> list[Line]:
    """The lines for the lateness of a report, beside that of a process that only sleeps.

    Args:
        report: A report of `MemberProcess`, with its `cpu` and the overshoots of naps, `naps_us`.
        what: The kind of timers.
    """
    late_ms = [late_us / 1_000 for late_us in report["late_us"]]
    naps_ms = [nap_us / 1_000 for nap_us in report["naps_us"]]
    p99_ms = _P99_MS_CASSANDRA if place.is_cassandra else _P99_MS_SQLITE
    note = f"{len(late_ms):,} of them, {sum(late < 0 for late in late_ms)} early; "
    note += f"consumer at {report['cpu']:.0%} of a core; bare: a plain sleep beside it"
    lines = []
    for name, fraction, limit_ms in (("p50", 0.5, _P50_MS), ("p99", 0.99, p99_ms)):
        reached = quantile(late_ms, fraction)
        met = reached is not None and reached < limit_ms
        lines.append(
            Line(
                f"lateness {name}, {what}",
                reached,
                "ms",
                f"< {limit_ms} ms",
                met,
                quantile(naps_ms, fraction),
                note=note,
            )
        )
        note = ""
    return lines
