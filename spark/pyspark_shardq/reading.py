"""Reads a queue's views in bins; each bin is a task.

```
partitions()   driver   shards ─► counted ─► hot ones cut ─► packed into even bins
read(bin)      task     pieces ─► store.read, some at a time ─► batches of 10,000 rows
```

Nothing is claimed, and consumers go on: what moves meanwhile may be read twice, or not at all.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_shardq import batches, cuts, views
from pyspark_shardq.bins import pack
from pyspark_shardq.bounds import FAR_MS, Bounds, narrowed
from pyspark_shardq.options import refuse_in_task
from pyspark_shardq.place import place, register_of
from shardq.errors import BadTime, UsageError, shown
from shardq.model import ids, names
from shardq.model.times import moment_or_ago_ms
from shardq.records.ledger import CLOCK_AHEAD_MS, kept_for, span_of
from shardq.stores.store import MINUTE_US, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from pyspark_shardq.columns import Columns
    from pyspark_shardq.cuts import ReadPiece
    from pyspark_shardq.options import Options
    from shardq.model.message import Row
    from shardq.model.shard import Layout, Shard
    from shardq.records.register import Register
    from shardq.stores.store import Mark, Slice, Store

BATCH_ROWS = 10_000
"""Rows of an Arrow batch: with 1,000 each Spark takes a fifth longer."""
_BATCH_BYTES = 16 << 20
_PAGE_ROWS = (10, 2_000)
"""Rows of a page with bodies, each of up to 1 MiB."""
_PAGE_BYTES = 4 << 20
_TOGETHER_MAX = 256
"""The most slices in one call to the store."""
_BIN_ROWS = 2_000
"""The fewest rows of a task, which takes 0.1 s before it reads."""
_PIECES_A_BIN = 4
"""A shard that holds more than this part of a bin is cut: bins differ by at most a piece."""
_BIN_SHARDS = 500
_OBJECTS = 500_000
"""New objects before garbage is looked for: more than a batch and a page have."""
_BLOCKS_A_BIN = 16
"""Blocks of minutes of a history in each bin, so that those of one day are spread over all bins."""


Stretch: TypeAlias = tuple[int, int]
"""Minutes of the ledger: the first, and the one after the last."""


def check(options: Options) -> None:
    """Raise where the store cannot be reached, has no such queue, or nothing that is asked for."""
    here = place(options.store)
    register = register_of(here, options.queue)
    _READERS[options.view].bounds_of(options, register, here.clock.now_ms())


def reader(options: Options, schema: StructType, *, cores: int) -> DataSourceReader:
    """The reader of a view.

    Args:
        cores: How many tasks run at once.

    Raises:
        ShardqError: If the store or the queue is not there, or an option does not fit.
    """
    if options.reach is not None or options.minutes_max is not None:
        raise UsageError("the options reach and maxMinutes are those of a stream; leave them out.")
    kinds = _PUSHERS if options.pushdown else _READERS
    return kinds[options.view](options, schema, cores)


class _Reader(DataSourceReader):
    """A view's reader. It is pickled, so it keeps no store, and no functions of columns.

    Attributes:
        time: The column that `since` and `until` bound.
        layout: Where the rows live; None where nothing has died yet.
        purged_before_us: What entered before this epoch microsecond a purge has reached.
        former_us: What entered before this is of a dropped queue of the name.
    """

    time: ClassVar[str] = "due"

    def __init__(self, options: Options, schema: StructType, cores: int) -> None:
        views.of_view(options)
        self.options = options
        self.schema = schema
        views.of_schema(options.view, schema)
        self.cores = cores
        here = place(options.store)
        register = register_of(here, options.queue)
        found = _of_view(register, options.view)
        self.bounds = self.bounds_of(options, register, here.clock.now_ms())
        self.layout = None if found is None else found.layout
        settings = (found or register).settings
        self.purged_before_us = settings.purged_before_us
        self.former_us = settings.former_until_us

    @property
    def columns(self) -> Columns:
        """The columns that are asked for."""
        return views.of_schema(self.options.view, self.schema)

    @property
    def from_us(self) -> int:
        """The epoch microsecond before which entries are left out."""
        return self.former_us if self.options.purged else self.purged_before_us

    @classmethod
    def bounds_of(cls, options: Options, _register: Register, now_ms: int) -> Bounds:
        """The bounds that the options set."""
        since, until = options.since, options.until
        bounds = Bounds()
        if since is not None:
            bounds = bounds.within(moment_or_ago_ms(since, now_ms, name="since"), bounds.last_ms)
        if until is not None:
            bounds = bounds.within(0, moment_or_ago_ms(until, now_ms, name="until") - 1)
        if bounds.last_ms < bounds.first_ms:
            raise BadTime(f"nothing lies between since {shown(since)} and until {shown(until)}.")
        return bounds

    def narrow(self, filters: Iterable[Filter]) -> None:
        """Leave out what filters do not let pass."""
        if self.layout is not None:
            self.bounds = narrowed(self.bounds, filters, self.layout, time=self.time)

    def bins_for(self, units: int, units_each: int) -> int:
        """The number of tasks: as asked for, or two a core, or fewer where little is to be done."""
        if self.options.partitions is not None:
            return self.options.partitions
        return max(1, min(2 * self.cores, -(-units // units_each)))

    def partitions(self) -> list[InputPartition]:
        """The bins, at least one."""
        bins: Iterable[Sequence[Any]] = ()
        if self.layout is not None:
            bins = self.bins(place(self.options.store).store, self.layout)
        return [InputPartition(tuple(some)) for some in bins if some] or [InputPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a bin, in the process of a task."""
        if self.layout is None or not partition.value:
            return
        refuse_in_task(self.options.url)
        with seldom_collected():
            store = place(self.options.store).store
            yield from self.batches(store, self.layout, partition.value)

    def bins(self, store: Store, layout: Layout) -> Iterable[Sequence[Any]]:
        """The units to be read, in bins; each bin is a task."""
        raise NotImplementedError

    def batches(
        self, store: Store, layout: Layout, some: Sequence[Any]
    ) -> Iterator[pa.RecordBatch]:
        """The batches of a bin."""
        raise NotImplementedError


