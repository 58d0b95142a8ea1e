"""Leases: the static cells of a shard, written by LWT and by nothing else.

```
 take     lock, holder and window in one conditional batch; only the lock has a time to live
 renew    the lock again, if it is ours
 release  all three deleted, if the lock is ours
```
A plain write to one of these cells would hide later LWTs, whose times are the server's ballots.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cassandra.query import BatchStatement, BatchType

from shardq.model.shard import Shard
from shardq.stores.cassandra import cells
from shardq.stores.cassandra.undecided import decide
from shardq.stores.store import LeaseState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardq.model.shard import Position
    from shardq.stores.cassandra.session import Session

# `"window" != -1` always holds; it is there so that a refusal tells the window too.
_TAKE_LOCK = (
    "UPDATE {}.messages USING TTL ? SET lock = ? "
    'WHERE queue = ? AND minute = ? AND lane = ? IF lock = ? AND "window" != -1'
)
_TAKE_HOLDER = (
    'UPDATE {}.messages SET holder = ?, "window" = ? '
    "WHERE queue = ? AND minute = ? AND lane = ? IF holder = ?"
)
_RENEW = (
    "UPDATE {}.messages USING TTL ? SET lock = ? "
    "WHERE queue = ? AND minute = ? AND lane = ? IF lock = ?"
)
_RELEASE = (
    'DELETE lock, holder, "window" FROM {}.messages '
    "WHERE queue = ? AND minute = ? AND lane = ? IF lock = ?"
)
# Part of every batch, and always true: nothing is ever put there. Where all conditions are on
# static cells, Cassandra 5.0 (`CQL3CasRequest.readCommand`) reads on to the first live row, through
# every tombstone of the shard: 60,000 of them take 0.1 s, and from 100,000 on no lease could be
# renewed. With one on a row it reads that row and the static cells.
_ANCHOR = (
    "DELETE name FROM {}.messages "
    "WHERE queue = ? AND minute = ? AND lane = ? AND due = ? AND id = ? IF name = null"
)
_ANCHOR_AT = [cells.bigint(-1), b"\0\0\0\0\0\0\x10\0" + b"\x80" + bytes(7)]
"""Before every due that is read, and a valid timeuuid."""
# `due` is asked for because Cassandra refuses a clustering restriction on static columns alone.
_BESIDE = (
    'SELECT queue, minute, lane, lock, holder, "window", due FROM {}.messages '
    "WHERE queue = ? AND minute = ? AND lane = ? AND due = ? AND id = ?"
)


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
        """Lease shards that nobody holds and whose holder is the one seen; an LWT each."""
        ours = LeaseState(lock, holder, window)
        make = {
            shard: partial(self._taking, shard, before, ours, cells.seconds(ttl_ms))
            for shard, before in seen.items()
        }
        # Repeating an undecided take asks and takes at once: had it been applied, the refusal
        # shows our lock, which no other call has.
        answers = decide(self._session, make)
        return {
            shard: ours if answer[0]["[applied]"] else _state(answer[0])
            for shard, answer in answers.items()
        }

    def renew(self, locks: Mapping[Shard, str], ttl_ms: int) -> set[Shard]:
        """Give leases their full time again; returns those that are still ours."""
        seconds = cells.seconds(ttl_ms)
        make = {
            shard: partial(
                self._anchored,
                shard,
                (_RENEW, [seconds, lock.encode(), *cells.partition(shard), lock.encode()]),
            )
            for shard, lock in locks.items()
        }
        answers = decide(self._session, make)
        return {shard for shard, answer in answers.items() if answer[0]["[applied]"]}

    def release(self, locks: Mapping[Shard, str]) -> None:
        """End leases, where they are ours."""
        make = {
            shard: partial(
                self._anchored, shard, (_RELEASE, [*cells.partition(shard), lock.encode()])
            )
            for shard, lock in locks.items()
        }
        decide(self._session, make)

    def locks(self, positions: Iterable[Position]) -> dict[Shard, LeaseState]:
        """Lease states read beside rows; with the whole key no tombstone is walked through."""
        statements = [
            self._session.bound(_BESIDE, [*cells.partition(shard), cells.bigint(due_ms), row_id])
            for shard, due_ms, row_id in positions
        ]
        return {
            Shard(queue, minute, lane): LeaseState(lock, holder, window or 0)
            for page in self._session.read(statements, "locks")
            for queue, minute, lane, lock, holder, window, _due in page
        }

    def _taking(self, shard: Shard, before: str | None, ours: LeaseState, seconds: bytes) -> Any:
        key = cells.partition(shard)
        lock, holder = str(ours.lock).encode(), str(ours.holder).encode()
        seen = None if before is None else before.encode()
        return self._anchored(
            shard,
            (_TAKE_LOCK, [seconds, lock, *key, None]),
            (_TAKE_HOLDER, [holder, cells.int_(ours.window), *key, seen]),
        )

    def _anchored(self, shard: Shard, *writes: tuple[str, list[Any]]) -> Any:
        batch = BatchStatement(BatchType.UNLOGGED)
        for cql, values in (*writes, (_ANCHOR, [*cells.partition(shard), *_ANCHOR_AT])):
            batch.add(self._session.bound(cql, values))
        return batch


def _state(answer: dict[str, Any]) -> LeaseState:
    return LeaseState(answer.get("lock"), answer.get("holder"), answer.get("window") or 0)
