"""Writes the rows of a bin in pieces, each once, however often a task is tried.

```
 look for the piece's line ── there ─► the same checksum? count it, write nothing
   │ not there
 when was it begun? ── never ─► record now; of several times the earliest stands
   │
 rows due before that are placed at that time, so that every try makes the same rows
   │
 insert once: rows, the history's marks, the line ─► repair what came late
```

On SQLite all of the insert is one transaction, and a piece without a line was not written at all.
On Cassandra a repeated insert is the same write, and a row that was deleted stays deleted, but
not for ever: so a piece that was begun over an hour ago writes nothing that may have ended since.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from bisect import bisect_right
from itertools import accumulate
from operator import attrgetter, eq, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pyspark_shardq import runs
from pyspark_shardq.runs import DOUBT_MS, LINE_TTL_MS, UNDONE, PartLine
from shardq.errors import StoreTimeout, StoreUnavailable, UsageError
from shardq.lifecycle.home import QueueHome
from shardq.model.message import Row
from shardq.model.times import ceil_ms
from shardq.records.ledger import End, entry_of, put_of
from shardq.stores.store import Mark, WriteOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark_shardq.runs import SparkRun
    from shardq.clock import Clock
    from shardq.lifecycle.home import Home
    from shardq.model.shard import Layout
    from shardq.records.register import Register
    from shardq.stores.store import Entry, Store

log = logging.getLogger(__name__)

PIECE_ROWS = 10_000
"""Most rows of a piece. SQLite writes them in 0.1 s, for which consumers wait."""
PIECE_BYTES = 8 << 20
UNDO_BEFORE = "undo/"
"""The prefix of the line that says how much of a piece was taken back."""
_AGREE_MS = 500
"""The time in which all processes that begin a piece at once have recorded it."""
_REPEATS = 4
_REPEAT_S = 0.5
DOUBTFUL_IDS = 100
"""The most ids of doubtful messages that are named."""

_ID = attrgetter("id")
_KEY = itemgetter(0, 1, 2)
_CONTENT = itemgetter(3, 4)


class WritePiece(NamedTuple):
    """The rows that are written at once.

    Attributes:
        bin: The bin's name.
        number: Which of its bin's pieces it is, from 0.
        rows: As they were asked for, ordered by shard and due, each id once.
        duplicates: Rows that were the same message as one of these.
    """

    bin: str
    number: int
    rows: list[Row]
    duplicates: int

    @property
    def part(self) -> str:
        """The name of its line."""
        return f"{self.bin}/{self.number}"


class WriteTally(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of rows, by what became of them.

    Attributes:
        rows: Rows that are written, by this try or one before.
        found: Those of them that were written before.
        duplicates: Rows that were the same message as another.
        bytes: Of the bodies.
        late: Rows that were written too late for their minute, and moved to now.
        cancelled: Rows that were deleted again.
        purged: Rows that a purge had reached before they were written.
        doubtful: Rows that may have been written, delivered and finished, and were left alone.
        doubtful_ids: The ids of their messages, as many as fit.
    """

    rows: int = 0
    found: int = 0
    duplicates: int = 0
    bytes: int = 0
    late: int = 0
    cancelled: int = 0
    purged: int = 0
    doubtful: int = 0
    doubtful_ids: tuple[str, ...] = ()

    def __add__(self, other: WriteTally) -> WriteTally:
        """Both together."""
        names = self.__struct_fields__
        summed = {name: getattr(self, name) + getattr(other, name) for name in names}
        summed["doubtful_ids"] = summed["doubtful_ids"][:DOUBTFUL_IDS]
        return WriteTally(**summed)

    def to_json(self) -> dict[str, Any]:
        """The tally as plain values; zeros and empty ones are left out."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    @classmethod
    def of(cls, values: dict[str, Any]) -> WriteTally:
        """A tally made of plain values; ignores values of other names."""
        return msgspec.convert(values, cls)


class Cutter:
    """Cuts the rows of a bin into pieces, the same however they come in.

    Args:
        name: The bin's name.
        size: Most rows of a piece.
    """

    def __init__(self, name: str, size: int = PIECE_ROWS) -> None:
        self._name = name
        self._size = size
        self._rows: list[Row] = []
        self._bytes = 0
        self._duplicates = 0
        self._number = 0

    def add(self, rows: Sequence[Row]) -> Iterator[WritePiece]:
        """The pieces that are full with these rows, which follow those before in order."""
        self._join(rows)
        # The last row stays: the next one may be the same message.
        while len(self._rows) > self._size or self._is_large_without_last():
            yield self._cut()

    def end(self) -> Iterator[WritePiece]:
        """The pieces of what is left."""
        while self._rows:
            yield self._cut()

    def _join(self, rows: Sequence[Row]) -> None:
        joined = self._rows
        self._bytes += sum(len(row.body) for row in rows)
        ids = list(map(_ID, joined[-1:])) + list(map(_ID, rows))
        if not any(map(eq, ids, ids[1:])):
            joined += rows
            return
        for row in rows:
            last = joined[-1] if joined else None
            if last is None or last.id != row.id:
                joined.append(row)
                continue
            self._duplicates += 1
            # Whichever came first, the same one stays.
            joined[-1] = min(last, row, key=lambda one: (one.body, one.headers or ""))
            self._bytes += len(joined[-1].body) - len(last.body) - len(row.body)

    def _is_large_without_last(self) -> bool:
        return self._bytes > PIECE_BYTES and self._bytes - len(self._rows[-1].body) > PIECE_BYTES

    def _cut(self) -> WritePiece:
        rows = self._rows[: self._size]
        sizes = list(accumulate(len(row.body) for row in rows))
        if sizes[-1] > PIECE_BYTES:
            rows = rows[: max(1, bisect_right(sizes, PIECE_BYTES))]
        del self._rows[: len(rows)]
        self._bytes -= sizes[len(rows) - 1]
        piece = WritePiece(self._name, self._number, rows, self._duplicates)
        self._number, self._duplicates = self._number + 1, 0
        return piece


class WritePace:
    """Holds a rate: a piece waits until those that were written before have taken their time.

    Args:
        rate: Rows a second; None: as fast as it goes.
    """

    def __init__(self, clock: Clock, rate: float | None) -> None:
        self._clock = clock
        self._rate = rate
        self._free_us = clock.boot_us()

    def wait(self) -> None:
        """Wait until the next rows may go. What was not used for long is not made up for."""
        now_us = self._clock.boot_us()
        if self._free_us > now_us:
            self._clock.sleep((self._free_us - now_us) / 1e6)
        self._free_us = max(self._free_us, now_us)

    def spend(self, rows: int) -> None:
        """Count rows that have gone since the wait."""
        if self._rate is not None:
            self._free_us += round(rows / self._rate * 1e6)


class Pieces:
    """Writes the pieces of a run, and takes them back.

    Args:
        here: The store.
        register: The queue's record.
        run: The run.
    """

    def __init__(self, here: Home, register: Register, run: SparkRun) -> None:
        self._store = here.store
        self._clock = here.clock
        self._register = register
        self._run = run
        home = QueueHome(here, register, f"spark-{run.id}")
        self._settler = home.settler
        self._placed: list[Row] = []
        """The rows that the present piece may have placed, and may have to repair."""

    def write(self, piece: WritePiece) -> WriteTally:
        """Write a piece, where it is not written; again, for a while, where the store fails.

        Raises:
            UsageError: If another piece of this name was written, or the run was undone.
            StoreError: Some of it may be written on Cassandra; writing it again is safe.
        """
        self._placed = []
        return self._repeated(self._write, piece)

    def undo(self, piece: WritePiece) -> WriteTally:
        """Delete those rows of a piece that are where it put them; recorded as cancelled.

        Raises:
            UsageError: If another piece of this name was written.
        """
        return self._repeated(self._undo, piece)

    def _repeated(self, work: Callable[[WritePiece], WriteTally], piece: WritePiece) -> WriteTally:
        """Do it, and again where the store fails: a task, and Spark's local mode, has one try."""
        for number in range(_REPEATS):
            try:
                return work(piece)
            except (StoreTimeout, StoreUnavailable) as error:
                log.warning("run %s, piece %s again: %s", self._run.id, piece.part, error)
                self._clock.sleep(_REPEAT_S * 2**number)
        return work(piece)

    def _write(self, piece: WritePiece) -> WriteTally:
        entry, undone = self._entry(piece.part), self._entry(UNDONE)
        checksum = checksum_of(piece.rows)
        known = runs.lines(self._store, [entry, undone])
        if undone in known:
            raise self._undone(piece)
        line = known.get(entry, PartLine())
        if line.says is not None:
            return self._written_before(piece, checksum, line.says)
        self._register.use_lanes_of(row.shard for row in piece.rows)
        at_ms = self._begin(entry, line, piece.rows)
        rows = raised(piece.rows, at_ms, self._register.layout)
        doubtful: list[Row] = []
        if not self._store.is_local and self._clock.now_ms() - at_ms > DOUBT_MS:
            rows, doubtful = self._in_doubt(rows)
        tally = WriteTally(
            rows=len(piece.rows) - len(doubtful),
            duplicates=piece.duplicates,
            bytes=sum(len(row.body) for row in piece.rows),
            doubtful=len(doubtful),
            doubtful_ids=tuple(row.message_id for row in doubtful[:DOUBTFUL_IDS]),
        )
        says = {**tally.to_json(), "checksum": checksum, "at": at_ms}
        self._placed = rows
        before = self._insert(runs.mark_of(entry, says), rows)
        if before is not None:
            return self._written_before(piece, checksum, PartLine.of(before).says or {})
        if runs.line_of(self._store, undone).says is not None:
            raise self._undone(piece)
        return tally + WriteTally(late=self._repair())

    def _undo(self, piece: WritePiece) -> WriteTally:
        entry, undone = self._entry(piece.part), self._entry(UNDO_BEFORE + piece.part)
        line = runs.line_of(self._store, entry)
        if line.says is not None:
            self._check(piece, checksum_of(piece.rows), line.says)
        at_ms = line.begun_ms if line.says is None else line.says["at"]
        if at_ms is None:
            return WriteTally(duplicates=piece.duplicates)
        rows = raised(piece.rows, at_ms, self._register.layout)
        there = [
            row
            for row in self._store.find([row.position for row in rows])
            if row.attempt == 0 and row.claim is None
        ]
        # Written before the first is deleted, so that each try reports the same.
        tally = WriteTally(cancelled=len(there), duplicates=piece.duplicates)
        told = runs.agreed(self._store, undone, tally.to_json())
        self._settler.end(there, End.CANCELLED)
        return WriteTally.of(told)

    def _entry(self, part: str) -> Entry:
        return self._run.entry(self._register.name, part)

    def _undone(self, piece: WritePiece) -> UsageError:
        if self._placed:
            # The run may have been taken back before these rows were written.
            self._undo(piece)
        return UsageError(
            f"run {self._run.id} was unscheduled, and what it wrote stays deleted; schedule the "
            f"rows as a new run."
        )

    def _begin(self, entry: Entry, line: PartLine, rows: Sequence[Row]) -> int:
        """The time at which the piece was begun, epoch milliseconds: the same in each try."""
        now_ms = ceil_ms(self._clock.now_us())
        if self._store.is_local:
            # Without a line nothing was written, so tries may differ in their time.
            return now_ms
        if line.begun_ms is not None:
            return line.begun_ms
        agreed_ms = now_ms + _AGREE_MS
        if min(row.due_ms for row in rows) > agreed_ms:
            # No row is placed by it, so tries may differ.
            runs.begin(self._store, entry, now_ms)
            return now_ms
        runs.begin(self._store, entry, agreed_ms)
        self._clock.sleep(_AGREE_MS / 1_000)
        begun_ms = runs.line_of(self._store, entry).begun_ms
        return agreed_ms if begun_ms is None else begun_ms

    def _insert(self, line: Mark, rows: list[Row]) -> Mark | None:
        history_ms = self._register.settings.history_ms
        marks: list[Mark] = []
        if history_ms:
            marks = [put_of(row) for row in rows]
        return self._store.insert(rows, WriteOnce(line, LINE_TTL_MS, marks, history_ms))

    def _in_doubt(self, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        """Divide rows into those that can be written, and those in doubt.

        A row that is due may have been written, delivered and finished, and its tombstone is not
        kept for ever. If the row is stored, or the history has it, it was written.
        """
        now_ms = self._clock.now_ms()
        known: set[bytes] = set()
        ended: set[bytes] = set()
        if self._register.settings.history_ms:
            for mark in self._store.recorded([entry_of(row) for row in rows]):
                known.add(mark.entry.id)
                if mark.fate is not None:
                    ended.add(mark.entry.id)
        due = [row for row in rows if row.due_ms <= now_ms]
        known |= {row.id for row in self._store.find([row.position for row in due])}
        to_write = [row for row in rows if row.due_ms > now_ms and row.id not in ended]
        return to_write, [row for row in due if row.id not in known]

    def _repair(self) -> int:
        """Move those to now that are too late for their minute's readers; returns how many."""
        rows, layout = self._placed, self._register.layout
        if not rows or not layout.is_late(rows[0].shard.minute, self._clock.now_ms()):
            return 0
        return len(self._settler.repair(rows))

    def _written_before(self, piece: WritePiece, checksum: str, says: dict[str, Any]) -> WriteTally:
        self._check(piece, checksum, says)
        found = WriteTally(found=len(piece.rows) - says.get("doubtful", 0), late=self._repair())
        return WriteTally.of(says) + found

    def _check(self, piece: WritePiece, checksum: str, says: dict[str, Any]) -> None:
        if says.get("checksum") != checksum:
            raise UsageError(
                f"run {self._run.id} has written other rows, or in another order, as piece "
                f"{piece.part}: what it reads has changed since; schedule that as a new run."
            )


class PiecesDone:
    """The pieces of a run that are done: of each bin the first ones, in order.

    Args:
        store: Where they are.
        queue: The run's.
        run: The run.
        bins: How many bins it has.
        before: What the name of a piece begins with.
    """

    def __init__(
        self, store: Store, queue: str, run: SparkRun, bins: int, before: str = ""
    ) -> None:
        self._store = store
        self._queue, self._run, self._before = queue, run, before
        self._next = dict.fromkeys(range(bins), 0)
        self._tally = WriteTally()

    def tally(self) -> WriteTally:
        """The tally of all finished pieces. Each call reads on from where the last one ended."""
        going = dict(self._next)
        while going:
            entries = {
                self._run.entry(self._queue, f"{self._before}{number}/{piece}"): number
                for number, piece in going.items()
            }
            found = runs.lines(self._store, entries)
            going = {}
            for entry, line in found.items():
                if line.says is not None:
                    number = entries[entry]
                    self._next[number] += 1
                    going[number] = self._next[number]
                    self._tally += WriteTally.of(line.says)
        return self._tally


def raised(rows: list[Row], at_ms: int, layout: Layout) -> list[Row]:
    """Rows whose dues are raised to a time; in order of their shards, dues and ids."""
    if not rows or min(row.due_ms for row in rows) >= at_ms:
        return rows
    made = [
        row
        if row.due_ms >= at_ms
        else row._replace(
            shard=layout.shard(at_ms, row.shard.lane),
            due_ms=at_ms,
            origin_ms=row.due_ms,
        )
        for row in rows
    ]
    made.sort(key=_KEY)
    return made


def checksum_of(rows: Sequence[Row]) -> str:
    """A checksum of rows: where, when and what they are."""
    digest = hashlib.sha1(usedforsecurity=False)
    digest.update(b"".join(map(_ID, rows)))
    numbers = array("q")
    for shard, due_ms, _, body, *_ in rows:
        numbers.extend((shard.lane, due_ms, len(body)))
    digest.update(numbers.tobytes())
    digest.update(b"".join(row.body for row in rows))
    for row in rows:
        if row.headers is not None or row.group is not None:
            digest.update(f"{row.headers!r}{row.group!r}".encode())
    return digest.hexdigest()[:20]
