"""Does it decay? A queue whose minutes are a second long, for 600 of them, at a constant load.

```
 timers, 200/s ──► queue ──► consumer                 how late, beside a process that only sleeps
 bursts, due at once ─┘                               how fast it drains, at what CPU
 timers, 50/s ──► another ──► consumer, traced        tombstones a delivery
 before each reading: flush, compact ──► nodetool     SSTables, bytes
```

The node is started for this, with gc_grace 10 s and offsets of 5 s, so that ten minutes show what
takes a working day elsewhere: sealed shards are swept 4, 32 and 256 s later, and compacted away.
Other work on the machine slows some bursts and speeds none up, so the best of five bursts counts.
Other work also wakes threads later, by more than a tenth of a median lateness. So lateness is
judged beside that of a process which only sleeps in the same seconds. A slowdown of the whole
machine is hidden by this, but shows in the CPU a delivery and in the drain. The charts also have
the trend of each figure from minute 120 on.

Source: the trend line is Theil's and Sen's, the median slope of all pairs, which single outliers do
not move (P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968).
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cassandra.cluster import Cluster
from nodetool import nodetool

import shardq
from proofs import chart
from shardq import node
from shardq.bench import load
from shardq.bench.job import BenchJob
from shardq.bench.line import quantile
from shardq.bench.member import MemberProcess, sleeper
from shardq.clock import SystemClock
from shardq.errors import ShardqError, UsageError
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_QUEUE: dict[str, Any] = {"minute": "1s", "offset": "5s"}
_GC_GRACE_S = 10
_RATE = 200
_TRACED_RATE = 50
_AHEAD_MS = 2_500
"""How long before their due timers are put, so that lateness measures only the firing."""
_BURST = 24_000
_BURSTS = 5
_BURST_AHEAD_MS = 1_000
_EVERY_S = 20
_WINDOW_S = 5
_WARM_S = 1
_WAIT_S = 60
_EARLY = (120, 180)
_LAST = 60
_LEAST = _EARLY[1] + _EVERY_S
"""The least minutes of a run: enough for an early part and a last one to compare."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures read at one time.

    Attributes:
        minute: The time, in minutes of the queue.
        drain: Messages a second of a burst, the best of five.
        cpu_us: The consumer's CPU a delivery of a burst, the least of five.
        p50_ms: Lateness of timers, median.
        p99_ms: Lateness of timers, 99th percentile.
        bare_ms: How late a process that only sleeps woke in the same seconds, median.
        tombstones: Tombstones that reads of messages met, per delivery.
        sstables: SSTables of shardq's tables.
        bytes: Their size on disk.
    """

    minute: float
    drain: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    bare_ms: float
    tombstones: float
    sstables: float
    bytes: float

    @property
    def by_bare(self) -> float:
        """The median lateness, as a multiple of the sleeper's."""
        return self.p50_ms / max(self.bare_ms, 0.001)


@dataclass(frozen=True, slots=True)
class Bound:
    """How much worse a figure may be at the end than early: by a part of it, or by an amount.

    Attributes:
        name: The reading's field.
        part: The allowed part of the early figure; None: the figure is only shown.
        least: The allowed amount in the figure's unit; a smaller change counts as none.
        title: Its name for people.
        is_rate: True if more is better.
    """

    name: str
    part: float | None
    least: float
    title: str
    is_rate: bool = False


BOUNDS = (
    Bound("drain", 0.10, 0, "drain, messages/s", is_rate=True),
    Bound("cpu_us", None, 0, "CPU a delivery, us"),
    Bound("p50_ms", None, 0, "lateness p50, ms"),
    Bound("bare_ms", None, 0, "a sleeper's p50, ms"),
    Bound("by_bare", 0.10, 0, "lateness p50 / sleeper's"),
    Bound("p99_ms", 0.10, 0.5, "lateness p99, ms"),
    Bound("tombstones", 0.10, 0, "tombstones a delivery"),
    Bound("sstables", 0, 2, "SSTables"),
    Bound("bytes", 0.25, 0, "bytes"),
)
"""The bounds of all figures. p99 needs an amount: a tenth of 1 ms is less than wake-ups vary by."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure early and at the end; True if it has not decayed, None if it is not judged."""

    title: str
    early: float
    late: float
    kept: bool | None

    def line(self) -> str:
        """The line for people."""
        change = f"{self.late / self.early - 1:+.1%}" if self.early else ""
        shown = {True: "ok", False: "NOT OK", None: ""}[self.kept]
        figures = f"{self.early:>14,.2f} {self.late:>14,.2f}"
        return f"{self.title:<24} {figures} {change:>8}  {shown}".rstrip()


