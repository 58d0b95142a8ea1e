"""Rows and marks of the ledger as Arrow batches, with the columns of `views.py`.

Whole columns are made at a time: a dict for each row would cost more than reading it. If a column
cannot be made, a row is damaged, and only then each row is looked at by itself.
"""

from __future__ import annotations

import sys
from array import array
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_shardq.columns import HEADERS, TIMESTAMP, arrow_schema
from shardq.model import ids
from shardq.model.message import last_error, read_headers
from shardq.records.ledger import End

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark_shardq.columns import Columns
    from shardq.model.message import Row
    from shardq.model.shard import Layout, Shard
    from shardq.stores.store import Mark, Tally

_BEGIN_US = ids.birth_us(bytes(ids.BYTES))
"""The time inside an id of zeros, in 1582."""
_NOT_MADE = (pa.ArrowException, OverflowError, ValueError, TypeError)
"""The errors of making a column where a value is of another kind, or out of its bounds."""


def of_rows(rows: Sequence[Row], columns: Columns, layout: Layout, from_us: int) -> pa.RecordBatch:
    """A batch of messages.

    Args:
        rows: The rows, at least one.
        columns: Which columns, in their order.
        layout: Of the rows' queue.
        from_us: What entered before this epoch microsecond is left out.

    Raises:
        StoreCorrupt: If a row is damaged.
    """
    held = MessageColumns(rows, layout)
    try:
        batch = _batch(held, columns)
        if from_us:
            batch = batch.filter(pc.greater_equal(held.entered_us, from_us))
    except _NOT_MADE:
        for row in rows:
            row.checked()
        raise
    return batch


def of_marks(
    marks: Sequence[Mark],
    columns: Columns,
    queue: str,
    *,
    purged_before_us: int,
    from_us: int,
    before_us: int,
) -> pa.RecordBatch:
    """A batch of the history.

    Args:
        marks: What the ledger says, at least one.
        columns: Which columns, in their order.
        queue: Whose ledger it is.
        purged_before_us: What entered before this epoch microsecond a purge has reached.
        from_us: What entered before this is left out.
        before_us: What entered then or later is left out.

    Raises:
        StoreCorrupt: If a mark is damaged.
    """
    try:
        held = Records(marks, queue, purged_before_us)
        is_asked = pc.and_(
            pc.greater_equal(held.entered_us, from_us), pc.less(held.entered_us, before_us)
        )
        return _batch(held, columns).filter(is_asked)
    except _NOT_MADE:
        for mark in marks:
            mark.checked()
        raise


def of_tallies(tallies: Mapping[Shard, Tally], columns: Columns, layout: Layout) -> pa.RecordBatch:
    """A batch of shards, with what each holds."""
    return _batch(Shards(tallies, layout), columns)


def births_us(row_ids: Iterable[bytes]) -> pa.Array:
    """The epoch microsecond inside each of these ids, as `ids.birth_us` reads it from one.

    Raises:
        ValueError: If one is none.
    """
    listed = list(row_ids)
    halves = array("Q", _joined(listed))
    if sys.byteorder == "little":
        halves.byteswap()
    heads = pa.Array.from_buffers(pa.uint64(), len(listed), [None, pa.py_buffer(halves[::2])]).cast(
        pa.int64(), safe=False
    )
    low = pc.bit_wise_and(pc.shift_right(heads, 32), 0xFFFFFFFF)
    middle = pc.bit_wise_and(pc.shift_right(heads, 16), 0xFFFF)
    high = pc.bit_wise_and(heads, 0x0FFF)
    steps = pc.bit_wise_or(pc.bit_wise_or(pc.shift_left(high, 48), pc.shift_left(middle, 32)), low)
    return pc.add(pc.divide(steps, 10), _BEGIN_US)


def _joined(row_ids: Sequence[bytes]) -> bytes:
    joined = b"".join(row_ids)
    if len(joined) != ids.BYTES * len(row_ids):
        raise ValueError("an id is not of 16 bytes")
    return joined


