"""The spread of messages over time, priorities and lanes, in as few numbers as pictures show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq import plots
from pyspark_shardq.page import Picture, section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from pyspark_shardq.page import Section
    from shardq.model.shard import Layout

_CELLS_MAX = 60_000


class LaneLoad(NamedTuple):
    """The load of a lane: messages in all, its shards, and the messages of the fullest."""

    rows: int = 0
    shards: int = 0
    fullest: int = 0


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of messages over time, priorities and lanes.

    Attributes:
        bar_ms: The length of a stretch of `bars` and `cells`.
        bars: (start of a stretch, priority -> messages).
        cells: (start of a stretch, lane) -> messages of its fullest shard there.
        lanes: (priority, lane) -> what that lane has, of each that is shown.
    """

    bar_ms: int
    bars: tuple[tuple[int, Mapping[int, int]], ...]
    cells: Mapping[tuple[int, int], int]
    lanes: Mapping[tuple[int, int], LaneLoad]

    @classmethod
    def of(
        cls,
        shards: DataFrame,
        layout: Layout,
        minutes: range,
        lanes: Sequence[tuple[int, int]],
    ) -> Spread:
        """The spread of the messages of shards, counted in one pass.

        Args:
            shards: `minute`, `priority`, `lane` and `rows` of each.
            layout: The queue's.
            minutes: In which they are.
            lanes: Priority and lane of each that is shown, with messages or without.
        """
        bar_ms = stretch_for(minutes, layout, len(lanes))
        stretch = F.floor(F.col("minute") / (bar_ms // layout.minute_ms))
        found = (
            shards.groupBy(stretch * bar_ms, "priority", "lane")
            .agg(F.sum("rows"), F.count("*"), F.max("rows"))
            .collect()
        )
        bars: dict[int, Counter[int]] = {}
        cells: dict[tuple[int, int], int] = {}
        loads = dict.fromkeys(lanes, LaneLoad())
        for start_ms, priority, lane, rows, count, fullest in found:
            bars.setdefault(start_ms, Counter())[priority] += rows
            cells[start_ms, lane] = fullest
            known = loads[priority, lane]
            loads[priority, lane] = LaneLoad(
                known.rows + rows, known.shards + count, max(known.fullest, fullest)
            )
        return cls(bar_ms, tuple(sorted(bars.items())), cells, loads)

    def plot(self, *, now_ms: int | None = None, drained: float | None = None) -> bytes:
        """The load over time, by priority, as PNG; `plots.load` says what the lines are."""
        return plots.load(self.bars, width_ms=self.bar_ms, now_ms=now_ms, drained=drained)

    def on_lanes(self, layout: Layout) -> Section:
        """The lanes as a part of a page."""
        by_lane = plots.balance(
            [(str(lane), load.rows) for (_, lane), load in self.lanes.items()],
            of="lane",
            priorities=[priority for priority, _ in self.lanes] if layout.bands > 1 else (),
        )
        heat = plots.heat(
            self.cells,
            width_ms=self.bar_ms,
            lanes=sorted({lane for _, lane in self.lanes}),
            what="messages of the fullest shard",
        )
        return section(
            "Lanes",
            Picture(by_lane, "Messages of each lane"),
            Picture(heat, "Messages by minute and lane"),
        )


def stretch_for(minutes: range, layout: Layout, lanes: int) -> int:
    """The length of a stretch, where pictures have room for those of some minutes and lanes."""
    most = max(min(plots.BARS_MAX, _CELLS_MAX // max(lanes, 1)), 1)
    return plots.stretch_ms(len(minutes) * layout.minute_ms, layout.minute_ms, most)