def judge(readings: Sequence[Reading]) -> list[Verdict]:
    """Compare the medians of minutes 120 to 180 with those of the last hour; better is no decay."""
    last = max(reading.minute for reading in readings)
    early = [one for one in readings if _EARLY[0] <= one.minute <= _EARLY[1]]
    late = [one for one in readings if one.minute >= last - _LAST]
    verdicts = []
    for bound in BOUNDS:
        was, is_now = (
            statistics.median(getattr(one, bound.name) for one in some) for some in (early, late)
        )
        worse = was - is_now if bound.is_rate else is_now - was
        kept = None if bound.part is None else worse <= max(bound.part * was, bound.least)
        verdicts.append(Verdict(bound.title, was, is_now, kept))
    return verdicts


def panels(readings: Sequence[Reading]) -> list[chart.Panel]:
    """A chart of each figure, with its trend."""
    minutes = [one.minute for one in readings]
    made = []
    for bound in BOUNDS:
        line = _line(readings, bound.name)
        trend = [(minute, line(minute)) for minute in (_EARLY[0], minutes[-1])]
        figures = [getattr(one, bound.name) for one in readings]
        made.append(chart.Panel(bound.title, minutes, figures, trend))
    return made


def _line(readings: Sequence[Reading], name: str) -> Callable[[float], float]:
    """Theil's and Sen's line through a figure from minute 120 on."""
    points = [(one.minute, getattr(one, name)) for one in readings if one.minute >= _EARLY[0]]
    slope = statistics.median(
        (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2)
    )
    offset = statistics.median(y - slope * x for x, y in points)
    return lambda x: offset + slope * x


def run(directory: Path, minutes: int, tell: Callable[[str], None]) -> list[Reading]:
    """Start a node, put load on it, and read the figures at intervals."""
    clock = SystemClock()
    there = node.start(1, directory, report=tell)
    try:
        shardq.init(there.url)
        with Cluster([there.nodes[0].address], port=there.port) as cluster:
            session = cluster.connect(node.KEYSPACE)
            for table in cluster.metadata.keyspaces[node.KEYSPACE].tables:
                session.execute(f"ALTER TABLE {table} WITH gc_grace_seconds = {_GC_GRACE_S}")
            traced = f"{there.url}?trace=tombstones"
            with shardq.connect(there.url) as db:
                plain = db.queue("decay", **_QUEUE)
                other = db.queue("decay-traced", lanes=1, group_lanes=1, **_QUEUE)
                with (
                    MemberProcess(BenchJob(there.url, plain.name), clock) as member,
                    MemberProcess(BenchJob(traced, other.name, threads=2), clock) as tracer,
                ):
                    over = threading.Event()
                    works = [
                        _loading(clock, plain, _RATE, over),
                        _loading(clock, other, _TRACED_RATE, over),
                    ]
                    reader = _Reader(directory, plain, member, tracer, session, clock, tell)
                    try:
                        return reader.read_for(minutes)
                    finally:
                        over.set()
                        for work in works:
                            work.join()
    finally:
        node.stop(directory, remove=True)


def _loading(
    clock: SystemClock, queue: shardq.Queue, rate: int, over: threading.Event
) -> threading.Thread:
    def produce() -> None:
        while not over.is_set():
            load.produce(clock, queue, rate, 1, ahead_ms=_AHEAD_MS)

    work = threading.Thread(target=produce, daemon=True)
    work.start()
    return work


