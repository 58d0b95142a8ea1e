"""Row ids: time-ordered UUIDs, version 1, as 16 bytes.

A row id's time is the row's birth: the write time of the row's insert, in microseconds. The row's
delete has a later write time. Births of one generator never go backwards. If the machine's clock
was set back, a new generator takes over.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
import uuid

from shardq import locks

BYTES = 16
"""The length of a row id."""
_GREGORIAN = 0x01B21DD213814000
"""100 ns steps from 1582, where a version 1 UUID counts from, to 1970 (RFC 9562)."""

_HEAD = struct.Struct(">IHH")
_BACK_US = 500_000
"""Ids may be this far ahead of the clock, because many were made in one microsecond, or the clock
was set back a little."""


_SPREAD_US = 1_000_000
"""The births of fixed ids are spread over this time, to fill all parts of a minute's history."""
_TAIL_KEPT = 0xBFFF_FFFF_FFFF_FFFF
_TAIL_SET = 0x8000_0100_0000_0000
"""Variant 1 of RFC 9562, and the multicast bit, which no real network card has."""

_FIRST_TAIL = b"\x80" * 8
"""The lowest tail: Cassandra compares these bytes as signed numbers."""


def _head(birth_us: int) -> bytes:
    steps = birth_us * 10 + _GREGORIAN
    return _HEAD.pack(steps & 0xFFFFFFFF, steps >> 32 & 0xFFFF, steps >> 48 | 0x1000)


class RowIds:
    """Makes row ids that are never the same and never go backwards, in any thread, across forks."""

    def __init__(self) -> None:
        self._lock = locks.new()
        self._last_us = 0
        self._renew()
        locks.in_child(self, RowIds._renew)

    def next(self, now_us: int) -> bytes:
        """A fresh id, born at `now_us`, or a microsecond after the last one if that is later.

        Args:
            now_us: Epoch microseconds, UTC.

        Returns:
            16 bytes in RFC 9562 order.
        """
        with self._lock:
            # These lines make no call, so that no signal's handler runs between them.
            last = self._last_us
            birth = now_us if now_us > last else last + 1
            self._last_us = birth
            return _head(birth) + self._tail

    def turn_back(self, now_us: int) -> None:
        """Continue from `now_us` after the clock was set back.

        Births decide which messages entered a queue before a purge, or in a span of its history. So
        the births of one process must not be ahead of those of all others.

        Source:
            RFC 9562, section 6.1: a clock that was set back takes another sequence.
        """
        tail = _fresh_tail()
        with self._lock:
            if self._last_us - now_us > _BACK_US:
                self._last_us, self._tail = 0, tail

    def _renew(self) -> None:
        # A forked child that kept node and sequence would write over its parent's rows.
        self._tail = _fresh_tail()


def _fresh_tail() -> bytes:
    """The sequence and node of a new generator, which no other generator has."""
    sequence = secrets.randbits(14) | 0x8000
    node = secrets.randbits(48) | 1 << 40  # the multicast bit: no real network card
    return sequence.to_bytes(2, "big") + node.to_bytes(6, "big")


row_ids = RowIds()
"""The one generator of this process."""


def after(row_id: bytes, now_us: int) -> bytes:
    """A fresh id for a row that moves, born after the id that the row has.

    A message is at the place whose id was born last. If the present id is ahead of this clock, the
    new id is born a microsecond after the present one. Ids of other rows are not affected.

    Args:
        row_id: The row's present id.
        now_us: Epoch microseconds, UTC.

    >>> ahead = fixed(1_000_000, "order-7")
    >>> birth_us(after(ahead, 0)) - birth_us(ahead)
    1
    """
    born_us = birth_us(row_id)
    return row_ids.next(now_us) if now_us > born_us else _head(born_us + 1) + _fresh_tail()


def fixed(at_us: int, name: str) -> bytes:
    """The id of a name at a time, equal in every process and language.

    It follows from the 40 hex digits of the SHA-1 of the name in UTF-8. The first 12, modulo
    1,000,000, are the microseconds from `at_us` to the birth. The next 4 are the clock sequence,
    the next 12 the node; the variant's bits and the multicast bit are set. So the ids of one time
    are born within a second after it, and there are 2^81 of them.

    Args:
        at_us: Epoch microseconds, UTC; at least 0.
        name: Any text, without lone surrogates.

    Returns:
        16 bytes in RFC 9562 order.

    >>> text(fixed(1_000_000, "order-7"))
    '14950404-1dd2-11b2-88ce-e7ca6830970e'
    """
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).digest()
    birth = at_us + int.from_bytes(digest[:6]) % _SPREAD_US
    tail = int.from_bytes(digest[6:14]) & _TAIL_KEPT | _TAIL_SET
    return _head(birth) + tail.to_bytes(8)


def named(at_us: int, name: str) -> bytes:
    """The id of a name, born exactly at a time: like `fixed`, without the spread over a second.

    >>> birth_us(named(1_000_000, "order-7"))
    1000000
    """
    return _head(at_us) + fixed(at_us, name)[8:]


def bound(at_us: int) -> bytes:
    """The lowest id of a microsecond: above all ids born before it, below all ids born after it."""
    return _head(at_us) + _FIRST_TAIL


def birth_us(row_id: bytes) -> int:
    """The epoch microsecond inside a row id."""
    low, mid, high = _HEAD.unpack_from(row_id)
    return int(((high & 0x0FFF) << 48 | mid << 32 | low) - _GREGORIAN) // 10


def order_key(row_id: bytes) -> bytes:
    """The same 16 bytes, most significant first, so that byte order is time order.

    >>> a, b = row_ids.next(1), row_ids.next(2)
    >>> order_key(a) < order_key(b)
    True
    """
    return row_id[6:8] + row_id[4:6] + row_id[0:4] + row_id[8:]


def from_order_key(key: bytes) -> bytes:
    """The row id of an `order_key`."""
    return key[4:8] + key[2:4] + key[0:2] + key[8:]


def from_text(text: str) -> bytes | None:
    """The row id whose text for people is `text`; None if the text is not that of a row id.

    >>> from_text("order-7") is None
    True
    """
    try:
        made = uuid.UUID(text)
    except ValueError:
        return None
    return made.bytes if made.version == 1 and str(made) == text else None


def text(row_id: bytes) -> str:
    """A row id as text for people: `xxxxxxxx-xxxx-1xxx-xxxx-xxxxxxxxxxxx`."""
    one = row_id.hex()
    return f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}"
