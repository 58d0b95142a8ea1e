"""Counts as a few levels, so that a heat map needs few colours and a short legend."""

from __future__ import annotations

from bisect import bisect_right
from itertools import count as count_from
from math import ceil, log10
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEVELS_MAX = 6
_SKEWED = 10
"""If the largest count is over so many times the median, equal steps would show only that cell."""
_TENFOLD = ((1,), (1, 3), (1, 2, 5))
"""The bounds of levels within a power of ten, the fewest first."""


class Scale:
    """Levels of counts above 0; each level begins at a round number.

    Args:
        counts: The counts to show.

    Attributes:
        bounds: The least count of each level; empty if no count is above 0.

    >>> Scale([3, 40, 48]).bounds, Scale([2, 3, 2, 900]).bounds
    ((1, 20, 40, 60, 80), (1, 3, 10, 30, 100, 300))
    """

    def __init__(self, counts: Iterable[int]) -> None:
        there = sorted(count for count in counts if count > 0)
        self.bounds: tuple[int, ...] = ()
        self._most = there[-1] if there else 0
        if there:
            usual = median(there)
            # The scale reaches twice the median, so that a steady load is neither little nor much.
            steady = max(self._most, ceil(2 * usual))
            is_skewed = self._most > _SKEWED * usual
            self.bounds = _by_factors(there) if is_skewed else _by_steps(steady)

    def shade(self, count: int, shades: int) -> int:
        """The shade, from 0 on, of a count above 0.

        >>> [Scale([3, 40, 48]).shade(count, 6) for count in (3, 40, 48)]
        [0, 2, 2]
        """
        level = bisect_right(self.bounds, count) - 1
        return round(level * (shades - 1) / max(len(self.bounds) - 1, 1))

    @property
    def keys(self) -> tuple[int, ...]:
        """For a legend: the least count of each level that begins at or below the largest count."""
        return tuple(bound for bound in self.bounds if bound <= self._most)


def short(count: int, room: int) -> str:
    """A count as text of `room` characters at most, as exact as possible.

    Args:
        count: The count, below 10^13.
        room: The most characters, at least 3.

    >>> short(1234, 5), short(1234, 4), short(12_345, 4), short(123_456, 3)
    ('1,234', '1234', '12k', '.1M')
    """
    for text in (f"{count:,}", f"{count}"):
        if len(text) <= room:
            return text
    for power, unit in enumerate("kMGT", 1):
        value = count / 1_000**power
        for digits in range(3, -1, -1):
            text = f"{value:.{digits}f}".removeprefix("0") + unit
            if len(text) <= room and (digits or value >= 1):
                return text
    return "+" * room


def _by_steps(most: int) -> tuple[int, ...]:
    step = next(step for step in _liked() if most // step < LEVELS_MAX)
    return tuple(dict.fromkeys((1, *range(step, most + 1, step))))


def _by_factors(there: list[int]) -> tuple[int, ...]:
    least, most = there[0], there[-1]
    for parts in reversed(_TENFOLD):
        within = range(int(log10(most)) + 1)
        liked = [part * 10**power for power in within for part in parts]
        bounds = (1, *(bound for bound in liked if max(least, 1) < bound <= most))
        if len(bounds) <= LEVELS_MAX:
            return bounds
    return bounds[:: ceil(len(bounds) / LEVELS_MAX)]


def _liked() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 .."""
    for power in count_from():
        yield from (part * 10**power for part in (1, 2, 5))
