"""Simulates how timers would lie in lanes, shards and nodes: planning on paper.

```
 shape ──► timers of each minute ──► of its priorities ──► of their lanes ──┬─► balance, hot shards
                                     drawn at random, the same in each run   ├─► advice on lanes
                                                                             └─► rows a node
```

Messages of shards are drawn; no timer is made. So a trillion timers take as long as a million, and
neither Spark nor a store is needed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import ceil, pi, sin
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_shardq import plots
from pyspark_shardq.outcome import JobOutcome
from pyspark_shardq.page import Picture, page, section, table
from pyspark_shardq.spread import LaneLoad, Spread, stretch_for
from shardq.clock import SystemClock
from shardq.errors import BadSetting, shown
from shardq.model.settings import AUTO_LANES_MIN, BANDS_MAX, LANES_MAX
from shardq.model.shard import MINUTE_MS, Layout
from shardq.model.text import plural
from shardq.model.times import LATEST_MS, due_ms, duration_ms, duration_text, iso, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardq.model.times import Due, Duration

SHAPES = {
    "even": "due at any time alike",
    "daily": "a wave a day: most at 14:00 UTC, a tenth of that at night",
    "hourly": "a share of them due exactly on the hour",
    "burst": "a share of them due in one minute",
}
"""The distributions of the dues of made-up timers."""

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
"""The bytes that a row needs beside its body, before compression.

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
_SHARDS_MAX = 20_000_000
"""The most shards that are drawn: they take seconds, and half a gigabyte."""
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
    """The messages of a shard.

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


class RowsOfShards(NamedTuple):
    """The number of messages of the emptiest shard, the median one, and so on to the fullest."""

    fewest: int
    median: float
    p99: float
    most: int


class NodeLoad(NamedTuple):
    """The load of a node: copies of rows, and deliveries a second in the fullest minute."""

    node: int
    shards: int
    rows: int
    bytes: int
    peak_rate: float


class Need(NamedTuple):
    """The number of lanes that a limit asks for, and the reason."""

    lanes: int
    why: str


@dataclass(frozen=True, slots=True)
class SimulateReport(JobOutcome):
    """The spread of made-up timers in a queue.

    Attributes:
        at_ms: When it was made, epoch milliseconds.
        timers: The timers.
        layout: The queue's.
        replicas: Copies of each row.
        shards: Shards that have a message.
        hot: How many of those have more messages than a lane is meant for in a minute.
        rows: Messages of those shards.
        hottest: The fullest shards.
        nodes: What each node keeps; which one has which shard is made up as well.
        needs: How many lanes each limit asks for.
        spread: How the timers lie over time, priorities and lanes.
    """

    job = "simulate"
    hidden = ("spread",)
    also = ("lane_balance", "shard_balance", "node_balance", "lanes_needed", "by_lane")
    at_ms: int
    timers: Timers
    layout: Layout
    replicas: int
    shards: int
    hot: int
    rows: RowsOfShards
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
        return self.rows.most * self.shards / self.timers.count

    @property
    def node_balance(self) -> float:
        """The fullest node, as a part of the mean."""
        return _over_mean([node.rows for node in self.nodes])

    def line(self) -> str:
        """The outcome in a sentence."""
        return (
            f"{plural(self.timers.count, 'timer')} over {duration_text(self.timers.span_ms)} lie "
            f"in {plural(self.shards, 'shard')}: the fullest lane holds {self.lane_balance:.3f} "
            f"times the mean, the fullest shard {plural(self.rows.most, 'message')}, "
            f"{self.shard_balance:.2f} times the mean. {self.advice()}"
        )

    def advice(self) -> str:
        """The number of lanes to take, in a sentence."""
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
        """The reason for each limit's number of lanes, a line each."""
        return [f"{plural(need.lanes, 'lane')}: {need.why}" for need in self.needs]

    @property
    def by_lane(self) -> list[dict[str, int]]:
        """Messages of each lane, and of its shards."""
        return [
            {"lane": lane, "band": band, **load._asdict()}
            for (band, lane), load in self.spread.lanes.items()
        ]

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
                f"compression. Which node keeps a shard is drawn here, from even token ranges, and "
                f"does not follow from Cassandra's murmur3 and the ranges of a real cluster: the "
                f"balance is alike, the places are not. One node on two cores, which its client "
                f"shared, did {DRAIN_RATE:,} deliveries a second (docs/operations/cassandra.md, "
                f"Size).",
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
    """Draw how many made-up timers each shard has. Neither Spark nor a store is needed.

    Args:
        timers: How many.
        start: The first due.
        over: How long a time their dues are spread over; whole days for `daily`, whole hours for
            `hourly`.
        shape: How: `even`, `daily`, `hourly` or `burst`; `SHAPES` describes them.
        share: The part that is due on the hour (`hourly`) or in one minute (`burst`), 0 to 1.
        body_bytes: The size of each body.
        weights: How many timers each priority has beside the others; alike where empty.
        queue: The queue's name. All that is drawn follows from it: each run gives the same report.
        lanes: Lanes of each priority, 1 to 256.
        bands: Priorities, 1 to 16.
        minute: The length of the queue's minute.
        nodes: Of the cluster.
        replicas: Copies of each row.

    Raises:
        BadSetting: If one of them cannot be used, or makes too many shards.
        BadTime: If a time cannot be read.
    """
    start_ms, span_ms = due_ms(start, name="start"), duration_ms(over, name="over")
    minute_ms = duration_ms(minute, name="minute")
    made = Timers(timers, start_ms, span_ms, shape, share, body_bytes, tuple(weights))
    layout = Layout(queue, minute_ms, bands, lanes, lanes, lanes)
    _check(made, layout, nodes, replicas)
    return _report(made, layout, nodes, replicas)


