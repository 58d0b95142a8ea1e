"""Counts a queue's messages by minute, priority and lane, and predicts when all are done.

```
 view `shards` ──► counts ──┬─► minutes ────► hot ones ahead; when all is done at the present rate
   the store counts,        └─► stretches ──► plots
   no row travels
```

Consumers are not disturbed: nothing is leased, claimed or written. A message that moves meanwhile
may be counted at its old place, at its new one, at both or at neither.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq.outcome import JobOutcome
from pyspark_shardq.page import Picture, page, section, table
from pyspark_shardq.plots import OF_GROUPS
from pyspark_shardq.spread import Spread
from shardq.errors import BadSetting, shown
from shardq.inspection import scan
from shardq.inspection.outlook import speed
from shardq.model.shard import lane_name
from shardq.model.text import plural
from shardq.model.times import duration_ms, iso, iso_or_none, span
from shardq.records.folded import stored_totals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from pyspark_shardq.queues import SparkQueue
    from shardq.lifecycle.home import Home
    from shardq.model.shard import Layout
    from shardq.model.times import Duration
    from shardq.records.register import Register
    from shardq.stores.store import Store

_HOUR_MS = 3_600_000
_YOUNG_MS = 600_000
"""Below this age the present hour says little, so the hour before is counted with it."""
_HOTTEST = 10
_COUNTS_MAX = 10_000
"""The most counts that go into JSON; a DataFrame has them all."""
_TRIES = 100


class MinuteLoad(NamedTuple):
    """The messages that are due in one minute.

    Attributes:
        start_ms: Its start, epoch milliseconds.
        rows: Messages.
        in_flight: How many of them are claims: handed out, and due again if not settled.
        fullest: Messages of its fullest shard.
        lane: That shard's lane.
    """

    start_ms: int
    rows: int
    in_flight: int
    fullest: int
    lane: int


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate at which messages leave.

    Attributes:
        left: Messages a second that were acked, buried, cancelled or purged.
        put: Messages a second that were put; None if the rate was given.
        since_ms: When the count began, epoch milliseconds; None if the rate was given.
        over_ms: How long messages were counted.
    """

    left: float
    put: float | None = None
    since_ms: int | None = None
    over_ms: int = 0

    def __str__(self) -> str:
        """The rate, with its source."""
        if self.since_ms is None:
            return f"{speed(self.left)}, as given,"
        since = _clock(self.since_ms)
        return f"{speed(self.left)}, as many as left since {since} by the stored totals,"


