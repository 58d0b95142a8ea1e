"""Dead messages by what killed them: counted, put back at a rate, or deleted.

```
 dead ─► groups      reasons with their numbers and ids masked, and how many messages each has
 dead ─► where(..) ─► redrive, purge      each message once, by `acts.py`
```

A redrive moves all messages at once, with dues at its rate. So no task has to wait, and each try
gives a message the same due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq import acts
from pyspark_shardq.acts import RunHeader
from pyspark_shardq.bins import tasks_of
from pyspark_shardq.columns import columns_in
from pyspark_shardq.complaint import translated
from pyspark_shardq.options import REDRIVE
from pyspark_shardq.outcome import JobOutcome
from pyspark_shardq.queues import FORMAT
from pyspark_shardq.runs import SparkRun
from shardq.errors import BadSetting, ShardqError, UsageError, shown
from shardq.lifecycle.fate import OUT_OF_ATTEMPTS
from shardq.model.times import ceil_ms, iso, moment_of
from shardq.records.ledger import CLOCK_AHEAD_MS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

    from pyspark_shardq.pieces import WriteTally
    from pyspark_shardq.queues import SparkQueue

RATE = 2_000
"""The default number of messages a second that come due: fewer than are moved."""
_RATE_MAX = 1_000_000
_LEAD_MS = 5_000
"""The time from the plan to the first due, so that no row is moved late: only sweeps find those."""
_PART_ROWS = 500
_PARTS_MAX = 100_000
_CLASS_CHARS = 200
_POSITION = ("minute", "lane", "due", "row_id")
_NO_REASON = "no reason given"

_MASKS = (
    (r"(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
    (r"(?i)\b0x[0-9a-f]+\b", "<hex>"),
    (r"(?i)\b(?=[a-f]*[0-9])[0-9a-f]{8,}\b", "<hex>"),
    (r"'[^']*'|\"[^\"]*\"", "<text>"),
    (r"[0-9]+(?:[.,:][0-9]+)*", "<n>"),
)
"""Patterns of texts that differ between errors of one kind, in this order, and their masks."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Dead messages of one kind of error.

    Attributes:
        error: The first line of their reasons, with numbers, ids and quoted texts masked.
        messages: How many they are.
        first_died: When the first of them died; None if unknown.
        last_died: When the last of them died.
        attempts: The most deliveries that one of them had.
        example: The id of the message that died last.
    """

    error: str
    messages: int
    first_died: datetime | None
    last_died: datetime | None
    attempts: int
    example: str


@dataclass(frozen=True, slots=True)
class DeadTable(JobOutcome):
    """The dead messages of a queue, by their errors.

    Attributes:
        queue: The queue's name.
        groups: The kinds of error, those with most messages first.
    """

    also = ("messages",)
    queue: str
    groups: Sequence[ErrorGroup]

    @property
    def messages(self) -> int:
        """The number of all dead messages."""
        return sum(group.messages for group in self.groups)

    def line(self) -> str:
        """The outcome in a sentence.

        >>> DeadTable("mail", []).line()
        'mail has no such dead messages.'
        """
        if not self.groups:
            return f"{self.queue} has no such dead messages."
        kinds = f"{len(self.groups):,} kind{'s' if len(self.groups) > 1 else ''} of error"
        return f"{self.queue} has {self.messages:,} dead messages of {kinds}."

    def lines(self) -> list[str]:
        """A line for each kind of error."""
        return [
            f"{group.messages:>9,}  {_second(group.last_died):19}  {group.error}"
            for group in self.groups
        ]


@dataclass(frozen=True, slots=True)
class DeadReport(JobOutcome):
    """The outcome of a redrive or a purge, or of a dry run of it.

    Attributes:
        queue: The queue's name.
        act: `redrive` or `delete`.
        run: The run's name, by which it can be resumed; empty for a dry run, or without messages.
        chosen: Dead messages that were chosen.
        rows: Messages that were put back or deleted; none in a dry run.
        left: Messages chosen now that do not belong to the resumed run.
        doubtful: Messages that may have been put back over an hour ago and finished since, or whose
            keys other messages have now. They are still dead.
        doubtful_ids: The ids of some messages in doubt.
        first_due: The first due of a message that was put back, ISO 8601; empty if none was.
        last_due: The last due of a message that was put back.
        is_dry: True if nothing was done.
    """

    queue: str
    act: str
    run: str
    chosen: int
    rows: int = 0
    left: int = 0
    doubtful: int = 0
    doubtful_ids: tuple[str, ...] = ()
    first_due: str = ""
    last_due: str = ""
    is_dry: bool = False

    def line(self) -> str:
        """The outcome in a sentence.

        >>> DeadReport("mail", "redrive", "", chosen=7, is_dry=True).line()
        'mail: 7 dead messages would be put back.'
        """
        done = "put back" if self.act == REDRIVE else "deleted"
        if self.is_dry:
            return f"{self.queue}: {self.chosen:,} dead messages would be {done}."
        told = f"{self.queue}: {self.rows:,} dead messages {done}"
        if self.last_due:
            told += f", due from {self.first_due} to {self.last_due}"
        if gone := self.chosen - self.rows - self.doubtful:
            told += f"; {gone:,} of the {self.chosen:,} that were chosen were gone by then"
        if self.doubtful:
            told += (
                f"; {self.doubtful:,} are left: they may have been put back over an hour ago and "
                f"finished since, or others have their keys by now, so look at them before a new "
                f"run puts them back"
            )
        if self.left:
            told += f"; {self.left:,} that were chosen now are left for a new run"
        return told + "."

    def lines(self) -> list[str]:
        """The ids of messages in doubt."""
        return list(self.doubtful_ids)


# Plans: DataFrame in, DataFrame out ---------------------------------------------------------------


def error_class(reason: Column) -> Column:
    """The kind of error of a reason: its first line, with numbers, ids and quoted texts masked."""
    text = F.regexp_replace(reason, f"^{OUT_OF_ATTEMPTS}: ", "")
    text = F.trim(F.substring_index(text, "\n", 1))
    for pattern, mask in _MASKS:
        text = F.regexp_replace(text, pattern, mask)
    text = F.substring(text, 1, _CLASS_CHARS)
    return F.when(F.coalesce(text, F.lit("")) == "", F.lit(_NO_REASON)).otherwise(text)


def groups(frame: DataFrame) -> DataFrame:
    """Dead messages by kind of error, in any order.

    Args:
        frame: Rows of the view `dead`; `id`, `reason`, `died` and `attempts` are read.

    Returns:
        `error`, `messages`, `first_died`, `last_died`, `attempts` (the most of one message) and
        `example`, the id of the message that died last.
    """
    return frame.groupBy(error_class(F.col("reason")).alias("error")).agg(
        F.count("*").alias("messages"),
        F.min("died").alias("first_died"),
        F.max("died").alias("last_died"),
        F.coalesce(F.max("attempts"), F.lit(0)).alias("attempts"),
        F.max_by("id", F.struct(F.col("died"), F.col("id"))).alias("example"),
    )


def positions(frame: DataFrame) -> DataFrame:
    """The positions of the rows of a frame, each once.

    Args:
        frame: Rows of the view `dead`, filtered and joined in any way, with the columns `minute`,
            `lane`, `due` and `row_id`.

    Raises:
        UsageError: If one of these is missing.
    """
    missing = [name for name in _POSITION if name not in columns_in(frame)]
    if missing:
        raise UsageError(
            f"the frame has no column {', '.join(missing)}; keep {', '.join(_POSITION)} of the "
            f"view 'dead', which say where a message is."
        )
    return frame.select(
        "minute", "lane", F.unix_millis("due").alias("due_ms"), "row_id"
    ).dropDuplicates(["minute", "lane", "due_ms", "row_id"])


def laid_out(rows: DataFrame, parts: int, bins: int) -> DataFrame:
    """Positions in the order of the work: sorted by part, in bins of successive parts.

    Parts and dues both follow from a hash of the row id, so the first parts are due first.
    """
    part = F.shiftrightunsigned(F.crc32("row_id") * F.lit(parts), 32).cast("int")
    placed = rows.select(part.alias("part"), "minute", "lane", "due_ms", "row_id")
    bin_of = F.floor(F.col("part") * F.lit(bins) / F.lit(parts)).cast("int")
    return placed.repartitionById(bins, bin_of).sortWithinPartitions(
        "part", "minute", "lane", "due_ms", "row_id"
    )


# Runs ---------------------------------------------------------------------------------------------


def dead_frame(queue: SparkQueue, where: Column | str | None = None) -> DataFrame:
    """The dead messages of a queue, without bodies: the view `dead`, filtered."""
    frame = queue.read("dead")
    return frame if where is None else frame.where(where)


def table(queue: SparkQueue, *, where: Column | str | None = None) -> DeadTable:
    """The dead messages of a queue by kind of error.

    Args:
        queue: The queue that they died in.
        where: A condition on the columns of the view `dead`: `"reason LIKE '%timeout%'"`, say.

    Raises:
        ShardqError: If there is no such queue or store, or the condition cannot be used.
    """
    if not _has_died(queue):
        return DeadTable(queue.name, [])
    with translated():
        found = groups(dead_frame(queue, where))
        # Spark collects datetimes in the session's zone, without naming it; so collect numbers.
        times = {name: F.unix_millis(name) for name in ("first_died", "last_died")}
        rows = [row.asDict() for row in found.withColumns(times).collect()]
    made = [
        ErrorGroup(**row | {name: row[name] and moment_of(row[name]) for name in times})
        for row in rows
    ]
    # Sorted in Python: Spark would read the dead twice, to find ranges for a sort.
    return DeadTable(queue.name, sorted(made, key=_by_messages))


def act_on(
    queue: SparkQueue,
    act: str,
    *,
    where: Column | str | None,
    frame: DataFrame | None,
    rate: float | None = None,
    run: str | None,
    dry_run: bool,
) -> DeadReport:
    """Put dead messages back, or delete them: `REDRIVE` or `DELETE`.

    The other arguments are those of `QueueJobs.redrive`.
    """
    if rate is not None and not 0 < rate <= _RATE_MAX:
        raise BadSetting(f"rate must be above 0, up to {_RATE_MAX:,}, not {shown(rate)}.")
    if where is not None and frame is not None:
        raise UsageError("give where or frame, not both: filter the frame yourself.")
    if not _has_died(queue):
        return DeadReport(queue.name, act, "", 0, is_dry=dry_run)
    with translated():
        chosen = positions(dead_frame(queue, where) if frame is None else frame)
        if dry_run:
            return DeadReport(queue.name, act, "", chosen.count(), is_dry=True)
    if run is not None:
        known = SparkRun.read(run)
        known.check_time(queue.place().clock.now_us())
        known.check_begun(queue.place().store, queue.name)
        plan = acts.planned(queue.place(), queue.name, known)
        if plan is not None:
            done = _carry_out(queue, known, _agreed(queue, known, plan, act), chosen)
            with translated():
                left = chosen.count() - done.doubtful
            return _report(queue, known, plan, done, left)
    # Read once, so that messages that die meanwhile are neither counted nor acted on.
    chosen.persist()
    try:
        with translated():
            count = chosen.count()
        if not count:
            return DeadReport(queue.name, act, "", 0)
        register, now_us = queue.register(), queue.place().clock.now_us()
        if run is None:
            known = SparkRun.new(max(now_us, register.settings.purged_before_us))
        wanted = RunHeader(
            act,
            rows=count,
            until_ms=ceil_ms(now_us) + CLOCK_AHEAD_MS,
            parts=min(max(1, -(-count // _PART_ROWS)), _PARTS_MAX),
            start_ms=ceil_ms(now_us) + _LEAD_MS,
            window_ms=round(count / (rate or RATE) * 1_000),
            lanes=register.settings.lanes_agreed,
        )
        plan = _agreed(queue, known, wanted, act)
        return _report(queue, known, plan, _carry_out(queue, known, plan, chosen), 0)
    finally:
        chosen.unpersist()


def _agreed(queue: SparkQueue, run: SparkRun, plan: RunHeader, act: str) -> RunHeader:
    """The stored plan of a run; the given one is stored if there is none."""
    return acts.plan_run(queue.place(), queue.register(), run, replace(plan, job=act))


def _carry_out(queue: SparkQueue, run: SparkRun, plan: RunHeader, chosen: DataFrame) -> WriteTally:
    bins = min(2 * tasks_of(queue.spark), plan.parts)
    writer = laid_out(chosen, plan.parts, bins).write.format(FORMAT).mode("append")
    writer.options(store=queue.store, queue=queue.name, act=plan.job, run=run.id)
    try:
        with translated():
            writer.save()
    except ShardqError as error:
        error.add_note(
            f"What was done by then stays so. Run {run.id} can be resumed: give run={run.id!r}, "
            f"at a shell --run {run.id}."
        )
        raise
    return acts.actor_of(queue.place(), queue.name, run, plan).total(is_over=True)


def _report(
    queue: SparkQueue, run: SparkRun, plan: RunHeader, done: WriteTally, left: int
) -> DeadReport:
    is_back = plan.job == REDRIVE and done.rows > 0
    return DeadReport(
        queue.name,
        plan.job,
        run.id,
        plan.rows,
        done.rows,
        max(left, 0),
        done.doubtful,
        done.doubtful_ids,
        iso(plan.start_ms) if is_back else "",
        iso(plan.start_ms + plan.window_ms) if is_back else "",
    )


def _has_died(queue: SparkQueue) -> bool:
    """True if an existing queue has a dead-letter queue."""
    return queue.register().dead_if_made() is not None


def _by_messages(group: ErrorGroup) -> tuple[int, str]:
    return -group.messages, group.error


def _second(died: datetime | None) -> str:
    return "" if died is None else iso(died)[:19]