# Drawing ------------------------------------------------------------------------------------------


def due_before(timers: Timers, offsets_ms: NDArray[Any]) -> NDArray[Any]:
    """The part of all timers, 0 to 1, that is due before each of some times.

    Args:
        timers: The timers.
        offsets_ms: An array of milliseconds since the first due.

    Returns:
        An array of as many numbers.
    """
    import numpy as np

    span_ms, share = timers.span_ms, timers.share
    at_ms = np.clip(offsets_ms, 0, span_ms)
    due: NDArray[Any] = at_ms / span_ms
    if timers.shape == "hourly":
        on_the_hour = np.ceil(at_ms / _HOUR_MS) * _HOUR_MS / span_ms
        due = share * on_the_hour + (1 - share) * due
    elif timers.shape == "burst":
        middle_ms = (timers.start_ms + span_ms // 2) // MINUTE_MS * MINUTE_MS - timers.start_ms
        first_ms, last_ms = max(middle_ms, 0), min(max(middle_ms, 0) + MINUTE_MS, span_ms)
        in_one_minute = np.clip((at_ms - first_ms) / (last_ms - first_ms), 0, 1)
        due = share * in_one_minute + (1 - share) * due
    elif timers.shape == "daily":
        # The integral of a wave around the mean, which is 0 over whole days.
        turns = 2 * pi / _DAY_MS
        begin = (timers.start_ms % _DAY_MS - _PEAK_MS) * turns
        due = due + (np.sin(begin + at_ms * turns) - sin(begin)) * _WAVE / (turns * span_ms)
    return due


def _report(timers: Timers, layout: Layout, nodes: int, replicas: int) -> SimulateReport:
    """Draw the messages of each shard, and count them.

    A message's lane follows from a hash of its id: so the lanes of many messages are as uneven as
    random draws are, and no message has to be made. Ids that count up are spread more evenly.
    """
    import numpy as np

    random = np.random.default_rng(zlib.crc32(layout.queue.encode()))
    minutes, lanes = _minutes(timers, layout), layout.lanes()
    edges = np.arange(minutes.start, minutes.stop + 1) * layout.minute_ms - timers.start_ms
    weights = np.array(timers.weights or (1,) * layout.bands)
    of_minutes = random.multinomial(timers.count, np.clip(np.diff(due_before(timers, edges)), 0, 1))
    of_bands = random.multinomial(of_minutes, weights / weights.sum())
    alike = np.full(layout.lanes_written, 1 / layout.lanes_written)
    # A row a minute, a column a lane: `Layout.lane` numbers the lanes of an index band by band.
    drawn = random.multinomial(of_bands, alike).transpose(0, 2, 1).reshape(len(minutes), -1)
    found = drawn[drawn > 0]
    fewest, median, p99, most = np.quantile(found, (0, 0.5, 0.99, 1)).tolist()
    places = np.argpartition(drawn, -min(_HOTTEST, drawn.size), axis=None)[-_HOTTEST:]
    fullest = [(int(drawn.flat[place]), *divmod(int(place), len(lanes))) for place in places]
    peak = int(of_bands.max(axis=1).argmax())
    bytes_each = timers.body_bytes + ROW_BYTES
    return SimulateReport(
        at_ms=SystemClock().now_ms(),
        timers=timers,
        layout=layout,
        replicas=replicas,
        shards=found.size,
        hot=int((found > meant_for(layout)).sum()),
        rows=RowsOfShards(round(fewest), median, p99, round(most)),
        hottest=tuple(
            ShardLoad(
                *(layout.start_ms(minutes[minute]), lane, layout.band_of(lane), rows),
                bytes=rows * bytes_each,
                drained_s=rows / DRAIN_RATE,
            )
            for rows, minute, lane in sorted(fullest, key=_fullest_first)
            if rows
        ),
        nodes=tuple(
            NodeLoad(node, shards, rows, rows * bytes_each, at_peak * 1_000 / layout.minute_ms)
            for node, (shards, rows, at_peak) in enumerate(
                _of_nodes(random.integers(nodes, size=drawn.shape), drawn, peak, nodes, replicas)
            )
        ),
        needs=needs(int(of_bands.max()), layout, bytes_each),
        spread=_spread(drawn, minutes, layout),
    )


def _minutes(timers: Timers, layout: Layout) -> range:
    """The minutes in which timers are due."""
    last = layout.minute_of(timers.start_ms + timers.span_ms - 1)
    return range(layout.minute_of(timers.start_ms), last + 1)


def _fullest_first(shard: tuple[int, int, int]) -> tuple[int, int, int]:
    rows, minute, lane = shard
    return -rows, minute, lane


def _of_nodes(
    ranges: NDArray[Any], drawn: NDArray[Any], peak: int, nodes: int, replicas: int
) -> Iterator[tuple[int, int, int]]:
    """For each node its shards, its messages, and its messages in the fullest minute.

    The ring's ranges are alike in size. A node keeps its own range, and the ranges before it as a
    replica.

    Args:
        ranges: The range of each shard.
        drawn: The messages of each shard.
        peak: The number of the fullest minute.
    """
    import numpy as np

    shards, rows, at_peak = (
        np.bincount(of.ravel(), amounts.ravel(), nodes).astype(int)
        for of, amounts in ((ranges, drawn > 0), (ranges, drawn), (ranges[peak], drawn[peak]))
    )
    for node in range(nodes):
        kept = [(node - before) % nodes for before in range(replicas)]
        yield int(shards[kept].sum()), int(rows[kept].sum()), int(at_peak[kept].sum())


def _spread(drawn: NDArray[Any], minutes: range, layout: Layout) -> Spread:
    import numpy as np

    lanes = layout.lanes()
    bar_ms = stretch_for(minutes, layout, len(lanes))
    begins = range(0, len(minutes), bar_ms // layout.minute_ms)
    starts_ms = [layout.start_ms(minutes[begin]) for begin in begins]
    of_bands = np.add.reduceat(drawn, begins).reshape(len(begins), -1, layout.bands).sum(axis=1)
    fullest = np.maximum.reduceat(drawn, begins)
    return Spread(
        bar_ms,
        tuple(
            (at_ms, dict(enumerate(counts)))
            for at_ms, counts in zip(starts_ms, of_bands.tolist(), strict=True)
        ),
        {
            (at_ms, lane): rows
            for at_ms, counts in zip(starts_ms, fullest.tolist(), strict=True)
            for lane, rows in enumerate(counts)
        },
        {
            (layout.band_of(lane), lane): LaneLoad(
                *(int(of_lane.sum()), int((of_lane > 0).sum()), int(of_lane.max()))
            )
            for lane, of_lane in zip(lanes, drawn.T, strict=True)
        },
    )


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
    shards = len(_minutes(timers, layout)) * len(layout.lanes())
    if shards > _SHARDS_MAX:
        raise BadSetting(
            f"these are {shards:,} shards, and {_SHARDS_MAX:,} are the most; give a shorter time, "
            f"a longer minute, or fewer lanes."
        )
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
