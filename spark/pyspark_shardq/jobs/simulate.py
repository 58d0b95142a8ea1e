"""How made-up timers would lie in lanes, shards and nodes: planning on paper, without a store.

```
 spark.range ──► name, due, band ──► minute, lane ──► rows of each shard ──┬─► balance, hot shards
   a number        draws from its      the very         all else is of     ├─► advice on lanes
   a timer         hash: the same      arithmetic of     this small table  └─► rows and bytes a node
                   in each run         the core
```

No Python runs for a timer, and only what was counted is collected: hundreds of millions take no
more memory than one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, pi
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq import expressions, plots
from pyspark_shardq.outcome import JobOutcome, plain
from pyspark_shardq.page import Picture, page, section, table
from pyspark_shardq.spread import Spread
from shardq.clock import SystemClock
from shardq.errors import BadSetting, shown
from shardq.model.settings import AUTO_LANES_MIN, BANDS_MAX, LANES_MAX
from shardq.model.shard import MINUTE_MS, Layout
from shardq.model.text import plural
from shardq.model.times import LATEST_MS, due_ms, duration_ms, duration_text, iso, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from shardq.model.times import Due, Duration

SHAPES = {
    "even": "due at any time alike",
    "daily": "a wave a day: most at 14:00 UTC, a tenth of that at night",
    "hourly": "a share of them due exactly on the hour",
    "burst": "a share of them due in one minute",
}
"""How the dues of made-up timers are spread."""

LANE_RATE = 1_000
"""Messages a second that a lane is meant for at peak.

Source: docs/operations/cassandra.md, "Size". A minute's partition then stays under 60,000 rows, and
what was deleted in the last seconds under what Cassandra warns of in a read.
"""
DRAIN_RATE = 32_000
"""Deliveries a second that one process did at most, with a handler that does nothing.

Source: docs/tried.md, "Speed". A lane is read by one process at a time, so it drains no faster.
"""
PARTITION_BYTES_MAX = 100 << 20
"""Source: from this size on, Cassandra warns of a partition as large."""
ROW_BYTES = 60
"""What a row needs beside its body, before compression.

Source: 100,000 rows with random bodies of 200 bytes and names of 16 characters, in 40 shards of a
Cassandra 5.0.9: 57 bytes a row.
"""

_PEAK_MS = 14 * 3_600_000
_WAVE = 9 / 11
"""The wave's height over its mean, so that its low is a tenth of its peak."""
_HOUR_MS = 3_600_000
_DAY_MS = 86_400_000
_START = "2030-01-01T00:00Z"
_TIMERS_MAX = 10**12
_NODES_MAX = 10_000
_TASK_ROWS = 1_000_000
_PART_SHARDS = 500_000
_DRAW = 1 << 40
_FOR_DUE, _FOR_SHARE, _FOR_BAND = range(3)
"""What a number is drawn for: each gets one of its own."""
_HOTTEST = 10


@dataclass(frozen=True, slots=True)
class Timers:
    """Made-up timers.

    Attributes:
        count: How many.
        start_ms: The first due, epoch milliseconds.
        span_ms: How long a time their dues are spread over.
        shape: How, one of `SHAPES`.
        share: Of the shapes `hourly` and `burst`: the part of all that is due on the hour, or in
            the minute in the middle; 0 to 1.
        body_bytes: The size of each body.
        weights: Of each priority, how many timers it has beside the others; alike where empty.
    """

    count: int
    start_ms: int
    span_ms: int = _DAY_MS
    shape: str = "even"
    share: float = 0.5
    body_bytes: int = 200
    weights: tuple[float, ...] = ()


class ShardLoad(NamedTuple):
    """What a shard gets.

    Attributes:
        start_ms: The start of its minute, epoch milliseconds.
        lane: Its lane.
        band: Its priority.
        rows: Messages.
        bytes: What they need.
        drained_s: Seconds that one process needs for them at least.
    """

    start_ms: int
    lane: int
    band: int
    rows: int
    bytes: int
    drained_s: float


