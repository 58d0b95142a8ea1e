"""Redrives or deletes the dead messages that a frame names, each once in however many tries.

```
 driver   a frame of positions ─► parts, by a hash of the row id ─► a task takes some
 task     part ─► done? ── yes ─► nothing
                    │ no
                  look: how many of its rows are there ─► line: so many
                    │
                  look, act on what is there ─► line: done
```

The new row of a dead message follows from its old row and the run's time, so each try writes the
same row. SQLite moves a row in one transaction, if the old one exists. On Cassandra a tombstone
keeps a finished row deleted, but not for ever, so a part that was begun over an hour ago writes
nothing more.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_shardq import runs
from pyspark_shardq.options import DELETE, REDRIVE, refuse_in_task
from pyspark_shardq.pieces import DOUBTFUL_IDS, WriteTally
from pyspark_shardq.place import place, register_of
from pyspark_shardq.runs import DOUBT_MS, PLAN, SparkRun
from shardq.errors import UsageError
from shardq.lifecycle.home import QueueHome
from shardq.model import ids
from shardq.model.message import revived
from shardq.model.names import dead_queue
from shardq.model.shard import Position, Shard, spans
from shardq.model.times import ceil_ms
from shardq.records.ledger import End, entry_of
from shardq.records.stats import Totals
from shardq.stores.store import RowMove

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_shardq.options import Options
    from shardq.lifecycle.home import Home
    from shardq.model.message import Row
    from shardq.records.register import Register
    from shardq.stores.store import Entry

COLUMNS = {"part": "int", "minute": "bigint", "lane": "int", "due_ms": "bigint", "row_id": "binary"}
"""Columns of a frame that is acted on, with Spark's types: the part, and a dead row's position."""

_TOGETHER_ROWS = (10, 500)
"""Rows that are looked up and acted on at a time, in a transaction of SQLite of 30 ms at most."""
_TOGETHER_BYTES = 8 << 20
"""The most bytes of the bodies of these rows, which are in memory."""
_LATE_MS = 600_000
"""Two tries on Cassandra that begin a part at once may record different times. So a due depends on
that time only if the run was resumed this much later."""
_LINES = 10_000
_HASH_BITS = 32


@dataclass(frozen=True, slots=True)
class RunHeader:
    """The request of a run, as its header stores it: the first header of a run counts.

    Attributes:
        job: `redrive` or `delete`.
        rows: Rows that the frame named.
        until_ms: Messages that died after this are not the run's, epoch milliseconds.
        parts: The number of parts of the rows.
        start_ms: The first due of messages that are put back, epoch milliseconds.
        window_ms: The time from the first due to the last.
        lanes: The lanes of a band over which messages are spread.
    """

    job: str
    rows: int
    until_ms: int
    parts: int
    start_ms: int
    window_ms: int
    lanes: int

    @classmethod
    def of(cls, says: Mapping[str, Any]) -> RunHeader:
        """The plan of a header.

        Raises:
            UsageError: If it is that of another job.
        """
        if says.get("job") not in (REDRIVE, DELETE):
            raise UsageError(
                f"the run is a {says.get('job')}, not one on dead messages; leave the run out to "
                f"begin one."
            )
        return cls(**says)


def line_of(tally: WriteTally, **more: Any) -> dict[str, Any]:
    """The content of a line: rows that were put back or deleted, by this try or an earlier one.

    Rows in doubt stay where they are: those that may have been put back over an hour ago and
    finished since, and those whose keys other messages have now.
    """
    # First, and padded: of two lines written at once Cassandra keeps the larger text.
    return {"acted": f"{tally.rows:012}", **tally.to_json(), **more}


class PartActor:
    """Does the parts of a run.

    Args:
        here: The store.
        register: The record of the queue that the messages died in.
        dead: The record of its dead-letter queue.
        run: The run.
        plan: The request of the run.

    Raises:
        UsageError: If the queue that they go back to was purged or dropped since the run began.
    """

    def __init__(
        self, here: Home, register: Register, dead: Register, run: SparkRun, plan: RunHeader
    ) -> None:
        if plan.job == REDRIVE:
            run.check(register.name, register.settings)
        self._store = here.store
        self._clock = here.clock
        self._register = register
        self._dead = dead
        self._run = run
        self._plan = plan
        self._layout = replace(register.layout, lanes_written=plan.lanes)
        self._member = f"spark-{run.id}"
        self._settler = QueueHome(here, register, self._member).settler
        self._dead_settler = QueueHome(here, dead, self._member).settler
        dead.know(register)

    def do(self, part: int, positions: Sequence[Position]) -> WriteTally:
        """Act on the existing rows of a part, unless the part is done.

        Args:
            part: Its number.
            positions: The rows that the frame names: all of the part's, each once.

        Raises:
            StoreError: Some of it may be done; doing it again is safe.
        """
        begun, done = self._entry(f"{part}"), self._entry(f"{part}/done")
        known = runs.lines(self._store, [begun, done])
        if done in known:
            return WriteTally.of(known[done].says or {})
        if begun in known:
            line = known[begun].says or {}
        else:
            # Counted before any try acts: rows that are gone later are those the run has acted on.
            count = sum(len(rows) for rows in self._there(positions))
            says = line_of(WriteTally(count), at=self._clock.now_ms())
            line = runs.agreed(self._store, begun, says)
        at_ms = line["at"]
        is_old = not self._store.is_local and self._clock.now_ms() - at_ms > DOUBT_MS
        doubtful: list[Row] = []
        for rows in self._there(positions):
            if self._plan.job == DELETE:
                self._delete(rows)
            elif is_old:
                doubtful += self._put_back_before(rows, at_ms)
            else:
                # On SQLite a row is moved once, so tries need not agree on the new row.
                is_once = self._store.is_local
                now_ms = ceil_ms(self._clock.now_us()) if is_once else at_ms
                doubtful += self._put_back(rows, now_ms)
        told = tuple(row.message_id for row in doubtful[:DOUBTFUL_IDS])
        count = WriteTally.of(line).rows - len(doubtful)
        tally = WriteTally(count, doubtful=len(doubtful), doubtful_ids=told)
        return WriteTally.of(runs.agreed(self._store, done, line_of(tally)))

    def total(self, *, is_over: bool) -> WriteTally:
        """The sum of the parts' tallies.

        Args:
            is_over: True if every row that the frame names was acted on. Then a part that was begun
                counts as done, even without the line that says so: its task died just before it
                wrote the line, and the frame of a resumed run names none of its rows.
        """
        total = WriteTally()
        for some in spans(range(self._plan.parts), _LINES // 2):
            done = {part: self._entry(f"{part}/done") for part in some}
            begun = {part: self._entry(f"{part}") for part in some if is_over}
            known = runs.lines(self._store, [*done.values(), *begun.values()])
            for part in some:
                line = known.get(done[part]) or known.get(begun.get(part, done[part]))
                if line is not None:
                    total += WriteTally.of(line.says or {})
        return total

    def count(self, *, is_over: bool) -> None:
        """Store the totals of the run. Idempotent: every try stores the same."""
        rows = self.total(is_over=is_over).rows
        if not rows:
            return
        if self._plan.job == DELETE:
            runs.write_totals(self._store, self._dead, self._run, Totals(cancelled=rows))
        else:
            runs.write_totals(self._store, self._register, self._run, Totals(put=rows))
            runs.write_totals(self._store, self._dead, self._run, Totals(forwarded=rows))

    def new_row(self, row: Row, at_ms: int = 0) -> Row:
        """The row that a dead message has once it is put back: it follows from the old one's id.

        Args:
            at_ms: When its part was begun, epoch milliseconds. A due long before this is raised to
                it, because no consumer reads the earlier minute any more.
        """
        plan, layout = self._plan, self._layout
        share_ms = zlib.crc32(row.id) * plan.window_ms >> _HASH_BITS
        due_ms = plan.start_ms + share_ms
        if at_ms - due_ms > (0 if self._store.is_local else _LATE_MS):
            due_ms = at_ms
        name = row.id.hex()
        index = layout.index_of(layout.named_lane(name, 0))
        row_id = ids.fixed(self._run.as_of_us, name)
        return revived(row, layout, due_ms, row_id, index=index)

    def _entry(self, part: str) -> Entry:
        return self._run.entry(self._register.name, part)

    def _there(self, positions: Sequence[Position]) -> Iterator[list[Row]]:
        """The stored rows among these that the run acts on, a few at a time."""
        from_us, until_us = self._dead.settings.purged_before_us, self._plan.until_ms * 1_000
        start, count = 0, _TOGETHER_ROWS[0]
        while start < len(positions):
            found = self._store.find(positions[start : start + count])
            start += count
            size = sum(row.size_bytes for row in found)
            if size < _TOGETHER_BYTES // 4:
                count = min(count * 4, _TOGETHER_ROWS[1])
            elif size > _TOGETHER_BYTES:
                count = max(count // 2, _TOGETHER_ROWS[0])
            rows = [row for row in found if from_us <= row.checked().entered_us < until_us]
            # A try that crashed has put some of them back already.
            if rows := self._dead_settler.without_ended(rows):
                yield rows

    def _delete(self, rows: Sequence[Row]) -> None:
        self._dead_settler.end(rows, End.CANCELLED)

    def _put_back(self, rows: list[Row], at_ms: int) -> list[Row]:
        """Put rows back; returns those that stay because other messages have their keys."""
        moves = [RowMove(row.position, self.new_row(row, at_ms)) for row in rows]
        self._register.use_lanes_of(move.new.shard for move in moves)
        keyed = [move for move in moves if move.new.key is not None]
        if keyed:
            _, left = self._dead_settler.take_along(keyed, self._settler.keys)
            taken = {move.old for move in left}
            kept = [row for row in rows if row.position in taken]
            plain = [row for row in rows if row.key is None]
            return kept + (self._put_back(plain, at_ms) if plain else [])
        self._dead_settler.carry_out(moves)
        return []

    def _put_back_before(self, rows: list[Row], at_ms: int) -> list[Row]:
        """The rows that may have been put back and finished since.

        If the new row is stored, or the history has it, the old row is ended here.
        """
        new = {row.id: self.new_row(row, at_ms) for row in rows}
        known = {row.id for row in self._store.find([row.position for row in new.values()])}
        if self._register.settings.history_ms:
            known |= {mark.entry.id for mark in self._store.recorded(map(entry_of, new.values()))}
        ended = [row for row in rows if new[row.id].id in known]
        self._dead_settler.finish(ended, End.FORWARDED)
        return [row for row in rows if new[row.id].id not in known]


class Acted(WriterCommitMessage):
    """The message of a task that it has ended. The lines of its parts hold the outcome."""


class ActWriter(DataSourceArrowWriter):
    """Acts on the rows that a frame names, by the plan of a run.

    Args:
        options: The options of the data source; `run` names a planned run.
        schema: The schema of the frame: `COLUMNS`, in any order.

    Raises:
        UsageError: If the run has no plan, or the frame lacks a column.
        UnknownQueue: If there is no such queue.
        StoreError: If the store cannot be reached.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        if types != COLUMNS:
            raise UsageError(
                f"what is acted on has the columns {types}, not {COLUMNS}; call `redrive` or "
                f"`purge` of a queue that pyspark_shardq.connect gives, which makes them."
            )
        self._options = options
        self._queue = options.queue
        self._run = SparkRun.read(options.run or "")
        plan = planned(place(options.store), self._queue, self._run)
        if plan is None:
            raise UsageError(f"run {self._run.id} of queue {self._queue!r} was never planned.")
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Acted:
        """Act on the rows of a partition, part by part."""
        actor = self._actor()
        for part, positions in parts(iterator, dead_queue(self._queue)):
            actor.do(part, positions)
        return Acted()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Store the totals of the run."""
        self._actor().count(is_over=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Store the totals of the rows done so far; the run can be resumed."""
        self._actor().count(is_over=False)

    def _actor(self) -> PartActor:
        refuse_in_task(self._options.url)
        return actor_of(place(self._options.store), self._queue, self._run, self._plan)


