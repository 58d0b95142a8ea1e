"""Reports a queue's history day by day: counts, ends, attempts, lateness.

```
 ledger ──► as of a moment ──┬─► days: counts, ends, p50/p99/p999 of lateness
                             ├─► hours: ends
                             └─► counts by lateness, and by attempts
```

All counts and percentiles are exact: nothing is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq import plots
from pyspark_shardq.outcome import JobOutcome
from pyspark_shardq.page import Picture, page, section, table
from shardq.errors import UsageError, shown
from shardq.model.text import plural
from shardq.model.times import iso, moment_of, span
from shardq.records.ledger import CLOCK_AHEAD_MS, End, kept_for, span_of

if TYPE_CHECKING:
    from datetime import date, datetime

    from pyspark.sql import Column, DataFrame

    from pyspark_shardq.page import Part
    from pyspark_shardq.queues import SparkQueue
    from shardq.model.times import Due, Duration

By: TypeAlias = Literal["entered", "due", "ended"]
"""The time that decides on which day a message is counted: entry, due, or end."""
BYS: tuple[By, ...] = ("entered", "due", "ended")

PERCENTILES = (0.5, 0.99, 0.999)
LATENESS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, *(step * unit for unit in (1_000, 60_000)
               for step in (1, 2, 5, 10, 30)), 3_600_000, 86_400_000)  # fmt: skip
"""Upper bounds of the classes of lateness. The last class has none."""
_HOURS_MAX = 24 * 31
"""The most hours of ends that a report has, counted back from the end."""
_ATTEMPTS_MAX = 100
_COLUMNS = "queue,entered,due,fate,ended,attempt"
_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000


# The pure part ------------------------------------------------------------------------------------


def as_of(ledger: DataFrame, at_ms: int) -> DataFrame:
    """The ledger as it was at a time: later entries are left out, and later ends did not happen.

    Args:
        ledger: With the columns of the view `history`.
        at_ms: Epoch milliseconds.
    """
    at = F.timestamp_millis(F.lit(at_ms))
    is_later = F.col("ended") >= at
    return (
        ledger.where(F.col("entered") < at)
        .withColumn("fate", F.when(is_later, None).otherwise(F.col("fate")))
        .withColumn("attempt", F.when(is_later, 0).otherwise(F.col("attempt")))
        .withColumn("ended", F.when(is_later, None).otherwise(F.col("ended")))
    )


def days(ledger: DataFrame, *, by: By = "entered") -> DataFrame:
    """Count the messages of each queue and day, UTC, by their ends.

    Args:
        ledger: With the columns `queue`, `entered`, `due`, `fate`, `ended` and `attempt` of the
            view `history`.
        by: The time that decides on a message's day. A message without it is left out.

    Returns:
        By `queue` and `day`: `messages`; how many are `acked`, `dead`, `forwarded`, `cancelled`,
        `expired`, `purged`, ended in another way (`unknown`), or not ended yet (`open`);
        `unrecorded`, whose put is not recorded; `attempts` of those that have ended, together, and
        `attempts_max`; and of the acked ones how much later than their first due they were, to the
        end of their delivery: `p50_ms`, `p99_ms`, `p999_ms` and `late_ms_max`.
    """
    fate = F.col("fate")
    known = [end.value for end in End]
    late_ms = _late_ms()
    tried = F.when(F.col("ended").isNotNull(), F.col("attempt"))
    return (
        ledger.where(F.col(by).isNotNull())
        .groupBy("queue", day_of(by).alias("day"))
        .agg(
            F.count("*").alias("messages"),
            *(F.count(F.when(fate == end, 1)).alias(end) for end in known),
            F.count(F.when(~fate.isin(*known), 1)).alias("unknown"),
            F.count(F.when(fate.isNull(), 1)).alias("open"),
            F.count(F.when(F.col("due").isNull(), 1)).alias("unrecorded"),
            F.coalesce(F.sum(tried), F.lit(0)).alias("attempts"),
            F.coalesce(F.max(tried), F.lit(0)).alias("attempts_max"),
            F.percentile(late_ms, F.array(*map(F.lit, PERCENTILES))).alias("late_ms"),
            F.max(late_ms).alias("late_ms_max"),
        )
        .select(
            "*",
            *(
                F.element_at("late_ms", place).alias(name)
                for place, name in enumerate(("p50_ms", "p99_ms", "p999_ms"), 1)
            ),
        )
        .drop("late_ms")
        .orderBy("queue", "day")
    )


def hours(ledger: DataFrame) -> DataFrame:
    """Count the ends of each hour: `hour` (its begin), `fate`, `messages`."""
    ended = ledger.where(F.col("ended").isNotNull())
    hour = F.timestamp_seconds(F.floor(F.unix_seconds("ended") / 3_600) * 3_600).alias("hour")
    return ended.groupBy(hour, "fate").agg(F.count("*").alias("messages"))


def lateness(ledger: DataFrame) -> DataFrame:
    """Count acked messages by lateness: `upto_ms`, null above the last bound; `messages`."""
    late_ms = _late_ms()
    upto = F.lit(None).cast("long")
    for bound in reversed(LATENESS_MS):
        upto = F.when(late_ms <= bound, F.lit(bound).cast("long")).otherwise(upto)
    counted = ledger.where(late_ms.isNotNull()).groupBy(upto.alias("upto_ms"))
    return counted.agg(F.count("*").alias("messages"))


def attempts(ledger: DataFrame) -> DataFrame:
    """Count the ended messages by deliveries: `attempts`, 100 at most; `messages`."""
    ended = ledger.where(F.col("ended").isNotNull())
    capped = F.least("attempt", F.lit(_ATTEMPTS_MAX)).alias("attempts")
    return ended.groupBy(capped).agg(F.count("*").alias("messages"))


def _late_ms() -> Column:
    late = F.unix_millis("ended") - F.unix_millis("due")
    return F.when(F.col("fate") == End.ACKED.value, late)


def day_of(column: str) -> Column:
    """The day of a time, UTC, whatever the session's zone is."""
    return F.date_from_unix_date(F.floor(F.unix_millis(column) / _DAY_MS).cast("int"))


