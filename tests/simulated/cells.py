"""shardq's tables as one node of Cassandra keeps them: cells with write times, tombstones, LWTs.

```
 row     insert at its time │ state at its own │ tombstone    the latest time wins,
 static  lock (until) │ holder │ window                       a tombstone wins a tie
```

This is what a node does with a write that reaches it. `client.py` and `network.py` decide when it
arrives and which time it carries.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.model.ids import order_key
from shardq.model.shard import LANE_LEASE, Shard
from shardq.stores.store import LeaseState, Tally
from shardq.stores.tables import VIEWS
from simulated.marks import MarkCells

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import Entry, Mark, Slice
    from shardq.stores.tables import Change, K, Partition, Table, V

_Entry = tuple[int, bytes, "Row"]
"""(due, order of the row id, the row with its edits)."""
_TIME_BASED = 1
"""The version of a row id, a UUID."""


class _Note(NamedTuple):
    """A row of a table of notes or records. `until_us` 0: for ever. A deleted row has no values."""

    at_us: int
    values: Any
    until_us: int = 0
    nonce: object = None


def _silent(*_: object) -> None:
    pass


def _viewed(table: Table[Any, V], values: Any) -> V:
    """The values that a table has of a row. A view has only some of the columns."""
    if table not in VIEWS:
        return values  # type: ignore[no-any-return] # of this table
    return table.values_of([getattr(values, column.name) for column in table.values])


def _shard_of(row: Row) -> Shard:
    return row.shard


class Cells:
    """The tables. Any number of threads may use them.

    Args:
        machine_us: The node's clock, epoch microseconds, by which TTLs expire.

    Attributes:
        risen: Rows that a write brought back after their deletion. A correct client causes none.
        survivors: Rows that a delete failed to hide. A correct client causes none.
        marks: The ledger.
        beaten: How often a write arrived after its row's tombstone, without effect.
        on_write: Called with each row that becomes visible.
        on_delete: Called with each row that a delete hides.
        on_edit: Called with each row that is edited in place, in its new state.
        on_note: Called with table, partition, key and values of each note or record that is
            written; the values are None if it is deleted.
    """

    def __init__(self, machine_us: Callable[[], int]) -> None:
        self.machine_us = machine_us
        self.risen: list[Row] = []
        self.survivors: list[Row] = []
        self.beaten = 0
        self.on_write: Callable[[Row], None] = _silent
        self.on_delete: Callable[[Row], None] = _silent
        self.on_edit: Callable[[Row], None] = _silent
        self.on_note: Callable[[Table[Any, Any], Partition, Any, Any], None] = _silent
        self._lock = threading.Lock()
        self._live: dict[Shard, list[_Entry]] = {}
        self._written: dict[Position, int] = {}
        self._dead: dict[Position, int] = {}
        self._edits: dict[Position, tuple[int, Row]] = {}
        self._leases: dict[Shard, list[Any]] = {}
        self._waiting: dict[tuple[str, int], dict[int, int]] = {}
        self._notes: dict[tuple[str, Partition], dict[Any, _Note]] = {}
        self.marks = MarkCells(machine_us)

    # Rows -----------------------------------------------------------------------------------------

    def write(self, row: Row, at_us: int) -> None:
        """Write all of a row's cells at a time."""
        key = row.position
        with self._lock:
            dead_us = self._dead.get(key)
            if dead_us is not None:
                if at_us <= dead_us:
                    self.beaten += 1
                    return
                self.risen.append(row)
            if self._written.get(key, -1) >= at_us:
                return
            is_there = key in self._written and (dead_us is None or self._written[key] > dead_us)
            self._written[key] = at_us
            edited = self._edits.get(key)
            if edited is not None and edited[0] > at_us:
                row = _with_state(row, edited[1])
            if is_there:
                self._replace(row)
            else:
                insort(self._live.setdefault(row.shard, []), (row.due_ms, order_key(row.id), row))
                self.on_write(row)

    def delete(self, position: Position, at_us: int) -> None:
        """Write a tombstone at a time."""
        key = position
        with self._lock:
            if self._dead.get(key, -1) >= at_us:
                return
            written_us = self._written.get(key)
            if written_us is not None:
                if written_us > at_us:
                    self.survivors.append(self._take(position, keep=True))
                elif written_us > self._dead.get(key, -1):
                    self.on_delete(self._take(position))
            self._dead[key] = at_us

    def drop(self, position: Position) -> None:
        """Lose a row, as no client does: without a callback, and no write brings it back."""
        with self._lock:
            self._take(position)
            self._dead[position] = self._written[position] + 1

    def delete_range(self, shard: Shard, until_ms: int, at_us: int) -> None:
        """Write a range tombstone up to a due; no right client does."""
        for entry in list(self._live.get(shard, ())):
            if entry[0] <= until_ms:
                self.delete(entry[2].position, at_us)

    def edit(self, row: Row, at_us: int) -> None:
        """Write the state of a row, whether the row exists or not."""
        key = row.position
        with self._lock:
            before = self._edits.get(key)
            if (before is not None and before[0] >= at_us) or self._dead.get(key, -1) >= at_us:
                return
            self._edits[key] = (at_us, row)
            written_us = self._written.get(key)
            if written_us is not None and written_us > self._dead.get(key, -1):
                there = self._take(key, keep=True)
                if at_us > written_us:
                    edited = _with_state(there, row)
                    self._replace(edited)
                    self.on_edit(edited)

    def _take(self, position: Position, *, keep: bool = False) -> Row:
        """Return a live row, and remove it unless `keep`."""
        shard, due_ms, row_id = position
        entries = self._live[shard]
        at = bisect_left(entries, (due_ms, order_key(row_id)))
        row = entries[at][2]
        if not keep:
            del entries[at]
            if not entries:
                del self._live[shard]
        return row

    def _replace(self, row: Row) -> None:
        entries = self._live[row.shard]
        key = (row.due_ms, order_key(row.id))
        entries[bisect_left(entries, key)] = (*key, row)

    def find(self, positions: Iterable[Position]) -> list[Row]:
        """The rows, of these positions, that exist."""
        found = []
        with self._lock:
            for shard, due_ms, row_id in positions:
                entries = self._live.get(shard)
                if entries:
                    key = (due_ms, order_key(row_id))
                    at = bisect_left(entries, key)
                    if at < len(entries) and entries[at][:2] == key:
                        found.append(entries[at][2])
        return found

    def read(self, *wanted: Slice) -> list[Row]:
        """Rows of slices, in order."""
        found: list[Row] = []
        with self._lock:
            for one in wanted:
                for shard in self._live_shards(one.queue, one.minutes, one.lanes):
                    found += self._slice(shard, one, one.limit)
        if len(wanted) > 1:
            found.sort(key=_shard_of)
        return found if wanted[0].bodies else [row._replace(body=b"") for row in found]

    def count(self, wanted: Slice) -> dict[Shard, Tally]:
        """The counts of rows and claims of each shard of a slice that has rows."""
        tallies = {}
        with self._lock:
            for shard in self._live_shards(wanted.queue, wanted.minutes, wanted.lanes):
                found = self._slice(shard, wanted, len(self._live[shard]))
                rows = [row for row in found if not row.is_note]
                if rows:
                    claims = sum(row.claim is not None for row in rows)
                    waits = sum(row.not_before_ms is not None for row in rows)
                    tallies[shard] = Tally(len(rows), claims, waits)
        return tallies

    def occupied(self, queue: str, minutes: Sequence[int], lanes: Sequence[int]) -> list[Shard]:
        """The shards of these minutes and lanes that have a row, in order."""
        with self._lock:
            return self._live_shards(queue, minutes, lanes)

    def occupied_queues(self, wanted: Sequence[Slice]) -> set[str]:
        """The queues of those slices that have a row."""
        return {one.queue for one in wanted if self.read(one)}

    def shards(self, queue: str) -> Iterator[Shard]:
        """The shards of a queue that have a row at the time when each is yielded."""
        with self._lock:
            listed = sorted(shard for shard in self._live if shard.queue == queue)
        for shard in listed:
            if shard in self._live:
                yield shard

    def indexed(self, queue: str, minutes: range) -> Iterator[Shard]:
        """The shards of some minutes that have a row."""
        return (shard for shard in list(self.shards(queue)) if shard.minute in minutes)

    def rows(self, queue: str) -> list[Row]:
        """All rows of a queue, but notes."""
        with self._lock:
            return [
                entry[2]
                for shard in sorted(shard for shard in self._live if shard.queue == queue)
                for entry in self._live[shard]
                if not entry[2].is_note
            ]

    def _live_shards(self, queue: str, minutes: Sequence[int], lanes: Sequence[int]) -> list[Shard]:
        live = self._live
        if not minutes or not lanes or not live:
            return []
        # A poll of an idle queue asks for hundreds of shards, but only a few have rows.
        if len(minutes) * len(lanes) > len(live):
            found = [
                shard
                for shard in live
                if shard[1] in minutes and shard[2] in lanes and shard[0] == queue
            ]
        else:
            # Equal to a shard, and made in a fifth of the time.
            found = [
                Shard(*key)
                for minute in minutes
                for lane in lanes
                if (key := (queue, minute, lane)) in live
            ]
        if len(found) > 1:
            found.sort()
        return found

    def _slice(self, shard: Shard, wanted: Slice, limit: int) -> list[Row]:
        entries = self._live[shard]
        if wanted.after_id is None:
            start = bisect_left(entries, (wanted.after_ms + 1,))
        else:
            if wanted.after_id[6] >> 4 != _TIME_BASED:
                raise ValueError(f"{wanted.after_id.hex()} is no row id: a node refuses it.")
            # One byte more than any row id, so that the row of that id itself is left out.
            start = bisect_right(entries, (wanted.after_ms, order_key(wanted.after_id) + b"\0"))
        stop = bisect_left(entries, (wanted.until_ms + 1,), lo=start)
        return [entry[2] for entry in entries[start : min(stop, start + limit)]]

    # Leases: compared and set in one step, as an LWT is -------------------------------------------

    def lease(self, shard: Shard) -> LeaseState:
        """The static cells of a shard, by the node's clock."""
        found = self._leases.get(shard)
        if found is None:
            return LeaseState()
        lock, holder, window, until_us = found
        return LeaseState(lock if until_us > self.machine_us() else None, holder, window)

    def locks(self, positions: Iterable[Position]) -> dict[Shard, LeaseState]:
        """The lease states of the shards of existing rows."""
        return {row.shard: self.lease(row.shard) for row in self.find(positions)}

    def lane_locks(self, queue: str, lanes: Sequence[int]) -> dict[int, LeaseState]:
        """The lease states of those group lanes that were ever leased."""
        states = {lane: self.lease(Shard(queue, LANE_LEASE, lane)) for lane in lanes}
        return {lane: state for lane, state in states.items() if state != LeaseState()}

    def take(self, shard: Shard, seen: str | None, ours: LeaseState, ttl_ms: int) -> LeaseState:
        """Set lock and holder if there is no lock, and the holder is the one seen."""
        with self._lock:
            state = self.lease(shard)
            if state.lock is None and state.holder == seen:
                self._leases[shard] = [*ours[:3], self.machine_us() + ttl_ms * 1_000]
                return ours
            return state

    def renew(self, shard: Shard, lock: str, ttl_ms: int) -> bool:
        """Renew the TTL of the lock if it is this one."""
        with self._lock:
            is_ours = self.lease(shard).lock == lock
            if is_ours:
                self._leases[shard][3] = self.machine_us() + ttl_ms * 1_000
            return is_ours

    def release(self, shard: Shard, lock: str) -> bool:
        """Delete lock, holder and window if the lock is this one."""
        with self._lock:
            is_ours = self.lease(shard).lock == lock
            if is_ours:
                del self._leases[shard]
            return is_ours

    def list_minutes(
        self, lease: Shard, lock: str, listed: Mapping[int, int], erased: Collection[int]
    ) -> bool:
        """List minutes of a lane and erase others if its lock is this one."""
        with self._lock:
            is_ours = self.lease(lease).lock == lock
            if is_ours:
                minutes = self._waiting.setdefault((lease.queue, lease.lane), {})
                minutes.update(listed)
                for minute in erased:
                    minutes.pop(minute, None)
            return is_ours

    def waiting(self, queue: str, lanes: Iterable[int]) -> dict[int, dict[int, int]]:
        """The listed minutes of lanes, ascending."""
        with self._lock:
            return {
                lane: dict(sorted(minutes.items()))
                for lane in lanes
                if (minutes := self._waiting.get((queue, lane)))
            }

    # Notes: the latest time wins. Records: compared and set in one step ---------------------------

    def note(
        self,
        table: Table[K, V],
        partition: Partition,
        key: K,
        values: V | None,
        at_us: int,
        *,
        ttl_ms: int | None = None,
    ) -> None:
        """Write the values of a key at a time; None deletes them."""
        with self._lock:
            rows = self._notes.setdefault((table.name, partition), {})
            before = rows.get(key)
            if before is None or before.at_us <= at_us:
                rows[key] = _Note(at_us, values, self._until_us(ttl_ms))
                self.on_note(table, partition, key, values)

    def notes(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """The values under these keys, or all, that have not expired."""
        wanted = None if keys is None else set(keys)
        now_us = self.machine_us()
        with self._lock:
            return {
                key: _viewed(table, note.values)
                for key, note in self._notes.get((table.name, partition), {}).items()
                if _is_there(note, now_us) and (wanted is None or key in wanted)
            }

    records = notes

    def change(
        self, table: Table[K, V], change: Change, at_us: int, nonce: object
    ) -> dict[str, Any] | None:
        """Change a record if it is as it was seen, or if this same change was applied before.

        Returns:
            None if the change is applied; else the present values of the columns seen.
        """
        partition, columns, seen, new, *_, ttl_ms = change
        key, now_us = table.key_of(columns), self.machine_us()
        names = [one.name for one in table.values]
        with self._lock:
            rows = self._notes.setdefault((table.name, partition), {})
            note = rows.get(key)
            there = note if note is not None and _is_there(note, now_us) else None
            stored = dict.fromkeys(names)
            if there is not None:
                stored = dict(zip(names, table.value_columns(there.values), strict=True))
            present = {name: stored[name] for name in seen}
            if present != dict(seen):
                if table.nonce and new is not None:
                    return None if there is not None and there.nonce is nonce else present
                return None if change.is_done_by(present) else present
            values = None if new is None else table.values_of(list((stored | dict(new)).values()))
            rows[key] = _Note(at_us, values, self._until_us(ttl_ms), nonce)
            self.on_note(table, partition, key, values)
            return None

    # The ledger -----------------------------------------------------------------------------------

    def recorded(self, entries: Iterable[Entry]) -> list[Mark]:
        """The marks in the ledger of these entries."""
        return self.marks.find(entries)

    def history(self, queue: str, minutes: range) -> Iterator[Mark]:
        """The marks in the ledger of these minutes."""
        return iter(self.marks.read(queue, minutes))

    def _until_us(self, ttl_ms: int | None) -> int:
        return self.machine_us() + ttl_ms * 1_000 if ttl_ms else 0


def _with_state(row: Row, edited: Row) -> Row:
    """A row with the columns that an edit changes."""
    return row._replace(
        attempt=edited.attempt,
        claim=edited.claim,
        not_before_ms=edited.not_before_ms,
        error=edited.error,
        received=edited.received,
        serial=edited.serial,
    )


def _is_there(note: _Note, now_us: int) -> bool:
    return note.values is not None and (note.until_us == 0 or note.until_us > now_us)
