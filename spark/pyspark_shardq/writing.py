"""Writing messages from Spark: plain frames, frames that the job `schedule` laid out, streams.

```
 driver   BatchWriter() ─ queue, columns, run ─ pickled ─┐                  ┌─► commit(): totals
 tasks                                         Arrow ─► rows ─► pieces ─► store
```

The values of a frame's columns are checked before the rows of its partition are written.
`pieces.py` writes each piece once.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_shardq import runs
from pyspark_shardq.expressions import name_text
from pyspark_shardq.options import DELETE, PUT, REDRIVE, UNDO, refuse_in_task
from pyspark_shardq.pieces import (
    PIECE_ROWS,
    UNDO_BEFORE,
    Cutter,
    Pieces,
    PiecesDone,
    WritePace,
    WritePiece,
    WriteTally,
)
from pyspark_shardq.place import place, register_of
from pyspark_shardq.runs import PLAN, SparkRun
from shardq.errors import (
    BadBody,
    BadSetting,
    BadTime,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    UsageError,
    shown,
)
from shardq.model import ids, names
from shardq.model.message import Row, contents
from shardq.model.shard import Shard
from shardq.model.times import DELAY_MAX_MS, ceil_ms, iso
from shardq.records.ledger import CLOCK_AHEAD_MS
from shardq.records.stats import Totals
from shardq.stores.tables import STATS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.types import StructType

    from pyspark_shardq.options import Options
    from shardq.clock import Clock
    from shardq.lifecycle.home import Home
    from shardq.model.shard import Layout
    from shardq.records.register import Register

log = logging.getLogger(__name__)

_PLAIN: dict[str, tuple[str, ...]] = {
    "body": ("string", "binary"),
    "due": ("timestamp",),
    "id": ("string",),
    "priority": ("tinyint", "smallint", "int", "bigint"),
    "group": ("string",),
    "headers": ("map<string,string>",),
    "entered": ("timestamp",),
}
"""The columns of a plain frame, and the types that each may have."""
_LAID_OUT: dict[str, tuple[str, ...]] = {
    "bin": ("int",),
    "lane": ("int",),
    "due_ms": ("bigint",),
    "name": ("string",),
    "body": ("binary",),
    "band": ("bigint",),
    "group": ("string",),
    "headers": ("string",),
}
"""The columns of a frame that `schedule` laid out. A plain frame has no column `bin`."""
_OPTIONAL = {"due", "id", "priority", "band", "group", "headers", "entered"}
_SORTED_ROWS = 500_000
_SORTED_BYTES = 256 << 20
"""The most rows and bytes of a plain partition, which is sorted at once: a repeated task gets its
rows in another order, and must make the same pieces."""
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"

_KEY = itemgetter(0, 1, 2)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The outcome of a task.

    Attributes:
        tally: The tally of its rows.
        query: The id of a stream's query; empty if it is no stream.
    """

    tally: WriteTally
    query: str = ""


def batch_writer(options: Options, schema: StructType) -> DataSourceArrowWriter:
    """The writer of a frame, which puts messages or carries out the act of the options."""
    if options.act in (REDRIVE, DELETE):
        from pyspark_shardq.acts import ActWriter

        return ActWriter(options, schema)
    return BatchWriter(options, schema)