class NodeLoad(NamedTuple):
    """What a node keeps: copies of rows, and deliveries a second in the fullest minute."""

    node: int
    shards: int
    rows: int
    bytes: int
    peak_rate: float


class Need(NamedTuple):
    """How many lanes a limit asks for, and why."""

    lanes: int
    why: str


@dataclass(frozen=True, slots=True)
class SimulateReport(JobOutcome):
    """How made-up timers lie in a queue.

    Attributes:
        at_ms: When it was made, epoch milliseconds.
        timers: The timers.
        layout: The queue's.
        replicas: Copies of each row.
        shards: Shards that have a message.
        hot: How many of those have more messages than a lane is meant for in a minute.
        rows: (fewest, median, p99, most) messages of those shards.
        hottest: The fullest shards.
        nodes: What each node keeps; which one has which shard is made up as well.
        needs: How many lanes each limit asks for.
        spread: How the timers lie over time, priorities and lanes.
    """

    at_ms: int
    timers: Timers
    layout: Layout
    replicas: int
    shards: int
    hot: int
    rows: tuple[int, float, float, int]
    hottest: tuple[ShardLoad, ...]
    nodes: tuple[NodeLoad, ...]
    needs: tuple[Need, ...]
    spread: Spread

    @property
    def lanes_needed(self) -> int:
        """Lanes of a priority that all limits ask for; more than `LANES_MAX` cannot be had."""
        return max(need.lanes for need in self.needs)

    @property
    def lane_balance(self) -> float:
        """The fullest lane, as a part of the mean of its priority's."""
        rows: dict[int, list[int]] = {}
        for (band, _), load in self.spread.lanes.items():
            rows.setdefault(band, []).append(load.rows)
        return max(map(_over_mean, rows.values()))

    @property
    def shard_balance(self) -> float:
        """The fullest shard, as a part of the mean of those that have a message."""
        return self.rows[3] * self.shards / self.timers.count

    @property
    def node_balance(self) -> float:
        """The fullest node, as a part of the mean."""
        return _over_mean([node.rows for node in self.nodes])

    def line(self) -> str:
        """The outcome in a sentence."""
        return (
            f"{plural(self.timers.count, 'timer')} over {duration_text(self.timers.span_ms)} lie "
            f"in {plural(self.shards, 'shard')}: the fullest lane holds {self.lane_balance:.3f} "
            f"times the mean, the fullest shard {plural(self.rows[3], 'message')}, "
            f"{self.shard_balance:.2f} times the mean. {self.advice()}"
        )

    def advice(self) -> str:
        """How many lanes to take, in a sentence."""
        needed, have = self.lanes_needed, self.layout.lanes_written
        if needed > LANES_MAX:
            queues = ceil(needed / LANES_MAX)
            return (
                f"{needed:,} lanes would be needed, and {LANES_MAX} are the most: spread the dues "
                f"over a longer time, or the timers over {queues} queues."
            )
        if needed > have:
            return f"Take {needed} lanes rather than {have}."
        if needed == have:
            return f"{plural(have, 'lane')} {'is' if have == 1 else 'are'} just enough."
        at_least = "and at least one for each consumer process"
        return f"{have} lanes are enough: {needed} would do, {at_least}."

    def lines(self) -> list[str]:
        """Why so many lanes, a line for each limit."""
        return [f"{plural(need.lanes, 'lane')}: {need.why}" for need in self.needs]

    def to_json(self) -> dict[str, Any]:
        """The report as programs read it."""
        fewest, median, p99, most = self.rows
        return {
            "job": "simulate",
            "timers": plain(self.timers),
            "lanes": self.layout.lanes_written,
            "bands": self.layout.bands,
            "minute_ms": self.layout.minute_ms,
            "replicas": self.replicas,
            "shards": self.shards,
            "hot_shards": self.hot,
            "rows": {"fewest": fewest, "median": median, "p99": p99, "most": most},
            "lane_balance": self.lane_balance,
            "shard_balance": self.shard_balance,
            "node_balance": self.node_balance,
            "lanes_needed": self.lanes_needed,
            "needs": plain(self.needs),
            "by_lane": [
                {"lane": lane, "band": band, **load._asdict()}
                for (band, lane), load in self.spread.lanes.items()
            ],
            "hottest": plain(self.hottest),
            "nodes": plain(self.nodes),
        }

    def plot(self) -> bytes:
        """The load over the time of the timers, by priority, as PNG."""
        return self.spread.plot()

    def page(self) -> str:
        """The report as one HTML file."""
        timers, layout = self.timers, self.layout
        fewest, median, p99, most = self.rows
        by_node = [(str(node.node), node.bytes >> 20) for node in self.nodes]
        sections = (
            section(
                "How many lanes",
                self.advice(),
                table(">lanes|because", self.needs),
                f"A lane is read by one process at a time, and drains at most {DRAIN_RATE:,} "
                f"messages a second (docs/tried.md, Speed): the fullest shard in "
                f"{span(self.hottest[0].drained_s * 1_000)} at best.",
            ),
            section("When they are due", Picture(self.plot(), "Messages by due and priority")),
            self.spread.on_lanes(layout),
            section(
                "Shards",
                table(
                    ">shards|>fewest messages|>median|>p99|>most",
                    [(self.shards, fewest, f"{median:,.0f}", f"{p99:,.0f}", most)],
                ),
                f"{plural(self.hot, 'shard')} {'has' if self.hot == 1 else 'have'} more than "
                f"the {meant_for(layout):,} messages that a lane is meant for in a minute. "
                f"The fullest:",
                table(
                    "minute|>lane|>priority|>messages|>MiB|>seconds to drain",
                    (
                        (
                            *(iso(shard.start_ms), shard.lane, shard.band, shard.rows),
                            f"{shard.bytes / (1 << 20):,.1f}",
                            f"{shard.drained_s:,.2f}",
                        )
                        for shard in self.hottest
                    ),
                ),
            ),
            section(
                f"Nodes, {plural(self.replicas, 'copy')} of each row",
                Picture(plots.balance(by_node, of="node", unit="MiB"), "MiB on each node"),
                table(
                    ">node|>shards|>messages|>MiB|>deliveries/s, fullest minute",
                    (
                        (*node[:3], node.bytes >> 20, f"{node.peak_rate:,.0f}")
                        for node in self.nodes
                    ),
                ),
                f"Bytes are those of bodies and {ROW_BYTES} for each row beside them, before "
                f"compression. Which node keeps a shard follows here from a hash of Spark's "
                f"and even token ranges, not from Cassandra's murmur3 and the ranges of a real "
                f"cluster: the balance is alike, the places are not. One node on two cores, "
                f"which its client shared, did {DRAIN_RATE:,} deliveries a second "
                f"(docs/operations/cassandra.md, Size).",
            ),
        )
        asked = {
            "timers": timers.count,
            "from": iso(timers.start_ms),
            "over": duration_text(timers.span_ms),
            "shape": timers.shape,
            "share": timers.share if timers.shape in ("hourly", "burst") else None,
            "body": f"{timers.body_bytes:,} bytes",
            "lanes": layout.lanes_written,
            "priorities": layout.bands,
            "minute": duration_text(layout.minute_ms),
            "nodes": len(self.nodes),
            "replicas": self.replicas,
        }
        return page("Simulated timers", self.line(), sections, at_ms=self.at_ms, asked=asked)


