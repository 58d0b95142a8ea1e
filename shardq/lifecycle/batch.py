"""A batch of puts: its rows, with or without keys, and the lanes over which they are spread."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from shardq.errors import KeyTaken, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardq.errors import StoreError
    from shardq.lifecycle.keyedputs import Asked, OnConflict
    from shardq.model.message import Message, Row, Sealed
    from shardq.model.shard import Layout
    from shardq.model.times import Due, Duration


class PutOptions(TypedDict, total=False):
    """The options of `Queue.put`, which describes them. An item of `put_many` has the same."""

    due: Due | None
    delay: Duration | None
    spread: Duration | None
    priority: int
    group: str | None
    headers: Mapping[str, str] | None
    id: str | None
    expires: Duration | None
    key: str | None
    on_conflict: OnConflict
    max_wait: Duration | None
    unique_for: Duration | None


Item: TypeAlias = "bytes | str | Message | Mapping[str, Any] | Sealed"
"""An item of `put_many`: a body, a mapping of `put`'s arguments, or a message to put again. Tasks
also put `Sealed` bodies."""

_TEN = 10
_ROUNDS = (1, 2, 4, 8)
"""How many tens of a batch's rows each lane gets, round by round, so that a small batch is spread
too. After these rounds each lane gets a hundred rows at a time, as many as a write takes."""
_HUNDRED = 100

LaneOf: TypeAlias = "Callable[[int, int], int]"
"""(minute, band) -> the lane for a row without a group."""


@lru_cache
def _first_tens(lanes: int) -> tuple[int, ...]:
    """For each ten of a batch's first rows its lane, before lanes get full hundreds."""
    return tuple(lane for tens in _ROUNDS for lane in range(lanes) for _ in range(tens))


class Filling:
    """Spreads a batch over the lanes of each minute and band.

    Args:
        turn: The lane to begin with: a different one for each batch, or small batches would all
            fill the same lane.
    """

    def __init__(self, layout: Layout, turn: int) -> None:
        self._bands = layout.bands
        self._first = layout.first_lane
        self._lanes = layout.lanes_written
        self._turn = turn
        self._counts: dict[int, int] = {}
        self._tens = _first_tens(layout.lanes_written)
        self._few = len(self._tens) * _TEN

    def lane_of(self, minute: int, band: int) -> int:
        """The lane of the next row of a minute and band."""
        slot = minute * self._bands + band
        filled = self._counts.get(slot, 0)
        self._counts[slot] = filled + 1
        few = self._few
        at = self._tens[filled // _TEN] if filled < few else (filled - few) // _HUNDRED
        index = (at + self._turn + minute) % self._lanes
        return self._first + band + self._bands * index


class Chunk:
    """The items of a batch that are put together.

    Attributes:
        rows: The rows to put, in the order of the items.
        keyed: Index in `rows` -> the put of a row with a key.
        held: Indexes in `rows` of new rows of groups, which are written once all items of the chunk
            were read.
        failed: The error that came when a new band or group lane was to be recorded as used. No row
            read after the error is stored, and the error carries all rows.
    """

    __slots__ = ("failed", "held", "keyed", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.held: list[int] = []
        self.failed: StoreError | None = None
        self.keyed: dict[int, Asked] = {}

    def add(self, made: Row | Asked, *, is_new: bool) -> Row | None:
        """Add the row of an item; returns the row if it must be written at once.

        Args:
            made: The row, or the put of a row with a key.
            is_new: True if the item is not a message that is put again.
        """
        at = len(self.rows)
        is_keyed = not isinstance(made, tuple)
        if isinstance(made, tuple):
            row = made
        else:
            row, self.keyed[at] = made.row, made
        self.rows.append(row)
        is_held = is_new and row.group is not None
        if is_held:
            self.held.append(at)
        return None if is_held or is_keyed or self.failed is not None else row

    def unkeyed(self) -> list[Row]:
        """The rows without a key."""
        return [row for at, row in enumerate(self.rows) if at not in self.keyed]

    def new(self) -> list[Row]:
        """The rows of new messages; a put that found a message under its key made no row."""
        return self.unkeyed() + [
            asked.found for asked in self.keyed.values() if asked.is_new and asked.found is not None
        ]

    def replaced(self) -> list[Row]:
        """The rows that replaced others, by puts under keys."""
        return [
            asked.found
            for asked in self.keyed.values()
            if asked.has_replaced and asked.found is not None
        ]

    def count(self) -> int:
        """How many messages were put or replaced."""
        put = sum(asked.is_new or asked.has_replaced for asked in self.keyed.values())
        return len(self.rows) - len(self.keyed) + put

    def found(self) -> list[Row]:
        """The present rows of the messages to put, in order, without refused ones.

        If two puts have one key, the same row is in it twice.
        """
        asked = self.keyed
        if not asked:
            return self.rows
        there = [row if at not in asked else asked[at].found for at, row in enumerate(self.rows)]
        return [row for row in there if row is not None]


def iterator_of(items: Iterable[Item]) -> Iterator[Item]:
    """An iterator over the items of `put_many`.

    Raises:
        UsageError: If `items` is not iterable, or is a single message.
    """
    # Iteration would yield the letters of a body, or the names of a mapping.
    if not isinstance(items, (bytes, str, Mapping)):
        try:
            return iter(items)
        except TypeError:
            pass
    raise UsageError(
        f"put_many takes an iterable of bodies or mappings, not {type(items).__name__}; "
        f"put takes one."
    )


def add_count(error: BaseException, total: int) -> None:
    """Note in an error how many messages were put before it."""
    # Rows with keys are put together, including those that follow a key which is taken.
    which = "messages before it"
    if isinstance(error, KeyTaken):
        which = "other messages"
        error.put = total
    error.add_note(f"{total:,} {which} were put.")
