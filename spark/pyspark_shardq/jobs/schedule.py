"""Scheduling: a frame of millions of messages into the shards of their dues.

```
 frame ──judge──┬─► bad: with a reason              preview: one pass that counts
                └─► good ──lanes, ids, bins──► laid out ──► pieces, each written once
```

A run has a name. If it runs again, or twice at once, it writes the same rows.

To take a run back is its exact inverse: a row that is still where the run put it is deleted, and
recorded as cancelled. Rows that were delivered, moved or put by others stay. The run cannot be
resumed afterwards.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq import bins as packing
from pyspark_shardq import runs
from pyspark_shardq.asked import REASON, ROW
from pyspark_shardq.complaint import translated
from pyspark_shardq.options import PUT, UNDO
from pyspark_shardq.outcome import JobOutcome, plain
from pyspark_shardq.pieces import PIECE_ROWS, UNDO_BEFORE, PiecesDone, WriteTally
from pyspark_shardq.runs import PLAN, UNDONE, SparkRun
from shardq.errors import BadSetting, UsageError, shown
from shardq.model.text import plural
from shardq.model.times import due_ms as read_due_ms
from shardq.model.times import iso, moment_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, DataFrameWriter

    from pyspark_shardq.asked import FrameColumns
    from pyspark_shardq.queues import SparkQueue
    from shardq.model.times import Due
    from shardq.records.register import Register

_BIN_ROWS = 10_000
"""The fewest rows of a task, which takes 0.1 s before it writes."""
_BIN_ROWS_MAX = 500_000
_BINS_A_TASK = 2
_BINS_MAX = 10_000
_PIECE_ROWS_MIN = 10
_HOTTEST = 10
_RATE_MAX = 1e9
_FORMAT = "shardq"


class PlannedMinute(NamedTuple):
    """A minute of a queue, by its begin, and how many messages come due in it."""

    minute: datetime
    rows: int


@dataclass(frozen=True, slots=True)
class Preview(JobOutcome):
    """The rows that a run would write.

    Attributes:
        run: The run's name.
        queue: The queue's name.
        rows: Messages.
        bad: Rows that cannot be put, by reason.
        bytes: The size of all bodies together.
        first_due: The first due; None without rows.
        last_due: The last due; None without rows.
        hottest: The minutes in which most come due, most first.
        bins: Rows of each task.
    """

    run: str
    queue: str
    rows: int
    bad: Mapping[str, int]
    bytes: int
    first_due: datetime | None
    last_due: datetime | None
    hottest: tuple[PlannedMinute, ...]
    bins: tuple[int, ...]

    def line(self) -> str:
        """The outcome in a sentence."""
        bad = f", {sum(self.bad.values()):,} bad" if self.bad else ""
        if self.first_due is None or self.last_due is None:
            return f"nothing to schedule in {self.queue}{bad}."
        return (
            f"{plural(self.rows, 'message')} of {self.bytes:,} bytes for {self.queue}{bad}, due "
            f"from {iso(self.first_due)} to {iso(self.last_due)}."
        )

    def lines(self) -> list[str]:
        """The hottest minutes, the bins and the bad rows, a line each."""
        hot = [f"{iso(one.minute)}  {one.rows:>12,} due" for one in self.hottest]
        bad = [f"bad: {reason}: {count:,}" for reason, count in sorted(self.bad.items())]
        if not self.bins:
            return hot + bad
        mean = sum(self.bins) / len(self.bins)
        even = f"{len(self.bins)} bins, the largest {max(self.bins) / max(mean, 1):.2f} of the mean"
        return [*hot, even, *bad]


@dataclass(frozen=True, slots=True)
class Report(JobOutcome):
    """The outcome of a run.

    Attributes:
        run: The run's name, by which it is resumed and undone.
        queue: The queue's name.
        tally: The counts of rows by outcome.
        bad: Rows left out, by reason.
        act: `put` or `undo`.
    """

    hidden = ("tally",)
    run: str
    queue: str
    tally: WriteTally
    bad: Mapping[str, int] = field(default_factory=dict)
    act: str = PUT

    @property
    def rows(self) -> int:
        """Messages that are scheduled by this run."""
        return self.tally.rows

    @property
    def found(self) -> int:
        """The number of scheduled messages that an earlier try of this run had scheduled."""
        return self.tally.found

    @property
    def cancelled(self) -> int:
        """Messages that were taken back."""
        return self.tally.cancelled

    @property
    def doubtful(self) -> int:
        """Messages that may have been scheduled, delivered and finished, and were left alone."""
        return self.tally.doubtful

    def line(self) -> str:
        """The outcome in a sentence."""
        tally = self.tally
        if self.act == UNDO:
            taken = plural(tally.cancelled, "message")
            return f"took back {taken} of run {self.run} in {self.queue}."
        before = f", {tally.found:,} of them before" if tally.found else ""
        doubt = f"; {tally.doubtful:,} are in doubt and were left alone" if tally.doubtful else ""
        put = plural(tally.rows, "message")
        return f"scheduled {put} in {self.queue}{before}{doubt}: run {self.run}."

    def lines(self) -> list[str]:
        """The less usual counts, the bad rows and the doubtful ids, a line each."""
        tally = self.tally
        told = [
            (tally.duplicates, "rows were the same message as another"),
            (tally.late, "were written too late for their minute, and moved to now"),
        ]
        found = [f"{count:,} {text}" for count, text in told if count]
        found += [f"bad: {reason}: {count:,}" for reason, count in sorted(self.bad.items())]
        return found + [f"in doubt: {one}" for one in tally.doubtful_ids]

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain values."""
        counts = WriteTally.__struct_fields__
        told = {name: plain(getattr(self.tally, name)) for name in counts if name != "purged"}
        return JobOutcome.to_json(self) | told


