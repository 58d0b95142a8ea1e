"""Leases: the static cells of a shard or of a lane for groups, written by LWT alone.

```
 take     lock, holder and window in one conditional batch; only the lock has a time to live
 renew    the lock again, if it is ours
 release  all three deleted, if the lock is ours
```
A plain write to one of these cells would hide later LWTs, whose times are the server's ballots.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cassandra.query import BatchStatement, BatchType

from shardq.model.shard import LANE_LEASE, Shard
from shardq.stores.cassandra import cells
from shardq.stores.cassandra.undecided import decide
from shardq.stores.store import LeaseState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shardq.model.shard import Position
    from shardq.stores.cassandra.session import Session


class _Statements(NamedTuple):
    """The statements on the leases of a table."""

    take_lock: str
    take_holder: str
    renew: str
    release: str
    anchor: str

    @classmethod
    def of(cls, table: str, place: str, anchor: str) -> _Statements:
        """The statements on a table; `place` is the condition that names a partition."""
        said = (
            # `"window" != -1` always holds; it makes a refusal show the window too.
            'UPDATE {}.%s USING TTL ? SET lock = ? WHERE %s IF lock = ? AND "window" != -1',
            'UPDATE {}.%s SET holder = ?, "window" = ? WHERE %s IF holder = ?',
            "UPDATE {}.%s USING TTL ? SET lock = ? WHERE %s IF lock = ?",
            'DELETE lock, holder, "window" FROM {}.%s WHERE %s IF lock = ?',
        )
        return cls._make([*(one % (table, place) for one in said), anchor])


# In every batch, and always true, because this row is never written. If all conditions were on
# static cells, Cassandra 5.0 (`CQL3CasRequest.readCommand`) would read through every tombstone of
# the shard to the first live row: 60,000 take 0.1 s, and from 100,000 on no lease could be renewed.
# If one condition is on a row, Cassandra reads that row and the static cells alone.
_ANCHOR = (
    "DELETE name FROM {}.messages "
    "WHERE queue = ? AND minute = ? AND lane = ? AND due = ? AND id = ? IF name = null"
)
_LANE_ANCHOR = (
    "DELETE due FROM {}.waiting WHERE queue = ? AND lane = ? AND minute = -1 IF due = null"
)
_OF_SHARDS = _Statements.of("messages", "queue = ? AND minute = ? AND lane = ?", _ANCHOR)
_OF_LANES = _Statements.of("waiting", "queue = ? AND lane = ?", _LANE_ANCHOR)
_ANCHOR_AT = [cells.bigint(-1), b"\0\0\0\0\0\0\x10\0" + b"\x80" + bytes(7)]
"""The position of the row that is never written: a due before all that are read, a valid id."""
# `due` is selected because Cassandra refuses a clustering restriction on static columns alone.
_BESIDE = (
    'SELECT queue, minute, lane, lock, holder, "window", due FROM {}.messages '
    "WHERE queue = ? AND minute = ? AND lane IN ? AND (due, id) IN ?"
)

_LANE_LOCKS = (
    'SELECT DISTINCT queue, lane, lock, holder, "window" FROM {}.waiting '
    "WHERE queue = ? AND lane IN ?"
)
# `minute > -1` leaves out lanes that have static cells and no listed minute.
_WAITING = (
    "SELECT lane, minute, toUnixTimestamp(due) FROM {}.waiting "
    "WHERE queue = ? AND lane IN ? AND minute > -1"
)
_LIST = "UPDATE {}.waiting SET due = ? WHERE queue = ? AND lane = ? AND minute = ?"
_UNLIST = "DELETE FROM {}.waiting WHERE queue = ? AND lane = ? AND minute = ?"
_IF_OURS = f"{_LANE_ANCHOR} AND lock = ?"
_LISTED_MAX = 100


class Leases:
    """The verbs on leases.

    Args:
        session: The connection.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def take(
        self, seen: Mapping[Shard, str | None], *, lock: str, holder: str, window: int, ttl_ms: int
    ) -> dict[Shard, LeaseState]:
        """Lease shards that nobody leases and whose holder is the one seen; an LWT each."""
        ours = LeaseState(lock, holder, window)
        make = {
            shard: partial(self._taking, shard, before, ours, cells.seconds(ttl_ms))
            for shard, before in seen.items()
        }
        # An undecided take may be repeated: if it was applied, the refusal shows our lock, which no
        # other call has.
        answers = decide(self._session, make)
        return {
            shard: ours if answer[0]["[applied]"] else _state(answer[0])
            for shard, answer in answers.items()
        }

    def renew(self, locks: Mapping[Shard, str], ttl_ms: int) -> set[Shard]:
        """Extend leases to their full time again; returns those that are still ours."""
        seconds = cells.seconds(ttl_ms)
        make = {
            shard: partial(
                self._anchored,
                shard,
                (_of(shard).renew, [seconds, lock.encode(), *_place(shard), lock.encode()]),
            )
            for shard, lock in locks.items()
        }
        answers = decide(self._session, make)
        return {shard for shard, answer in answers.items() if answer[0]["[applied]"]}

    def release(self, locks: Mapping[Shard, str]) -> None:
        """Release leases that are ours."""
        make = {
            shard: partial(
                self._anchored, shard, (_of(shard).release, [*_place(shard), lock.encode()])
            )
            for shard, lock in locks.items()
        }
        decide(self._session, make)

    def locks(self, positions: Iterable[Position]) -> dict[Shard, LeaseState]:
        """Lease states, read by the whole keys of rows, so that no tombstone is read."""
        minutes: dict[tuple[str, int], list[Position]] = {}
        for position in positions:
            minutes.setdefault(position.shard[:2], []).append(position)
        statements = [
            self._session.bound(
                _BESIDE,
                [
                    queue.encode(),
                    cells.bigint(minute),
                    cells.ints(sorted({shard.lane for shard, _, _ in some})),
                    cells.listed(cells.item([cells.bigint(due), id_]) for _, due, id_ in some),
                ],
            )
            for (queue, minute), some in minutes.items()
        ]
        return {
            Shard(queue, minute, lane): LeaseState(lock, holder, window or 0)
            for page in self._session.read(statements, "locks")
            for queue, minute, lane, lock, holder, window, _due in page
        }

    def _taking(self, shard: Shard, before: str | None, ours: LeaseState, seconds: bytes) -> Any:
        key, statements = _place(shard), _of(shard)
        lock, holder = str(ours.lock).encode(), str(ours.holder).encode()
        seen = None if before is None else before.encode()
        return self._anchored(
            shard,
            (statements.take_lock, [seconds, lock, *key, None]),
            (statements.take_holder, [holder, cells.int_(ours.window), *key, seen]),
        )

    def _anchored(self, shard: Shard, *writes: tuple[str, list[Any]]) -> Any:
        at = [] if shard.minute == LANE_LEASE else _ANCHOR_AT
        return self._conditional_batch([*writes, (_of(shard).anchor, [*_place(shard), *at])])

    def _conditional_batch(self, writes: Iterable[tuple[str, list[Any]]]) -> Any:
        batch = BatchStatement(BatchType.UNLOGGED)
        for cql, values in writes:
            batch.add(self._session.bound(cql, values))
        return batch

    # Lanes for groups -----------------------------------------------------------------------------

    def lane_locks(self, queue: str, lanes: Sequence[int]) -> dict[int, LeaseState]:
        """Lease states of lanes for groups."""
        statement = self._session.bound(_LANE_LOCKS, [queue.encode(), cells.ints(lanes)])
        found = {
            lane: LeaseState(lock, holder, window or 0)
            for page in self._session.read([statement], "locks")
            for _, lane, lock, holder, window in page
        }
        return {lane: state for lane, state in found.items() if state != LeaseState()}

    def waiting(self, queue: str, lanes: Sequence[int]) -> dict[int, dict[int, int]]:
        """The listed minutes of lanes for groups."""
        statement = self._session.bound(_WAITING, [queue.encode(), cells.ints(lanes)])
        found: dict[int, dict[int, int]] = {}
        for page in self._session.read([statement], "waiting"):
            for lane, minute, due_ms in page:
                found.setdefault(lane, {})[minute] = due_ms
        return found

    def list_minutes(
        self, lease: Shard, lock: str, listed: Mapping[int, int], erased: Collection[int] = ()
    ) -> bool:
        """List minutes of a lane and erase others, if its lease is ours."""
        place = _place(lease)
        writes = [
            (_LIST, [cells.bigint(due_ms), *place, cells.bigint(minute)])
            for minute, due_ms in listed.items()
        ]
        writes += [(_UNLIST, [*place, cells.bigint(minute)]) for minute in erased]
        condition = (_IF_OURS, [*place, lock.encode()])
        for n in range(0, len(writes), _LISTED_MAX):
            batch = [*writes[n : n + _LISTED_MAX], condition]
            answer = decide(self._session, {n: partial(self._conditional_batch, batch)})[n]
            if not answer[0]["[applied]"]:
                return False
        return True


def _of(shard: Shard) -> _Statements:
    return _OF_LANES if shard.minute == LANE_LEASE else _OF_SHARDS


def _place(shard: Shard) -> list[bytes]:
    """The partition key of a lease."""
    queue, minute, lane = cells.partition(shard)
    return [queue, lane] if shard.minute == LANE_LEASE else [queue, minute, lane]


def _state(answer: dict[str, Any]) -> LeaseState:
    return LeaseState(answer.get("lock"), answer.get("holder"), answer.get("window") or 0)