# The report ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Day:
    """The messages of one queue and day; the columns of `days`."""

    queue: str
    day: date
    messages: int
    acked: int
    dead: int
    forwarded: int
    cancelled: int
    expired: int
    purged: int
    unknown: int
    open: int
    unrecorded: int
    attempts: int
    attempts_max: int
    late_ms_max: int | None
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None

    @property
    def fates(self) -> dict[str, int]:
        """The number of messages by end; `open` counts those that have not ended."""
        words = (*(end.value for end in End), "unknown", "open")
        return {word: getattr(self, word) for word in words}

    def line(self) -> str:
        """The day in a sentence."""
        parts = [f"{count:,} {word}" for word, count in self.fates.items() if count]
        named = zip(("p50", "p99", "p999", "at most"), self.late_ms, strict=True)
        late = ", ".join(f"{name} {_ms(value)}" for name, value in named if value is not None)
        said = f"{self.day} {plural(self.messages, 'message')}: {', '.join(parts)}"
        return f"{said}; late by {late}." if late else f"{said}."

    @property
    def late_ms(self) -> tuple[float | None, float | None, float | None, int | None]:
        """The percentiles of lateness, and the greatest."""
        return self.p50_ms, self.p99_ms, self.p999_ms, self.late_ms_max


def _ms(millis: float) -> str:
    """A lateness as people read it.

    >>> _ms(12.4), _ms(2_500), _ms(7_200_000), _ms(-7)
    ('12ms', '2.5s', '2h', '-7ms')
    """
    return f"-{span(-millis)}" if millis < 0 else span(millis)


class Ends(NamedTuple):
    """The messages that ended in one way in an hour, by its begin."""

    hour: datetime
    fate: str
    messages: int


class LatenessCount(NamedTuple):
    """The messages that were late by at most `upto_ms`; None: above the last bound."""

    upto_ms: int | None
    messages: int


class Attempts(NamedTuple):
    """The messages that took so many deliveries; 100 stands for 100 and more."""

    attempts: int
    messages: int