class Plan:
    """The rows to be written or taken back. Made by `plan`.

    Attributes:
        queue: The queue.
        run_id: The run's name.
    """

    def __init__(
        self,
        queue: SparkQueue,
        frame: DataFrame,
        asked: FrameColumns,
        run: SparkRun,
        register: Register,
        *,
        act: str = PUT,
        rate: float | None = None,
        bins: int | None = None,
    ) -> None:
        self.queue = queue
        self.run_id = run.id
        self._run = run
        self._act = act
        self._rate = rate
        self._asked_bins = bins
        self._frame = frame
        self._asked = asked
        # A run that is resumed uses the lanes of its first try.
        self._planned = self._line(PLAN)
        lanes = self._planned.get("lanes", register.settings.lanes_agreed)
        self._layout = replace(register.layout, lanes_written=lanes)
        self._judged = asked.judged(frame, run, self._layout)

    @property
    def good(self) -> DataFrame:
        """The rows that can be put, as they came."""
        return self._judged.where(F.col(REASON).isNull()).select(f"{ROW}.*")

    @property
    def bad(self) -> DataFrame:
        """The rows that cannot be put, as they came, and in a column `reason` why."""
        return self._judged.where(F.col(REASON).isNotNull()).select(f"{ROW}.*", REASON)

    def preview(self) -> Preview:
        """Count the rows that would be written, in one pass over the frame."""
        counted = self._counted
        sizes = [0] * counted.bins
        for rows, found in zip(counted.slots, counted.bins_of, strict=True):
            for one in found:
                sizes[one] += rows // len(found)
        return replace(counted.preview, bins=tuple(sizes))

    def run(self, *, skip_bad: bool = False) -> Report:
        """Write the rows. A repeat writes those that are missing.

        Args:
            skip_bad: True to write the good rows even if there are bad ones.

        Returns:
            The outcome of the rows.

        Raises:
            UsageError: If there are bad rows, or the frame is not the one of this run; nothing was
                written.
            StoreError: Some of it may be written; run it again.
        """
        preview = self.preview()
        bad = sum(preview.bad.values())
        if bad and not skip_bad and self._act == PUT:
            first = max(preview.bad, key=lambda reason: preview.bad[reason])
            raise UsageError(
                f"{bad:,} of {bad + preview.rows:,} rows cannot be put, most of them since "
                f"{first}; nothing was written. Mend them, or leave them out with skip_bad."
            )
        self._agree(preview)
        tally = WriteTally()
        if preview.rows:
            part = f"report/{secrets.token_hex(4)}"
            # In another thread than the main one, Spark knows the session only after its first use.
            self.queue.spark.createDataFrame([(1,)], "one INT")
            with translated():
                self.writer(part).save()
            tally = WriteTally.of(self._line(part))
        return Report(self.run_id, self.queue.name, tally, preview.bad, self._act)

    def done(self, preview: Preview) -> PiecesDone:
        """The finished pieces of the run, to show its progress.

        Args:
            preview: The preview of the run.
        """
        before = UNDO_BEFORE if self._act == UNDO else ""
        store, bins = self.queue.place().store, len(preview.bins)
        return PiecesDone(store, self.queue.name, self._run, bins, before)

    def writer(self, report: str = "report") -> DataFrameWriter:
        """The laid out frame's writer, which `run` saves."""
        counted = self._counted
        slot = packing.slot_of(F.col("minute"))
        bin_of = packing.bin_of(slot, F.col("name"), counted.bins_of)
        good = self._asked.good(self._frame, self._run, self._layout).withColumn("bin", bin_of)
        laid_out = packing.laid_out(good, counted.bins, self._layout)
        options = {
            "store": self.queue.store,
            "queue": self.queue.name,
            "run": self.run_id,
            "act": self._act,
            "report": report,
            "piece": str(counted.piece),
        }
        if self._rate is not None:
            tasks = min(counted.bins, packing.tasks_of(self.queue.spark))
            options |= {"rate": str(self._rate), "tasks": str(tasks)}
        writer = laid_out.write.format(_FORMAT).options(**options)
        return writer.mode("append")

    @cached_property
    def _counted(self) -> _Counted:
        """Count the rows of each slot, and find the hottest minutes, in one pass over the frame."""
        mixed = F.bit_xor(F.xxhash64("name", "due_ms", "lane"))
        minutes = self._judged.groupBy(REASON, "minute").agg(
            F.count("*").alias("rows"),
            F.sum(F.octet_length("body")).alias("bytes"),
            F.min("due_ms").alias("first"),
            F.max("due_ms").alias("last"),
            mixed.alias("mixed"),
        )
        slot = packing.slot_of(F.col("minute")).alias("slot")
        hot = F.sort_array(F.collect_list(F.struct("rows", "minute")), asc=False)
        slots = minutes.groupBy(REASON, slot).agg(
            F.sum("rows").alias("rows"),
            F.sum("bytes").alias("bytes"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.bit_xor("mixed").alias("mixed"),
            F.slice(hot, 1, _HOTTEST).alias("hot"),
        )
        with translated():
            found = slots.collect()
        good = [one for one in found if one[REASON] is None]
        bad = {one[REASON]: one.rows for one in found if one[REASON] is not None}
        counts = [0] * packing.SLOTS
        for one in good:
            counts[one.slot] = one.rows
        rows = sum(counts)
        hottest = sorted((tuple(each) for one in good for each in one.hot), reverse=True)
        preview = Preview(
            self.run_id,
            self.queue.name,
            rows,
            bad,
            sum(one.bytes for one in good),
            moment_of(min(one["first"] for one in good)) if good else None,
            moment_of(max(one["last"] for one in good)) if good else None,
            tuple(
                PlannedMinute(moment_of(self._layout.start_ms(minute)), number)
                for number, minute in hottest[:_HOTTEST]
            ),
            (),
        )
        seen = sorted((one.slot, one.rows, one.bytes, one.mixed) for one in good)
        digest = hashlib.sha1(json.dumps(seen).encode(), usedforsecurity=False).hexdigest()[:20]
        bins = self._planned.get("bins") or self._asked_bins or self._bins_for(rows)
        piece = self._planned.get("piece") or self._piece_for(bins)
        return _Counted(preview, counts, packing.bins_of(counts, bins), bins, piece, digest)

    def _bins_for(self, rows: int) -> int:
        most = max(_BINS_A_TASK * packing.tasks_of(self.queue.spark), rows // _BIN_ROWS_MAX)
        return min(max(1, rows // _BIN_ROWS), most, _BINS_MAX)

    def _piece_for(self, bins: int) -> int:
        """The rows of a piece; with a rate, as many as it allows in a second."""
        if self._rate is None:
            return PIECE_ROWS
        tasks = min(bins, packing.tasks_of(self.queue.spark))
        return min(PIECE_ROWS, max(_PIECE_ROWS_MIN, int(self._rate / tasks)))

    def _line(self, part: str) -> dict[str, Any]:
        """The content of a line of this run; empty if there is none."""
        entry = self._run.entry(self.queue.name, part)
        return runs.line_of(self.queue.place().store, entry).says or {}

    def _agree(self, preview: Preview) -> None:
        """Write the run's header, or check that the existing one is of the same rows."""
        counted = self._counted
        header = {
            "job": "schedule",
            "lanes": self._layout.lanes_written,
            "bins": counted.bins,
            "piece": counted.piece,
            "spread": self._asked.spread_ms,
            "rows": preview.rows,
            "frame": counted.digest,
        }
        store = self.queue.place().store
        if self._act == UNDO:
            planned = self._line(PLAN)
            if not planned:
                raise UsageError(
                    f"no run {self.run_id} has scheduled anything in queue {self.queue.name!r} in "
                    f"the last 30 days."
                )
        else:
            if self._line(UNDONE):
                raise UsageError(
                    f"run {self.run_id} was unscheduled; schedule the rows as a new run."
                )
            planned = runs.agreed(store, self._run.entry(self.queue.name, PLAN), header)
            # Another process on other cores may have written the header first.
            cut = {name: planned.get(name) for name in ("bins", "piece")}
            if planned == header | cut:
                header = planned
                self._counted = counted.cut(planned["bins"], planned["piece"])
        if planned != header:
            raise UsageError(
                f"run {self.run_id} was planned with other rows, or with another spread: "
                f"{planned.get('rows'):,} rows then and {preview.rows:,} now; nothing was written. "
                f"Give it what it was given then, or schedule this as a new run."
            )
        if self._act == UNDO:
            runs.agreed(store, self._run.entry(self.queue.name, UNDONE), {"rows": preview.rows})


@dataclass(frozen=True, slots=True)
class _Counted:
    """The findings of one pass over the frame.

    Attributes:
        preview: The preview.
        slots: Rows of each slot of minutes.
        bins_of: The bins of each slot.
        bins: How many bins there are.
        piece: Most rows of a piece.
        digest: A checksum of the rows.
    """

    preview: Preview
    slots: Sequence[int]
    bins_of: Sequence[Sequence[int]]
    bins: int
    piece: int
    digest: str

    def cut(self, bins: int, piece: int) -> _Counted:
        """The same findings for another number of bins, and another size of pieces."""
        return replace(self, bins_of=packing.bins_of(self.slots, bins), bins=bins, piece=piece)


def plan(
    queue: SparkQueue,
    frame: DataFrame,
    asked: FrameColumns,
    *,
    act: str = PUT,
    rate: float | None = None,
    as_of: Due | None = None,
    run: str | None = None,
    create: bool = False,
    bins: int | None = None,
) -> Plan:
    """Plan to put the rows of a frame, or to take them back; reads none of them yet.

    Args:
        asked: The columns of the frame that make messages.
        act: `PUT` or `UNDO`.

    The other arguments are those of `QueueJobs.schedule`.
    """
    if rate is not None and not (type(rate) in (int, float) and 0 < rate <= _RATE_MAX):
        raise BadSetting(f"rate must be rows a second, above 0, not {shown(rate)}.")
    if bins is not None and not (type(bins) is int and 1 <= bins <= _BINS_MAX):
        raise BadSetting(f"bins must be 1 to {_BINS_MAX:,}, not {shown(bins)}.")
    if act == UNDO and run is None and as_of is None:
        raise UsageError("say which run to take back: its name is in its report.")
    register = queue.register(create=create)
    found = run_of(queue, register, run, as_of)
    return Plan(queue, frame, asked, found, register, act=act, rate=rate, bins=bins)


def run_of(queue: SparkQueue, register: Register, run: str | None, as_of: Due | None) -> SparkRun:
    """The run of a name or a time; a new one without either.

    Raises:
        UsageError: If there can be no such run, or it is too old for its lines to exist.
    """
    now_us = queue.place().clock.now_us()
    if run is not None and as_of is not None:
        raise UsageError("give run or as_of, not both: a run's name has its time.")
    if run is not None:
        found = SparkRun.read(run)
    elif as_of is not None:
        found = SparkRun.at(read_due_ms(as_of, name="as_of") * 1_000)
    else:
        # A new run is after the last purge, even if the clock was set back since.
        return SparkRun.new(max(now_us, register.settings.purged_before_us))
    found.check_time(now_us)
    found.check(queue.name, register.settings)
    found.check_begun(queue.place().store, queue.name)
    return found
