"""The screen of `observe`: queues and their consumers as lines that fit a terminal.

```
 title      store, time
 queues     a line each: state, depth, rates, lateness, lag, dead messages
 each queue its consumers, a line each; the tasks that run; its lanes; the load ahead
 key        how to end it, the meanings of words
```

The lines are made here and not by a table of rich's, so that their number and width are known: the
important ones stay in a small terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from shardq.cli import screen, states
from shardq.cli.states import Severity
from shardq.model.names import is_dead_queue
from shardq.model.settings import pauses_of
from shardq.model.times import iso

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from shardq.cli.states import Finding
    from shardq.observer import LaneView, MemberView, QueueView

_BARS = " ▁▂▃▄▅▆▇█"
_BARS_ASCII = " .:-=+*#@"
_GAP = "  "
_NAME_MIN = 16
_KEY = "Ctrl-C ends.  lag: wait of the oldest ready message.  observe --help: all words."
_KEY_LINES = 2
_DETAIL_LINES = 6
"""Lines for consumers if there are more queues than lines; a quarter of the screen at most."""
_LEFT_OUT_LINES = 2
_MEMBERS_SHOWN = (64, 32, 16, 8, 4, 2, 1)
_UNCONSUMED_SHOWN = _PRODUCERS_SHOWN = _TASKS_SHOWN = _PAUSES_SHOWN = 3
_TASK_MAX, _PAUSE_MAX = 40, 80


@dataclass(slots=True)
class _Column:
    """A column of a table.

    Attributes:
        head: Its title.
        cells: A text for each line.
        rank: 0 is always shown; among the others the highest is left out first.
        is_left: True if it is text, aligned to the left.
    """

    head: str
    cells: list[Text]
    rank: int = 0
    is_left: bool = False

    @property
    def width(self) -> int:
        return max(map(cell_len, [self.head, *(cell.plain for cell in self.cells)]))


class Dashboard:
    """Shows the views of an observer.

    Args:
        store: The name of the store, for the title.
        ascii_only: True if the terminal has no block characters to draw bars with.

    Attributes:
        shown: The queues that have a line on the screen.
    """

    def __init__(self, store: str, *, ascii_only: bool = False) -> None:
        self.shown: list[str] = []
        self._store = store
        self._bars = _BARS_ASCII if ascii_only else _BARS

    def whole(
        self, views: Sequence[QueueView], width: int, passed_over: Mapping[str, str] | None = None
    ) -> RenderableType:
        """All lines, however many; no line is longer than `width`.

        Args:
            views: The observer's views.
            width: Columns.
            passed_over: Queues that could not be read, each with the reason in a few words.
        """
        lines_over = _passed_over_lines(passed_over or {}, width)
        if not views:
            return Group(*lines_over or [Text(screen.no_queues(self._store))])
        shown = states.without_kept(views)
        found = {view.name: states.state_of(view) for view in shown}
        lines = [*_title(self._store, shown, width), *_queue_lines(shown, found, width)]
        lines += [*lines_over, *_unconsumed_lines(shown, width)]
        for view in shown:
            lines += self._block(view, width, _MEMBERS_SHOWN[0])
        return Group(*lines)

    def fitted(
        self,
        views: Sequence[QueueView],
        width: int,
        height: int,
        passed_over: Mapping[str, str] | None = None,
        *,
        unseen: int = 0,
    ) -> RenderableType:
        """The important lines, for a terminal of this size; else as `whole`.

        Args:
            views: The observer's views.
            width: Columns.
            height: Lines.
            passed_over: As for `whole`.
            unseen: How many queues were not read yet.
        """
        lines_over = _passed_over_lines(passed_over or {}, width)
        if unseen:
            told = f"{screen.plural(unseen, 'more queue')} to look at .."
            lines_over.append(_cut(Text(told, style="dim"), width))
        if views:
            lines = self._fitted(views, width, height, lines_over)
        else:
            lines = lines_over or [Text(screen.no_queues(self._store))]
        lines = lines[: max(height - _KEY_LINES, 0)]
        lines += [Text()] * (height - len(lines) - 1)
        return Group(*lines, _cut(Text(_KEY, style="dim"), width))

    def _fitted(
        self, views: Sequence[QueueView], width: int, height: int, lines_over: Sequence[Text]
    ) -> list[Text]:
        shown = states.without_kept(views)
        found = {view.name: states.state_of(view) for view in shown}
        order = list(Severity)
        ranked = sorted(shown, key=lambda view: -order.index(found[view.name].level))
        lines = _title(self._store, shown, width)
        details = min(_DETAIL_LINES, height // 4)
        fit = max(height - len(lines) - _KEY_LINES - details - 1, 2)
        on_screen = shown if len(shown) <= fit else ranked[: fit - 1]
        self.shown = [view.name for view in on_screen]
        lines += _queue_lines(on_screen, found, width)
        if len(shown) > fit:
            more = f"and {len(shown) - fit + 1:,} more; those to watch can be named"
            lines.append(Text(more, style="dim"))
        lines += [*lines_over, *_unconsumed_lines(ranked, width)]
        return lines + self._blocks(ranked, width, height - len(lines) - _KEY_LINES)

    def _blocks(self, views: Sequence[QueueView], width: int, room: int) -> list[Text]:
        """A block for each queue, with as many consumers as fit."""
        for members in _MEMBERS_SHOWN:
            blocks = [self._block(view, width, members) for view in views]
            lines = [line for block in blocks for line in block]
            if len(lines) <= room:
                return lines
        # Some queues must be left out: show as many queues as fit.
        lines, left_out = [], 0
        consumed = sum(bool(view.members) for view in views)
        for view in views:
            for members in _MEMBERS_SHOWN:
                block = self._block(view, width, members)
                if len(lines) + len(block) <= room - _LEFT_OUT_LINES:
                    lines += block
                    break
            else:
                left_out += bool(view.members)
        noun = "more queue" if left_out < consumed else "queue"
        told = f"consumers of {screen.plural(left_out, noun)}: shardq observe QUEUE"
        if len(views) == 1:
            told = "its consumers need a taller terminal"
        return [*lines, Text(), _cut(Text(told, style="dim"), width)][-max(room, 1) :]

    def _block(self, view: QueueView, width: int, members_max: int) -> list[Text]:
        """A queue's consumers, its lanes, its producers and the load ahead.

        Without consumers only the producers and the pauses; nothing without those either.
        """
        told = [*_producer_line(view), *_pause_line(view)]
        if not view.members:
            return [Text(), *(_cut(line, width) for line in told)] if told else []
        lines = [*_consumer_lines(view, width, members_max), *_task_line(view), *_lane_lines(view)]
        lines += told
        if late := states.late(view):
            lines.append(Text(f"{_GAP}{late}"))
        if schedules := states.scheduled(view):
            minutes = screen.plural(len(view.forecast), "minute")
            soon = view.schedules_soon
            lines.append(Text(f"{_GAP}{schedules}; {soon:,} to fire in the next {minutes}"))
        if any(count for _, count in view.forecast):
            lines.append(self._forecast(view))
        return [Text(), *(_cut(line, width) for line in lines)]

    def _forecast(self, view: QueueView) -> Text:
        counts = [count for _, count in view.forecast]
        most = max(counts)
        steps = len(self._bars) - 1
        bars = "".join(self._bars[-(-count * steps // most)] for count in counts)
        minutes = screen.plural(len(counts), "minute")
        return Text(f"{_GAP}next {minutes}: {sum(counts):,} due, at most {most:,} in one  {bars}")


def _title(store: str, views: Sequence[QueueView], width: int) -> list[Text]:
    at = iso(max(view.at_ms for view in views))[:19].replace("T", " ") + "Z"
    left = f"shardq observe{_GAP}{store}"
    room = width - len(at) - len(_GAP)
    left = screen.squeezed(left, room)
    # Do not align the time to the right in a pipe, which has no right edge.
    gap = room - cell_len(left) if width < screen.WIDE else 0
    title = Text(left, style="bold")
    title.append(" " * gap + _GAP + at, style="not bold")
    return [title, Text()]


def _queue_lines(views: Sequence[QueueView], found: dict[str, Finding], width: int) -> list[Text]:
    def column(head: str, cells: Iterable[str], rank: int = 0) -> _Column:
        return _Column(head, [Text(cell) for cell in cells], rank)

    late = [view.late_ms for view in views]
    columns = [
        _Column("queue", [Text(view.name) for view in views], is_left=True),
        _Column("state", [_state(found[view.name]) for view in views], is_left=True),
        column("busy", (_queue_busy(view) for view in views), 1),
        column("ready", (f"{view.depth.ready:,}" for view in views)),
        column("waiting", (f"{view.depth.waiting:,}" for view in views)),
        column("in flight", (f"{view.depth.in_flight:,}" for view in views), 3),
        column("put/s", (_rate(view.put_rate) for view in views), 4),
        column("out/s", (_rate(view.delivered_rate) for view in views), 2),
        column("p50", ("-" if one is None else screen.span(one[0]) for one in late), 6),
        column("p99", ("-" if one is None else screen.span(one[1]) for one in late), 5),
        column("lag", (screen.span(view.lag_ms) if view.lag_ms else "-" for view in views)),
        column("dead", (f"{view.dead:,}" for view in views)),
    ]
    return _table(columns, width)


def _queue_busy(view: QueueView) -> str:
    """How many of a queue's handlers run; a dash without consumers."""
    if not view.members:
        return "-"
    threads = sum(member.threads for member in view.members)
    return f"{view.busy:,} of {threads:,}" if threads else "receive"


