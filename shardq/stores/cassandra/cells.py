"""Values, serialised for CQL's native protocol.

The driver's own `bind` checks and converts each value in Python, about 10 us a row, which rows of a
fixed shape do not need.

Source:
    Native protocol v5, section 6; `TimeUUIDType` and `TupleType` of Cassandra 5.0.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from shardq.stores.tables import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.model.shard import Position

_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_LONG_ITEM = struct.Struct(">iq")
_INT_ITEM = struct.Struct(">ii")
_UUID_ITEM = struct.Struct(">i16s")
_POSITION_ITEM = struct.Struct(">iiqi16s")

_NULL = _INT.pack(-1)

bigint = _LONG.pack
"""A bigint or a timestamp (epoch milliseconds)."""
int_ = _INT.pack
"""An int."""
OF_KIND: Final[dict[Kind, Callable[[Any], bytes]]] = {
    Kind.TEXT: str.encode,
    Kind.INT: int_,
    Kind.BIGINT: bigint,
    Kind.TIMESTAMP: bigint,
    Kind.TIMEUUID: bytes,
    Kind.BLOB: bytes,
}
"""A column's kind -> the function that serialises its value."""


def seconds(ttl_ms: int) -> bytes:
    """A time to live: whole seconds, CQL's grain, rounded up so that it never ends too early."""
    return _INT.pack(max(1, -(-ttl_ms // 1_000)))


def bigints(values: Sequence[int]) -> bytes:
    """A list of bigints."""
    return _INT.pack(len(values)) + b"".join([_LONG_ITEM.pack(8, value) for value in values])


def ints(values: Sequence[int]) -> bytes:
    """A list of ints."""
    return _INT.pack(len(values)) + b"".join([_INT_ITEM.pack(4, value) for value in values])


def positions(values: Sequence[Position]) -> bytes:
    """A list of tuples (due, id)."""
    pack = _POSITION_ITEM.pack
    return _INT.pack(len(values)) + b"".join(
        [pack(32, 8, due_ms, 16, row_id) for _, due_ms, row_id in values]
    )


def uuids(values: Sequence[bytes]) -> bytes:
    """A list of uuids."""
    pack = _UUID_ITEM.pack
    return _INT.pack(len(values)) + b"".join([pack(16, value) for value in values])


def listed(values: Iterable[bytes]) -> bytes:
    """A list of serialised values."""
    items = list(values)
    return _INT.pack(len(items)) + b"".join([_INT.pack(len(item)) + item for item in items])


def item(values: Sequence[bytes]) -> bytes:
    """An item for `listed`: the only serialised value, or a tuple of several."""
    if len(values) == 1:
        return values[0]
    return b"".join([_INT.pack(len(value)) + value for value in values])


def record(fields: Sequence[bytes | None]) -> bytes:
    """A value of a user-defined type, made from its serialised fields; a field of None is null."""
    return b"".join([_NULL if field is None else _INT.pack(len(field)) + field for field in fields])


def partition(place: tuple[str, int, int]) -> tuple[bytes, bytes, bytes]:
    """The three columns of a partition's key: queue, minute, and lane or part."""
    queue, minute, number = place
    return queue.encode(), _LONG.pack(minute), _INT.pack(number)


def routing_key(parts: tuple[bytes, ...]) -> bytes:
    """The bytes of a partition key that the cluster hashes."""
    if len(parts) == 1:
        return parts[0]
    return b"".join([len(part).to_bytes(2, "big") + part + b"\0" for part in parts])
