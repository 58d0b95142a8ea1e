"""The history of days that are over, kept as Parquet for as long as anyone likes.

```
 ledger, by day of entry ─► counts, checksums ─┬─ the same as in the archive ──► left as it is
                                               └─ new, or changed since ─► written, a day at a time
 path/day=2027-01-01/..parquet ◄─ that day alone is replaced ◄────────────────┘        │
      └─► read back: counts and checksums compared with what was to be written ◄───────┘
```

A day can change after it was archived, because messages of the day end later. So each run writes
the days that changed since the last run, and each replaces its former copy.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq.jobs.history import day_of
from pyspark_shardq.outcome import JobOutcome
from pyspark_shardq.views import HISTORY
from shardq.errors import StoreCorrupt, UsageError, shown
from shardq.inspection.audit import span_audited
from shardq.model.times import duration_text, iso

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from pyspark_shardq.queues import SparkQueue
    from shardq.model.times import Due, Duration
    from shardq.records.register import Register
    from shardq.stores.store import Progress

_NAMES = tuple(column.name for column in HISTORY)
_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_FILE_MESSAGES = 2_000_000
"""The approximate number of messages in a file."""
_SCHEMA = ", ".join((*(f"{column.name} {column.type}" for column in HISTORY), "day DATE"))
_NOT_THERE = "PATH_NOT_FOUND"
"""Spark's name of the error that a path does not exist."""
_CAUSE = re.compile(r"^(?:Caused by|:)[: ]*(?:[\w.$]+(?:Exception|Error): )?(.*)", re.MULTILINE)
_KIND = re.compile(r"^\([\w.$]+\) ")
"""The beginning of an error text from the Java of a Spark Connect server."""
_REASON_CHARS = 200
_SPARK_ERRORS = (PySparkException, Py4JError)


class DayState(StrEnum):
    """The state of a day of the history, compared with the archive."""

    NEW = "new"
    """The archive lacks the day."""
    CHANGED = "changed"
    """The archive differs: messages that entered on that day have ended since."""
    SAME = "same"
    """The archive has the day as the history has it."""
    REDUCED = "reduced"
    """The archive has messages that the history lacks now: the day is left as it is."""


class Sum(NamedTuple):
    """The numbers by which two copies of a day are compared.

    Attributes:
        messages: How many messages entered on that day.
        ended: How many of these have ended.
        checksum: A checksum of their records, in any order.
    """

    messages: int = 0
    ended: int = 0
    checksum: str = "0"


@dataclass(frozen=True, slots=True)
class ArchivedDay:
    """A day of entry, UTC, as the history has it.

    Attributes:
        day: The day.
        state: Its state compared with the archive.
        messages: How many messages entered on that day.
        ended: How many of these have ended.
        checksum: A checksum of their records, in any order.
    """

    day: date
    state: DayState
    messages: int
    ended: int
    checksum: str

    def line(self) -> str:
        """The day in a sentence."""
        return f"{self.day} {self.state}: {self.messages:,} messages, {self.ended:,} of them ended."


# The pure part ------------------------------------------------------------------------------------


def sums(ledger: DataFrame) -> DataFrame:
    """The sums of each queue and day of entry, UTC.

    Args:
        ledger: With the columns of the view `history`, in any order.

    Returns:
        By `queue` and `day`: `messages`, `ended`, and `checksum`, the sum of a hash of each message
        as text.
    """
    told = [F.col(name) for name in _NAMES]
    # Spark's hash skips nulls, so it also gets which columns are null.
    hashed = F.xxhash64(*told, *(column.isNull() for column in told))
    return ledger.groupBy("queue", day_of("entered").alias("day")).agg(
        F.count("*").alias("messages"),
        F.count("ended").alias("ended"),
        F.sum(hashed.cast("decimal(20,0)")).cast("string").alias("checksum"),
    )


def state_of(source: Sum, archived: Sum | None) -> DayState:
    """The state of a day, by its sums in the history and in the archive.

    >>> state_of(Sum(2, 1, "7"), None), state_of(Sum(2, 1, "7"), Sum(2, 0, "5"))
    (<DayState.NEW: 'new'>, <DayState.CHANGED: 'changed'>)
    """
    if archived is None:
        return DayState.NEW
    return DayState.SAME if archived == source else DayState.CHANGED


def days_over(
    register: Register, now_ms: int, since: Due | Duration | None, until: Due | Duration | None
) -> range:
    """The days of entry, UTC, that are over and complete in the history, as days since 1970.

    A day is over when its end is longer ago than the queue's offset: then nothing enters it any
    more. The day in which the history was turned on counts, too.

    Raises:
        HistoryOff: If the queue keeps no history.
        UsageError: If it keeps one too short for a day to be over and whole.
        BadTime: If nothing lies between `since` and `until`.
    """
    settings, offset_ms = register.settings, register.layout.offset_ms
    span = span_audited(register, now_ms, since, until)
    if settings.history_ms < 2 * _DAY_MS + offset_ms:
        raise UsageError(
            f"queue {register.name!r} keeps its history for {duration_text(settings.history_ms)}, "
            f"and what is archived are whole days; keep it longer, with alter(history='7d')."
        )
    # Until records are dropped, the history is complete from its begin on.
    is_begin = since is None and span.whole_ms == settings.history_from_ms
    first = span.since_ms // _DAY_MS if is_begin else -(-span.since_ms // _DAY_MS)
    last = min(span.until_ms, now_ms - offset_ms) // _DAY_MS
    return range(first, max(last, first))


