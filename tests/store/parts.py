"""What the files of the contract share: times, rows, leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardq import clock
from shardq.model.ids import row_ids
from shardq.model.message import Row
from shardq.model.shard import MINUTE_MS, Shard
from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq.stores.store import LeaseState, Store

BASE_MINUTE = 29_000_000
BASE_MS = BASE_MINUTE * MINUTE_MS
BASE_US = BASE_MS * 1_000
FOREVER_MS = 1 << 48
TTL_MS = 1_000
"""The shortest time to live that Cassandra has."""
LONG_MS = 600_000


@dataclass
class Hands:
    """The hands of SQLite's clock, which a test moves."""

    us: int = BASE_US

    def __call__(self) -> int:
        return self.us

    def boot_time(self) -> clock.BootTime:
        return clock.BootTime(self.us - BASE_US, "test")


class Lapse(Protocol):
    """Lets a time to live run out, and checks that what it kept is then gone."""

    def __call__(self, ttl_ms: int, gone: Callable[[], bool]) -> None: ...


def make_row(
    queue: str, due_ms: int = BASE_MS, lane: int = 0, *, row_id: bytes | None = None, **columns
) -> Row:
    """A row in the shard of its due, with a fresh id unless one is given."""
    shard = Shard(queue, due_ms // MINUTE_MS, lane)
    columns.setdefault("body", b"body")
    return Row(shard, due_ms, row_id or row_ids.next(BASE_US), **columns)


def everything(rows: list[Row]) -> Slice:
    """The slice that covers all shards of the rows and all dues."""
    return Slice(
        queue=rows[0].shard.queue,
        minutes=sorted({row.shard.minute for row in rows}),
        lanes=sorted({row.shard.lane for row in rows}),
        after_ms=-1,
        until_ms=FOREVER_MS,
        limit=1_000_000,
    )


def read_back(store: Store, rows: list[Row]) -> list[Row]:
    return store.read(everything(rows))


def in_order(rows: list[Row]) -> list[Row]:
    """Rows by (minute, lane), then (due, id); their ids come from one generator, oldest first."""
    return sorted(rows, key=lambda row: (row.shard.minute, row.shard.lane, row.order))


def lease(
    store: Store,
    shard: Shard,
    lock: str,
    *,
    holder: str = "member",
    seen: str | None = None,
    window: int = 9,
    ttl_ms: int = LONG_MS,
) -> LeaseState:
    """What `take` tells of one shard."""
    return store.take({shard: seen}, lock=lock, holder=holder, window=window, ttl_ms=ttl_ms)[shard]


def lease_states(store: Store, shards: Iterable[Shard]) -> dict[Shard, LeaseState]:
    """The state of each shard as last decided: what a take by somebody whom nobody saw is told."""
    unseen = dict.fromkeys(shards, "nobody")
    return store.take(unseen, lock="nobody's", holder="nobody", window=0, ttl_ms=LONG_MS)
