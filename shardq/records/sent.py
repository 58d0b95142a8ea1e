"""Names under which messages are put once: for five minutes a second put finds the first.

```
 put under a name ──► name free: name and row are written ──► ours
                 └──► name taken ──► the first put's row, written again where it may be missing
```

The five minutes count from the first put, whatever has happened to its message since. On SQLite
name and row are written by one transaction. On Cassandra the name is written first: a crash may
come before the row, so a repeat writes the same row again. A deleted row stays deleted.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from shardq.errors import StoreCorrupt, StoreUnavailable, shown
from shardq.model.ids import birth_us
from shardq.model.key import bucket_of
from shardq.model.shard import Shard
from shardq.records.exchange import exchange
from shardq.stores.tables import SENT, Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.records.register import Register
    from shardq.stores.store import Store
    from shardq.stores.tables import Place

ONCE_MS: Final = 300_000
"""How long a name is taken, counted from the first put under it."""
_TRIES = 5
_Whole = Annotated[int, msgspec.Meta(ge=0)]


class _FirstPut(msgspec.Struct, frozen=True, array_like=True):
    """The first put under a name: the place of its row, and a digest by which a repeat is known."""

    minute: _Whole
    lane: _Whole
    due_ms: _Whole
    row: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    digest: bytes
    id: str | None


class Sent:
    """The names of one queue under which messages are put once.

    Args:
        register: The queue's record.
    """

    def __init__(self, store: Store, clock: Clock, register: Register) -> None:
        self._store = store
        self._clock = clock
        self._register = register

    def put(self, rows: Mapping[str, Row]) -> tuple[dict[str, Row], list[Row]]:
        """Write rows, each once under its name.

        One transaction on SQLite. On Cassandra a conditional write for each name, then the rows.

        Args:
            rows: Name -> the row.

        Returns:
            Name -> the given row, or the row that was put first under the name; and the rows that
            this call has written.

        Raises:
            StoreTimeout: Some rows may be written; a repeat writes nothing twice.
            StoreUnavailable: No row is written, or other processes keep changing a name.
        """
        found: dict[str, Row] = dict(rows)
        again: list[Row] = []

        def plan(place: Place, values: Mapping[str, Any]) -> Change | None:
            (name,) = place[1]
            row, text = rows[name], values["place"]
            first = None if text is None else self._read(text)
            if first is None or self._is_over(first):
                return self._change(name, row, text)
            shard = Shard(row.shard.queue, first.minute, first.lane)
            found[name] = row._replace(
                shard=shard, due_ms=first.due_ms, id=first.row, name=first.id
            )
            if self._store.write_timeout_ms and first.digest == _digest(row):
                again.append(found[name])
            return None

        unread = {self._place(name): {"place": None} for name in rows}
        if not exchange(self._store, SENT, unread, plan, tries=_TRIES):
            raise StoreUnavailable(
                f"messages of queue {self._register.name!r} could not be put once: other processes "
                f"kept changing their names; put them again."
            )
        new = [row for name, row in rows.items() if found[name] is row]
        return found, (new + self._missing(again)) if again else new

    def _missing(self, firsts: Sequence[Row]) -> list[Row]:
        """Write rows of first puts that are missing; returns those that were never written before.

        A row that was deleted since stays deleted. A row that exists keeps its place in its group,
        however old it is.
        """
        there = {row.position for row in self._store.find([row.position for row in firsts])}
        missing = [row for row in firsts if row.position not in there]
        if not missing:
            return []
        self._store.insert(missing)
        written = {row.position for row in self._store.find([row.position for row in missing])}
        return [row for row in missing if row.position in written]

    def _place(self, name: str) -> Place:
        # The names of a dropped queue of the same name are free.
        return (self._register.totals_key, bucket_of(name)), (name,)

    def _change(self, name: str, row: Row, seen: str | None) -> Change:
        partition, key = self._place(name)
        _, minute, lane = row.shard
        first = _FirstPut(minute, lane, row.due_ms, row.id, _digest(row), row.name)
        place = msgspec.json.encode(first).decode()
        return Change(
            partition, key, {"place": seen}, {"place": place}, insert=(row,), ttl_ms=ONCE_MS
        )

    def _read(self, text: str) -> _FirstPut:
        try:
            return msgspec.json.decode(text, type=_FirstPut)
        except msgspec.DecodeError as error:
            raise StoreCorrupt(
                f"a name of queue {self._register.name!r} under which a message was put once is "
                f"damaged: its place is {shown(text)}; delete its row of table sent, or restore "
                f"the store from a copy."
            ) from error

    def _is_over(self, first: _FirstPut) -> bool:
        """True if a first put was so long ago that its name is free."""
        return birth_us(first.row) + ONCE_MS * 1_000 <= self._clock.now_us()


def _digest(row: Row) -> bytes:
    """A digest of the content by which a repeat is recognised: body, group and headers."""
    made = hashlib.blake2b(row.body, digest_size=8)
    made.update(f"\0{row.group}\0{row.headers}".encode())
    return made.digest()
