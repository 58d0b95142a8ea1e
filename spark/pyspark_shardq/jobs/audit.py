"""The audit of a queue's books by Spark: as `shardq.inspection.audit`, on many cores.

```
 rows, near ones twice ──► entries and their rows ─┐
                                                   ├─ full outer join ─► facts ─► the rules
 ledger, read after them ─► entries: put, end ─────┘                               │
                                    misfits ◄──────────────────────────────────────┘
                                      └─► looked at again, twice, with pauses
```

The rules are those of `shardq.inspection.audit`, as columns that look up its answer to each case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq.batches import of_marks
from pyspark_shardq.columns import arrow_schema, columns_in
from pyspark_shardq.outcome import JobOutcome, plain
from pyspark_shardq.views import HISTORY
from shardq.errors import UsageError, shown
from shardq.inspection.audit import (
    ENDS,
    LOOKS,
    LOOKS_MAX,
    NAMES,
    OUTCOMES,
    PAUSE_S,
    Audit,
    Balance,
    Misfit,
    MisfitKind,
    kind_of,
    names_of,
    span_audited,
)
from shardq.model.times import iso, moment_of
from shardq.records.ledger import End
from shardq.stores.store import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, Row

    from pyspark_shardq.queues import SparkQueue
    from shardq.inspection.audit import Span
    from shardq.model.times import Due, Duration
    from shardq.stores.store import Progress

_NEAR_MS = 3_600_000
_ASKED_MAX = 10_000
"""For up to this many suspects the ledger is asked one by one, and not reread."""
_BROADCAST_MAX = 100_000
"""Up to this many suspects are sent to each task as a list."""
_NAMED_MAX = 1_000
"""The most misfits in a report's JSON."""
_LINES_MAX = 100
_NEVER = moment_of(0)
"""Stands for the time of entry of an expected id that never entered."""
_UNKNOWN_END = MisfitKind.UNKNOWN.value
_ROWS = "entry,row_id,id,entered,in_flight"
_LEDGER = "row_id,id,entered,due,fate,ended"
_SUPERSEDED = (End.ACKED, End.CANCELLED, End.EXPIRED, End.FORWARDED, End.DEAD, End.PURGED)
"""The ends of an id, the one that counts first. After the last ones the id may be put again."""


# The pure part ------------------------------------------------------------------------------------


def balance(ledger: DataFrame, rows: DataFrame) -> DataFrame:
    """Join the ledger and the stored rows of each message, and judge how they fit.

    Args:
        ledger: With the columns `row_id`, `id`, `entered`, `due`, `fate` and `ended` of the view
            `history`.
        rows: With the columns `entry`, `row_id`, `id`, `entered` and `in_flight` of the view
            `messages`. The same row may come twice.

    Returns:
        One line a message: `entry`, `id`, `entered`, the facts (`is_put`, `fate`, `is_there`,
        `is_claim`, `is_copied`), and `kind`, a word of `MisfitKind`; null if the message fits.
    """
    told = ledger.select(
        F.col("row_id").alias("entry"),
        F.col("id").alias("told_id"),
        F.col("entered").alias("told_entered"),
        F.col("due").isNotNull().alias("is_put"),
        # A purged message ends only when it comes due.
        F.when(F.col("ended").isNotNull(), F.col("fate")).alias("fate"),
    )
    # Hashes, because Spark aggregates numbers in place.
    place = F.xxhash64("row_id")
    there = rows.groupBy("entry", "id", "entered").agg(
        F.max("in_flight").alias("in_flight"), (F.min(place) != F.max(place)).alias("is_copied")
    )
    both = told.join(there, "entry", "full_outer").select(
        "entry",
        F.coalesce("id", "told_id").alias("id"),
        F.coalesce("entered", "told_entered").alias("entered"),
        F.coalesce("is_put", F.lit(False)).alias("is_put"),
        "fate",
        F.col("in_flight").isNotNull().alias("is_there"),
        F.coalesce("in_flight", F.lit(False)).alias("is_claim"),
        F.coalesce("is_copied", F.lit(False)).alias("is_copied"),
    )
    return both.withColumn("kind", _kind())