def run(
    spark: SparkSession,
    timers: int = 1_000_000,
    *,
    start: Due = _START,
    over: Duration = "1d",
    shape: str = "even",
    share: float = 0.5,
    body_bytes: int = 200,
    weights: Sequence[float] = (),
    queue: str = "timers",
    lanes: int = AUTO_LANES_MIN,
    bands: int = 1,
    minute: Duration = "1m",
    nodes: int = 3,
    replicas: int = 3,
) -> SimulateReport:
    """Make timers up and count where they would lie.

    Args:
        timers: How many.
        start: The first due.
        over: How long a time their dues are spread over; whole days for `daily`, whole hours for
            `hourly`.
        shape: How: `even`, `daily`, `hourly` or `burst`; `SHAPES` describes them.
        share: The part that is due on the hour (`hourly`) or in one minute (`burst`), 0 to 1.
        body_bytes: The size of each body.
        weights: How many timers each priority has beside the others; alike where empty.
        queue: The queue's name, which takes part in the lane's hash.
        lanes: Lanes of each priority, 1 to 256.
        bands: Priorities, 1 to 16.
        minute: The length of the queue's minute.
        nodes: Of the cluster.
        replicas: Copies of each row.

    Raises:
        BadSetting: If one of them cannot be used.
        BadTime: If a time cannot be read.
    """
    start_ms, span_ms = due_ms(start, name="start"), duration_ms(over, name="over")
    minute_ms = duration_ms(minute, name="minute")
    made = Timers(timers, start_ms, span_ms, shape, share, body_bytes, tuple(weights))
    layout = Layout(queue, minute_ms, bands, lanes, lanes, lanes)
    _check(made, layout, nodes, replicas)
    table = kept(spark, made, layout)
    try:
        return _counted(table, made, layout, nodes, replicas)
    finally:
        table.unpersist()


