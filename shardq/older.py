"""Shards of lanes that a member has not leased, and whose rows come before those it has.

A lane's groups go on in the order of its shards: beside one that is another's, none may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq.store import Slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.lane import Lane
    from shardq.lease import Leases
    from shardq.message import Row
    from shardq.shard import Layout
    from shardq.store import Store

_PAST_MINUTES = 1_440


class Older(NamedTuple):
    """A shard with rows that is not ours.

    Attributes:
        first: Its first row that is due.
        is_free: Whether it is nobody's, or has no lock any more: else another has it.
    """

    first: Row
    is_free: bool


def find_older(
    store: Store, leases: Leases, layout: Layout, lanes: Sequence[Lane], now_ms: int
) -> list[Older]:
    """Unsealed shards of lanes, up to now, that have rows and that are not leased here."""
    numbers = [lane.number for lane in lanes]
    oldest = min(lane.sealed for lane in lanes) + 1
    open_from = max(oldest, layout.newest_sealable(now_ms) + 1)
    past = range(max(oldest, open_from - _PAST_MINUTES), open_from)
    occupied = store.occupied(layout.queue, past, numbers) if past else []
    minutes = sorted({shard.minute for shard in occupied})
    minutes += range(open_from, layout.minute_of(now_ms) + 1)
    after_ms = layout.start_ms(minutes[0]) - 1 if minutes else -1
    wanted = Slice(layout.queue, minutes, numbers, after_ms, now_ms, 1, purpose="groups")
    firsts = [row for row in store.read(wanted) if leases.get(row.shard) is None]
    locks = store.locks([row.position for row in firsts])
    # One that is gone by now was settled by whoever had it.
    return [
        Older(row, row.shard in locks and leases.is_free(locks[row.shard].lock)) for row in firsts
    ]
