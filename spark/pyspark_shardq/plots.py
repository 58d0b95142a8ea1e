"""Plots of what Spark's jobs have counted, as PNG: plain numbers in, bytes out.

All times are UTC. The colours are those of all pictures, and what differs by colour differs by
position or marker too. matplotlib is imported when the first plot is drawn.
"""

from __future__ import annotations

from datetime import UTC
from itertools import cycle
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from shardq.model.times import span
from shardq.pictures import png
from shardq.pictures.colours import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, RED, SKY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
_FATES = {
    "acked": GREEN,
    "dead": RED,
    "forwarded": BLUE,
    "cancelled": ORANGE,
    "expired": PURPLE,
    "purged": GREY,
    "open": SKY,
}
_WIDTH_IN = 9.0
_DPI = 120
_DAY_MS = 86_400_000
_LATE_MS_MIN = 0.1
"""The lateness below which a plot shows none: a logarithmic axis has no zero."""
OF_GROUPS = -1
"""Stands for the priority of a lane for groups, which has none."""
BARS_MAX = 240
"""The most stretches of time that a plot has room for."""
_LIKED = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1_440)
_BARS_MIN = 10
"""The fewest bars that an axis has room for. A single bar would fill the plot."""
_FAR_ABOVE = 3
_COUNT = "{x:,.0f}"
_NAMES_MAX = 32
"""The most bars that each have a name below them."""
_ROWS_MAX = 512
"""The most rows of a heat map: more are narrower than a pixel."""


def load(
    bars: Sequence[tuple[int, Mapping[int, int]]],
    *,
    width_ms: int,
    now_ms: int | None = None,
    drained: float | None = None,
) -> bytes:
    """Messages due in each stretch of time, stacked by priority.

    Args:
        bars: (start of a stretch in epoch milliseconds, priority -> messages due in it), ascending;
            stretches without any may be left out.
        width_ms: A stretch's length.
        now_ms: Where to draw the line between what is due and what is ahead; None draws none.
        drained: Messages of a stretch that are done at the present rate, drawn as a line unless
            that is far above all bars.

    Returns:
        A PNG.
    """
    figure, axes = _figure(3.4)
    priorities = sorted({priority for _, counts in bars for priority in counts})
    if not any(sum(counts.values()) for _, counts in bars):
        return _empty(figure, axes, "no messages")
    # If there are many, name only the ends of their scale of colours.
    named = priorities if len(priorities) <= len(_SERIES) else (priorities[0], priorities[-1])
    starts = [start_ms / _DAY_MS for start_ms, _ in bars]
    width = width_ms / _DAY_MS
    shades = zip(priorities, _shades(len(priorities)), strict=True)
    series = [(one, shade, _series(one) if one in named else None) for one, shade in shades]
    tops = _stack(axes, starts, [counts for _, counts in bars], series, width, align="edge")
    if drained is not None and drained <= _FAR_ABOVE * max(tops):
        axes.axhline(drained, color=DARK, linewidth=1.2, linestyle="--", label="done at this rate")
    if now_ms is not None:
        axes.axvline(now_ms / _DAY_MS, color=RED, linewidth=1.2, label="now")
    shown = [*starts, starts[-1] + width, *([] if now_ms is None else [now_ms / _DAY_MS])]
    _times(axes, min(shown), max(shown), width)
    _counts(axes, f"messages in {span_of(width_ms)}")
    if len(priorities) > 1 or now_ms is not None or drained is not None:
        _legend(axes)
    return png.written(figure)