# The plan -----------------------------------------------------------------------------------------


def named(spark: SparkSession, timers: Timers, bands: int = 1) -> DataFrame:
    """The timers themselves: `name`, `due_ms` and `band`. The same in each run, on any cluster."""
    tasks = ceil(timers.count / _TASK_ROWS)
    number = F.col("id")
    return spark.range(0, timers.count, 1, tasks).select(
        F.concat(F.lit("timer-"), number.cast("string")).alias("name"),
        (F.lit(timers.start_ms) + _offset(timers, number)).alias("due_ms"),
        _band(timers.weights or (1.0,) * bands, _draw(number, _FOR_BAND)).alias("band"),
    )


def shards(frame: DataFrame, layout: Layout) -> DataFrame:
    """Messages of each shard: `minute`, `lane`, `band` and `rows`.

    Args:
        frame: `name`, `due_ms` and `band` of each message.
        layout: The queue's.
    """
    lane = expressions.lane(F.col("name"), F.col("band"), layout)
    minute = expressions.minute(F.col("due_ms"), layout)
    placed = frame.select(minute.alias("minute"), lane.alias("lane"), "band")
    return placed.groupBy("minute", "lane", "band").agg(F.count("*").alias("rows"))


def kept(spark: SparkSession, timers: Timers, layout: Layout) -> DataFrame:
    """The shards of made-up timers, in Spark's memory until `unpersist()`.

    In as few parts as hold them: each count below visits all, and by itself Spark makes 200, in
    which 20 million timers take five times as long.
    """
    most = min(timers.count, (timers.span_ms // layout.minute_ms + 2) * len(layout.lanes()))
    table = shards(named(spark, timers, layout.bands), layout)
    return table.coalesce(ceil(most / _PART_SHARDS)).persist()


def _draw(number: Column, salt: int) -> Column:
    """A number from 0 to 1, not included, that looks random and is always the same."""
    return F.pmod(F.xxhash64(number, F.lit(salt)), F.lit(_DRAW)) / F.lit(_DRAW)


def _band(weights: Sequence[float], draw: Column) -> Column:
    chosen, below = F.lit(len(weights) - 1), sum(weights)
    for band in reversed(range(len(weights) - 1)):
        below -= weights[band + 1]
        chosen = F.when(draw * sum(weights) < below, band).otherwise(chosen)
    return chosen.cast("int")


def _offset(timers: Timers, number: Column) -> Column:
    """Milliseconds from the first due to a timer's."""
    span_ms, draw = timers.span_ms, _draw(number, _FOR_DUE)
    even = F.floor(draw * span_ms)
    is_of_share = _draw(number, _FOR_SHARE) < timers.share
    if timers.shape == "hourly":
        hour = F.floor(draw * (span_ms // _HOUR_MS)) * _HOUR_MS
        return F.when(is_of_share, hour).otherwise(even)
    if timers.shape == "burst":
        middle_ms = _middle(timers)
        return F.when(is_of_share, F.floor(draw * MINUTE_MS) + middle_ms).otherwise(even)
    if timers.shape == "daily":
        # Half a day apart the wave's two values add up to the same everywhere: so what is drawn
        # evenly either stays, as often as the wave is high there, or goes to the other half.
        in_day = F.pmod(even + timers.start_ms % _DAY_MS, F.lit(_DAY_MS))
        wave = F.cos((in_day - _PEAK_MS) * (2 * pi / _DAY_MS))
        stays = _draw(number, _FOR_SHARE) < (wave * _WAVE + 1) / 2
        return F.when(stays, even).otherwise(F.pmod(even + _DAY_MS // 2, F.lit(span_ms)))
    return even


def _middle(timers: Timers) -> int:
    """The offset of the whole minute in the middle."""
    middle_ms = timers.start_ms + timers.span_ms // 2
    return max(middle_ms // MINUTE_MS * MINUTE_MS - timers.start_ms, 0)


# Counting -----------------------------------------------------------------------------------------


def _counted(
    table: DataFrame, timers: Timers, layout: Layout, nodes: int, replicas: int
) -> SimulateReport:
    rows = F.col("rows")
    [total] = table.agg(
        F.count("*"),
        F.count_if(rows > meant_for(layout)),
        F.percentile(rows, [0.0, 0.5, 0.99, 1.0]),
    ).collect()
    fewest, median, p99, most = total[2]
    hottest = table.orderBy(F.desc("rows"), "minute", "lane").limit(_HOTTEST).collect()
    by_minute = table.groupBy("minute", "band").agg(F.sum(rows).alias("rows"))
    [peak] = by_minute.orderBy(F.desc("rows"), "minute", "band").limit(1).collect()
    first = layout.minute_of(timers.start_ms)
    minutes = range(first, layout.minute_of(timers.start_ms + timers.span_ms - 1) + 1)
    lanes = [(layout.band_of(lane), lane) for lane in layout.lanes()]
    bytes_each = timers.body_bytes + ROW_BYTES
    return SimulateReport(
        at_ms=SystemClock().now_ms(),
        timers=timers,
        layout=layout,
        replicas=replicas,
        shards=total[0],
        hot=total[1],
        rows=(round(fewest), median, p99, round(most)),
        hottest=tuple(
            ShardLoad(
                *(layout.start_ms(shard.minute), shard.lane, shard.band, shard.rows),
                bytes=shard.rows * bytes_each,
                drained_s=shard.rows / DRAIN_RATE,
            )
            for shard in hottest
        ),
        nodes=_nodes(table, layout, nodes, replicas, bytes_each=bytes_each, peak=peak.minute),
        needs=needs(peak.rows, layout, bytes_each),
        spread=Spread.of(
            table.withColumnRenamed("band", "priority"), layout, minutes, lanes, origin=first
        ),
    )


def _nodes(
    table: DataFrame, layout: Layout, nodes: int, replicas: int, *, bytes_each: int, peak: int
) -> tuple[NodeLoad, ...]:
    """What each node keeps: of the ring's ranges, alike in size, its own and those before it."""
    at_peak = F.sum(F.when(F.col("minute") == peak, F.col("rows")).otherwise(0))
    range_of = F.pmod(F.xxhash64(F.lit(layout.queue), "minute", "lane"), F.lit(nodes))
    ranges = {
        row.range: row
        for row in table.groupBy(range_of.alias("range"))
        .agg(F.count("*").alias("shards"), F.sum("rows").alias("rows"), at_peak.alias("peak"))
        .collect()
    }
    made = []
    for node in range(nodes):
        kept = [(node - before) % nodes for before in range(replicas)]
        own = [ranges[one] for one in kept if one in ranges]
        rows = sum(one.rows for one in own)
        rate = sum(one.peak for one in own) * 1_000 / layout.minute_ms
        made.append(NodeLoad(node, sum(one.shards for one in own), rows, rows * bytes_each, rate))
    return tuple(made)


def meant_for(layout: Layout) -> int:
    """The most messages that a shard is meant for."""
    return LANE_RATE * layout.minute_ms // 1_000


def needs(rows: int, layout: Layout, bytes_each: int) -> tuple[Need, ...]:
    """The lanes that the fullest minute of a priority needs."""
    rate = rows * 1_000 / layout.minute_ms
    size = rows * bytes_each
    return (
        Need(
            max(ceil(rate / LANE_RATE), 1),
            f"the fullest minute of a priority has {plural(rows, 'message')}, {rate:,.0f} a "
            f"second, and a lane is meant for {LANE_RATE:,} a second at peak "
            f"(docs/operations/cassandra.md, Size).",
        ),
        Need(
            max(ceil(size / PARTITION_BYTES_MAX), 1),
            f"these are {_size(size)}, and Cassandra warns of a partition over "
            f"{_size(PARTITION_BYTES_MAX)}.",
        ),
    )


def _size(count: int) -> str:
    """Bytes as people read them.

    >>> _size(300), _size(22 << 20), _size(100 << 20)
    ('300 bytes', '22.0 MiB', '100 MiB')
    """
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            size = count / unit
            return f"{size:,.0f} {name}" if size >= 100 else f"{size:.1f} {name}"
    return plural(count, "byte")


def _over_mean(amounts: Sequence[int]) -> float:
    return max(amounts) * len(amounts) / (sum(amounts) or 1)


# What was asked -----------------------------------------------------------------------------------


def _check(timers: Timers, layout: Layout, nodes: int, replicas: int) -> None:
    """Raise what cannot be simulated, before Spark does anything."""
    if timers.shape not in SHAPES:
        raise BadSetting(f"shape must be {', '.join(SHAPES)}, not {shown(timers.shape)}.")
    bounds = (
        ("timers", timers.count, 1, _TIMERS_MAX),
        ("body bytes", timers.body_bytes, 0, 1 << 20),
        ("lanes", layout.lanes_written, 1, LANES_MAX),
        ("bands", layout.bands, 1, BANDS_MAX),
        ("nodes", nodes, 1, _NODES_MAX),
        ("replicas", replicas, 1, _NODES_MAX),
        ("minute, in milliseconds,", layout.minute_ms, 1_000, _DAY_MS),
        ("over, in milliseconds,", timers.span_ms, 1, LATEST_MS - timers.start_ms),
    )
    for name, value, low, high in bounds:
        if type(value) is not int or not low <= value <= high:
            raise BadSetting(f"{name} must be {low:,} to {high:,}, not {shown(value)}.")
    if replicas > nodes:
        raise BadSetting(
            f"replicas must be at most {nodes:,}, as many as there are nodes, not {replicas:,}; "
            f"give fewer replicas or more nodes."
        )
    if not 0 <= timers.share <= 1:
        raise BadSetting(f"share must be 0 to 1, not {shown(timers.share)}.")
    unit_ms = {"daily": _DAY_MS, "hourly": _HOUR_MS}.get(timers.shape, 1)
    if timers.span_ms % unit_ms:
        whole = "days" if unit_ms == _DAY_MS else "hours"
        raise BadSetting(
            f"over must be whole {whole} for timers of the shape {timers.shape!r}, not "
            f"{span(timers.span_ms)}."
        )
    if timers.weights and (len(timers.weights) != layout.bands or min(timers.weights) < 0):
        raise BadSetting(
            f"weights must be a number from 0 on for each of {layout.bands} priorities, not "
            f"{shown(list(timers.weights))}."
        )
    if timers.weights and not sum(timers.weights):
        raise BadSetting("weights must not all be 0.")