@dataclass(frozen=True, slots=True)
class Outlook:
    """The forecast of a backlog at one rate, if nothing is put meanwhile.

    Attributes:
        caught_up_ms: When no due message waits any more, epoch milliseconds; None: never.
        done_ms: When the last message is done; None: never.
        latest: (start, lateness) of the minute whose last message will be latest, milliseconds;
            None if none will be late.
    """

    caught_up_ms: int | None
    done_ms: int | None
    latest: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class BacklogReport(JobOutcome):
    """The messages of a queue at one time.

    Attributes:
        queue: The queue's name.
        at_ms: When, epoch milliseconds.
        until_ms: Only messages due before that were counted; None: all.
        layout: The queue's layout.
        counts: `minute`, `start`, `priority`, `lane`, `rows` and `in_flight` of each shard with a
            message, in Spark's memory until `counts.unpersist()`. Group lanes have priority -1.
        shards: The number of these shards.
        minutes: The minutes with a message, ascending.
        oldest_ms: The due of the message that waits longest, or is due first; None without any.
        rate: How fast messages leave; None if nothing was counted yet.
        outlook: When all messages are done at that rate; None without a rate.
        spread: The spread of the messages over time, priorities and lanes.
    """

    queue: str
    at_ms: int
    until_ms: int | None
    layout: Layout
    counts: DataFrame
    shards: int
    minutes: tuple[MinuteLoad, ...]
    oldest_ms: int | None
    rate: Rate | None
    outlook: Outlook | None
    spread: Spread

    @property
    def rows(self) -> int:
        """Messages, those in flight included."""
        return sum(minute.rows for minute in self.minutes)

    @property
    def in_flight(self) -> int:
        """Messages that are claims."""
        return sum(minute.in_flight for minute in self.minutes)

    @property
    def begun(self) -> int:
        """Messages of minutes that have begun: they are due by the end of the present one."""
        return sum(minute.rows for minute in self.minutes if minute.start_ms <= self.at_ms)

    def hottest(self, limit: int = _HOTTEST) -> list[MinuteLoad]:
        """The fullest minutes that are still ahead, the present one included."""
        present_ms = self.layout.start_ms(self.layout.minute_of(self.at_ms))
        ahead = [minute for minute in self.minutes if minute.start_ms >= present_ms]
        return sorted(ahead, key=lambda minute: (-minute.rows, minute.start_ms))[:limit]

    def line(self) -> str:
        """The outcome in a sentence or two."""
        if not self.minutes:
            return f"{self.queue} holds no message."
        said = (
            f"{self.queue} holds {plural(self.rows, 'message')} in {plural(self.shards, 'shard')}"
        )
        if self.in_flight:
            said += f", {self.in_flight:,} in flight"
        if self.begun:
            said += f"; {self.begun:,} {_are(self.begun)} due by {_clock(self._present_end)}"
        return f"{said}{self._of_oldest()}. {self._of_outlook()}"

    def lines(self) -> list[str]:
        """The hot minutes ahead, a line each."""
        return [
            f"{_clock(minute.start_ms)}  {plural(minute.rows, 'message')}, "
            f"{speed(self._a_second(minute.rows))}; {lane_name(minute.lane)} has "
            f"{minute.fullest:,}"
            for minute in self.hottest()
        ]

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, with the first 10,000 counts."""
        rate, outlook = self.rate, self.outlook
        counts = self.counts.orderBy("minute", "priority", "lane").limit(_COUNTS_MAX).collect()
        return {
            "job": "backlog",
            "queue": self.queue,
            "at": iso(self.at_ms),
            "until": iso_or_none(self.until_ms),
            "messages": self.rows,
            "in_flight": self.in_flight,
            "shards": self.shards,
            "begun": self.begun,
            "oldest_due": iso_or_none(self.oldest_ms),
            "rate": rate and rate.left,
            "put_rate": rate and rate.put,
            "rate_since": rate and iso_or_none(rate.since_ms),
            "caught_up": outlook and iso_or_none(outlook.caught_up_ms),
            "done": outlook and iso_or_none(outlook.done_ms),
            "latest_minute": outlook and outlook.latest and iso(outlook.latest[0]),
            "latest_by_ms": outlook and outlook.latest and outlook.latest[1],
            "hottest": [_minute_json(minute) for minute in self.hottest()],
            "by_lane": [
                {"priority": _priority_json(priority), "lane": lane, "messages": load.rows}
                for (priority, lane), load in self.spread.lanes.items()
            ],
            "counts": [
                {
                    "minute": iso(self.layout.start_ms(count.minute)),
                    "priority": _priority_json(count.priority),
                    "lane": count.lane,
                    "messages": count.rows,
                    "in_flight": count.in_flight,
                }
                for count in counts
            ],
            "counts_left_out": self.shards - len(counts),
        }

    def plot(self) -> bytes:
        """The load over time, by priority, as PNG."""
        done = self.rate and self.rate.left * self.spread.bar_ms / 1_000
        return self.spread.plot(now_ms=self.at_ms, drained=done or None)

    def page(self) -> str:
        """The report as one HTML file."""
        sections = (
            section("When it is due", Picture(self.plot(), "Messages by due and priority")),
            section("When it is done", *self._rate_parts()),
            section(
                "Hot minutes ahead",
                table(
                    "minute|>messages|>rate|>fullest lane|>its messages",
                    (
                        (
                            *(_clock(one.start_ms), one.rows, speed(self._a_second(one.rows))),
                            *(one.lane, one.fullest),
                        )
                        for one in self.hottest()
                    ),
                ),
            ),
            self.spread.on_lanes(self.layout),
        )
        is_given = self.rate is not None and self.rate.since_ms is None
        asked = {
            "queue": self.queue,
            "due before": iso_or_none(self.until_ms),
            "rate": str(self.rate).removesuffix(",") if is_given else None,
        }
        title = f"Backlog of {self.queue}"
        return page(title, self.line(), sections, at_ms=self.at_ms, asked=asked)

    @property
    def _present_end(self) -> int:
        return self.layout.end_ms(self.layout.minute_of(self.at_ms))

    def _a_second(self, rows: int) -> float:
        return rows * 1_000 / self.layout.minute_ms

    def _of_oldest(self) -> str:
        if self.oldest_ms is None:
            return ""
        waits_ms = self.at_ms - self.oldest_ms
        if waits_ms >= 0:
            return f", the oldest since {_clock(self.oldest_ms)}, {span(waits_ms)} ago"
        return f"; the first is due at {_clock(self.oldest_ms)}, in {span(-waits_ms)}"

    def _of_outlook(self) -> str:
        if self.rate is None or self.outlook is None:
            return "Nothing has been counted in this hour yet: when it is done cannot be told."
        done_ms = self.outlook.done_ms
        if done_ms is None:
            return f"At {self.rate} it is never done."
        caught_up_ms, done = self.outlook.caught_up_ms, f"all is done by {_clock(done_ms)}"
        if not self.begun or caught_up_ms is None or caught_up_ms >= done_ms:
            return f"At {self.rate} {done}."
        return f"At {self.rate} it has caught up by {_clock(caught_up_ms)}, and {done}."

    def _rate_parts(self) -> Iterator[str]:
        if not self.rows:
            yield "Nothing waits."
            return
        yield self._of_outlook()
        if self.rate is not None and self.rate.since_ms is not None:
            yield (
                "That rate is what consumers had to do, not what they can do: where they waited "
                "for work, they can do more."
            )
        if self.outlook is not None and self.outlook.latest is not None:
            minute_ms, late_ms = self.outlook.latest
            yield (
                f"With nothing put meanwhile, the last message of {_clock(minute_ms)} will be the "
                f"latest, by {span(late_ms)}."
            )


def run(
    queue: SparkQueue, *, ahead: Duration | None = None, rate: float | None = None
) -> BacklogReport:
    """Count what a queue holds, while it runs.

    Args:
        queue: The queue.
        ahead: Count only messages due within this time from now; None: all.
        rate: Messages a second for the forecast; None: the rate at which messages left the queue in
            the present hour, by the stored totals of its processes. In the first 10 minutes of an
            hour, the hour before is included.

    Raises:
        UnknownQueue: If there is no such queue.
        BadSetting: If the rate cannot be used.
        StoreError: If the store cannot be read.
    """
    if rate is not None and not rate > 0:
        raise BadSetting(f"rate must be a number above 0, not {shown(rate)}.")
    here, register = queue.place(), queue.register()
    layout, at_ms = register.layout, here.clock.now_ms()
    until_ms = None
    if ahead is None:
        view = queue.read("shards")
    else:
        # Only whole minutes, so that the count of each minute is complete.
        last = layout.minute_of(at_ms + duration_ms(ahead, name="ahead"))
        until_ms = layout.end_ms(last)
        view = queue.read("shards", until=iso(until_ms))
    priority = F.coalesce("priority", F.lit(OF_GROUPS)).alias("priority")
    counts = view.select("minute", "start", priority, "lane", "rows", "in_flight").persist()
    with ExitStack() as at_error:
        at_error.callback(counts.unpersist)
        minutes = tuple(per_minute(counts, layout))
        # The time of the count, because Spark takes a while to begin it.
        at_ms = here.clock.now_ms()
        present = Rate(rate) if rate is not None else present_rate(here.store, register, at_ms)
        lanes = sorted(map(tuple, counts.select("priority", "lane").distinct().collect()))
        numbers = [layout.minute_of(minute.start_ms) for minute in minutes]
        all_of_them = range(numbers[0], numbers[-1] + 1) if numbers else range(1)
        made = BacklogReport(
            queue=queue.name,
            at_ms=at_ms,
            until_ms=until_ms,
            layout=layout,
            counts=counts,
            shards=counts.count(),
            minutes=minutes,
            oldest_ms=oldest_ms(here, register, numbers),
            rate=present,
            outlook=None
            if present is None
            else outlook(minutes, layout.minute_ms, at_ms, present.left),
            spread=Spread.of(counts, layout, all_of_them, lanes),
        )
        at_error.pop_all()
    return made


# What is made of the counts -----------------------------------------------------------------------


def per_minute(counts: DataFrame, layout: Layout) -> Iterator[MinuteLoad]:
    """The minutes of a frame of counts, ascending."""
    # Use Arrow: otherwise a million minutes would be a million objects.
    table = (
        counts.groupBy("minute")
        .agg(
            F.sum("rows").alias("rows"),
            F.sum("in_flight").alias("in_flight"),
            F.max(F.struct("rows", "lane")).alias("fullest"),
        )
        .select("minute", "rows", "in_flight", "fullest.rows", "fullest.lane")
        .orderBy("minute")
        .toArrow()
    )
    for minute, *numbers in zip(*(column.to_pylist() for column in table.columns), strict=True):
        yield MinuteLoad(layout.start_ms(minute), *numbers)


def outlook(
    minutes: Sequence[MinuteLoad], minute_ms: int, at_ms: int, rate: float
) -> Outlook | None:
    """The forecast of a backlog at a rate; messages due first are done first.

    Args:
        minutes: Minutes with a message, ascending. All messages of a minute count as due at its
            start, so the forecast is too late by a minute at most.
        minute_ms: A minute's length.
        at_ms: Now, epoch milliseconds.
        rate: Messages a second.

    Returns:
        None without any message.
    """
    if not minutes:
        return None
    if rate <= 0:
        return Outlook(None, None, None)
    each_ms = 1_000 / rate
    clock_ms, waiting = float(at_ms), 0.0
    caught_up_ms: float | None = None
    latest_ms, late_ms = None, 0.0
    for minute in minutes:
        free_ms, start_ms = clock_ms + waiting * each_ms, max(minute.start_ms, at_ms)
        if free_ms < start_ms or (minute.start_ms > at_ms and not waiting):
            # All messages before are done before this minute begins.
            caught_up_ms = free_ms if caught_up_ms is None else caught_up_ms
            waiting = 0.0
        else:
            waiting -= (start_ms - clock_ms) / each_ms
        clock_ms, waiting = start_ms, waiting + minute.rows
        end_ms = minute.start_ms + minute_ms
        if clock_ms + waiting * each_ms - end_ms > late_ms:
            late_ms, latest_ms = clock_ms + waiting * each_ms - end_ms, minute.start_ms
    # Messages of the last minute are due until its end.
    done_ms = max(clock_ms + waiting * each_ms, minutes[-1].start_ms + minute_ms)
    return Outlook(
        ceil(done_ms if caught_up_ms is None else caught_up_ms),
        ceil(done_ms),
        None if latest_ms is None else (latest_ms, ceil(late_ms)),
    )


# What is asked of the store here ------------------------------------------------------------------


def present_rate(store: Store, register: Register, at_ms: int) -> Rate | None:
    """The rate at which messages leave, by the totals that the queue's processes have stored.

    It counts the present hour, and the hour before while the present one is young.

    Returns:
        None if the queue is younger than a second.

    Raises:
        StoreCorrupt: If a process's totals are damaged.
    """
    layout, made_ms = register.layout, register.settings.lane_made_ms(0)
    hour_ms = at_ms - at_ms % _HOUR_MS
    first_ms = hour_ms if at_ms - hour_ms >= _YOUNG_MS else hour_ms - _HOUR_MS
    since_ms = max(first_ms, made_ms)
    if at_ms - since_ms < 1_000:
        return None
    stored = stored_totals(store, register.totals_key)
    put, gone = stored.since(layout.hour_of(first_ms))
    over_ms = at_ms - since_ms
    return Rate(gone * 1_000 / over_ms, put * 1_000 / over_ms, since_ms, over_ms)


def oldest_ms(here: Home, register: Register, minutes: Iterable[int]) -> int | None:
    """The due of the message that waits longest, or is due first: epoch milliseconds.

    Looks at the first rows of the first minutes, without their bodies; a claim does not wait.

    Args:
        here: The store.
        register: The queue.
        minutes: Minutes with a message, ascending; messages may have been delivered since.
    """
    layout, before_us = register.layout, register.settings.purged_before_us
    for minute in islice(minutes, _TRIES):
        dues = []
        for shard in here.store.occupied(layout.queue, [minute], layout.all_lanes()):
            pages = scan.pages(
                *(here.store, layout, [shard]), purpose="backlog", together_max=1, bodies=False
            )
            rows = (row for rows in pages for row in rows)
            live = (row for row in rows if row.entered_us >= before_us and row.claim is None)
            dues += [row.wanted_ms for row in islice(live, 1)]
        if dues:
            return min(dues)
    return None


# How it is said -----------------------------------------------------------------------------------


def _clock(epoch_ms: int) -> str:
    """A time to the second.

    >>> _clock(90_000)
    '1970-01-01T00:01:30Z'
    """
    return iso(epoch_ms // 1_000 * 1_000).replace(".000", "")


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _priority_json(priority: int) -> int | None:
    return None if priority == OF_GROUPS else priority


def _minute_json(minute: MinuteLoad) -> dict[str, Any]:
    return {
        "minute": iso(minute.start_ms),
        "messages": minute.rows,
        "in_flight": minute.in_flight,
        "fullest_lane": minute.lane,
        "fullest_messages": minute.fullest,
    }
