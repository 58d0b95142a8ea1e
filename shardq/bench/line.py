"""A line of the table: a figure, the bare driver's beside it, and its target."""

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
        what: The measured work.
        reached: shardq's figure; None if nothing could be counted.
        unit: Its unit.
        target: The figure to reach, in words; empty if there is none.
        met: True if the target is reached; None without one.
        bare: The bare driver's figure for the same row work, in the same unit.
        ratio: shardq's figure divided by the bare driver's, the median over the repetitions.
        note: More on how it was measured.
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
    """Medians of the same work by shardq and by the bare driver, in rows a second.

    Attributes:
        reached: By shardq.
        bare: By the bare driver.
        ratio: The median of the repetitions' ratios: a slow second of the machine hits both
            halves of one repetition.
    """

    reached: float
    bare: float
    ratio: float


def rate(clock: Clock, work: Callable[[], int]) -> float:
    """Do work that returns its number of rows; returns rows a second."""
    start_us = clock.boot_us()
    rows = work()
    return rows * 1e6 / max(clock.boot_us() - start_us, 1)


def interleaved(times: int, ours: Callable[[int], float], bare: Callable[[int], float]) -> Pair:
    """Repeat both as A B, B A, A B .., so that the machine's other work slows both alike.

    Args:
        times: Repetitions, at least one.
        ours: Does shardq's work and returns its rate. It takes the number of the repetition.
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