def balance_expected(
    ledger: DataFrame, rows: DataFrame, expected: DataFrame, *, key: str = "id"
) -> DataFrame:
    """The same as `balance`, but by message id, with a frame of the ids that were to be put.

    Each id is to be delivered once. A message that died or was cancelled may be put again, which
    does not count as twice. A stored or ended message that is not expected is `unknown`.

    Args:
        ledger: As `balance` takes it.
        rows: As `balance` takes it.
        expected: The ids, each once or more.
        key: The column of the ids.

    Returns:
        One line an id, as `balance` returns them, but `is_put` is true if the id is expected, and
        `entry` is null.
    """
    known = (
        balance(ledger, rows)
        .groupBy("id")
        .agg(
            F.min("entered").alias("entered"),
            *(_any(F.col("fate") == end.value).alias(end.value) for end in _SUPERSEDED),
            F.sum((F.col("fate") == End.ACKED.value).cast("int")).alias("deliveries"),
            F.sum(F.col("is_there").cast("int")).alias("rows"),
            _any(F.col("is_claim")).alias("is_claim"),
            _any(F.col("is_copied")).alias("is_copied"),
            _any(F.col("kind") == MisfitKind.RESURRECTED.value).alias("is_resurrected"),
            _any(~F.col("fate").isin(*ENDS)).alias("is_unknown"),
        )
    )
    wanted = expected.select(F.col(key).cast("string").alias("id")).distinct()
    wanted = wanted.withColumn("is_put", F.lit(True))
    ends = reduce(
        lambda chosen, end: chosen.when(F.col(end.value), end.value),
        _SUPERSEDED,
        F.when(F.col("is_unknown"), _UNKNOWN_END),
    )
    is_there = F.coalesce(F.col("rows") > 0, F.lit(False))
    total = F.coalesce("deliveries", F.lit(0)) + F.coalesce("rows", F.lit(0))
    is_resurrected = F.coalesce("is_resurrected", F.lit(False))
    both = known.join(wanted, "id", "full_outer").select(
        F.lit(None).cast("binary").alias("entry"),
        "id",
        "entered",
        F.coalesce("is_put", F.lit(False)).alias("is_put"),
        F.when(is_resurrected | F.col("is_unknown") | ~is_there, ends).alias("fate"),
        is_there.alias("is_there"),
        F.coalesce("is_claim", F.lit(False)).alias("is_claim"),
        (~is_resurrected & (F.coalesce("is_copied", F.lit(False)) | (total > 1))).alias(
            "is_copied"
        ),
    )
    # An id that is not expected, without a row and an end, is left out.
    kind = F.when(~F.col("is_put"), MisfitKind.UNKNOWN.value).otherwise(_kind())
    return both.where("is_put or is_there or fate is not null").withColumn("kind", kind)


def _any(claim: Column) -> Column:
    return F.coalesce(F.max(claim), F.lit(False))


def _kind() -> Column:
    """A column with the answer of `kind_of` to each case, looked up by the case's number."""
    cases = product((None, End.ACKED.value, _UNKNOWN_END), (False, True), (False, True))
    answers = [
        kind_of(fate=fate, is_put=is_put, is_there=is_there) for fate, is_put, is_there in cases
    ]
    end = F.when(F.col("fate").isNull(), 0).when(F.col("fate").isin(*ENDS), 1).otherwise(2)
    case = end * 4 + F.col("is_put").cast("int") * 2 + F.col("is_there").cast("int")
    found = F.element_at(F.array(*(_word(kind) for kind in answers)), case + 1)
    return F.coalesce(found, F.when(F.col("is_copied"), MisfitKind.DOUBLED.value))


