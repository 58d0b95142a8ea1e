"""Conclusions from a calendar: when the present backlog clears, and which minutes are too full.

```
 due now ──► worked off at the present rate, as more messages come due ──► clear at ..   or never
 minutes ──► more due in one than can be done in it ──► hot, and by how much the last is late
```

Each minute's messages count as due at its start, so that the outlook is rather too dark, by a
minute at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import median_low
from typing import TYPE_CHECKING

from shardq.model.shard import MINUTE_MS
from shardq.model.times import moment_of, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import tzinfo

    from shardq.inspection.calendar import Calendar

_LATE_S = 10
"""A minute is hot if its last message would be late by more than this."""
_FAR_ABOVE = 5
_HOT_MIN = 60
"""Without a known rate no minute is hot with so few messages, one a second."""
_MINUTES_MAX = 7 * 1_440
"""The number of minutes computed one by one. Later minutes count at the mean rate."""
_CLEARS_MS_MAX = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages due now and not in flight, and when they are done.

    Attributes:
        calendar: The queue's calendar.
        coming: Messages per second that come due meanwhile, by puts and by the load ahead.
        clear_ms: When no due message waits any more, epoch milliseconds; None if it is unknown or
            never.
    """

    calendar: Calendar
    coming: float
    clear_ms: int | None

    def line(self, zone: tzinfo) -> str:
        """The backlog as a sentence.

        Args:
            zone: The zone of the times.
        """
        calendar = self.calendar
        due, pace = calendar.depth.ready, calendar.pace
        if not due:
            return "Nothing that is due waits."
        said = f"{due:,} due now"
        if calendar.is_paused:
            return f"{said}; the queue is paused: nothing is delivered."
        if not calendar.consumers:
            return f"{said}; nobody consumes the queue."
        if pace is None:
            return f"{said}; no rate known: nothing was delivered in the last 5 minutes."
        said += f"; {speed(pace.done)} are done at present, {speed(self.coming)} come in: "
        if self.clear_ms is None:
            return f"{said}it does not clear at this rate."
        takes_ms = self.clear_ms - calendar.at_ms
        return (
            f"{said}clear in {span(takes_ms)} (about {clock(self.clear_ms, calendar.at_ms, zone)})."
        )


@dataclass(frozen=True, slots=True)
class Hot:
    """Minutes in a row, each with more messages than can be done in it, or than is usual.

    Attributes:
        start_ms: The start of the first minute, epoch milliseconds.
        end_ms: The end of the last minute.
        total: The load of all these minutes.
        most: The load of the fullest minute.
        done_ms: When the last message of these minutes begins; None if no limit is known.
        usual: The median load of other minutes, without the empty ones.
    """

    start_ms: int
    end_ms: int
    total: int
    most: int
    done_ms: int | None
    usual: int

    @property
    def late_ms(self) -> int:
        """How late the last message is; 0 if no limit is known."""
        return 0 if self.done_ms is None else max(self.done_ms - self.end_ms + MINUTE_MS, 0)

    def line(self, calendar: Calendar, zone: tzinfo, *, days: int = 1) -> str:
        """The minutes as a sentence without its full stop.

        Args:
            calendar: The calendar that contains them.
            zone: The zone of the times.
            days: On how many days such minutes are at the same time of day.
        """
        said = clock(self.start_ms, calendar.at_ms, zone, seconds=False)
        up_to = ""
        if self.end_ms - self.start_ms > MINUTE_MS:
            said += f" to {clock(self.end_ms - MINUTE_MS, self.start_ms, zone, seconds=False)}"
            up_to = "up to "
        if days > 1:
            said += f", and on {days - 1:,} other {'day' if days == 2 else 'days'} as well"
        said += f": {self.total:,} due, {up_to}{speed(self.most / 60)}"
        pace, limit = calendar.pace, _limit(calendar)
        if self.done_ms is not None and limit is not None:
            done = clock(self.done_ms, self.start_ms, zone)
            by = "its rate allows" if limit == calendar.allowed else "consumers do"
            return (
                f"{said}; {by} {speed(limit)} at most, so the last begins {span(self.late_ms)} "
                f"late, about {done}"
            )
        others = f"other minutes have {self.usual:,}" if self.usual else "other minutes have none"
        if pace is None:
            return f"{said}; {others}"
        return f"{said}; {others}, and the best of the last 5 minutes had {speed(pace.best)}"


def backlog(calendar: Calendar) -> Backlog:
    """The messages due now, and when they are done at the present rate."""
    pace, due = calendar.pace, calendar.depth.ready
    can_clear = pace is not None and calendar.consumers and not calendar.is_paused
    if not due or pace is None or not can_clear:
        return Backlog(calendar, 0.0, None)
    left = float(due)
    came = 0.0
    for start_ms, end_ms, total in _minutes(calendar):
        seconds = (end_ms - start_ms) / 1_000
        # Messages put meanwhile come due as well, at once or as a part of the load ahead.
        more = max(pace.put * seconds - total, 0.0)
        left, came = left + total, came + total + more
        gain = pace.done - more / seconds
        if gain > 0 and left <= gain * seconds:
            clear_ms = ceil(start_ms + left * 1_000 / gain)
            return Backlog(calendar, _mean(came, calendar.at_ms, end_ms), clear_ms)
        left -= gain * seconds
    end_ms = max(min(calendar.until_ms, calendar.at_ms + _MINUTES_MAX * MINUTE_MS), calendar.at_ms)
    coming = _mean(came, calendar.at_ms, end_ms)
    gain = pace.done - coming
    if gain <= 0 or left * 1_000 / gain > _CLEARS_MS_MAX:
        return Backlog(calendar, coming, None)
    return Backlog(calendar, coming, ceil(end_ms + left * 1_000 / gain))