# The report ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArchiveReport(JobOutcome):
    """The outcome of an archive job.

    Attributes:
        queue: The queue's name.
        path: Where the archive is.
        days: The days that are over, in order, each with the state in which it was found.
        written: The days that were written; none in a preview.
        is_dry: True if it is a preview.
    """

    job = "archive"
    hidden = ("is_dry",)
    also = ("is_whole",)
    queue: str
    path: str
    days: tuple[ArchivedDay, ...]
    written: tuple[ArchivedDay, ...] = ()
    is_dry: bool = False

    @property
    def is_good(self) -> bool:
        """True if no day is left to be archived, or this is a preview."""
        return self.is_dry or self.is_whole

    @property
    def is_whole(self) -> bool:
        """True if the archive has all messages that the history has of these days."""
        done = {day.day for day in self.written}
        return all(day.state is DayState.SAME or day.day in done for day in self.days)

    def line(self) -> str:
        """The outcome in a sentence."""
        head = f"{self.queue} in {self.path}"
        if not self.days:
            return f"{head}: no day with messages is over, so there is nothing to archive yet."
        counts = {state: sum(day.state is state for day in self.days) for state in DayState}
        found = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
        messages = sum(day.messages for day in self.written)
        wrote = f"wrote {len(self.written):,} with {messages:,} messages, and read them back"
        return (
            f"{head}: {len(self.days):,} days, {found}; {wrote if self.written else 'wrote none'}."
        )

    def lines(self) -> list[str]:
        """A sentence for each day."""
        return [day.line() for day in self.days]


# The run ------------------------------------------------------------------------------------------


class ArchivePlan:
    """The days to be archived. Made by `plan`.

    Attributes:
        days: The days that are over and have messages, in order.
    """

    def __init__(self, queue: SparkQueue, path: str, days: Sequence[ArchivedDay]) -> None:
        self._queue = queue
        self._path = path
        self.days: tuple[ArchivedDay, ...] = tuple(days)

    def preview(self) -> ArchiveReport:
        """The days that `run` would find; nothing is written."""
        return ArchiveReport(self._queue.name, self._path, self.days, is_dry=True)

    def run(self, *, on_progress: Progress | None = None) -> ArchiveReport:
        """Write the days that are new or have changed, each by itself, and compare it.

        Repeat an interrupted run: days that it wrote completely are not written again.

        Args:
            on_progress: Called with the unit, the count that is done, and the total.

        Raises:
            UsageError: If the archive cannot be written.
            StoreCorrupt: If a day read back differs from the day written.
        """
        wanted = [day for day in self.days if day.state in (DayState.NEW, DayState.CHANGED)]
        found, written = {day.day: day for day in self.days}, []
        for number, day in enumerate(wanted):
            if on_progress is not None:
                on_progress("days", number, len(wanted))
            done = self._write(day)
            found[day.day] = done
            if done.state is not DayState.REDUCED:
                written.append(done)
        return ArchiveReport(self._queue.name, self._path, tuple(found.values()), tuple(written))

    def _write(self, day: ArchivedDay) -> ArchivedDay:
        spark, path = self._queue.spark, self._path
        # Read once, so that the day written is the day compared, whatever ends meanwhile.
        one = range(_number(day.day), _number(day.day) + 1)
        source = _read(self._queue, one).persist()
        try:
            wanted = _sums_of(sums(source)).get(day.day, Sum())
            found = ArchivedDay(day.day, day.state, *wanted)
            if day.state is DayState.CHANGED and _has_more(spark, path, day.day, source):
                return ArchivedDay(day.day, DayState.REDUCED, *wanted)
            files = 1 + wanted.messages // _FILE_MESSAGES
            with _archive(path, "written"):
                (
                    source.coalesce(files)
                    .sortWithinPartitions("entered", "row_id")
                    .withColumn("day", F.lit(day.day))
                    .write.mode("overwrite")
                    .option("partitionOverwriteMode", "dynamic")
                    .partitionBy("day")
                    .parquet(path)
                )
        finally:
            source.unpersist()
        compare(path, day.day, wanted, _archived(self._queue, path, one).get(day.day, Sum()))
        return found


