"""One line of the table: what was measured, against what, and whether it suffices."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.clock import Clock


@dataclass(frozen=True, slots=True)
class Line:
    """One measurement.

    Attributes:
        what: What was done.
        reached: shardq's figure; None where nothing could be counted.
        unit: Its unit.
        target: What it should reach, in words; empty where the figure is for information.
        met: Whether it does; None without a target.
        bare: The bare driver's figure for the same row work, in the same unit.
        ratio: The median over the repetitions of shardq's figure by the bare one's.
        note: How it was measured, where that is not said yet.
    """

    what: str
    reached: float | None
    unit: str
    target: str = ""
    met: bool | None = None
    bare: float | None = None
    ratio: float | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The line for programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Pair:
    """Medians of the same work done twice over, in rows a second.

    Attributes:
        reached: By shardq.
        bare: By the bare driver.
        ratio: The median of the repetitions' ratios: a slow second of the machine's hits one
            repetition, and both its halves.
    """

    reached: float
    bare: float
    ratio: float


def rate(clock: Clock, work: Callable[[], int]) -> float:
    """Rows a second of work that returns how many rows it did."""
    start_us = clock.boot_us()
    rows = work()
    return rows * 1e6 / max(clock.boot_us() - start_us, 1)


def interleaved(times: int, ours: Callable[[int], float], bare: Callable[[int], float]) -> Pair:
    """Do both so many times, A B, B A, A B ..: the machine's other work hits both alike.

    Args:
        times: Repetitions, at least one.
        ours: Given the number of the repetition, does shardq's work and returns its rate.
        bare: The same for the bare driver.
    """
    reached: list[float] = []
    beside: list[float] = []
    for turn in range(times):
        if turn % 2:
            beside.append(bare(turn))
            reached.append(ours(turn))
        else:
            reached.append(ours(turn))
            beside.append(bare(turn))
    ratios = [a / b for a, b in zip(reached, beside, strict=True)]
    return Pair(statistics.median(reached), statistics.median(beside), statistics.median(ratios))


def quantile(values: Sequence[float], fraction: float) -> float | None:
    """The value that this fraction does not exceed; None without values.

    >>> quantile([3, 1, 2, 4], 0.5)
    2
    """
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * fraction) - 1, 0)]