def actor_of(here: Home, queue: str, run: SparkRun, plan: RunHeader) -> PartActor:
    """The actor that does a run on the dead messages of a queue.

    Raises:
        UnknownQueue: If there is no such queue, or no message of it has died.
    """
    register, dead = register_of(here, queue), register_of(here, dead_queue(queue))
    return PartActor(here, register, dead, run, plan)


def planned(here: Home, queue: str, run: SparkRun) -> RunHeader | None:
    """The plan of a run; None if it has none."""
    says = runs.line_of(here.store, run.entry(queue, PLAN)).says
    return None if says is None else RunHeader.of(says)


def parts(batches: Iterable[pa.RecordBatch], queue: str) -> Iterator[tuple[int, list[Position]]]:
    """Group the positions of rows, which are sorted by part, into parts."""
    names = list(COLUMNS)
    rows = (
        values
        for batch in batches
        for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    )
    for part, some in groupby(rows, itemgetter(0)):
        yield (
            part,
            [
                Position(Shard(queue, minute, lane), due_ms, row_id)
                for _, minute, lane, due_ms, row_id in some
            ],
        )


def plan_run(here: Home, register: Register, run: SparkRun, plan: RunHeader) -> RunHeader:
    """Write a run's header, or read the existing one.

    Raises:
        UsageError: If the run was of another job, or the queue was purged or dropped since.
    """
    run.check(register.name, register.settings)
    agreed = RunHeader.of(runs.agreed(here.store, run.entry(register.name, PLAN), asdict(plan)))
    if agreed.job != plan.job:
        raise UsageError(
            f"run {run.id} of queue {register.name!r} is a {agreed.job}, not a {plan.job}; leave "
            f"the run out to begin another."
        )
    return agreed