def plan(
    queue: SparkQueue,
    path: str,
    *,
    since: Due | Duration | None = None,
    until: Due | Duration | None = None,
) -> ArchivePlan:
    """Compare the days of entry that are over with an archive of the queue.

    Args:
        queue: A queue that keeps a history.
        path: The directory of the queue's archive, as Spark writes paths; made if there is none.
        since: Only days that begin then or later, or so long ago; None: as far back as the history
            is complete.
        until: Only days that end then or before; None: now.

    Raises:
        HistoryOff: If the queue keeps no history.
        UsageError: If it keeps one too short, or the path is no archive of this queue.
        BadTime: If nothing lies between `since` and `until`.
    """
    register, now_ms = queue.register(), queue.place().clock.now_ms()
    over = days_over(register, now_ms, since, until)
    archived = _archived(queue, path, over)
    found = _sums_of(sums(_read(queue, over))) if over else {}
    days = [
        ArchivedDay(day, state_of(found[day], archived.get(day)), *found[day])
        for day in sorted(found)
    ]
    days += [ArchivedDay(day, DayState.REDUCED, *Sum()) for day in archived.keys() - found.keys()]
    return ArchivePlan(queue, path, sorted(days, key=lambda one: one.day))


def compare(path: str, day: date, wanted: Sum, found: Sum) -> None:
    """Refuse a day of the archive that differs from the day that was to be written.

    Raises:
        StoreCorrupt: If it differs.
    """
    if wanted != found:
        raise StoreCorrupt(
            f"the archive {path} is damaged: of {day} it has {found.messages:,} messages with the "
            f"checksum {found.checksum}, and {wanted.messages:,} with {wanted.checksum} were "
            f"written; see that nothing else writes there, check the disk, and run it again."
        )


def _read(queue: SparkQueue, days: range) -> DataFrame:
    """The history of messages that entered in some days, given as days since 1970."""
    since_ms, until_ms = days.start * _DAY_MS, days.stop * _DAY_MS
    read = queue.read("history", columns=",".join(_NAMES), since=iso(since_ms), until=iso(until_ms))
    entered_ms = F.unix_millis("entered")
    return read.where((entered_ms >= since_ms) & (entered_ms < until_ms))


def _archived(queue: SparkQueue, path: str, days: range) -> Mapping[date, Sum]:
    """The sums of days of an archive; empty if there is none.

    Raises:
        UsageError: If the path cannot be read, or is no archive of this queue.
    """
    frame = _open(queue.spark, path)
    if frame is None:
        return {}
    number, is_own = F.unix_date("day"), F.col("queue") == queue.name
    is_asked = (number >= days.start) & (number < days.stop)
    with _archive(path, "read"):
        lines = sums(frame.where(is_asked | ~F.coalesce(is_own, F.lit(False)))).collect()
    for line in lines:
        # Spark fills a column that a file lacks with null.
        if line["queue"] is None:
            raise UsageError(
                f"{path} holds Parquet files that are no archive of a queue; name another "
                f"directory."
            )
        if line["queue"] != queue.name:
            raise UsageError(
                f"the archive {path} is of queue {shown(line['queue'])}, not of {queue.name!r}; "
                f"give each queue a directory of its own."
            )
    return _sums_by_day(lines)


def _open(spark: SparkSession, path: str) -> DataFrame | None:
    """The archive; None if the path does not exist."""
    with _archive(path, "read"):
        try:
            frame = spark.read.schema(_SCHEMA).parquet(path)
            # Spark Connect reads the path only at the first call.
            frame.isLocal()
        except AnalysisException as error:
            if error.getCondition() == _NOT_THERE:
                return None
            raise
    return frame


def _has_more(spark: SparkSession, path: str, day: date, source: DataFrame) -> bool:
    """True if an archive has messages of a day that the history has no more."""
    frame = _open(spark, path)
    if frame is None:
        return False
    more = frame.where(F.col("day") == F.lit(day)).join(source, "row_id", "left_anti")
    with _archive(path, "read"):
        return not more.isEmpty()


def _sums_of(frame: DataFrame) -> Mapping[date, Sum]:
    return _sums_by_day(frame.collect())


def _sums_by_day(lines: Sequence[Row]) -> Mapping[date, Sum]:
    return {line["day"]: Sum(line["messages"], line["ended"], line["checksum"]) for line in lines}


def _number(day: date) -> int:
    return (day - _EPOCH).days


@contextmanager
def _archive(path: str, what: str) -> Iterator[None]:
    """Raise an error of Spark as one about the archive."""
    try:
        yield
    except _SPARK_ERRORS as error:
        raise UsageError(
            f"the archive {shown(path)} cannot be {what}: {_reason(str(error))}; name a directory "
            f"that Spark can read and write."
        ) from error


def _reason(text: str) -> str:
    """The innermost cause in a Java stack trace, as a line."""
    causes = _CAUSE.findall(text)
    line = causes[-1] if causes else _KIND.sub("", text.strip().partition("\n")[0])
    line = line.strip().rstrip(".")
    return line if len(line) <= _REASON_CHARS else line[: _REASON_CHARS - 3] + "..."