def _word(kind: MisfitKind | None) -> Column:
    return F.lit(None if kind is None else kind.value).cast("string")


def counts(judged: DataFrame, purged_before_us: int = 0) -> DataFrame:
    """Count messages with equal facts, by minute of entry; `counted` makes a `Balance` of them.

    Args:
        judged: The result of `balance`.
        purged_before_us: A purge has reached messages that entered before this microsecond.
    """
    known = F.when(F.col("fate").isin(*ENDS), F.col("fate"))
    return judged.groupBy(
        F.date_trunc("minute", "entered").alias("minute"),
        "is_put",
        known.when(F.col("fate").isNotNull(), _UNKNOWN_END).alias("fate"),
        (F.unix_micros("entered") < purged_before_us).alias("is_purged"),
        "is_claim",
        "kind",
    ).count()


def counted(lines: Sequence[Row], *, is_expected: bool = False) -> tuple[Balance, int]:
    """The balance of lines of `counts`, and how many messages are doubled."""
    total, doubled = Balance(), 0
    for line in lines:
        kind = None if line["kind"] is None else MisfitKind(line["kind"])
        if kind is MisfitKind.DOUBLED:
            doubled += line["count"]
            kind = None
        names: tuple[str, ...] = names_of(
            kind,
            is_put=line["is_put"],
            fate=line["fate"],
            is_purged=bool(line["is_purged"]),
            is_claim=line["is_claim"],
        )
        if is_expected and not line["is_put"]:
            names = (MisfitKind.UNKNOWN.value,)
        total.count(*names, messages=line["count"])
    return total, doubled