def heat(
    cells: Mapping[tuple[int, int], int], *, width_ms: int, lanes: Sequence[int], what: str = ""
) -> bytes:
    """Messages by time and lane: dark is none, light is many.

    Args:
        cells: (start of a stretch in epoch milliseconds, lane) -> messages.
        width_ms: A stretch's length.
        lanes: Every lane, ascending; those without messages have a row as well.
        what: What a cell counts; messages, where empty.

    Returns:
        A PNG.
    """
    figure, axes = _figure(min(2.2 + 0.16 * len(lanes), 6.0))
    if not cells or not any(cells.values()):
        return _empty(figure, axes, "no messages")
    first_ms = min(start_ms for start_ms, _ in cells)
    last_ms = max(start_ms for start_ms, _ in cells)
    columns = (last_ms - first_ms) // width_ms + 1
    together = ceil(len(lanes) / _ROWS_MAX)
    rows = {lane: number // together for number, lane in enumerate(lanes)}
    grid = [[0.0] * columns for _ in range(ceil(len(lanes) / together))]
    for (start_ms, lane), count in cells.items():
        line, column = grid[rows[lane]], (start_ms - first_ms) // width_ms
        line[column] = max(line[column], count)
    drawn = axes.imshow(
        grid,
        aspect="auto",
        cmap="cividis",
        interpolation="nearest",
        vmin=0,
        extent=(
            first_ms / _DAY_MS,
            (last_ms + width_ms) / _DAY_MS,
            len(grid) - 0.5,
            -0.5,
        ),
    )
    from matplotlib.ticker import MaxNLocator

    axes.grid(visible=False)
    _times(axes, first_ms / _DAY_MS, (last_ms + width_ms) / _DAY_MS, width_ms / _DAY_MS)
    axes.set_ylabel("lane")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
    axes.yaxis.set_major_formatter(lambda y, _: _lane_name(lanes, y, together))
    bar = figure.colorbar(drawn, ax=axes, pad=0.015, fraction=0.04)
    bar.set_label(what or f"messages in {span_of(width_ms)}", fontsize=9)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, min_n_ticks=1))
    bar.ax.yaxis.set_major_formatter(_COUNT)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    return png.written(figure)


def lateness(days: Sequence[tuple[str, float | None, float | None, float | None]]) -> bytes:
    """The lateness of ends, day by day, on a logarithmic axis.

    Args:
        days: (`YYYY-MM-DD`, p50, p99 and p99.9 in milliseconds), ascending; None where nothing was
            delivered.

    Returns:
        A PNG.
    """
    figure, axes = _figure(3.2)
    numbers = [value for day in days for value in day[1:] if value is not None]
    if not numbers:
        return _empty(figure, axes, "nothing was delivered")
    looks = (("p50", BLUE, "o"), ("p99", ORANGE, "s"), ("p99.9", RED, "^"))
    at = range(len(days))
    values_of = zip(*(day[1:] for day in days), strict=True)
    for (name, colour, marker), values in zip(looks, values_of, strict=True):
        axes.plot(
            at,
            [_shown_late(value) for value in values],
            color=colour,
            marker=marker,
            markersize=4,
            linewidth=1.5,
            label=name,
            clip_on=False,
        )
    axes.set_yscale("log")
    low, high = _decade_around(max(min(numbers), _LATE_MS_MIN), max(*numbers, _LATE_MS_MIN))
    axes.set_ylim(low, high)
    ticks = [tick for tick in _LATE_TICKS if low <= tick <= high]
    axes.set_yticks(ticks, list(map(_late_name, ticks)))
    axes.minorticks_off()
    axes.set_ylabel("lateness")
    _days(axes, [day[0] for day in days])
    _legend(axes)
    return png.written(figure)


def fates(days: Sequence[tuple[str, Mapping[str, int]]]) -> bytes:
    """The ends of messages, day by day, stacked.

    Args:
        days: (`YYYY-MM-DD`, fate -> messages), ascending. A word that is none of `acked`, `dead`,
            `forwarded`, `cancelled`, `expired`, `purged` and `open` gets a colour of its own.

    Returns:
        A PNG.
    """
    figure, axes = _figure(3.2)
    if not any(sum(counts.values()) for _, counts in days):
        return _empty(figure, axes, "no messages")
    found = {fate for _, counts in days for fate, count in counts.items() if count}
    others = sorted(found - _FATES.keys())
    spare = dict(zip(others, cycle((PURPLE, BLUE, DARK)), strict=False))
    fates = [*(one for one in _FATES if one in found), *others]
    series = [(one, _FATES.get(one) or spare[one], one) for one in fates]
    _stack(axes, range(len(days)), [counts for _, counts in days], series, _slim(len(days)))
    _counts(axes, "messages")
    _days(axes, [day for day, _ in days])
    _legend(axes)
    return png.written(figure)