class RowsReader(_Reader):
    """Messages, and dead ones, in even bins of pieces."""

    def bins(self, store: Store, layout: Layout) -> Iterable[Sequence[ReadPiece]]:
        """Even bins of pieces."""
        found = cuts.shards(store, layout, self.bounds)
        counted = cuts.tallies(store, layout, found, self.bounds)
        total = sum(tally.rows for tally in counted.values())
        bins = self.bins_for(total, _BIN_ROWS)
        rows_max = max(total // (bins * _PIECES_A_BIN), _BIN_ROWS // _PIECES_A_BIN)
        made = cuts.pieces(store, layout, counted, self.bounds, rows_max=rows_max)
        packed = pack({piece: piece.rows for piece in made}, bins)
        return (sorted(some, key=_by_place) for some in packed)

    def batches(
        self, store: Store, layout: Layout, some: Sequence[ReadPiece]
    ) -> Iterator[pa.RecordBatch]:
        """Batches of rows."""
        with_bodies = views.BODY.name in (column.name for column in self.columns)
        for rows in _gathered(pages(store, layout.queue, some, bodies=with_bodies)):
            yield batches.of_rows(rows, self.columns, layout, self.from_us)


class ShardsReader(_Reader):
    """The counts of each shard. No row travels, unless a purge has to be told from its rows."""

    def bins(self, store: Store, layout: Layout) -> Iterable[Sequence[Shard]]:
        """Bins of as many shards each."""
        found = cuts.shards(store, layout, self.bounds)
        size = max(1, -(-len(found) // self.bins_for(len(found), _BIN_SHARDS)))
        return (found[n : n + size] for n in range(0, len(found), size))

    def batches(
        self, store: Store, layout: Layout, some: Sequence[Shard]
    ) -> Iterator[pa.RecordBatch]:
        """One batch of shards, unless all are empty."""
        tallies = cuts.tallies(store, layout, some, self.bounds)
        if self.from_us:
            made = cuts.pieces(store, layout, tallies, self.bounds, rows_max=FAR_MS)
            tallies = _tallies_from(store, layout.queue, list(made), self.from_us)
        if tallies:
            yield batches.of_tallies(tallies, self.columns, layout)


class HistoryReader(_Reader):
    """The history of messages, by their entry."""

    time = "entered"

    @classmethod
    def bounds_of(cls, options: Options, register: Register, now_ms: int) -> Bounds:
        """The bounds that the options set, as far as there is a history."""
        settings = register.settings
        kept_ms = now_ms - kept_for(settings, register.name)
        first_ms = max(kept_ms, settings.former_until_us // 1_000)
        since_ms, until_ms = span_of(options.since, options.until, first_ms=first_ms, now_ms=now_ms)
        ahead_ms = CLOCK_AHEAD_MS if options.until is None else 0
        return Bounds(since_ms, until_ms + ahead_ms - 1)

    def bins(self, store: Store, layout: Layout) -> Iterable[Sequence[Stretch]]:  # noqa: ARG002
        """Bins of as many minutes of entry each."""
        if not self.bounds.is_of(layout.queue):
            return []
        first, last = (
            ms * 1_000 // MINUTE_US for ms in (self.bounds.first_ms, self.bounds.last_ms)
        )
        minutes = range(first, last + 1)
        return minutes_in(minutes, self.bins_for(len(minutes), 1))

    def batches(
        self, store: Store, layout: Layout, some: Sequence[Stretch]
    ) -> Iterator[pa.RecordBatch]:
        """Batches of marks."""
        return batches_of(
            marks_of(store, layout.queue, some),
            self.columns,
            layout.queue,
            purged_before_us=self.purged_before_us,
            from_us=max(self.bounds.first_ms * 1_000, self.former_us),
            before_us=(self.bounds.last_ms + 1) * 1_000,
        )


class _Pushing(_Reader):
    """A reader that takes filters. Spark refuses one while its setting for that is off."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's
        """Take what narrows the bounds; Spark judges all of them again."""
        self.narrow(filters)
        return filters


class PushingRowsReader(_Pushing, RowsReader):
    """Messages, and dead ones, with filters on minute, due, lane and queue."""


class PushingShardsReader(_Pushing, ShardsReader):
    """Shards, with filters on minute, lane and queue."""


class PushingHistoryReader(_Pushing, HistoryReader):
    """The history, with filters on entered and queue."""


_READERS: dict[str, type[_Reader]] = {
    "messages": RowsReader,
    "dead": RowsReader,
    "shards": ShardsReader,
    "history": HistoryReader,
}
_PUSHERS: dict[str, type[_Reader]] = {
    "messages": PushingRowsReader,
    "dead": PushingRowsReader,
    "shards": PushingShardsReader,
    "history": PushingHistoryReader,
}


def _of_view(register: Register, view: str) -> Register | None:
    """The record of the queue whose rows a view has; None where nothing has died yet."""
    if view != "dead" or names.is_dead_queue(register.name):
        return register
    return register.dead_if_made()


def _by_place(piece: ReadPiece) -> tuple[int, int, int, int]:
    return piece.minute, piece.lane, piece.after_ms, piece.from_us or 0


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Seldom look for cyclic garbage: rows make none, and the search took a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


# Rows ---------------------------------------------------------------------------------------------


def pages(
    store: Store, queue: str, pieces: Sequence[ReadPiece], *, bodies: bool
) -> Iterator[list[Row]]:
    """All rows of pieces except notes, a page at a time.

    Args:
        pieces: In order of shard; two pieces of one shard are read one after the other.
        bodies: True to read the bodies.
    """
    limit = _PAGE_ROWS[0] if bodies else BATCH_ROWS
    left = [(piece, piece.slice(queue, limit, "spark")) for piece in reversed(pieces)]
    while left:
        asked = _together(left, limit)
        rows = store.read(*(one._replace(limit=limit, bodies=bodies) for _, one in asked))
        if len(rows) >= limit:
            left += reversed(_continued(asked, rows, limit))
        if asked[0][0].is_cut_by_birth:
            rows = [row for row in rows if asked[0][0].owns(row)]
        if messages := [row for row in rows if not row.is_note]:
            yield messages
        if bodies and rows:
            size = sum(row.size_bytes for row in rows) // len(rows) + 1
            limit = max(_PAGE_ROWS[0], min(_PAGE_BYTES // size, _PAGE_ROWS[1], limit * 2))


def _together(left: list[tuple[ReadPiece, Slice]], limit: int) -> list[tuple[ReadPiece, Slice]]:
    """Take the next slices off, as many as give a page; of each shard one."""
    asked = [left.pop()]
    rows = asked[0][0].rows
    while left and len(asked) < _TOGETHER_MAX:
        piece, last = left[-1][0], asked[-1][0]
        rows += piece.rows
        is_alone = piece.is_cut_by_birth or last.is_cut_by_birth
        if rows > limit or is_alone or (piece.minute, piece.lane) == (last.minute, last.lane):
            break
        asked.append(left.pop())
    return asked


def _continued(
    asked: Sequence[tuple[ReadPiece, Slice]], rows: Sequence[Row], limit: int
) -> list[tuple[ReadPiece, Slice]]:
    """The rest of the pieces whose page was full."""
    counts = Counter(row.shard[1:] for row in rows)
    last = {row.shard[1:]: row for row in rows}
    more = []
    for piece, one in asked:
        place_of = piece.minute, piece.lane
        if counts[place_of] < limit:
            continue
        row = last[place_of]
        if piece.before_us is None or ids.birth_us(row.id) < piece.before_us:
            rest = piece._replace(rows=max(piece.rows - counts[place_of], 1))
            more.append((rest, one._replace(after_ms=row.due_ms, after_id=row.id)))
    return more


def _gathered(read: Iterable[list[Row]]) -> Iterator[list[Row]]:
    """Rows of several pages, as many as a batch has."""
    held: list[Row] = []
    size = 0
    for page in read:
        held += page
        size += sum(row.size_bytes for row in page)
        if len(held) >= BATCH_ROWS or size >= _BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _tallies_from(
    store: Store, queue: str, pieces: Sequence[ReadPiece], from_us: int
) -> dict[Shard, Tally]:
    """The tallies of shards, of messages that entered from a microsecond on."""
    rows: Counter[Shard] = Counter()
    claims: Counter[Shard] = Counter()
    for page in pages(store, queue, pieces, bodies=False):
        kept = [row for row in page if row.entered_us >= from_us]
        rows.update(row.shard for row in kept)
        claims.update(row.shard for row in kept if row.claim is not None)
    return {shard: Tally(count, claims[shard]) for shard, count in rows.items()}


# The ledger ---------------------------------------------------------------------------------------


def minutes_in(minutes: range, bins: int) -> list[tuple[Stretch, ...]]:
    """Minutes of the ledger in bins, each with stretches of all of it."""
    length = max(1, len(minutes) // (bins * _BLOCKS_A_BIN))
    starts = minutes[::length]
    stretches = tuple((start, min(start + length, minutes.stop)) for start in starts)
    return [stretches[n::bins] for n in range(min(bins, len(stretches)))]


def marks_of(store: Store, queue: str, stretches: Iterable[Stretch]) -> Iterator[Mark]:
    """The ledger's marks of a bin."""
    for start, stop in stretches:
        yield from store.history(queue, range(start, stop))


def batches_of(
    marks: Iterator[Mark], columns: Columns, queue: str, **bounds: int
) -> Iterator[pa.RecordBatch]:
    """Marks of a queue's ledger in batches; of the bounds `batches.of_marks` says what they are."""
    while some := list(islice(marks, BATCH_ROWS)):
        yield batches.of_marks(some, columns, queue, **bounds)
