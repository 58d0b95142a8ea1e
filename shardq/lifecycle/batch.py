"""A batch of puts: its rows, by key or without, and the lanes that they are spread over."""

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
"""An item of `put_many`: a body, a mapping of `put`'s arguments, or a message to put again.

Tasks also put `Sealed` bodies.
"""

_TEN = 10
_ROUNDS = (1, 2, 4, 8)
"""Tens of rows of a batch that each lane gets, round by round, so that a small batch is spread
too; then each gets a hundred, as many as a write takes."""
_HUNDRED = 100

LaneOf: TypeAlias = "Callable[[int, int], int]"
"""(minute, band) -> the lane for a row without a group."""


@lru_cache
def _first_tens(lanes: int) -> tuple[int, ...]:
    """The lane of each ten of a batch's first rows, before lanes get full hundreds."""
    return tuple(lane for tens in _ROUNDS for lane in range(lanes) for _ in range(tens))


class Filling:
    """Spreads a batch over the lanes of each minute and band.

    Args:
        turn: The lane to begin with; each call takes the next, or small batches would all fill one.
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
        held: Indexes in `rows` of new rows of groups: they are written once all items of the chunk
            were read.
        failed: The error of recording that a new band or group lane is used. No row read after it
            is stored, and the error carries all rows.
    """

    __slots__ = ("failed", "held", "keyed", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.held: list[int] = []
        self.failed: StoreError | None = None
        self.keyed: dict[int, Asked] = {}

    def add(self, made: Row | Asked, *, is_new: bool) -> Row | None:
        """Add the row of an item; returns it if it is to be written at once.

        Args:
            made: The row, or the put of a row with a key.
            is_new: True if it is no message that is put again.
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
        """The rows of new messages; puts that found a message under their key made none."""
        return self.unkeyed() + [
            asked.found for asked in self.keyed.values() if asked.is_new and asked.found is not None
        ]

    def replaced(self) -> list[Row]:
        """The rows that replaced others."""
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

        Two puts of one key give the same row twice.
        """
        asked = self.keyed
        if not asked:
            return self.rows
        there = [row if at not in asked else asked[at].found for at, row in enumerate(self.rows)]
        return [row for row in there if row is not None]


def iterator_of(items: Iterable[Item]) -> Iterator[Item]:
    """An iterator over the items of `put_many`.

    Raises:
        UsageError: If they are not an iterable, or if a single message was given.
    """
    # Iterated, a body would give its letters, and a mapping its names.
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
    # Rows with keys are put together, also those after a key that is taken.
    which = "messages before it"
    if isinstance(error, KeyTaken):
        which = "other messages"
        error.put = total
    error.add_note(f"{total:,} {which} were put.")