def _texts(row_ids: Sequence[bytes]) -> list[str]:
    """The texts that `ids.text` returns for ids, in a third of its time."""
    digits = _joined(row_ids).hex()
    return [
        f"{digits[n : n + 8]}-{digits[n + 8 : n + 12]}-{digits[n + 12 : n + 16]}-"
        f"{digits[n + 16 : n + 20]}-{digits[n + 20 : n + 32]}"
        for n in range(0, len(digits), 2 * ids.BYTES)
    ]


def names_of(names: Sequence[str | None], row_ids: Sequence[bytes]) -> list[str]:
    """The ids of messages: given ones, and else those of their first rows."""
    if not any(names):
        return _texts(row_ids)
    return [name or ids.text(row_id) for name, row_id in zip(names, row_ids, strict=True)]


def times(millis: Sequence[int | None]) -> pa.Array:
    """Epoch milliseconds as timestamps."""
    return pc.multiply_checked(pa.array(millis, pa.int64()), 1_000).view(TIMESTAMP)


def _batch(held: Any, columns: Columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [column.array_of(held) for column in columns], schema=arrow_schema(columns)
    )


class MessageColumns:
    """Rows, column by column."""

    def __init__(self, rows: Sequence[Row], layout: Layout) -> None:
        self.rows = rows
        self.layout = layout
        (
            self.shards,
            self.dues_ms,
            self.ids,
            self.bodies,
            self.headers,
            self.attempts,
            self.firsts,
            self.names,
            self.origins_ms,
            self.groups,
            self.claims,
            *_,
        ) = zip(*rows, strict=True)

    @cached_property
    def entries(self) -> Sequence[bytes]:
        """The ids of the first rows."""
        if not any(self.firsts):
            return self.ids
        return [first or own for first, own in zip(self.firsts, self.ids, strict=True)]

    @cached_property
    def entered_us(self) -> pa.Array:
        """The times of entry, epoch microseconds."""
        return births_us(self.entries)

    @property
    def first_dues_ms(self) -> Sequence[int]:
        """The dues first asked for."""
        return [
            due if origin is None else origin
            for due, origin in zip(self.dues_ms, self.origins_ms, strict=True)
        ]

    @cached_property
    def maps(self) -> list[dict[str, str] | None]:
        """The headers of each; None without any."""
        return [
            None if text is None else read_headers(row)
            for text, row in zip(self.headers, self.rows, strict=True)
        ]

    def header(self, name: str) -> list[str | None]:
        """The values of one header; None where a row lacks it."""
        return [None if one is None else one.get(name) for one in self.maps]

    def header_maps(self) -> pa.Array:
        """The headers as maps."""
        if not any(self.headers):
            return pa.nulls(len(self.rows), HEADERS)
        return pa.array([list(one.items()) if one else None for one in self.maps], HEADERS)

    @cached_property
    def errors(self) -> list[tuple[str | None, datetime | None]]:
        """The last error of each, and when it was."""
        return [last_error(row) for row in self.rows]


class Records:
    """Marks, column by column, without the attempts that failed."""

    def __init__(self, marks: Sequence[Mark], queue: str, purged_before_us: int) -> None:
        self.queue = queue
        self.purged_before_us = purged_before_us
        (
            entries,
            self.dues_ms,
            self.names,
            self.fates,
            self.ended_ms,
            self.attempts,
            self.members,
            self.tasks,
            _,
        ) = zip(*marks, strict=True)
        self.entries = [entry[1] for entry in entries]

    @cached_property
    def entered_us(self) -> pa.Array:
        """The times of entry, epoch microseconds."""
        return births_us(self.entries)

    def all_fates(self) -> pa.Array:
        """The ends; `purged` where only the queue's settings say so."""
        fates = pa.array(self.fates, pa.string())
        if not self.purged_before_us:
            return fates
        is_purged = pc.and_(pc.is_null(fates), pc.less(self.entered_us, self.purged_before_us))
        return pc.if_else(is_purged, End.PURGED.value, fates)

    def of_ended(self, name: str) -> list[Any]:
        """An attribute of those that have ended, by their records; else None."""
        values = zip(self.fates, getattr(self, name), strict=True)
        return [None if fate is None else value for fate, value in values]


class Shards:
    """Shards and what they hold, column by column."""

    def __init__(self, tallies: Mapping[Shard, Tally], layout: Layout) -> None:
        self.layout = layout
        self.shards = list(tallies)
        self.tallies = list(tallies.values())