def balance(
    bars: Sequence[tuple[str, int]],
    *,
    of: str,
    unit: str = "messages",
    priorities: Sequence[int] = (),
) -> bytes:
    """The evenness of a spread: a bar for each part, and their mean as a line.

    Args:
        bars: (name, amount) of each.
        of: What they are, `lane` or `node`.
        unit: What is counted.
        priorities: The priority of each bar. Bars of one priority share a colour and a mean.

    Returns:
        A PNG.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(2.8)
    if not any(amount for _, amount in bars):
        return _empty(figure, axes, f"no {unit}")
    kinds = list(priorities) or [0] * len(bars)
    distinct = sorted(set(kinds))
    order = sorted(range(len(bars)), key=lambda number: kinds[number])
    width = _slim(len(bars)) if len(bars) <= _NAMES_MAX else 1.0
    for kind, colour in zip(distinct, _shades(len(distinct)), strict=True):
        at = [place for place, number in enumerate(order) if kinds[number] == kind]
        amounts = [bars[order[place]][1] for place in at]
        mean = sum(amounts) / len(at)
        most = f", the largest {max(amounts) / mean:.3f} of it" if mean else ""
        is_named = len(distinct) <= len(_SERIES) or kind in (distinct[0], distinct[-1])
        name = _series(kind) if priorities and is_named else None
        axes.bar(at, amounts, width, color=colour, label=name)
        axes.plot(
            [at[0] - 0.5, at[-1] + 0.5],
            [mean, mean],
            color=DARK,
            linewidth=1.4,
            linestyle="--",
            label=f"mean {mean:,.0f}{most}" if len(distinct) == 1 else None,
        )
    if len(bars) <= _NAMES_MAX:
        axes.set_xticks(range(len(bars)), [bars[number][0] for number in order])
    elif len(distinct) == 1:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    else:
        axes.set_xticks([])
    axes.set_xlim(-0.7, len(bars) - 0.3)
    axes.set_xlabel(of if len(distinct) == 1 else f"{of}, by priority")
    _counts(axes, unit)
    _legend(axes)
    return png.written(figure)


def stretch_ms(length_ms: int, minute_ms: int, most: int) -> int:
    """The length of a stretch, so that a time has at most so many: a number of minutes people like.

    Args:
        length_ms: The whole time.
        minute_ms: The queue's minute; a stretch is one or several.
        most: The most stretches.

    >>> stretch_ms(86_400_000, 60_000, 240), stretch_ms(600_000, 60_000, 240)
    (600000, 60000)
    """
    least = ceil(length_ms / minute_ms / most)
    liked = next((one for one in _LIKED if one >= least), None)
    return (liked or ceil(least / 1_440) * 1_440) * minute_ms


def span_of(millis: float) -> str:
    """A length of time as an axis shows it.

    >>> span_of(60_000), span_of(90_000), span_of(2_500), span_of(0.1)
    ('1m', '1m30s', '2.5s', '0.1ms')
    """
    return f"{millis:g}ms" if millis < 1_000 else span(millis)


_LATE_TICKS = (
    *(0.1, 1, 10, 100),
    *(1_000, 10_000, 60_000, 600_000),
    *(3_600_000, 36_000_000),
    *(86_400_000, 864_000_000, 8_640_000_000),
)
"""Ticks in milliseconds, in the units in which people think: 10 s and 1 min rather than 100 s."""


# What all of them share ---------------------------------------------------------------------------


def _figure(height_in: float) -> tuple[Figure, Axes]:
    figure = png.figure(_WIDTH_IN, height_in, dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=DARK, labelsize=9)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="y", color="#dddddd", linewidth=0.7)
    return figure, axes


def _empty(figure: Figure, axes: Axes, why: str) -> bytes:
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.text(0.5, 0.5, why, ha="center", va="center", color="#666666", transform=axes.transAxes)
    figure.set_figheight(1.2)
    return png.written(figure)


def _stack(
    axes: Axes,
    places: Sequence[float],
    counts: Sequence[Mapping[Any, int]],
    series: Iterable[tuple[object, object, str | None]],
    width: float,
    align: Literal["center", "edge"] = "center",
) -> list[int]:
    """Bars on bars, one of each series at each place; returns their tops.

    Args:
        counts: Of each place: name of a series -> count.
        series: Name, colour and label of each; those without a label are not in the legend.
    """
    tops = [0] * len(counts)
    for name, colour, label in series:
        heights = [one.get(name, 0) for one in counts]
        look = {"bottom": tops, "align": align, "color": colour, "label": label}
        axes.bar(places, heights, width, **look)  # type: ignore[arg-type]
        tops = [low + height for low, height in zip(tops, heights, strict=True)]
    return tops


def _times(axes: Axes, left: float, right: float, width: float) -> None:
    """An axis of time, in days since 1970, that names the date once; room for ten bars at least."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    # matplotlib 3.11 has no types for the two classes.
    locator: Any = AutoDateLocator(minticks=3, maxticks=9, tz=UTC)  # type: ignore[no-untyped-call]
    names: Any = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(names)
    axes.set_xlim(left, max(right, left + _BARS_MIN * width))
    axes.set_xlabel("due, UTC")


