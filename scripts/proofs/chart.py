"""A few plain charts below one another, as SVG, which needs no library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT, _COLUMNS = 380, 190, 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 30, 28
_TICKS = 4
_STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 100)
"""Round steps between ticks; the last one is for a quotient that rounding has made a little too
large."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: a line through its points, from 0 up.

    Attributes:
        title: The text above it.
        x: The points' x values.
        y: The points' y values.
        trend: The points of the trend line; none is drawn if there are none.
    """

    title: str
    x: Sequence[float]
    y: Sequence[float]
    trend: Sequence[tuple[float, float]] = ()


def svg(panels: Sequence[Panel], x_title: str, *, shaded: tuple[float, float]) -> str:
    """Charts that share their x axis.

    Args:
        panels: The charts.
        x_title: The title of the x axis.
        shaded: The stretch of the x axis that the rest is compared with.
    """
    rows = -(-len(panels) // _COLUMNS)
    width, height = _WIDTH * _COLUMNS, _HEIGHT * rows + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, _COLUMNS)
        parts.append(f'<g transform="translate({column * _WIDTH} {row * _HEIGHT})">')
        parts += _panel(panel, shaded)
        parts.append("</g>")
    parts.append(
        f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">{escape(x_title)}</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, shaded: tuple[float, float]) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x_most, y_most = _axis_end(max(panel.x)), _axis_end(max(panel.y))

    def across(x: float) -> float:
        return round(_LEFT + x / x_most * (right - _LEFT), 1)

    def up(y: float) -> float:
        return round(bottom - y / y_most * (bottom - _TOP), 1)

    parts = [
        f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(panel.title)}</text>',
        f'<rect x="{across(shaded[0])}" y="{_TOP}" width="{across(shaded[1]) - across(shaded[0])}" '
        f'height="{bottom - _TOP}" fill="#eef3fa"/>',
    ]
    for tick in range(_TICKS + 1):
        y = y_most * tick / _TICKS
        parts += [
            f'<line x1="{_LEFT}" x2="{right}" y1="{up(y)}" y2="{up(y)}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 6}" y="{up(y) + 4}" text-anchor="end">{_shown(y)}</text>',
        ]
        x = x_most * tick / _TICKS
        parts.append(f'<text x="{across(x)}" y="{bottom + 14}" text-anchor="middle">{x:.0f}</text>')
    lines = [(list(zip(panel.x, panel.y, strict=True)), 'stroke="#2463a6" stroke-width="1.6"')]
    if panel.trend:
        lines.append((list(panel.trend), 'stroke="#c0392b" stroke-dasharray="5 3"'))
    for line, look in lines:
        points = " ".join(f"{across(x)},{up(y)}" for x, y in line)
        parts.append(f'<polyline points="{points}" fill="none" {look}/>')
    return parts


def _axis_end(most: float) -> float:
    """The end of an axis whose ticks are round numbers and that shows all values up to `most`."""
    least_step = most / _TICKS or 1.0
    size = 10.0 ** math.floor(math.log10(least_step))
    return _TICKS * size * next(step for step in _STEPS if step * size >= least_step)


def _shown(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= 10 * size:
            return f"{value / size:,.0f}{unit}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