# The report ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditReport(JobOutcome):
    """The findings of an audit.

    Attributes:
        audit: As `Queue.audit` returns it, without minutes and misfits. If ids were expected, `put`
            is their count.
        doubled: Messages with two rows. If ids were expected: ids that were delivered twice, or
            have ended and are stored again.
        misfits: Each message that does not fit: `kind`, `id`, `entered`, `fate`, and `entry`, which
            the view `history` calls `row_id`.
        counts: The result of `counts`.
        is_expected: True if a frame named the ids to be expected.
    """

    audit: Audit
    doubled: int
    misfits: DataFrame
    counts: DataFrame
    is_expected: bool = False

    @property
    def is_good(self) -> bool:
        """True if the books balance."""
        return self.is_even

    @property
    def is_even(self) -> bool:
        """True if the books balance: nothing is lost, double or unknown."""
        return self.audit.is_even and not self.doubled

    def line(self) -> str:
        """The outcome in a sentence."""
        if self.is_expected:
            return self._expected_line()
        line = self.audit.line()
        if not self.doubled:
            return line
        if self.audit.is_even:
            line = line.replace(" balances: ", " does not balance: ", 1)
        return f"{line.removesuffix('.')}; {self.doubled:,} there twice."

    def _expected_line(self) -> str:
        total = self.audit.total
        said = "balances" if self.is_even else "does not balance"
        sum_of = total.sum_of((*OUTCOMES, "lost"))
        line = f"{self.audit.queue} {said}: {total.put:,} expected = {sum_of}"
        if total.unknown:
            line += f"; {total.unknown:,} not expected, or of an unknown end"
        if total.resurrected:
            line += f"; {total.resurrected:,} ended and yet there"
        if self.doubled:
            line += f"; {self.doubled:,} twice"
        return line + "."

    def lines(self) -> list[str]:
        """The first misfits, a line each."""
        misfits = [] if self.is_even else self.named(_LINES_MAX + 1)
        told = [
            f"{one.kind.value}: {one.id}"
            + (f", entered {iso(one.entered)}" if one.entered != _NEVER else "")
            + (f", {one.fate}" if one.fate else "")
            for one in misfits[:_LINES_MAX]
        ]
        if len(misfits) > _LINES_MAX:
            told.append(
                f"and more; these are {_LINES_MAX}, and `misfits` of the report in Python has all."
            )
        return told

    def named(self, most: int = _NAMED_MAX) -> list[Misfit]:
        """The first misfits, by kind, time of entry and id.

        The entry of an expected id that never entered is the beginning of 1970.
        """
        chosen = self.misfits.orderBy("kind", "entered", "id").select(
            "kind", "id", F.unix_millis("entered").alias("entered_ms"), "fate"
        )
        return [
            Misfit(MisfitKind(kind), message_id, moment_of(entered_ms or 0), fate)
            for kind, message_id, entered_ms, fate in chosen.limit(most).collect()
        ]

    def minutes(self) -> list[tuple[datetime, Balance]]:
        """The balance of each minute in which a message entered, in order, as `Audit` has it."""
        lines: dict[int, list[Row]] = {}
        timed = self.counts.withColumn("minute_ms", F.unix_millis("minute"))
        for line in timed.where("minute_ms is not null").collect():
            lines.setdefault(line["minute_ms"], []).append(line)
        return [
            (moment_of(at_ms), counted(lines[at_ms], is_expected=self.is_expected)[0])
            for at_ms in sorted(lines)
        ]

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, with the first misfits."""
        audit = self.audit
        misfits = [] if self.is_even and not audit.total.unrecorded else self.named()
        return {
            "job": "audit",
            "queue": audit.queue,
            "since": iso(audit.since),
            "until": iso(audit.until),
            "balances": self.is_even,
            "empty": audit.is_empty,
            "expected": self.is_expected,
            **{name: getattr(audit.total, name) for name in NAMES},
            "doubled": self.doubled,
            "misfits": [
                plain(one) | ({"entered": None} if one.entered == _NEVER else {}) for one in misfits
            ],
        }


# The run ------------------------------------------------------------------------------------------


def run(
    queue: SparkQueue,
    *,
    since: Due | Duration | None = None,
    until: Due | Duration | None = None,
    expected: DataFrame | None = None,
    key: str = "id",
    on_progress: Progress | None = None,
) -> AuditReport:
    """Check that each message that was put has ended or is stored, and none twice.

    Rows are read before the ledger. A message that does not fit is no finding yet, because messages
    move and end meanwhile. It is one if it does not fit in the same way three times.

    Args:
        queue: A queue that keeps a history.
        since: Only messages that entered from then on, or so long ago; None: as far back as the
            history is complete.
        until: Only messages that entered before then; None: now.
        expected: The ids that were to be put; the puts in the ledger do not count then. Ids are
            audited that are in it, have ended, or are stored.
        key: The column of `expected` that holds the messages' ids.
        on_progress: Called with `looks`, and the number of the look that begins.

    Raises:
        HistoryOff: If the queue keeps no history.
        BadTime: If nothing lies between `since` and `until`.
        UsageError: If `expected` has no such column.
    """
    if expected is not None and key.lower() not in columns_in(expected):
        columns = ", ".join(expected.columns)
        raise UsageError(f"the expected ids have no column {shown(key)}; there is {columns}.")
    here, register = queue.place(), queue.register()
    span = span_audited(register, here.clock.now_ms(), since, until)
    # No message has an empty id, so an expected null counts as lost.
    wanted_id = F.coalesce(F.col(key).cast("string"), F.lit("")).alias("id")
    wanted = None if expected is None else expected.select(wanted_id)
    looks = _Looks(queue, span, None if until is None else span.until_ms, wanted)
    tell = on_progress or _untold
    try:
        tell("looks", 1, None)
        looks.first()
        for number in range(LOOKS_MAX):
            if not looks.are_in_doubt():
                break
            here.clock.sleep(PAUSE_S)
            tell("looks", number + 2, None)
            looks.again()
        looks.last()
        register.refresh(force=True)
        lines = counts(looks.judged(), register.settings.purged_before_us)
        # The frames of the report must outlive those from which they were computed.
        kept, misfits = lines.localCheckpoint(), looks.misfits()
    finally:
        looks.close()
    audit = span.audit(queue.name)
    audit.total, doubled = counted(kept.collect(), is_expected=expected is not None)
    return AuditReport(audit, doubled, misfits, kept, expected is not None)


class _Doubt(NamedTuple):
    """The messages that do not fit so far: how many, and when the first and the last entered."""

    messages: int
    unsure: int
    """How many of them were not looked at often enough."""
    lost: int
    first_us: int | None
    last_us: int | None


class _Looks:
    """Successive looks at a queue, each at the misfits of the last one.

    Args:
        until_ms: The end of the history that is read; None: no end.
        wanted: The expected ids, in the column `id`; None: the puts in the ledger.
    """

    def __init__(
        self, queue: SparkQueue, span: Span, until_ms: int | None, wanted: DataFrame | None
    ) -> None:
        self._queue = queue
        self._span = span
        self._until_ms = until_ms
        self._wanted = wanted
        self._key = "entry" if wanted is None else "id"
        self._clock = queue.place().clock
        self._layout = queue.register().layout
        self._kept: list[DataFrame] = []
        self._doubt = _Doubt(0, 0, 0, None, None)
        self._fitting: DataFrame
        self._suspects: DataFrame

    def first(self) -> None:
        """Look at every message."""
        rows = self._rows(None)
        judged = self._kept_frame(self._judged(self._ledger(None), rows, None))
        self._fitting = judged.where("kind is null")
        self._doubt_in(judged.where("kind is not null").withColumn("looks", F.lit(1)))

    def are_in_doubt(self) -> bool:
        """True if a misfit was not looked at often enough."""
        return self._doubt.unsure > 0

    def again(self) -> None:
        """Look at the misfits once more."""
        doubtful = F.col("kind").isNotNull()
        self._look(doubtful, self._rows(self._suspects.where(doubtful)))

    def last(self) -> None:
        """Ask the ledger alone for lost messages: one that has just ended fits now."""
        if self._doubt.lost:
            rows = self._suspects.limit(0).select(
                "entry",
                F.col("entry").alias("row_id"),
                "id",
                "entered",
                F.col("is_claim").alias("in_flight"),
            )
            self._look(F.col("kind").eqNullSafe(MisfitKind.LOST.value), rows)

    def judged(self) -> DataFrame:
        """Every message, as it was when it was looked at last."""
        return self._fitting.unionByName(self._suspects.drop("looks"))

    def misfits(self) -> DataFrame:
        """The messages that do not fit."""
        doubtful = self._suspects.where("kind is not null")
        return doubtful.select("kind", "id", "entered", "fate", "entry")

    def close(self) -> None:
        """Release the frames that Spark keeps in memory."""
        for frame in self._kept:
            frame.unpersist()

    def _look(self, doubtful: Column, rows: DataFrame) -> None:
        again = self._suspects.where(doubtful)
        if self._doubt.messages <= _ASKED_MAX:
            # Few messages in hundreds of tasks would cost seconds.
            again, rows = again.coalesce(1), rows.coalesce(1)
        before = again.select(self._key, F.col("kind").alias("before"), "looks")
        # A message without a row and a record has outlived its retention: it has no line.
        judged = self._judged(self._ledger(again), rows, again).join(before, self._key)
        looks = F.when(F.col("kind") == F.col("before"), F.col("looks") + 1).otherwise(1)
        judged = judged.withColumn("looks", looks).drop("before")
        self._doubt_in(self._suspects.where(~doubtful).unionByName(judged))

    def _doubt_in(self, suspects: DataFrame) -> None:
        # A checkpoint: each look uses the last one in several places, which would be recomputed.
        self._suspects = suspects.localCheckpoint()
        is_lost = F.col("kind") == MisfitKind.LOST.value
        entered_us = F.unix_micros("entered")
        [line] = (
            self._suspects.where("kind is not null")
            .agg(
                F.count("*"),
                F.count(F.when(F.col("looks") < LOOKS, 1)),
                F.count(F.when(is_lost, 1)),
                F.min(entered_us),
                F.max(entered_us),
            )
            .collect()
        )
        self._doubt = _Doubt(*line)

    def _judged(self, ledger: DataFrame, rows: DataFrame, among: DataFrame | None) -> DataFrame:
        if self._wanted is None:
            return balance(ledger, rows)
        wanted = self._wanted if among is None else self._among(self._wanted, among)
        return balance_expected(ledger, rows, wanted)

    def _ledger(self, among: DataFrame | None) -> DataFrame:
        """The ledger of some messages, or of all; Spark reads it only when it is used."""
        since_ms, until_ms = self._span.since_ms, self._until_ms
        first_us, last_us = self._doubt.first_us, self._doubt.last_us
        # Only with entries as the key, because an id may have entered more than once.
        if among is not None and self._key == "entry" and first_us and last_us:
            if self._doubt.messages <= _ASKED_MAX:
                return self._recorded(among)
            since_ms, until_ms = first_us // 1_000, last_us // 1_000 + 1
        options = {} if until_ms is None else {"until": iso(until_ms)}
        read = self._queue.read(
            "history", bodies=False, columns=_LEDGER, since=iso(since_ms), **options
        )
        frame = self._audited(read)
        if among is None:
            return frame
        renamed = frame.withColumnRenamed("row_id", "entry")
        return self._among(renamed, among).withColumnRenamed("entry", "row_id")

    def _recorded(self, among: DataFrame) -> DataFrame:
        """The ledger of a few messages, read by the driver."""
        name, store = self._queue.name, self._queue.place().store
        entries = [Entry(name, bytes(line["entry"])) for line in among.select("entry").collect()]
        marks = store.recorded(entries)
        columns = tuple(one for one in HISTORY if one.name in _LEDGER.split(","))
        table = arrow_schema(columns).empty_table()
        if marks:
            since_us, until_us = self._span.since_us, self._span.until_us
            batch = of_marks(
                marks, columns, name, purged_before_us=0, from_us=since_us, before_us=until_us
            )
            table = pa.Table.from_batches([batch])
        return self._queue.spark.createDataFrame(table)

    def _rows(self, among: DataFrame | None) -> DataFrame:
        """All rows, then the near ones again, as `Auditor` reads them; reads them now."""
        now_ms = self._clock.now_ms()
        all_rows = self._read_rows(among)
        since_ms = max(now_ms - self._layout.minute_ms, 0)
        until_ms = self._clock.now_ms() + _NEAR_MS
        near = self._read_rows(among, since=iso(since_ms), until=iso(until_ms))
        return all_rows.unionByName(near)

    def _read_rows(self, among: DataFrame | None, **options: str) -> DataFrame:
        read = self._queue.read("messages", bodies=False, columns=_ROWS, purged="true", **options)
        frame = self._audited(read)
        frame = self._kept_frame(frame if among is None else self._among(frame, among))
        # Rows are read before the ledger, and the near ones after the others.
        frame.count()
        return frame

    def _audited(self, frame: DataFrame) -> DataFrame:
        entered = F.col("entered")
        since, until = map(
            F.timestamp_micros, map(F.lit, (self._span.since_us, self._span.until_us))
        )
        return frame.where((entered >= since) & (entered < until))

    def _among(self, frame: DataFrame, chosen: DataFrame) -> DataFrame:
        keys = chosen.select(self._key)
        if self._doubt.messages <= _BROADCAST_MAX:
            keys = F.broadcast(keys)
        return frame.join(keys, self._key, "left_semi")

    def _kept_frame(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist())
        return frame


def _untold(_what: str, _done: int, _total: int | None) -> None:
    """Ignore the progress."""