class _Writer:
    """The base of both writers: made by the driver, pickled, and used in each task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._queue = options.queue
        self._columns = checked(schema)
        here = place(options.store, create=options.create)
        register = register_of(here, options.queue, create=options.create)
        if register.settings.keyed:
            raise UsageError(
                f"each message of queue {options.queue!r} has a key, and Spark writes none; put "
                f"them by put_many, or write into another queue."
            )
        self._lanes = register.settings.lanes_agreed
        self._as_of_us = max(here.clock.now_us(), register.settings.purged_before_us)

    def _open(self) -> tuple[Home, Register]:
        refuse_in_task(self._options.url)
        here = place(self._options.store)
        return here, register_of(here, self._queue)

    def _write_piece(self, pieces: Pieces, piece: WritePiece) -> WriteTally:
        return pieces.undo(piece) if self._options.act == UNDO else pieces.write(piece)

    def _write_at(self, pace: WritePace, pieces: Pieces, piece: WritePiece) -> WriteTally:
        pace.wait()
        tally = self._write_piece(pieces, piece)
        # A resumed run does not wait for rows that were written before.
        pace.spend(len(piece.rows) - tally.found)
        return tally


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a frame into a queue, each row once however often its task is tried.

    Args:
        options: The data source's options.
        schema: The frame's schema.

    Raises:
        UsageError: If the frame lacks a column, or one is unknown or of a wrong type.
        UnknownQueue: If there is no such queue.
        StoreError: If the store cannot be reached.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        # Read in the driver, so that all tasks and tries use the same.
        named = self._options.run
        self._run = SparkRun.new(self._as_of_us) if named is None else SparkRun.read(named)
        self._as_of_us = self._run.as_of_us
        _, register = self._open()
        self._run.check(self._queue, register.settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a partition."""
        here, register = self._open()
        layout = register.layout
        pieces = Pieces(here, register, self._run)
        pace = WritePace(here.clock, self._options.task_rate)
        total = WriteTally()
        if "bin" in self._columns:
            binned = laid_out_rows(iterator, layout, self._as_of_us)
        else:
            partition = _task().partitionId()
            reader = PlainRows(self._columns, layout, self._lanes, str(partition))
            reader.as_of_us = self._as_of_us
            binned = ((str(partition), rows) for rows in reader.sorted(iterator, here.clock))
        for piece in cut(binned, self._options.piece or PIECE_ROWS):
            self._look_again(here, register)
            total += self._write_at(pace, pieces, piece)
        return Written(total)

    def _look_again(self, here: Home, register: Register) -> None:
        """Reread the time and the queue's record, because a task with a rate may last for hours.

        Raises:
            UsageError: If a purge has reached the run. Rows written now would count as scheduled,
                but never be delivered.
        """
        try:
            here.clock.measure(here.store)
            register.refresh(force=True)
        except (StoreTimeout, StoreUnavailable) as error:
            # The task can go on with the old record; it repeats the calls that it needs.
            log.info("queue %s: its record is not read anew: %s", self._queue, error)
        if self._options.act == PUT:
            self._run.check(self._queue, register.settings)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Store the totals, and the outcome of the rows."""
        total = _sum(messages)
        here, register = self._open()
        if self._options.act == UNDO:
            self._count_done(here, register, len(messages))
        else:
            totals = Totals(put=total.rows, late_repaired=total.late)
            runs.write_totals(here.store, register, self._run, totals)
        if self._options.report is not None:
            entry = self._run.entry(self._queue, self._options.report)
            runs.agreed(here.store, entry, total.to_json())

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Store the totals of the rows written so far: they are live, even if never resumed."""
        try:
            self._count_done(*self._open(), len(messages))
        except StoreError as error:
            # The error of the write is raised, not this one.
            log.warning("totals of run %s are missing: %s", self._run.id, error)

    def _count_done(self, here: Home, register: Register, tasks: int) -> None:
        """Store the totals of the pieces that have lines, whichever try wrote them."""
        header = runs.line_of(here.store, self._run.entry(self._queue, PLAN)).says or {}
        # In a plain frame each partition is a bin.
        bins = header.get("bins", tasks)
        written, undone = (
            PiecesDone(here.store, self._queue, self._run, bins, before).tally()
            for before in ("", UNDO_BEFORE)
        )
        runs.write_totals(here.store, register, self._run, Totals(put=written.rows))
        if undone.cancelled:
            totals = Totals(cancelled=undone.cancelled)
            runs.write_totals(here.store, register, self._run, totals, suffix="-undone")


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. A repeated micro-batch finds its rows written.

    A row's birth is its own time, `entered`, so that it has the same id in each try.

    Args:
        options: The data source's options.
        schema: The stream's schema.

    Raises:
        UsageError: As for a frame, or if there is no column `entered`.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if "entered" not in self._columns:
            raise UsageError(
                "a stream into shardq needs a column entered, the time of each row, which stays "
                "the same when a micro-batch is written again: current_timestamp() does, and so "
                "does an event's own time."
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a partition of a micro-batch."""
        here, register = self._open()
        context = _task()
        query = context.getLocalProperty(_QUERY_ID) or ""
        batch = context.getLocalProperty(_BATCH_ID) or ""
        name = f"{batch}/{context.partitionId()}"
        reader = PlainRows(self._columns, register.layout, self._lanes, name)
        reader.purged_before_us = register.settings.purged_before_us
        pace = WritePace(here.clock, self._options.task_rate)
        total = WriteTally()
        binned = ((name, rows) for rows in reader.sorted(iterator, here.clock))
        for piece in cut(binned, self._options.piece or PIECE_ROWS):
            # A stream has no time of its own; its rows have.
            born_us = min(ids.birth_us(row.id) for row in piece.rows)
            total += self._write_at(pace, Pieces(here, register, SparkRun(query, born_us)), piece)
        if reader.purged:
            log.warning(
                "queue %s: %d rows of a stream left out, which a purge has reached",
                self._queue,
                reader.purged,
            )
        return Written(total + WriteTally(purged=reader.purged), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Add a micro-batch to the totals of this hour, unless it was counted before."""
        told = [one for one in messages if isinstance(one, Written)]
        total = _sum(messages)
        if not told or not total.rows:
            return
        here, register = self._open()
        member = f"spark-{told[0].query}"
        hour = register.layout.hour_of(here.clock.now_ms())
        totals = here.store.notes(STATS, (register.totals_key,))
        stored = [
            (minute, json.loads(text))
            for (minute, whose), text in totals.items()
            if whose == member
        ]
        if any(counts.get("batch", -1) >= batchId for _, counts in stored):
            return
        counts = dict(stored).get(hour, {})
        put = counts.get("put", 0) + total.rows
        late = counts.get("late_repaired", 0) + total.late
        says = {"put": put, "late_repaired": late, "batch": batchId}
        here.store.note(STATS, (register.totals_key,), {(hour, member): json.dumps(says)})


def _task() -> TaskContext:
    """The Spark task that this process runs."""
    context = TaskContext.get()
    if context is None:
        raise UsageError("rows are written in tasks of Spark alone.")
    return context


def _sum(messages: Sequence[WriterCommitMessage | None]) -> WriteTally:
    return sum((one.tally for one in messages if isinstance(one, Written)), WriteTally())


def checked(schema: StructType) -> tuple[str, ...]:
    """The names of a frame's columns in the queue's spelling, if all of them can be written.

    As in Spark, upper and lower case are the same.

    Raises:
        UsageError: If one is missing, unknown or of a wrong type.
    """
    names_of = [field.name.lower() for field in schema.fields]
    found = {name: one.dataType.simpleString() for name, one in zip(names_of, schema, strict=True)}
    known = _LAID_OUT if "bin" in found else _PLAIN
    for name, (*types,) in known.items():
        if name not in found and name not in _OPTIONAL:
            raise UsageError(
                f"the frame has no column {name!r}; it needs {name}, of type {' or '.join(types)}."
            )
    for name, type_name in found.items():
        if name not in known:
            raise UsageError(
                f"the frame has a column {shown(name)}, which a queue has not; select those of "
                f"{', '.join(known)} that it has."
            )
        if type_name == "timestamp_ntz":
            raise UsageError(
                f"column {name!r} is a time without a zone, timestamp_ntz; cast it to timestamp, "
                f"which takes it for one of the session's zone."
            )
        if type_name not in known[name]:
            raise UsageError(
                f"column {name!r} is {type_name}; it must be {' or '.join(known[name])}."
            )
    if len(found) < len(schema.fields):
        raise UsageError(f"two columns of the frame have one name: {schema.fieldNames()}.")
    return tuple(names_of)


def cut(binned: Iterable[tuple[str, list[Row]]], size: int) -> Iterator[WritePiece]:
    """The pieces of bins whose rows come in order, one bin after the other."""
    cutter, name = Cutter("", size), ""
    for one, rows in binned:
        if one != name:
            yield from cutter.end()
            cutter, name = Cutter(one, size), one
        yield from cutter.add(rows)
    yield from cutter.end()


def laid_out_rows(
    batches: Iterable[pa.RecordBatch], layout: Layout, as_of_us: int
) -> Iterator[tuple[str, list[Row]]]:
    """Bins and rows of a frame that `schedule` laid out; takes 2 us a row."""
    queue, minute_ms = layout.queue, layout.minute_ms
    shard = Shard(queue, -1, -1)
    for batch in batches:
        columns = dict(zip(batch.schema.names, map(_listed, batch.columns), strict=True))
        shards = []
        dues = columns["due_ms"]
        for due_ms, lane in zip(dues, columns["lane"], strict=True):
            minute = due_ms // minute_ms
            if minute != shard.minute or lane != shard.lane:
                shard = Shard(queue, minute, lane)
            shards.append(shard)
        named, groups = columns["name"], columns.get("group", repeat(None))
        bands = columns.get("band", repeat(0))
        fixing = map(name_text, named, dues, bands, groups)
        priorities: Iterable[int] = repeat(0)
        if "group" in columns and "band" in columns:
            pairs = zip(bands, groups, strict=True)
            priorities = [0 if group is None else band for band, group in pairs]
        values = zip(
            shards,
            dues,
            [ids.fixed(as_of_us, text) for text in fixing],
            columns["body"],
            columns.get("headers", repeat(None)),
            repeat(0),
            repeat(None),
            named,
            repeat(None),
            groups,
            *repeat(repeat(None), 7),
            priorities,
            repeat(0),
            strict=False,
        )
        rows = list(map(Row._make, values))
        for one, numbered in groupby(zip(columns["bin"], rows, strict=True), key=itemgetter(0)):
            yield str(one), [row for _, row in numbered]


def _listed(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        # Convert to integers: datetimes would take 100 times as long.
        column = column.cast(pa.int64())
    return list(column.to_pylist())


class PlainRows:
    """Makes rows of a frame whose columns are those of a message.

    Args:
        columns: The names of its columns.
        layout: Where the queue's rows live.
        lanes: Lanes to write, read before the first try, so that all tries use the same.
        where: The partition, and the micro-batch of a stream.

    Attributes:
        as_of_us: When rows without a time of entry enter; None: each row has one, maybe past.
        purged_before_us: Rows that entered before this are left out.
        purged: How many rows were left out.
    """

    def __init__(self, columns: Sequence[str], layout: Layout, lanes: int, where: str) -> None:
        self._columns = columns
        self._layout = replace(layout, lanes_written=lanes)
        self._where = where
        self._read = 0
        self._alike: Counter[bytes] = Counter()
        self.as_of_us: int | None = None
        self.purged_before_us = 0
        self.purged = 0

    def sorted(self, batches: Iterable[pa.RecordBatch], clock: Clock) -> Iterator[list[Row]]:
        """The rows of a partition in the order of their shards, dues and ids.

        Raises:
            UsageError: If a row cannot be put. No row of its partition was written then.
        """
        rows: list[Row] = []
        size = 0
        for batch in batches:
            rows += self._rows(batch, clock.now_us())
            size += batch.nbytes
            if len(rows) >= _SORTED_ROWS or size >= _SORTED_BYTES:
                rows.sort(key=_KEY)
                yield rows
                rows, size = [], 0
        rows.sort(key=_KEY)
        yield rows

    def _rows(self, batch: pa.RecordBatch, now_us: int) -> Iterator[Row]:
        columns = dict(zip(self._columns, map(_listed, batch.columns), strict=True))
        absent = [_ABSENT] * batch.num_rows
        for values in zip(*(columns.get(name, absent) for name in _PLAIN), strict=True):
            self._read += 1
            try:
                row = self._row(now_us, *values)
            except UsageError as error:
                raise type(error)(
                    f"row {self._read:,} of partition {self._where} cannot be put: {error}"
                ) from error
            if ids.birth_us(row.id) < self.purged_before_us:
                self.purged += 1
            else:
                yield row

    def _row(
        self,
        now_us: int,
        body: Any,
        due_us: Any,
        name: Any,
        priority: Any,
        group: Any,
        headers: Any,
        entered_us: Any,
    ) -> Row:
        layout = self._layout
        if entered_us is _ABSENT:
            entered_us = self.as_of_us
        if entered_us is None or not 0 <= entered_us <= now_us + CLOCK_AHEAD_MS * 1_000:
            raise BadTime("entered must be a time that is not ahead of now.")
        due_ms = self._due_ms(entered_us, due_us)
        band = 0 if priority is _ABSENT else priority
        if band is None or not 0 <= band < layout.bands:
            raise BadSetting(f"priority must be 0 to {layout.bands - 1}, not {shown(band)}.")
        group = None if group is _ABSENT or group is None else names.label(group, what="group")
        if body is None:
            raise BadBody("body is null.")
        is_headed = headers is not _ABSENT and headers is not None
        stored, text = contents(body, dict(headers) if is_headed else None)
        if name is _ABSENT:
            name, fixing = None, self._fixing(stored, due_us, band, group, text)
        else:
            fixing = name_text(names.label(name, what="id"), due_ms, band, group)
        if group is None:
            lane = layout.named_lane(name or fixing, band)
        else:
            lane = layout.group_lane(group)
        row_id = ids.fixed(entered_us, fixing)
        shard = layout.shard(due_ms, lane)
        priority = 0 if group is None else band
        return Row(shard, due_ms, row_id, stored, text, name=name, group=group, priority=priority)

    def _due_ms(self, entered_us: int, due_us: Any) -> int:
        if due_us is _ABSENT:
            return ceil_ms(entered_us)
        if due_us is None:
            raise BadTime("due is null.")
        due_ms = ceil_ms(due_us)
        if not 0 <= due_ms <= entered_us // 1_000 + DELAY_MAX_MS:
            raise BadTime(f"due {shown(due_us)} us is before 1970 or more than 100 years away.")
        if self.as_of_us is not None and due_us < self.as_of_us:
            raise BadTime(f"due {iso(due_ms)} is past.")
        return due_ms

    def _fixing(self, *content: object) -> str:
        """The text that fixes the id of a row without one: content, and number among equals."""
        digest = hashlib.sha1(repr(content).encode(), usedforsecurity=False).digest()
        number = self._alike[digest]
        self._alike[digest] += 1
        return f"{digest.hex()}\0{number}\0{self._where}"


class _Absent:
    """Stands for the values of a column that the frame lacks."""

    def __repr__(self) -> str:
        return "absent"


_ABSENT: Any = _Absent()