def _counts(axes: Axes, label: str) -> None:
    """An axis of whole numbers from zero on."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.yaxis.set_major_formatter(_COUNT)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)


def _days(axes: Axes, days: Sequence[str]) -> None:
    """An axis with so many names of days that they do not touch."""
    shown = range(0, len(days), ceil(len(days) / 9))
    axes.set_xticks(shown, [days[number] for number in shown])
    axes.set_xlim(-0.6, len(days) - 0.4)
    axes.set_xlabel("day, UTC")


def _slim(count: int) -> float:
    """The width of a bar: a few do not fill the plot."""
    return 0.8 * min(1.0, (count + 1) / 6)


def _legend(axes: Axes) -> None:
    """Above the plot, where it hides nothing; what bars are comes before what lines are."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(handles)), key=lambda n: hasattr(handles[n], "get_xdata"))
    axes.legend(
        [handles[number] for number in order],
        [labels[number] for number in order],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=8,
        frameon=False,
        fontsize=9,
        handlelength=1.4,
        borderaxespad=0.2,
        columnspacing=1.4,
    )


def _series(priority: int) -> str:
    return "groups" if priority == OF_GROUPS else f"priority {priority}"


def _shades(count: int) -> list[object]:
    """Colours of priorities: of few the clearest, of many a scale from dark to light."""
    if count <= len(_SERIES):
        return list(_SERIES[:count])
    from matplotlib import colormaps

    return [colormaps["cividis"](number / (count - 1)) for number in range(count)]


def _lane_name(lanes: Sequence[int], row: float, together: int) -> str:
    number = round(row) * together
    return str(lanes[number]) if 0 <= number < len(lanes) and row == round(row) else ""


def _late_name(millis: float) -> str:
    return "to 0.1 ms" if millis <= _LATE_MS_MIN else span_of(millis)


def _shown_late(value: float | None) -> float:
    return float("nan") if value is None else max(value, _LATE_MS_MIN)


def _decade_around(low: float, high: float) -> tuple[float, float]:
    """The ticks around two values; at least two."""
    below = [tick for tick in _LATE_TICKS if tick <= low]
    above = [tick for tick in _LATE_TICKS if tick >= high]
    bottom = below[-1] if below else _LATE_TICKS[0]
    top = above[0] if above else high
    return (bottom, top) if bottom < top else (bottom, bottom * 10)
