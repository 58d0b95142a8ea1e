"""The work of Cassandra under a steady load: LWTs a second, tombstones a delivery."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import shardq
from shardq.bench import load
from shardq.bench.job import BenchJob
from shardq.bench.line import Line
from shardq.bench.member import MemberProcess
from shardq.bench.puts import body_of
from shardq.bench.timers import WAIT_S
from shardq.engine.reading.lane import SEALED_RUNGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.bench.place import BenchPlace
    from shardq.bench.sizes import Sizes

_LOAD_RATE = 1_000
_WARM_S = 3
_TOMBSTONE_RATE = 200
_COUNTED = "tombstones:"
_UNTRACED = "untraced:"
_SWEEP = "sweep"
_SHORT_MINUTE = {"minute": "10s", "offset": "20s"}
_SEALED = "sweep sealed "
_AFTER_SEAL = ("sweep seal", _SEALED)
"""Kinds of reads that a benchmark reaches only with shortened minutes."""


def lwts(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Count the LWTs of all processes at 1,000 messages a second."""
    clock, url = place.clock, place.url()
    with shardq.connect(url) as db:
        queue = place.queue(db, "lwt")
        with MemberProcess(BenchJob(url, queue.name), clock) as member:
            warm = load.produce(clock, queue, _LOAD_RATE, _WARM_S)
            member.wait(lambda state: state["handled"] >= warm, WAIT_S)
            before, own = member.clear(), db._home.store.counters["lwt"]
            count = load.produce(clock, queue, _LOAD_RATE, sizes.load_s)
            after = member.wait(lambda state: state["handled"] >= count, WAIT_S)
            own = db._home.store.counters["lwt"] - own
    seconds = (after["at_us"] - before["at_us"]) / 1e6
    lwt = _gained(before, after)["lwt"] + own
    cpu = (after["cpu_s"] - before["cpu_s"]) / seconds
    return [
        Line(
            f"LWTs at {_LOAD_RATE:,} messages/s",
            lwt / seconds,
            "1/s",
            "< 5/s",
            lwt / seconds < 5,
            note=f"over {seconds:.0f} s at {count / seconds:.0f} messages/s; "
            f"consumer at {cpu:.0%} of a core",
        )
    ]


def tombstones(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Count the tombstones that each kind of read meets, per delivery.

    Two loads run at once. One has minutes of 60 s, for polls and the rungs behind now; the other
    has minutes of 10 s, sealed 20 s later, for the seal and the reads after it.
    """
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        works = [
            threading.Thread(
                target=lambda name=name, given=given: found.update(
                    {name: _traced(place, sizes, name, given)}
                )
            )
            for name, given in (("long", {}), ("short", _SHORT_MINUTE))
        ]
        for work in works:
            stack.callback(work.join)
            work.start()
    if len(found) < len(works):
        return [Line("tombstones read per delivery", None, "", "counted", met=False)]
    return _tombstone_lines(found["long"], found["short"])


def _traced(place: BenchPlace, sizes: Sizes, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a consumer whose reads are traced."""
    clock = place.clock
    settle_s = sizes.settle_s + (sizes.settle_s // 2 if given else 0)
    with shardq.connect(place.url()) as db:
        queue = place.queue(db, f"tombstones-{name}", **given)
        queue.put(body_of(0))
        with MemberProcess(BenchJob(place.url(trace="tombstones"), queue.name), clock) as member:
            member.wait(lambda state: state["handled"] > 0, WAIT_S)
            warm = load.produce(clock, queue, _TOMBSTONE_RATE, settle_s)
            member.wait(lambda state: state["handled"] > warm, WAIT_S)
            before = member.clear()
            load.produce(clock, queue, _TOMBSTONE_RATE, sizes.tombstones_s)
            after = member.state()
            return {"handled": after["handled"], "counters": _gained(before, after)}


def _tombstone_lines(long: dict[str, Any], short: dict[str, Any]) -> list[Line]:
    def per_delivery(run: dict[str, Any], purpose: str) -> float:
        return float(run["counters"][_COUNTED + purpose] / max(run["handled"], 1))

    polls = per_delivery(long, "poll") + per_delivery(long, "catch-up")
    ahead = per_delivery(long, "ahead")
    rungs = {
        purpose: (per_delivery(run, purpose), run["counters"]["reads:" + purpose], place)
        for run, place in ((long, ""), (short, "minutes of 10 s, offset 20 s"))
        for purpose in _sweeps(run["counters"])
        if purpose.startswith(_AFTER_SEAL) == (run is short)
    }
    first = per_delivery(short, f"{_SEALED}{SEALED_RUNGS[0]} min")
    for back in SEALED_RUNGS[1:]:
        # These rungs run long after this benchmark. They meet the same tombstones as the first
        # rung.
        rungs[f"{_SEALED}{back} min"] = (first, 0, "not reached in this run: taken as the first's")
    total = sum(figure for figure, _, _ in rungs.values())
    untraced = sum(
        count
        for run in (long, short)
        for name, count in run["counters"].items()
        if name.startswith(_UNTRACED)
    )
    unit = "a delivery"
    missing = f"; {untraced} reads could not be traced" if untraced else ""
    lines = [
        Line(
            "tombstones read by polls",
            polls,
            unit,
            "< 1",
            polls < 1,
            note=f"{long['handled']:,} deliveries at {_TOMBSTONE_RATE}/s{missing}",
        ),
        Line("tombstones read by looks ahead", ahead, unit),
        Line(
            "tombstones read by all sweeps",
            total,
            unit,
            "< 10",
            total < 10,
            note="the sum of the rungs below",
        ),
    ]
    lines += [
        Line(f"  {purpose}", figure, unit, note=", ".join(filter(None, [_reads(reads), place])))
        for purpose, (figure, reads, place) in sorted(rungs.items())
    ]
    return lines


def _reads(count: int) -> str:
    return f"{count} reads" if count else ""


def _sweeps(counters: Mapping[str, int]) -> list[str]:
    return [name.removeprefix("reads:") for name in counters if name.startswith("reads:" + _SWEEP)]


def _gained(before: dict[str, Any], after: dict[str, Any]) -> Counter[str]:
    gained = Counter(after["counters"])
    gained.subtract(before["counters"])
    return +gained
