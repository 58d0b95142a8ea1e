"""The index of minutes: the shards in which a queue may have a row, near or far.

```
 insert ──► [ note of the shard ] + row                        acknowledged together
 move ────► [ note ] + new row + delete of the old one         one logged batch: all or nothing
            └─ left out if a note by this process was acknowledged before
```

Why the index misses no row:

- Each verb that places a row sends the note with the row, or just before it, and returns once both
  are acknowledged. A put that ended in doubt, and that nobody repeats, may leave a row without a
  note: consumers deliver it in time, as they do not read the index, and `check --all` notes it.
- A move deletes the old row in the batch that notes the new one, or after the new row and its note
  were acknowledged.
- A process leaves out a note only if it remembers that its earlier note of the shard was
    acknowledged. A note is erased when its minute has been over for so long that nobody places rows
    there, and the shard was found empty.

A lost index costs a visit to every partition, and no message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq import clock
from shardq.model import ids
from shardq.model.ids import birth_us
from shardq.model.shard import Shard
from shardq.stores.cassandra import cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardq.stores.cassandra.session import Session, Write

DAY_MINUTES = 1_440
NOTED_MAX = 10_000
"""Shards in each of the two sets of remembered notes: 4 MB."""
_LANE = 1 << 32
_BATCH_SHARDS = 2_000
_PAGE_DAYS = (2, 64)
_SHARD_BYTES = 32
_STATEMENT_BYTES = 64

_NOTE = "UPDATE {}.minutes USING TIMESTAMP ? SET shards = shards + ? WHERE queue = ? AND day = ?"
_ERASE = "UPDATE {}.minutes SET shards = shards - ? WHERE queue = ? AND day = ?"
_READ = "SELECT day, shards FROM {}.minutes WHERE queue = ? AND day >= ? AND day <= ?"


class Minutes:
    """The index, and the notes that this process remembers.

    Args:
        session: The connection.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._noted: set[Shard] = set()
        self._noted_before: set[Shard] = set()

    def is_noted(self, shard: Shard) -> bool:
        """True if this process remembers a note of the shard that was acknowledged."""
        return shard in self._noted or shard in self._noted_before

    def remember(self, shards: Iterable[Shard]) -> None:
        """Remember acknowledged notes, and forget the oldest if there are too many."""
        self._noted.update(shards)
        if len(self._noted) >= NOTED_MAX:
            self._noted_before, self._noted = self._noted, set()

    def writes(
        self, first: Mapping[Shard, bytes]
    ) -> Iterator[tuple[tuple[bytes], list[Write], int]]:
        """The writes that note shards.

        Args:
            first: Shard -> the id of a row in it.

        Yields:
            The key of a partition, the writes to it, and roughly their bytes.
        """
        for queue, days in _by_queue(first).items():
            writes: list[Write] = []
            size = 0
            for day, shards in days.items():
                # Any row's birth will do as write time: an erasure is later than all births by far.
                born_us = cells.bigint(birth_us(first[shards[0]]))
                writes.append((_NOTE, [born_us, _packed(shards), queue, cells.bigint(day)]))
                size += _STATEMENT_BYTES + len(queue) + _SHARD_BYTES * len(shards)
            yield (queue,), writes, size

    def indexed(self, queue: str, minutes: range) -> Iterator[Shard]:
        """The shards of a queue in some minutes that may have a row, by (minute, lane)."""
        if not minutes:
            return
        days = minutes.start // DAY_MINUTES, (minutes.stop - 1) // DAY_MINUTES
        statement = self._session.bound(_READ, [queue.encode(), *map(cells.bigint, days)])
        # A day may have thousands of shards, and the caller may need only the first.
        statement.fetch_size, most = _PAGE_DAYS
        for page in self._session.read([statement], "index"):
            statement.fetch_size = min(2 * statement.fetch_size, most)
            for day, numbers in page:
                start = day * DAY_MINUTES
                for number in numbers or ():
                    minute = start + number // _LANE
                    if minute in minutes:
                        yield Shard(queue, minute, number % _LANE)

    def mend(self, there: Iterable[Shard], gone: Iterable[Shard]) -> None:
        """Note shards that have rows, and erase shards that are empty and get no more rows."""
        for shards in _parts(there):
            now = ids.bound(clock.machine_us())
            self._session.write(
                self._session.bundle(writes)
                for _, writes, _ in self.writes(dict.fromkeys(shards, now))
            )
        for shards in _parts(gone):
            self._noted.difference_update(shards)
            self._noted_before.difference_update(shards)
            self._session.write(
                self._session.bound(_ERASE, [_packed(some), queue, cells.bigint(day)])
                for queue, days in _by_queue(shards).items()
                for day, some in days.items()
            )


def _by_queue(shards: Iterable[Shard]) -> dict[bytes, dict[int, list[Shard]]]:
    """Shards by queue and day."""
    found: dict[bytes, dict[int, list[Shard]]] = {}
    for shard in shards:
        days = found.setdefault(shard[0].encode(), {})
        days.setdefault(shard[1] // DAY_MINUTES, []).append(shard)
    return found


def _packed(shards: Iterable[Shard]) -> bytes:
    """Shards of a day as a value of the column."""
    return cells.bigints(
        sorted([minute % DAY_MINUTES * _LANE + lane for _, minute, lane in shards])
    )


def _parts(shards: Iterable[Shard]) -> Iterator[list[Shard]]:
    listed = list(shards)
    for n in range(0, len(listed), _BATCH_SHARDS):
        yield listed[n : n + _BATCH_SHARDS]