@dataclass(frozen=True, slots=True)
class HistoryReport(JobOutcome):
    """The history of a queue's messages.

    Attributes:
        queue: Its name.
        since: Messages that entered before this are left out.
        until: Messages that entered from this on are left out; later ends count as not ended.
        by: The time that decides on a message's day: of its entry, due or end.
        days: Each day that has a message, in order.
        hours: Ends in hours of the last 31 days.
        lateness: How late acked messages were, in order.
        attempts: How many deliveries took the messages that have ended, in order.
    """

    job = "history"
    also = ("messages",)
    queue: str
    since: datetime
    until: datetime
    by: By
    days: tuple[Day, ...]
    hours: tuple[Ends, ...]
    lateness: tuple[LatenessCount, ...]
    attempts: tuple[Attempts, ...]

    @property
    def messages(self) -> int:
        """The number of messages."""
        return sum(day.messages for day in self.days)

    def line(self) -> str:
        """The outcome in a sentence."""
        total: dict[str, int] = {}
        for day in self.days:
            for word, count in day.fates.items():
                total[word] = total.get(word, 0) + count
        span = f"from {iso(self.since)} to {iso(self.until)}"
        if not self.days:
            return f"{self.queue}: nothing has entered {span}."
        parts = [f"{count:,} {word}" for word, count in total.items() if count]
        return f"{self.queue}: {plural(self.messages, 'message')} {span}: {', '.join(parts)}."

    def lines(self) -> list[str]:
        """A sentence for each day."""
        return [day.line() for day in self.days]

    def page(self) -> str:
        """The report as one HTML file, with plots."""
        each_day = [(day.day.isoformat(), day) for day in self.days]
        ended: list[Part] = []
        late: list[Part] = []
        if self.days:
            ends = plots.fates([(name, day.fates) for name, day in each_day])
            lateness = plots.lateness([(name, *day.late_ms[:3]) for name, day in each_day])
            ended = [Picture(ends, f"How messages ended, by the day they {_VERBS[self.by]}")]
            late = [
                Picture(lateness, "How late acked messages were"),
                table(
                    "day|>p50 ms|>p99 ms|>p99.9 ms|>latest ms",
                    ((name, *day.late_ms) for name, day in each_day),
                ),
            ]
        sections = (
            section(
                "Days",
                *ended,
                table(
                    f"day|>messages|{'|'.join(f'>{word}' for word in _FATES)}|>attempts",
                    (
                        (name, day.messages, *day.fates.values(), day.attempts)
                        for name, day in each_day
                    ),
                ),
            ),
            section(
                "How late",
                *late,
                table(
                    "late by at most|>messages",
                    (
                        ("more" if one.upto_ms is None else _ms(one.upto_ms), one.messages)
                        for one in self.lateness
                    ),
                ),
            ),
            section("Deliveries", table(">deliveries|>messages", self.attempts)),
        )
        asked = {"queue": self.queue, "since": iso(self.since), "until": iso(self.until)}
        at_ms = round(self.until.timestamp() * 1_000)
        return page(f"History of {self.queue}", self.line(), sections, at_ms=at_ms, asked=asked)


_FATES = (*(end.value for end in End), "unknown", "open")
_VERBS = {"entered": "entered", "due": "were due", "ended": "ended"}


def run(
    queue: SparkQueue,
    *,
    since: Due | Duration | None = None,
    until: Due | Duration | None = None,
    by: By = "entered",
) -> HistoryReport:
    """Report the history of a queue as of a moment. Consumers may run meanwhile.

    Args:
        queue: A queue that keeps a history.
        since: Only messages that entered from then on, or so long ago; None: all in the history.
        until: The time of the report: later entries are left out, and later ends count as not
            ended; None: now. Puts and ends are recorded within moments, so with an `until` some
            seconds ago all counts are exact, and the same in each run.
        by: The time that decides on a message's day: `entered`, `due` or `ended`.

    Raises:
        HistoryOff: If the queue keeps no history.
        BadTime: If nothing lies between `since` and `until`.
        UsageError: If `by` is another word.
    """
    if by not in BYS:
        raise UsageError(f"by must be one of {', '.join(BYS)}, not {shown(by)}.")
    register, now_ms = queue.register(), queue.place().clock.now_ms()
    settings = register.settings
    # Records of a dropped queue of the same name do not count.
    kept_ms = max(now_ms - kept_for(settings, queue.name), settings.former_until_us // 1_000)
    since_ms, until_ms = span_of(since, until, first_ms=kept_ms, now_ms=now_ms)
    at_ms = until_ms + (CLOCK_AHEAD_MS if until is None else 0)
    bounds = {"since": iso(since_ms)}
    if until is not None:
        bounds["until"] = iso(at_ms)
    read = queue.read("history", bodies=False, columns=_COLUMNS, **bounds)
    ledger = as_of(read.where(F.col("entered") >= F.timestamp_millis(F.lit(since_ms))), at_ms)
    ledger = ledger.persist()
    try:
        told = tuple(Day(**line.asDict()) for line in days(ledger, by=by).collect())
        hour_ms = F.unix_millis("hour")
        late_hours = hours(ledger).where(hour_ms >= at_ms - _HOURS_MAX * _HOUR_MS)
        ends = late_hours.select(hour_ms, "fate", "messages").orderBy("hour", "fate").collect()
        late = lateness(ledger).orderBy(F.asc_nulls_last("upto_ms")).collect()
        tried = attempts(ledger).orderBy("attempts").collect()
    finally:
        ledger.unpersist()
    return HistoryReport(
        queue.name,
        moment_of(since_ms),
        moment_of(until_ms),
        by,
        told,
        tuple(Ends(moment_of(at_ms), fate, count) for at_ms, fate, count in ends),
        tuple(LatenessCount(*line) for line in late),
        tuple(Attempts(*line) for line in tried),
    )