class _Reader:
    """Takes readings while the load goes on."""

    def __init__(
        self,
        directory: Path,
        queue: shardq.Queue,
        member: MemberProcess,
        tracer: MemberProcess,
        session: Any,
        clock: SystemClock,
        tell: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._queue = queue
        self._member = member
        self._tracer = tracer
        self._session = session
        self._clock = clock
        self._tell = tell
        self._before = (0, 0)

    def read_for(self, minutes: int) -> list[Reading]:
        """Take a reading every 20 minutes of the queue, for a number of minutes."""
        start_us = self._clock.boot_us()
        readings = []
        for number in range(1, minutes // _EVERY_S + 1):
            due_us = start_us + number * _EVERY_S * 1_000_000
            # Begin early enough to end at the due time, so that the last reading is under full load
            # too.
            early_us = due_us - (_WARM_S + _WINDOW_S + 14) * 1_000_000 - self._clock.boot_us()
            if early_us > 0:
                self._clock.sleep(early_us / 1e6)
            # Use the real time: on a busy machine readings are late.
            reading = self._read((self._clock.boot_us() - start_us) / 1e6 + _WARM_S + _WINDOW_S)
            readings.append(reading)
            self._tell(json.dumps(asdict(reading)))
        return readings

    def _read(self, minute: float) -> Reading:
        nodetool("flush", node.KEYSPACE, directory=self._directory)
        nodetool("compact", node.KEYSPACE, directory=self._directory)
        sstables, size = self._tables()
        # Delete the traces of this measurement, because they would slow the node down as they grow.
        self._session.execute("TRUNCATE system_traces.events")
        self._session.execute("TRUNCATE system_traces.sessions")
        with sleeper() as naps_us:
            # Wait first: the start of the sleeper takes half a second of CPU.
            self._clock.sleep(_WARM_S)
            self._member.clear()
            self._clock.sleep(_WINDOW_S)
        late_us = self._member.report()["late_us"]
        # Count since the last reading, because some sweeps run only every 30 s.
        before, self._before = self._before, self._traced()
        deliveries, met = (now - then for now, then in zip(self._before, before, strict=True))
        rates, cpus_us = zip(*(self._drain() for _ in range(_BURSTS)), strict=True)
        return Reading(
            minute,
            max(rates),
            min(cpus_us),
            (quantile(late_us, 0.5) or 0) / 1_000,
            (quantile(late_us, 0.99) or 0) / 1_000,
            (quantile(naps_us, 0.5) or 0) / 1_000,
            met / max(deliveries, 1),
            sstables,
            size,
        )

    def _drain(self) -> tuple[float, float]:
        """Put messages due at one time; returns deliveries a second, and us of CPU for each."""
        due = moment_of(self._clock.now_ms() + _BURST_AHEAD_MS)
        before = self._member.clear()
        self._queue.put_many({"body": b"x" * 200, "due": due} for _ in range(_BURST))
        # Count the load's messages too, until half a second after the burst.
        wanted = _BURST + _RATE * (_BURST_AHEAD_MS + 500) // 1_000
        self._member.wait(lambda state: state["handled"] >= wanted, _WAIT_S)
        after = self._member.report()
        # The last message of the burst is the latest of all: its lateness is the burst's duration.
        rate = _BURST * 1e6 / max(*after["late_us"], 1)
        return rate, (after["cpu_s"] - before["cpu_s"]) * 1e6 / after["handled"]

    def _traced(self) -> tuple[int, int]:
        """Deliveries of the traced queue so far, and tombstones that its reads met."""
        state = self._tracer.state()
        counters = state["counters"].items()
        return state["handled"], sum(n for name, n in counters if name.startswith("tombstones:"))

    def _tables(self) -> tuple[int, int]:
        told = nodetool("tablestats", "-F", "json", node.KEYSPACE, directory=self._directory)
        tables = json.loads(told[told.index("{") :])[node.KEYSPACE]["tables"].values()
        return (
            sum(int(table["sstable_count"]) for table in tables),
            sum(int(table["space_used_live"]) for table in tables),
        )


def main() -> int:
    """Take the readings, and draw them; returns 1 if a figure decayed."""
    options = _options()
    tell = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731 - no more than that
    # Raise KeyboardInterrupt on SIGTERM, so that the node and the consumers are ended too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.readings:
            readings = _read_from(options.readings)
        else:
            with tempfile.TemporaryDirectory(prefix="decay-", ignore_cleanup_errors=True) as made:
                readings = run(Path(made) / "node", options.minutes, tell)
    except ShardqError as error:
        print(f"decay: {error}", file=sys.stderr)
        return 1
    options.out.with_suffix(".json").write_text(
        json.dumps([asdict(one) for one in readings], indent=1) + "\n"
    )
    shown = chart.svg(panels(readings), "minutes of the queue", shaded=_EARLY)
    options.out.write_text(shown)
    print(f"{'':<24} {'minutes 120-180':>15} {'the last 60':>13}")
    verdicts = judge(readings)
    for verdict in verdicts:
        print(verdict.line())
    print(f"drawn in {options.out}")
    return int(any(verdict.kept is False for verdict in verdicts))


def _read_from(path: Path) -> list[Reading]:
    """The readings that an earlier run has stored.

    Raises:
        UsageError: If the file has none, or too few minutes to be judged.
    """
    try:
        readings = [Reading(**one) for one in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} has no readings of this program: {error}") from error
    minutes = [one.minute for one in readings]
    if not any(_EARLY[0] <= minute <= _EARLY[1] for minute in minutes) or max(minutes) < _LEAST:
        raise UsageError(f"{path} has no readings of {_LEAST} minutes; let it run for longer.")
    return readings


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/decay",
        description="Show that a queue does not decay: a working day in ten minutes.",
        epilog="Ends with 1 where a figure got worse than it may.",
    )
    parser.add_argument("--minutes", type=int, default=600, help="how long, 200 at the least")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("decay.svg"),
        help="the plot; its readings are kept beside it, as .json",
    )
    parser.add_argument(
        "--readings", type=Path, metavar="FILE", help="judge and draw those, and measure nothing"
    )
    options = parser.parse_args()
    if not options.out.parent.is_dir():
        parser.error(f"there is no directory {options.out.parent}; name another with --out")
    if options.minutes < _LEAST:
        parser.error(f"it takes {_LEAST} minutes to compare two parts of them")
    return options


if __name__ == "__main__":
    sys.exit(main())