def hot_minutes(calendar: Calendar) -> list[Hot]:
    """The minutes ahead that are too full, the worst first.

    A queue's rate is a limit. If half of the deliveries in the best recent minute and in one beside
    it were late, its rate is the consumers' limit. A minute is then too full if a message in it
    would wait for over 10 s.
    Without a limit, a minute is too full if its load is far above that of other minutes, and above
    the best recent one.
    """
    pace, limit = calendar.pace, _limit(calendar)
    totals = {start_ms: load.total for start_ms, load in calendar.minutes.items()}
    usual = median_low(totals.values()) if len(totals) > 1 else 0
    if limit is not None:
        least = limit * (60 + _LATE_S)
    else:
        least = max(_HOT_MIN, _FAR_ABOVE * usual, pace.best * 60 if pace is not None else 0)
    hot = [start_ms for start_ms, total in totals.items() if total > least]
    if not hot:
        return []
    done = {} if limit is None else _ends(calendar, limit)
    found: list[Hot] = []
    for run in _runs(hot):
        counts = [totals[start_ms] for start_ms in run]
        end_ms = run[-1] + MINUTE_MS
        done_ms = done.get(run[-1])
        found.append(Hot(run[0], end_ms, sum(counts), max(counts), done_ms, usual))
    return sorted(found, key=lambda one: (-one.late_ms, -one.most, one.start_ms))


def _limit(calendar: Calendar) -> float | None:
    """The most deliveries per second, by the queue's rate and by its consumers; None: unknown."""
    pace = calendar.pace
    known = [calendar.allowed, pace.best if pace is not None and pace.is_limit else None]
    return min((limit for limit in known if limit is not None), default=None)


def by_time_of_day(found: Iterable[Hot], zone: tzinfo) -> list[tuple[Hot, int]]:
    """For each time of day, the worst hot minutes that begin then, and how many begin then.

    Args:
        found: The hot minutes, the worst first.
        zone: The zone of the clocks.
    """
    times: dict[str, list[Hot]] = {}
    for one in found:
        times.setdefault(f"{moment_of(one.start_ms).astimezone(zone):%H:%M}", []).append(one)
    return [(alike[0], len(alike)) for alike in times.values()]


def speed(a_second: float) -> str:
    """A rate, in a unit that people can picture.

    >>> speed(1_234.5), speed(38), speed(0.52), speed(0.05), speed(0)
    ('1,234/s', '38/s', '0.5/s', '3/min', '0/s')
    """
    if 0 < a_second < 0.1:
        a_minute = a_second * 60
        return f"{a_minute:.0f}/min" if a_minute >= 0.5 else "under 1/min"
    text = f"{a_second:,.1f}" if a_second < 10 else f"{a_second:,.0f}"
    return f"{text.removesuffix('.0')}/s"


def clock(epoch_ms: int, beside_ms: int, zone: tzinfo, *, seconds: bool = True) -> str:
    """A time by a zone's clocks, with its day or year if a time beside it has another."""
    here, beside = (moment_of(one).astimezone(zone) for one in (epoch_ms, beside_ms))
    day = "" if here.date() == beside.date() else f"{here:%a %-d %b} "
    day += "" if here.year == beside.year else f"{here:%Y} "
    return f"{day}{here:%H:%M:%S}" if seconds else f"{day}{here:%H:%M}"


def _minutes(calendar: Calendar) -> Iterator[tuple[int, int, int]]:
    """(start, end, load) of each minute ahead, the present one from now on."""
    first_ms = calendar.at_ms - calendar.at_ms % MINUTE_MS
    end_ms = min(calendar.until_ms, first_ms + _MINUTES_MAX * MINUTE_MS)
    for start_ms in range(first_ms, end_ms, MINUTE_MS):
        load = calendar.minutes.get(start_ms)
        total = 0 if load is None else load.total
        yield max(start_ms, calendar.at_ms), start_ms + MINUTE_MS, total


def _ends(calendar: Calendar, rate: float) -> dict[int, int]:
    """Start of a minute -> when its last message begins at a rate, after all earlier ones."""
    left = float(calendar.depth.ready)
    ends = {}
    for start_ms, end_ms, total in _minutes(calendar):
        left += total
        if total:
            ends[start_ms - start_ms % MINUTE_MS] = ceil(start_ms + left * 1_000 / rate)
        left = max(left - rate * (end_ms - start_ms) / 1_000, 0.0)
    return ends


def _runs(starts: list[int]) -> Iterator[list[int]]:
    """Runs of minutes in a row, ascending."""
    run: list[int] = []
    for start_ms in starts:
        if run and start_ms != run[-1] + MINUTE_MS:
            yield run
            run = []
        run.append(start_ms)
    if run:
        yield run


def _mean(count: float, start_ms: int, end_ms: int) -> float:
    return count * 1_000 / max(end_ms - start_ms, 1)