def _state(found: Finding) -> Text:
    return Text(found.state, style=screen.STYLES[found.level])


def _rate(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _passed_over_lines(wrong: Mapping[str, str], width: int) -> list[Text]:
    lines = []
    for name, text in wrong.items():
        room = max(width - cell_len(text) - 2, _NAME_MIN)
        lines.append(_cut(Text(f"{screen.squeezed(name, room)}: {text}", style="red"), width))
    return lines


def _unconsumed_lines(views: Sequence[QueueView], width: int) -> list[Text]:
    """Name the queues that have messages or schedules and no consumer, and how to start one."""
    names = [
        view.name
        for view in views
        if (view.depth.total or view.schedules)
        and not (view.members or view.settings.paused or is_dead_queue(view.name))
    ]
    if not names:
        return []
    told = [screen.squeezed(name, _NAME_MIN) for name in names[:_UNCONSUMED_SHOWN]]
    if len(names) > _UNCONSUMED_SHOWN:
        told.append(f"and {len(names) - _UNCONSUMED_SHOWN:,} more")
    return [
        Text(),
        _cut(Text(f"no consumers: {', '.join(told)}", style="yellow"), width),
        _cut(
            Text(
                f"{_GAP}start one with: shardq consume {names[0]}, or shardq work for jobs of tasks"
            ),
            width,
        ),
    ]


def _consumer_lines(view: QueueView, width: int, members_max: int) -> list[Text]:
    threads = sum(member.threads for member in view.members)
    told = screen.plural(len(view.members), "consumer")
    if threads:
        told += f", {screen.busy(view.busy, threads)}"
    name = screen.squeezed(view.name, max(width - len(told) - 2, _NAME_MIN))
    lines = [Text(f"{name}: {told}", style="bold")]
    shown = view.members[:members_max]
    columns = [
        _Column("consumer", [Text(member.name) for member in shown], is_left=True),
        _Column("busy", [Text(_busy(member)) for member in shown]),
        _Column("longest", [Text(_longest(member)) for member in shown], 1),
        _Column("held", [Text(f"{member.ready:,}") for member in shown], 2),
        _Column("lanes", [Text(_lanes_of(member, view)) for member in shown], is_left=True),
    ]
    lines += [Text(_GAP) + line for line in _table(columns, width - len(_GAP))]
    if len(view.members) > len(shown):
        more = f"{_GAP}and {len(view.members) - len(shown):,} more; --json has all"
        lines.append(Text(more, style="dim"))
    return lines


def _busy(member: MemberView) -> str:
    return f"{member.busy:,} of {member.threads:,}" if member.threads else "receive"


def _longest(member: MemberView) -> str:
    return screen.span(member.longest_ms) if member.longest_ms else "-"


def _lanes_of(member: MemberView, view: QueueView) -> str:
    lanes: dict[int, list[int]] = {}
    for lane, band in member.lanes:
        lanes.setdefault(band, []).append(lane)
    if not lanes:
        return "-"
    of_bands = {band: ranges(some) for band, some in sorted(lanes.items())}
    polled = min(view.settings.bands, view.settings.bands_used)
    if len(of_bands) == polled and len(set(of_bands.values())) == 1:
        return of_bands[0]
    return "; ".join(f"band {band}: {some}" for band, some in of_bands.items())


def _lane_lines(view: QueueView) -> list[Text]:
    ordinary = [lane for lane in view.lanes if lane.band is not None]
    count = screen.plural(len({lane.lane for lane in ordinary}), "lane")
    bands = len({lane.band for lane in ordinary})
    of_bands = f" of {screen.plural(bands, 'band')}" if bands > 1 else ""
    read = sum(lane.owner is not None for lane in ordinary)
    lines = [Text(f"{_GAP}{count}{of_bands}, {read:,} of {len(ordinary):,} being read")]
    behind = sorted((lane for lane in view.lanes if lane.lag_ms), key=lambda lane: -lane.lag_ms)
    if behind and len(view.lanes) > 1:
        more = f", {len(behind) - 1:,} more lag" if len(behind) > 1 else ""
        lines[0].append(f"; {_lane(behind[0], bands)} lags {screen.span(behind[0].lag_ms)}{more}")
    members = {member.name for member in view.members}
    silent = sorted({lane.owner for lane in view.lanes if lane.owner} - members)
    lines += [
        Text(f"{_GAP}{owner} holds lanes, but is silent: gone, or frozen", style="yellow")
        for owner in silent
    ]
    return lines


def _task_line(view: QueueView) -> list[Text]:
    """The running tasks, those with the most runs first, and how long their longest has run."""
    runs: dict[str, list[int]] = {}
    for member in view.members:
        for run in member.runs:
            if run.task is not None:
                runs.setdefault(run.task, []).append(run.run_ms)
    if not runs:
        return []
    most = sorted(runs.items(), key=lambda one: (-len(one[1]), one[0]))
    told = [
        f"{screen.plain(task, _TASK_MAX).plain} {len(ms):,} (longest {screen.span(max(ms))})"
        for task, ms in most[:_TASKS_SHOWN]
    ]
    if len(most) > _TASKS_SHOWN:
        told.append(f"and {screen.plural(len(most) - _TASKS_SHOWN, 'more task')}")
    return [Text(f"{_GAP}runs {', '.join(told)}")]


def _producer_line(view: QueueView) -> list[Text]:
    if not view.producers:
        return []
    shown = view.producers[:_PRODUCERS_SHOWN]
    told = [f"{name} ({put:,})" for name, put in shown]
    if left := view.producers[_PRODUCERS_SHOWN:]:
        told.append(f"and {len(left):,} more ({sum(put for _, put in left):,})")
    return [Text(f"{_begin(view)}put by {', '.join(told)}")]


def _pause_line(view: QueueView) -> list[Text]:
    pauses = pauses_of(view.settings, view.at_ms)
    if not pauses:
        return []
    told = [screen.plain(f"{one}", _PAUSE_MAX).plain for one in pauses[:_PAUSES_SHOWN]]
    if left := len(pauses) - len(told):
        told.append(f"and {left:,} more")
    return [Text(f"{_begin(view)}paused: {', '.join(told)}", style="yellow")]


def _begin(view: QueueView) -> str:
    """The beginning of a line about a queue: its name stands above only with consumers."""
    return _GAP if view.members else f"{screen.squeezed(view.name, _NAME_MIN)}: "


def _lane(lane: LaneView, bands: int) -> str:
    if lane.band is None:
        return f"lane {lane.lane} for groups"
    return f"lane {lane.lane} of band {lane.band}" if bands > 1 else f"lane {lane.lane}"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as text, consecutive ones as a range.

    >>> ranges([5, 0, 1, 2, 7, 8])
    '0-2 5 7-8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _table(columns: Sequence[_Column], width: int) -> list[Text]:
    """The lines of a table: its first column, of names, is narrowed, then others are left out."""
    name, shown = columns[0], list(columns)

    def least() -> int:
        fixed = sum(column.width for column in shown[1:]) + len(_GAP) * (len(shown) - 1)
        return fixed + min(name.width, _NAME_MIN)

    while least() > width and any(column.rank for column in shown):
        shown.remove(max(shown, key=lambda column: column.rank))
    room = width - least() + min(name.width, _NAME_MIN)
    widths = [min(name.width, max(room, 1)), *(column.width for column in shown[1:])]
    lines = [_line([Text(one.head, style="dim") for one in shown], shown, widths)]
    for number in range(len(name.cells)):
        cells = [column.cells[number] for column in shown]
        cells[0] = Text(screen.squeezed(cells[0].plain, widths[0]))
        lines.append(_line(cells, shown, widths))
    return [_cut(line, width) for line in lines]


def _line(cells: Sequence[Text], columns: Sequence[_Column], widths: Sequence[int]) -> Text:
    line = Text()
    for number, (cell, column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        space = " " * (width - cell_len(cell.plain))
        line.append(_GAP if number else "")
        line.append_text(cell + Text(space) if column.is_left else Text(space) + cell)
    line.rstrip()
    return line


def _cut(line: Text, width: int) -> Text:
    line.no_wrap = True
    if cell_len(line.plain) > width:
        line.truncate(width - 1, overflow="crop")
        line.append(screen.cut_mark())
    return line
